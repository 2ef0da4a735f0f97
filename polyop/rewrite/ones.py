"""Fixing sizes: at 1, where the loops over them disappear, and what is left may be another kind of operator; or small windows.

A product of matrices whose result has one column is a product of a matrix and a vector: its lanes then run along the
contraction, and not along that one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, Expr, Load, Test, affine, expr_names, loads, map_affine, map_loads, names, substitute
from polyop.ir.op import Op, Range, Step, map_step
from polyop.rewrite.bounds import never_negative


def fix_sizes(op: Op, sizes: Mapping[str, int]) -> Op:
    """`op` for calls in which `sizes` have these values; they stay arguments, and the facts say so."""
    if not sizes:
        return op
    env = {s: affine(n) for s, n in sizes.items()}
    tensors = tuple(replace(t, shape=tuple(substitute(e, env) for e in t.shape)) for t in op.tensors)
    steps = tuple(_fixed(s, env, _telling(op, s, env)) for s in op.steps)
    facts = tuple(map_affine(f, lambda x: substitute(x, env)) for f in op.facts)
    open_ = tuple(f for f in facts if not (isinstance(f, Test) and all(never_negative(t, op.sizes) for t in f.tests)))
    return _narrowed(assumed(replace(op, tensors=tensors, steps=steps, facts=open_), sizes))


def without_single(op: Op) -> Op:
    """`op` without indices that have a single value, as those of extents have that the text says are 1."""
    if not any(r.upper == r.lower + 1 for s in op.steps for r in s.ranges):
        return op
    return _narrowed(replace(op, steps=tuple(_fixed(s, {}, _telling(op, s, {})) for s in op.steps)))


def _narrowed(op: Op) -> Op:
    """`op` with temporaries without the dimensions in which they have one element, which the text names by its number."""
    def accesses(s: Step) -> tuple[Load, ...]:
        return (s.target, *(x for e in (s.target, s.expr, *s.where) for x in loads(e)))

    temps = {t.name: t for t in op.temporaries}
    gone = {n: {d for d, e in enumerate(t.shape) if e == affine(1)} for n, t in temps.items()}
    for x in (x for s in op.steps for x in accesses(s) if x.source in gone):
        gone[x.source] -= {d for d, p in enumerate(x.index) if p != affine(0)}
    if not any(gone.values()):
        return op

    def kept(x: Load) -> Load:
        out = gone.get(x.source, set())
        return replace(x, index=tuple(p for d, p in enumerate(x.index) if d not in out)) if out else x

    def one(s: Step) -> Step:
        target = kept(s.target)
        target = replace(target, index=tuple(p if isinstance(p, Affine) else map_loads(p, kept) for p in target.index))
        return replace(s, target=target, expr=map_loads(s.expr, kept), where=tuple(map_loads(w, kept) for w in s.where))

    shapes = {n: tuple(e for d, e in enumerate(t.shape) if d not in gone[n]) for n, t in temps.items()}
    tensors = tuple(replace(t, shape=shapes.get(t.name, t.shape)) for t in op.tensors)
    return replace(op, tensors=tensors, steps=tuple(map(one, op.steps)))


def assumed(op: Op, sizes: Mapping[str, int]) -> Op:
    """`op` with the facts that `sizes` have these values."""
    facts = tuple(Test((affine(s) - n, affine(n) - affine(s))) for s, n in sizes.items())
    return replace(op, facts=(*op.facts, *facts)) if facts else op


def _telling(op: Op, s: Step, env: Mapping[str, Affine]) -> frozenset[str]:
    """The reduced indices of `s` that must stay, though they have a single value, so that a sum without elements is still one.

        z[i] += p[i, j] where j <= i + N - S      with N = 1: the sum over { j : 0 <= j < 1, j <= i + 1 - S }, for all i

    A condition without reduced indices says where a temporary has elements. One that would become so, and may fail, keeps its
    index.
    """
    if s.reduce is None or op.tensor(s.target.source).role != "temp":
        return frozenset()
    reduced = frozenset(s.indices) - expr_names(s.target)
    fixed = _fixed(s, env)
    left, sizes = reduced & frozenset(fixed.indices), tuple(op.sizes)

    def says_more(old: Expr, new: Expr) -> bool:
        holds = isinstance(new, Test) and all(never_negative(t, sizes, fixed.ranges) for t in new.tests)
        return not holds and bool(expr_names(old) & reduced) and not expr_names(new) & left

    said = [expr_names(w) for w, x in zip(s.where, fixed.where, strict=True) if says_more(w, x)]
    bounds = [names(r.lower) | names(r.upper) for r in s.ranges if r.index not in reduced]
    return frozenset[str]().union(*said, *bounds) & reduced - left


def _fixed(s: Step, env: Mapping[str, Affine], keep: frozenset[str] = frozenset()) -> Step:
    """`s` with the sizes of `env` put in, and without the indices that then have a single value, but those to `keep`."""
    known, kept = dict(env), list[Range]()
    for r in s.ranges:
        lower, upper = substitute(r.lower, known), substitute(r.upper, known)
        if upper == lower + 1 and r.index not in keep:
            known[r.index] = lower
        else:
            kept.append(Range(r.index, lower, upper))

    return replace(map_step(s, lambda e: map_affine(e, lambda x: substitute(x, known))), ranges=tuple(kept))
