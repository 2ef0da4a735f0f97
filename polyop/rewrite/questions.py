"""What to ask of the sizes of a call, to find out which kernel it deserves: found once, in the operator's text alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, expr_names, loads, names
from polyop.ir.op import Op, Step
from polyop.rewrite.chains import Chain, find_chains
from polyop.rewrite.factors import Inner, find_inner
from polyop.rewrite.inward import Lying, find_inward
from polyop.rewrite.late import Late, find_late
from polyop.rewrite.passes import Pass, Split, find_passes, find_splits
from polyop.rewrite.positions import bounding
from polyop.rewrite.raised import Alike, find_alike
from polyop.rewrite.residues import cut_into_residues
from polyop.rewrite.scans import Row, find_abreast, find_rows
from polyop.rewrite.shares import Sum, lines, sums
from polyop.rewrite.upright import upright
from polyop.rewrite.widened import Wide, find_wide


@dataclass(frozen=True, eq=False, slots=True)
class Short:
    """The last dimension of a contraction's result: its extent, and the bytes of an element.

    spaced   whether neighbours along it read what lies apart, as windows in steps of two do
    lanes    extents of the rows that lanes could run along instead; empty: there are none, or not all is known from sizes
    beside   extents of what then shares the operand with these lanes, beside the last dimension
    depth    extents of what is added up; `windows`: of those that are added to another index
    inside   extents of the dimensions inside the one with these lanes
    """

    extent: Affine
    bytes_: int
    spaced: bool
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
    """

    rows: tuple[Affine, ...]
    columns: tuple[Affine, ...]
    is_near: bool


@dataclass(frozen=True, eq=False, slots=True)
class Questions:
    """What decides about the kernel of a call.

    narrow   the last extents of what contractions write, `n` of `A[m, k] * B[k, n]`, and of any reduction with rows: where one
             is 1, lanes would have one element, and another loop could have them
    windows  the sizes that some index of a contraction runs over which is added to another: where one is 1, as in a convolution
             with one filter element for each channel, whole rows of channels are known to be dense
    slides   the windows along which rows of the result share what they read, where no product of matrices is made of that, as in
             a convolution with one filter for each channel
    slid     the extents of the dimensions along which they slide, beside the last one of the result
    short    the last dimension of a contraction's result, where the reads that do without it are used again by other loops, as
             the filters of a convolution of 7 x 7 images are
    upright  (columns, rows, bytes of an element) of the results of products whose left operand lies along the rows, `A[k, m]`:
             with few columns lanes run along these, as it does
    heads    the sizes that are columns of dot products, `N` of `A[m, k] * B[n, k]`: where these are few, they share a row of A;
             and of `A[m, k] * B[k, n]`, of which these few are copied
    rows     the extents of each contraction's rows; None if they are not known before the loops run
    single   the sizes among these extents, if nothing else is added to what contractions write: with one row of each,
             these sizes are 1
    turns    the sizes that are rows of a contraction in each turn of a recurrence, `B` of `z[t, b, g] += Y[t-1, b, k] * U[g, k]`
    strips   (extent, bytes of an element) of sums of rows, and whether they are contractions
    tile     (rows, columns, bytes of an element) of the one contraction, as far as its tiles hold them; None if there are more
    sliding  the extents of the windows that are added to the row of these tiles, and of what else is added up but windows
    sides    of the same
    deep     the extents of what the one contraction adds up along, if these are several, none is a window, and no condition holds
    brief    the same for one or several, extents of its result, and the bytes of an element
    far      the sizes that bound positions which would fit into 32 bits if the sizes do
    scans    the rows that scans go along
    abreast  (how many in each dimension beside, elements) of rows that scans go along by one addition or multiplication a step
    carried  (elements of a row, bytes of one) of results whose rows are made of rows before, where nothing is added up
    passes   reductions that need each other's results, and could be done in one pass
    splits   those whose rows may be cut into shares
    chains   what hands over temporaries with rows to spare
    sums     reductions that may be cut into shares
    inner    those of which factors may be taken out
    alike    those of products of bytes of one sort
    wide     those of products of 16-bit floats
    late     those of which a large operand lies across the result
    inward   what a product reads along the rows of its tiles, where its lanes run along the rows of the other operand
    kept     (elements of a row, bytes of one) of temporaries that are reduced row by row and then become a result, in place
    little   the extents of rows, columns and depth of contractions that are done again and again, for batches
    lines    the sizes that are extents of rows which are summed up, and of which a block of a GPU's threads has one, or several
    """

    narrow: tuple[str, ...]
    windows: tuple[str, ...]
    slides: tuple[str, ...]
    slid: tuple[Affine, ...]
    short: tuple[Short, ...]
    upright: tuple[tuple[Affine, Affine, int], ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[Affine, ...] | None, ...]
    single: tuple[str, ...]
    turns: tuple[str, ...]
    strips: tuple[tuple[Affine, int, bool], ...]
    tile: tuple[Affine, Affine, int] | None
    sliding: tuple[tuple[Affine, ...], tuple[Affine, ...]]
    sides: Sides | None
    deep: tuple[Affine, ...]
    brief: tuple[tuple[Affine, ...], tuple[Affine, ...], int]
    far: tuple[str, ...]
    scans: tuple[Row, ...]
    abreast: tuple[tuple[tuple[Affine, ...], Affine], ...]
    carried: tuple[tuple[Affine, int], ...]
    passes: tuple[Pass, ...]
    splits: tuple[Split, ...]
    chains: tuple[Chain, ...]
    sums: tuple[Sum, ...]
    inner: tuple[Inner, ...]
    alike: tuple[Alike, ...]
    wide: tuple[Wide, ...]
    late: tuple[Late, ...]
    inward: tuple[Lying, ...]
    kept: tuple[tuple[tuple[Affine, ...], int], ...]
    little: tuple[Affine, ...]
    lines: tuple[str, ...]


