"""Op -> LoopNest: the stages of the middle in order, and the ladder they fall down.

    tuned        contractions in packed register tiles, everything else in rows
    default      rows for everything
    distributed  every statement in scalar loops of its own
    interpreter  no nest at all: the caller evaluates the Op
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import islpy as isl

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import loads
from polyop.ir.loops import For, Kind, LoopNest, Node, Space
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.ir.updates import in_place
from polyop.poly.around import NotInTilesError, part_of, sized, skewed
from polyop.poly.atomics import with_atomics
from polyop.poly.blocks.barriers import with_barriers
from polyop.poly.blocks.beside import side_by_side
from polyop.poly.blocks.leading import around, layout_of_one, one_of
from polyop.poly.blocks.lines import settled
from polyop.poly.blocks.owned import by_threads, owned
from polyop.poly.blocks.resident import build, resident
from polyop.poly.build import Part, Plan
from polyop.poly.choice import best, may_pack, program
from polyop.poly.edges import edges
from polyop.poly.generate.generate import generate
from polyop.poly.schedule.batches import share
from polyop.poly.schedule.nodes import Cluster, Resident, Schedule, Serial
from polyop.poly.schedule.nodes import Node as Scheduled
from polyop.poly.schedule.scans import gathered
from polyop.poly.schedule.schedule import schedule
from polyop.poly.scop import Scop, extract
from polyop.poly.sets import quota
from polyop.poly.storage import Storage, find_storage
from polyop.poly.strategies.skew import Skew, find_skew
from polyop.poly.tiles import TileProgram

OPERATIONS = 20_000_000  # of isl for one stage: a few seconds


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
          skew: bool = True, spare: int = 0) -> Middle:
    """The nest of `op_scop` on one rung of the ladder.

    Without `fold`, temporaries keep all their elements; without `skew`, there are no time tiles; `spare`: as in a `Plan`.

    Raises  UnsupportedError, if this rung cannot do it.
    """
    try:
        return _lower(op_scop, layout, target, options, rung, fold, skew, spare, True)
    except NotInTilesError as error:
        found = _lower(op_scop, layout, target, options, rung, fold, skew, spare, False)
        return replace(found, notes=(*found.notes, f"not tile by tile, since {error}"))


def lower_in_block(op_scop: Scop, layout: Layout, target: Target, options: Options, rung: str, fold: bool = True,
                   skew: bool = True, spare: int = 0) -> Middle:
    """The same where blocks of threads are to have all of it, scheduled for one of a batch if there is one and that is so."""
    op, leading = one_of(op_scop.op)
    made = None
    if leading:
        with suppress(UnsupportedError):
            made = lower(scop_of(op), layout_of_one(layout, leading), target, options, rung, fold, skew, spare)
    if not made or not _is_kernels(made):
        return lower(op_scop, layout, target, options, rung, fold, skew, spare)
    note = f"scheduled for one {', '.join(x.index for x in leading)} of all, which are around it"
    return replace(made, scop=op_scop, context=regime(op_scop, options), nest=around(made.nest, op_scop, layout, leading),
                   notes=(*made.notes, note))


def _is_kernels(m: Middle) -> bool:
    """Whether blocks of threads have all of it, and nothing is in memory, of which each of a batch needs its own."""
    return all(isinstance(n, Resident) for n in m.schedule.nodes) and \
        all(isinstance(n, For) and n.kind == Kind.PARALLEL for n in m.nest.body) and \
        all(b.space != Space.WORK for b in m.nest.buffers)


def _lower(op_scop: Scop, layout: Layout, target: Target, options: Options, rung: str, fold: bool, skew: bool,
           spare: int, tile: bool) -> Middle:
    context = regime(op_scop, options)
    fused = rung in ("tuned", "default")
    with quota(OPERATIONS, "schedule"):
        # a thread of a GPU has no memory of its own for a row, so there every statement stands alone
        cut = target.warp > 0 or bool(options.threads and options.shares)
        ordered = options.numerics == "strict"
        deps = edges(op_scop, ordered)
        found = schedule(op_scop, context, rung == "tuned" if target.warp else fused, cut, deps, ordered)
        if fused and not target.warp and fold:
            found = share(found, op_scop, deps, cut, options.columns or not options.threads,
                          options.piecewise)
        if rung == "tuned" and target.warp:
            found = gathered(found, op_scop)
        if target.warp and rung == "tuned" and fold and tile and options.regime == "positive":
            found = resident(found, op_scop, deps)
    plan = Plan(op_scop, found.classes, context, layout, target, options, spare)
    found = replace(found, nodes=tuple(x for n in found.nodes for x in sized(plan, n, tile and rung == "tuned")))
    try:
        storage = find_storage(plan, found, fold and fused)
    except UnsupportedError as error:
        raise NotInTilesError(str(error)) from error
    written: list[_Written] = []
    for node in found.nodes:
        with quota(OPERATIONS, "tile and generate"):
            written.append(_written(plan, node, rung, storage, skew))
    own = {b.name: b for w in written for b in w.program.buffers}
    op = op_scop.op
    used = {x.source for w in written for s in w.program.stmts for e in (s.target, s.expr) for x in loads(e)}
    kept = tuple(b for b in storage.buffers(plan) if b.space != Space.SHARED or b.name in used)
    scalars = tuple((p.name, p.dtype) for p in op.params if not p.is_size)
    plain = LoopNest(op.name, op.sizes, scalars, (*kept, *own.values()),
                     tuple(n for w in written for n in w.nodes), tuple(in_place(op).items()))
    nest = with_barriers(with_atomics(owned(plain))) if target.warp else by_threads(plain)
    nest = side_by_side(nest, target.boxes) if target.warp and rung == "tuned" else nest
    nest = settled(nest, storage.inside, target.warp)
    return Middle(op_scop, context, found, tuple(w.program for w in written), nest, tuple(c for w in written for c in w.chosen),
                  (*found.notes, *storage.notes(), *(n for w in written for n in w.notes)), not storage.is_plain,
                  any(w.is_skewed for w in written))


def regime(scop: Scop, options: Options) -> isl.Set:
    """The sizes a nest is for: all of them, or those where every size is at least 1, and what else the options say of some."""
    if options.regime == "any" or not scop.op.sizes:
        return scop.context
    head = f"[{', '.join(scop.op.sizes)}] -> "
    known = [f"{s} >= 1" for s in scop.op.sizes] + [f"{s} <= {most}" for s, most in options.held]
    known += [f"{s} mod {n} = 0" for s, n in options.multiples if s in scop.op.sizes]
    return scop.context.intersect(isl.Set(f"{head}{{ : {' and '.join(known)} }}"))


@dataclass(frozen=True, eq=False)
class _Written:
    """A top-level node's tile program and its loops; `chosen` and `notes` as in `Middle`."""

    program: TileProgram
    nodes: tuple[Node, ...]
    chosen: tuple[str, ...]
    notes: tuple[str, ...]
    is_skewed: bool = False


