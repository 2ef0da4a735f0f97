"""Random small damage to a loop nest: bounds, steps, tests, places, order, missing and doubled parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from polyop.ir.expr import Affine, Apply, Expr, Load, affine, map_loads, names, substitute
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Store, rebuild, walk

from .orders import at


def mutant(given: LoopNest, random: Random) -> LoopNest:
    """`given` with one random change; it may happen to mean the same."""
    count = len(list(walk(given.body)))
    if not count:
        return given
    chosen, seen = random.randrange(count), -1

    def go(body: tuple[Node, ...], around: tuple[str, ...]) -> tuple[Node, ...]:
        nonlocal seen
        out: list[Node] = []
        for x in body:
            seen += 1
            hit = seen == chosen
            inner = (*around, x.index) if isinstance(x, For) else around
            x = rebuild(x, lambda b, inner=inner: go(b, inner))
            out += damaged(x, inner, random) if hit else (x,)
        return tuple(out)

    return replace(given, body=go(given.body, ()))


def damaged(x: Node, around: tuple[str, ...], random: Random) -> tuple[Node, ...]:
    match x:
        case For():
            return random.choice(tuple(_loops(x, random)))
        case If():
            at = random.randrange(max(1, len(x.tests)))
            moved = tuple(t + random.choice((-1, 1)) if i == at else t for i, t in enumerate(x.tests))
            fewer = tuple(t for i, t in enumerate(x.tests) if i != at)
            return random.choice(((replace(x, tests=moved),), (replace(x, tests=fewer),), x.then, (*x.then, *x.other)))
        case Store():
            return random.choice(tuple(_stores(x, around, random)))
    return (x,)


def _loops(x: For, random: Random) -> Iterator[tuple[Node, ...]]:
    yield (replace(x, upper=x.upper - 1),)
    if x.kind not in LOCKSTEP:
        yield (replace(x, upper=x.upper + 1),)
        yield (replace(x, lower=x.lower + 1),)
        yield (replace(x, step=x.step + 1),)
        if x.step > 1:
            yield (replace(x, step=x.step - 1),)
    if len(x.body) > 1:
        order = list(x.body)
        random.shuffle(order)
        yield (replace(x, body=tuple(order)),)
        yield tuple(replace(x, body=(n,)) for n in x.body)       # the loop, distributed
    yield (x, x)
    yield ()
    if x.kind == Kind.SERIAL:
        yield (replace(x, kind=Kind.PARALLEL),)
        if x.step == 1 and x.lower == Affine():
            yield (replace(x, kind=Kind.LANES, extent=1 << 20),)


def _stores(x: Store, around: tuple[str, ...], random: Random) -> Iterator[tuple[Node, ...]]:
    def place(load: Load) -> Load:
        known = [i for i, p in enumerate(load.index) if isinstance(p, Affine)]
        if not known:
            return load
        at = random.choice(known)
        p = load.index[at]
        assert isinstance(p, Affine)
        options = [p + 1, p - 1]
        used = sorted(names(p) & set(around))
        if used and around:
            old = random.choice(used)
            options += [substitute(p, {old: affine(0)}), substitute(p, {old: affine(random.choice(around))})]
        return replace(load, index=(*load.index[:at], random.choice(options), *load.index[at + 1:]))

    def some(e: Expr) -> Expr:
        hit = random.randrange(3)
        return map_loads(e, lambda load: place(load) if random.randrange(3) == hit else load)

    yield (replace(x, target=place(x.target)),)
    yield (replace(x, expr=some(x.expr)),)
    yield (replace(x, expr=map_loads(x.expr, place)),)
    yield (replace(x, reduce=None),)
    yield (x, x)
    yield ()
    if isinstance(x.expr, Apply) and len(x.expr.args) == 2:
        yield (replace(x, expr=replace(x.expr, args=x.expr.args[::-1])),)
    if x.lift:
        at = random.randrange(len(x.lift))
        yield (replace(x, lift=(*x.lift[:at], x.lift[at] + 1, *x.lift[at + 1:])),)


def reordered(given: LoopNest) -> Iterator[LoopNest]:
    """`given` with one of its loops backwards, or outside the one that it is alone in: all runs once, at another time."""
    loops = [x for x in walk(given.body) if isinstance(x, For) and x.kind == Kind.SERIAL]
    for loop in loops:
        if loop.step == 1 and _is_plain(loop.lower) and _is_plain(loop.upper):
            mirrored = loop.lower + loop.upper - 1 - affine(loop.index)
            yield _with(given, loop, replace(loop, body=at(loop.body, {loop.index: mirrored})))
        match loop.body:
            case (For(kind=Kind.SERIAL) as inner,) if loop.index not in names(inner.lower) | names(inner.upper):
                yield _with(given, loop, replace(inner, body=(replace(loop, body=inner.body),)))


def _is_plain(x: Affine) -> bool:
    return all(isinstance(a, str) for a, _ in x.terms)


def _with(given: LoopNest, old: For, new: For) -> LoopNest:
    def go(n: Node) -> Node:
        return new if n is old else rebuild(n, lambda body: tuple(map(go, body)))

    return replace(given, body=tuple(map(go, given.body)))
