"""A contraction of many short indices as products of matrices, whose rows, columns and depth are one index each, on copies.

    Z[n, b, m, a] += X[a, k, m, b, l] * Y[b, l, n, a, k]          with K = 4 and L = 5 becomes

    x[a, b, m, 5 k + l] = X[a, k, m, b, l];      z[a, b, m, n] += x[a, b, m, q] * y[a, b, q, n] with q in 0:20;
    y[a, b, 5 k + l, n] = Y[b, l, n, a, k];      Z[n, b, m, a]  = z[a, b, m, n]

Lanes run along what has unit stride in the result. Where that is one of a batch, or has a few elements and an operand ends in a
batch, most of them are empty, or look up what they read; and of several short indices each is a loop with an edge. Numbers tell
how several become one: an affine position has no products of sizes.

    Z[m, n] += X[l, m, k] * Y[n, k, l]      with L = 2 becomes      x[m, 2 k + l] = X[l, m, k];   Z[m, n] += x[m, q] * y[n, q]

where y is Y, seen as a matrix: in its memory k and l are one dimension. So lanes run along all that is added up, not along l.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from math import prod

from polyop.ir.expr import Affine, Load, affine, evaluate, loads, volume
from polyop.ir.integers import filled
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.ir.target import LINE
from polyop.rewrite.flatten import Dims, Flat
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
    """An operand.

    name  its tensor's
    own   the extents of its own rows or columns, and last: of those of them that it ends in
    rows  whether it has a matrix for each of the batch, row by row, but for how many indices these are
    """

    name: str
    own: tuple[Affine, ...]
    last: tuple[Affine, ...]
    rows: bool


@dataclass(frozen=True, slots=True)
class Matrices:
    """A sum of products of two operands which may become products of matrices.

    sizes     that are its extents
    sides     its operands
    depth     the extents of what is added up
    ends      the extents of what lanes would run along: the last of its result, and those before that are one with it
    in_batch  whether its result ends in a batch; given_so: whether an operand does
    several   whether rows, columns or depth are more than one index
    result    the name of its result; along: which operand has the index that it ends in; None for a batch's
    inner     the extent of what is added up that this operand ends in, if it does
    lanes     elements of a vector of `LINE` bytes
    """

    sizes: tuple[str, ...]
    sides: tuple[Side, Side]
    depth: tuple[Affine, ...]
    ends: tuple[Affine, ...]
    in_batch: bool
    given_so: bool
    several: bool
    result: str
    along: int | None
    inner: Affine | None
    lanes: int

    @property
    def has_matrices(self) -> bool:
        """Whether it has two of them, not one and a vector."""
        return all(side.own for side in self.sides)

    def is_long(self, sizes: Mapping[str, int]) -> bool:
        """Whether all that would be rows, columns or depth is more than one element, and so a number."""
        return all(evaluate(e, sizes) > 1 for e in (*self.depth, *(e for side in self.sides for e in side.own)))


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
                sides = tuple(Side(x.source, tuple(extents[i] for i in own), tuple(extents[i] for i in _ending(x, own)),
                                   (plain_indices(x) or ())[: len(p.batch) + len(own)] == (*p.batch, *own))
                              for x, own in zip(p.operands, p.own, strict=True))
                several = max(map(len, (*p.own, p.depth))) > 1
                ends = tuple(extents[i] for i in _together(kept, p))
                sizes = tuple(dict.fromkeys(e.name for e in extents.values() if e.name))
                depth = tuple(extents[i] for i in p.depth)
                given_so = any((plain_indices(x) or kept)[-1] in p.batch for x in p.operands)
                along = next((k for k in (0, 1) if kept[-1] in p.own[k]), None)
                last = "" if along is None else (plain_indices(p.operands[along]) or ("",))[-1]
                out.append(Matrices(sizes, (sides[0], sides[1]), depth, ends, kept[-1] in p.batch, given_so, several,
                                    s.target.source, along, extents[last] if last in p.depth else None,
                                    LINE // s.target.dtype.bytes_))
    return tuple(out)


def in_one_piece(op: Op, found: Sequence[Matrices], sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]],
                 strides: Mapping[str, Sequence[int]]) -> frozenset[str]:
    """The arrays of what is `found` that may be seen with any neighbours among its dimensions as one in a call, if it matters."""
    def is_whole(name: str) -> bool:
        shape, used = shapes[name], [x for s in op.steps for x in (s.target, *loads(s.expr)) if x.source == name]
        return len(used) == 1 and 0 not in shape and Dims(((0, len(shape)),)).strides(shape, strides[name]) is not None

    names = [(x, (x.result, *(side.name for side in x.sides))) for x in found if x.several]
    return frozenset(n for x, of in names if columns(x, sizes, of) is not None for n in of if n in shapes and is_whole(n))


def numbers(found: Sequence[Matrices], sizes: Mapping[str, int], whole: Collection[str] = ()) -> tuple[tuple[str, int], ...]:
    """(size, value) of those that have to be numbers in a call in which that pays: all, but a batch of one stays an index.

    whole: the arrays that are `in_one_piece`
    """
    needed = dict.fromkeys(n for x in found if columns(x, sizes, whole) is not None for n in x.sizes)
    return tuple((n, sizes[n]) for n in needed if sizes[n] > 1)


def kinds_of(op: Op) -> tuple[str, ...]:
    """Which calls of `op` get a kernel of their own for that, in a user's words."""
    found, said = find_matrices(op), []
    two = [x for x in found if x.has_matrices]
    if any(x.in_batch for x in two):
        said.append("a batch")
    if several := [x.lanes for x in two if x.several and x.given_so and not x.in_batch]:
        said.append(f"at most {int(FEW * max(several))} elements, and an operand in a batch")
    words = f"in which the result of a contraction ends in {' or '.join(said)}, and vectors of rows or columns are fuller"
    dots = "in which vectors are fuller along all indices that are added up, as they lie in the larger operand"
    told = ((words,) if said else ()) + ((dots,) if any(x.inner and len(x.depth) > 1 for x in found) else ())
    return tuple(f"{w}, once they come again" for w in told)


