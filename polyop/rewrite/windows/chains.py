"""Chains of windows: temporaries that are handed over with a few rows to spare, found by the text alone.

    T[i, j] = f(X[i, j])                              T is read in rows i .. i + 2
    Y[i, j] = T[i, j] + T[i + 1, j] + T[i + 2, j]

To compute the rows { B b + p : 0 <= p < B } of Y, tile b of them, the rows { B b + p : 0 <= p < B + 2 } of T are needed. In
general tile b needs of each tensor the rows

    { stride B b + first + p : 0 <= p < stride (B - 1) + window }

with a stride other than 1 below a pooling, say. A tensor of the end of a chain has stride 1, first 0 and window 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Quasi, affine, expr_names, loads, names
from polyop.ir.op import Op, Range, Step, Tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """What a tile needs of a tensor; `dim`: the dimension that counts the rows."""

    dim: int
    stride: int
    first: Affine
    window: Affine

    def count(self, tile: int) -> Affine:
        """How many rows a tile of `tile` rows of the end needs."""
        return self.window + self.stride * (tile - 1)

    @property
    def is_plain(self) -> bool:
        """Whether these are the rows of the end themselves."""
        return (self.stride, self.first, self.window) == (1, Affine(), affine(1))


@dataclass(frozen=True, eq=False, slots=True)
class Chain:
    """Tensors that are computed tile by tile.

    ends     those that are written in full; all have `extent` rows
    handed   the temporaries that only steps of the chain read: of these a tile is kept
    stored   those of them that some step reads in other rows than it writes: the others are used where they are made
    rows     what a tile needs of each
    terms    the extents of what is added up for an element of each of `handed`
    batches  leading dimensions that nothing of the chain mixes: loops around everything; `shared`: whether they are anyway
    """

    ends: tuple[str, ...]
    handed: tuple[Tensor, ...]
    stored: tuple[Tensor, ...]
    extent: Affine
    rows: Mapping[str, Rows]
    terms: tuple[tuple[Affine, ...], ...]
    batches: int
    shared: bool


def find_chains(op: Op) -> tuple[Chain, ...]:
    """The chains of `op`, none of which has a tensor of another. What carries a recurrence is in none."""
    written = tuple(dict.fromkeys(s.target.source for s in reversed(op.steps)))
    free = [t for t in written if not _feeds_itself(op, t)]
    readers = _readers(op)
    found: list[Chain] = []
    for end in free:
        taken = {t for c in found for t in c.rows}
        if end not in taken:
            grown = (_Growing(op, readers, frozenset(free) - taken, end, d).chain() for d in range(len(op.tensor(end).shape) - 1))
            chain = next((c for c in grown if c and not all(c.rows[t.name].is_plain for t in c.handed)), None)
            found += [chain] if chain else []
    return tuple(found)


def _feeds_itself(op: Op, tensor: str) -> bool:
    """Whether what is written there is needed for what is written there."""
    seen, todo = set[str](), [tensor]
    while todo:
        read = {x.source for s in op.steps_of(todo.pop()) for e in (s.expr, s.target) for x in loads(e) if x is not s.target}
        if tensor in read:
            return True
        todo += sorted(read - seen)
        seen |= read
    return False


def _readers(op: Op) -> Mapping[str, list[Step]]:
    """The steps that read each tensor, in order."""
    found: dict[str, list[Step]] = {}
    for s in op.steps:
        for name in dict.fromkeys(x.source for e in (s.expr, s.target) for x in loads(e) if x is not s.target):
            found.setdefault(name, []).append(s)
    return found


def row_of(s: Step, r: Rows) -> Range | None:
    """The range of the index that counts rows of what `s` writes: `i` of `T[n, i + 1, j]`; None if there is none alone."""
    p = s.target.index[r.dim]
    if not isinstance(p, Affine):
        return None
    found = [x for x in s.ranges if p - p.const == affine(x.index)]
    alone = found and not any(found[0].index in names(q) for d, q in enumerate(s.target.index)
                              if d != r.dim and isinstance(q, Affine))
    plain = all(isinstance(q, Affine) for q in s.target.index)
    tied = any(found[0].index in names(b) for x in s.ranges for b in (x.lower, x.upper)) if found else True
    return found[0] if alone and plain and not tied else None


@dataclass(eq=False)
class _Growing:
    """A chain that ends in the rows along dimension `dim` of `end`, taken backwards as far as it goes.

    readers   the steps that read each tensor; free: the tensors that it may have
    """

    op: Op
    readers: Mapping[str, list[Step]]
    free: frozenset[str]
    end: str
    dim: int

    def __post_init__(self) -> None:
        self.ends = [self.end]
        self.handed: list[Tensor] = []
        self.extent = self.op.tensor(self.end).shape[self.dim]
        self.rows = {self.end: self.as_end(self.dim)}

    def as_end(self, dim: int) -> Rows:
        return Rows(dim, 1, Affine(), affine(1))

    def chain(self) -> Chain | None:
        if not self.is_cut(self.end, self.rows[self.end]) or not names(self.extent) <= set(self.op.sizes):
            return None
        while self.grow() or self.widen():
            pass
        if not self.handed:
            return None
        terms = tuple(self.terms(t.name) for t in self.handed)
        if not all(names(e) <= set(self.op.sizes) for of in terms for e in of):
            return None
        stored = tuple(t for t in self.handed if any(self.differ(t.name, s.target.source) for s in self.readers.get(t.name, ())))
        contracts = any(_contracts(s) for t in self.rows for s in self.op.steps_of(t))
        return Chain(tuple(self.ends), tuple(self.handed), stored, self.extent, self.rows, terms,
                     min(map(self.batches, self.handed)), not contracts)

    def differ(self, tensor: str, other: str) -> bool:
        return replace(self.rows[tensor], dim=0) != replace(self.rows[other], dim=0)

    def terms(self, tensor: str) -> tuple[Affine, ...]:
        """The extents that steps add up for an element of `tensor`."""
        return tuple(r.upper - r.lower for s in self.op.steps_of(tensor) for r in s.ranges if r.index not in _kept(s))

    def batches(self, t: Tensor) -> int:
        """How many leading dimensions of `t` its readers have in the same place of what they write.

        Not those along which a contraction would lose all rows or all columns of an operand: `d` of `X[n, c, i, j] * F[d, c]`.
        """
        reads = [(s, x) for s in self.readers.get(t.name, ()) for x in loads(s.expr) if x.source == t.name]
        dim, found = self.rows[t.name].dim, 0
        while found < dim and all(x.index[found] == s.target.index[found] for s, x in reads) \
                and all(_leaves(s, found, dim) for s in self.op.steps_of(t.name) if _contracts(s)):
            found += 1
        return found

    def is_cut(self, tensor: str, r: Rows) -> bool:
        """Whether every step that writes `tensor` has an index for its rows alone."""
        return all(row_of(s, r) is not None for s in self.op.steps_of(tensor))

    def grow(self) -> bool:
        """Take in one more temporary that only steps of the chain read."""
        for t in self.op.temporaries:
            if t.name in self.free and t.name not in self.rows:
                readers = self.readers.get(t.name, [])
                if readers and all(s.target.source in self.rows for s in readers):
                    for d, _ in enumerate(t.shape[:-1] or t.shape):
                        r = self.needed(t.name, d, readers)
                        if r and self.is_cut(t.name, r):
                            self.rows[t.name] = r
                            self.handed.append(t)
                            return True
        return False

    def widen(self) -> bool:
        """Take in another end that reads a temporary of which all else is read here: the second of two gradients."""
        for t in self.op.temporaries:
            readers = self.readers.get(t.name, []) if t.name in self.free and t.name not in self.rows else []
            others = dict.fromkeys(s.target.source for s in readers if s.target.source not in self.rows)
            if len(others) < len({s.target.source for s in readers}):
                for z in others:
                    shape = self.op.tensor(z).shape
                    d = next((d for d, e in enumerate(shape[:-1]) if e == self.extent), None)
                    if z in self.free and d is not None and self.is_cut(z, self.as_end(d)):
                        self.rows[z] = self.as_end(d)
                        self.ends.append(z)
                        return True
        return False

    def needed(self, tensor: str, dim: int, readers: list[Step]) -> Rows | None:
        """The rows along `dim` of `tensor` that a tile's readers read."""
        found: Rows | None = None
        for s in readers:
            theirs = self.rows[s.target.source]
            row = row_of(s, theirs)
            own = s.target.index[theirs.dim]
            assert row is not None and isinstance(own, Affine)
            for e in (s.expr, *(p for p in s.target.index if not isinstance(p, Affine))):
                for x in loads(e):
                    if x.source != tensor:
                        continue
                    p = x.index[dim]
                    at = _span(p, row, s.ranges) if isinstance(p, Affine) else None
                    if at is None or not names(at.low) | names(at.high) <= set(self.op.sizes):
                        return None
                    shift = theirs.first - own.const  # the row of the tile's first, as a value of the index
                    one = Rows(dim, at.stride * theirs.stride, shift * at.stride + at.low,
                               (theirs.window - 1) * at.stride + (at.high - at.low) + 1)
                    found = one if found is None else _both(found, one)
                    if found is None:
                        return None
        return found


