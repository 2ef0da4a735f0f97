"""Matrix units: what one instruction multiplies, and which lane holds which element, as rows of data.

An atom computes `d += a * b` with a of m x k, b of k x n and d of m x n elements. Lane `lane` of its warp holds `regs`
elements of each operand; element `reg` is the one that the operand's map says:

    { [lane, reg] -> [row, column] : 0 <= lane < warp and 0 <= reg < regs }

`reg` counts elements: of 16-bit ones two share a register of 32 bits, of 8-bit ones four, the first one lowest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from polyop.cached import cached_property
from polyop.ir.dtypes import BF16, F16, F32, F64, I8, I32, U8, DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, affine, evaluate, names, quasi
from polyop.ir.target import Target


class _Values(dict[int, int]):
    """What `x` is for each value of the one name in it, as far as somebody has asked."""

    def __init__(self, x: Affine, name: str) -> None:
        super().__init__()
        self.x, self.name = x, name

    def __missing__(self, value: int) -> int:
        found = self[value] = evaluate(self.x, {self.name: value})
        return found


@dataclass(frozen=True)
class Fragment:
    """The place in its matrix of each element that a lane holds: `row` and `column` over `lane` and `reg`; reg < `regs`.

    Both are sums of what depends on the lane and what depends on the register. Raises InternalError, if some term has both.
    """

    row: Affine
    column: Affine
    regs: int

    def at(self, lane: int, reg: int) -> tuple[int, int]:
        """The row and column of one element. Texts of kernels ask for some ten thousand."""
        (row, further_row), (column, further_column) = self._parts
        return row[lane] + further_row[reg], column[lane] + further_column[reg]

    @cached_property
    def _parts(self) -> tuple[tuple[_Values, _Values], tuple[_Values, _Values]]:
        return _in_two(self.row), _in_two(self.column)

    def places(self, warp: int) -> Iterator[tuple[int, int, int, int]]:
        """Every (lane, reg, row, column), register by register."""
        for lane in range(warp):
            for reg in range(self.regs):
                yield lane, reg, *self.at(lane, reg)

    def __str__(self) -> str:
        return f"{{ [lane, reg] -> [{self.row}, {self.column}] : 0 <= reg < {self.regs} }}"


def _in_two(x: Affine) -> tuple[_Values, _Values]:
    """`x` as a sum of what depends on the lane and what depends on the register."""
    apart = [Affine(((atom, factor),)) for atom, factor in x.terms]
    if any(len(names(t)) > 1 for t in apart):
        raise InternalError(f"{x} is no sum of a place of the lane and one of the register")
    of_lane = sum((t for t in apart if "lane" in names(t)), Affine(const=x.const))
    return _Values(of_lane, "lane"), _Values(x - of_lane, "reg")


@dataclass(frozen=True, slots=True)
class Atom:
    """One instruction of a matrix unit.

    targets   the architectures that have it, as `Target.arch`
    wrapper   the function of `codegen/device/pop_matrix.h` or `pop_hopper.h` that stands for it
    warp      lanes that carry it out together
    a, b, c   dtypes of the operands; the result has that of `c`
    a_map ..  which lane holds what; None: the operand is read from shared memory
    copies    how many lanes hold each element of a, and of b
    parts     instructions that it takes
    exact     whether products are of the operands as they are; else they lose bits on the way in (tf32 keeps 10 of 23)
    """

    name: str
    targets: tuple[str, ...]
    wrapper: str
    warp: int
    m: int
    n: int
    k: int
    a: DType
    b: DType
    c: DType
    a_map: Fragment | None
    b_map: Fragment | None
    c_map: Fragment
    copies: int = 1
    exact: bool = True
    parts: int = 1

    def __post_init__(self) -> None:
        for what, f, elems in (("a", self.a_map, self.m * self.k * self.copies), ("b", self.b_map, self.k * self.n * self.copies),
                               ("c", self.c_map, self.m * self.n)):
            if f is not None and f.regs * self.warp != elems:
                raise InternalError(f"atom {self.name}: {self.warp} lanes hold {f.regs} elements of {what} each, "
                                    f"expected {elems} in all")

    def __str__(self) -> str:
        return f"{self.name}: {self.c}[{self.m}, {self.n}] += {self.a}[{self.m}, {self.k}] * {self.b}[{self.k}, {self.n}]"


_LANE, _REG = affine("lane"), affine("reg")


def _div(x: Affine, d: int) -> Affine:
    return quasi("div", x, affine(d))


def _mod(x: Affine, d: int) -> Affine:
    return quasi("mod", x, affine(d))


# https://docs.nvidia.com/cuda/parallel-thread-execution: matrix fragments for mma.m8n8k4, m16n8k8, m16n8k16, m16n8k32.
# `group` and `place` are what it calls groupID and threadID_in_group; a register of 32 bits holds `pack` elements.
_AMPERE = ("sm_80", "sm_90", "sm_90a")
_HOPPER = ("sm_90a",)


def _mma_a(pack: int, warps: int = 1) -> Fragment:
    """Registers 0 to 3: the square above left, below left, above right, below right; warp by warp, 16 rows each."""
    lane = _mod(_LANE, 32) if warps > 1 else _LANE
    word = _div(_REG, pack)
    row = _div(lane, 4) + _mod(word, 2) * 8 + (_div(_LANE, 32) * 16 if warps > 1 else Affine())
    return Fragment(row, _mod(lane, 4) * pack + _mod(_REG, pack) + _div(word, 2) * 4 * pack, 4 * pack)


def _mma_b(pack: int) -> Fragment:
    return Fragment(_mod(_LANE, 4) * pack + _mod(_REG, pack) + _div(_REG, pack) * 4 * pack, _div(_LANE, 4), 2 * pack)


_MMA_C = Fragment(_div(_LANE, 4) + _div(_REG, 2) * 8, _mod(_LANE, 4) * 2 + _mod(_REG, 2), 4)


def _mma(k: int, kind: str, a: DType, b: DType, c: DType, exact: bool = True) -> Atom:
    pack = k // 8
    name = f"mma_m16n8k{k}_{kind}"
    return Atom(name, _AMPERE, f"pop_{name}", 32, 16, 8, k, a, b, c, _mma_a(pack), _mma_b(pack), _MMA_C, exact=exact)


# https://github.com/ROCm/amd_matrix_instruction_calculator: blocks of 16 lanes hold neighbouring k; one of f64 differs in d
_CDNA = ("gfx90a", "gfx942")
_RDNA = ("gfx1100",)


def _mfma_a(per_lane: int) -> Fragment:
    return Fragment(_mod(_LANE, 16), _div(_LANE, 16) * per_lane + _REG, per_lane)


def _turned(f: Fragment) -> Fragment:
    return Fragment(f.column, f.row, f.regs)


def _mfma(k: int, t: DType, c: DType, c_map: Fragment, parts: int = 1, on: tuple[str, ...] = _CDNA) -> Atom:
    """Those in which a lane holds 16 bytes are several instructions, each of which takes a part of these: which k they add first
    is free, and a lane's elements lie together, so that one load brings them.
    """
    name = f"mfma_{c}_16x16x{k}_{t}" + (f"_in_{parts}" if on != _CDNA and parts > 1 else "")
    a = _mfma_a(k // 4)
    return Atom(name, on, f"pop_{name}", 64, 16, 16, k, t, t, c, a, _turned(a), c_map, parts=parts)


_MFMA_C = Fragment(_div(_LANE, 16) * 4 + _REG, _mod(_LANE, 16), 4)
_MFMA_C_F64 = Fragment(_REG * 4 + _div(_LANE, 16), _mod(_LANE, 16), 4)

# https://gpuopen.com/learn/wmma_on_rdna3: both halves of the warp hold all of a and b, and every other row of d
_WMMA_A = Fragment(_mod(_LANE, 16), _REG, 16)
_WMMA_C = Fragment(_REG * 2 + _div(_LANE, 16), _mod(_LANE, 16), 8)


def _wmma(a: DType, b: DType, c: DType) -> Atom:
    name = f"wmma_{c}_16x16x16_{a}{b if b != a else ''}"
    return Atom(name, _RDNA, f"pop_{name}", 32, 16, 16, 16, a, b, c, _WMMA_A, _turned(_WMMA_A), _WMMA_C, copies=2)


# https://docs.nvidia.com/cuda/parallel-thread-execution: register fragments of wgmma.mma_async.m64nNk16; `lane` counts the
# 128 threads of four warps, each of which has 16 rows
_WGMMA_N = (8, 16, 32, 64, 96, 128, 192, 256)


def _wgmma(n: int, t: DType, a_map: Fragment | None) -> Atom:
    name = f"wgmma_m64n{n}k16_{t}{'_a' if a_map else ''}"
    row = _div(_LANE, 32) * 16 + _div(_mod(_LANE, 32), 4) + _mod(_div(_REG, 2), 2) * 8
    c_map = Fragment(row, _div(_REG, 4) * 8 + _mod(_LANE, 4) * 2 + _mod(_REG, 2), n // 2)
    return Atom(name, _HOPPER, f"pop_{name}", 128, 64, n, 16, t, t, F32, a_map, None, c_map)


ROWS = (
    _mma(16, "f16", F16, F16, F32),
    _mma(16, "bf16", BF16, BF16, F32),
    _mma(8, "tf32", F32, F32, F32, exact=False),
    Atom("mma_m8n8k4_f64", _AMPERE, "pop_mma_m8n8k4_f64", 32, 8, 8, 4, F64, F64, F64, Fragment(_div(_LANE, 4), _mod(_LANE, 4), 1),
         Fragment(_mod(_LANE, 4), _div(_LANE, 4), 1), Fragment(_div(_LANE, 4), _mod(_LANE, 4) * 2 + _REG, 2)),
    _mma(32, "s8", I8, I8, I32),
    _mma(32, "s8u8", I8, U8, I32),
    _mma(32, "u8s8", U8, I8, I32),
    _mma(32, "u8", U8, U8, I32),
    _mfma(32, F16, F32, _MFMA_C, 2),
    _mfma(32, BF16, F32, _MFMA_C, 2),
    _mfma(16, F16, F32, _MFMA_C),
    _mfma(16, BF16, F32, _MFMA_C),
    _mfma(16, F32, F32, _MFMA_C, 4),
    _mfma(4, F32, F32, _MFMA_C),
    _mfma(8, F64, F64, _MFMA_C_F64, 2),
    _mfma(4, F64, F64, _MFMA_C_F64),
    _mfma(64, I8, I32, _MFMA_C, 4, ("gfx90a",)),
    _mfma(16, I8, I32, _MFMA_C, on=("gfx90a",)),
    _mfma(64, I8, I32, _MFMA_C, 2, ("gfx942",)),
    _mfma(32, I8, I32, _MFMA_C, on=("gfx942",)),
    *(_wmma(t, t, F32) for t in (F16, BF16)),
    *(_wmma(a, b, I32) for a in (I8, U8) for b in (I8, U8)),
    *(_wgmma(n, t, a_map) for n in _WGMMA_N for t in (F16, BF16) for a_map in (None, _mma_a(2, warps=4))),
)


def atoms_for(target: Target, a: DType, b: DType, c: DType) -> tuple[Atom, ...]:
    """The atoms of a target that multiply an `a` by a `b` and add to a `c`; maybe none.

    Those whose operands are all in registers come first, and the largest of them before smaller ones.

    Notes   Those that are not `exact` are among them: whether a loss is welcome is not a question of hardware.
    """
    fitting = [x for x in ROWS if target.arch in x.targets and (x.a, x.b, x.c) == (a, b, c)]
    return tuple(sorted(fitting, key=lambda x: (x.a_map is None or x.b_map is None, -x.m * x.n * x.k, x.name)))
