"""Statements that read the same elements at the same points of their loops, so that one loop reads these once for both.

    s[r] += x[r, i]    t[q] max= x[q, j]       r is q and i is j:  both read x[r, i]
"""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.expr import Affine, Load, affine, names, substitute
from polyop.poly.scop import Stmt


def in_step(s: Stmt, other: Stmt) -> dict[str, str] | None:
    """iterator of `s` -> that of `other`, one to one, such that both read one element, which has all of them in its place, and
    write at positions that go on alike; None, if there are no such.

    The order of dimensions is then the same for both, whatever the strides are.
    """
    if s.kind != other.kind or len(s.dims) != len(other.dims) or (s.reduce != other.reduce and None in (s.reduce, other.reduce)):
        return None
    for x in s.reads:
        for y in other.reads:
            found = _same_place(x, s, y, other)
            if found is not None and _go_alike(s.target, other.target, found):
                return found
    return None


def _same_place(x: Load, s: Stmt, y: Load, other: Stmt) -> dict[str, str] | None:
    """How iterators correspond, if `x` and `y` are of one element then, and have all of them."""
    if x.source != y.source:
        return None
    pairs = [(p, q) for p, q in zip(x.index, y.index, strict=True) if isinstance(p, Affine) and isinstance(q, Affine)]
    if len(pairs) != len(x.index):
        return None
    found: dict[str, str] = {}
    for p, q in pairs:
        for i in names(p) & set(s.dims):
            alike = [j for j in names(q) & set(other.dims) if q.factor(j) == p.factor(i)]
            if len(alike) != 1 or found.setdefault(i, alike[0]) != alike[0]:
                return None
    if set(found) != set(s.dims) or set(found.values()) != set(other.dims):
        return None
    env = {i: affine(j) for i, j in found.items()}
    return found if all(substitute(p, env) == q for p, q in pairs) else None


def _go_alike(x: Load, y: Load, found: Mapping[str, str]) -> bool:
    """Whether the positions of `x` and `y` differ by what no iterator has to do with."""
    env = {i: affine(j) for i, j in found.items()}
    return len(x.index) == len(y.index) and all(
        isinstance(p, Affine) and isinstance(q, Affine) and not names(substitute(p, env) - q) & set(found.values())
        for p, q in zip(x.index, y.index, strict=True))
