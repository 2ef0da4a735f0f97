"""What to ask of the sizes of a call, to find out which kernel it deserves: found once, in the operator's text alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, expr_names, loads, names
from polyop.ir.op import Op, Step
from polyop.rewrite.beyond import read_beyond
from polyop.rewrite.copies import contracted
from polyop.rewrite.copies.bordered import find_borders
from polyop.rewrite.copies.contracted import Short, Sides, is_window
from polyop.rewrite.copies.downs import Down, downs
from polyop.rewrite.copies.inward import Lying, find_inward
from polyop.rewrite.copies.landed import summed_where_it_lands
from polyop.rewrite.copies.late import Late, find_late
from polyop.rewrite.copies.strewn import Strewn, find_strewn
from polyop.rewrite.regimes.positions import bounding
from polyop.rewrite.sums.factors import Inner, find_inner
from polyop.rewrite.sums.passes import Pass, Split, find_both
from polyop.rewrite.sums.scans import Row, find_rows
from polyop.rewrite.sums.shares import Sum, lines, sums
from polyop.rewrite.windows.chains import Chain, find_chains
from polyop.rewrite.windows.residues import cut_into_residues


@dataclass(frozen=True, eq=False, slots=True)
class Questions:
    """What decides about the kernel of a call, as far as several regimes ask for it; `regimes.py` has what each finds by itself.

    op       what all of it is said of: contractions are cut into residue classes there
    narrow   the last extents of what contractions write, `n` of `A[m, k] * B[k, n]`, and of any reduction with rows: where one
             is 1, lanes would have one element, and another loop could have them
    windows  the sizes that some index of a contraction runs over which is added to another: where one is 1, as in a convolution
             with one filter element for each channel, whole rows of channels are known to be dense
    slides   the windows along which rows of the result share what they read, where no product of matrices is made of that, as in
             a convolution with one filter for each channel, and those beside
    slid     the extents of the dimensions along which they slide, beside the last one of the result
    short    the last dimension of a contraction's result, where the reads that do without it are used again by other loops, as
             the filters of a convolution of 7 x 7 images are
    standing the same of all contractions, if they are not, and their right operands lie along the sums: copied for lanes along
             the columns, read in place for lanes along the rows
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
    types    of its sum, of what has its columns, and of what does not, where it adds up products of two narrower ones
    borders  the extents of channels of narrow numbers with a border, which tiles of the target's instructions read only in a copy
    narrow_inward  what a sum of narrow products reads along its last index, and a copy could have along what is added up
    downs    along what their rows may run, with lanes along its columns and turned
    steps    the extents of what is added up there but windows
    sides    of the same
    deep     the extents of what the one contraction adds up along, if these are several, none is a window, and no condition holds
    brief    the same for one or several, extents of its result, and the bytes of an element
    far      the sizes that bound positions which would fit into 32 bits if the sizes do
    scans    the rows that scans go along
    passes   reductions that need each other's results, and could be done in one pass
    splits   those whose rows may be cut into shares
    chains   what hands over temporaries with rows to spare
    sums     reductions that may be cut into shares
    inner    the ways in which factors may be taken out of some of those
    late     those of which a large operand lies across the result
    inward   what a product reads along the rows of its tiles, where its lanes run along the rows of the other operand
    strewn   the operands of the one contraction, for what asks how they lie to the tiles of a GPU's blocks
    little   the extents of rows, columns and depth of contractions that are done again and again, for batches
    lines    the sizes that are extents of rows which are summed up, and of which a block of a GPU's threads has one, or several
    """

    op: Op
    narrow: tuple[str, ...]
    windows: tuple[str, ...]
    slides: tuple[str, ...]
    slid: tuple[Affine, ...]
    short: tuple[Short, ...]
    standing: tuple[Short, ...]
    upright: tuple[tuple[Affine, Affine, int], ...]
    heads: tuple[str, ...]
    rows: tuple[tuple[Affine, ...] | None, ...]
    single: tuple[str, ...]
    turns: tuple[str, ...]
    strips: tuple[tuple[Affine, int, bool], ...]
    tile: tuple[Affine, Affine, int] | None
    unpacked: tuple[Affine, ...]
    packed: tuple[tuple[Affine, ...], bool]
    types: tuple[DType, DType, DType] | None
    borders: tuple[tuple[Affine, ...], ...]
    narrow_inward: tuple[Lying, ...]
    downs: tuple[tuple[Down, ...], tuple[Down, ...]]
    steps: tuple[Affine, ...]
    sides: Sides | None
    deep: tuple[Affine, ...]
    brief: tuple[tuple[Affine, ...], tuple[Affine, ...], int]
    far: tuple[str, ...]
    scans: tuple[Row, ...]
    passes: tuple[Pass, ...]
    splits: tuple[Split, ...]
    chains: tuple[Chain, ...]
    sums: tuple[Sum, ...]
    inner: tuple[tuple[Inner, ...], ...]
    late: tuple[Late, ...]
    inward: tuple[Lying, ...]
    strewn: tuple[Strewn, ...]
    little: tuple[Affine, ...]
    lines: tuple[str, ...]


def questions(op: Op) -> Questions:
    """What to ask of the sizes of a call of `op`; of contractions that are cut into residue classes, each class is asked."""
    # classes of one sum differ in an element of each extent at most; what it reads at remainders of rows and columns has both
    is_one = len(contracted.find_contractions(op)) == 1 or [s.reduce is not None for s in op.steps].count(True) == 1
    op = cut_into_residues(summed_where_it_lands(op))
    contractions = contracted.find_contractions(op)
    one = contractions[:1] if is_one else contractions
    last = [s.target for s, _ in contractions]
    last += [s.target for s in op.steps if s.reduce is not None and len(s.target.index) > 1]
    found = {op.tensor(t.source).shape[-1].name for t in last}
    rows = [contracted.rows_of(s, last) for s, last in contractions]
    slides, slid = _slides(op)
    passes, splits = find_both(op)
    return Questions(
        op, narrow=tuple(n for n in op.sizes if n in found), windows=_windows(op, [s for s, _ in contractions]),
        slides=slides, slid=slid,
        short=tuple(contracted.short(op, s, last) for s, last in contractions if contracted.is_reused(s, last)),
        standing=contracted.standing(op, contractions),
        upright=contracted.uprights(op, contractions), heads=contracted.heads(op, contractions),
        rows=tuple(r if all(names(e) <= set(op.sizes) for e in r) else None for r in rows),
        single=contracted.single(op, contractions), turns=contracted.turns(op, contractions),
        strips=contracted.sums_of_rows(op, contractions), tile=contracted.tile(op, one),
        unpacked=contracted.unpacked(op, one), packed=contracted.packed(op, one),
        types=_types(op, is_one), borders=find_borders(op), narrow_inward=find_inward(op, narrow=True),
        downs=downs(op, one), steps=contracted.steps(op, contractions), sides=contracted.sides(op, contractions),
        deep=contracted.deep(op, contractions), brief=contracted.brief(op, contractions), far=bounding(op),
        scans=find_rows(op), passes=passes, splits=splits, chains=find_chains(op), sums=sums(op),
        inner=find_inner(op), late=find_late(op), inward=find_inward(op), strewn=find_strewn(op, one),
        little=contracted.little(op, contractions), lines=lines(op))


def _types(op: Op, is_one: bool) -> tuple[DType, DType, DType] | None:
    """`Questions.types`, borders and all; None if these are of no known channels, so that no copy is made with them.

    And where all inputs are wide: temporaries alone were not measured.
    """
    if all(t.dtype.bytes_ > 2 for t in op.inputs):
        return None
    beyond = read_beyond(op)
    contractions = contracted.find_contractions(beyond)
    found = contracted.narrow(beyond, contractions[:1] if is_one else contractions)
    guarded = found is not None and any(x.guard for x in loads(contractions[0][0].expr))
    return None if guarded and not find_borders(op) else found


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

    Windows along the last index, which mostly has the lanes, share nothing; beside others they are numbers too, so that
    pointers to a row, and to a row of zeros, move on alike.
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
            found |= set(_windows(op, [s]))
            slid.append(op.tensor(s.target.source).shape[-2])
    return tuple(n for n in op.sizes if n in found), tuple(slid)
