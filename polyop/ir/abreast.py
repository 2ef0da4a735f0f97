"""Several kernels as one: a parallel loop over them, in which each iteration carries out one.

    for r in [0, R) (parallel) { A }   for q in [0, Q) (parallel) { B }        becomes

    for part in [0, 2) (parallel) {
      if part >= 0 and 0 - part >= 0 { for r in [0, R) (parallel) { A } }
      if part - 1 >= 0 and 1 - part >= 0 { for q in [0, Q) (parallel) { B } }
    }

So what must hold of them, that they do not need each other, is what must hold of any parallel loop.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyop.ir.expr import Affine, affine
from polyop.ir.loops import For, If, Kind, Node

Body = tuple[Node, ...]


def abreast(parts: Sequence[Body], index: str) -> For:
    """One loop over `parts`, which are kernels each; `index` is a name of its own."""
    body = tuple(If(_tests(index, k), part) for k, part in enumerate(parts))
    return For(index, Affine(), affine(len(parts)), body, kind=Kind.PARALLEL)


def parts(n: Node) -> tuple[Body, ...]:
    """The kernels of which `n` is a loop; none, if it is no such loop."""
    if not isinstance(n, For) or n.kind != Kind.PARALLEL or n.lower != Affine() or n.upper != affine(len(n.body)) or n.step != 1:
        return ()
    found = [x.then for k, x in enumerate(n.body) if isinstance(x, If) and not x.other and x.tests == _tests(n.index, k)]
    return tuple(found) if len(found) == len(n.body) else ()


def _tests(index: str, k: int) -> tuple[Affine, ...]:
    """{ index = k }"""
    return affine(index) - k, affine(k) - affine(index)
