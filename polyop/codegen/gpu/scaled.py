"""LoopNest -> LoopNest for kernels with matrix units: the greatest of what one number scales is the greatest, scaled.

    p[n] = c s[n]   top max= p     becomes     if 0 < c < inf { p[n] = s[n]   top max= p   top = c top } else { as it was }

for rounding keeps the order of numbers; c is made of scalars and constants, and `top` was -inf before. Then nobody needs c s[n]
itself but who subtracts from it, in one instruction: c s[n] - t is rounded once.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from polyop.codegen.nested import tile
from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Apply, Const, Expr, Load, Scalar, loads
from polyop.ir.expr import rebuild as rebuild_expr
from polyop.ir.expr import walk as walk_expr
from polyop.ir.loops import For, IfData, LoopNest, Node, Store, rebuild, stores


def scaled(nest: LoopNest, results: Container[str]) -> LoopNest:
    """`nest`, in which maxima of scaled `results`, those of units, are found so."""
    found = set[str]()
    readers: dict[str, set[str]] = {}
    for s in stores(nest.body):
        for x in loads(s.expr):
            readers.setdefault(x.source, set()).add(s.stmt)

    def go(body: tuple[Node, ...], least: dict[str, Node]) -> tuple[Node, ...]:
        """`body`, behind what has made registers -inf: `least`, which is changed to those of them that are so behind it."""
        out: list[Node] = []
        for n in body:
            new = _unscaled(out[-1], n, least, results, readers) if out else None
            if new:
                found.add(new[0])
                out[-1] = new[1]
            elif isinstance(n, For):
                out.append(rebuild(n, lambda inner: go(inner, {})))
            else:
                out.append(rebuild(n, lambda inner: go(inner, dict(least))))
            for s in stores((n,)):
                least.pop(s.target.source, None)
            if (t := tile(n)) and not t.tests and _is_least(t.store):
                least[t.store.target.source] = n
        return tuple(out)

    body = go(nest.body, {})
    return replace(nest, body=tuple(_subtracted(n, found) for n in body) if found else nest.body)


def _unscaled(part: Node, fold: Node, least: Mapping[str, Node], results: Container[str], readers: Mapping[str, set[str]]
              ) -> tuple[str, IfData] | None:
    """What is scaled in `part`, of which `fold` finds the greatest, and both as they become; None, if it is not so."""
    a, b = tile(part), tile(fold)
    if a is None or b is None or a.tests or a.store.reduce is not None or b.store.expr != a.store.target:
        return None
    c, s = _factors(a.store.expr)
    total = b.store.target
    first = tile(least[total.source]) if total.source in least else None
    if s is None or s.source not in results or first is None or b.store.reduce is None or b.store.reduce.fn != "max":
        return None
    if first.store.target != total or readers[a.store.target.source] != {b.store.stmt}:
        return None
    times = _with(least[total.source], replace(b.store, reduce=None, expr=Apply("mul", (c, total), total.dtype)))
    zero, most = Const(0.0, c.dtype), Const(float("inf"), c.dtype)
    test = Apply("and", (Apply("lt", (zero, c), BOOL), Apply("lt", (c, most), BOOL)), BOOL)
    return s.source, IfData(test, (_with(part, replace(a.store, expr=s)), fold, times), (part, fold))


def _factors(e: Expr) -> tuple[Expr, Load | None]:
    """A factor that is one number for the whole kernel, and what it is a factor of, if `e` is such a product."""
    match e:
        case Apply(fn="mul", args=(c, Load(guard=()) as x)) | Apply(fn="mul", args=(Load(guard=()) as x, c)):
            parts = tuple(walk_expr(c))
            is_one = all(isinstance(y, Apply | Scalar | Const) for y in parts) and any(isinstance(y, Scalar) for y in parts)
            return c, x if is_one else None
    return e, None


def _is_least(s: Store) -> bool:
    return s.reduce is None and isinstance(s.expr, Const) and s.expr.value == float("-inf")


def _with(n: Node, s: Store) -> Node:
    return s if isinstance(n, Store) else rebuild(n, lambda body: tuple(_with(x, s) for x in body))


def _subtracted(n: Node, sources: Container[str]) -> Node:
    """`n`, where c s - t is one instruction for those s."""
    def one(e: Expr) -> Expr:
        match e:
            case Apply(fn="sub", args=(Apply(fn="mul") as product, t), dtype=dtype):
                c, s = _factors(product)
                if s is not None and s.source in sources:
                    return Apply("fma", (c, s, Apply("neg", (t,), dtype)), dtype)
        return rebuild_expr(e, one)

    if isinstance(n, Store):
        return replace(n, expr=one(n.expr)) if any(x.source in sources for x in loads(n.expr)) else n
    return rebuild(n, lambda body: tuple(_subtracted(x, sources) for x in body))
