"""Sums over rows that are read twice: first for what is added up of each row, then for what is added up of all rows by that.

    t[m] += A[m, n] x[n]                                        s[n] += A[m, n] t[m]

Where such a sum is cut into shares, what feeds it is cut with it,

    u[b, i] += A[C b + i, n] x[n]  where C b + i < M            p[b, n] += A[C b + i, n] u[b, i]  where C b + i < M

so that both are in one loop over shares, and the rows of one stay in a cache if these are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.ir.expr import (
    Affine,
    Expr,
    Load,
    Position,
    Test,
    affine,
    loads,
    map_loads,
    names,
    substitute,
    substitute_expr,
    volume,
)
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.names import all_names, fresh

PART = 4  # of the second cache that the rows of a share may fill: with half, 4096 x 4096 took 3.3 instead of 2.6 ms
FEWEST, MOST = 8, 512  # rows of a share
AGAIN = 4  # what is read of a share's rows for each of its results, which are written and read once more


@dataclass(frozen=True, slots=True)
class Row:
    """What is read twice of each row: its extents, and the bytes of an element."""

    extents: tuple[Affine, ...]
    bytes_: int


@dataclass(frozen=True, slots=True)
class Fed:
    """Temporaries that feed the sum of a step row by row, and nothing else.

    rows   the index of each one's own step that counts the rows, and which of its dimensions that is
    row    what is read twice of a row
    """

    rows: Mapping[str, tuple[str, int]]
    row: Row


def fed_by(op: Op, s: Step, index: str) -> Fed | None:
    """What feeds `s` along `index`; None if no row is read twice for that."""
    r = next(x for x in s.ranges if x.index == index)
    rows = _closed(op, s, index, _candidates(op, s, r)) if r.lower == Affine() else {}
    row = next((x for n, (k, _) in rows.items() if (x := _read_twice(op, s, index, _writer(op, n), k))), None)
    return Fed(rows, row) if row else None


def _writer(op: Op, name: str) -> Step:
    return next(s for s in op.steps if s.target.source == name)


def _candidates(op: Op, s: Step, r: Range) -> dict[str, tuple[str, int]]:
    """Temporaries that `s` reads at the index of `r`, that those which do so read at theirs, and so on; each has one step."""
    found: dict[str, tuple[str, int]] = {}
    ways = [(s, r.index)]
    while ways:
        q, k = ways.pop()
        for x in q.reads:
            own = [w for w in op.steps if w.target.source == x.source]
            d = next((d for d, p in enumerate(x.index) if p == affine(k)), None)
            if d is None or len(own) != 1 or x.source in found or op.tensor(x.source).role != "temp":
                continue
            p = own[0].target.index[d]
            i = p.name if isinstance(p, Affine) else None
            if i is not None and any(y.index == i and y.lower == Affine() and y.upper == r.upper for y in own[0].ranges):
                found[x.source] = (i, d)
                ways.append((own[0], i))
    return found


def _closed(op: Op, s: Step, index: str, rows: dict[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Those of `rows` that `s` and each other alone read, each at its own row."""
    while True:
        own = {id(s): index} | {id(_writer(op, n)): i for n, (i, _) in rows.items()}
        lost = {x.source for q in op.steps for x in q.reads
                if x.source in rows and not _is_row(x, rows[x.source][1], own.get(id(q)))}
        lost |= {n for n, (i, d) in rows.items() if not _is_row(_writer(op, n).target, d, i)}
        after = op.follow_from(set(rows)) - rows.keys()
        lost |= {n for n in rows if any(x.source in after for x in _writer(op, n).reads)}
        if not lost:
            return rows
        rows = {n: x for n, x in rows.items() if n not in lost}


def _is_row(x: Load, d: int, index: str | None) -> bool:
    """Whether `x` has `index` in its dimension `d` and nowhere else."""
    if index is None or x.index[d] != affine(index):
        return False
    return not any(not isinstance(p, Affine) or index in names(p) for e, p in enumerate(x.index) if e != d)


def _read_twice(op: Op, s: Step, index: str, q: Step, own: str) -> Row | None:
    """What of a row both `s` and the reduction `q`, which adds it up, read, where it lies side by side."""
    if q.reduce is None:
        return None
    for x in loads(s.expr):
        d = next((d for d, p in enumerate(x.index) if p == affine(index)), None)
        row = op.tensor(x.source).shape[(d or 0) + 1 :]
        again = [y for y in loads(q.expr) if y.source == x.source and d is not None and y.index[d] == affine(own)]
        if row and all(names(e) <= set(op.sizes) for e in row) and any(_adds_up(q, y.index[(d or 0) + 1 :]) for y in again):
            return Row(row, x.dtype.bytes_)
    return None


def _adds_up(q: Step, row: tuple[Position, ...]) -> bool:
    kept = {i for p in q.target.index if isinstance(p, Affine) for i in names(p)}
    return all(isinstance(p, Affine) and names(p) & set(q.indices) and not names(p) & kept for p in row)


def cut_with(op: Op, part: Step, fed: Fed, shares: Range, inside: Range, extent: Affine) -> Op:
    """`op` with what feeds its step `part`, the shares of a sum, in the same shares: `inside` each of `shares`."""
    at = affine(shares.index) * inside.upper.const + affine(inside.index)
    taken = all_names(op)
    own = {n: fresh(n, taken) for n in fed.rows}

    def apart(x: Load) -> Load:
        if x.source not in fed.rows:
            return x
        d, both = fed.rows[x.source][1], (affine(shares.index), affine(inside.index))
        return replace(x, source=own[x.source], index=(*x.index[:d], *both, *x.index[d + 1 :]))

    def read(e: Expr) -> Expr:
        return map_loads(e, apart)

    def cut(s: Step) -> Step:
        if s is part:
            return replace(s, expr=read(s.expr), where=tuple(map(read, s.where)))
        if s.target.source not in fed.rows:
            return s
        i, _ = fed.rows[s.target.source]
        env = {i: at}
        ranges = [x for r in s.ranges for x in ((shares, inside) if r.index == i else
                                                (replace(r, lower=substitute(r.lower, env), upper=substitute(r.upper, env)),))]
        where = (Test((extent - at - 1,)), *(read(substitute_expr(w, env)) for w in s.where))
        return replace(s, target=apart(s.target), expr=read(substitute_expr(s.expr, env)), ranges=tuple(ranges), where=where)

    def made(t: Tensor) -> Tensor:
        if t.name not in fed.rows:
            return t
        d = fed.rows[t.name][1]
        return replace(t, name=own[t.name], shape=(*t.shape[:d], shares.upper, inside.upper, *t.shape[d + 1 :]))

    return replace(op, tensors=tuple(map(made, op.tensors)), steps=tuple(map(cut, op.steps)))


def rows_in_cache(row: Row, results: int, rows: int, sizes: Mapping[str, int], l2: int) -> int:
    """How many rows a share has that stay in the second cache; 0 if that holds all, or too few for what shares cost."""
    elements = volume(row.extents, sizes)
    bytes_ = max(1, elements * row.bytes_)
    chunk = min(MOST, 1 << max(0, (l2 // PART // bytes_).bit_length() - 1))
    fits = chunk >= FEWEST and chunk * bytes_ <= l2 // PART
    return chunk if fits and rows * bytes_ > l2 and results * AGAIN <= chunk * elements else 0
