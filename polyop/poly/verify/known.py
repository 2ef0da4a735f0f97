"""What holds at a place of a nest: bounds and tests around it, asked first for one that says it all, then of isl.

Most questions about a rewritten nest have their answer among the tests around, word for word or up to a constant: inside
`if N - n - 64 >= 0` the loop to min(64, N - n) runs to 64. So the isl set of a place is made only where nothing simpler
answers, and then from that of the place around it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Atom, Quasi, affine, bounds, names, quasi, substitute
from polyop.ir.loops import For
from polyop.poly.verify.frame import SET, Frame, is_linear

Tests = tuple[Affine, ...]
Terms = tuple[tuple[Atom, int], ...]


@dataclass(frozen=True, eq=False)
class Known:
    """What holds here, over the indices of the loops around.

    frame   [sizes] -> { at[a coordinate for each loop around] }
    values  loop index -> its value, over the coordinates
    around  the place around this one; None for the nest itself, of which `context` is all that holds
    tests   what holds here beyond that: each of them >= 0, or, if `denied`, one of them < 0
    least   terms -> the constant c with  terms + c >= 0  for each single fact
    never   tests of which one is < 0
    given   the executions, if they are no more than those
    """

    frame: Frame
    values: Mapping[str, Affine]
    context: isl.Set
    around: Known | None = None
    tests: Tests = ()
    denied: bool = False
    least: Mapping[Terms, int] | None = None
    never: tuple[Tests, ...] = ()
    given: isl.Set | None = None

    def also(self, tests: Iterable[Affine]) -> Known:
        """Where each of `tests` is >= 0 too."""
        new = tuple(tests)
        return Known(self.frame, self.values, self.context, self, new, False, _with(self.least, new), self.never)

    def unless(self, tests: Tests) -> Known:
        """Where one of `tests` is < 0."""
        if len(tests) == 1:
            return self.also((tests[0] * -1 - 1,))
        return Known(self.frame, self.values, self.context, self, tests, True, self.least, (*self.never, tests))

    def inside(self, loop: For) -> Known:
        """At any iteration of `loop` and, as if it went on for ever, at any other of its steps, before and after."""
        frame = Frame(self.frame.name, self.frame.sizes, (*self.frame.dims, loop.index))
        lower = substitute(loop.lower, self.values)
        if is_linear(lower):
            return Known(frame, {**self.values, loop.index: lower + affine(loop.index) * loop.step}, self.context, self,
                         (), False, self.least, self.never)
        values = {**self.values, loop.index: affine(loop.index)}
        on_grid = () if loop.step == 1 else (quasi("mod", affine(loop.index) - loop.lower, affine(loop.step)) * -1,)
        return Known(frame, values, self.context, self, on_grid, False, self.least, self.never)

    def only(self, domain: isl.Set) -> Known:
        """In the part `domain` of the executions."""
        return Known(self.frame, self.values, self.context, self, (), False, self.least, self.never, domain)

    @cached_property
    def domain(self) -> isl.Set:
        """The executions of this place."""
        if self.given is not None:
            return self.given
        if self.around is None:
            return self.frame.universe.intersect_params(self.context)
        within = self.around.domain
        if len(self.frame.dims) > len(self.around.frame.dims):
            within = within.add_dims(SET, 1).set_tuple_name(self.frame.name)
        if not self.denied:
            return self.where(self.tests, within)
        return within.subtract(self.where(self.tests)).coalesce()

    def where(self, tests: Iterable[Affine], within: isl.Set | None = None) -> isl.Set:
        """The part of `within` in which each of `tests` is >= 0."""
        return self.frame.where([y for t in tests for y in plain(substitute(t, self.values))], within)

    # --- questions ---------------------------------------------------------------------------------------------------

    def implies(self, t: Affine) -> bool:
        """Whether a single fact says that t >= 0; if not, it may hold all the same."""
        if not t.terms:
            return t.const >= 0
        least = (self.least or {}).get(t.terms)
        return least is not None and least <= t.const

    def plainly(self, tests: Tests) -> bool | None:
        """Whether all `tests` are >= 0 here (or never all of them), if single facts say so."""
        if all(map(self.implies, tests)):
            return True
        if any(self.implies(t * -1 - 1) for t in tests):
            return False
        return False if any(all(t in tests or self.implies(t) for t in group) for group in self.never) else None

    def decides(self, tests: Tests) -> bool | None:
        """Whether all `tests` are >= 0 here, always (or never); None if that differs."""
        found = self.plainly(tests)
        if found is not None:
            return found
        holds = self.where(tests, self.domain)
        return False if holds.is_empty() else True if self.domain.is_subset(holds) else None

    def same_minimum(self, a: Affine, b: Affine) -> bool:
        """Whether single facts say that a = b, both taken as minima; if not, they may be equal all the same."""
        mine, theirs = bounds(a), bounds(b)
        return a == b or all(any(self.implies(x - y) for y in to) for of, to in ((mine, theirs), (theirs, mine)) for x in of)

    def chosen(self, x: Affine) -> Affine:
        """`x` with no argument of a minimum or maximum that a single fact says is never the one."""
        total = Affine(const=x.const)
        for atom, factor in x.terms:
            if isinstance(atom, Quasi):
                args = [self.chosen(a) for a in atom.args]
                if atom.op in ("min", "max"):
                    for a in args:
                        others = [b for b in args if b is not a]
                        if any(self.implies(a - b if atom.op == "min" else b - a) for b in others):
                            args = others
                total = total + quasi(atom.op, *args) * factor
            else:
                total = total + affine(atom) * factor
        return total

    def unequal(self, a: Affine, b: Affine) -> isl.Set:
        """The executions in which a and b are two values."""
        a, b = self.chosen(a), self.chosen(b)
        if a == b:
            return self.frame.empty
        return self.where((a - b - 1,), self.domain).union(self.where((b - a - 1,), self.domain))

    def require_names(self, tests: Tests) -> None:
        """Raises  InternalError, if some name is neither a loop around nor a size."""
        for t in tests:
            if unknown := names(t) - self.values.keys() - set(self.frame.sizes):
                raise InternalError(f"verify: {', '.join(sorted(unknown))} in {t} is no loop around it and no size")


def nothing_but(sizes: tuple[str, ...], context: isl.Set) -> Known:
    """Outside all loops, where only `context` is known."""
    return Known(Frame("at", sizes, ()), {}, context)


def _with(least: Mapping[Terms, int] | None, tests: Tests) -> dict[Terms, int]:
    out = dict(least or {})
    for t in tests:
        out[t.terms] = min(t.const, out.get(t.terms, t.const))
    return out


def plain(t: Affine) -> Tests:
    """Tests that hold together exactly where t >= 0, without floors, minima and maxima as far as that is possible.

        c floor(y/d) + c r + e >= 0,  0 <= e < c    is    y + d r >= 0
        c r + e - c floor(y/d) >= 0,  0 <= e < c    is    d r + d - 1 - y >= 0
        c min(a, b) + r >= 0                        is    c a + r >= 0 and c b + r >= 0;    max with c < 0 likewise
    """
    found = [(a, f) for a, f in t.terms if isinstance(a, Quasi)]
    for q, c in found:
        rest = Affine(tuple(x for x in t.terms if x[0] != q), t.const)
        if q.op == ("min" if c > 0 else "max"):
            return tuple(y for a in q.args for y in plain(a * c + rest))
        if q.op == "div" and len(found) == 1 and all(f % c == 0 for _, f in rest.terms):
            y, d = q.args[0], q.args[1].const
            r = Affine(tuple((a, f // abs(c)) for a, f in rest.terms), rest.const // abs(c)) * d
            return plain(y + r if c > 0 else r + (d - 1) - y)
    return (t,)
