"""Symbolic intervals: the least and greatest value of an index expression while its indices run. No isl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyop.ir.expr import Affine, Quasi, affine, names, quasi, substitute


@dataclass(frozen=True, slots=True)
class Interval:
    """`lower <= index < upper`; both may use other indices."""

    lower: Affine
    upper: Affine


Box = Mapping[str, Interval]


def in_order(box: Box) -> tuple[str, ...]:
    """The indices of `box`, each after those that its bounds use; a circle is cut anywhere."""
    out: dict[str, None] = {}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in out or name in path:
            return
        for other in sorted((names(box[name].lower) | names(box[name].upper)) & box.keys()):
            visit(other, (*path, name))
        out[name] = None

    for name in box:
        visit(name, ())
    return tuple(out)


def least(x: Affine, box: Box) -> Affine:
    """A lower bound of `x` over `box` that uses sizes only; exact where no index occurs twice."""
    return _extreme(x, box, False)


def greatest(x: Affine, box: Box) -> Affine:
    """An upper bound of `x` over `box` that uses sizes only."""
    return _extreme(x, box, True)


def _extreme(x: Affine, box: Box, up: bool) -> Affine:
    for name in reversed(in_order(box)):
        if name in names(x):
            x = _without(x, name, box[name], up)
    return x


def _without(x: Affine, name: str, interval: Interval, up: bool) -> Affine:
    total = Affine(const=x.const)
    for atom, factor in x.terms:
        rising = (factor > 0) == up
        if isinstance(atom, Quasi):
            total = total + (_quasi(atom, name, interval, rising) if name in names(affine(atom)) else affine(atom)) * factor
        elif atom == name:
            total = total + (interval.upper - 1 if rising else interval.lower) * factor
        else:
            total = total + affine(atom) * factor
    return total


def _quasi(q: Quasi, name: str, interval: Interval, up: bool) -> Affine:
    if q.op == "mod":
        return q.args[1] - 1 if up else Affine()
    args = [_without(a, name, interval, up) if name in names(a) else a for a in q.args]
    return quasi(q.op, *args)


def at_least_zero(x: Affine, facts: Sequence[Affine] = ()) -> bool:
    """Whether `x >= 0` for all sizes (each >= 0) under `facts` (each >= 0); False may mean "not seen"."""
    return _plainly(x) or any(_plainly(x - f) for f in facts) or _by_cases(x, facts) or _by_products(x, facts)


def same(a: Affine, b: Affine, facts: Sequence[Affine] = ()) -> bool:
    """Whether `a == b` for all sizes under `facts`."""
    return a == b or (at_least_zero(a - b, facts) and at_least_zero(b - a, facts))


def _plainly(x: Affine) -> bool:
    """Every term is at least 0."""
    return (x.const >= 0 and all(_term(a, f) for a, f in x.terms)) or _with_mods(x)


def _term(atom: str | Quasi, factor: int) -> bool:
    if isinstance(atom, str):
        return factor > 0
    match atom.op:
        case "mod":
            return factor > 0
        case "div":
            return factor > 0 and _plainly(atom.args[0])
        case "min":
            return factor > 0 and all(map(_plainly, atom.args))
        case _:
            return factor > 0 and any(map(_plainly, atom.args))


def _with_mods(x: Affine) -> bool:
    """Bound what a remainder or a quotient can take away.

    x mod d <= d - 1          d * floor(a / d) <= a          floor(a / d) <= a, if a >= 0         d * floor(a / d) >= a - d + 1
    """
    for n, (atom, factor) in enumerate(x.terms):
        if isinstance(atom, Quasi) and atom.op in ("mod", "div"):
            rest = Affine(x.terms[:n] + x.terms[n + 1 :], x.const)
            d = atom.args[1].const
            if atom.op == "mod" and factor < 0 and _plainly(rest + factor * (d - 1)):
                return True
            if atom.op == "div" and factor < 0 and factor % d == 0 and _plainly(rest + atom.args[0] * (factor // d)):
                return True
            if atom.op == "div" and factor < 0 and _plainly(atom.args[0]) and _plainly(rest + atom.args[0] * (factor // d)):
                return True
            if atom.op == "div" and factor > 0 and factor % d == 0 and _plainly(rest + (atom.args[0] - (d - 1)) * (factor // d)):
                return True
    return False


def _by_products(x: Affine, facts: Sequence[Affine]) -> bool:
    """A quotient taken once is said without one, which a fact such as `H == 4 * G` may then decide.

    r + floor(a / d) >= 0    is    a + d r >= 0            r - floor(a / d) >= 0    is    d r + d - 1 - a >= 0
    """
    for n, (atom, factor) in enumerate(x.terms):
        if isinstance(atom, Quasi) and atom.op == "div" and abs(factor) == 1:
            rest = Affine(x.terms[:n] + x.terms[n + 1 :], x.const)
            a, d = atom.args[0], atom.args[1].const
            whole = a + rest * d if factor > 0 else rest * d + (d - 1) - a
            if any(_plainly(whole - f) for f in facts):
                return True
    return False


def _by_cases(x: Affine, facts: Sequence[Affine], depth: int = 0) -> bool:
    """A minimum or maximum is one of its operands: some or all of them must do."""
    if depth > 3:
        return False
    for n, (atom, factor) in enumerate(x.terms):
        if isinstance(atom, Quasi) and atom.op in ("min", "max") and len(atom.args) <= 4:
            rest = Affine(x.terms[:n] + x.terms[n + 1 :], x.const)
            every = (atom.op == "min") == (factor > 0)
            cases = (rest + a * factor for a in atom.args)
            holds = (_plainly(c) or any(_plainly(c - f) for f in facts) or _by_cases(c, facts, depth + 1) for c in cases)
            return all(holds) if every else any(holds)
    return False


def larger(a: Affine, b: Affine, facts: Sequence[Affine] = ()) -> Affine:
    """`max(a, b)`, decided where that can be seen."""
    if at_least_zero(a - b, facts):
        return a
    return b if at_least_zero(b - a, facts) else quasi("max", a, b)


def smaller(a: Affine, b: Affine, facts: Sequence[Affine] = ()) -> Affine:
    """`min(a, b)`, decided where that can be seen."""
    if at_least_zero(a - b, facts):
        return b
    return a if at_least_zero(b - a, facts) else quasi("min", a, b)


def solve(x: Affine, lower: Affine, upper: Affine, name: str, box: Box) -> tuple[Affine | None, Affine | None]:
    """The bounds of `name` such that `lower <= x < upper` whatever the other indices, all in `box`, are.

        f * i + r:   f > 0:   ceil((lower - min r) / f)  <=  i  <  floor((upper - 1 - max r) / f) + 1
        floor(y / d) + c:     d * (lower - c)  <=  y  <  d * (upper - c)

    A bound is None where `x` does not give it, as for a remainder.
    """
    factor = x.factor(name)
    rest = x - affine(name) * factor
    if factor and name not in names(rest):
        low, high = least(rest, box), greatest(rest, box)
        if factor > 0:
            return _ceil(lower - low, factor), quasi("div", upper - 1 - high, affine(factor)) + 1
        return _ceil(high - upper + 1, -factor), quasi("div", low - lower, affine(-factor)) + 1
    if len(x.terms) == 1 and isinstance(x.terms[0][0], Quasi) and x.terms[0][1] == 1 and x.terms[0][0].op == "div":
        inner, d = x.terms[0][0].args[0], x.terms[0][0].args[1].const
        return solve(inner, (lower - x.const) * d, (upper - x.const) * d, name, box)
    return None, None


def _ceil(x: Affine, d: int) -> Affine:
    return quasi("div", x + (d - 1), affine(d))


def rename(x: Affine, env: Mapping[str, str]) -> Affine:
    return substitute(x, {k: affine(n) for k, n in env.items()})
