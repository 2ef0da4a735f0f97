"""Wrong versions of what a pass makes of a nest: one thing at a time is changed in those nodes that the pass has made."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, loads, map_loads, names
from polyop.ir.loops import Barrier, For, If, IfData, Kind, LoopNest, Node, Space, Store, rebuild, sign, walk

Changed = tuple[str, tuple[Node, ...]]
"""What is wrong, and the nodes."""


def mutants(before: LoopNest, after: LoopNest) -> Iterator[tuple[str, LoopNest]]:
    """What is wrong, and `after` with that; nodes of `before` are left as they are."""
    old = {id(n) for n in walk(before.body)}
    registers = {b.name: b for b in after.buffers if b.space == Space.REG}
    inner = {n.index for n in walk(after.body) if isinstance(n, For) and n.kind in (Kind.ATOM, Kind.ROWS)}
    like = {name: next((x for x, c in registers.items() if x != name and (c.dims, c.dtype) == (b.dims, b.dtype)), name)
            for name, b in registers.items()}
    for n in walk(after.body):
        around = any(isinstance(x, Barrier) or (isinstance(x, For) and x.kind == Kind.PARALLEL) for x in walk((n,)))
        for what, new in () if id(n) in old or around else _nodes(n, like, inner):
            yield f"{_headline(n)}: {what}", replace(after, body=put(after.body, n, new))


def put(body: tuple[Node, ...], at: Node, new: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(y for n in body for y in (new if n is at else (rebuild(n, lambda b: put(b, at, new)),)))


def _headline(n: Node) -> str:
    match n:
        case Store():
            return f"{n.target} {sign(n.reduce)}"
        case For():
            inside = next(x for x in walk(n.body) if isinstance(x, Store))
            return f"for {n.index} .. {inside.target} {sign(inside.reduce)}"
        case If(tests=tests):
            return f"if {Test(tests)}"
        case IfData(test=test):
            return f"if {test}"
    return "barrier"


def _nodes(n: Node, like: dict[str, str], inner: set[str]) -> Iterator[Changed]:
    match n:
        case Store(expr=expr, reduce=reduce):
            yield "left out", ()
            yield from ([("twice", (n, n)), ("assigned", (replace(n, reduce=None),))] if reduce else [])
            yield from ((str(e), (replace(n, expr=e),)) for e in _exprs(expr, inner))
            for x in dict.fromkeys(loads(expr)):
                if like.get(x.source, x.source) != x.source:
                    other = replace(x, source=like[x.source])
                    yield f"reads {other}", (replace(n, expr=map_loads(expr, lambda y, a=x, b=other: b if y == a else y)),)
        case For(upper=upper):
            yield "left out", ()
            yield "the last one not", (replace(n, upper=upper - 1),)
            if n.kind == Kind.SERIAL:
                yield "the first one not", (replace(n, lower=n.lower + 1),)
        case If(tests=tests, then=then, other=other):
            yield "always", then
            yield "never", other
            yield "the other way round", (If(tests, other, then),)
            for k, t in enumerate(tests):
                for by in (-1, 1) if names(t) & inner else (-64, 64):
                    yield f"{t + by} >= 0", (replace(n, tests=(*tests[:k], t + by, *tests[k + 1:])),)
        case IfData(test=test, then=then, other=other):
            yield "always", then
            yield "never", other
            yield "the other way round", (IfData(test, other, then),)
            yield from ((f"by {e}", (IfData(e, then, other),)) for e in _exprs(test, inner))


def _exprs(e: Expr, inner: set[str]) -> Iterator[Expr]:
    match e:
        case Const(value=value, dtype=dtype):
            yield Const(value + 1 if abs(value) < float("inf") else 0.0, dtype)
        case Test(tests=tests):
            for k, t in enumerate(tests):
                for by in (-1, 1) if names(t) & inner else (-64, 64):
                    yield Test((*tests[:k], t + by, *tests[k + 1:]))
        case Load(index=index):
            for k, p in enumerate(index):
                if isinstance(p, Affine) and p.is_constant:
                    yield replace(e, index=(*index[:k], p + 1, *index[k + 1:]))
        case Apply(fn=fn, args=args):
            for k, a in enumerate(args):
                yield from (replace(e, args=(*args[:k], x, *args[k + 1:])) for x in _exprs(a, inner))
            if len(args) == 2 and fn in ("add", "mul", "max", "and", "or"):
                yield from args
                swapped = {"add": "mul", "mul": "add", "max": "min", "and": "or", "or": "and"}[fn]
                yield replace(e, fn=swapped)
            if fn in ("lt", "sub"):
                yield replace(e, args=args[::-1])
            if fn == "ne":
                yield replace(e, fn="eq")
            if fn == "neg":
                yield args[0]
            if fn == "select":
                yield args[1]
                yield replace(e, args=(args[0], args[2], args[1]))
