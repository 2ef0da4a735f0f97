"""A batch, scheduled as one of it: what blocks of threads do for each b alone is the same for all, and loops over b stand around.

    { S[b, i, ..] -> T[b, i, ..] : 0 <= b < B }      is      for b in [0, B)  { S[i, ..] -> T[i, ..] }

where each statement has b as an iterator of its own, with which nothing is done but to say where its data lie: in one dimension
of each tensor that has any. All operands of a contraction have it, so it is no row or column of one, of which tiles are made. isl
schedules S[i, ..], and writes its loops, in three quarters of the time for two such indices, since it has fewer coordinates.

That the loops do what the operator says is for the checker to prove, which looks at the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from polyop.ir.expr import Affine, Expr, Load, affine, expr_names, loads, map_loads, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, walk
from polyop.ir.op import Op, Step
from polyop.ir.options import Layout
from polyop.poly.labels import new_name
from polyop.poly.scop import Scop

T = TypeVar("T")

LEAST = 2
"""Dimensions that a result keeps: rows and columns."""


@dataclass(frozen=True, slots=True)
class Leading:
    """What was left out: `index` over `extent`; `dims`: in which dimension of a tensor, as it was before."""

    index: str
    extent: Affine
    dims: Mapping[str, int]


def one_of(op: Op) -> tuple[Op, tuple[Leading, ...]]:
    """`op` without the indices of a batch, and these, outermost first: leading dimensions of all results."""
    found: list[Leading] = []
    while (b := _batch(op)) is not None and (less := _without(op, b)) is not None:
        op, found = less, [*found, b]
    if not found:
        return op, ()
    used = frozenset(_names(op))
    sizes = tuple(s for s in op.sizes if s in used)
    return replace(op, sizes=sizes, facts=tuple(f for f in op.facts if expr_names(f) <= used)), tuple(found)


def _names(op: Op) -> set[str]:
    """The names in ranges, positions, conditions and shapes."""
    found = {n for t in op.tensors for e in t.shape for n in names(e)}
    for s in op.steps:
        found |= {n for r in s.ranges for x in (r.lower, r.upper) for n in names(x)}
        found |= {n for e in (s.target, s.expr, *s.where) for n in expr_names(e)}
    return found


def _batch(op: Op) -> Leading | None:
    """The first dimension of all results, and the same in what they follow from; None if there is none such."""
    if any(len(t.shape) <= LEAST for t in op.outputs) or len({t.shape[0] for t in op.outputs}) != 1:
        return None
    extent = op.outputs[0].shape[0]
    dims: dict[str, int | None] = {t.name: 0 for t in op.outputs}
    for s in reversed(op.steps):  # what is read later is known
        at = dims.get(s.target.source)
        index = _iterator(s, at) if at is not None else None
        if index is None or not any(r.index == index and (r.lower, r.upper) == (Affine(), extent) for r in s.ranges):
            return None
        own = [_dim(x, index) for x in loads(s.expr)]
        if s.reduce is not None and len(own) > 1 and None in own:
            return None  # a row or column of a contraction
        for x, d in zip(loads(s.expr), own, strict=True):
            if dims.setdefault(x.source, d) != d:
                return None
    if any(d is not None and op.tensor(t).shape[d] != extent for t, d in dims.items()):
        return None
    index = _iterator(op.steps[0], dims[op.steps[0].target.source] or 0)
    return Leading(index or "", extent, {t: d for t, d in dims.items() if d is not None})


def _iterator(s: Step, dim: int) -> str | None:
    p = s.target.index[dim]
    return p.name if isinstance(p, Affine) else None


def _dim(x: Load, index: str) -> int | None:
    return next((d for d, p in enumerate(x.index) if p == affine(index)), None)


def _cut(xs: tuple[T, ...], at: int | None) -> tuple[T, ...]:
    return xs if at is None else xs[:at] + xs[at + 1 :]


def _without(op: Op, b: Leading) -> Op | None:
    """`op` for one of the batch; None if it has more to do with which one it is than where that lies."""
    tensors = tuple(replace(t, shape=_cut(t.shape, b.dims.get(t.name))) for t in op.tensors)
    steps: list[Step] = []
    for s in op.steps:
        index = _iterator(s, b.dims[s.target.source]) or ""
        ranges = tuple(r for r in s.ranges if r.index != index)
        target, expr = (_elements(e, b) for e in (s.target, s.expr))
        assert isinstance(target, Load)
        used = expr_names(target) | expr_names(expr) | {n for w in s.where for n in expr_names(w)}
        if index in used or any(index in names(r.lower) | names(r.upper) for r in ranges):
            return None
        steps.append(replace(s, target=target, expr=expr, ranges=ranges))
    return replace(op, tensors=tensors, steps=tuple(steps))


def _elements(e: Expr, b: Leading) -> Expr:
    return map_loads(e, lambda x: replace(x, index=_cut(x.index, b.dims.get(x.source))))


def layout_of_one(layout: Layout, leading: Sequence[Leading]) -> Layout:
    """How the tensors lie, for those of one."""
    units = dict(layout.units)
    for b in leading:
        for t, d in b.dims.items():
            u = units.get(t)
            if u is not None:
                units[t] = None if u == d else u - (u > d)
    return replace(layout, units=tuple(units.items()))


# --- and back ---------------------------------------------------------------------------------------------------------


def around(nest: LoopNest, scop: Scop, layout: Layout, leading: Sequence[Leading]) -> LoopNest:
    """`nest`, which is for one of the `leading` of `scop`, for all of them."""
    taken = {*scop.op.sizes, *(n.index for n in walk(nest.body) if isinstance(n, For))}
    indices = []
    for b in leading:
        indices.append(new_name(b.index, lambda i: i not in taken))
        taken.add(indices[-1])
    everything = [(affine(i), b) for i, b in zip(indices, leading, strict=True)]
    given = {b.name: b for b in nest.buffers if b.space == Space.TENSOR}
    units = dict(layout.units)

    def load(x: Load) -> Load:
        at = x.index
        for i, b in reversed(everything) if x.source in given else ():
            d = b.dims.get(x.source)
            at = at if d is None else (*at[:d], i, *at[d:])
        return replace(x, index=at)

    def node(n: Node) -> Node:
        match n:
            case For():
                return replace(n, body=tuple(map(node, n.body)))
            case If():
                return replace(n, then=tuple(map(node, n.then)), other=tuple(map(node, n.other)))
            case Store():
                lift = _lift(n, scop, everything) if n.origin is not None else ()
                target = map_loads(n.target, load)
                assert isinstance(target, Load)
                return replace(n, lift=lift, target=target, expr=map_loads(n.expr, load))
        return n

    body = tuple(map(node, nest.body))
    for i, b in reversed(everything):
        body = tuple(For(str(i.name), Affine(), b.extent, (n,), kind=Kind.PARALLEL) for n in body)
    buffers = tuple(replace(b, dims=tuple((e, 1) for e in scop.op.tensor(b.name).shape), unit=units[b.name])
                    if b.name in given else b for b in nest.buffers)
    return replace(nest, sizes=scop.op.sizes, body=body, buffers=buffers)


def _lift(n: Store, scop: Scop, everything: Sequence[tuple[Affine, Leading]]) -> tuple[Affine, ...]:
    """The lift of `n` with the values of the iterators that were left out."""
    s = scop.stmt(n.origin or "")
    values = dict[str, Affine]()
    at = s.target.index
    for i, b in everything:
        d = b.dims[s.target.source]
        values[str(at[d])] = i
        at = _cut(at, d)
    rest = iter(n.lift)
    return tuple(values[x] if x in values else next(rest) for x in s.dims)
