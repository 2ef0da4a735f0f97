"""A contraction of many short indices as products of matrices, whose rows, columns and depth are one index each, on copies.

    Z[n, b, m, a] += X[a, k, m, b, l] * Y[b, l, n, a, k]          with K = 4 and L = 5 becomes

    x[a, b, m, 5 k + l] = X[a, k, m, b, l];      z[a, b, m, n] += x[a, b, m, q] * y[a, b, q, n] with q in 0:20;
    y[a, b, 5 k + l, n] = Y[b, l, n, a, k];      Z[n, b, m, a]  = z[a, b, m, n]

Lanes run along what has unit stride in the result. Where that is one of a batch, or has a few elements and an operand ends in a
batch, most of them are empty, or look up what they read; and of several short indices each is a loop with an edge. Numbers tell
how several become one: an affine position has no products of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import prod

from polyop.ir.expr import Affine, Load, affine, evaluate, volume
from polyop.ir.integers import filled
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.ir.target import LINE
from polyop.rewrite.folds import operands_of, plain_indices, replaced
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh

FEW = 0.5
"""Of a vector that the last dimension of a result fills at most, if that is not a batch's. Then an operand has to end in a batch:
such products drawn at random are 1.25 (two threads) to 2 times (one) as fast at the mean, others 1.01 and 0.87.
"""

FULLER = 1.5
"""How much fuller vectors are of columns that are worth copies."""

SHORT = 0.75
"""What full vectors are worth whose elements are no vector in the operand as it lies: they are copied one by one."""


@dataclass(frozen=True, slots=True)
class Side:
    """An operand: the extents of its own rows or columns, and of those of them that it ends in."""

    own: tuple[Affine, ...]
    last: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Matrices:
    """A sum of products of two operands which may become products of matrices.

    sizes     that are its extents
    sides     its operands
    depth     the extents of what is added up
    ends      the extents of what lanes would run along: the last of its result, and those before that are one with it
    in_batch  whether its result ends in a batch; given_so: whether an operand does
    several   whether rows, columns or depth are more than one index
    lanes     elements of a vector of `LINE` bytes
    """

    sizes: tuple[str, ...]
    sides: tuple[Side, Side]
    depth: tuple[Affine, ...]
    ends: tuple[Affine, ...]
    in_batch: bool
    given_so: bool
    several: bool
    lanes: int


@dataclass(frozen=True, slots=True)
class _Parts:
    """The indices of such a sum: those of a batch, and each operand's own, in its order; and those that are added up."""

    operands: tuple[Load, Load]
    batch: tuple[str, ...]
    own: tuple[tuple[str, ...], tuple[str, ...]]
    depth: tuple[str, ...]