def _both(a: Rows, b: Rows) -> Rows | None:
    """The rows of both; None, if they are taken in different steps, or no constants apart."""
    first, last = b.first - a.first, (b.first + b.window) - (a.first + a.window)
    if a.stride != b.stride or not first.is_constant or not last.is_constant:
        return None
    low = a.first if first.const >= 0 else b.first
    return Rows(a.dim, a.stride, low, (a.first + a.window if last.const <= 0 else b.first + b.window) - low)


def _kept(s: Step) -> frozenset[str]:
    """The indices of what `s` writes."""
    return frozenset[str]().union(*(names(p) for p in s.target.index if isinstance(p, Affine)))


def _leaves(s: Step, at: int, dim: int) -> bool:
    """Whether each read that has the index at place `at` of what `s` writes has one from place `dim` on, too."""
    own, inside = (frozenset[str]().union(*(names(p) for p in part if isinstance(p, Affine)))
                   for part in (s.target.index[at : at + 1], s.target.index[dim:]))
    return all(expr_names(x) & inside for x in loads(s.expr) if expr_names(x) & own)


def _contracts(s: Step) -> bool:
    """Whether two reads of `s` each have an index of the result that the other one lacks."""
    over = [expr_names(x) & _kept(s) for x in loads(s.expr)]
    return s.reduce is not None and any(a - b and b - a for a in over for b in over)


