"""Affine -> C text. Indices are of the type their names have; divisions that C rounds otherwise are `pop_index_*` calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyop.codegen.gpu.inside import below
from polyop.ir.expr import Affine, Quasi, affine, bounds
from polyop.ir.loops import For

ATOM, UNARY, CHOICE = 100, 15, 3
"""C's precedence of names and calls, of signs and casts, and of `? :`."""


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of C with the precedence of its outermost operator."""

    c: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text as an operand that must bind at least as strongly as `level`."""
        return self.c if self.level >= level else f"({self.c})"


class Names(dict[str, str]):
    """The C name of each name of a nest; `counts`: those that are never negative, sizes and loops from 0 on."""

    counts: frozenset[str] = frozenset()


def index(x: Affine, names: Mapping[str, str]) -> Text:
    """An index expression, positive terms first."""
    terms = sorted(((_atom(a, names), f) for a, f in x.terms), key=lambda t: t[1] < 0)
    if not terms:
        return Text(str(x.const), ATOM if x.const >= 0 else UNARY)
    text = ""
    for atom, f in terms:
        piece = atom if abs(f) == 1 else f"{abs(f)} * {atom}"
        text += (" - " if text else "-") + piece if f < 0 else (" + " if text else "") + piece
    if x.const:
        text += f" {'+' if x.const > 0 else '-'} {abs(x.const)}"
    if len(terms) == 1 and not x.const:
        f = terms[0][1]
        return Text(text, ATOM if f == 1 else UNARY if f == -1 else 13)
    return Text(text, 12)


def _is_count(x: Affine, names: Mapping[str, str]) -> bool:
    """Whether `x` is never negative, as far as its terms show."""
    counts = names.counts if isinstance(names, Names) else frozenset()
    return x.const >= 0 and all(f > 0 and (a in counts if isinstance(a, str) else a.op in ("div", "mod") and
                                           _is_count(a.args[0], names)) for a, f in x.terms)


def _atom(a: str | Quasi, names: Mapping[str, str]) -> str:
    if isinstance(a, str):
        return names[a]
    if a.op in ("div", "mod") and _is_count(a.args[0], names):  # C divides such numbers as it should
        return f"({index(a.args[0], names).at(13)} {'/' if a.op == 'div' else '%'} {a.args[1].const})"
    args = [index(x, names).c for x in a.args]
    out = args[0]
    for x in args[1:]:
        out = f"pop_index_{a.op}({out}, {x})"
    return out


def condition(x: Affine, names: Mapping[str, str]) -> str:
    """`x >= 0` with every term on the side where it is positive: M - m - 1 >= 0 is `M > m`; of a maximum one part is enough."""
    some = bounds(x, "max")
    if len(some) > 1:
        return f"({' || '.join(condition(y, names) for y in some)})"
    left = Affine(tuple((a, f) for a, f in x.terms if f > 0))
    right = left - x
    if x.const == -1 and x.terms:
        return f"{index(left, names).c} > {index(right - 1, names).c}"
    if x.const > 0:
        left, right = left + x.const, right + x.const
    return f"{index(left, names).c} >= {index(right, names).c}"


def conditions(xs: Sequence[Affine], names: Mapping[str, str]) -> Text:
    if not xs:
        return Text("true")
    parts = tuple(dict.fromkeys(condition(x, names) for x in xs))  # of a range and of a guard the same may be asked
    return Text(" && ".join(parts), 5 if len(parts) > 1 else 10)


def natural(x: Affine, names: Mapping[str, str]) -> str:
    """An index expression whose parts are never negative, so that C divides as it should."""
    parts = []
    for a, f in x.terms:
        if isinstance(a, str):
            atom = names[a]
        else:
            first, second = (natural(y, names) for y in a.args)
            first = f"({first})" if " " in first else first
            atom = f"{first} {'/' if a.op == 'div' else '%'} {second}"
        parts.append(atom if f == 1 else f"{atom} * {f}")
    if x.const or not parts:
        parts.append(str(x.const))
    return " + ".join(parts)


def multiple(x: Affine, steps: Mapping[str, int]) -> int:
    """What `x` is known to be a multiple of; 0 is a multiple of all numbers."""
    return math.gcd(x.const, *(f * (steps.get(a, 1) if isinstance(a, str) else 1) for a, f in x.terms))


def bounded(f: For, names: Mapping[str, str]) -> list[str]:
    """The tests that an iteration of `f` is below the bound, for a loop that runs to its constant end."""
    return [condition(below(f, b), names) for b in bounds(f.upper) if b != affine(f.end)]
