"""A nest in the orders that its kinds of loops allow, each written as an ordinary sequential nest."""

from __future__ import annotations

import math
from dataclasses import replace

from polyop.ir.expr import Affine, Const, Load, affine, names, quasi, substitute, substitute_expr
from polyop.ir.loops import LOCKSTEP, Buffer, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, children, rebuild


def orders(given: LoopNest) -> tuple[LoopNest, ...]:
    """As it stands, in lock step, and with parallel loops backwards on threads that remember nothing."""
    forgetful = replace(given, body=_forget(given, given.body))
    return given, replace(given, body=_lockstep(given.body)), replace(forgetful, body=_backwards(forgetful.body))


def _lockstep(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Each rows or lanes loop moved around the single statements inside it."""
    out: list[Node] = []
    for x in body:
        x = rebuild(x, _lockstep)
        out += [_inward(x, n) for n in x.body] if isinstance(x, For) and x.kind in LOCKSTEP else [x]
    return tuple(out)


def _inward(loop: For, x: Node) -> Node:
    match x:
        case For() if loop.index not in names(x.lower) | names(x.upper):
            return replace(x, body=tuple(_inward(loop, n) for n in x.body))
        case If() if all(loop.index not in names(t) for t in x.tests):
            return rebuild(x, lambda b: tuple(_inward(loop, n) for n in b))
    return replace(loop, body=(x,))


def _backwards(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """Parallel loops from their last iteration to the first."""
    out: list[Node] = []
    for x in body:
        x = rebuild(x, _backwards)
        if isinstance(x, For) and x.kind == Kind.PARALLEL:
            count = quasi("div", x.upper - x.lower + (x.step - 1), affine(x.step))
            mirrored = x.lower * 2 + (count - 1) * x.step - affine(x.index)
            x = replace(x, body=at(x.body, {x.index: mirrored}))
        out.append(x)
    return tuple(out)


def at(body: tuple[Node, ...], env: dict[str, Affine]) -> tuple[Node, ...]:
    """`body` with other values for the indices in `env`, also where stores say which instances they carry out."""
    out: list[Node] = []
    for x in body:
        match x:
            case For():
                x = replace(x, lower=substitute(x.lower, env), upper=substitute(x.upper, env), body=at(x.body, env))
            case If():
                x = If(tuple(substitute(t, env) for t in x.tests), at(x.then, env), at(x.other, env))
            case Store():
                target = substitute_expr(x.target, env)
                assert isinstance(target, Load)
                x = replace(x, target=target, expr=substitute_expr(x.expr, env),
                            lift=tuple(substitute(i, env) for i in x.lift))
            case Prefetch():
                pass
        out.append(x)
    return tuple(out)


def _forget(given: LoopNest, body: tuple[Node, ...], kept: frozenset[str] = frozenset()) -> tuple[Node, ...]:
    """Every iteration of a parallel loop begins with nothing in registers and private work space.

    But what is `kept`: private, and written nowhere but directly in a parallel loop around, as every thread does for itself.
    """
    out: list[Node] = []
    for x in body:
        if isinstance(x, For) and x.kind == Kind.PARALLEL:
            mine = {b.name for b in given.buffers
                    if b.private and _writes(x.body, b.name, False) == _writes(given.body, b.name, True)}
            lost = [_poison(b) for b in given.buffers if b.space == Space.REG or (b.private and b.name not in kept)]
            x = replace(x, body=(*lost, *_forget(given, x.body, kept | mine)))
        else:
            x = rebuild(x, lambda b: _forget(given, b, kept))
        out.append(x)
    return tuple(out)


def _writes(body: tuple[Node, ...], name: str, deep: bool) -> int:
    """How many stores write `name`; those inside a parallel loop count if `deep`."""
    count = 0
    for x in body:
        if isinstance(x, Store):
            count += x.target.source == name
        elif deep or not (isinstance(x, For) and x.kind == Kind.PARALLEL):
            count += _writes(children(x), name, deep)
    return count


def _poison(b: Buffer) -> Node:
    indices = tuple(f"lost {b.name} {d}" for d in range(len(b.dims)))
    value = Const(math.nan if b.dtype.is_float else b.dtype.highest, b.dtype)
    node: Node = Store("poison", (), None, (), Load(b.name, tuple(map(affine, indices)), b.dtype), None, value)
    for i, (extent, unit) in reversed(list(zip(indices, b.dims, strict=True))):
        node = For(i, Affine(), extent, (node,), unit)
    return node
