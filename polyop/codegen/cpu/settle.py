"""Tests of data that a loop does not change are taken once, before it.

    for k { part[v] min= x[k, v] == top or (isnan(x[k, v]) and isnan(top)) ? k : none }       becomes
    if isnan(top) { for k { .. x[k, v] == top or isnan(x[k, v]) ? .. } } else { for k { .. x[k, v] == top ? .. } }
"""

from __future__ import annotations

from dataclasses import replace

from polyop.codegen.cpu.facts import runs_once
from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Apply, Const, Expr, Load, rebuild, walk
from polyop.ir.loops import LOCKSTEP, For, IfData, LoopNest, Node, Space, Store, has_loop, stores
from polyop.ir.loops import rebuild as rebuild_node


def settle(nest: LoopNest) -> LoopNest:
    """`nest` with such tests around innermost loops, one of each. What runs once has nothing to gain."""
    def one(n: Node) -> Node:
        if isinstance(n, For) and n.kind in LOCKSTEP:
            return n
        if isinstance(n, For) and not runs_once(n) and (test := steady_test(nest, n)) is not None:
            return IfData(test, (settled(n, test, True),), (settled(n, test, False),))
        return rebuild_node(n, lambda body: tuple(map(one, body)))

    return replace(nest, body=tuple(map(one, nest.body)))


def steady_test(nest: LoopNest, n: For) -> Expr | None:
    """A test inside the innermost loop `n`, beside other tests, of registers that `n` does not write; None if there is none."""
    if has_loop(n.body):
        return None
    written = {s.target.source for s in stores(n.body)}

    def is_steady(e: Expr) -> bool:
        read = [x for x in walk(e) if isinstance(x, Load)]
        return bool(read) and isinstance(e, Apply) and all(
            not x.index and not x.guard and x.source not in written and nest.buffer(x.source).space == Space.REG for x in read)

    for s in stores(n.body):
        for e in walk(s.expr):
            if isinstance(e, Apply) and e.fn in ("and", "or") and e.dtype == BOOL:
                steady = [a for a in e.args if a.dtype == BOOL and is_steady(a)]
                if len(steady) == 1:
                    return steady[0]
    return None


def settled(n: For, test: Expr, holds: bool) -> For:
    """`n` where `test` is known to hold, or not to."""
    def put(e: Expr) -> Expr:
        return Const(holds, BOOL) if e == test else _folded(rebuild(e, put))

    def one(c: Node) -> Node:
        return replace(c, expr=put(c.expr)) if isinstance(c, Store) else rebuild_node(c, lambda body: tuple(map(one, body)))

    return replace(n, body=tuple(map(one, n.body)))


def _folded(e: Expr) -> Expr:
    """`e` without a constant in a conjunction or disjunction."""
    match e:
        case Apply(fn="and" | "or" as fn, args=(Const(value=bool(x)), y) | (y, Const(value=bool(x)))):
            return y if x == (fn == "and") else Const(x, BOOL)
    return e
