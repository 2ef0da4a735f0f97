"""A few elements at the end of a tensor, pixels of three colours or points of two coordinates, as part of the place before.

    X[n, c] with c in 0:3     becomes     X[3 n + c]

Lanes along c would be three; along n they are as many as there are, and what lies three apart is picked out of whole vectors. So
how few there are is put in as a number, which calls show, and rows must lie one after the other, which they show, too. A sum over
them has few terms, which lie in the same vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.expr import Affine, Load, affine, evaluate, expr_names, is_computed, loads, map_loads, names, volume
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.options import BRIEF, STRIP
from polyop.ir.target import LINE, NEAR
from polyop.rewrite.copies.contracted import find_contractions, rows_of
from polyop.rewrite.copies.laid import find_beside
from polyop.rewrite.copies.outward import ends_in_batch
from polyop.rewrite.flatten import Dims, Flat, Group, dims
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.instead import Instead, through_copies, with_steps
from polyop.rewrite.names import all_names

FEW, KNOWN = range(2, NEAR + 1), range(1, NEAR + 1)
"""Elements that are few: lanes so far apart are picked out of vectors. And such as had better be known, strung or not: over one
there is no loop, one load has others, and rows that are added up have a sum for each.
"""

ADDED, HALF = range(NEAR + 1, BRIEF + 1), range(NEAR + 1, 9)
"""Elements of rows that are added up, if it is known how many: then they are turned, or columns have several sums, see
`poly/strategies/short.py`. And of others, that vectors of half the width have room for.
"""

USUAL = 4
"""Rows of a few vectors whose number is known have a multiple of so many elements, as most have that come again and again."""

LONG, PLAIN = 32, 16
"""Elements of the dimension before, from which lanes run along it: where anything is added up, which is folded, and elsewhere.
Of all dimensions before, from which it is worth a kernel to know how many follow.
"""

MANY = 24
"""Terms of a product of matrices from which columns, if these are few, are dot products: of 20,000 x 16 times 16 x 3 those take
1.6 times as long, of 32 terms 0.9, of 500 0.45.
"""

SMALL = 16
"""Where nothing is, arrays with so many times fewer elements than the largest may have fewer."""


@dataclass(frozen=True, slots=True)
class End:
    """A size that is the last extent of arrays.

    before   for each of them the extents before; none if it stays a size where it is few
    least    `LONG` or `PLAIN`
    short    other values that had better be known
    summed   what products of matrices add up along: with many terms few elements are no reason
    is_part  whether few elements are known only where they become part of the dimension before, which has to be long
    """

    size: str
    before: tuple[tuple[Affine, ...], ...]
    least: int
    short: tuple[range, ...]
    summed: tuple[Affine, ...] = ()
    is_part: bool = False


def find_ends(op: Op) -> tuple[End, ...]:
    """The sizes of `op` that had better be numbers where they are few.

    None where a product of matrices adds up along other sizes, too, or is one for each of a batch that comes last: these have
    ways of their own for what is narrow. Rows of a few vectors have no edge to ask about, if it is known how many, and room for
    several sums; such as are added up at places from data have no masks.
    `ADDED` ones are turned where they are added up.
    """
    arrays = [t for t in op.tensors if t.role != "temp" and len(t.shape) > 1]
    last = dict.fromkeys(str(t.shape[-1].name) for t in arrays if t.shape[-1].name in op.sizes)
    products = [s for s, n in find_contractions(op) if rows_of(s, n)]
    has_own_ways = bool(products)
    if not last or (has_own_ways and _adds_up_much(op, last)) or any(ends_in_batch(op, s) for s in op.steps):
        return ()
    sums = {e.name for s in op.steps if s.reduce is not None for e in op.tensor(s.target.source).shape[-1:]}
    across, is_looked_up = _across(op), _is_looked_up(op)
    of_parts = () if is_looked_up else last.keys() - {e.name for e in across}
    summed = tuple(r.upper - r.lower for s in products for r in s.ranges if r.index not in expr_names(s.target))
    out = []
    for n in last:
        own = [t for t in arrays if t.shape[-1].name == n]
        before = tuple(dict.fromkeys(tuple(e for e in t.shape[:-1] if e.name != n) for t in own))
        bytes_ = min(t.dtype.bytes_ for t in own)
        columns = n in sums and not is_looked_up
        adds = _adds_up_rows(op, n) or (columns and affine(n) not in across)
        brief = (ADDED,) if adds else (HALF,) if any(t.role == "out" for t in own) else ()
        usual = (range(LINE // bytes_, STRIP // bytes_ + 1, USUAL),) if columns or n not in sums else ()
        scattered = (range(2, STRIP // bytes_ + 1),) if n in _scattered(op) else ()
        short = () if has_own_ways else scattered or (*brief, *usual)
        out.append(End(n, before if n in of_parts or not has_own_ways else (), _least(op), short, summed, has_own_ways))
    return tuple(e for e in out if e.before or e.short)


def _scattered(op: Op) -> frozenset[str]:
    """The last extents of what is added up at places that data say: rows of which any may be the one before."""
    targets = [s.target for s in op.steps if s.reduce is not None and any(map(is_computed, s.target.index))]
    shapes = [op.tensor(t.source).shape for t in targets if isinstance(t.index[-1], Affine)]
    return frozenset(e.name for *_, e in shapes if e.name)


def _adds_up_rows(op: Op, size: str) -> bool:
    """Whether rows of `size` elements are added up."""
    def runs_along(s: Step) -> bool:
        places = {y for x in s.reads for p in x.index if not isinstance(p, Affine) for y in loads(p)}
        last = {x.index[-1] for x in s.reads if x not in places and x.index and op.tensor(x.source).shape[-1].name == size}
        return s.reduce is not None and any(isinstance(p, Affine) and not names(p) <= expr_names(s.target) for p in last)

    return any(map(runs_along, op.steps))


def kinds_of(op: Op) -> tuple[str, ...]:
    """Which calls of `op` get a kernel of their own for these, in a user's words."""
    ends = find_ends(op)
    few = " or ".join(e.size for e in ends if e.before)
    values = FEW if any(e.is_part for e in ends) else KNOWN
    before = "the dimension before has" if values is FEW else "the dimensions before together have"
    words = (f"where {few} is one of {values[0]} to {NEAR}, and {before} at least {_least(op)} elements",) if few else ()
    short = [(e.size, f"one of {r[0]}, {r[1]} to {r[-1]}" if r.step > 1 else f"{r[0]} to {r[-1]}") for e in ends for r in e.short]
    return (*words, *(f"where {n} is {some}, once they come again" for n, some in short))


