"""Cutting a loop where its body changes: full tiles first, then what is left over; the border, the interior, the border.

    for c in [0, C) by 64 { if C - c - 64 >= 0 { F } else { E } }

becomes

    for c in [0, C - 63) by 64 { F }
    for c in [64 * floor(C / 64), C) by 64 { E }

The test falls as `c` grows, so it holds up to one point and never again. One that rises holds from one point on, and several
together hold in between. The tiles then run without looking, and what the rest needs to know (masks, counts) is not computed
in every iteration.

A loop inside rows or lanes has one start and one end for all of them: what a test says of each is for `ties.py`. One that holds
other loops there stays whole: asking in each step of a window costs nothing beside them, and its border would be there twice.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from polyop.ir.expr import Affine, affine, bounds, names, quasi
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, has_loop, rebuild

Body = tuple[Node, ...]


def peel(nest: LoopNest) -> LoopNest:
    """`nest` with every loop cut whose body is one test that holds from the start up to some iteration."""
    return replace(nest, body=_body(nest.body, frozenset()))


def _body(body: Body, abreast: frozenset[str]) -> Body:
    """`body` inside the rows and lanes `abreast`."""
    out: list[Node] = []
    for n in body:
        inside = abreast | {n.index} if isinstance(n, For) and n.kind in LOCKSTEP else abreast
        out += _cut(rebuild(n, partial(_body, abreast=inside)), abreast)
    return tuple(out)


def _cut(n: Node, abreast: frozenset[str]) -> Body:
    if not isinstance(n, For) or n.kind in LOCKSTEP or len(n.body) != 1 or not isinstance(n.body[0], If):
        return (n,)
    test = n.body[0]
    if abreast and has_loop((*test.then, *test.other)):
        return (n,)
    first = [affine(n.index) - t for t in test.tests if t.factor(n.index) == 1]  # the tests hold while first <= index <= last
    last = [affine(n.index) + t for t in test.tests if t.factor(n.index) == -1]
    own = {n.index, *abreast}
    if len(first) + len(last) != len(test.tests) or not test.other or any(names(x) & own for x in (*first, *last)):
        return (n,)
    start = _reached(n, *first) if first else n.lower
    before = replace(n, upper=quasi("min", *bounds(n.upper), start), body=test.other, kind=Kind.SERIAL)
    inside = replace(n, lower=start, upper=quasi("min", *bounds(n.upper), *(x + 1 for x in last)), body=test.then)
    after = _reached(n, quasi("min", *last) + 1) if last else n.upper
    rest = replace(n, lower=quasi("max", start, after) if first else after, body=test.other, kind=Kind.SERIAL)
    return (*((before,) if first else ()), *_cut(inside, abreast), *((rest,) if last else ()))


def _reached(n: For, *least: Affine) -> Affine:
    """The first value of the loop's index that is all of `least` or more: lower + step * max(0, ceil((least - lower) / step))."""
    steps = quasi("div", quasi("max", *least) - n.lower + (n.step - 1), affine(n.step))
    return quasi("max", n.lower, n.lower + steps * n.step)
