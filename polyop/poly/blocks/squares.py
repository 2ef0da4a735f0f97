"""Strategy "squares", chosen and built: on a GPU, a statement that reads along one loop and writes along another.

    others.. r_c c_c (parallel: a block each)
        c_w r_v (threads) ( c_q (rows) ( square[c, r] = X[.., r] ) )       neighbours along what has unit stride in the operand
        r_w c_v (threads) ( r_q (rows) ( Y[.., c] = f(square[c, r]) ) )    neighbours along what has unit stride in the result

A square is one element wider than it has to be, so that neither rows nor columns of it lie in one bank. Where what is read is
hinted to be at most half as long as its side, as lines of 28 pixels are, it is half as long, and twice as long the other way.
Which loops these are, the strides say; transposes and permutations of any rank are of this kind, and so are sums with a
transposed operand.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, map_loads
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.build import Axes, Builder, Part, Plan
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import MAP, Stmt
from polyop.poly.strategies.along import is_few
from polyop.poly.strides import common_start, stride
from polyop.poly.tiles import Axis, Coord, band, bands

THREADS = 256
LINE = 128  # bytes of a row of a square
LEAST = 32  # elements of it


@dataclass(frozen=True, slots=True)
class SquareStrategy:
    """The loop that operands lie along, that which the result lies along, and how many values of each a square has."""

    read: str
    write: str
    down: int
    across: int
    loads: tuple[Load, ...]

    @property
    def sides(self) -> dict[str, int]:
        return {self.read: self.down, self.write: self.across}

    def __str__(self) -> str:
        if self.down == self.across:
            return f"squares: of {self.read} and {self.write} x {self.down}"
        return f"squares: of {self.read} x {self.down} and {self.write} x {self.across}"


def choose(plan: Plan, cluster: Cluster) -> SquareStrategy:
    """The strategy for `cluster`.

    Raises  UnsupportedError, if it is no single statement that reads and writes along two loops.
    """
    s = cluster.stmts[0]
    if len(cluster.stmts) > 1 or s.kind != MAP or not set(plan.classes[s.name].values()) <= {*cluster.shell}:
        raise UnsupportedError("it is no single assignment")
    write = next((c for c in cluster.shell if stride(plan, s, s.target, c) == 1), None)
    along = {x: _along(plan, cluster, s, x, write) for x in s.reads if write and all(isinstance(p, Affine) for p in x.index)}
    found = {x: c for x, c in along.items() if c}
    if not write or not found:
        raise UnsupportedError("it reads along what it writes along")
    read = next(iter(found.values()))
    side = max(LEAST, min(64, LINE // s.target.dtype.bytes_))
    if any(is_few(plan, cluster.stmts, c, side // 2) for c in (read, write)):
        raise UnsupportedError(f"{read} or {write} is short")
    half = side // 2 >= LEAST and 0 < _hinted(plan, s, read) <= side // 2
    down, across = (side // 2, side * 2) if half else (side, side)
    return SquareStrategy(read, write, down, across, tuple(x for x, c in found.items() if c == read))


def _hinted(plan: Plan, s: Stmt, loop: str) -> int:
    """How long a loop over all of a size is in calls, as far as hints say it; else 0."""
    extents = [r.upper - r.lower for r in s.ranges if plan.classes[s.name][r.index] == loop]
    return max((dict(plan.options.hints).get(e.name or "", 0) for e in extents), default=0)


def _along(plan: Plan, cluster: Cluster, s: Stmt, load: Load, write: str) -> str | None:
    """The loop along which `load` has unit stride, if the lanes of the result jump in it."""
    if stride(plan, s, load, write) is not None:
        return None
    return next((c for c in cluster.shell if c != write and stride(plan, s, load, c) == 1), None)


def build(plan: Plan, cluster: Cluster, outer: Axes, q: SquareStrategy) -> Part:
    """The part of the tile program that `q` stands for, inside the loops `outer`."""
    if plan.tiled:
        raise UnsupportedError(f"{' and '.join(plan.tiled)} is taken tile by tile")
    s, b = cluster.stmts[0], Builder(plan, cluster, {})
    loops = [c for c in cluster.shell if c not in (q.read, q.write)]
    axes = dict(outer) | {c: Axis((Coord(c),)) for c in loops}
    starts = {c: common_start(plan, cluster.stmts, c, axes) for c in (q.read, q.write)}
    blocks = {c: Coord(f"{c}_c", n) for c, n in q.sides.items()}

    def turned(fast: str, slow: str) -> tuple[Axes, tuple[str, ...]]:
        """Axes of a square with neighbours along `fast`, and the loops over it: two over threads, one of each thread."""
        wide, tall = q.sides[fast], q.sides[slow]
        high = THREADS // wide
        v, w, rest = Coord(f"{fast}_v", 1, wide), Coord(f"{slow}_w", 1, high), Coord(f"{slow}_q", high, tall)
        b.kinds |= {v.name: (Kind.THREADS, wide), w.name: (Kind.THREADS, high), rest.name: (Kind.ROWS, tall // high)}
        b.weights |= {v.name: 1, w.name: wide}
        inside = {fast: Axis((blocks[fast], v), starts[fast]), slow: Axis((blocks[slow], w, rest), starts[slow])}
        return axes | inside, (w.name, v.name, rest.name)

    def at(inside: Axes) -> tuple[Affine, ...]:
        return tuple(sum((affine(x.name) for x in inside[c].coords[1:]), Affine()) for c in (q.write, q.read))

    reading, read = turned(q.read, q.write)
    writing, write = turned(q.write, q.read)
    every = (*outer, *loops, q.read, q.write)
    copies, squares = [], {}
    for n, load in enumerate(q.loads):
        name = f"{load.source}_{s.name}_square{n or ''}"
        b.buffer(Buffer(name, load.dtype, ((affine(q.across), 1), (affine(q.down + 1), 1)), Space.SHARED))
        square = Load(name, at(reading), load.dtype)
        copies.append(b.move(f"{s.name}_copy{n or ''}", s, reading, every, square, b.place(s, load, reading)))
        squares[b.place(s, load, writing)] = Load(name, at(writing), load.dtype)
    expr = map_loads(b.located(s, s.expr, writing), lambda x: squares.get(x, x))
    b.compute(s, writing, every, expr=expr)
    grid = (*loops, *(blocks[c].name for c in (q.read, q.write)))
    b.kinds |= dict.fromkeys(grid, (Kind.PARALLEL, None))
    return b.part(bands(grid, *(band(read, x) for x in copies), band(write, s.name)))
