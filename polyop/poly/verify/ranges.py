"""Which iterations loops have, and which of them do anything: what following one loop along another asks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import islpy as isl

from polyop.ir.expr import Affine, affine, bounds, place, quasi, substitute, substitute_expr
from polyop.ir.loops import COUNTED, Barrier, For, If, IfData, Kind, Node, Prefetch, Store
from polyop.poly.verify.known import Known
from polyop.poly.verify.trees import raise_where
from polyop.poly.verify.witness import smallest

Body = tuple[Node, ...]

_HANDED = (Kind.THREADS, Kind.ATOM)


def misplaced(b: For, part: Known, before: list[For], whole: Known) -> tuple[isl.Set, str] | None:
    """The iterations `part` of `b` that are none of the `whole` loop, or come too late after the loops `before`."""
    outside = part.domain.subtract(whole.domain)
    if not outside.is_empty():
        return outside, "runs, and should not"
    for c in before:
        late = part.where((c.upper - affine(c.index) - 1, c.upper - c.lower - 1), part.domain)
        if not late.is_empty():
            return late, "runs after later iterations, or again"
    return None


def is_longer(a: For, b: For, inner: Known) -> bool:
    """Whether `b`, which starts as `a` does and lacks some of its bounds, does nothing in iterations that `a` has not."""
    if not {*bounds(b.upper)} < {*bounds(a.upper)}:
        return False
    gone = tuple(x for x in bounds(a.upper) if x not in bounds(b.upper))
    beyond = inner.also(range_of(b)).unless(tuple(x - affine(a.index) - 1 for x in gone))
    return least(b.body, beyond) is None


def range_of(n: For) -> tuple[Affine, ...]:
    i = affine(n.index)
    return (*(i - b for b in bounds(n.lower, "max")), *(b - i - 1 for b in bounds(n.upper)))


def in_ones(n: For) -> For:
    """Rows by s, counted one by one:  { q : 0 <= q < u, q mod s = 0 } = { s q' : 0 <= q' < ceil(u / s) }."""
    s, at = affine(n.step), {n.index: affine(n.index) * n.step}
    ends = (quasi("div", b + (n.step - 1), s) for b in bounds(n.upper))
    return replace(n, upper=quasi("min", *ends), step=1, body=tuple(_put(x, at) for x in n.body))


def _put(n: Node, env: Mapping[str, Affine]) -> Node:
    """`n` with other values of indices; but for instances and lifts, which are claims."""
    match n:
        case For():
            return replace(n, lower=substitute(n.lower, env), upper=substitute(n.upper, env),
                           body=tuple(_put(x, env) for x in n.body))
        case If(tests=tests, then=then, other=other):
            return If(tuple(substitute(t, env) for t in tests), tuple(_put(x, env) for x in then),
                      tuple(_put(x, env) for x in other))
        case Store():
            return replace(n, target=place(n.target, env), expr=substitute_expr(n.expr, env))
        case Prefetch(place=at, ahead=ahead):
            return replace(n, place=place(at, env), ahead=None if ahead is None else substitute(ahead, env))
    return n


def runs_like(a: For, b: For, k: Known) -> None:
    """`b` may take the place of `a`, its bounds apart."""
    if b.step != a.step:
        raise_where(k.domain, k, f"loop {b.index} goes in steps of {b.step}, expected {a.step}")
    if b.kind != a.kind and (a.kind, b.kind) != (Kind.PARALLEL, Kind.SERIAL):
        raise_where(k.domain, k, f"loop {b.index} is {b.kind}, expected {a.kind}")
    if a.kind in _HANDED and (b.extent, b.weight) != (a.extent, a.weight):
        raise_where(k.domain, k, f"loop {b.index} is over other threads")
    if b.persistent and not a.persistent:
        raise_where(k.domain, k, f"iterations of loop {b.index} share a block of threads")
    if a.kind in COUNTED and a.extent and b.extent and (b.extent, b.upper) != (a.extent, a.upper):
        if b.extent > a.extent:
            raise_where(k.domain, k, f"loop {b.index} has room for {b.extent} copies, expected {a.extent}")
        if not any(k.implies(affine(b.end) - x) for x in bounds(b.upper)):
            long = k.where((b.upper - b.end - 1,), k.domain)
            raise_where(long, k, f"loop {b.index} runs to {b.upper}, and has room for {b.extent} copies")


def on_grid(a: For, b: For, k: Known) -> None:
    """`b` starts at some step of `a`, before or after; where it runs."""
    offsets = [x - a.lower for x in bounds(b.lower, "max")]
    if all(x.const % a.step == 0 and all(f % a.step == 0 for _, f in x.terms) for x in offsets):
        return
    off = k.where((quasi("mod", b.lower - a.lower, affine(a.step)) - 1, b.upper - b.lower - 1), k.domain)
    raise_where(off, k, f"loop {b.index} starts at {b.lower}, which is no step of the loop from {a.lower} by {a.step}")


def running(n: Node, k: Known) -> Iterator[Known]:
    """The places of the stores of `n` that run, and of barriers."""
    match n:
        case Store() | Barrier():
            if not k.domain.is_empty():
                yield k
        case For(body=body):
            inner = k.inside(n).also(range_of(n))
            if not inner.domain.is_empty():
                yield from (p for x in body for p in running(x, inner))
        case If():
            for part, body in ((k.also(n.tests), n.then), (k.unless(n.tests), n.other)):
                yield from (p for x in body for p in running(x, part))
        case IfData():
            yield from (p for x in (*n.then, *n.other) for p in running(x, k))


def runs(n: Node, k: Known) -> bool:
    return next(running(n, k), None) is not None


def least(body: Body, k: Known) -> Known | None:
    """The place of a store of `body` that runs for the smallest sizes; None if none runs."""
    if k.given is not None and k.given.is_empty():
        return None
    places = [p for n in body for p in running(n, k)]
    return min(places, key=lambda p: sum(smallest(p.domain)[0].values()), default=None)
