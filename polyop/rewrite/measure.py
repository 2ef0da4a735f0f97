"""How deep and how costly expressions are: what decides whether computing one again is better than keeping it."""

from __future__ import annotations

from polyop.ir.expr import Apply, Expr, children, walk
from polyop.ir.op import Op
from polyop.ir.scalars import BINARY_FLOAT, UNARY_FLOAT

DEEP = 100
"""Levels from which on a walk by recursion needs room; the language's own limit for brackets."""

_DEAR = frozenset((*UNARY_FLOAT, *BINARY_FLOAT, "div", "mod"))


def cost(e: Expr) -> int:
    """About how many additions `e` costs; reading an element is free."""
    return sum(10 if x.fn in _DEAR else 1 for x in walk(e) if isinstance(x, Apply))


def depth(e: Expr) -> int:
    """Levels of `e`; a leaf has 1."""
    deepest, stack = 0, [(e, 1)]
    while stack:
        top, level = stack.pop()
        deepest = max(deepest, level)
        stack += [(c, level + 1) for c in children(top)]
    return deepest


def is_deep(op: Op) -> bool:
    """Whether some expression of `op` is too deep for recursion on an ordinary stack."""
    return any(depth(s.expr) > DEEP for s in op.steps)
