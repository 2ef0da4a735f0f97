"""LoopNest -> LoopNest rewrites before emission. Each keeps the meaning that the interpreter gives."""

from __future__ import annotations

from dataclasses import replace

from polyop.codegen.cpu.apart import rows_lie_apart
from polyop.codegen.cpu.pieces import is_in_pieces
from polyop.codegen.cpu.runs import is_run
from polyop.codegen.cpu.ties import is_cut_across, leaves_out_rows
from polyop.ir.dots import TILE
from polyop.ir.expr import Affine, affine, bounds, names, quasi
from polyop.ir.expr import walk as expr_walk
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Space, Store, has_loop, rebuild, stores, walk

Body = tuple[Node, ...]

SMALL = 16
"""Stores, once for each copy, that are written twice so that rows of two or three whole vectors may bypass the caches."""

TIED = 2
"""Vectors at most of the narrower copies of a tile some of whose rows a window leaves out: each copy has loops for that alone."""


def unswitch(nest: LoopNest) -> LoopNest:
    """Move a test that does not depend on its innermost serial loop out of the loop.

        for k { if t { S } T }   becomes   if t { for k { S T } } else { for k { T } }
    """
    def hoisted(n: Node) -> Node:
        n = rebuild(n, go)
        if not isinstance(n, For) or n.kind != Kind.SERIAL or (len(n.body) > 1 and has_loop(n.body)):
            return n
        for at, child in enumerate(n.body):
            if isinstance(child, If) and not any(n.index in names(t) for t in child.tests):
                then, other = (replace(n, body=n.body[:at] + part + n.body[at + 1:]) for part in (child.then, child.other))
                return If(child.tests, (hoisted(then),) if then.body else (), (hoisted(other),) if other.body else ())
        return n

    def go(body: Body) -> Body:
        return tuple(map(hoisted, body))

    return replace(nest, body=go(nest.body))


def split_full_tiles(nest: LoopNest, width: int, copies: int = 400, masks: bool = True) -> LoopNest:
    """Give every lock-step nest a copy without bounds, taken where all its rows and lanes exist.

        for p in [0, min(6, M - m)) (rows 6) { S }   becomes
        if M - m - 6 >= 0 { for p in [0, 6) (rows 6) { S } } else { for p in [0, min(6, M - m)) (rows 6) { S } }

    A lanes loop's edge is cut further, so that 40 of 64 lanes cost three vectors of 16 and not four. Where rows alone are missing
    one less is written: of 7 rows four and three take no time for an eighth. Only where rows end often, as in images, is there a
    copy for that alone. Where missing rows cost something (`apart.py`) they are asked for before that, else one edge is for any
    number of rows. This ladder is left out where the body, written for every copy of rows and vectors, has more than `copies`
    stores, and where the emitter takes vectors one by one (`is_in_pieces`). Runs stay as they are: the emitter cuts them where
    addresses are aligned. `masks`: whether stores of some lanes cost no more than of all; else what has no loop inside, as a
    copy, asks for lanes where rows are missing.
    """
    def go(body: Body) -> Body:
        return tuple(one(n) for n in body)

    def one(n: Node) -> Node:
        if isinstance(n, For) and is_run(nest, n):
            return n
        split = _versions(nest, stepped(n), width, copies, masks) if isinstance(n, For) and n.kind in LOCKSTEP else None
        return rebuild(n, go) if split is None else split

    return replace(nest, body=decided(go(nest.body)))


def stepped(n: For) -> For:
    """The lock-step loop `n`, where serial loops inside have a copy of their body for the steps in which all of a loop exists.

        for k by 4 { for f in [0, min(4, K - k)) (rows 4) { S } }   becomes
        for k by 4 { if K - k - 4 >= 0 { for f in [0, 4) (rows 4) { S } } else { for f in [0, min(4, K - k)) (rows 4) { S } } }
    """
    def one(c: Node) -> Node:
        c = rebuild(c, lambda body: tuple(map(one, body)))
        if not isinstance(c, For) or c.kind in LOCKSTEP:
            return c
        partial = [x for x in walk(c.body) if isinstance(x, For) and x.kind == Kind.ROWS and c.index in names(x.upper)]
        tests = _full(partial)
        if not tests or any(names(x.upper) & _inside(c) for x in partial):
            return c
        return replace(c, body=(If(tests, tuple(_filled(b, (Kind.ROWS,), frozenset(x.index for x in partial)) for b in c.body),
                                   c.body),))

    return replace(n, body=tuple(map(one, n.body)))


def _inside(n: For) -> frozenset[str]:
    """The loops inside `n`."""
    return frozenset(x.index for x in walk(n.body) if isinstance(x, For))


def decided(body: Body) -> Body:
    """`body` without tests of constants, which sizes that are numbers leave: only the branch that they choose stays.

        if -5 >= 0 { S } else { T }      becomes      T
    """
    return tuple(x for n in body for x in _chosen(rebuild(n, decided)))


def _chosen(n: Node) -> Body:
    match n:
        case If(tests=tests) if any(t.is_constant and t.const < 0 for t in tests):
            return n.other
        case If(tests=tests) if any(t.is_constant for t in tests):
            open_ = tuple(t for t in tests if not t.is_constant)
            return (replace(n, tests=open_),) if open_ else n.then
        case For(body=()):
            return ()
    return (n,)