def questions(op: Op) -> Questions:
    """What to ask of the sizes of a call of `op`; of contractions that are cut into residue classes, each class is asked."""
    op = cut_into_residues(op)
    contractions = _contractions(op)
    last = [s.target for s, _ in contractions]
    last += [s.target for s in op.steps if s.reduce is not None and len(s.target.index) > 1]
    found = {op.tensor(t.source).shape[-1].name for t in last}
    rows = [_rows(s, last) for s, last in contractions]
    return Questions(tuple(n for n in op.sizes if n in found), _windows(op, [s for s, _ in contractions]), *_slides(op),
                     tuple(_short(op, s, last) for s, last in contractions if _reused(s, last)), _upright(op, contractions),
                     _heads(op, contractions),
                     tuple(r if all(names(e) <= set(op.sizes) for e in r) else None for r in rows),
                     _single(op, contractions), _turns(op, contractions),
                     _sums_of_rows(op, contractions), _tile(op, contractions), _sliding(op, contractions),
                     _sides(op, contractions), _deep(op, contractions),
                     _brief(op, contractions),
                     bounding(op),
                     find_rows(op), find_abreast(op), _carried(op), find_passes(op), find_splits(op), find_chains(op), sums(op),
                     find_inner(op), find_alike(op), find_wide(op), find_late(op), find_inward(op), _kept(op),
                     _little(op, contractions), lines(op))


def _reused(s: Step, last: str) -> bool:
    """Whether the reads that do without `last` do without another index of the target, too."""
    kept = {p.name for p in s.target.index if isinstance(p, Affine) and p.name}
    others = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
    return bool((kept - {last}).difference(*others))


def _rows(s: Step, last: str) -> tuple[Affine, ...]:
    """The extents of the indices of a contraction that its result shares with reads that do without `last` alone."""
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    return tuple(extents[i] for i in _row_indices(s, last))


def _row_indices(s: Step, last: str) -> tuple[str, ...]:
    """The indices of its result that a contraction shares with reads that do without `last` alone, as they are written."""
    without = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
    beside = frozenset[str]().union(*(expr_names(x) for x in loads(s.expr) if last in expr_names(x)))
    kept = [p.name for p in s.target.index if isinstance(p, Affine) and p.name in s.indices]
    return tuple(i for i in kept if i is not None and i not in beside and any(i in x for x in without))