def columns(x: Matrices, sizes: Mapping[str, int], whole: Collection[str] = ()) -> int | None:
    """Which operand has the columns in a call in which such copies pay, 0 or 1; else None. whole: what is `in_one_piece`."""
    if deep(x, sizes, whole) is not None:
        return x.along
    return _fuller(x, sizes) if x.has_matrices else None


def deep(x: Matrices, sizes: Mapping[str, int], whole: Collection[str]) -> int | None:
    """The larger operand, if vectors are fuller along all that is added up, as it has that, than along its last index; else None.

    It needs no copy then.
    """
    large = max((0, 1), key=lambda k: volume(x.sides[k].own, sizes))
    side, terms = x.sides[large], volume(x.depth, sizes)
    if x.inner is None or len(x.depth) < 2 or not side.rows or side.name not in whole or not x.is_long(sizes):
        return None
    fuller = filled(terms, x.lanes) >= FULLER * filled(evaluate(x.inner, sizes), x.lanes)
    return large if terms >= x.lanes and fuller else None


def _fuller(x: Matrices, sizes: Mapping[str, int]) -> int | None:
    """Which operand has fuller vectors of columns than the result would have of its last index, or None."""
    def worth(side: Side) -> float:
        count = volume(side.own, sizes)
        return filled(count, x.lanes) * (1.0 if volume(side.last, sizes) * bool(side.last) >= x.lanes else SHORT)

    counts = [volume(side.own, sizes) for side in x.sides]
    if max(counts) < x.lanes or not x.is_long(sizes):
        return None
    best = max((0, 1), key=lambda k: (worth(x.sides[k]), counts[k]))
    last, full = volume(x.ends, sizes), filled(counts[best], x.lanes)
    fuller = full >= FULLER * filled(last, x.lanes)
    pays = (x.several or fuller) if x.in_batch else (x.several and x.given_so and last <= FEW * x.lanes and fuller)
    return best if pays else None


def in_matrices(flat: Flat, whole: Collection[str] = ()) -> Flat:
    """`flat` with such copies where sizes are numbers, and they pay, and arrays that are `whole` seen as matrices."""
    op, taken = flat.op, all_names(flat.op)
    seen: dict[str, Tensor] = {}
    dims = dict(flat.dims)

    def instead(s: Step) -> Instead | None:
        p = _parts(op, s)
        known = p and all(r.upper.is_constant for r in s.ranges if r.index not in p.batch)
        found = find_matrices(replace(op, steps=(s,))) if known else ()
        which = columns(found[0], {}, whole) if found else None
        if not p or which is None:
            return None
        copies = _Copies(s, p, which, deep(found[0], {}, whole), whole, taken)
        made = copies.made()
        for name, runs in copies.seen.items():
            shape = op.tensor(name).shape
            extents = (shape[a] if b == a + 1 else Affine(const=prod(e.const for e in shape[a:b])) for a, b in runs)
            seen[name] = replace(op.tensor(name), shape=tuple(extents))
            dims[name] = dims[name].again(runs)
        return made

    made = with_steps(op, instead)
    return replace(flat, op=replace(made, tensors=tuple(seen.get(t.name, t) for t in made.tensors)), dims=dims)


