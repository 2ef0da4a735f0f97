"""Reads whose place is held inside by a minimum or maximum along the lanes: plain vectors, or masked ones at the border.

    for v (lanes 64) { Y[c + v] = X[max(c + v - 2, 0)] }

becomes

    for v (lanes 64) { if c - 2 >= 0 { Y[c + v] = X[c + v - 2] } else { Y[c + v] = c + v - 2 >= 0 ? X[c + v - 2] : X[0] } }

The test says that all lanes lie inside, so it does not depend on them; where some lanes may be missing, masks are needed
anyway, and there is no test. Without this every lane would be fetched alone: { [v] -> [max(c + v - 2, 0)] } has no stride,
though each of its pieces has.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.clamps import cases, decided, innermost, lowest_terms
from polyop.ir.expr import Affine, Apply, Expr, Load, Test, affine, map_loads, names, substitute
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store, rebuild


def declamp(nest: LoopNest) -> LoopNest:
    """`nest` with every such read along a dimension of unit stride taken apart."""
    def go(body: tuple[Node, ...], lanes: For | None) -> tuple[Node, ...]:
        return tuple(one(n, lanes) for n in body)

    def one(n: Node, lanes: For | None) -> Node:
        if isinstance(n, Store):
            return _apart(n, lanes, nest) if lanes else n
        if not isinstance(n, For) or n.kind != Kind.LANES:
            return rebuild(n, lambda body: go(body, lanes))
        new = go(n.body, n)
        if len(new) == 1 and isinstance(new[0], If) and not isinstance(n.body[0], If):  # the tests do not depend on the lanes
            return If(new[0].tests, (replace(n, body=new[0].then),), (replace(n, body=new[0].other),))
        return replace(n, body=new)

    return replace(nest, body=go(nest.body, None))


def _apart(n: Store, lanes: For, nest: LoopNest) -> Node:
    tests: list[Affine] = []

    def plain(x: Load) -> Load:
        d = _unit(nest.buffer(x.source))
        found = _interior(x.index[d], lanes) if d is not None else None
        if d is None or found is None:
            return x
        tests.extend(found[1])
        return replace(x, index=(*x.index[:d], found[0], *x.index[d + 1 :]))

    def pieces(x: Load) -> Expr:
        d = _unit(nest.buffer(x.source))
        return x if d is None or _interior(x.index[d], lanes) is None else _pieces(x, d, lanes.index)

    inside = map_loads(n.expr, plain)
    if not tests:
        return n
    border = replace(n, expr=map_loads(n.expr, pieces))
    return If(_strongest(tests), (replace(n, expr=inside),), (border,)) if lanes.is_full else border


def _strongest(tests: list[Affine]) -> tuple[Affine, ...]:
    """Of tests that differ by a constant, the one that implies the others."""
    least: dict[Affine, int] = {}
    for t in tests:
        least[t - t.const] = min(t.const, least.get(t - t.const, t.const))
    return tuple(t + c for t, c in least.items())


def _unit(b: Buffer) -> int | None:
    """The dimension along which lanes may be one vector."""
    return b.unit if b.space == Space.TENSOR else len(b.dims) - 1 if b.space == Space.WORK and b.dims else None


def _interior(p: object, lanes: For) -> tuple[Affine, tuple[Affine, ...]] | None:
    """(`p` without its clamps, what must be >= 0 for that); None if there are none, or if lanes are no neighbours then."""
    found = _without(p, lanes) if isinstance(p, Affine) else None
    return found if found is not None and found[1] and abs(found[0].factor(lanes.index)) == 1 else None


def _without(p: Affine, lanes: For) -> tuple[Affine, tuple[Affine, ...]] | None:
    total, tests = Affine(const=p.const), ()  # type: Affine, tuple[Affine, ...]
    for atom, factor in p.terms:
        if isinstance(atom, str) or lanes.index not in names(affine(atom)):
            total = total + affine(atom) * factor
            continue
        parts = [_without(a, lanes) for a in atom.args] if atom.op in ("min", "max") else []
        known = [x for x in parts if x is not None]
        if not known or len(known) != len(parts):
            return None
        args = [x for x, _ in known]
        main = max(args, key=lambda x: (x.factor(lanes.index) != 0, x.factor(lanes.index)))
        for x in args:
            if x is not main:
                least = _least(main - x if atom.op == "max" else x - main, lanes)
                tests = (*tests, least)
        tests = (*tests, *(t for _, inner in known for t in inner))
        total = total + main * factor
    return total, tests


def _least(x: Affine, lanes: For) -> Affine:
    """Something that is >= 0 just if `x` is, in all lanes that may exist."""
    assert lanes.extent is not None
    return lowest_terms(substitute(x, {lanes.index: affine(0 if x.factor(lanes.index) >= 0 else lanes.extent - 1)}))


def _pieces(x: Load, d: int, lane: str) -> Expr:
    """`x` as a choice among reads without clamps in position `d`."""
    p = x.index[d]
    clamp = innermost(p, lane) if isinstance(p, Affine) else None
    if not isinstance(p, Affine) or clamp is None:
        return x

    def at(value: Affine) -> Expr:
        return _pieces(replace(x, index=(*x.index[:d], decided(p, clamp, value), *x.index[d + 1 :])), d, lane)

    tests, first, rest = cases(clamp)
    return Apply("select", (Test(tests), at(first), at(rest)), x.dtype)
