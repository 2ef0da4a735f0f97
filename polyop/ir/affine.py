"""Index expressions: sums of atoms with integer factors.

An atom is a name (iterator or size) or a `Quasi`, which is a floor division or remainder by a constant, or a minimum or maximum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from polyop.ir.errors import InternalError


@dataclass(frozen=True, slots=True)
class Quasi:
    """`op` of `args`: "min", "max", "div" (floor) or "mod" (sign of the divisor); div and mod by a constant > 0."""

    op: str
    args: tuple[Affine, ...]

    def __post_init__(self) -> None:
        if self.op not in ("min", "max", "div", "mod"):
            raise InternalError(f"no quasi-affine operator {self.op}")
        if self.op in ("div", "mod") and (self.args[1].terms or self.args[1].const < 1):
            raise InternalError(f"{self.op} by {self.args[1]}; expected a positive constant")

    def __str__(self) -> str:
        """In isl's notation, which is also polyop's apart from floor and mod."""
        a = [str(x) for x in self.args]
        match self.op:
            case "div":
                return f"floor(({a[0]})/{a[1]})"
            case "mod":
                return f"(({a[0]}) mod {a[1]})"
        return f"{self.op}({', '.join(a)})"


Atom = str | Quasi


@dataclass(frozen=True, slots=True)
class Affine:
    """`const + sum(factor * atom)`; terms are sorted and have no zero factor, so equal sums are equal values."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.const + other)
        if not self.terms:
            return Affine(other.terms, self.const + other.const)
        return _plus(self, other, 1)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        return Affine(tuple((a, f * factor) for a, f in self.terms), self.const * factor) if factor else Affine()

    def __sub__(self, other: Affine | int) -> Affine:
        return Affine(self.terms, self.const - other) if isinstance(other, int) else _plus(self, other, -1)

    def __str__(self) -> str:
        parts = [f"{'' if f == 1 else '-' if f == -1 else f'{f}*'}{a}" for a, f in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def name(self) -> str | None:
        """The name, if the whole is one name alone."""
        if len(self.terms) == 1 and not self.const and self.terms[0][1] == 1 and isinstance(self.terms[0][0], str):
            return self.terms[0][0]
        return None

    def factor(self, name: str) -> int:
        """The factor of `name` outside any Quasi."""
        return dict(self.terms).get(name, 0)


def _plus(x: Affine, y: Affine, sign: int) -> Affine:
    """`x + y`, or `x - y` where the sign is -1."""
    if not y.terms:
        return Affine(x.terms, x.const + sign * y.const)
    total = dict(x.terms)
    for atom, factor in y.terms:
        total[atom] = total.get(atom, 0) + sign * factor
    return _sum(total, x.const + sign * y.const)


def _sum(factors: Mapping[Atom, int], const: int) -> Affine:
    """The sum with these factors, some of which may be 0."""
    return Affine(tuple(sorted([t for t in factors.items() if t[1]], key=_place)), const)


def _place(term: tuple[Atom, int]) -> str:
    """By what terms are sorted."""
    return str(term[0])


def affine(x: Affine | Atom | int) -> Affine:
    return x if isinstance(x, Affine) else Affine(((x, 1),)) if isinstance(x, Quasi) else _alone(x)


@lru_cache(maxsize=1 << 12)
def _alone(x: str | int) -> Affine:
    """A name or a number, which are asked for by the thousand and are always the same few."""
    return Affine(const=x) if isinstance(x, int) else Affine(((x, 1),))


def quasi(op: str, *args: Affine) -> Affine:
    """`op(args)`, simplified where that needs no knowledge of the names."""
    if all(a.is_constant for a in args):
        return Affine(const=_FOLD[op]([a.const for a in args]))
    if op in ("min", "max"):
        flat = [b for a in args for b in _operands(op, a)]
        unique = tuple(dict.fromkeys(flat))
        best: dict[tuple[tuple[Atom, int], ...], int] = {}
        for a in unique:  # of two that differ by a constant one never counts
            best[a.terms] = (min if op == "min" else max)(a.const, best.get(a.terms, a.const))
        unique = tuple(Affine(t, c) for t, c in best.items())
        return unique[0] if len(unique) == 1 else affine(Quasi(op, unique))
    x, d = args[0], args[1].const
    if d == 1:
        return x if op == "div" else Affine()
    whole = Affine(tuple((a, f) for a, f in x.terms if f % d == 0), x.const // d * d)
    rest = x - whole
    if op == "div":
        out = Affine(tuple((a, f // d) for a, f in whole.terms), whole.const // d)
        if len(rest.terms) == 1 and rest.terms[0][1] == 1 and isinstance(inner := rest.terms[0][0], Quasi) and inner.op == "div":
            by = inner.args[1].const  # floor((floor(x/4) + 1)/8) = floor((x + 4)/32)
            return out + quasi("div", inner.args[0] + rest.const * by, affine(by * d))
        return out if not rest.terms else out + affine(Quasi("div", (rest, args[1])))
    return rest if not rest.terms else affine(Quasi("mod", (rest, args[1])))


_FOLD: dict[str, Callable[[list[int]], int]] = {
    "min": min, "max": max, "div": lambda a: a[0] // a[1], "mod": lambda a: a[0] % a[1],
}


def _operands(op: str, x: Affine) -> tuple[Affine, ...]:
    if len(x.terms) == 1 and x.terms[0][1] == 1:
        atom = x.terms[0][0]
        if isinstance(atom, Quasi) and atom.op == op:
            return tuple(a + x.const for a in atom.args)
    return (x,)


def bounds(upper: Affine, op: str = "min") -> tuple[Affine, ...]:
    """The expressions of which `upper` is the smallest (`op` "min") or greatest ("max")."""
    return _operands(op, upper)


def substitute(x: Affine, env: Mapping[str, Affine]) -> Affine:
    """`x` with names replaced."""
    total: dict[Atom, int] = {}
    const, is_same = x.const, True
    for atom, factor in x.terms:
        new = quasi(atom.op, *(substitute(a, env) for a in atom.args)) if isinstance(atom, Quasi) else env.get(atom)
        if new is None:
            total[atom] = total.get(atom, 0) + factor
            continue
        is_same = False
        const += new.const * factor
        for a, f in new.terms:
            total[a] = total.get(a, 0) + f * factor
    return x if is_same else _sum(total, const)


def names(x: Affine) -> frozenset[str]:
    """The iterators and sizes that occur in `x`."""
    if len(x.terms) == 1 and isinstance(x.terms[0][0], str):
        return frozenset((x.terms[0][0],))  # as most have
    found: set[str] = set()
    add_names(x, found)
    return frozenset(found)


def add_names(x: Affine, found: set[str]) -> None:
    """The same, added to those that are `found`."""
    for atom, _ in x.terms:
        if isinstance(atom, str):
            found.add(atom)
        else:
            for a in atom.args:
                add_names(a, found)


def settled_by(extents: Iterable[Affine]) -> frozenset[str]:
    """The sizes that the values of `extents` leave no choice: C and K of (C, 2*K + C), but neither of (C + K), nor K of (K/2)."""
    known, left = set[str](), list(extents)
    while True:
        unknown = [{n for n in names(e) if n not in known} for e in left]
        found = {n for e, u in zip(left, unknown, strict=True) for n in u if len(u) == 1 and e.factor(n) and _is_plain(e, n)}
        if not found:
            return frozenset(known)
        known |= found


def _is_plain(e: Affine, name: str) -> bool:
    """Whether `name` stands in no quotient, remainder, minimum or maximum in `e`."""
    return all(isinstance(a, str) or name not in frozenset[str]().union(*map(names, a.args)) for a, _ in e.terms)


def is_count(x: Affine) -> bool:
    """Whether `x` is clearly never negative, since none of its names is."""
    return x.const >= 0 and all(f > 0 and (isinstance(a, str) or all(map(is_count, a.args))) for a, f in x.terms)


def evaluate(x: Affine, env: Mapping[str, int]) -> int:
    """The value of `x` where every name has a value."""
    total = x.const
    for atom, factor in x.terms:
        if isinstance(atom, str):
            total += env[atom] * factor
            continue
        a = [evaluate(arg, env) for arg in atom.args]
        value = a[0] // a[1] if atom.op == "div" else a[0] % a[1] if atom.op == "mod" else min(a) if atom.op == "min" else max(a)
        total += value * factor
    return total


def volume(extents: Iterable[Affine], env: Mapping[str, int]) -> int:
    """How many points a box of these extents has, where every name has a value."""
    total = 1
    for e in extents:
        total *= evaluate(e, env)
    return total
