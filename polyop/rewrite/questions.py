"""What to ask of the sizes of a call, to find out which kernel it deserves: found once, in the operator's text alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, expr_names, loads, names
from polyop.ir.op import Op, Step
from polyop.rewrite import contracted
from polyop.rewrite.bordered import find_borders
from polyop.rewrite.chains import Chain, find_chains
from polyop.rewrite.contracted import Short, Sides, is_window
from polyop.rewrite.factors import Inner, find_inner
from polyop.rewrite.inward import Lying, find_inward
from polyop.rewrite.late import Late, find_late
from polyop.rewrite.outward import Outward, find_outward
from polyop.rewrite.passes import Pass, Split, find_both
from polyop.rewrite.positions import bounding
from polyop.rewrite.raised import Alike, find_alike
from polyop.rewrite.residues import cut_into_residues
from polyop.rewrite.scans import Row, find_abreast, find_rows
from polyop.rewrite.shares import Sum, lines, sums
from polyop.rewrite.terms import Early, find_early
from polyop.rewrite.triangles import find_triangle
from polyop.rewrite.widened import Wide, find_wide


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
    tile     (rows, columns, bytes of an element) of the one contraction, or of one of its classes, as far as its tiles hold them;
             None if there are more
    unpacked the shape of what has its rows, `A`
    packed   the shape of what has its columns, `B` of `A[m, k] * B[k, n]`, and whether that lies along them, as here
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
    inner    the ways in which factors may be taken out of some of those
    alike    those of products of bytes of one sort
    borders  extents of channels of narrow numbers with a border, which those are sums of products of
    wide     those of products of narrow numbers
    late     those of which a large operand lies across the result
    early    operands of those that take little to compute
    outward  those of batches that come last
    inward   what a product reads along the rows of its tiles, where its lanes run along the rows of the other operand
    kept     (elements of a row, bytes of one) of temporaries that are reduced row by row and then become a result, in place
    little   the extents of rows, columns and depth of contractions that are done again and again, for batches
    aside    (elements of a row, bytes of one) of what is found row by row from those before, each column from itself alone
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
    unpacked: tuple[Affine, ...]
    packed: tuple[tuple[Affine, ...], bool]
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
    inner: tuple[tuple[Inner, ...], ...]
    alike: tuple[Alike, ...]
    borders: tuple[tuple[Affine, ...], ...]
    wide: tuple[Wide, ...]
    late: tuple[Late, ...]
    early: tuple[Early, ...]
    outward: tuple[Outward, ...]
    inward: tuple[Lying, ...]
    kept: tuple[tuple[tuple[Affine, ...], int], ...]
    little: tuple[Affine, ...]
    aside: tuple[tuple[Affine, int], ...]
    lines: tuple[str, ...]


def questions(op: Op) -> Questions:
    """What to ask of the sizes of a call of `op`; of contractions that are cut into residue classes, each class is asked."""
    whole, op = contracted.find_contractions(op), cut_into_residues(op)
    contractions = contracted.find_contractions(op)
    one = contractions[:1] if len(whole) == 1 else contractions  # its classes differ in an element of each extent at most
    last = [s.target for s, _ in contractions]
    last += [s.target for s in op.steps if s.reduce is not None and len(s.target.index) > 1]
    found = {op.tensor(t.source).shape[-1].name for t in last}
    rows = [contracted.rows_of(s, last) for s, last in contractions]
    slides, slid = _slides(op)
    passes, splits = find_both(op)
    return Questions(
        narrow=tuple(n for n in op.sizes if n in found), windows=_windows(op, [s for s, _ in contractions]),
        slides=slides, slid=slid,
        short=tuple(contracted.short(op, s, last) for s, last in contractions if contracted.is_reused(s, last)),
        upright=contracted.uprights(op, contractions), heads=contracted.heads(op, contractions),
        rows=tuple(r if all(names(e) <= set(op.sizes) for e in r) else None for r in rows),
        single=contracted.single(op, contractions), turns=contracted.turns(op, contractions),
        strips=contracted.sums_of_rows(op, contractions), tile=contracted.tile(op, one),
        unpacked=contracted.unpacked(op, one), packed=contracted.packed(op, one),
        sliding=contracted.sliding(op, contractions), sides=contracted.sides(op, contractions),
        deep=contracted.deep(op, contractions), brief=contracted.brief(op, contractions), far=bounding(op),
        scans=find_rows(op), abreast=find_abreast(op), carried=_carried(op), passes=passes, splits=splits,
        chains=find_chains(op), sums=sums(op), inner=find_inner(op), alike=find_alike(op), borders=find_borders(op),
        wide=find_wide(op),
        late=find_late(op), early=find_early(op), outward=find_outward(op), inward=find_inward(op), kept=_kept(op),
        little=contracted.little(op, contractions), aside=_aside(op), lines=lines(op))


def windows(op: Op) -> tuple[str, ...]:
    """The sizes of the windows of contractions."""
    return _windows(op, [s for s, _ in contracted.find_contractions(op)])


def _windows(op: Op, reductions: list[Step]) -> tuple[str, ...]:
    """The sizes `R` of indices `r` in 0:R that `reductions` read at `p + r`, and add up."""
    found = set()
    for s in reductions:
        kept = {p.name for p in s.target.index if isinstance(p, Affine)}
        found |= {r.upper.name for r in s.ranges if r.index not in kept and r.lower == Affine() and is_window(s, r.index)}
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


def _aside(op: Op) -> tuple[tuple[Affine, int], ...]:
    """Those of triangular systems: `n` of `s[i, n] += L[i, k] * X[k, n] where k < i`."""
    t = find_triangle(op)
    last = t.update.target.index[-1] if t else Affine()
    if t is None or not isinstance(last, Affine) or last.name in (None, t.turn):
        return ()
    own, shape = op.tensor(t.written), op.tensor(t.partial).shape
    reads = [x for x in t.update.reads if x.source == t.written]
    alone = all(x.index[-1] == last for x in reads) and names(shape[-1]) <= set(op.sizes)
    return ((shape[-1], own.dtype.bytes_),) if alone else ()


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
