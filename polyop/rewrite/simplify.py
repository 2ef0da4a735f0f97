"""Simplification of Ops: fewer operations, tests and guards, and exactly the same values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from polyop.ir.deep import with_room
from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Affine, Apply, Atom, Const, Expr, Load, Position, Test, loads, rebuild
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.algebra import apply_laws
from polyop.rewrite.bounds import always_negative, never_negative
from polyop.rewrite.inline import zero
from polyop.rewrite.measure import is_deep


@dataclass(frozen=True, slots=True)
class Known:
    """What holds where an expression stands.

    domain   index expressions that are >= 0 at every point of the step
    here     those that a `select` around makes >= 0
    """

    sizes: tuple[str, ...]
    ranges: tuple[Range, ...] = ()
    domain: frozenset[Affine] = frozenset()
    here: frozenset[Affine] = frozenset()

    def everywhere(self, x: Affine) -> bool:
        """Whether `x >= 0` is known to hold at every point of the step."""
        return x in self.domain or never_negative(x, self.sizes, self.ranges)

    def nowhere(self, x: Affine) -> bool:
        """Whether `x < 0` is known to hold at every point of the step."""
        return always_negative(x, self.sizes, self.ranges)


def simplify(op: Op) -> Op:
    """`op` with every expression in fewer operations, and without temporaries that no output needs.

    Notes   A guard goes only if the step's own domain implies it. One that a `select` around the read implies stays: the
            polyhedral stages look at the read alone.
    """
    def work() -> Op:
        facts = _conditions(op.facts, Known(op.sizes))
        return without_unused(replace(op, steps=tuple(_step(s, op.sizes) for s in op.steps), facts=facts))
    return with_room(work) if is_deep(op) else work()


def without_unused(op: Op) -> Op:
    """`op` without temporaries (and their steps) whose values reach no output."""
    needed = {t.name for t in op.outputs}
    frontier = list(needed)
    while frontier:
        for s in op.steps_of(frontier.pop()):
            computed = (x for p in s.target.index if not isinstance(p, Affine) for x in loads(p))
            found = {x.source for x in (*loads(s.expr), *computed)} - needed
            needed |= found
            frontier += found
    return replace(op, tensors=tuple(t for t in op.tensors if t.role != "temp" or t.name in needed),
                   steps=tuple(s for s in op.steps if s.target.source in needed))


def simplify_expr(e: Expr, known: Known) -> Expr:
    """`e` in fewer operations, where `known` holds."""
    match e:
        case Test(tests=tests):
            if any(map(known.nowhere, tests)):
                return Const(False, BOOL)
            return apply_laws(Test(_strongest(t for t in tests if t not in known.here and not known.everywhere(t))))
        case Load(guard=guard, index=index):
            if any(map(known.nowhere, guard)):
                return zero(e.dtype)
            needed = _strongest(g for g in guard if not known.everywhere(g))
            return replace(e, guard=needed, index=_positions(index, known))
        case Apply(fn="select", args=(c, yes, no)):
            c = simplify_expr(c, known)
            inside = replace(known, here=known.here | frozenset(c.tests)) if isinstance(c, Test) else known
            return apply_laws(replace(e, args=(c, simplify_expr(yes, inside), simplify_expr(no, known))))
    return apply_laws(rebuild(e, lambda x: simplify_expr(x, known)))


def _positions(index: tuple[Position, ...], known: Known) -> tuple[Position, ...]:
    return tuple(p if isinstance(p, Affine) else simplify_expr(p, known) for p in index)


def _conditions(conditions: Iterable[Expr], known: Known) -> tuple[Expr, ...]:
    """Those that do not always hold, each once."""
    simple = (simplify_expr(c, known) for c in conditions)
    return tuple(dict.fromkeys(c for c in simple if not (isinstance(c, Const) and c.value)))


def _step(s: Step, sizes: tuple[str, ...]) -> Step:
    ranges = Known(sizes, s.ranges)
    where = _conditions(s.where, ranges)
    domain = replace(ranges, domain=frozenset(t for c in where if isinstance(c, Test) for t in c.tests))
    target = replace(s.target, index=_positions(s.target.index, domain))
    return replace(s, target=target, expr=simplify_expr(s.expr, domain), where=where)


def _strongest(tests: Iterable[Affine]) -> tuple[Affine, ...]:
    """Each test once; of several that differ by a constant, the one that implies the others: the smallest."""
    least: dict[tuple[tuple[Atom, int], ...], int] = {}
    for t in tests:
        least[t.terms] = min(t.const, least.get(t.terms, t.const))
    return tuple(Affine(terms, const) for terms, const in least.items())
