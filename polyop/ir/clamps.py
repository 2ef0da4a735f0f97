"""Minima and maxima in positions: which there are, and a position with one of them decided."""

from __future__ import annotations

from math import gcd

from polyop.ir.expr import Affine, Quasi, affine, names, quasi


def innermost(p: Affine, index: str) -> Quasi | None:
    """A minimum or maximum in `p` that depends on `index` and has none such inside."""
    for atom, _ in p.terms:
        if isinstance(atom, Quasi) and index in names(affine(atom)):
            inner = next((q for q in (innermost(a, index) for a in atom.args) if q), None)
            if inner or atom.op in ("min", "max"):
                return inner or atom
    return None


def decided(p: Affine, clamp: Quasi, value: Affine) -> Affine:
    """`p` with `value` for `clamp`."""
    total = Affine(const=p.const)
    for atom, factor in p.terms:
        if atom == clamp:
            total = total + value * factor
        elif isinstance(atom, Quasi):
            total = total + quasi(atom.op, *(decided(a, clamp, value) for a in atom.args)) * factor
        else:
            total = total + affine(atom) * factor
    return total


def cases(clamp: Quasi) -> tuple[tuple[Affine, ...], Affine, Affine]:
    """(what must be >= 0 for the first argument of `clamp` to be its value, that argument, its value otherwise)."""
    first, *others = clamp.args
    return tuple(lowest_terms(first - o if clamp.op == "max" else o - first) for o in others), first, quasi(clamp.op, *others)


def lowest_terms(x: Affine) -> Affine:
    """What is >= 0 just if `x` is: 2 c - 5 >= 0 is c - 3 >= 0."""
    by = gcd(*(f for _, f in x.terms)) or 1
    return Affine(tuple((a, f // by) for a, f in x.terms), x.const // by)
