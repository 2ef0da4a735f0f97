"""Which rows deserve a kernel of their own, by their sizes alone: what `regimes.py` finds of rows, and asks about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from polyop.ir.expr import Affine, evaluate, expr_names, loads, names, volume
from polyop.ir.op import Op
from polyop.ir.target import LINE, PAGE, Target
from polyop.rewrite.sums.triangles import find_triangle

LONG = 32  # that part of L1
ABREAST = 8  # rows: with six they take as long together as one after the other
RUNS = (1024, 4096, 32768)  # bytes of rows of a recurrence that each of several threads takes at a time
ASIDE = 384  # bytes of a row of a triangular system for each thread: two blocks of columns
THIRD = 3  # of L2 is enough for lines beside what else comes: with all of it 3000 x 5000 took 1.3 times as long
PICKED = 16  # places at most that are looked up one by one: vectors of them, most of whose lanes are empty, take twice as long
RUN = 512  # bytes of the shortest row that is; in strips of a few vectors it is as fast


def runs_abreast(found: Sequence[tuple[tuple[Affine, ...], Affine]], sizes: Mapping[str, int], target: Target) -> bool:
    """Whether some rows of running sums are many enough for a vector of them at a time, whose results stay in L2."""
    return any(volume(rows, sizes) >= ABREAST and evaluate(extent, sizes) * LINE <= target.l2 // 2 for rows, extent in found)


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows that are all multiplied with one vector: { Y[n] += X[n, k] * m[k] }.

    each    extents of the vector, and `bytes_` of its elements
    rows    extents of what has the rows
    others  extents of what counts vectors that share rows
    """

    each: tuple[Affine, ...]
    bytes_: int
    rows: tuple[Affine, ...]
    others: tuple[Affine, ...]


def find_shared(op: Op) -> tuple[Shared, ...]:
    """The vectors that several rows are multiplied with, where these are added up along what has unit stride."""
    found = []
    for s in op.steps:
        extents = {r.index: r.upper - r.lower for r in s.ranges}
        kept = extents.keys() & expr_names(s.target)
        for x, m in product(s.reads if s.reduce is not None else (), repeat=2):
            last = x.index[-1] if x.index else None
            rows, is_along = expr_names(x) & kept, isinstance(last, Affine) and last.name in extents.keys() - kept
            if is_along and m.index[-1:] == (last,) and rows - expr_names(m):
                each = tuple(extents[i] for i in sorted((extents.keys() - kept) & expr_names(m)))
                others = tuple(extents[i] for i in sorted(kept - rows))
                found.append(Shared(each, m.dtype.bytes_, op.tensor(x.source).shape, others))
    return tuple(found)


def in_lock_step(found: Sequence[Shared], sizes: Mapping[str, int], target: Target) -> int:
    """How many of the rows that share a vector run in lock step; 0: as many as usual.

    One, if the vector stays in L1 and they do not stay in L2: then they come in one stream. As many as there are registers for,
    if it does not.
    """
    for x in found if target.hints.single else ():
        if volume(x.others, sizes) == 1:
            if volume(x.each, sizes) * x.bytes_ > target.hints.single:
                return target.registers // 4
            if volume(x.rows, sizes) * x.bytes_ > target.l2:
                return 1
    return 0


def find_picked(op: Op) -> tuple[Affine, ...]:
    """How many places are looked up along rows, the same for several of them: P of { Y[a, p] = X[a, ids[p]] }."""
    found = []
    for s in op.steps if len(op.steps) == 1 else ():
        last = s.target.index[-1] if s.target.index and s.reduce is None else None
        if isinstance(last, Affine) and last.name in s.indices:
            places = [expr_names(p) for x in s.reads for p in x.index if not isinstance(p, Affine)]
            if any(last.name in p and not expr_names(s.target) <= p for p in places):
                found += [r.upper - r.lower for r in s.ranges if r.index == last.name]
    return tuple(found)


def find_carried(op: Op) -> tuple[tuple[Affine, int], ...]:
    """(elements of a row, bytes of one) of results whose rows are made of rows before, where nothing is added up.

    They are made of the same place of these alone: `Y[n - 1, c]`.
    """
    found = []
    for s in op.steps if all(s.reduce is None for s in op.steps) else ():
        t, at = op.tensor(s.target.source), s.target.index
        later = op.follow_from((t.name,)) if at and isinstance(at[-1], Affine) and at[-1].name in s.indices else frozenset()
        back = [x for x in s.reads if x.source in later]
        if back and all(x.index[-1:] == at[-1:] for x in back) and t.role != "temp" and names(t.shape[-1]) <= set(op.sizes):
            found.append((t.shape[-1], t.dtype.bytes_))
    return tuple(found)


