"""Products of two bytes of one sort, for instructions that multiply unsigned by signed ones: one of the two is raised by 128.

    C[m, n] += i32(A[m, k]) * i32(B[k, n])     becomes     R[m, k] = u8(A[m, k]) + 128;  S[n] += i32(B[k, n])
                                                           T[m, n] += i32(R[m, k]) * i32(B[k, n]);  C[m, n] = T[m, n] - 128 * S[n]

Raising flips the top bit of a byte. Where nobody has done it before, dot products flip it in each step of a tile (`ir/dots.py`),
an instruction for two that multiply in a tile of two vectors, and find S again for each tile of rows, beside its own sums. A sum
of columns has no such instruction: it takes about `8 / M` of the time of the product, for M rows, which must be many. Sums of
integers are taken modulo 2^32, so all of this is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.ir.dots import BYTES, TOP, dot, matrix, product
from polyop.ir.dtypes import I8, U8
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, affine, expr_names, names, volume
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.target import Target
from polyop.rewrite.folds import known_behind, plain_indices
from polyop.rewrite.instead import Instead, each_instead, made_of_each
from polyop.rewrite.names import all_names, fresh

ROWS = 128
"""Rows that share a sum of columns which make it worth it to find it on its own."""
COLUMNS = 64
"""Columns that share what is raised which make it worth it to copy that."""

_TOPS = {U8: TOP, I8: -TOP}
"""The byte of each sort of which the top bit alone is set."""


@dataclass(frozen=True, slots=True)
class Alike:
    """A sum of products of two bytes of one sort: of `left`, which has rows, and of `right`, which ends in the result's columns.

    rows, columns   the extents of what is kept and `right`, or `left`, does without
    """

    step: Step
    left: Load
    right: Load
    rows: tuple[Affine, ...]
    columns: tuple[Affine, ...]


def find_alike(op: Op) -> tuple[Alike, ...]:
    """The sums of `op` that may be of raised bytes."""
    return tuple(x for x in (_alike(op, s) for s in op.steps) if x)


def pays(found: Sequence[Alike], sizes: Mapping[str, int], target: Target) -> bool:
    """Whether `target` has an instruction for raised bytes, none for bytes as they are, and each sum is large enough for it."""
    def needs(x: Alike) -> bool:
        total, byte = x.step.target.dtype, x.left.dtype
        d = dot(target, target.vector_bytes, total, byte, byte, strict=True)
        return d is not None and d.owes and matrix(target, total, byte, byte) is None

    large = all(volume(x.rows, sizes) >= ROWS and volume(x.columns, sizes) >= COLUMNS for x in found)
    return bool(found) and large and all(map(needs, found))


def raised(op: Op) -> Op:
    """`op` with such sums of raised copies, and sums of columns beside them."""
    taken = all_names(op)

    def instead(x: Alike) -> Instead:
        s, left = x.step, op.tensor(x.left.source)
        names_ = fresh(f"{x.right.source}_sums", taken), fresh(f"{s.target.source}_raised", taken)
        sums, whole = (Tensor(n, s.target.dtype, tuple(_extents(s)[i] for i in kept), "temp")
                       for n, kept in zip(names_, (_columns(x), _kept(s)), strict=True))
        copy, made = made_of_each(left, "raised", I8 if left.dtype == U8 else U8, _flipped, taken)
        return (copy, sums, whole), (made, *_steps(x, copy, sums.name, whole.name))

    return each_instead(op, find_alike(op), instead)


def _flipped(x: Load) -> Expr:
    """The byte `x` with its top bit flipped, as one of the other sort."""
    other = I8 if x.dtype == U8 else U8
    return Apply("add", (Apply("cast", (x,), other), Const(_TOPS[other], other)), other)


def _steps(x: Alike, copy: Tensor, sums: str, whole: str) -> tuple[Step, Step, Step]:
    """The sums of columns, those of raised products, and what the text says, made of both."""
    s, kept, columns = x.step, _kept(x.step), _columns(x)
    total = s.target.dtype
    down = "sub" if copy.dtype == U8 else "add"
    raised_left = replace(x.left, source=copy.name, dtype=copy.dtype)
    top, left, right = Const(TOP, total), *(Apply("cast", (y,), total) for y in (raised_left, x.right))
    of_columns, of_all = (Load(n, tuple(map(affine, at)), total) for n, at in ((sums, columns), (whole, kept)))
    beside = set(kept) - set(columns)
    return (replace(s, target=of_columns, expr=right, ranges=tuple(r for r in s.ranges if r.index not in beside)),
            replace(s, target=of_all, expr=Apply("mul", (left, right), total)),
            replace(s, reduce=None, expr=Apply(down, (of_all, Apply("mul", (top, of_columns), total)), total),
                    ranges=tuple(r for r in s.ranges if r.index in kept)))


def _alike(op: Op, s: Step) -> Alike | None:
    """Where nothing but this step writes its result, all is read at every point, and ranges are boxes from 0 on."""
    kept, factors = _kept(s), product(s.expr)
    if s.reduce is None or s.reduce.name != "add" or s.where or len(op.steps_of(s.target.source)) != 1:
        return None
    if factors is None or factors.raised or not kept or factors.a.dtype != factors.b.dtype or factors.a.guard or factors.b.guard:
        return None
    if factors.a.dtype not in _TOPS or s.target.dtype not in BYTES.sums:
        return None
    if any(r.lower != Affine() or not names(r.upper) <= set(op.sizes) for r in s.ranges):
        return None
    having = [x for x in (factors.a, factors.b) if kept[-1] in expr_names(x)]
    others = [x for x in (factors.a, factors.b) if x not in having]
    if len(having) != 1 or len(others) != 1 or not set(s.indices) - set(kept) <= expr_names(having[0]):
        return None
    if op.tensor(others[0].source).role != "in" and not 0 < known_behind(op, others[0].source) <= op.steps.index(s):
        return None
    rows, columns = (tuple(_extents(s)[i] for i in kept if i not in expr_names(y)) for y in (having[0], others[0]))
    return Alike(s, others[0], having[0], rows, columns) if rows else None


def _extents(s: Step) -> dict[str, Affine]:
    return {r.index: r.upper for r in s.ranges}


def _columns(x: Alike) -> tuple[str, ...]:
    """The indices of the result that its right operand has."""
    return tuple(i for i in _kept(x.step) if i in expr_names(x.right))


def _kept(s: Step) -> tuple[str, ...]:
    """The indices that are the positions of the target of `s`; () if these are more than that."""
    return plain_indices(s.target, s.indices) or ()