def few_of(ends: Sequence[End], sizes: Mapping[str, int], groups: Sequence[Group] = ()) -> tuple[tuple[str, int], ...]:
    """(size, value) of those that are few in a call, whose dimensions of each of `groups` are one."""
    together = {n: prod(sizes[m] for m in g) for g in groups for n in g}

    def is_few(e: End) -> bool:
        if any(sizes[e.size] in r for r in e.short):
            return True
        if sizes[e.size] not in (FEW if e.is_part else KNOWN) or not e.before:
            return False
        if volume((x for x in e.summed if names(x) <= sizes.keys()), sizes) >= MANY:
            return False
        most = max((volume(x, sizes) for x in e.before), default=0)
        large = [x for x in e.before if volume(x, sizes) >= max(e.least, most // SMALL if e.least == PLAIN else 0)]
        return bool(large) and (not e.is_part or all(evaluate(x[-1], {**sizes, **together}) >= e.least for x in large))

    return tuple((e.size, sizes[e.size]) for e in ends if is_few(e))


@dataclass(frozen=True, slots=True)
class Row:
    """The last dimensions of an array: one, and those behind it, which are known to have few elements.

    few    the extents of these
    least  elements of that one from which it is long
    """

    tensor: str
    few: tuple[int, ...]
    least: int


def find_rows(op: Op) -> tuple[Row, ...]:
    """The rows of the arrays of `op` that may be strung; none where places are looked up, or matrices are multiplied.

    Nor what lies across a larger array: a copy that lies along it has plain positions (`laid.py`).
    """
    if _adds_up_much(op, ()) or _is_looked_up(op) or any(ends_in_batch(op, s) for s in op.steps):
        return ()
    across = _across(op)
    aside = {x.name for x in find_beside(op) if x.at[0] != len(op.tensor(x.name).shape) - 1}
    sums = {s.target.source for s in op.steps if s.reduce is not None and not _is_whole(op, s)}
    found = []
    for t in op.tensors:
        few = _few_behind(t)
        if t.role != "temp" and t.name not in sums | aside and few and not {*t.shape[-1:]} & across:
            found.append(Row(t.name, few, _least(op)))
    return tuple(found)


def _few_behind(t: Tensor) -> tuple[int, ...]:
    """The extents of the last dimensions, if they are known and few together, and the one before is not."""
    few: tuple[int, ...] = ()
    for e in reversed(t.shape):
        if not e.is_constant or e.const >= LONG:
            return few if prod(few) in FEW else ()
        if prod((e.const, *few)) not in range(1, NEAR + 1):
            return ()
        few = (e.const, *few)
    return ()


def lying(op: Op, rows: Sequence[Row], groups: Sequence[Group], shapes: Mapping[str, Sequence[int]],
          strides: Mapping[str, Sequence[int]]) -> tuple[Row, ...]:
    """Those of `rows` of `op`, with the dimensions of each of `groups` as one, that lie in one piece in a call's arrays.

    Not those that are short, if there are many: lanes run along another dimension.
    """
    def lies(r: Row) -> bool:
        own = _behind(dims(op.tensor(r.tensor), groups), r)
        *many, length = own.shape(shapes[r.tensor])
        is_long = length >= r.least * prod(r.few) or prod(many) < r.least
        return is_long and own.strides(shapes[r.tensor], strides[r.tensor]) is not None

    return tuple(r for r in rows if lies(r))


def strung(flat: Flat, rows: Sequence[Row]) -> Flat:
    """`flat` with each of `rows` as one dimension; sums have a place of their own until they are complete."""
    if not rows:
        return flat
    few = {r.tensor: r.few for r in rows}
    taken = all_names(flat.op)

    def summed(s: Step) -> Instead | None:
        is_sum = s.reduce is not None and s.target.source in few
        return through_copies(s, {s.target: plain_indices(s.target) or ()}, "sum", taken) if is_sum else None

    op = with_steps(flat.op, summed)

    def shape(t: Tensor) -> Tensor:
        own = few.get(t.name)
        d = len(t.shape) - 1 - len(own or ())
        return replace(t, shape=(*t.shape[:d], t.shape[d] * prod(own))) if own else t

    def place(x: Load) -> Load:
        own = few.get(x.source)
        if not own:
            return x
        *before, at = x.index[:-len(own)]
        for p, n in zip(x.index[-len(own):], own, strict=True):
            assert isinstance(at, Affine) and isinstance(p, Affine)
            at = at * n + p
        return replace(x, index=(*before, at))

    def step(s: Step) -> Step:
        where = tuple(map_loads(w, place) for w in s.where)
        return replace(s, target=place(s.target), expr=map_loads(s.expr, place), where=where)

    together = {r.tensor: _behind(flat.dims[r.tensor], r) for r in rows}
    made = replace(op, tensors=tuple(map(shape, op.tensors)), steps=tuple(map(step, op.steps)))
    return Flat(made, {**flat.dims, **together}, flat.sizes)


def _behind(d: Dims, r: Row) -> Dims:
    """`d` with the last dimensions of `r` as one."""
    *before, first = d.runs[:-len(r.few)]
    return Dims((*before, (first[0], d.runs[-1][1])))


def _across(op: Op) -> frozenset[Affine]:
    """The last extents of temporaries that are added up along the dimension before.

    They lie as the text has them, so that lanes along that dimension would find elements of theirs some way apart.
    """
    found = set()
    for s in op.steps:
        kept = {p.name for p in s.target.index if isinstance(p, Affine)}
        for x in s.reads if s.reduce is not None else ():
            t = op.tensor(x.source)
            if t.role == "temp" and len(x.index) > 1:
                at = [p.name if isinstance(p, Affine) else None for p in x.index[-2:]]
                found |= {t.shape[-1]} if at[0] not in kept and at[1] in kept else set()
    return frozenset(found)


def _least(op: Op) -> int:
    """From how many elements on the dimension before the few ones of `op` is long."""
    return LONG if any(s.reduce is not None for s in op.steps) else PLAIN


def _is_looked_up(op: Op) -> bool:
    """Whether any place is looked up."""
    return any(is_computed(p) for s in op.steps for x in (s.target, *s.reads) for p in x.index)


def _is_whole(op: Op, s: Step) -> bool:
    """Whether `s` alone makes all elements of a tensor, one at each of its points."""
    at, t = plain_indices(s.target), op.tensor(s.target.source)
    if at is None or op.steps_of(t.name) != (s,) or t.name in {o for _, o in op.updates}:
        return False
    ranges = {r.index: (r.lower, r.upper) for r in s.ranges}
    return [ranges.get(i) for i in at] == [(Affine(), e) for e in t.shape]


def _adds_up_much(op: Op, ends: Collection[str]) -> bool:
    """Whether a contraction adds up along anything but `ends` and known extents, or is a product of matrices for each of a batch.

    These have ways of their own for what is narrow.
    """
    for s, last in find_contractions(op):
        kept = {i for p in s.target.index if isinstance(p, Affine) for i in names(p)}
        much = any(not names(e) <= {*ends} for r in s.ranges if r.index not in kept for e in (r.lower, r.upper))
        without = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
        beside = frozenset[str]().union(*(expr_names(x) for x in loads(s.expr) if last in expr_names(x)))
        others = {i for i in kept if i != last and any(i in x for x in without)}
        if much or (others & beside and others - beside):
            return True
    return False
