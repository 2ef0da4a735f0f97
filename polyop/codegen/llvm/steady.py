"""What a loop does not change is computed once, before it: functions of registers, and inverses of what it divides by.

    for c { Y[c] = X[c] - top - log(total) }        log(total) stands before the loop
    for c { Y[c] = e[c] / total }                   so does 1 / total, in two parts, unless numerics are strict

Only functions that take many instructions: for four vectors of a row the logarithm took as long as for one of its elements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import frexp

from polyop.codegen.cpu.facts import runs_once
from polyop.codegen.cpu.weight import INSTRUCTIONS
from polyop.codegen.llvm.expressions import operand, value_of
from polyop.codegen.llvm.state import State
from polyop.codegen.vecmath.quotient import Inverse, inverse
from polyop.ir.dtypes import F16
from polyop.ir.expr import Apply, Const, Expr, Load, Number, Scalar, children, names, walk
from polyop.ir.loops import For, LoopNest, Space, has_loop, stores
from polyop.ir.loops import walk as walk_nodes

LONG = {"div", "sqrt", "rsqrt"}
"""Instructions that take as long as a function."""


@contextmanager
def forgotten_behind(s: State) -> Iterator[None]:
    """What is computed ahead inside is not known behind."""
    keep = s.steady, s.inverses
    yield
    s.steady, s.inverses = keep


def compute_ahead(s: State, n: For) -> None:
    """Write down what the innermost loop `n` need not compute; it is good until the loop ends."""
    if s.axes:
        return
    for e in steady(s.nest, n):
        if e not in s.steady:
            s.steady = {**s.steady, e: value_of(s, e, ()).at({}, 0)}
    # what is left of a row has hardly more divisions than an inverse takes instructions
    for d in divisors(s.nest, n) if s.b.text.fuses and not s.shared.strict and not runs_once(n) else ():
        if d not in s.inverses:
            s.inverses = {**s.inverses, d: _inverse(s, d)}


def steady(nest: LoopNest, n: For) -> tuple[Expr, ...]:
    """The calls of such functions in the innermost loop `n`, each once."""
    def is_long(e: Expr) -> bool:
        return isinstance(e, Apply) and (e.fn in INSTRUCTIONS or (e.fn in LONG and e.dtype.is_float))

    return _found(nest, n, lambda e, is_steady: e if is_long(e) and is_steady(e) else None)


def divisors(nest: LoopNest, n: For) -> tuple[Expr, ...]:
    """What floats are divided by in the innermost loop `n` and does not change there, each once; not powers of two."""
    def divisor(e: Expr, is_steady: Callable[[Expr], bool]) -> Expr | None:
        match e:
            case Apply(fn="div", args=(_, Const(value=x))) if frexp(x)[0] in (0.5, -0.5):
                return None
            case Apply(fn="div", args=(x, d), dtype=t) if t.is_float and x.dtype == d.dtype == t and not is_steady(x):
                return d if is_steady(d) else None
        return None

    return _found(nest, n, divisor)


def _found(nest: LoopNest, n: For, what: Callable[[Expr, Callable[[Expr], bool]], Expr | None]) -> tuple[Expr, ...]:
    """`what` says of the expressions in the innermost loop `n`, each once; it is not asked about parts of those that it names."""
    if has_loop(n.body):
        return ()
    written = {x.target.source for x in stores(n.body)}
    own = {n.index, *(f.index for f in walk_nodes(n.body) if isinstance(f, For))}

    def part(x: Expr) -> bool:
        match x:
            case Load(source=source, index=index, guard=guard):
                return not index and not guard and source not in written and nest.buffer(source).space == Space.REG
            case Number(value=value):
                return not names(value) & own
        return isinstance(x, Apply | Const | Scalar)

    def is_steady(e: Expr) -> bool:
        """Whether `e` is made of registers of one element, of constants and of what is outside the loop alone."""
        return all(map(part, walk(e)))

    def go(e: Expr) -> Iterator[Expr]:
        found = what(e, is_steady)
        if found is not None:
            yield found
        if found != e:
            for x in children(e):
                yield from go(x)

    return tuple(dict.fromkeys(e for x in stores(n.body) for e in go(x.expr)))


def _inverse(s: State, d: Expr) -> Inverse:
    """The inverse of `d`, in every lane."""
    return inverse(operand(s, value_of(s, d, ()), {}, 0, True), isinstance(d, Number) or d.dtype == F16 or _is_moderate(d))


def _is_moderate(d: Expr) -> bool:
    """Whether `d` says that it lies between two numbers of moderate size."""
    match d:
        case Apply(fn="min", args=(Apply(fn="max", args=(_, Const(value=least))), Const(value=most))):
            return 2.0**-64 <= least <= most <= 2.0**64
    return False