def run_of_rows(found: Sequence[tuple[Affine, int]], sizes: Mapping[str, int], target: Target, threads: int) -> int:
    """Bytes of each row that a recurrence over rows takes at a time: whole ones, as far as they stay in a cache, or several for
    each thread; 0 where rows are hardly longer than the vectors whose results registers hand on.
    """
    least = min(evaluate(extent, sizes) * bytes_ for extent, bytes_ in found)
    if least < RUN:
        return 0
    return target.l2 // 8 if threads == 1 else max((n for n in RUNS if n * threads <= least), default=0)


def find_kept(op: Op) -> tuple[tuple[tuple[Affine, ...], int], ...]:
    """(elements of a row, bytes of one) of temporaries that are reduced row by row and then become a result, in place.

    Each is written by one step, and so is the result.
    """
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


def has_long_rows(found: Sequence[tuple[tuple[Affine, ...], int]], sizes: Mapping[str, int], target: Target) -> bool:
    """Whether rows of temporaries leave L1, where those of results would be written beside them."""
    return any(volume(row, sizes) * bytes_ > target.l1 // LONG for row, bytes_ in found)


def find_aside(op: Op) -> tuple[tuple[Affine, int], ...]:
    """(elements of a row, bytes of one) of what is found row by row from those before, each column from itself alone.

    Those of triangular systems: `n` of `s[i, n] += L[i, k] * X[k, n] where k < i`.
    """
    t = find_triangle(op)
    last = t.update.target.index[-1] if t else Affine()
    if t is None or not isinstance(last, Affine) or last.name in (None, t.turn):
        return ()
    own, shape = op.tensor(t.written), op.tensor(t.partial).shape
    reads = [x for x in t.update.reads if x.source == t.written]
    alone = all(x.index[-1] == last for x in reads) and names(shape[-1]) <= set(op.sizes)
    return ((shape[-1], own.dtype.bytes_),) if alone else ()


def has_columns(found: Sequence[tuple[Affine, int]], sizes: Mapping[str, int], threads: int) -> bool:
    """Whether each thread has columns enough of a recurrence to go through all its turns without the others."""
    return all(evaluate(extent, sizes) * bytes_ >= threads * ASIDE for extent, bytes_ in found)


def find_turned(op: Op) -> tuple[tuple[Affine, tuple[Affine, ...], int], ...]:
    """(rows, elements from one to the next, bytes of one) of what is read by rows and written by columns: `Y[j, i] = X[i, j]`.

    Or of what is written so, where several arrays are read: `Y[j, i] = X[i, j] * Z[i, j]`.
    """
    if any(s.reduce is not None for s in op.steps):
        return ()
    uses = [x for s in op.steps for x in (s.target, *s.reads) if op.tensor(x.source).role != "temp" and x.index]
    ends = [p for x in uses if isinstance(p := x.index[-1], Affine) and p.name]
    to, found = max(ends, key=ends.count, default=None), []  # lanes; of as many, those of the first target
    for x in uses:
        at = [d for d, p in enumerate(x.index[:-1]) if p == to]
        if len(at) == 1 and x.index[-1] != to:
            shape = op.tensor(x.source).shape
            found.append((shape[at[0]], shape[at[0] + 1:], x.dtype.bytes_))
    return tuple(found)


def is_tall(found: Sequence[tuple[Affine, tuple[Affine, ...], int]], sizes: Mapping[str, int], target: Target) -> bool:
    """Whether a line of each row would take a third of L2 or more, as far as their distance lets them use it.

    In a column of squares of half a line, the other half is left for the next column.
    """
    def held(pitch: int) -> int:
        return target.l2 // max(LINE, gcd(pitch, target.l2 // target.l2_ways))

    return any(THIRD * evaluate(rows, sizes) > held(volume(pitch, sizes) * bytes_) for rows, pitch, bytes_ in found)


def has_pages(found: Sequence[tuple[Affine, int, bool]], sizes: Mapping[str, int], also_contractions: bool, threads: int) -> bool:
    """Whether all rows that are summed have a page for each thread: runs of less leave every other page to somebody else."""
    rows = [evaluate(extent, sizes) * bytes_ for extent, bytes_, contracts in found if also_contractions or not contracts]
    return bool(rows) and min(rows) >= threads * PAGE