def _short(op: Op, s: Step, last: str) -> Short:
    """What to ask of the last dimension of the result of the contraction `s`."""
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    reads = [expr_names(x) for x in loads(s.expr)]
    kept = [p.name for p in s.target.index if isinstance(p, Affine) and p.name is not None and p.name in extents]
    apart = [i for i in kept if all((i in x) != (last in x) for x in reads)]
    beside = [i for i in kept if i != last and all((i in x) == (last in x) for x in reads)]
    depth = [i for i in extents if i not in kept]
    windows = [i for i in depth if _is_window(s, i)]
    inside = kept[kept.index(apart[-1]) + 1 :] if apart else []
    groups = tuple(tuple(extents[i] for i in part) for part in (apart[-1:], beside, depth, windows, inside))
    # what takes the result on must write it in its own order, along which alone it is turned
    follow = [x.target.index[-1] for x in op.steps if x.target.index and any(y.source == s.target.source for y in loads(x.expr))]
    plain = all(isinstance(p, Affine) and p.name is not None for p in follow)
    known = plain and all(names(e) <= set(op.sizes) for part in groups for e in part)
    t = op.tensor(s.target.source)
    spaced = any(abs(p.factor(last)) > 1 for x in loads(s.expr) for p in x.index if isinstance(p, Affine))
    return Short(t.shape[-1], t.dtype.bytes_, spaced, *(groups if known else ((),) * len(groups)))


def _upright(op: Op, contractions: list[tuple[Step, str]]) -> tuple[tuple[Affine, Affine, int], ...]:
    """The products of one row, one column and one contracted index whose reads without the column end in the row."""
    found = []
    for s, last in contractions:
        x = _short(op, s, last)
        row = s.target.index[0]
        left = [y for y in loads(s.expr) if last not in expr_names(y)]
        is_plain = len(x.lanes) == 1 and len(s.target.index) == 2 and len(x.depth) == 1
        if is_plain and all(y.index and y.index[-1] == row for y in left):
            found.append((x.extent, x.lanes[0], x.bytes_))
    return tuple(found)


def _single(op: Op, contractions: list[tuple[Step, str]]) -> tuple[str, ...]:
    """The sizes of rows of contractions; none if other steps add to a result: they would stand in the way of runs of sums."""
    found = {e.name for s, last in contractions for e in _rows(s, last)}
    alone = all(len(op.steps_of(s.target.source)) == 1 for s, _ in contractions)
    return tuple(n for n in op.sizes if n in found) if alone else ()


def _heads(op: Op, contractions: list[tuple[Step, str]]) -> tuple[str, ...]:
    """The sizes of the last index of contractions all of whose reads end in one contracted index, or do in a small copy."""
    found = set()
    for s, last in contractions:
        ends = {x.index[-1] if x.index else None for x in loads(s.expr)}
        end = ends.pop() if len(ends) == 1 else None
        kept = {p.name for p in s.target.index if isinstance(p, Affine)}
        if (isinstance(end, Affine) and end.name in s.indices and end.name not in kept) or upright(op, s):
            found |= {(r.upper - r.lower).name for r in s.ranges if r.index == last}
    return tuple(n for n in op.sizes if n in found)


def _is_window(s: Step, i: str) -> bool:
    """Whether the index `i` is added to another one in some position that is read."""
    positions = [p for x in loads(s.expr) for p in x.index if isinstance(p, Affine)]
    return any(i in names(p) and len(names(p) & set(s.indices)) > 1 for p in positions)


def windows(op: Op) -> tuple[str, ...]:
    """The sizes of the windows of contractions."""
    return _windows(op, [s for s, _ in _contractions(op)])


def _windows(op: Op, reductions: list[Step]) -> tuple[str, ...]:
    """The sizes `R` of indices `r` in 0:R that `reductions` read at `p + r`, and add up."""
    found = set()
    for s in reductions:
        kept = {p.name for p in s.target.index if isinstance(p, Affine)}
        found |= {r.upper.name for r in s.ranges if r.index not in kept and r.lower == Affine() and _is_window(s, r.index)}
    return tuple(n for n in op.sizes if n in found)


