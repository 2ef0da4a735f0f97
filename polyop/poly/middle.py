"""Op -> LoopNest: the stages of the middle in order, and the ladder they fall down.

    tuned        contractions in packed register tiles, everything else in rows
    default      rows for everything
    distributed  every statement in scalar loops of its own
    interpreter  no nest at all: the caller evaluates the Op
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import lcm

import islpy as isl

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.loops import Buffer, Kind, LoopNest, Node
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.ir.updates import in_place
from polyop.poly import columns, contract, lanes, packed, rows
from polyop.poly.batches import share
from polyop.poly.build import Axes, Part, Plan, global_buffers, is_local, serial_axis, shared_out
from polyop.poly.edges import edges
from polyop.poly.fold import Folds, find_batches, find_folds, find_reuse, folded, folded_buffer, reused, tile_coord
from polyop.poly.generate import generate
from polyop.poly.nodes import Cluster, Group, Schedule, Serial, Shared
from polyop.poly.schedule import schedule
from polyop.poly.scop import Scop, extract
from polyop.poly.sets import quota
from polyop.poly.skew import Skew, find_skew
from polyop.poly.tiles import Axis, Coord, TileProgram, bands, coords_in

OPERATIONS = 20_000_000  # of isl for one stage: a few seconds
ROWS = 192  # of a tile that several contractions take at a time: a block of what they hand over stays in L2


@dataclass(frozen=True, eq=False)
class Middle:
    """What the middle made, stage by stage.

    chosen      the strategy of each cluster; `notes`: what was refused and why
    has_folds   whether some temporary is not kept whole; `has_skews`: whether some recurrence goes in time tiles
    """

    scop: Scop
    context: isl.Set
    schedule: Schedule
    programs: tuple[TileProgram, ...]
    nest: LoopNest
    chosen: tuple[str, ...]
    notes: tuple[str, ...]
    has_folds: bool
    has_skews: bool = False


def lower(op_scop: Scop, layout: Layout, target: Target, options: Options, rung: str, fold: bool = True,
          skew: bool = True) -> Middle:
    """The nest of `op_scop` on one rung of the ladder.

    Without `fold`, temporaries keep all their elements; without `skew`, there are no time tiles.

    Raises  UnsupportedError, if this rung cannot do it.
    """
    try:
        return _lower(op_scop, layout, target, options, rung, fold, skew, True)
    except _NotInTilesError as error:
        found = _lower(op_scop, layout, target, options, rung, fold, skew, False)
        return replace(found, notes=(*found.notes, f"not tile by tile, since {error}"))


class _NotInTilesError(UnsupportedError):
    """Clusters cannot share the tiles of a loop."""


def _lower(op_scop: Scop, layout: Layout, target: Target, options: Options, rung: str, fold: bool, skew: bool,
           tile: bool) -> Middle:
    context = regime(op_scop, options)
    with quota(OPERATIONS, "schedule"):
        # a thread of a GPU has no memory of its own for a row, so there every statement stands alone
        fuse = rung in ("tuned", "default") and not target.warp
        found = schedule(op_scop, context, fuse)
        if fuse and fold:
            found = share(found, op_scop, edges(op_scop))
    plan = Plan(op_scop, found.classes, context, layout, target, options)
    found = replace(found, nodes=tuple(x for n in found.nodes for x in sized(plan, n, tile and rung == "tuned")))
    notes = list(found.notes)
    chosen: list[str] = []
    programs: list[TileProgram] = []
    body: list[Node] = []
    buffers: dict[str, Buffer] = {}
    local = [t.name for t in op_scop.op.temporaries if any(is_local(plan, c, t.name) for c in clusters_of(found.nodes))]
    batches = find_batches(op_scop, found, local)
    folds = find_folds(op_scop, found, local) if fold and rung in ("tuned", "default") else {}
    notes += [f"{t} is kept for {kept} steps of dimension {d} only" for t, x in folds.items() for d, kept in x.items()]
    notes += [f"one batch of {t} is kept at a time, by each thread" for t in batches]
    folds |= batches
    reuse = find_reuse(op_scop, clusters_of(found.nodes), local) if fold and rung in ("tuned", "default") else {}
    reuse = {t: u for t, u in reuse.items() if folds.get(t) == folds.get(u)}
    notes += [f"{t} takes the memory of {u}" for t, u in reuse.items()]
    has_skews = False
    for node in found.nodes:
        with quota(OPERATIONS, "tile and generate"):
            in_tiles = _in_time_tiles(plan, node, folds, reuse, chosen, notes) if skew and rung == "tuned" else None
            has_skews = has_skews or in_tiles is not None
            program, nodes = in_tiles or _node(plan, node, rung, folds, reuse, chosen, notes)
        programs.append(program)
        body += nodes
        buffers |= {b.name: b for b in program.buffers}
    kept = global_buffers(plan, (*local, *reuse))
    every = (*(folded_buffer(b, folds, batches) for b in kept), *buffers.values())
    op = op_scop.op
    scalars = tuple((p.name, p.dtype) for p in op.params if not p.is_size)
    nest = LoopNest(op.name, op.sizes, scalars, every, tuple(body), tuple(in_place(op).items()))
    return Middle(op_scop, context, found, tuple(programs), nest, tuple(chosen), tuple(notes), bool(folds or reuse), has_skews)


def regime(scop: Scop, options: Options) -> isl.Set:
    """The sizes a nest is for: all of them, or those where every size is at least 1."""
    if options.regime == "any" or not scop.op.sizes:
        return scop.context
    head = f"[{', '.join(scop.op.sizes)}] -> "
    return scop.context.intersect(isl.Set(f"{head}{{ : {' and '.join(f'{s} >= 1' for s in scop.op.sizes)} }}"))


def sized(plan: Plan, node: Cluster | Serial | Shared, tile: bool) -> tuple[Cluster | Serial | Shared, ...]:
    """`node` with the size of its tiles, a multiple of the rows of each contraction's; without tiles, if they do not fit."""
    if not isinstance(node, Shared) or node.tile is None:
        return (node,)
    plain: tuple[Cluster | Shared, ...] = (replace(node, tile=None),) if node.loops else node.body
    if not tile or not _is_packed(plan) or plan.options.rows:
        return plain
    around = {c: Axis((Coord(c),)) for c in node.loops}
    rows = 1
    for c in node.body:
        if c.is_contraction:
            try:
                s = next(iter(contract.choose(plan, c, around)), None)
            except UnsupportedError:
                return plain
            if s is None or s.row is None or plan.classes[s.what.update.name][s.row] != node.tile:
                return plain
            rows = lcm(rows, s.rows)
    return (replace(node, step=max(1, ROWS // rows) * rows),)


def _is_packed(plan: Plan) -> bool:
    """Whether contractions may be packed at all."""
    return plan.options.regime == "positive" and not plan.target.warp


def clusters_of(nodes: tuple[Cluster | Serial | Group | Shared, ...]) -> list[Cluster]:
    out: list[Cluster] = []
    for n in nodes:
        if isinstance(n, Cluster):
            out.append(n)
        elif isinstance(n, Serial | Shared):
            out += clusters_of(n.body)
    return out


def _node(plan: Plan, node: Cluster | Serial | Shared, rung: str, folds: Folds, reuse: Mapping[str, str], chosen: list[str],
          notes: list[str]) -> tuple[TileProgram, tuple[Node, ...]]:
    """The tile program of one top-level node and its loops.

    Writing loops takes long, so those of a cluster inside a recurrence are tried alone only if the whole cannot be written
    with what was built first.
    """
    if isinstance(node, Cluster) and not folds and not reuse:
        part, name, body = _best(plan, node, {}, rung, notes)
        chosen.append(f"{node}: {name}")
        return program(plan, part), body
    for alone in (False, True):
        names: list[str] = []
        reasons: list[str] = []
        try:
            whole = reused(folded(program(plan, _part(plan, node, {}, rung, names, reasons, alone)), folds), reuse)
            nodes = generate(whole, plan.head)
        except UnsupportedError:
            if alone:
                notes += reasons
                raise
        else:
            break
    chosen += names
    notes += reasons
    return whole, nodes


def _part(plan: Plan, node: Cluster | Serial | Group | Shared, outer: Axes, rung: str, chosen: list[str], notes: list[str],
          alone: bool) -> Part:
    """The part of a node: a cluster's own, or loops around the parts of what is inside, in order or shared out."""
    if isinstance(node, Cluster):
        part, name, _ = _best(plan, node, outer, rung, notes, alone)
        chosen.append(f"{node}: {name}")
        return part
    if isinstance(node, Group):
        raise InternalError("poly: a group outside a cluster")
    around = {c: Axis((Coord(c),)) for c in node.loops} if isinstance(node, Shared) else {node.loop: serial_axis(plan, node)}
    axes = {**outer, **around}
    tiles: tuple[str, ...] = ()
    if isinstance(node, Shared) and node.tile:
        first = Coord(tile_coord(node.tile), node.step)
        plan = replace(plan, tiled={node.tile: first})
        tiles = (first.name,)
    try:
        parts = [_part(plan, n, axes, rung, chosen, notes, alone) for n in node.body]
    except UnsupportedError as error:
        raise (_NotInTilesError(str(error)) if tiles else error) from error
    tree = (*(t for p in parts for t in p.once), *bands(tiles, *(t for p in parts for t in p.tree)))
    kinds = tuple(k for p in parts for k in p.kinds)
    if isinstance(node, Shared):  # a leading batch is often 1
        before = coords_in(tuple(t for p in parts for t in (p.ahead if node.loops else (*p.ahead, *p.once))))
        kinds = tuple(k for k in kinds if k[1] != Kind.PARALLEL or k[0] in before)
        shared = shared_out(plan, (*node.loops, *tiles), len(node.loops) - 1)
        kinds = (*kinds, *((c, k, e) for c, (k, e) in shared.items()))
    return Part(tuple(s for p in parts for s in p.stmts), tuple(b for p in parts for b in p.buffers),
                bands(around, *tree), kinds, tuple(t for p in parts for t in p.ahead))


def _in_time_tiles(plan: Plan, node: Cluster | Serial | Shared, folds: Folds, reuse: Mapping[str, str], chosen: list[str],
                   notes: list[str]) -> tuple[TileProgram, tuple[Node, ...]] | None:
    """The tile program of a top-level recurrence in time tiles and its loops; None if it is none, or cannot be written so."""
    if not isinstance(node, Serial) or not folds or not _is_packed(plan) or plan.options.threads:
        return None
    skew = find_skew(plan, node)
    if skew is None:
        return None
    names: list[str] = []
    reasons: list[str] = []
    try:
        whole = reused(folded(program(plan, _skewed(plan, node, skew, names, reasons)), folds), reuse)
        nodes = generate(whole, plan.head)
    except UnsupportedError as error:
        notes.append(f"not {skew}, since {error}")
        return None
    chosen += names
    notes += [*reasons, str(skew)]
    return whole, nodes


def _skewed(plan: Plan, node: Serial, skew: Skew, chosen: list[str], notes: list[str]) -> Part:
    """The part of a recurrence in time tiles. Its rows are in order, so nothing is shared out."""
    parts = []
    for c, row in zip(node.body, skew.rows, strict=True):
        assert isinstance(c, Cluster)
        inside = replace(c, shell=tuple(k for k in c.shell if k != row))
        parts.append(_part(plan, inside, skew.axes(row), "tuned", chosen, notes, False))
    kinds = tuple(k for p in parts for k in p.kinds if k[1] != Kind.PARALLEL)
    return Part(tuple(s for p in parts for s in p.stmts), tuple(b for p in parts for b in p.buffers),
                bands(skew.around, *(t for p in parts for t in p.tree)), kinds, tuple(t for p in parts for t in p.ahead))


def program(plan: Plan, part: Part) -> TileProgram:
    return TileProgram(plan.context, part.stmts, part.buffers, (*part.ahead, *part.tree), part.kinds)


def _best(plan: Plan, cluster: Cluster, outer: Axes, rung: str, notes: list[str],
          alone: bool = True) -> tuple[Part, str, tuple[Node, ...]]:
    """The first strategy that can be built and, if `alone`, whose loops can be written; reasons against the others are noted."""
    attempts: list[tuple[str, Callable[[], Part]]] = []
    if rung == "tuned" and _is_packed(plan):
        choose = contract.choose if cluster.is_contraction else columns.choose
        try:
            for c in choose(plan, cluster, outer):
                c = contract.in_tiles(plan, c, next(iter(plan.tiled.values())).step) if plan.tiled else c
                attempts.append((str(c), partial(packed.build, plan, cluster, outer, c)))
        except UnsupportedError as error:
            notes.append(f"{cluster}: not packed, since {error}")
    for r in lanes.choose(plan, cluster):
        if not (r.lane or any(r.inner)) or (rung in ("tuned", "default") and not plan.target.warp):
            attempts.append((str(r), partial(rows.build, plan, cluster, outer, r)))
    reasons = []
    for name, attempt in attempts:
        try:
            part = attempt()
            tiles = (c.name for c in plan.tiled.values())
            whole = replace(part, tree=bands(outer, *part.once, *bands(tiles, *part.tree)))
            return part, name, generate(program(plan, whole), plan.head) if alone else ()
        except UnsupportedError as error:
            reasons.append(f"{cluster}: not {name}, since {error}")
            notes.append(reasons[-1])
        except (KeyError, IndexError, StopIteration, ValueError) as error:
            raise InternalError(f"strategy {name} of {cluster}: {error!r}") from error
    raise UnsupportedError("; ".join(reasons))


def scop_of(op: Op) -> Scop:
    """The Scop of an Op, under the quota."""
    with quota(OPERATIONS, "extract"):
        return extract(op)
