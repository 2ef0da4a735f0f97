"""Images whose border is 0 are copied with it where products of narrow numbers have an instruction.

    Y[p, k] += f32(X[p + r - 1, c] else 0) * f32(F[r, c, k])      Z[i, c] = (X[i - 1, c] else 0)
                                                                  Y[p, k] += f32(Z[p + r, c]) * f32(F[r, c, k])

The instruction takes several steps of a sum for all rows of a tile, so no row may have a border of its own: without the copy such
products are widened, and done one by one.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.dots import dot, product
from polyop.ir.expr import Affine, Load, affine, expr_names, map_loads, names, substitute
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.ir.options import Options
from polyop.ir.target import Target
from polyop.rewrite.beyond import read_beyond
from polyop.rewrite.copies.contracted import is_window
from polyop.rewrite.instead import with_steps
from polyop.rewrite.names import all_names, fresh

CHANNELS = 16
"""Channels from which on the copy is worth it: with 3, 56 x 56 takes 2.8 times as long."""


def find_borders(op: Op) -> tuple[tuple[Affine, ...], ...]:
    """The extents of channels of images of narrow numbers with a border, of which `op` adds up products."""
    if all(t.dtype.bytes_ > 2 for t in op.inputs):
        return ()
    found = []
    for s in read_beyond(op).steps:
        factors = product(s.expr) if s.reduce is not None and not s.where else None
        if factors is not None and (factors.a.guard or factors.b.guard):
            kept = expr_names(s.target)
            found.append(tuple(r.upper - r.lower for r in s.ranges if r.index not in kept and not is_window(s, r.index)))
    return tuple(x for x in found if all(names(e) <= set(op.sizes) for e in x))


def with_borders(op: Op, target: Target, options: Options) -> Op:
    """`op`, whose sizes are at least 1, with copies of what such products read with a border around it."""
    taken, strict = all_names(op), options.numerics == "strict"
    if not options.bordered or options.regime != "positive":
        return op

    def instead(s: Step) -> tuple[tuple[Tensor, ...], tuple[Step, ...]] | None:
        factors = product(s.expr) if s.reduce is not None and s.reduce.name == "add" and not s.where else None
        if factors is None or dot(target, target.vector_bytes, s.target.dtype, factors.a.dtype, factors.b.dtype, strict) is None:
            return None
        guarded = [x for x in (factors.a, factors.b) if x.guard]
        has = [expr_names(x) & expr_names(s.target) for x in (factors.a, factors.b)]
        if has[0] <= has[1] or has[1] <= has[0]:
            return None  # no product of matrices: a filter for each channel
        made = _copy(op, s, guarded[0], taken) if len(guarded) == 1 else None
        if made is None:
            return None
        copy, step, place = made
        return (copy,), (step, replace(s, expr=map_loads(s.expr, lambda x: place if x == guarded[0] else x)))

    plain = read_beyond(op)
    made = with_steps(plain, instead)
    return op if made is plain else made


def _copy(op: Op, s: Step, x: Load, taken: set[str]) -> tuple[Tensor, Step, Load] | None:
    """The copy of all that `s` reads as `x`, how it is made, and what `s` reads of it; None if that is no box in 0."""
    shape, low, extents = op.tensor(x.source).shape, list[Affine](), list[Affine]()
    for p in x.index:
        found = _span(op, s, p) if isinstance(p, Affine) else None
        if found is None:
            return None
        low.append(found[0])
        extents.append(found[1])
    places = [p for p in x.index if isinstance(p, Affine)]
    beside = enumerate(zip(places, shape, strict=True))
    sides = {t: (d, upper) for d, (p, e) in beside for t, upper in ((p, False), (e - 1 - p, True))}
    if not all(t in sides for t in x.guard):
        return None
    at = tuple(fresh(f"{x.source}_{d}", taken) for d in range(len(places)))
    own = [affine(i) + first for i, first in zip(at, low, strict=True)]
    guard = tuple(shape[d] - 1 - own[d] if upper else own[d] for d, upper in (sides[t] for t in x.guard))
    t = Tensor(fresh(f"{x.source}_bordered", taken), x.dtype, tuple(extents), "temp")
    step = Step(Load(t.name, tuple(map(affine, at)), t.dtype), None, replace(x, index=tuple(own), guard=guard),
                tuple(Range(i, Affine(), e) for i, e in zip(at, extents, strict=True)))
    return t, step, Load(t.name, tuple(p - first for p, first in zip(places, low, strict=True)), t.dtype)


def _span(op: Op, s: Step, p: Affine) -> tuple[Affine, Affine] | None:
    """The least value of the position `p`, and how many there are up to the largest; None if there might be less than none."""
    low, extent, least = p, Affine() + 1, 1
    for r in s.ranges:
        if not (c := p.factor(r.index)):
            continue
        if r.lower != Affine() or not names(r.upper) <= set(op.sizes):
            return None
        low = substitute(low, {r.index: Affine() if c > 0 else r.upper - 1})
        extent = extent + (r.upper - 1) * abs(c)
        least += abs(c) * ((r.upper.const if r.upper.is_constant else 1 if r.upper.name in op.sizes else 0) - 1)
    return (low, extent) if least >= 0 and names(low) <= set(op.sizes) else None
