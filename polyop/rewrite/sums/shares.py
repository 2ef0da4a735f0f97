"""Cutting a reduction to few elements into shares, so that several threads, or blocks of them, have work.

    y += x[i]          becomes          p[t] += x[C t + i]  where 0 <= i < C, C t + i < N          y += p[t]

and likewise where the results have indices, `y[m, n] += a[m, k] * b[k, n]`: p[t, m, n]. Otherwise too little of such a step could
be shared out, since its loops add up to few places. Of a single element shares are cut along the outermost index, so each is a
piece of memory of its own; of several, along an index that no window has. Places may come from data: each share has them all.

    y[at[i], d] += x[i, d]      becomes      p[t, at[C t + i], d] += x[C t + i, d]      y[n, d] += p[t, n, d]

How many shares there are depends on the sizes alone, so the result does not depend on how many threads there are, if these are
several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.ir.expr import (
    Affine,
    Load,
    Position,
    Test,
    affine,
    evaluate,
    expr_names,
    is_computed,
    loads,
    names,
    quasi,
    substitute,
    substitute_expr,
    volume,
)
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.fed import Fed, Row, cut_with, fed_by, rows_in_cache

LONG = 16384  # points of a share of a single loop: 64 KiB of f32, which take longer than a thread takes to come
ROWS = 64     # iterations of the outermost of several loops
STREAMED, TILED = 256, 512  # iterations of a share, at least, where a row is read once, and of a product in tiles
SHORTER = 128  # the same where there would be too few of these: rows come faster whole than in parts
DEEP = 16     # shares of a product that adds up along several indices
STEP, LEAST, MOST = 8, 4, 64  # shares are `STEP` times as long, at least `LEAST` and at most `MOST`
AGAIN = 8  # what a share adds up at computed places, for each that it must set to zero and that is added up behind
PIECES = 32  # of work that eight threads share evenly
ALONE = 8  # dot products, which are as long as rows, are as many pieces as that
STRETCH = 1024  # results of a line that are a piece
TILE = (48, 64)  # and of a product
STRIP = 64  # results of a row that is added up at a computed place


@dataclass(frozen=True, eq=False, slots=True)
class Sum:
    """A reduction whose results have indices, and which may be cut.

    target   what it reduces to; `results`: its extents
    index    along which it is cut; `deep`: how long that is; `beside`: how long others are that it adds up along
    tiled    the extents of its rows and columns, if it is a product that has both; of these a block has a tile
    in_line  whether results that are neighbours come of neighbours, which a warp reads together then
    mixed    whether what is read is smaller than the results: instructions for dot products take several steps at once then
    places   the extents of those dimensions of the target in which data says where a result is; these are not among `results`
    row      what is read twice of a row, as it is for what feeds the sum
    """

    target: str
    results: tuple[Affine, ...]
    index: str
    deep: Affine
    tiled: tuple[Affine, Affine] | None
    in_line: bool
    mixed: bool
    places: tuple[Affine, ...] = ()
    row: Row | None = None
    beside: tuple[Affine, ...] = ()


def cut_into_shares(op: Op, few: Mapping[str, int] | None = None, alone: bool = True, feeds: bool = True) -> Op:
    """`op` with every reduction to one element, over a loop whose length is not known, in two steps. Sums change their order.

    few     other reductions to cut, by their targets, and how many iterations a share has
    alone   whether those to one element are cut
    feeds   whether what feeds a sum is cut with it, where rows are read twice for that (`fed.py`)
    """
    tensors, steps, fed = list(op.tensors), list[Step](), list[tuple[Step, Fed, Range, Affine]]()
    taken = all_names(op)
    few = {_summed_by(op, t): chunk for t, chunk in few.items()} if few else {}
    wanted = {x.target: x.index for x in sums(op)} if few else {}
    for s in op.steps:
        if alone and _is_one_element(s):
            index, chunk = s.ranges[0].index, LONG if len(s.ranges) == 1 else ROWS
        elif few and s.reduce is not None and s.target.source in few and wanted.get(s.target.source) in _summed(s):
            index, chunk = wanted[s.target.source], few[s.target.source]
        else:
            steps.append(s)
            continue
        shape = op.tensor(s.target.source).shape
        part, total = _cut(s, index, chunk, shape, taken)
        chosen = [e for e, p in zip(shape, s.target.index, strict=True) if _chooses(p)]
        tensors.append(Tensor(part.target.source, s.target.dtype, (total.ranges[0].upper, *chosen), "temp"))
        steps += [part, total]
        found = fed_by(op, s, index) if feeds else None
        if found:
            at = s.indices.index(index)
            fed.append((part, found, part.ranges[1 + at], s.ranges[at].upper))
    made = replace(op, tensors=tuple(tensors), steps=tuple(steps)) if len(steps) > len(op.steps) else op
    for part, found, inside, extent in fed:
        made = cut_with(made, part, found, part.ranges[0], inside, extent)
    return made


def _summed_by(op: Op, target: str) -> str:
    """What is added up for `target`: itself, or the one sum that it is scaled of since it was asked about (`terms.py`)."""
    steps = op.steps_of(target)
    added = {x.source for s in steps for x in loads(s.expr) if x.index == s.target.index and op.tensor(x.source).role == "temp"
             and any(w.reduce is not None for w in op.steps_of(x.source))}
    return added.pop() if len(steps) == len(added) == 1 and steps[0].reduce is None else target


def _is_one_element(s: Step) -> bool:
    """Whether `s` reduces to a place that is known, over loops of which the outermost is a symbol long."""
    if s.reduce is None or not s.ranges or not all(isinstance(p, Affine) and p.is_constant for p in s.target.index):
        return False
    r = s.ranges[0]
    return not (r.upper - r.lower).is_constant


def _chooses(p: Position) -> bool:
    """Whether a position differs from one result to the other."""
    return not isinstance(p, Affine) or not p.is_constant


def _cut(s: Step, index: str, chunk: int, shape: tuple[Affine, ...], taken: set[str]) -> tuple[Step, Step]:
    """(the shares, what adds them up); `shape`: that of the target."""
    (r,) = (x for x in s.ranges if x.index == index)
    t, i = fresh("t", taken), fresh(f"{r.index}_i", taken)
    extent = r.upper - r.lower
    env = {r.index: r.lower + affine(t) * chunk + affine(i)}
    count = quasi("div", extent + (chunk - 1), affine(chunk))
    kept = [x for x in s.ranges if x.index in _kept(s)]
    whole = list(s.target.index)
    for d, (p, e) in enumerate(zip(whole, shape, strict=True)):
        if is_computed(p):
            kept.append(Range(fresh("n", taken), affine(0), e))
            whole[d] = affine(kept[-1].index)
    parts = replace(s.target, source=fresh(f"{s.target.source}_parts", taken))
    into = substitute_expr(replace(s.target, index=tuple(p for p in s.target.index if _chooses(p))), env)
    assert isinstance(into, Load)
    target = replace(parts, index=(affine(t), *into.index))
    shares, inside = Range(t, affine(0), count), Range(i, affine(0), affine(chunk))
    others = {x.index: Range(x.index, substitute(x.lower, env), substitute(x.upper, env)) for x in s.ranges}
    ranges = (shares, *(inside if x is r else others[x.index] for x in s.ranges))
    where = (Test((extent - affine(t) * chunk - affine(i) - 1,)), *(substitute_expr(w, env) for w in s.where))
    part = Step(target, s.reduce, substitute_expr(s.expr, env), ranges, where, s.span)
    added = replace(parts, index=(affine(t), *(p for p in whole if _chooses(p))))
    summed = {x.index for x in s.ranges} - {x.index for x in kept}
    there = tuple(w for w in s.where if not expr_names(w) & summed)  # where these do not hold there are no shares
    return part, Step(replace(s.target, index=tuple(whole)), s.reduce, added, (shares, *kept), there, s.span)


def sums(op: Op) -> tuple[Sum, ...]:
    """The reductions with several results that may be cut, in no recurrence and with results in a box.

    One step of each has a sum; others may add single terms to it, `Y[m, n] += b[n]`.
    """
    def is_only(s: Step) -> bool:
        others = [x for x in op.steps if x.target.source == s.target.source and x is not s]
        return all(x.reduce is not None and x.reduce == s.reduce and not _summed(x) for x in others)

    return tuple(x for s in op.steps if is_only(s) and not _feeds_itself(op, s) and (x := _sum(op, s)))


def _sum(op: Op, s: Step) -> Sum | None:
    kept, sizes = _kept(s), set(op.sizes)
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    shape = op.tensor(s.target.source).shape
    places = tuple(e for p, e in zip(s.target.index, shape, strict=True) if is_computed(p))
    if s.reduce is None or not (kept or places) or len(kept) + len(places) != sum(map(_chooses, s.target.index)):
        return None
    ties = any(isinstance(w, Test) and expr_names(w) & set(kept) for w in s.where)
    if ties or any(not names(extents[i]) <= sizes for i in kept):
        return None
    long = [i for i, e in extents.items() if i not in kept and e.terms and names(e) <= sizes and _stands_alone(s, i)]
    if not long:
        return None
    runs = {p.name for x in loads(s.expr) if x.index and isinstance(p := x.index[-1], Affine)}
    deep = next((i for i in long if i not in runs), long[0])  # a share is then a piece of memory, or a few long ones
    if places:
        return Sum(s.target.source, tuple(extents[i] for i in kept), deep, extents[deep], None, False, False, places)
    last, rows = kept[-1], _rows(s, kept)
    tiled = (extents[rows[-1]], extents[last]) if rows else None
    ends = [x.index[-1] for x in loads(s.expr) if last in expr_names(x) and x.index]
    in_line = bool(ends) and all(isinstance(p, Affine) and p.name == last for p in ends)
    mixed = any(x.dtype.bytes_ < s.target.dtype.bytes_ for x in loads(s.expr))
    fed = fed_by(op, s, deep)
    return Sum(s.target.source, tuple(extents[i] for i in kept), deep, extents[deep], tiled, in_line, mixed,
               row=fed.row if fed else None, beside=tuple(extents[i] for i in long if i != deep))


def fed_shares(found: tuple[Sum, ...], sizes: Mapping[str, int], l2: int) -> tuple[tuple[str, int], ...]:
    """The sums to cut because rows that are read twice then stay in the second cache; iterations of a share of each."""
    chunks = {x.target: rows_in_cache(x.row, volume(x.results, sizes), evaluate(x.deep, sizes), sizes, l2)
              for x in found if x.row}
    return tuple((n, c) for n, c in chunks.items() if c)


def thread_shares(found: tuple[Sum, ...], sizes: Mapping[str, int], rows: int) -> tuple[tuple[str, int], ...]:
    """The reductions to cut because several threads would have too little to share; iterations of a share of each.

    rows   how many rows each product has at most, if these are few; 0: more
    """
    out = []
    for x in found:
        if _pieces(x, sizes, rows) >= PIECES or x.mixed:
            continue
        results, deep = volume(x.results, sizes), evaluate(x.deep, sizes)
        if results < 1:
            continue  # a class of a strided convolution may have none, where all sizes are 1
        streamed = x.in_line and (rows > 0 or not x.tiled)
        chunk, step = TILED if not streamed else STREAMED if deep >= LEAST * STREAMED else SHORTER, 2 if x.places else STEP
        inside = volume(x.beside, sizes) if x.tiled and not streamed else 1
        if inside > 1:  # each iteration has so many terms
            chunk = max(-(-TILED // inside), -(-deep // DEEP))
        least = AGAIN * volume(x.places, sizes) if x.places else 0
        while deep > MOST * chunk or results * chunk < LONG or chunk < least:
            chunk *= step
        if deep >= LEAST * chunk:
            out.append((x.target, chunk))
    return tuple(out)


def _pieces(x: Sum, sizes: Mapping[str, int], rows: int) -> int:
    """How many pieces of work the results of `x` are: pages, tiles, or dot products."""
    results = volume(x.results, sizes)
    if x.places:
        return results // STRIP
    if x.tiled is None:
        line = evaluate(x.results[-1], sizes)
        return results // max(1, line) * -(-line // STRETCH) if x.in_line else results * ALONE
    down, along = (evaluate(e, sizes) for e in x.tiled)
    beside = results // max(1, down * along)
    if rows and not x.in_line:
        return beside * along
    if rows or (x.in_line and down <= TILE[0]):  # the right operand is used by one row of tiles
        return beside * -(-along // STRETCH)
    return beside * -(-down // TILE[0]) * -(-along // TILE[1])


def lines(op: Op) -> tuple[str, ...]:
    """The sizes that are lengths of rows which are summed up, by a step that is no product of rows and columns."""
    found = set()
    for s in op.steps:
        ends = {p.name for x in loads(s.expr) if x.index and isinstance(p := x.index[-1], Affine)}
        if s.reduce is not None and not _rows(s, _kept(s)):
            found |= {r.upper.name for r in s.ranges if r.index in ends and r.index not in _kept(s) and r.lower == Affine()}
    return tuple(n for n in op.sizes if n in found)


def _rows(s: Step, kept: tuple[str, ...]) -> list[str]:
    """The indices of results that are rows of a product whose columns the last one counts; empty, if it is none."""
    reads, last = [expr_names(x) for x in loads(s.expr)], kept[-1] if kept else ""
    if not any(last in x for x in reads):
        return []
    return [i for i in kept if any(i in x and last not in x for x in reads) and not any(i in x and last in x for x in reads)]


def _kept(s: Step) -> tuple[str, ...]:
    """The indices that choose the result."""
    return tuple(p.name for p in s.target.index if isinstance(p, Affine) and p.name is not None and p.name in s.indices)


def _summed(s: Step) -> frozenset[str]:
    """The indices of which the terms are."""
    return frozenset(s.indices) - {*_kept(s)}


def _stands_alone(s: Step, i: str) -> bool:
    """Whether `i` is added to no other index in what `s` reads."""
    positions = [p for e in (s.expr, s.target) for x in loads(e) for p in x.index if isinstance(p, Affine) and i in names(p)]
    return bool(positions) and all(names(p) & set(s.indices) == {i} and p.factor(i) == 1 for p in positions)


def _feeds_itself(op: Op, s: Step) -> bool:
    """Whether what `s` reads follows from what it computes."""
    found = op.follow_from({s.target.source})
    return any(x.source in found for x in s.reads)
