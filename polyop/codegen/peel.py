"""Cutting a loop where its body changes: full tiles first, then what is left over.

    for c in [0, C) by 64 { if C - c - 64 >= 0 { F } else { E } }

becomes

    for c in [0, C - 63) by 64 { F }
    for c in [64 * floor(C / 64), C) by 64 { E }

The test falls as `c` grows, so it holds up to one point and never again. The tiles then run without looking, and what the
left-over needs to know (masks, counts) is not computed in every iteration.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Affine, affine, bounds, names, quasi
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, rebuild


def peel(nest: LoopNest) -> LoopNest:
    """`nest` with every loop cut whose body is one test that holds from the start up to some iteration."""
    return replace(nest, body=_body(nest.body))


def _body(body: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(x for n in body for x in _cut(rebuild(n, _body)))


def _cut(n: Node) -> tuple[Node, ...]:
    if not isinstance(n, For) or n.kind in LOCKSTEP or len(n.body) != 1 or not isinstance(n.body[0], If):
        return (n,)
    test = n.body[0]
    if len(test.tests) != 1 or test.tests[0].factor(n.index) != -1 or not test.other:
        return (n,)
    last = test.tests[0] + affine(n.index)  # the test holds while index <= last
    if n.index in names(last):
        return (n,)
    full = replace(n, upper=quasi("min", *bounds(n.upper), last + 1), body=test.then)
    rest = replace(n, lower=_first_after(n, last), body=test.other, kind=Kind.SERIAL)
    return full, rest


def _first_after(n: For, last: Affine) -> Affine:
    """The first value of the loop's index above `last`: lower + step * max(0, ceil((last + 1 - lower) / step))."""
    steps = quasi("div", last + 1 - n.lower + (n.step - 1), affine(n.step))
    return quasi("max", n.lower, n.lower + steps * n.step)