@dataclass(frozen=True, slots=True)
class _Span:
    """{ x : stride i + low <= x <= stride i + high }."""

    stride: int
    low: Affine
    high: Affine


def _span(p: Affine, row: Range, ranges: tuple[Range, ...]) -> _Span | None:
    """Where the position `p` lies beside the index of `row`; None if it does not go along with that."""
    if len(p.terms) == 1 and isinstance(p.terms[0][0], Quasi) and p.terms[0][1] == 1:
        return _held(p.terms[0][0], p.const, row, ranges)
    stride, low, high = p.factor(row.index), affine(p.const), affine(p.const)
    if stride < 1:
        return None
    by_name = {r.index: r for r in ranges}
    for atom, f in p.terms:
        if not isinstance(atom, str):
            return None
        if atom == row.index:
            continue
        ends = (by_name[atom].lower, by_name[atom].upper - 1) if atom in by_name else (affine(atom), affine(atom))
        low, high = low + ends[f < 0] * f, high + ends[f > 0] * f
    return _Span(stride, low, high)


def _held(q: Quasi, more: int, row: Range, ranges: tuple[Range, ...]) -> _Span | None:
    """The same of a position that is held at the border: `max(i - 1, 0)` is one of i - 1 and i, where i is at least 0."""
    if q.op not in ("min", "max") or len(q.args) != 2:
        return None
    moving = [a for a in q.args if row.index in names(a)]
    fixed = [a for a in q.args if row.index not in names(a)]
    at = _span(moving[0], row, ranges) if len(moving) == 1 else None
    if at is None or at.stride != 1 or not at.low.is_constant or not at.high.is_constant:
        return None
    beyond = row.lower - fixed[0] if q.op == "max" else fixed[0] - (row.upper - 1)  # the index itself is never beyond the border
    if not beyond.is_constant or beyond.const < 0:
        return None
    low, high = (at.low.const, max(at.high.const, 0)) if q.op == "max" else (min(at.low.const, 0), at.high.const)
    return _Span(1, affine(low + more), affine(high + more))