def _versions(nest: LoopNest, n: For, width: int, copies: int, masks: bool) -> Node | None:
    """The full copy and the edges; None if nothing is partial, or if a bound of lanes depends on a loop inside."""
    inside = _inside(n) | {n.index}
    partial = [x for x in (n, *walk(n.body)) if isinstance(x, For) and x.kind in LOCKSTEP and not x.is_full]
    varying = frozenset(x.index for x in partial if names(x.upper) & inside)
    if any(x.kind == Kind.LANES for x in partial if x.index in varying):
        return None
    partial = [x for x in partial if x.index not in varying]
    steady = frozenset(x.index for x in partial)
    tests = _full(partial)
    if not tests:
        return None
    edge: Node = n
    if not is_in_pieces(n, width) and _size(n, width) <= copies and not is_cut_across(n):
        lanes = list({(p.index, p.extent, _extra(p)): p for p in partial if p.kind == Kind.LANES}.values())
        rows = [x for x in partial if x.kind == Kind.ROWS]
        apart = rows_lie_apart(nest, n)
        beyond = n if lanes and apart else _shorter(n, rows)
        edge = _narrower(beyond, lanes, width, beyond)
        wide = _filled(n, (Kind.LANES,), steady)
        if lanes and rows and not apart:  # loops around are cut where rows are missing
            if not masks and not has_loop((n,)):
                edge = If(_full(lanes), (wide,), (edge,))
            filled = _filled(n, (Kind.ROWS,), steady)
            few = _narrower(filled, lanes, width, filled)
            if not (masks and leaves_out_rows(n) and all(x.extent == width for x in lanes)):  # of one vector a mask is enough
                few = If(_full(lanes), (_filled(n, LOCKSTEP, steady),), (few,))
            return If(_full(rows), (few,), (edge,))
        if lanes and rows and _is_repeated(nest, n):
            edge = If(_full(lanes), (_shorter(wide, rows),), (edge,))
    return If(tests, (_filled(n, LOCKSTEP, steady),), (edge,))


def _shorter(n: Node, rows: list[For]) -> Node:
    """`n` where some of the loops `rows` are missing: if these are one loop, at most all but one run, and no more are written.

    Tiles of as many rows as a matrix unit has take it as long whatever is missing.
    """
    indices = {x.index for x in rows}
    found = {(x.upper, x.extent): x for x in walk((n,)) if isinstance(x, For) and x.index in indices}
    if not has_loop((n,)) or len(indices) != 1 or len(found) != 1:
        return n
    (x,) = found.values()
    most = (x.extent or 0) - 1
    return _narrowed(n, x.index, most, quasi("min", affine(most), *_extra(x))) if 0 < most < TILE - 1 else n


def _is_repeated(nest: LoopNest, n: Node) -> bool:
    """Whether rows end again and again beside the tile `n`, as those of an image do: its result has more than rows and lanes."""
    locked = {x.index for x in walk((n,)) if isinstance(x, For) and x.kind in LOCKSTEP}
    return any(nest.buffer(s.target.source).space == Space.TENSOR and any(
        isinstance(p, Affine) and names(p) and not names(p) & locked for p in s.target.index) for s in stores((n,)))


def _full(partial: list[For]) -> tuple[Affine, ...]:
    """{ all copies of the loops `partial` exist }, as tests."""
    return tuple(dict.fromkeys(b - x.extent for x in partial for b in _extra(x) if x.extent))


def _narrower(n: Node, lanes: list[For], width: int, otherwise: Node) -> Node:
    """`n`, with as few vectors for the loops `lanes` as have lanes to fill; without bounds if these are full and may stream.

    Not where another loop of the name has all lanes, such as one that starts sums of which fewer are added to.
    """
    edge, tied = otherwise, leaves_out_rows(n)
    for x in lanes:
        upper = _extra(x)
        alike = all(f.upper == x.upper for f in walk((n,)) if isinstance(f, For) and f.index == x.index)
        if len(upper) == 1 and x.extent and alike:
            for extent in reversed(range(width, x.extent, width)[:TIED if tied else None]):
                fewer = _narrowed(n, x.index, extent, upper[0])
                if extent > width and _size(fewer, width) <= SMALL and any(s.stream for s in stores((fewer,))):
                    fewer = If((upper[0] - extent,), (_narrowed(n, x.index, extent, affine(extent)),), (fewer,))
                edge = If((affine(extent) - upper[0],), (fewer,), (edge,))
    return edge


def _extra(x: For) -> tuple[Affine, ...]:
    return tuple(b for b in bounds(x.upper) if b != affine(x.extent or 0))


def _size(n: Node, width: int) -> int:
    """Stores of `n`, once for each copy of rows and vectors; a long expression counts for several."""
    match n:
        case For(kind=Kind.ROWS, extent=e) if e:
            return e * sum(_size(c, width) for c in n.body)
        case For(kind=Kind.LANES, extent=e) if e:
            return -(-e // width) * sum(_size(c, width) for c in n.body)
        case For():
            return sum(_size(c, width) for c in n.body)
        case If():
            return sum(_size(c, width) for c in (*n.then, *n.other))
        case Store(expr=e):
            return 1 + sum(1 for _ in expr_walk(e)) // 4
    return 1


def _narrowed(n: Node, index: str, extent: int, upper: Affine) -> Node:
    new = rebuild(n, lambda body: tuple(_narrowed(b, index, extent, upper) for b in body))
    return replace(new, extent=extent, upper=upper) if isinstance(new, For) and new.index == index else new


def _filled(n: Node, kinds: tuple[Kind, ...], only: frozenset[str]) -> Node:
    """`n`, with all copies of the loops `only` that are of these kinds."""
    new = rebuild(n, lambda body: tuple(_filled(b, kinds, only) for b in body))
    fits = isinstance(new, For) and new.kind in kinds and new.index in only
    return replace(new, upper=affine(new.extent)) if isinstance(new, For) and fits and new.extent else new
