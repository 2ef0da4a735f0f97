"""What is asked of the contractions of an operator: their rows, columns and depth, as sizes, and what they read again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polyop.ir.dots import product
from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, expr_names, loads, names
from polyop.ir.op import Op, Step
from polyop.rewrite.copies.laid import find_beside
from polyop.rewrite.copies.upright import upright
from polyop.rewrite.folds import plain_indices

Contractions = Sequence[tuple[Step, str]]
"""Reductions in which some read does without the last index of the target, with that index."""


@dataclass(frozen=True, eq=False, slots=True)
class Short:
    """The last dimension of a contraction's result: its extent, and the bytes of an element.

    spaced   whether neighbours along it read what lies apart, as windows in steps of two do
    strewn   whether what takes the result on writes neighbours apart, as classes of residues do
    joined   whether a step takes the result on together with that of another reduction, so that one of them is stored first
    lanes    extents of the rows that lanes could run along instead; empty: there are none, or not all is known from sizes
    beside   extents of what then shares the operand with these lanes, beside the last dimension
    depth    extents of what is added up; `windows`: of those that are added to another index
    inside   extents of the dimensions inside the one with these lanes
    along    what has these lanes, and is turned for them
    columns  what has the last dimension, and how many dimensions it has
    lies     whether all of that lies along it, as the text has it; `stands`: along what is added up
    narrow   the types of the sum, of what has the last dimension, and of what does not, where it adds products of narrower ones
    """

    extent: Affine
    bytes_: int
    spaced: bool
    strewn: bool
    along: frozenset[str]
    columns: frozenset[tuple[str, int]]
    lies: bool
    stands: bool
    narrow: tuple[DType, DType, DType] | None
    joined: bool
    lanes: tuple[Affine, ...]
    beside: tuple[Affine, ...]
    depth: tuple[Affine, ...]
    windows: tuple[Affine, ...]
    inside: tuple[Affine, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Sides:
    """The extents of all rows, and of all columns, of a contraction's result, in the order in which it is written.

    If not all are known from sizes, those of the last row that is, and of the last column.

    is_near   whether the last of the rows runs along the memory of the operand that has them
    between   whether the last of the rows is written inside the last column but one
    """

    rows: tuple[Affine, ...]
    columns: tuple[Affine, ...]
    is_near: bool
    between: bool


def find_contractions(op: Op) -> Contractions:
    """The reductions in which some read does without the last index of the target, with that index."""
    out = []
    for s in op.steps:
        last = s.target.index[-1] if s.target.index else None
        if s.reduce is None or not isinstance(last, Affine) or last.name not in s.indices:
            continue
        assert last.name is not None
        if any(last.name not in expr_names(x) for x in loads(s.expr)):
            out.append((s, last.name))
    return out


def is_reused(s: Step, last: str) -> bool:
    """Whether the reads that do without `last` do without another index of the target, too."""
    kept = {p.name for p in s.target.index if isinstance(p, Affine) and p.name}
    others = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
    return bool((kept - {last}).difference(*others))


def rows_of(s: Step, last: str) -> tuple[Affine, ...]:
    """The extents of the indices of a contraction that its result shares with reads that do without `last` alone."""
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    return tuple(extents[i] for i in row_indices(s, last))


def row_indices(s: Step, last: str) -> tuple[str, ...]:
    """The indices of its result that a contraction shares with reads that do without `last` alone, as they are written."""
    without = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
    beside = frozenset[str]().union(*(expr_names(x) for x in loads(s.expr) if last in expr_names(x)))
    kept = [p.name for p in s.target.index if isinstance(p, Affine) and p.name in s.indices]
    return tuple(i for i in kept if i is not None and i not in beside and any(i in x for x in without))


def short(op: Op, s: Step, last: str) -> Short:
    """What to ask of the last dimension of the result of the contraction `s`."""
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    reads = [expr_names(x) for x in loads(s.expr)]
    kept = [p.name for p in s.target.index if isinstance(p, Affine) and p.name is not None and p.name in extents]
    apart = [i for i in kept if all((i in x) != (last in x) for x in reads)]
    beside = [i for i in kept if i != last and all((i in x) == (last in x) for x in reads)]
    depth = [i for i in extents if i not in kept]
    windows = [i for i in depth if is_window(s, i)]
    inside = kept[kept.index(apart[-1]) + 1 :] if apart else []
    groups = tuple(tuple(extents[i] for i in part) for part in (apart[-1:], beside, depth, windows, inside))
    # what takes the result on must write it in its own order, along which alone it is turned
    takers = [x for x in op.steps if any(y.source == s.target.source for y in loads(x.expr))]
    follow = [x.target.index[-1] for x in takers if x.target.index]
    plain = all(isinstance(p, Affine) and len(names(p)) == 1 for p in follow)
    strewn = any(not isinstance(p, Affine) or p.name is None for p in follow)
    known = plain and all(names(e) <= set(op.sizes) for part in groups for e in part)
    t = op.tensor(s.target.source)
    spaced = any(abs(p.factor(last)) > 1 for x in loads(s.expr) for p in x.index if isinstance(p, Affine))
    along = frozenset(x.source for x in loads(s.expr) if apart and apart[-1] in expr_names(x))
    having = [x for x in loads(s.expr) if x.index and last in expr_names(x)]
    ends = [names(p) if isinstance(p := x.index[-1], Affine) else frozenset[str]() for x in having]
    lies, stands = all(last in e for e in ends), all(e & {*depth} and last not in e for e in ends)
    columns = frozenset((x.source, len(x.index)) for x in having)
    sums = {x.target.source for x in op.steps if x.reduce is not None} - {s.target.source}
    joined = any(x.reduce is None and sums & {y.source for y in loads(x.expr)} for x in takers)
    return Short(t.shape[-1], t.dtype.bytes_, spaced, strewn, along, columns, lies, stands, _narrow(s, last), joined,
                 *(groups if known else ((),) * len(groups)))


def _narrow(s: Step, last: str) -> tuple[DType, DType, DType] | None:
    """`Short.narrow` of the contraction `s`."""
    found = product(s.expr) if s.reduce is not None and s.reduce.name == "add" else None
    if found is None or found.raised is not None or s.target.dtype in (found.a.dtype, found.b.dtype):
        return None
    right, left = (found.a, found.b) if last in expr_names(found.a) else (found.b, found.a)
    return s.target.dtype, right.dtype, left.dtype


def narrow(op: Op, contractions: Contractions) -> tuple[DType, DType, DType] | None:
    """The same of the one contraction."""
    return _narrow(*contractions[0]) if len(contractions) == 1 else None


def standing(op: Op, contractions: Contractions) -> tuple[Short, ...]:
    """What to ask of the contractions of `op`, if in all of them nothing else uses rows again, and the right operand lies along
    the sum. Else narrow ones are widened in the copy. In a recurrence a copy serves all turns.
    """
    found = tuple(x for s, last in contractions if not is_reused(s, last)
                  if (x := short(op, s, last)).narrow or all(y.dtype == s.target.dtype for y in loads(s.expr)))
    every = len(found) == len(contractions) and not turns(op, contractions)
    return found if every and all(x.stands and not x.windows for x in found) else ()


def uprights(op: Op, contractions: Contractions) -> tuple[tuple[Affine, Affine, int], ...]:
    """The products of one row, one column and one contracted index whose reads without the column end in the row."""
    found = []
    for s, last in contractions:
        x = short(op, s, last)
        row = s.target.index[0]
        left = [y for y in loads(s.expr) if last not in expr_names(y)]
        is_plain = len(x.lanes) == 1 and len(s.target.index) == 2 and len(x.depth) == 1
        if is_plain and all(y.index and y.index[-1] == row for y in left):
            found.append((x.extent, x.lanes[0], x.bytes_))
    return tuple(found)


def single(op: Op, contractions: Contractions) -> tuple[str, ...]:
    """The sizes of rows of contractions; none if other steps add to a result: they would stand in the way of runs of sums."""
    found = {e.name for s, last in contractions for e in rows_of(s, last)}
    alone = all(len(op.steps_of(s.target.source)) == 1 for s, _ in contractions)
    return tuple(n for n in op.sizes if n in found) if alone else ()


def heads(op: Op, contractions: Contractions) -> tuple[str, ...]:
    """The sizes of the last index of contractions all of whose reads end in one contracted index, or do in a small copy."""
    found = set()
    for s, last in contractions:
        ends = {x.index[-1] if x.index else None for x in loads(s.expr)}
        end = ends.pop() if len(ends) == 1 else None
        kept = {p.name for p in s.target.index if isinstance(p, Affine)}
        if (isinstance(end, Affine) and end.name in s.indices and end.name not in kept) or upright(op, s):
            found |= {(r.upper - r.lower).name for r in s.ranges if r.index == last}
    return tuple(n for n in op.sizes if n in found)


def is_window(s: Step, i: str) -> bool:
    """Whether the index `i` is added to another one in some position that is read."""
    positions = [p for x in loads(s.expr) for p in x.index if isinstance(p, Affine)]
    return any(i in names(p) and len(names(p) & set(s.indices)) > 1 for p in positions)


def tile(op: Op, contractions: Contractions) -> tuple[Affine, Affine, int] | None:
    """The last row and the last column of the one contraction, in the order in which its target is written."""
    if len(contractions) != 1:
        return None
    (s, last), = contractions
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    rows = [i for i in row_indices(s, last) if names(extents[i]) <= set(op.sizes)]
    if not rows or not names(extents[last]) <= set(op.sizes):
        return None
    return extents[rows[-1]], extents[last], s.target.dtype.bytes_


def packed(op: Op, contractions: Contractions) -> tuple[tuple[Affine, ...], bool]:
    """The shape of what has the columns of the one contraction, and whether it lies along them; () if nobody knows."""
    if len(contractions) != 1:
        return (), False
    (s, last), = contractions
    found = next((x for x in loads(s.expr) if x.index and last in expr_names(x)), None)
    if found is None:  # a condition alone asks for it
        return (), False
    shape, end = op.tensor(found.source).shape, found.index[-1]
    return (shape if all(names(e) <= set(op.sizes) for e in shape) else ()), isinstance(end, Affine) and last in names(end)


def unpacked(op: Op, contractions: Contractions) -> tuple[Affine, ...]:
    """The shape of what has the rows of the one contraction, and not its columns; () if nobody knows."""
    if len(contractions) != 1:
        return ()
    (s, last), = contractions
    shape = next((op.tensor(x.source).shape for x in loads(s.expr) if last not in expr_names(x)), ())
    return shape if all(names(e) <= set(op.sizes) for e in shape) else ()


def steps(op: Op, contractions: Contractions) -> tuple[Affine, ...]:
    """The extents of what the one contraction adds up beside windows; none unless all are known from sizes."""
    if len(contractions) != 1:
        return ()
    return added_up(op, contractions[0][0], windows=False)


def added_up(op: Op, s: Step, windows: bool = True) -> tuple[Affine, ...]:
    """The extents of what `s` adds up along, with its windows or without; none unless all are known from sizes."""
    found = tuple(r.upper - r.lower for r in s.ranges
                  if r.index not in expr_names(s.target) and (windows or not is_window(s, r.index)))
    return found if all(names(e) <= set(op.sizes) for e in found) else ()


def little(op: Op, contractions: Contractions) -> tuple[Affine, ...]:
    """Those of all contractions, if each is a number or a size, and no windows are among them; () if one has no batches."""
    found = dict[Affine, None]()
    for s, _ in contractions:
        batch = frozenset.intersection(*map(expr_names, (s.target, *loads(s.expr))))
        extents = {r.index: r.upper - r.lower for r in s.ranges if r.index not in batch}
        plain = all(e.is_constant or e.name in op.sizes for e in extents.values())
        if not plain or len(extents) == len(s.ranges) or s.where or any(is_window(s, i) for i in extents):
            return ()
        found |= dict.fromkeys(extents.values())
    return tuple(found)


def sides(op: Op, contractions: Contractions) -> Sides | None:
    """Both sides of the result of the one contraction; None under conditions, where each turn of a loop may have few rows."""
    if len(contractions) != 1 or contractions[0][0].where:
        return None
    (s, last), = contractions
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    known = {i for i, e in extents.items() if names(e) <= set(op.sizes)}
    rows = row_indices(s, last)
    columns = row_indices(s, rows[-1]) if rows else ()
    if not rows or columns[-1:] != (last,):
        return None
    if not known.issuperset((*rows, *columns)):
        rows, columns = tuple(i for i in rows if i in known)[-1:], (last,)
    if not rows or last not in known:
        return None
    ends = [x.index[-1] for x in loads(s.expr) if last not in expr_names(x) and x.index]
    is_near = any(isinstance(p, Affine) and rows[-1] in names(p) for p in ends)
    kept = [p.name for p in s.target.index if isinstance(p, Affine)]
    between = len(columns) > 1 and kept.index(columns[-2]) < kept.index(rows[-1])
    return Sides(tuple(extents[i] for i in rows), tuple(extents[i] for i in columns), is_near, between)


def brief(op: Op, contractions: Contractions) -> tuple[tuple[Affine, ...], tuple[Affine, ...], int]:
    """(what the one contraction adds up along, its result, bytes of an element); no extents for windows and conditions."""
    if len(contractions) != 1 or contractions[0][0].where:
        return (), (), 0
    s = contractions[0][0]
    found, t = added_up(op, s), op.tensor(s.target.source)
    plain = bool(found) and not any(is_window(s, r.index) for r in s.ranges if r.index not in expr_names(s.target))
    return (found, t.shape, t.dtype.bytes_) if plain else ((), (), 0)


def deep(op: Op, contractions: Contractions) -> tuple[Affine, ...]:
    """The extents of what the one contraction adds up along; () if that is one index, or a window, or bound by conditions."""
    extents = brief(op, contractions)[0]
    return extents if len(extents) > 1 else ()


def turns(op: Op, contractions: Contractions) -> tuple[str, ...]:
    """The sizes that are rows of contractions which read, one or more steps back, what follows from their own results."""
    found: set[str | None] = set()
    for s, last in contractions:
        later = op.follow_from((s.target.source,))
        back = {p.terms[0][0] for x in loads(s.expr) if x.source in later for p in x.index
                if isinstance(p, Affine) and p.const and len(p.terms) == 1}
        if back:
            found |= {e.name for e in rows_of(replace(s, ranges=tuple(r for r in s.ranges if r.index not in back)), last)}
    return tuple(n for n in op.sizes if n in found)


def sums_of_rows(op: Op, contractions: Contractions) -> tuple[tuple[Affine, int, bool], ...]:
    """What is reduced over reads that have the last index of the target last, too: `S[b] += X[n, b]`.

    Or would have, if it lay along a large one whose rows one after the other are added up, as a copy of it may: see `laid.py`.
    """
    out, laid = [], {x.name: x for x in find_beside(op)}
    for s in op.steps:
        last = s.target.index[-1] if s.target.index else None
        if s.reduce is None or not isinstance(last, Affine) or last.name not in s.indices:
            continue
        reduced = set(s.indices).difference(*({p.name} for p in s.target.index if isinstance(p, Affine)))
        t, reads, beside = op.tensor(s.target.source), loads(s.expr), laid.get(s.target.source)
        is_contraction = any(s is c for c, _ in contractions)
        if any(x.index and x.index[-1] == last and expr_names(x) & reduced for x in reads):
            out.append((t.shape[-1], t.dtype.bytes_, is_contraction))
        elif beside and any(x.source == beside.beside and {*(plain_indices(x) or ())[-2:-1]} & reduced for x in reads):
            out.append((beside.along, t.dtype.bytes_, is_contraction))
    return tuple(out)
