"""Sums of matrix tiles lie in memory around the loops that add them up, and their rows are loops there.

    acc: f32[32, 32] reg      for p (rows 32) { C[m + p, n + v] = acc[p, v] }      becomes
    acc: f32[32, 32] stack    for p in [0, 32) { C[m + p, n + v] = acc[p, v] }

Vector registers need not hold them then, so a tile has as many rows as the unit likes. Rows in lock step mean sequential loops
anyway; those that turn squares in registers, since lanes lie apart in what they touch, stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyop.codegen.cpu.weight import lie_along, vector_width
from polyop.ir.dots import SUMS, TILE, matrix, product, sided
from polyop.ir.expr import Affine, Load, affine, loads, names
from polyop.ir.loops import For, Kind, LoopNest, Node, Space, Store, placed, rebuild, stores, walk
from polyop.ir.target import Target


def sums_of_tiles(nest: LoopNest, target: Target) -> frozenset[str]:
    """The register buffers that matrix tiles add up, wherever something is added to them."""
    if not target.has("amx-tile") or vector_width(nest, target) != TILE:
        return frozenset()
    found: dict[str, bool] = {}
    for s, around in placed(nest.body, Kind.ROWS, Kind.SERIAL):
        name = s.target.source
        if s.reduce is not None and nest.buffer(name).space == Space.REG:
            found[name] = found.get(name, True) and is_of_tiles(nest, target, s, around)
    return frozenset(x for x, fits in found.items() if fits)


def is_of_tiles(nest: LoopNest, target: Target, s: Store, around: tuple[For, ...]) -> bool:
    """Whether `s` is a sum of products that an instruction does for rows, lanes and the steps of a lane.

        for k { for p { for f (rows) { acc[p, v] += a[.., p, k + f] * b[.., v, f] } } }       p: rows, or a loop over them
    """
    match around:
        case (*_, For(kind=Kind.SERIAL) as deep, For() as row, For(kind=Kind.ROWS) as fine):
            pass
        case _:
            return False
    factors = product(s.expr)
    if factors is None or factors.raised is not None or s.reduce is None or s.reduce.name != "add":
        return False
    left, right = sided(s, factors)
    extents = [e.const for e, _ in nest.buffer(s.target.source).dims if e.is_constant]
    if matrix(target, s.target.dtype, left.dtype, right.dtype) is None or deep.step != fine.extent or len(extents) != 2:
        return False
    rows, lanes = extents
    if s.target.index[0] != affine(row.index) or (rows > TILE and rows % TILE) or -(-rows // TILE) * -(-lanes // TILE) > SUMS:
        return False
    return not any(x.guard for x in (left, right)) and lie_along(nest, left, deep.index, fine.index)


def on_stack(nest: LoopNest, target: Target) -> tuple[frozenset[str], frozenset[str]]:
    """The register buffers that lie in memory: such sums, and all else that their rows have; and these rows."""
    of: dict[str, set[str]] = {b.name: set() for b in nest.buffers if b.space == Space.REG}
    rows = frozenset(n.index for n in walk(nest.body) if isinstance(n, For) and n.kind == Kind.ROWS)
    for s in stores(nest.body):
        for x in (s.target, *loads(s.expr)):
            if x.source in of:
                of[x.source] |= rows & _names(x)
    moved, own = frozenset[str](), frozenset[str]()
    more = sums_of_tiles(nest, target)
    while more != moved:
        moved = more
        own = own.union(*(of[x] for x in moved))
        more = moved | {x for x, used in of.items() if used & own}
    return moved, own


def rolled(nest: LoopNest, target: Target) -> LoopNest:
    """`nest`, with such sums on the stack, beside all else that their rows have in registers."""
    moved, own = on_stack(nest, target)
    if not moved:
        return nest
    lanes = frozenset(n.index for n in walk(nest.body) if isinstance(n, For) and n.kind == Kind.LANES)

    def one(n: Node) -> Node:
        n = rebuild(n, lambda body: tuple(map(one, body)))
        if isinstance(n, For) and n.index in own and n.kind == Kind.ROWS and _is_plain(nest, n, lanes):
            return replace(n, kind=Kind.SERIAL, extent=None)
        return n

    buffers = tuple(replace(b, space=Space.STACK) if b.name in moved else b for b in nest.buffers)
    return replace(nest, buffers=buffers, body=tuple(map(one, nest.body)))


def with_rows_beyond(nest: LoopNest, target: Target) -> LoopNest:
    """`nest` with room behind copies of left operands, of which a last tile reads rows that do not exist.

    Instructions take whole tiles, and what comes of such rows is not stored.
    """
    sums, found = sums_of_tiles(nest, target), dict[str, int]()
    for s, around in placed(nest.body, Kind.ROWS, Kind.SERIAL):
        if s.reduce is None or s.target.source not in sums:
            continue
        factors = product(s.expr)
        assert factors is not None
        left, row = sided(s, factors)[0], around[-2].index
        if nest.buffer(left.source).space == Space.WORK and has_rows_last(left, row):
            rows = nest.buffer(s.target.source).dims[0][0].const
            found[left.source] = max(found.get(left.source, 0), rows - 1)
    buffers = tuple(replace(b, beyond=found.get(b.name, 0)) for b in nest.buffers)
    return replace(nest, buffers=buffers) if found else nest


def has_rows_last(left: Load, row: str) -> bool:
    """Whether nothing but the dimension before the last one goes along `row`: rows that do not exist lie behind all others."""
    return [d for d, p in enumerate(left.index) if not isinstance(p, Affine) or row in names(p)] == [len(left.index) - 2]


def _names(x: Load) -> frozenset[str]:
    return frozenset[str]().union(*(names(p) for p in x.index if isinstance(p, Affine)))


def _is_plain(nest: LoopNest, n: For, lanes: frozenset[str]) -> bool:
    """Whether whatever has lanes in `n` has them side by side."""
    return all(lie_along(nest, x, *(lanes & _names(x))) for x in _touched(n) if lanes & _names(x)
               and nest.buffer(x.source).space == Space.TENSOR)


def _touched(n: For) -> Iterator[Load]:
    for s in stores(n.body):
        yield from (s.target, *loads(s.expr))