class _Copies:
    """The steps in the place of one, what they need, and `seen`: which dimensions of arrays are one in them.

    which  operand has the columns; large: the one in whose order all is added up, in both of them, if that is so
    """

    def __init__(self, s: Step, p: _Parts, which: int, large: int | None, whole: Collection[str], taken: set[str]) -> None:
        self.step, self.whole, self.taken = s, whole, taken
        self.ranges = {r.index: r for r in s.ranges}
        self.batch = p.batch
        self.rows, self.columns = p.operands[1 - which], p.operands[which]
        own = plain_indices(self.rows) or ()
        self.in_dots = large is not None  # whether lanes run along what is added up
        self.in_rows = self.in_dots or own[-1] in p.depth
        order = plain_indices(p.operands[large] if large is not None else self.rows if self.in_rows else self.columns) or ()
        self.parts = {"m": p.own[1 - which], "n": p.own[which], "k": tuple(i for i in order if i in p.depth)}
        self.index = {part: fresh(part, taken) for part in self.parts}
        self.tensors: list[Tensor] = []
        self.before: list[Step] = []
        self.after: list[Step] = []
        self.seen: dict[str, tuple[tuple[int, int], ...]] = {}

    def made(self) -> Instead:
        s = self.step
        expr = replaced(s.expr, self.rows, self._read(self.rows, "mk" if self.in_rows else "km"))
        expr = replaced(expr, self.columns, self._read(self.columns, "nk" if self.in_dots else "kn"))
        target = self._written()
        one = (Range(self.index[q], Affine(), Affine(const=self._extent(q))) for q in self._order("mnk"))
        update = replace(s, target=target, expr=expr, ranges=(*(self.ranges[i] for i in self.batch), *one))
        return tuple(self.tensors), (*self.before, update, *self.after)

    def _order(self, parts: str) -> str:
        """Those of `parts` that there are: a vector has no rows."""
        return "".join(q for q in parts if self.parts[q])

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

    def _seen(self, x: Load, order: str) -> Load | None:
        """`x` itself, if it lies so, or may be seen so."""
        if plain_indices(x) != (*self.batch, *(i for q in order for i in self.parts[q])):
            return None
        if any(len(self.parts[q]) > 1 for q in order):
            if x.source not in self.whole:
                return None
            ends = [*range(1, len(self.batch) + 1)]
            for q in order:
                ends.append((ends or [0])[-1] + len(self.parts[q]))
            self.seen[x.source] = tuple(pairwise((0, *ends)))
        return self._place(x, order)

    def _copy(self, x: Load, order: str) -> Load:
        """A new temporary in this order, at the place of `x` in it."""
        name = fresh(f"{x.source}_matrices", self.taken)
        shape = (*(self.ranges[i].upper for i in self.batch), *(Affine(const=self._extent(q)) for q in order))
        self.tensors.append(Tensor(name, x.dtype, shape, "temp"))
        return Load(name, (*map(affine, self.batch), *map(self._along, order)), x.dtype)

    def _read(self, x: Load, order: str) -> Load:
        order = self._order(order)
        if (seen := self._seen(x, order)) is not None:
            return seen
        copy = self._copy(x, order)
        self.before.append(Step(copy, None, x, tuple(self.ranges[i] for i in plain_indices(x) or ()), (), self.step.span))
        return self._place(copy, order)

    def _written(self) -> Load:
        x, order = self.step.target, self._order("mn")
        if (seen := self._seen(x, order)) is not None:
            return seen
        copy = self._copy(x, order)
        self.after.append(Step(x, None, copy, tuple(self.ranges[i] for i in plain_indices(x) or ()), (), self.step.span))
        return self._place(copy, order)


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
    return _Parts(reads, batch, own, depth) if is_whole and any(own) and depth else None


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
