"""`else` and `?:` on indices -> guarded Loads and tests, so that what is not needed is not read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyop.dsl.conditions import both, either, negated, test
from polyop.dsl.existence import Existence, fills
from polyop.dsl.intervals import Box, at_least_zero, least
from polyop.dsl.values import cast
from polyop.ir.dtypes import BOOL, I64
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Position, Test, is_affine_condition, loads, rebuild
from polyop.ir.span import Span

Guards = tuple[Affine, ...]

MAX_CASES = 1000
NEAREST = 8  # guards that a proof looks at; what it does not see is only a test too many


@dataclass(frozen=True, slots=True)
class Around:
    """What holds where an expression stands: its indices' ranges, tests known to be >= 0, and the tensors' shapes.

    exists  where temporaries of inferred shape are written, if that is less than their shape
    cases   how often a choice was split so far
    """

    box: Box
    facts: tuple[Affine, ...]
    known: tuple[Affine, ...]
    shapes: Mapping[str, tuple[Affine, ...]]
    inputs: frozenset[str]
    exists: Mapping[str, Existence] = field(default_factory=dict)
    cases: list[int] = field(default_factory=lambda: [0])
    span: Span | None = None

    def always(self, x: Affine, guards: Guards = ()) -> bool:
        """Whether `x >= 0` can be seen to hold here."""
        if at_least_zero(least(x, self.box), self.facts):
            return True
        nearest = (*self.known[:NEAREST], *guards[-NEAREST:])
        return any(at_least_zero(least(x - k, self.box), self.facts) for k in nearest)

    def never(self, x: Affine, guards: Guards = ()) -> bool:
        return self.always(x * -1 - 1, guards)


def guarded(e: Expr, a: Around, guards: Guards = ()) -> Expr:
    """`e` where `guards` hold: "otherwise" written out, conditions simplified, Loads guarded."""
    match e:
        case Load():
            return _load(e, a, guards)
        case Test():
            return simplify(e, a, guards)
        case Apply(fn="otherwise", args=(Load() as load, other)):
            return _otherwise(e, load, other, a, guards)
        case Apply(fn="select", args=(c, yes, no)):
            return _select(e, c, yes, no, a, guards)
        case Apply(fn="and" | "or"):
            return _joined(e, a, guards)
    return rebuild(e, lambda x: guarded(x, a, guards))


def _joined(e: Apply, a: Around, guards: Guards) -> Expr:
    """A chain of `and` or `or`: each operand is needed only where those before it left it open."""
    operands: list[Expr] = []
    rest: Expr = e
    while isinstance(rest, Apply) and rest.fn == e.fn:
        operands.append(rest.args[1])
        rest = rest.args[0]
    out = guarded(rest, a, guards)
    around = (*guards, *implied(out if e.fn == "and" else negated(out)))
    for operand in reversed(operands):
        new = guarded(operand, a, around)
        around = (*around, *implied(new if e.fn == "and" else negated(new)))
        out = both(out, new) if e.fn == "and" else either(out, new)
    return out


def implied(c: Expr) -> Guards:
    """Tests that hold where `c` does."""
    match c:
        case Test(tests=tests):
            return tests
        case Apply(fn="and", args=(x, y)):
            return (*implied(x), *implied(y))
    return ()


def simplify(c: Expr, a: Around, guards: Guards = ()) -> Expr:
    """A condition without the tests that always or never hold here."""
    if not isinstance(c, Test):
        return c
    if any(a.never(t, guards) for t in c.tests):
        return Const(False, BOOL)
    return test(*(t for t in c.tests if not a.always(t, guards)))


def inside(index: Sequence[Position], shape: Sequence[Affine]) -> tuple[list[Affine], list[Expr]]:
    """What it takes to lie inside: tests for affine positions, conditions for computed ones."""
    tests: list[Affine] = []
    computed: list[Expr] = []
    for p, n in zip(index, shape, strict=True):
        if isinstance(p, Affine):
            tests += [p, n - 1 - p]
        else:
            zero: Expr = Const(0, I64)
            top: Expr = Const(n.const, I64) if n.is_constant else Number(n, I64)
            computed += [Apply("ge", (p, zero), BOOL), Apply("lt", (p, top), BOOL)]
    return tests, computed


def _load(load: Load, a: Around, guards: Guards) -> Load:
    index = tuple(p if isinstance(p, Affine) else guarded(p, a, guards) for p in load.index)
    if guards and load.source in a.inputs:
        tests, computed = inside(index, a.shapes[load.source])
        if not computed and all(a.always(t) for t in tests):
            return replace(load, index=index)
    return replace(load, index=index, guard=tuple(dict.fromkeys((*load.guard, *guards))))


def _otherwise(e: Expr, load: Load, other: Expr, a: Around, guards: Guards) -> Expr:
    index = tuple(p if isinstance(p, Affine) else guarded(p, a, guards) for p in load.index)
    tests, computed = inside(index, a.shapes[load.source])
    where = a.exists.get(load.source, ())
    if where and not computed:
        if len(where) == 1 and not where[0].conditions:
            tests += where[0].at(index)[0]
        elif not fills(where, index, tests, a.always):
            return _in_parts(e, replace(load, index=index), other, test(*tests), where, a, guards)
    needed = tuple(dict.fromkeys(t for t in tests if not a.always(t, guards)))
    read: Expr = cast(_load(replace(load, index=index), a, (*guards, *needed)), e.dtype)
    if not needed and not computed:
        return read
    if not computed and isinstance(other, Const) and not other.value:
        return read
    negative = implied(negated(Test(needed))) if needed and not computed else ()
    fallback = guarded(other, a, (*guards, *negative))
    condition: Expr = test(*needed)
    for c in computed:
        condition = both(condition, c)
    return Apply("select", (condition, read, fallback), e.dtype)


def _in_parts(e: Expr, load: Load, other: Expr, inside: Expr, where: Existence, a: Around, guards: Guards) -> Expr:
    """`(load else other)` of a temporary that several statements write, or one under an `or`."""
    written: Expr = Const(False, BOOL)
    for w in where:
        tests, conditions = w.at(load.index)
        here = test(*tests)
        for c in conditions:
            here = both(here, c)
        written = either(written, here)
    return _choose(both(inside, written), lambda g: cast(_load(load, a, g), e.dtype), lambda g: guarded(other, a, g), a, guards,
                   (True, True), e)


def _select(e: Apply, c: Expr, yes: Expr, no: Expr, a: Around, guards: Guards) -> Expr:
    c = guarded(c, a, guards)
    if is_affine_condition(c):
        return _choose(c, lambda g: guarded(yes, a, g), lambda g: guarded(no, a, g), a, guards,
                       (_needs(yes, a), _needs(no, a)), e)
    return Apply("select", (c, guarded(yes, a, (*guards, *implied(c))), guarded(no, a, (*guards, *implied(negated(c))))), e.dtype)


Branch = Callable[[Guards], Expr]


def _choose(c: Expr, yes: Branch, no: Branch, a: Around, guards: Guards, needs: tuple[bool, bool], e: Expr) -> Expr:
    """`c ? yes : no`; split into nested choices where a branch with Loads would else have no conjunction to stand on."""
    c = simplify(c, a, guards)
    a.cases[0] += 1
    if a.cases[0] > MAX_CASES:
        raise fail("E237", f"the conditions of this statement make more than {MAX_CASES} cases", a.span,
                   hint="write pieces of their own, each with a `where`")

    def again(c: Expr, yes: Branch, no: Branch, guards: Guards) -> Expr:
        return _choose(c, yes, no, a, guards, needs, e)

    match c:
        case Const(value=value):
            return yes(guards) if value else no(guards)
        case Test(tests=(first, *rest)) if rest and needs[1]:
            return again(Test((first,)), lambda g: again(Test(tuple(rest)), yes, no, g), no, guards)
        case Apply(fn="and", args=(x, y)) if needs[1]:
            return again(x, lambda g: again(y, yes, no, g), no, guards)
        case Apply(fn="or", args=(x, y)) if needs[0] or needs[1]:
            return again(x, yes, lambda g: again(y, yes, no, g), guards)
        case Apply(fn="not", args=(x,)):
            return _choose(x, no, yes, a, guards, (needs[1], needs[0]), e)
    return Apply("select", (c, yes((*guards, *implied(c))), no((*guards, *implied(negated(c))))), e.dtype)


def _needs(e: Expr, a: Around) -> bool:
    """Whether some Load of `e` is not seen to be inside its tensor, or may wait for what is computed here."""
    for load in loads(e):
        if load.source not in a.inputs:
            return True
        tests, _ = inside(load.index, a.shapes[load.source])
        if not all(map(a.always, tests)):
            return True
    return False