def find_matrices(op: Op) -> tuple[Matrices, ...]:
    """The sums of `op` that are such."""
    out = []
    for s in op.steps:
        p = _parts(op, s)
        if p:
            extents, kept = {r.index: r.upper for r in s.ranges}, plain_indices(s.target) or ()
            if all(e.is_constant or e.name in op.sizes for e in extents.values()):
                sides = tuple(Side(tuple(extents[i] for i in own), tuple(extents[i] for i in _ending(x, own)))
                              for x, own in zip(p.operands, p.own, strict=True))
                several = max(map(len, (*p.own, p.depth))) > 1
                ends = tuple(extents[i] for i in _together(kept, p))
                sizes = tuple(dict.fromkeys(e.name for e in extents.values() if e.name))
                depth = tuple(extents[i] for i in p.depth)
                given_so = any((plain_indices(x) or kept)[-1] in p.batch for x in p.operands)
                out.append(Matrices(sizes, (sides[0], sides[1]), depth, ends, kept[-1] in p.batch, given_so, several,
                                    LINE // s.target.dtype.bytes_))
    return tuple(out)


def numbers(found: Sequence[Matrices], sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """(size, value) of those that have to be numbers in a call in which that pays: all, but a batch of one stays an index."""
    needed = dict.fromkeys(n for x in found if columns(x, sizes) is not None for n in x.sizes)
    return tuple((n, sizes[n]) for n in needed if sizes[n] > 1)


def kinds_of(op: Op) -> tuple[str, ...]:
    """Which calls of `op` get a kernel of their own for that, in a user's words."""
    found, said = find_matrices(op), []
    if any(x.in_batch for x in found):
        said.append("a batch")
    if several := [x.lanes for x in found if x.several and x.given_so and not x.in_batch]:
        said.append(f"at most {int(FEW * max(several))} elements, and an operand in a batch")
    words = f"in which the result of a contraction ends in {' or '.join(said)}, and vectors of rows or columns are fuller"
    return (f"{words}, once they come again",) if said else ()


def columns(x: Matrices, sizes: Mapping[str, int]) -> int | None:
    """Which operand has the columns in a call in which such copies pay, 0 or 1; else None."""
    def worth(side: Side) -> float:
        count = volume(side.own, sizes)
        return filled(count, x.lanes) * (1.0 if volume(side.last, sizes) * bool(side.last) >= x.lanes else SHORT)

    counts = [volume(side.own, sizes) for side in x.sides]
    inside = (*x.depth, *(e for side in x.sides for e in side.own))
    if max(counts) < x.lanes or any(evaluate(e, sizes) < 2 for e in inside):
        return None
    best = max((0, 1), key=lambda k: (worth(x.sides[k]), counts[k]))
    last, full = volume(x.ends, sizes), filled(counts[best], x.lanes)
    fuller = full >= FULLER * filled(last, x.lanes)
    pays = (x.several or fuller) if x.in_batch else (x.several and x.given_so and last <= FEW * x.lanes and fuller)
    return best if pays else None


def in_matrices(op: Op) -> Op:
    """`op` with such copies where sizes are numbers, and they pay."""
    taken = all_names(op)

    def instead(s: Step) -> Instead | None:
        p = _parts(op, s)
        known = p and all(r.upper.is_constant for r in s.ranges if r.index not in p.batch)
        found = find_matrices(replace(op, steps=(s,))) if known else ()
        which = columns(found[0], {}) if found else None
        return _Copies(s, p, which, taken).made() if p and which is not None else None

    return with_steps(op, instead)


class _Copies:
    """The steps in the place of one, and what they need."""

    def __init__(self, s: Step, p: _Parts, which: int, taken: set[str]) -> None:
        self.step, self.taken = s, taken
        self.ranges = {r.index: r for r in s.ranges}
        self.batch = p.batch
        self.rows, self.columns = p.operands[1 - which], p.operands[which]
        own, depth = (plain_indices(x) or () for x in (self.rows, self.columns))
        order = own if own[-1] in p.depth else depth
        self.parts = {"m": p.own[1 - which], "n": p.own[which], "k": tuple(i for i in order if i in p.depth)}
        self.index = {part: fresh(part, taken) for part in self.parts}
        self.tensors: list[Tensor] = []
        self.before: list[Step] = []
        self.after: list[Step] = []

    def made(self) -> Instead:
        s, lies = self.step, plain_indices(self.rows) or ()
        expr = replaced(s.expr, self.rows, self._read(self.rows, "mk" if lies[-1] in self.parts["k"] else "km"))
        expr = replaced(expr, self.columns, self._read(self.columns, "kn"))
        target = self._written()
        one = (Range(self.index[q], Affine(), Affine(const=self._extent(q))) for q in "mnk")
        update = replace(s, target=target, expr=expr, ranges=(*(self.ranges[i] for i in self.batch), *one))
        return tuple(self.tensors), (*self.before, update, *self.after)

    def _extent(self, part: str) -> int:
        return prod(self.ranges[i].upper.const for i in self.parts[part])

    def _along(self, part: str) -> Affine:
        at = Affine()
        for i in self.parts[part]:
            at = at * self.ranges[i].upper.const + affine(i)
        return at

    def _place(self, x: Load, order: str) -> Load:
        """`x`, or a copy of it, whose dimensions are those of the batch and in this order the parts of a matrix."""
        return replace(x, index=(*map(affine, self.batch), *(affine(self.index[q]) for q in order)))

    def _lies_so(self, x: Load, order: str) -> bool:
        return plain_indices(x) == (*self.batch, *(i for q in order for i in self.parts[q])) and \
            all(len(self.parts[q]) == 1 for q in order)

    def _copy(self, x: Load, order: str) -> Load:
        """A new temporary in this order, at the place of `x` in it."""
        name = fresh(f"{x.source}_matrices", self.taken)
        shape = (*(self.ranges[i].upper for i in self.batch), *(Affine(const=self._extent(q)) for q in order))
        self.tensors.append(Tensor(name, x.dtype, shape, "temp"))
        return Load(name, (*map(affine, self.batch), *map(self._along, order)), x.dtype)

    def _read(self, x: Load, order: str) -> Load:
        if self._lies_so(x, order):
            return self._place(x, order)
        copy = self._copy(x, order)
        self.before.append(Step(copy, None, x, tuple(self.ranges[i] for i in plain_indices(x) or ()), (), self.step.span))
        return self._place(copy, order)

    def _written(self) -> Load:
        x = self.step.target
        if self._lies_so(x, "mn"):
            return self._place(x, "mn")
        copy = self._copy(x, "mn")
        self.after.append(Step(x, None, copy, tuple(self.ranges[i] for i in plain_indices(x) or ()), (), self.step.span))
        return self._place(copy, "mn")


def _parts(op: Op, s: Step) -> _Parts | None:
    """The indices of `s`; None if it is no such sum."""
    reads, kept = operands_of(op, s), plain_indices(s.target) or ()
    if not reads:
        return None
    first, second = (plain_indices(x) for x in reads)
    if not first or not second or any(op.tensor(x.source).role != "in" for x in reads):
        return None
    batch = tuple(i for i in kept if i in first and i in second)
    own = tuple(i for i in first if i in kept and i not in batch), tuple(i for i in second if i in kept and i not in batch)
    depth = tuple(i for i in first if i in second and i not in kept)
    lengths = [len(first) - len(own[0]), len(second) - len(own[1])]
    is_whole = all(n == len(batch) + len(depth) for n in lengths) and {*kept} <= {*first, *second}
    return _Parts(reads, batch, own, depth) if is_whole and all(own) and depth else None


def _ending(x: Load, own: tuple[str, ...]) -> tuple[str, ...]:
    """Those of an operand's `own` indices that it ends in."""
    return tuple(takewhile(own.__contains__, reversed(plain_indices(x) or ())))


def _together(kept: tuple[str, ...], p: _Parts) -> tuple[str, ...]:
    """The last index of a result, and those before it that follow each other in an operand as they do here, and there alone.

    Where that is a batch's, the last other one, which lanes run along on copies in which the batch comes first (`outward.py`).
    """
    if kept[-1] in p.batch:
        return tuple(i for i in kept if i not in p.batch)[-1:]
    own = p.own[0] if kept[-1] in p.own[0] else p.own[1]
    x = plain_indices(p.operands[0 if own is p.own[0] else 1]) or ()
    at, end = x.index(kept[-1]), len(kept) - 1
    count = 1
    while count <= min(at, end) and x[at - count] == kept[end - count] and kept[end - count] in own:
        count += 1
    return kept[end - count + 1 :]