def _slides(op: Op) -> tuple[tuple[str, ...], tuple[Affine, ...]]:
    """The sizes `R` of windows of reductions in which one read goes along with all of the result: `X[c, p + r, q] * F[c, r]`.

    And the extents of `p`.

    Windows along the last index, which mostly has the lanes, are none: lanes share nothing.
    """
    found, slid = set[str](), list[Affine]()
    for s in op.steps:
        kept = {p.name for p in s.target.index if isinstance(p, Affine) and p.name is not None}
        if s.reduce is None or len(s.target.index) < 2 or not any(kept <= expr_names(x) for x in loads(s.expr)):
            continue
        last = s.target.index[-1]
        others = kept - (names(last) if isinstance(last, Affine) else set())
        places = [names(p) for x in loads(s.expr) for p in x.index if isinstance(p, Affine)]
        beside = frozenset[str]().union(*(x for x in places if x & others))
        own = _windows(op, [replace(s, ranges=tuple(r for r in s.ranges if r.index in kept | beside))])
        if own:
            found |= set(own)
            slid.append(op.tensor(s.target.source).shape[-2])
    return tuple(n for n in op.sizes if n in found), tuple(slid)


def _tile(op: Op, contractions: list[tuple[Step, str]]) -> tuple[Affine, Affine, int] | None:
    """The last row and the last column of the one contraction, in the order in which its target is written."""
    if len(contractions) != 1:
        return None
    (s, last), = contractions
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    rows = [i for i in _row_indices(s, last) if names(extents[i]) <= set(op.sizes)]
    if not rows or not names(extents[last]) <= set(op.sizes):
        return None
    return extents[rows[-1]], extents[last], s.target.dtype.bytes_


def _sliding(op: Op, contractions: list[tuple[Step, str]]) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
    """The extents of what is added to the last row of the one contraction, and of what it adds up beside windows."""
    if len(contractions) != 1:
        return (), ()
    (s, last), = contractions
    row, extents = _row_indices(s, last)[-1:], {r.index: r.upper - r.lower for r in s.ranges}
    depth = {i: e for i, e in extents.items() if i not in expr_names(s.target)}
    positions = [names(p) for x in loads(s.expr) for p in x.index if isinstance(p, Affine) and names(p) & {*row}]
    windows = tuple(e for i, e in depth.items() if any(i in p for p in positions))
    rest = tuple(e for i, e in depth.items() if not _is_window(s, i))
    return (windows, rest) if all(names(e) <= set(op.sizes) for e in (*windows, *rest)) else ((), ())


def _kept(op: Op) -> tuple[tuple[tuple[Affine, ...], int], ...]:
    """Those that are written by one step, and whose result is."""
    found = []
    for s in op.steps:
        if s.reduce is not None or op.tensor(s.target.source).role != "out" or len(op.steps_of(s.target.source)) != 1:
            continue
        for t in {x.source: op.tensor(x.source) for x in loads(s.expr) if x.index == s.target.index}.values():
            sums = [r for r in op.steps if r.reduce is not None and any(x.source == t.name for x in loads(r.expr))]
            over = {i for r in sums for i in set(r.indices) - expr_names(r.target)}
            row = {p: e for r in sums for x in loads(r.expr) if x.source == t.name
                   for p, e in zip(x.index, t.shape, strict=True) if isinstance(p, Affine) and p.name in over}
            if row and t.role == "temp" and t.dtype == s.target.dtype and len(op.steps_of(t.name)) == 1:
                found.append((tuple(row.values()), t.dtype.bytes_))
    return tuple(found)


def _little(op: Op, contractions: list[tuple[Step, str]]) -> tuple[Affine, ...]:
    """Those of all contractions, if each is a number or a size, and no windows are among them; () if one has no batches."""
    found = dict[Affine, None]()
    for s, _ in contractions:
        batch = frozenset.intersection(*map(expr_names, (s.target, *loads(s.expr))))
        extents = {r.index: r.upper - r.lower for r in s.ranges if r.index not in batch}
        plain = all(e.is_constant or e.name in op.sizes for e in extents.values())
        if not plain or len(extents) == len(s.ranges) or s.where or any(_is_window(s, i) for i in extents):
            return ()
        found |= dict.fromkeys(extents.values())
    return tuple(found)


