"""Dot-product instructions as rows of data: `acc[l] += sum of a[l, f] * b[l, f]` over the few elements f of one 32-bit lane.

Sums of integers are taken modulo 2^32, so an instruction that multiplies a signed by an unsigned byte serves all four pairs:

    a b  =  (a + 128) b - 128 b       of two signed bytes: the left one is unsigned once its top bit is flipped
    a b  =  (a - 128) b + 128 b       of two unsigned ones: it is signed then

What is left over is the same for all rows: one more dot product for each column of a tile, with the byte 0x80 in the left one's
place, or a sum of columns that the text has beside a sum of products of which one factor is raised (`rewrite/sums/raised.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.dtypes import BF16, F32, I8, I16, I32, U8, U32, DType
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, names
from polyop.ir.loops import Store
from polyop.ir.target import Target


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction, for vectors of any of `features`' widths.

    intrinsic  LLVM's name, with `{}` for the width in bits; operand: the element type that it takes
    sums       the dtypes that it adds up in; sides: those of its two operands
    steps      elements of a lane
    features   (bytes of a vector, what the target must have: all of one of these)
    adds       whether it adds to what there is; else an addition follows, and chains are no longer than that
    """

    name: str
    intrinsic: str
    operand: str
    sums: tuple[DType, ...]
    sides: tuple[DType, DType]
    steps: int
    features: tuple[tuple[int, tuple[frozenset[str], ...]], ...]
    adds: bool = True

    def runs_on(self, t: Target, bytes_: int) -> bool:
        has = any(b == bytes_ and any(all(map(t.has, some)) for some in needs) for b, needs in self.features)
        return has and self.name not in t.slow


@dataclass(frozen=True, slots=True)
class Dot:
    """How a product of a left and a right operand is carried out.

    swapped  the right operand is the instruction's first
    flipped  the operand whose top bits are flipped: `LEFT`, `RIGHT` or none
    owes     whether what that adds is taken off again; else the text means what it adds
    """

    instruction: Instruction
    swapped: bool = False
    flipped: str = ""
    owes: bool = False

    @property
    def steps(self) -> int:
        return self.instruction.steps


_VNNI = ((64, (frozenset({"avx512vnni"}),)), (32, (frozenset({"avx512vnni", "avx512vl"}), frozenset({"avxvnni"}))))
_BF16 = ((64, (frozenset({"avx512bf16"}),)), (32, (frozenset({"avx512bf16", "avx512vl"}),)))

# https://www.intel.com/content/www/us/en/docs/intrinsics-guide: VPDPBUSD, VPDPWSSD, VDPBF16PS, VPMADDWD
BYTES = Instruction("vpdpbusd", "llvm.x86.avx512.vpdpbusd.{}", "i8", (I32, U32), (U8, I8), 4, _VNNI)
WORDS = Instruction("vpdpwssd", "llvm.x86.avx512.vpdpwssd.{}", "i16", (I32, U32), (I16, I16), 2, _VNNI)
BRAINS = Instruction("vdpbf16ps", "llvm.x86.avx512bf16.dpbf16ps.{}", "bfloat", (F32,), (BF16, BF16), 2, _BF16)
# VPMADDWD: twice -32768 * -32768 is 2^31, which wraps around as sums do
_WIDE, _SHORT = ((64, (frozenset({"avx512bw"}),)),), ((32, (frozenset({"avx2"}),)),)
PAIRS = (Instruction("vpmaddwd", "llvm.x86.avx512.pmaddw.d.512", "i16", (I32, U32), (I16, I16), 2, _WIDE, adds=False),
         Instruction("vpmaddwd", "llvm.x86.avx2.pmadd.wd", "i16", (I32, U32), (I16, I16), 2, _SHORT, adds=False))
ROWS = (BYTES, WORDS, BRAINS, *PAIRS)

LEFT, RIGHT = "left", "right"
TOP = 128  # what flipping its top bit adds to a signed byte, and takes off an unsigned one
RAISES = {"add": I8, "sub": U8}
"""What raises a byte of which type by `TOP`, its top bit flipped."""


