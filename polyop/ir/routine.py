"""A nest that is carried out several times, with other numbers and in other memory each time.

    Y_class_0[p] += X[p - r] * F[2*r + 1]        and        Y_class_1[p] += X[p - r + 1] * F[2*r]

are two uses, with n = 1 and n = 2, of

    Y_class[p] += X[p - r + n - 1] * F[2*r - n + 2]

To the nest a number is a size like any other. What a use does is the nest with its numbers put in, so what is proved of the
nest for all numbers holds of each use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Expr, Load, affine, map_loads, substitute, substitute_expr
from polyop.ir.loops import Barrier, Buffer, For, If, IfData, LoopNest, Node, Prefetch, Space, Store, rebuild


@dataclass(frozen=True, slots=True)
class Use:
    """One time that a routine is carried out.

    numbers   (size of the routine's nest, its value here), for those that are no sizes of the whole
    buffers   (buffer of the routine's nest, buffer of the whole that it is here), where these differ
    """

    numbers: tuple[tuple[str, int], ...]
    buffers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Routine:
    """`nest`, and each use of it in order."""

    nest: LoopNest
    uses: tuple[Use, ...]


def body_of(r: Routine, use: Use) -> tuple[Node, ...]:
    """What `use` does, as a body of the whole."""
    env = {n: affine(v) for n, v in use.numbers}
    names = dict(use.buffers)

    def renamed(x: Load) -> Expr:
        return replace(x, source=names.get(x.source, x.source))

    def expr(e: Expr) -> Expr:
        return map_loads(substitute_expr(e, env), renamed)

    def at(x: Load) -> Load:
        found = expr(x)
        assert isinstance(found, Load)
        return found

    return tuple(_put(n, lambda x: substitute(x, env), expr, at) for n in r.nest.body)


def _put(n: Node, number: Callable[[Affine], Affine], expr: Callable[[Expr], Expr], at: Callable[[Load], Load]) -> Node:
    n = rebuild(n, lambda body: tuple(_put(b, number, expr, at) for b in body))
    match n:
        case For():
            return replace(n, lower=number(n.lower), upper=number(n.upper))
        case If():
            return replace(n, tests=tuple(map(number, n.tests)))
        case IfData():
            return replace(n, test=expr(n.test))
        case Store():
            return replace(n, instance=tuple(map(number, n.instance)), lift=tuple(map(number, n.lift)), target=at(n.target),
                           expr=expr(n.expr))
        case Prefetch():
            return replace(n, place=at(n.place), ahead=n.ahead and number(n.ahead))
        case Barrier():
            return n


def buffers_of(r: Routine, use: Use) -> tuple[Buffer, ...]:
    """The buffers of the whole that belong to `use` alone: its work space and registers."""
    env, names = {n: affine(v) for n, v in use.numbers}, dict(use.buffers)
    return tuple(replace(b, name=names.get(b.name, b.name), dims=tuple((substitute(e, env), u) for e, u in b.dims))
                 for b in r.nest.buffers if b.space != Space.TENSOR)


def composed(routines: tuple[Routine, ...], rest: LoopNest, results: Mapping[str, Buffer]) -> LoopNest:
    """All uses of `routines` in order, then `rest`, as one nest.

    results   tensors that uses write and `rest` reads -> the work space that each is in the whole
    Raises    InternalError, if two things have one name
    """
    kept = tuple(results.get(b.name, b) for b in rest.buffers)
    own = tuple(b for r in routines for u in r.uses for b in buffers_of(r, u))
    every = (*kept, *own)
    if len({b.name for b in every}) != len(every):
        raise InternalError(f"nest {rest.name}: two buffers of its routines have one name")
    return replace(rest, buffers=every, body=(*(n for r in routines for u in r.uses for n in body_of(r, u)), *rest.body))


