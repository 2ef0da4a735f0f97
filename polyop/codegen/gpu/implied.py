"""LoopNest -> LoopNest for kernels with matrix units: bounds that follow from what else is asked there.

    for i in [0, min(16, S - i_o)) { for j in [0, min(8, S - j_o)) { if i_o + i - j_o - j >= 0 { .. } } }

Who asks for j <= i and i < S need not ask for j < S: a bound { c > 0 } goes where another one { a > 0 } and a test { t >= 0 } are
around all that is inside, and c - a - t is never negative.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from polyop.codegen.nested import nested
from polyop.ir.expr import Affine, affine, bounds, quasi
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Store, rebuild

_TILE = (Kind.THREADS, Kind.ROWS, Kind.ATOM)


def without_implied(nest: LoopNest, some: Container[str]) -> LoopNest:
    """`nest` without such bounds of loops over tiles, all of which hold one statement, which writes `some` buffer of these."""
    def go(n: Node) -> Node:
        chain, tests = _chain(n, some)
        return _without(n, chain, tests) if chain else rebuild(n, lambda body: tuple(map(go, body)))

    return replace(nest, body=tuple(map(go, nest.body)))


def _chain(n: Node, some: Container[str]) -> tuple[tuple[For, ...], tuple[Affine, ...]]:
    """The loops over a tile that stand directly in one another from `n`, and the tests before the one statement in them."""
    loops, inside = nested((n,), *_TILE)
    if not any(f.kind == Kind.ATOM for f in loops) or any(f.lower != Affine() for f in loops):
        return (), ()
    match inside:
        case (If(tests=tests, then=(Store(target=x),), other=()),) if x.source in some:
            return loops, tests
    return (), ()


def _without(n: Node, chain: Sequence[For], tests: Sequence[Affine]) -> Node:
    """The loops `chain`, of which `n` is the first one, without the bounds that others and `tests` imply."""
    inner = {f.index for f in chain}
    asked = [(f, b) for f in chain for b in bounds(f.upper) if b != affine(f.end)]
    gone: list[tuple[For, Affine]] = []
    for f, b in asked:
        others = [x for x in asked if x not in gone and x[0] is not f]
        if any(never_negative(b - affine(f.index) - (a - affine(g.index)) - t, inner) for g, a in others for t in tests):
            gone.append((f, b))

    def one(x: Node) -> Node:
        if not isinstance(x, For) or not any(x is f for f in chain):
            return x
        left = [b for b in bounds(x.upper) if (x, b) not in gone]
        return replace(x, upper=quasi("min", *left) if len(left) > 1 else left[0], body=tuple(map(one, x.body)))

    return one(n)


def never_negative(x: Affine, inner: set[str]) -> bool:
    """Whether `x` is a sum of loops that start at 0, and of nothing that may be less."""
    return x.const >= 0 and all(isinstance(a, str) and a in inner and f > 0 for a, f in x.terms)