def dot(t: Target, bytes_: int, total: DType, left: DType, right: DType, strict: bool, raised: str = "") -> Dot | None:
    """How vectors of `bytes_` add products of `left` and `right` to `total` on this target, if an instruction does.

    Notes   The text raises the operand `raised`, if any: of two bytes alike.
            `vdpbf16ps` rounds to even only, and takes numbers below 2^-126 for 0: not where numerics are strict.
    """
    for row in ROWS:
        if total not in row.sums or not row.runs_on(t, bytes_) or (strict and total.is_float):
            continue
        if (left, right) == row.sides and not raised:
            return Dot(row)
        if (right, left) == row.sides and not raised:
            return Dot(row, swapped=True)
        if row is BYTES and left == right and left in row.sides:
            return Dot(row, swapped=(right == U8) == (raised != RIGHT), flipped=raised or LEFT, owes=not raised)
    return None


@dataclass(frozen=True, slots=True)
class Matrix:
    """An instruction that multiplies tiles: up to `TILE` rows of `TILE` lanes, each the sum of 64 bytes' products.

    intrinsic  LLVM's name; feature: what the target must have beside tiles
    """

    name: str
    intrinsic: str
    sums: tuple[DType, ...]
    sides: tuple[DType, DType]
    feature: str


SUMS = 4  # tiles of sums at most: of the eight that there are, operands take the others
TILE = 16  # rows of a tile, lanes of its sums, and dot products that each of these adds up

# https://www.intel.com/content/www/us/en/docs/intrinsics-guide: TDPBF16PS, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD
MATRICES = (
    Matrix("tdpbf16ps", "llvm.x86.tdpbf16ps.internal", (F32,), (BF16, BF16), "amx-bf16"),
    Matrix("tdpbssd", "llvm.x86.tdpbssd.internal", (I32, U32), (I8, I8), "amx-int8"),
    Matrix("tdpbsud", "llvm.x86.tdpbsud.internal", (I32, U32), (I8, U8), "amx-int8"),
    Matrix("tdpbusd", "llvm.x86.tdpbusd.internal", (I32, U32), (U8, I8), "amx-int8"),
    Matrix("tdpbuud", "llvm.x86.tdpbuud.internal", (I32, U32), (U8, U8), "amx-int8"),
)


def matrix(t: Target, total: DType, left: DType, right: DType) -> Matrix | None:
    """The instruction for tiles of such products, if the target has one and vectors as wide as a tile's rows."""
    if not t.has("amx-tile") or t.vector_bytes != 4 * TILE:
        return None
    return next((m for m in MATRICES if total in m.sums and (left, right) == m.sides and t.has(m.feature)), None)


def factors(e: Expr) -> tuple[Load, Load] | None:
    """a and b, where `e` is the product of these two, each of them widened or as it is."""
    if not isinstance(e, Apply) or e.fn != "mul":
        return None
    match tuple(x.args[0] if isinstance(x, Apply) and x.fn == "cast" else x for x in e.args):
        case (Load() as a, Load() as b):
            return a, b
    return None


@dataclass(frozen=True, slots=True)
class Product:
    """The product of `a` and `b`, each widened; a byte `raised` among them has `TOP` added if it is signed, else taken off."""

    a: Load
    b: Load
    raised: Load | None = None

    def side(self, right: Load) -> str:
        """Which operand is raised, where `right` stands on the right; "" if none is."""
        return "" if self.raised is None else RIGHT if self.raised == right else LEFT


def product(e: Expr) -> Product | None:
    """What `e` is the product of, if it is one."""
    if not isinstance(e, Apply) or e.fn != "mul":
        return None
    match tuple(map(_widened, e.args)):
        case ((a, False), (b, False)):
            return Product(a, b)
        case ((a, True), (b, False)) if a.dtype == b.dtype:
            return Product(a, b, a)
        case ((a, False), (b, True)) if a.dtype == b.dtype:
            return Product(a, b, b)
    return None


def sided(s: Store, factors: Product) -> tuple[Load, Load]:
    """(what is the same for all lanes, what is not): the one with more of the target's lanes stands on the right."""
    a, b = factors.a, factors.b
    last = _names(s.target.index[-1:])
    return (b, a) if last & _names(a.index) and not last & _names(b.index) else (a, b)


def _names(index: tuple[object, ...]) -> frozenset[str]:
    return frozenset[str]().union(*(names(p) for p in index if isinstance(p, Affine)))


def _widened(e: Expr) -> tuple[Load, bool] | None:
    """What `e` is, widened, and whether that is raised."""
    match e:
        case Apply(fn="cast", args=(Load() as x,)):
            return x, False
        case Apply(fn=fn, args=(Apply(fn="cast", args=(Load() as x,)), Const(value=128))) if x.dtype == RAISES.get(fn):
            return x, True
    return None
