"""Scop: an Op as isl sets and maps. The specification that every nest is proved against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.expr import Affine, Const, Expr, Load, affine, expr_names, loads, names
from polyop.ir.op import Monoid, Op, Range
from polyop.poly.labels import new_name
from polyop.poly.sets import Linear, condition, conjunction, params, space_text

INIT, UPDATE, MAP = "init", "update", "map"


@dataclass(frozen=True, eq=False)
class Stmt:
    """One statement over `dims`: `target = expr` (init, map) or `target reduce= expr` (update).

    ranges   the bounds of each of `dims`, in order; `where` the other conditions
    domain   { S[dims] }, with the sizes as parameters: ranges and conditions together
    step     which step of the Op it comes from; an init stands before the first update of its tensor
    """

    name: str
    kind: str
    ranges: tuple[Range, ...]
    where: tuple[Expr, ...]
    domain: isl.Set
    target: Load
    reduce: Monoid | None
    expr: Expr
    step: int

    @cached_property
    def dims(self) -> tuple[str, ...]:
        return tuple(r.index for r in self.ranges)

    def extent(self, iterator: str) -> Affine:
        """How many values `iterator` has, conditions aside."""
        return next(r.upper - r.lower for r in self.ranges if r.index == iterator)

    def access(self, load: Load) -> isl.Map:
        """{ S[dims] -> Tensor[index] } for the instances where the guard of `load` holds.

        A computed position may be anywhere in its dimension: the map is then not a function, and a may-access.
        """
        return _access(self.domain, self.name, self.dims, load)

    @cached_property
    def reads(self) -> tuple[Load, ...]:
        """The Loads of the right side in reading order, then those in computed positions of the target."""
        inner = tuple(x for p in self.target.index if not isinstance(p, Affine) for x in loads(p))
        return loads(self.expr) + inner

    @property
    def formula(self) -> str:
        """What it computes, in one line."""
        return f"{self.target} {self.reduce or ''}= {self.expr}"

    def __str__(self) -> str:
        return f"{self.name} ({self.kind})  {self.formula}\n    {self.domain}"


@dataclass(frozen=True, eq=False)
class Scop:
    """`context` is what is known about the sizes; statements stand in text order."""

    op: Op
    context: isl.Set
    stmts: tuple[Stmt, ...]

    def stmt(self, name: str) -> Stmt:
        return next(s for s in self.stmts if s.name == name)

    def writers(self, tensor: str) -> tuple[Stmt, ...]:
        return tuple(s for s in self.stmts if s.target.source == tensor)

    def users(self, tensor: str) -> tuple[Stmt, ...]:
        """The statements that write or read it."""
        return tuple(s for s in self.stmts if s.target.source == tensor or any(x.source == tensor for x in s.reads))

    def box(self, tensor: str) -> isl.Set:
        """{ Tensor[d0, ..] : 0 <= d0 < extent, .. }."""
        t = self.op.tensor(tensor)
        ranges = [Range(f"d{i}", affine(0), e) for i, e in enumerate(t.shape)]
        return Linear.over(self.context.get_space(), tensor, [r.index for r in ranges]).holding(limits(ranges))

    def __str__(self) -> str:
        return "\n".join([f"context {self.context}", *map(str, self.stmts)])


def _access(domain: isl.Set, name: str, dims: tuple[str, ...], load: Load) -> isl.Map:
    linear = Linear.over(domain.get_space(), name, dims)
    inside = domain.intersect(linear.holding(load.guard)) if load.guard else domain
    if all(isinstance(p, Affine) and linear.has(p) for p in load.index):
        at = linear.point(linear.beside(load.source, len(load.index)), [p for p in load.index if isinstance(p, Affine)])
        return isl.Map.from_multi_aff(at).intersect_domain(inside)
    index = []
    for i, p in enumerate(load.index):
        if isinstance(p, Affine):
            index.append(str(p))
        else:
            index.append(f"any{i}")
    return isl.Map(f"{linear.head}{{ {linear.text} -> {space_text(load.source, index)} }}").intersect_domain(inside)


def extract(op: Op) -> Scop:
    """The Scop of `op`: `S<n>` for step n, and `<tensor>_init` before the first update of each reduced tensor."""
    known = [f"{s} >= 0" for s in op.sizes] + [condition(f) for f in op.facts]
    context = isl.Set(f"{params(op.sizes)}{{ : {conjunction(known)} }}")
    sizes = context.get_space()
    stmts: list[Stmt] = []
    started: set[str] = set()
    for n, step in enumerate(op.steps):
        tensor = step.target.source
        if step.reduce and tensor not in started:
            started.add(tensor)
            stmts.append(_init(op, tensor, n, sizes))
        kind = UPDATE if step.reduce else MAP
        stmts.append(_stmt(sizes, f"S{n}", kind, step.ranges, step.where, step.target, step.reduce, step.expr, n))
    return Scop(op, context, tuple(stmts))


def limits(ranges: Iterable[Range]) -> tuple[Affine, ...]:
    """What is >= 0 where each index is in its range."""
    return tuple(x for r in ranges for x in (affine(r.index) - r.lower, r.upper - affine(r.index) - 1))


def everywhere(scop: Scop, s: Stmt) -> Stmt:
    """`s` without its conditions."""
    return _stmt(scop.context.get_space(), s.name, s.kind, s.ranges, (), s.target, s.reduce, s.expr, s.step)


def _stmt(sizes: isl.Space, name: str, kind: str, ranges: tuple[Range, ...], where: tuple[Expr, ...], target: Load,
          reduce: Monoid | None, expr: Expr, step: int) -> Stmt:
    domain = Linear.over(sizes, name, [r.index for r in ranges]).holding(limits(ranges), where)
    return Stmt(name, kind, ranges, where, domain, target, reduce, expr, step)


def _init(op: Op, tensor: str, first: int, sizes: isl.Space) -> Stmt:
    """The statement that sets a reduced tensor to its identity wherever an update could reach.

    Where the one update of a temporary writes `T[i, j]` with plain indices, the init runs over the same i and j, without
    the conditions that mention reduced indices: an empty reduction has the identity. Otherwise it covers the whole box.
    """
    steps = op.steps_of(tensor)
    t, step = op.tensor(tensor), steps[0]
    monoid = step.reduce
    assert monoid is not None
    plain = tuple(p.name for p in step.target.index if isinstance(p, Affine) and p.name in step.indices)
    plain = tuple(p for p in plain if p)
    is_plain = len(steps) == 1 and len(plain) == len(t.shape) == len(set(plain))
    indices = plain if is_plain else tuple(new_name(f"{tensor}_{d}", lambda i: i not in op.sizes) for d in range(len(t.shape)))
    ranges = tuple(Range(i, affine(0), e) for i, e in zip(indices, t.shape, strict=True))
    where: tuple[Expr, ...] = ()
    if is_plain and t.role == "temp":
        reduced = frozenset(step.indices) - frozenset(plain)
        kept = [r for r in step.ranges if r.index in plain and not (names(r.lower) | names(r.upper)) & reduced]
        if len(kept) == len(plain):
            ranges = tuple(kept)
            where = tuple(w for w in step.where if not expr_names(w) & reduced)
    target = Load(tensor, tuple(affine(r) for r in indices), t.dtype)
    return _stmt(sizes, f"{tensor}_init", INIT, ranges, where, target, None, Const(monoid.identity, t.dtype), first)
