"""Functions of registers that a loop does not write are computed once, before it.

    for c { Y[c] = X[c] - top - log(total) }        log(total) stands before the loop

Only functions that take many instructions: for four vectors of a row the logarithm took as long as for one of its elements.
"""

from __future__ import annotations

from collections.abc import Iterator

from polyop.codegen.llvm.expressions import value_of
from polyop.codegen.llvm.state import State
from polyop.codegen.vecmath.table import INSTRUCTIONS
from polyop.ir.expr import Apply, Const, Expr, Load, children, walk
from polyop.ir.loops import For, LoopNest, Space, has_loop, stores


def compute_ahead(s: State, n: For) -> None:
    """Write down what the innermost loop `n` need not compute; it is good until the loop ends."""
    if s.axes:
        return
    for e in steady(s.nest, n):
        if e not in s.steady:
            s.steady = {**s.steady, e: value_of(s, e, ()).at({}, 0)}


def steady(nest: LoopNest, n: For) -> tuple[Expr, ...]:
    """The calls of such functions in the innermost loop `n`, each once."""
    if has_loop(n.body):
        return ()
    written = {x.target.source for x in stores(n.body)}

    def found(e: Expr) -> Iterator[Expr]:
        if isinstance(e, Apply) and e.fn in INSTRUCTIONS and _is_steady(nest, e, written):
            yield e
            return
        for x in children(e):
            yield from found(x)
    return tuple(dict.fromkeys(e for x in stores(n.body) for e in found(x.expr)))


def _is_steady(nest: LoopNest, e: Expr, written: set[str]) -> bool:
    """Whether `e` is made of registers of one element and constants alone."""
    parts = tuple(walk(e))
    reads = [x for x in parts if isinstance(x, Load)]
    return bool(reads) and all(isinstance(x, Apply | Const | Load) for x in parts) and all(
        not x.index and not x.guard and x.source not in written and nest.buffer(x.source).space == Space.REG for x in reads)
