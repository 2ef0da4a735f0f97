"""What an iterator is to its statement, from the positions of its accesses alone."""

from __future__ import annotations

from polyop.ir.expr import Affine, names
from polyop.poly.edges import digits
from polyop.poly.scop import MAP, UPDATE, Stmt

BLOCK = 64
"""Elements of a block that is worth a loop around several statements, and is no window that slides along."""


def written(s: Stmt) -> frozenset[str]:
    """The iterators that the target of `s` is indexed by, each the only one in a position.

    Where something is added up in `Y[K + i]` it must stand alone: an init runs over the positions themselves. What is assigned at
    `Y[32*b + p]` is known by both, if p in 0:32.
    """
    found = [names(p) & set(s.dims) for p in s.target.index if isinstance(p, Affine) and (s.kind == MAP or p.name)]
    both = [digits(p, s.ranges) for p in s.target.index if isinstance(p, Affine) and s.kind == MAP]
    return frozenset(i for own in found if len(own) == 1 for i in own).union(*both)


def blocks_of(p: Affine, i: str, s: Stmt) -> frozenset[str]:
    """The iterators of `s` that count blocks in the position `p`, of which `i` counts the elements: `b` of `4096*b + i`."""
    extent = next((r.upper for r in s.ranges if r.index == i and r.lower == Affine() and r.upper.is_constant), None)
    if extent is None or p.factor(i) != 1 or extent.const < BLOCK:
        return frozenset()
    return frozenset(b for b in s.dims if p.factor(b) == extent.const)


def shares_of(s: Stmt) -> frozenset[str]:
    """The iterators of `s` that count shares of a sum, which are made so that several threads have work."""
    summed = [i for i in s.dims if i not in written(s)] if s.kind == UPDATE else []
    return frozenset(b for x in s.reads for p in x.index if isinstance(p, Affine) for i in summed for b in blocks_of(p, i, s))


def is_contraction(s: Stmt, fixed: frozenset[str]) -> bool:
    """Whether `s` reduces over a product with reuse both ways: two loads, each with a kept iterator that the other lacks."""
    if s.kind != UPDATE or any(not isinstance(p, Affine) or (p.name is None and names(p) & set(s.dims)) for p in s.target.index):
        return False
    kept = written(s) - fixed
    if not [i for i in s.dims if i not in written(s) and i not in fixed]:
        return False
    over = []
    for load in s.reads:
        if any(not isinstance(p, Affine) for p in load.index):
            return False
        over.append(frozenset[str]().union(*(names(p) for p in load.index if isinstance(p, Affine))) & kept)
    return any(a - b and b - a for a in over for b in over)
