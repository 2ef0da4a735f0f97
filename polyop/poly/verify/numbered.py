"""Values of registers by number: whoever computes the same from the same numbers has the same number.

    { v[e0, .., en] -> an expression of the elements of other values, of memory, scalars and constants }

A value is a function of the element that holds it, whose coordinates are `#0`, `#1`, ..: loops over a tile that store one element
after the other define all of it at once. What a loop adds up is defined as such, over `$0`, `$1`, ..:

    v[e] = first[e] + sum { term[e, k] : tests[e, k] >= 0 }                        in any order of the terms

Memory is read as it is at one time, `V@3.1`: behind a store to it, or a barrier, is another time. Values without a definition may
be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.expr import Affine, Expr, Load, affine, expr_names, loads, map_loads, names, substitute, substitute_expr
from polyop.ir.loops import Buffer
from polyop.ir.op import Monoid

Tests = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """`first`, combined with each `term` of the iterations `bound` of which all `tests` are >= 0. `of`: the value that is so."""

    monoid: Monoid
    first: Expr
    bound: tuple[str, ...]
    tests: Tests
    term: Expr
    of: Load | None = None


Definition = Expr | Folded


def coordinate(d: int) -> Affine:
    return affine(f"#{d}")


def whole(name: str, b: Buffer) -> Load:
    """The element of the value `name` at the coordinates, as definitions name it."""
    return Load(name, tuple(coordinate(d) for d in range(len(b.dims))), b.dtype)


@dataclass(frozen=True, eq=False)
class Numbers:
    """meaning   value -> its definition, for those that have one
    at        (register, definition) -> the value
    seen      an element of a value -> what it is
    """

    meaning: dict[str, Definition] = field(default_factory=dict)
    at: dict[tuple[tuple[object, ...], Definition], str] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    seen: dict[Load, Definition] = field(default_factory=dict)

    def fresh(self) -> str:
        """A value of which nothing is known."""
        self.made.append(f"%{len(self.made)}")
        return self.made[-1]

    def number(self, d: Definition, b: Buffer) -> str:
        """The value of `b` that is defined so."""
        if isinstance(d, Load) and d.source.startswith("%") and d == whole(d.source, b):
            return d.source
        key = (b.dims, b.dtype), d
        if key not in self.at:
            self.at[key] = self.fresh()
            self.meaning[self.at[key]] = d
        return self.at[key]

    def age(self, e: Expr) -> int:
        """When the value was made of which `e` is an element; -1, if it is something else, or nothing is known of it."""
        return int(e.source[1:]) if isinstance(e, Load) and e.source in self.meaning else -1

    def opened(self, x: Load) -> Definition:
        """What the element `x` of a value is, over the elements of older ones."""
        if x not in self.seen:
            self.seen[x] = self._opened(x)
        return self.seen[x]

    def _opened(self, x: Load) -> Definition:
        env = {f"#{d}": p for d, p in enumerate(x.index) if isinstance(p, Affine)}
        found = self.meaning[x.source]
        if not isinstance(found, Folded):
            return substitute_expr(found, env)
        return replace(found, first=substitute_expr(found.first, env), tests=tuple(substitute(t, env) for t in found.tests),
                       term=substitute_expr(found.term, env), of=x)

    def parts(self, name: str) -> tuple[Expr, ...]:
        """The expressions that define a value."""
        match self.meaning.get(name):
            case None:
                return ()
            case Folded(first=first, term=term):
                return first, term
            case e:
                return (e,)

    def depends(self, name: str, on: frozenset[str], seen: dict[str, bool]) -> bool:
        """Whether a value is made of one of the values, or loop indices, `on`."""
        if name not in seen:
            found = self.meaning.get(name)
            tests = found.tests if isinstance(found, Folded) else ()
            seen[name] = name in on or any(names(t) & on for t in tests) or any(
                self.is_made(e, on, seen) for e in self.parts(name))
        return seen[name]

    def is_made(self, e: Expr, on: frozenset[str], seen: dict[str, bool]) -> bool:
        return bool(expr_names(e) & on) or any(x.source in on or self.depends(x.source, on, seen) for x in loads(e))

    def spelled(self, e: Expr, index: str) -> Expr | None:
        """`e`, with definitions in the place of values that depend on the loop `index`; None, if one of these is a sum."""
        seen: dict[str, bool] = {}
        on = frozenset((index,))
        sums = list[Load]()

        def one(x: Load) -> Expr:
            if x.source not in self.meaning or not self.depends(x.source, on, seen):
                return x
            found = self.opened(x)
            if isinstance(found, Folded):
                sums.append(x)
                return x
            return map_loads(found, one)

        out = map_loads(e, one)
        return None if sums else out


State = Mapping[str, str]
"""The value that each register holds."""
