"""Choices that only the first or last steps of a loop make otherwise are taken before and behind it.

    for n in [0, N) { c = (n - 1 >= 0 ? c : 1) * X[n] }

becomes

    for n in [0, N) { if n - 1 >= 0 { c = c * X[n] } else { c = 1 * X[n] } }

of which `peel` makes two loops. A choice between what the step before left and something else would stand in the chain from each
step to the next: the running product of a row took twice as long.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.expr import Apply, Expr, Load, Test, names, rebuild, walk
from polyop.ir.loops import LOCKSTEP, For, If, LoopNest, Node, Store, children, stores
from polyop.ir.loops import rebuild as rebuild_node

MOST = 8
"""Stores of a loop that is written twice for this."""


def cut_ends(nest: LoopNest) -> LoopNest:
    """`nest` with such tests around what innermost loops do."""
    sizes = frozenset(nest.sizes)

    def one(n: Node) -> Node:
        if not isinstance(n, For) or n.kind in LOCKSTEP or not _is_plain(n.body) or len(stores(n.body)) > MOST:
            return rebuild_node(n, lambda body: tuple(map(one, body)))
        test = next((t for s in stores(n.body) for t in _choices(s.expr) if _decides(t, n, sizes)), None)
        if test is None:
            return n
        inside, outside = (tuple(settled(c, test, truth) for c in n.body) for truth in (True, False))
        return replace(n, body=(If(test.tests, inside, outside),))

    return replace(nest, body=tuple(map(one, nest.body)))


def _is_plain(body: tuple[Node, ...]) -> bool:
    """Whether there are only stores, and rows and lanes of them."""
    return all(isinstance(n, Store) or (isinstance(n, For) and n.kind in LOCKSTEP and _is_plain(children(n))) for n in body)


def _choices(e: Expr) -> list[Test]:
    return [x.args[0] for x in walk(e) if isinstance(x, Apply) and x.fn == "select" and isinstance(x.args[0], Test)]


def _decides(test: Test, n: For, sizes: frozenset[str]) -> bool:
    """Whether the step of `n` alone decides `test`, so that it changes at the ends of the loop."""
    return all(abs(t.factor(n.index)) == 1 and names(t) <= sizes | {n.index} and all(isinstance(a, str) for a, _ in t.terms)
               for t in test.tests)


def settled(n: Node, test: Test, truth: bool) -> Node:
    """`n` where `test` is known to hold, or not to."""
    def put(e: Expr) -> Expr:
        match e:
            case Apply(fn="select", args=(Test() as t, yes, no), dtype=d) if t == test and (yes if truth else no).dtype == d:
                return put(yes if truth else no)
            case Load(guard=guard) if truth and set(guard) & set(test.tests):
                e = replace(e, guard=tuple(t for t in guard if t not in test.tests))
        return rebuild(e, put)

    if isinstance(n, Store):
        return replace(n, expr=put(n.expr))
    return rebuild_node(n, lambda body: tuple(settled(c, test, truth) for c in body))