def _sides(op: Op, contractions: list[tuple[Step, str]]) -> Sides | None:
    """Both sides of the result of the one contraction."""
    if len(contractions) != 1:
        return None
    (s, last), = contractions
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    known = {i for i, e in extents.items() if names(e) <= set(op.sizes)}
    rows = _row_indices(s, last)
    columns = _row_indices(s, rows[-1]) if rows else ()
    if not rows or columns[-1:] != (last,):
        return None
    if not known.issuperset((*rows, *columns)):
        rows, columns = tuple(i for i in rows if i in known)[-1:], (last,)
    if not rows or last not in known:
        return None
    ends = [x.index[-1] for x in loads(s.expr) if last not in expr_names(x) and x.index]
    is_near = any(isinstance(p, Affine) and rows[-1] in names(p) for p in ends)
    return Sides(tuple(extents[i] for i in rows), tuple(extents[i] for i in columns), is_near)


def _brief(op: Op, contractions: list[tuple[Step, str]]) -> tuple[tuple[Affine, ...], tuple[Affine, ...], int]:
    """(what the one contraction adds up along, its result, bytes of an element); no extents for windows and conditions."""
    if len(contractions) != 1 or contractions[0][0].where:
        return (), (), 0
    s = contractions[0][0]
    kept = {p.name for p in s.target.index if isinstance(p, Affine)}
    summed, t = [r for r in s.ranges if r.index not in kept], op.tensor(s.target.source)
    plain = all(names(r.upper - r.lower) <= set(op.sizes) and not _is_window(s, r.index) for r in summed)
    return (tuple(r.upper - r.lower for r in summed), t.shape, t.dtype.bytes_) if plain else ((), (), 0)


def _deep(op: Op, contractions: list[tuple[Step, str]]) -> tuple[Affine, ...]:
    """The extents of what the one contraction adds up along; () if that is one index, or a window, or bound by conditions."""
    extents = _brief(op, contractions)[0]
    return extents if len(extents) > 1 else ()


def _turns(op: Op, contractions: list[tuple[Step, str]]) -> tuple[str, ...]:
    """The sizes that are rows of contractions which read, one or more steps back, what follows from their own results."""
    found: set[str | None] = set()
    for s, last in contractions:
        later = op.follow_from((s.target.source,))
        back = {p.terms[0][0] for x in loads(s.expr) if x.source in later for p in x.index
                if isinstance(p, Affine) and p.const and len(p.terms) == 1}
        if back:
            found |= {e.name for e in _rows(replace(s, ranges=tuple(r for r in s.ranges if r.index not in back)), last)}
    return tuple(n for n in op.sizes if n in found)


def _carried(op: Op) -> tuple[tuple[Affine, int], ...]:
    """The rows of results that are made of others, at the same place of these alone: `Y[n - 1, c]`."""
    found = []
    for s in op.steps if all(s.reduce is None for s in op.steps) else ():
        t, at = op.tensor(s.target.source), s.target.index
        later = op.follow_from((t.name,)) if at and isinstance(at[-1], Affine) and at[-1].name in s.indices else frozenset()
        back = [x for x in s.reads if x.source in later]
        if back and all(x.index[-1:] == at[-1:] for x in back) and t.role != "temp" and names(t.shape[-1]) <= set(op.sizes):
            found.append((t.shape[-1], t.dtype.bytes_))
    return tuple(found)


def _sums_of_rows(op: Op, contractions: list[tuple[Step, str]]) -> tuple[tuple[Affine, int, bool], ...]:
    """What is reduced over reads that have the last index of the target last, too: `S[b] += X[n, b]`."""
    out = []
    for s in op.steps:
        last = s.target.index[-1] if s.target.index else None
        if s.reduce is None or not isinstance(last, Affine) or last.name not in s.indices:
            continue
        reduced = set(s.indices).difference(*({p.name} for p in s.target.index if isinstance(p, Affine)))
        rows = [x for x in loads(s.expr) if x.index and x.index[-1] == last and expr_names(x) & reduced]
        if rows:
            t = op.tensor(s.target.source)
            out.append((t.shape[-1], t.dtype.bytes_, any(s is c for c, _ in contractions)))
    return tuple(out)


def _contractions(op: Op) -> list[tuple[Step, str]]:
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
