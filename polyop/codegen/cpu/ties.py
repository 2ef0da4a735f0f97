"""Tiles that a condition between loops cuts: { j <= i } leaves out whole tiles, and asks nothing in most of the others.

    for v (lanes 64) { for p (rows 6) { if i + p - j - v >= 0 { S } } }

becomes

    if i + 5 - j >= 0 {                                          some point of the tile is left
        if i - j - 63 >= 0 { for v { for p { S } } }             all of them are
        else { for v { for p { if i + p - j - v >= 0 { S } } } } }

A serial loop inside the tile whose index is in the condition is cut in two in the same way, where the condition begins or
ends to hold for all rows and lanes, and ends where it holds for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.expr import Affine, affine, bounds, names, quasi, substitute
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Store, rebuild, walk

Body = tuple[Node, ...]


def untie(nest: LoopNest) -> LoopNest:
    """`nest` with the conditions on rows and lanes asked once for a tile, or once for a loop in it, where that decides."""
    def go(body: Body) -> Body:
        return tuple(_tile(n) if isinstance(n, For) and n.kind in LOCKSTEP else rebuild(n, go) for n in body)

    return replace(nest, body=go(nest.body))


def is_cut_across(n: Node) -> bool:
    """Whether some test in the tile `n` may come out differently in its rows and lanes.

    But for windows, which leave out some lanes, or some rows, in some steps of a loop, { 0 <= q + v - t }: the tile is as any
    other then.
    """
    steps, extents = {f.index for f in _loops(n) if f.kind not in LOCKSTEP}, _extents(n)
    return any(not names(t) & steps or len(names(t) & extents.keys()) > 1 for t in _ties(n, extents))


def leaves_out_rows(n: Node) -> bool:
    """Whether some test in the tile `n` may come out differently in its rows."""
    rows = {f.index for f in _loops(n) if f.kind == Kind.ROWS}
    return any(names(t) & rows for t in _ties(n, _extents(n)))


def _tile(n: For) -> Node:
    extents = _extents(n)
    if not _ties(n, extents):
        return n
    n = replace(n, body=_cut_loops(n.body, extents))
    inside = {f.index for f in (n, *walk(n.body)) if isinstance(f, For)}
    asked = tuple(t for t in _ties(n, extents) if not names(t) & (inside - extents.keys()))
    if not asked:
        return n
    least = tuple(dict.fromkeys(_extreme(t, extents, False) for t in asked))
    plain = _without(n, asked)
    out: Node = If(least, (plain,), (n,))
    needed = [t for t in asked if _always(n, t)]
    return If(tuple(dict.fromkeys(_extreme(t, extents, True) for t in needed)), (out,), ()) if needed else out


def _extents(n: Node) -> dict[str, int]:
    """The lock-step loops of the tile `n`: index -> number of copies."""
    return {f.index: f.extent for f in _loops(n) if f.kind in LOCKSTEP and f.extent}


def _loops(n: Node) -> list[For]:
    """The loop `n`, if it is one, and all inside it."""
    return [f for f in (n, *walk(n.body)) if isinstance(f, For)] if isinstance(n, For) else []


def _ties(n: Node, extents: Mapping[str, int]) -> tuple[Affine, ...]:
    """The tests in `n` that depend on the lock-step loops `extents`, and on nothing but sums."""
    found = [t for x in (n, *(walk(n.body) if isinstance(n, For) else ())) if isinstance(x, If) and not x.other for t in x.tests]
    return tuple(dict.fromkeys(t for t in found if names(t) & extents.keys() and all(isinstance(a, str) for a, _ in t.terms)))


def _extreme(t: Affine, extents: Mapping[str, int], greatest: bool) -> Affine:
    """A bound of `t` over all rows and lanes that there may be: the greatest or the least value."""
    return substitute(t, {x: affine(n - 1 if (t.factor(x) > 0) == greatest else 0) for x, n in extents.items() if t.factor(x)})


def _without(n: Node, known: tuple[Affine, ...]) -> Node:
    """`n` where the tests `known` hold."""
    def go(body: Body) -> Body:
        out: list[Node] = []
        for x in body:
            if isinstance(x, If) and not x.other and set(x.tests) & set(known):
                rest = tuple(t for t in x.tests if t not in known)
                then = go(x.then)
                out += [If(rest, then, ())] if rest else then
            else:
                out.append(rebuild(x, go))
        return tuple(out)

    return rebuild(n, go)


def _always(n: Node, t: Affine) -> bool:
    """Whether every store in `n` stands under the test `t`."""
    match n:
        case Store():
            return False
        case If(tests=tests, then=then, other=other):
            return (t in tests or all(_always(x, t) for x in then)) and all(_always(x, t) for x in other)
        case For(body=body):
            return all(_always(x, t) for x in body)
    return True


def _cut_loops(body: Body, extents: Mapping[str, int]) -> Body:
    out: list[Node] = []
    for n in body:
        if isinstance(n, If):
            out.append(If(n.tests, _cut_loops(n.then, extents), _cut_loops(n.other, extents)))
        elif isinstance(n, For) and n.kind == Kind.SERIAL and n.step == 1:
            out += _cut(replace(n, body=_cut_loops(n.body, extents)), extents)
        else:
            out.append(n)
    return tuple(out)


def _cut(n: For, extents: Mapping[str, int]) -> Body:
    """The serial loop `n` as loops in which a test on its index holds for all rows and lanes, or has to be asked."""
    ties = _turning(n, extents)
    if not ties:
        return (n,)
    t, k = ties[0], affine(n.index)
    always = _always(n, t)
    inside = _without(n, (t,))
    assert isinstance(inside, For)
    least, greatest = (_extreme(t, extents, which) for which in (False, True))
    if t.factor(n.index) < 0:  # { k <= least + k }: first it holds for all, then for some
        turn = least + k + 1
        some = quasi("min", *bounds(n.upper), greatest + k + 1) if always else n.upper
        first = replace(inside, upper=quasi("min", *bounds(n.upper), turn))
        second = replace(n, lower=quasi("max", n.lower, turn), upper=some)
        return (*_cut(first, extents), *_rest(second, t, extents))
    turn = k - least                                       # { k >= turn }: at last it holds for all
    some = quasi("max", n.lower, k - greatest) if always else n.lower
    first = replace(n, lower=some, upper=quasi("min", *bounds(n.upper), turn))
    second = replace(inside, lower=quasi("max", n.lower, turn))
    return (*_rest(first, t, extents), *_cut(second, extents))


def _turning(n: For, extents: Mapping[str, int]) -> tuple[Affine, ...]:
    """The tests that begin or end to hold at a place of the loop `n` that is known before it, no loop inside is in them."""
    inside = {x.index for x in walk(n.body) if isinstance(x, For)} - extents.keys()
    return tuple(t for t in _ties(n, extents) if abs(t.factor(n.index)) == 1 and not names(t) & inside)


def _rest(n: For, done: Affine, extents: Mapping[str, int]) -> Body:
    """What is left of a loop in which `done` stays a test: shortened by the others, as far as none is left of some rows."""
    for t in _turning(n, extents):
        if t != done and _always(n, t):
            end = _extreme(t, extents, True)
            k = affine(n.index)
            if t.factor(n.index) < 0:
                n = replace(n, upper=quasi("min", *bounds(n.upper), end + k + 1))
            else:
                n = replace(n, lower=quasi("max", n.lower, k - end))
    return (n,)
