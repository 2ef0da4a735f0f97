"""Sums of products about means, in blocks: see `cascade.py`."""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Apply, Const, Expr, Load, Number, affine, loads, quasi, substitute_expr
from polyop.ir.op import Step, builtin_monoid
from polyop.rewrite.folds import Fold, plain_indices, replaced, resolved
from polyop.rewrite.sums.blocked import InBlocks
from polyop.rewrite.sums.dependent import Products
from polyop.rewrite.sums.partition import needed
from polyop.rewrite.words import cast


def add_up(c: InBlocks, m: Products) -> Step:
    """The last step of a sum of products about centres."""
    f = m.fold
    dtype = f.step.target.dtype
    expr = resolved(c.op, f.step.expr, frozenset(s.result for s in c.chain.firsts))
    size = _sizes(c, f)
    inner, correction = expr, expr
    for a, name, r in m.centres:
        mean = _mean(c, name, a, f, size)
        inner, correction = replaced(inner, r, mean), replaced(correction, a, mean)
    part = c.part(f, substitute_expr(inner, {f.over: c.cuts.at}))
    more = Apply("mul", (cast(size, dtype), cast(correction, dtype)), dtype)
    return replace(f.step, expr=Apply("add", (part.load(f.kept), more), dtype), ranges=c.ranges(f), where=c.filled(f))


def _mean(c: InBlocks, name: str, a: Expr, f: Fold, size: Expr) -> Load:
    """The mean of `a` in each block, in the indices of `f`, out of the sums of the fold `name`."""
    total, at = c.parts[name], _centre_of(c, name, f)
    if name not in c.stands:
        g = next(x for x in c.chain.firsts if x.result == name)
        c.stands[name] = made = c.blocked(g, "mean", total.dtype)
        count = _sizes(c, g)
        value = Apply("div", (total.load(g.kept), cast(count, total.dtype)), total.dtype)
        c.steps.append(Step(made.load(g.kept), None, value, c.ranges(g), c.filled(g)))
    return c.stands[name].load(at)


def _centre_of(c: InBlocks, name: str, f: Fold) -> tuple[str, ...]:
    """Where `f` reads the sum `name`."""
    found = next(x for x in loads(resolved(c.op, f.step.expr, frozenset({name}))) if x.source == name)
    return plain_indices(found) or ()


def _sizes(c: InBlocks, f: Fold) -> Expr:
    """How many elements of a block `f` adds up."""
    if not f.tests:
        left = c.cuts.extent - affine(c.cuts.b) * c.size
        return Number(quasi("min", affine(c.size), left), f.step.target.dtype)
    key = f"{f.result} size"
    if key not in c.parts:
        one = Const(1.0, f.step.target.dtype)
        c.parts[key] = c.part(f, one, "size", builtin_monoid("add", one.dtype))
    return c.parts[key].load(needed(f, Const(1.0, f.step.target.dtype)))
