"""Statements that read the same elements at the same points of their loops, so that one loop reads these once for both.

    s[r] += x[r, i]    t[q] max= x[q, j]       r is q and i is j:  both read x[r, i]
    Y[2*i] = A[i]      Y[2*j + 1] = B[j]       i is j:             both write the same lines of memory
"""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.expr import Affine, Load, affine, names, substitute
from polyop.poly.scop import MAP, Stmt


def in_step(s: Stmt, other: Stmt) -> dict[str, str] | None:
    """iterator of `s` -> that of `other`, one to one, such that both read one element, which has all of them in its place, and
    write at positions that go on alike, or such that they write neighbours; None, if there are no such.

    The order of dimensions is then the same for both, whatever the strides are.
    """
    if s.kind != other.kind or len(s.dims) != len(other.dims) or (s.reduce != other.reduce and None in (s.reduce, other.reduce)):
        return None
    for x in s.reads:
        for y in other.reads:
            found = _same_place(x, s, y, other)
            if found is not None and _go_alike(s.target, other.target, found):
                return found
    return _same_place(s.target, s, other.target, other, apart=True) if s.kind == MAP else None


def is_between(s: Stmt, other: Stmt) -> bool:
    """Whether one loop of `s` and `other` writes neighbours in the last dimension, each in steps: Y[n, 2*i] and Y[n, 2*i + 1]."""
    found = _same_place(s.target, s, other.target, other, apart=True) if s.kind == other.kind == MAP else None
    return found is not None and s.target.index[:-1] == tuple(
        substitute(p, {j: affine(i) for i, j in found.items()}) for p in other.target.index[:-1] if isinstance(p, Affine))


def _same_place(x: Load, s: Stmt, y: Load, other: Stmt, apart: bool = False) -> dict[str, str] | None:
    """How iterators correspond, if `x` and `y` are of one element then, and have all of them.

    apart   whether they are of neighbours instead, which lie less than one step of the iterators apart in one dimension
    """
    if x.source != y.source:
        return None
    pairs = [(p, q) for p, q in zip(x.index, y.index, strict=True) if isinstance(p, Affine) and isinstance(q, Affine)]
    if len(pairs) != len(x.index):
        return None
    found: dict[str, str] = {}
    for p, q in pairs:
        for i in sorted(names(p) & set(s.dims)):
            alike = [j for j in names(q) & set(other.dims) if q.factor(j) == p.factor(i)]
            if len(alike) != 1 or found.setdefault(i, alike[0]) != alike[0]:
                return None
    if set(found) != set(s.dims) or set(found.values()) != set(other.dims):
        return None
    env = {i: affine(j) for i, j in found.items()}
    differ = [(q, d) for p, q in pairs if (d := substitute(p, env) - q) != Affine()]
    if not apart:
        return None if differ else found
    return found if len(differ) == 1 and _is_within_step(*differ[0], frozenset(other.dims)) else None


def _is_within_step(p: Affine, distance: Affine, dims: frozenset[str]) -> bool:
    steps = [abs(p.factor(i)) for i in names(p) & dims]
    return distance.is_constant and len(steps) == 1 and abs(distance.const) < steps[0]


def _go_alike(x: Load, y: Load, found: Mapping[str, str]) -> bool:
    """Whether the positions of `x` and `y` differ by what no iterator has to do with."""
    env = {i: affine(j) for i, j in found.items()}
    return len(x.index) == len(y.index) and all(
        isinstance(p, Affine) and isinstance(q, Affine) and not names(substitute(p, env) - q) & set(found.values())
        for p, q in zip(x.index, y.index, strict=True))