def _written(plan: Plan, node: Scheduled, rung: str, storage: Storage, skew: bool) -> _Written:
    """`node` in time tiles where that can be, else step by step."""
    if isinstance(node, Resident):
        return _in_block(plan, node, storage)
    if isinstance(node, Cluster) and storage.is_plain:
        part, nodes = best(plan, node, {}, rung)
        return _Written(program(plan, part), nodes, part.chosen, part.notes)
    tiles = _time_tiles(plan, node, storage) if skew and rung == "tuned" and isinstance(node, Serial) else None
    if tiles is None or not isinstance(node, Serial):
        return _step_by_step(plan, node, rung, storage)
    try:
        w = _whole(plan, skewed(plan, node, tiles), storage)
    except UnsupportedError as error:
        w = _step_by_step(plan, node, rung, storage)
        return replace(w, notes=(f"not {tiles}, since {error}", *w.notes))
    return replace(w, notes=(*w.notes, str(tiles)), is_skewed=True)


def _in_block(plan: Plan, node: Resident, storage: Storage) -> _Written:
    try:
        return _whole(plan, build(plan, node, storage.blocks[node], storage.buffers(plan)), storage)
    except UnsupportedError as error:
        raise NotInTilesError(str(error)) from error


def _time_tiles(plan: Plan, node: Serial, storage: Storage) -> Skew | None:
    """How `node` goes in time tiles; None if it cannot, or keeps all its steps. Threads share the rows of one step instead."""
    if not storage.kept or not may_pack(plan) or plan.options.threads:
        return None
    return find_skew(plan, node)


def _step_by_step(plan: Plan, node: Scheduled, rung: str, storage: Storage) -> _Written:
    """`node` without time tiles.

    Writing loops takes long, so those of a cluster inside others are tried alone only if the whole cannot be written with what
    was built first.
    """
    try:
        return _whole(plan, part_of(plan, node, {}, rung, alone=False), storage)
    except UnsupportedError:
        return _whole(plan, part_of(plan, node, {}, rung, alone=True), storage)


def _whole(plan: Plan, part: Part, storage: Storage) -> _Written:
    """`part` as a program of its own, with temporaries as far as they are kept, and its loops."""
    whole = storage.applied(program(plan, part))
    return _Written(whole, generate(whole, plan.head), part.chosen, part.notes)


def scop_of(op: Op) -> Scop:
    """The Scop of an Op, under the quota."""
    with quota(OPERATIONS, "extract"):
        return extract(op)
