"""LoopNest -> LoopNest for kernels with matrix units: a sum that is added to a register is added up in that register.

    acc = 0   acc += p V (the unit)   o = o r + acc              becomes              o = o r   o += p V (the unit)

where nobody else uses `acc`, and what `o` is multiplied by is known in front of the product. It is the same sum, begun with
another term than 0, and takes half of the registers, with which a multiprocessor has another block. Where `r` is 1 in all rows of
a warp, as it is where no row has found a greater number, nothing is multiplied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import replace

from polyop.codegen.nested import Tile, tile
from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Apply, Const, Expr, Load, loads
from polyop.ir.loops import IfData, LoopNest, Node, Space, Store, rebuild, stores


def inplace(nest: LoopNest, products: Container[str], rows: Container[str]) -> LoopNest:
    """`nest`, whose `products`, the statements of units, are added up so; `rows`: the registers with a value for each row."""
    registers = {b.name: (b.dtype, b.dims) for b in nest.buffers if b.space == Space.REG}
    used = Counter(_used(nest.body))

    def go(body: tuple[Node, ...]) -> tuple[Node, ...]:
        for t in filter(None, map(tile, body)):
            acc = t.store.target
            at = [i for i, n in enumerate(body) if acc.source in _used((n,))]
            mine = Counter(_used([body[i] for i in at]))
            if t.is_zero and not t.tests and len(at) > 2 and used[acc.source] == mine[acc.source]:
                found = _added(body, at, t, products, rows)
                if found and registers.get(found[0], ()) == registers.get(acc.source):
                    return go(found[1])
        return tuple(rebuild(n, go) for n in body)

    return replace(nest, body=go(nest.body))


def _used(body: Sequence[Node]) -> list[str]:
    """The buffers of a body, once for each place."""
    return [x.source for s in stores(tuple(body)) for x in (s.target, *loads(s.expr))]


def _added(body: tuple[Node, ...], at: Sequence[int], zero: Tile, products: Container[str], rows: Container[str]
           ) -> tuple[str, tuple[Node, ...]] | None:
    """The register that takes a sum which begins as `zero`, and the body that adds it up there; None, if that is not the same.

    at   the places in `body` of all that uses the sum: it begins, takes terms, and is read
    """
    begins, *terms, reads = at
    acc, last = zero.store.target, tile(body[reads])
    mine = [s for s in stores(tuple(body[i] for i in terms)) if acc.source in _used((s,))]
    if tile(body[begins]) != zero or last is None or last.tests or last.store.reduce is not None or not any(
            s.stmt in products for s in mine) or not all(_is_term(s, acc) for s in mine):
        return None
    out, before = last.store.target, _without(last.store.expr, acc)
    if before is None or out.index != acc.index or {f.index for f in last.loops} != {f.index for f in zero.loops}:
        return None
    between = body[terms[0]:reads]
    written = {s.target.source for s in stores(between)}
    own = [x for x in loads(before) if x.source == out.source]
    if out.source in _used(between) or not own or any(x.index != out.index for x in own):
        return None
    if any(x.source in written for x in loads(before)):
        return None
    first = _unless_one(_with(body[reads], replace(last.store, expr=before)), before, out, rows)
    rest = [_into(n, acc.source, out.source) for n in between]
    return out.source, (*body[:begins], *body[begins + 1:terms[0]], first, *rest, *body[reads + 1:])


def _unless_one(n: Node, times: Expr, out: Load, rows: Container[str]) -> Node:
    """`n`, which multiplies the register `out`; not where all lanes of a warp have 1 for the factor, if rows have one each."""
    match times:
        case Apply(fn="mul", args=(x, y)) if out in (x, y):
            factor = y if x == out else x
            if not isinstance(factor, Load) or factor.source not in rows or factor.guard:
                return n
            return IfData(Apply("ne", (factor, Const(1.0, factor.dtype)), BOOL), (n,), ())
    return n


def _is_term(s: Store, acc: Load) -> bool:
    """Whether `s` adds to the sum something else."""
    return s.target.source == acc.source and s.reduce is not None and s.reduce.fn == "add" and not any(
        x.source == acc.source for x in loads(s.expr))


def _without(e: Expr, acc: Load) -> Expr | None:
    """x of `x + acc`, where x is something else."""
    match e:
        case Apply(fn="add", args=(x, y)) if acc in (x, y):
            rest = x if y == acc else y
            return None if any(z.source == acc.source for z in loads(rest)) else rest
    return None


def _with(n: Node, s: Store) -> Node:
    """The tile `n` with another store."""
    return s if isinstance(n, Store) else rebuild(n, lambda body: tuple(_with(x, s) for x in body))


def _into(n: Node, acc: str, out: str) -> Node:
    """`n`, which adds to another register."""
    if isinstance(n, Store):
        return replace(n, target=replace(n.target, source=out)) if n.target.source == acc else n
    return rebuild(n, lambda body: tuple(_into(x, acc, out) for x in body))
