"""What stands around clusters: the loop of a recurrence, its time tiles, loops and tiles of rows that several clusters share.

    recurrence    t! ( parts )
    time tiles    t_c! ( w! ( t_p! ( parts ) ) )
    shared        b.. ( once  i_o ( parts ) )
    columns       n_o ( t! ( parts ) )

How a cluster inside is built is `choice.py`'s business; what stands around it reaches that as axes of loops outside, and as
`Plan.tiled`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import lcm

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.loops import Kind
from polyop.ir.options import Options
from polyop.poly.build import Axes, Part, Plan, shared_out
from polyop.poly.choice import best, may_pack
from polyop.poly.schedule.fold import tile_coord
from polyop.poly.schedule.nodes import Cluster, Group, Node, Resident, Serial, Shared
from polyop.poly.strategies import contract
from polyop.poly.strategies.skew import Skew
from polyop.poly.strides import serial_axis
from polyop.poly.tiles import Axis, Coord, bands, coords_in

ROWS = 192  # of a tile that several contractions take at a time: a block of what they hand over stays in L2


class NotInTilesError(UnsupportedError):
    """Clusters cannot share the tiles of a loop."""


def part_of(plan: Plan, node: Node, outer: Axes, rung: str, alone: bool) -> Part:
    """The part of a node: a cluster's own, or loops around the parts of what is inside, in order or shared out.

    alone   whether of each cluster the loops are tried, see `strategies.best`
    """
    match node:
        case Cluster():
            return best(plan, node, outer, rung, alone)[0]
        case Serial():
            inside = {**outer, node.loop: serial_axis(plan, node)}
            return _joined((node.loop,), [part_of(plan, n, inside, rung, alone) for n in node.body])
        case Shared():
            return _shared(plan, node, outer, rung, alone)
        case Resident():
            raise InternalError("poly: a block's clusters below others")
        case Group():
            raise InternalError("poly: a group outside a cluster")


def _joined(loops: Iterable[str], parts: list[Part], tiles: Iterable[str] = ()) -> Part:
    """One part: `parts` in order, inside `loops` and then `tiles`."""
    inside = bands(tiles, *(t for p in parts for t in p.tree))
    return Part(
        stmts=tuple(s for p in parts for s in p.stmts),
        buffers=tuple(b for p in parts for b in p.buffers),
        tree=bands(loops, *(t for p in parts for t in p.once), *inside),
        kinds=tuple(k for p in parts for k in p.kinds),
        ahead=tuple(t for p in parts for t in p.ahead),
        weights=tuple(w for p in parts for w in p.weights),
        chosen=tuple(c for p in parts for c in p.chosen),
        notes=tuple(n for p in parts for n in p.notes),
    )


def _shared(plan: Plan, node: Shared, outer: Axes, rung: str, alone: bool) -> Part:
    """Clusters in loops that are shared out together, those inside no more; what stands before them keeps its own."""
    inside = {**outer, **{c: Axis((Coord(c),)) for c in node.loops}}
    tiles: tuple[str, ...] = ()
    within = plan
    if node.tile:
        first = Coord(tile_coord(node.tile), node.step)
        within = replace(plan, tiled={node.tile: first}, options=_of_one(plan, node))
        tiles = (first.name,)
    try:
        parts = [part_of(within, n, inside, rung, alone) for n in node.body]
    except UnsupportedError as error:
        raise (NotInTilesError(str(error)) if tiles else error) from error
    whole = _joined(node.loops, parts, tiles)
    before = coords_in(whole.ahead if node.loops else tuple(t for p in parts for t in (*p.ahead, *p.once)))
    before -= coords_in(tuple(t for p in parts for t in p.tree))  # one name may be a loop before and another one inside
    own = tuple(k for k in whole.kinds if k[1] != Kind.PARALLEL or k[0] in before)
    shared = shared_out(plan, (*node.loops, *tiles), len(node.loops) - 1)  # a leading batch is often 1
    return replace(whole, kinds=(*own, *((c, k, e) for c, (k, e) in shared.items())))


def skewed(plan: Plan, node: Serial, skew: Skew) -> Part:
    """A recurrence in time tiles. Its rows are in order, so nothing is shared out."""
    parts = []
    for c, row in zip(node.body, skew.rows, strict=True):
        assert isinstance(c, Cluster)
        inside = replace(c, shell=tuple(k for k in c.shell if k != row))
        parts.append(part_of(plan, inside, skew.axes(row), "tuned", False))
    whole = _joined(skew.around, parts)
    return replace(whole, kinds=tuple(k for k in whole.kinds if k[1] != Kind.PARALLEL))


def sized(plan: Plan, node: Node, tile: bool, outer: Axes | None = None) -> tuple[Node, ...]:
    """`node` with the size of its tiles, a multiple of the rows of each contraction's; without tiles, if they do not fit."""
    outer = outer or {}
    if isinstance(node, Serial):
        inside = {**outer, node.loop: serial_axis(plan, node)}
        return (replace(node, body=tuple(x for n in node.body for x in sized(plan, n, tile, inside))),)
    if not isinstance(node, Shared) or node.tile is None:
        return (node,)
    plain: tuple[Node, ...] = (replace(node, tile=None),) if node.loops else node.body
    if not tile or not may_pack(plan) or plan.options.rows:
        return plain
    outer = {**outer, **{c: Axis((Coord(c),)) for c in node.loops}}
    if node.serial:
        step = _columns(plan, node, outer)
        return (replace(node, step=step),) if step else plain
    rows = 1
    for c in node.body:
        if isinstance(c, Cluster) and c.is_contraction:
            try:
                s = next(iter(contract.choose(plan, c, outer)), None)
            except UnsupportedError:
                return plain
            if s is None or s.row is None or plan.classes[s.what.update.name][s.row] != node.tile:
                return plain
            rows = lcm(rows, s.rows)
    return (replace(node, step=max(1, ROWS // rows) * rows),)


def _columns(plan: Plan, node: Shared, outer: Axes) -> int:
    """How many columns go through all turns of the recurrence in `node` at a time: a block of contractions; 0: they cannot."""
    found: list[tuple[int, int]] = []
    for n in node.body:
        inside = {**outer, n.loop: serial_axis(plan, n)} if isinstance(n, Serial) else outer
        for c in (x for x in (n.body if isinstance(n, Serial) else (n,)) if isinstance(x, Cluster) and x.is_contraction):
            try:
                s = next(iter(contract.choose(plan, c, inside)), None)
            except UnsupportedError:
                return 0
            if s is None or s.beside or s.across or plan.classes[s.what.update.name][s.column] != node.tile:
                return 0
            found.append((s.nc, s.columns))
    whole = lcm(*(columns for _, columns in found))
    return max(1, min(nc for nc, _ in found) // whole) * whole


def _of_one(plan: Plan, node: Shared) -> Options:
    """The options for what is inside: one thread has all turns of a recurrence to itself."""
    return replace(plan.options, threads=False) if node.serial else plan.options
