"""Small proofs about index expressions, from the loops and tests around."""

from __future__ import annotations

from polyop.ir.expr import Affine, affine, bounds, quasi, substitute
from polyop.ir.loops import For


def runs_once(n: For) -> bool:
    """Whether the loop `n` has one iteration at most: from s floor(u / s) to u in steps of s."""
    s = n.step
    return any(quasi("div", u, affine(s)) * s in bounds(n.lower, "max") for u in bounds(n.upper))


def follows(x: Affine, test: Affine) -> bool:
    """Whether x >= 0 follows from test >= 0, by a constant between them."""
    rest = x - test
    return rest.is_constant and rest.const >= 0


def is_positive(x: Affine, loops: tuple[For, ...], tests: tuple[Affine, ...], depth: int = 3) -> bool:
    """Whether x >= 1 follows: every bound of a minimum does, by a test t >= 0, by i <= upper - 1 or i >= lower of a loop."""
    return all(_one(b, loops, tests, depth) for b in bounds(x))


def _one(x: Affine, loops: tuple[For, ...], tests: tuple[Affine, ...], depth: int) -> bool:
    if x.is_constant:
        return x.const >= 1
    for t in tests:
        rest = x - t
        if rest.is_constant and rest.const >= 1:
            return True
    if depth == 0:
        return False
    for loop in reversed(loops):
        factor = x.factor(loop.index)
        if factor < 0:
            for upper in bounds(loop.upper):
                if _one(substitute(x, {loop.index: upper - 1}), loops, tests, depth - 1):
                    return True
        elif factor > 0:
            for lower in bounds(loop.lower, "max"):
                if _one(substitute(x, {loop.index: lower}), loops, tests, depth - 1):
                    return True
    return False
