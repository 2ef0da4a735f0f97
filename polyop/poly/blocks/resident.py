"""Recurrences in one block of a GPU's threads: what its clusters hand over, and what the next turn needs, never leaves the block.

    t! ( [i j : scores]  [i : maxima, powers]  [i v : sums] )   [i : ..]  [i v : results]

becomes, where i is a row of each contraction and all dependences stay at one i,

    64 of i in a block
        t! ( scores: staged   maxima, powers: spread   sums: staged )   ..: spread   results: as the sums

Temporaries lie in shared memory, those tiles and turns of them that are still needed. Those of the last contraction that only
what has its rows and columns reads stay in the registers of the threads that make them. Extents that are not constant need a
bound, `Options.held`. What cannot be so is refused here; that what was built keeps each value is for the checker to prove.

Source: Dao et al., "FlashAttention", 2022, for what is kept where.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from polyop.ir.atoms import Atom, atoms_for
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import Buffer, Kind, Space
from polyop.ir.target import Target
from polyop.poly.blocks import blocktile, fragments, fragmentunits, spread, spreadchoice, staged, tilechoice
from polyop.poly.blocks.blocktile import StagedStrategy
from polyop.poly.blocks.fragments import Fragments
from polyop.poly.blocks.staged import Cells
from polyop.poly.blocks.staging import Turns
from polyop.poly.build import Axes, Part, Plan
from polyop.poly.edges import Edge
from polyop.poly.homes import aligned, is_local, uses
from polyop.poly.schedule.batches import Run
from polyop.poly.schedule.fold import Folds, Tile, kept_along, tile_coord
from polyop.poly.schedule.nodes import Cluster, Group, Node, Resident, Schedule, Serial
from polyop.poly.scop import MAP, UPDATE, Scop, Stmt
from polyop.poly.strides import serial_axis
from polyop.poly.tiles import Axis, Coord, bands

ROWS = 64
BESIDE = 3  # blocks on a multiprocessor of a unit that reads shared memory, where their lanes have registers for that


def resident(found: Schedule, scop: Scop, deps: Sequence[Edge]) -> Schedule:
    """`found`, with each recurrence around several contractions that has rows to itself, and what follows it, in one block."""
    classes = {s: dict(own) for s, own in found.classes.items()}
    out: list[Node] = []
    left = list(found.nodes)
    while left:
        node = left.pop(0)
        run = _run(node, left, scop, deps, classes)
        if run is None or not isinstance(node, Serial):
            out.append(node)
            continue
        after = run.clusters[len(node.body):]
        out.append(_in_block(node, run, classes))
        left = left[len(after):]
    return replace(found, nodes=tuple(out), classes=classes)


def _run(node: Node, left: Sequence[Node], scop: Scop, deps: Sequence[Edge], classes: dict[str, dict[str, str]]) -> Run | None:
    """The clusters of the recurrence `node` and as many of those after it as have its rows; None if it has none to itself."""
    if not isinstance(node, Serial) or node.is_reversed:
        return None
    clusters = tuple(n for n in node.body if isinstance(n, Cluster))
    if len(clusters) < len(node.body) or sum(c.is_contraction for c in clusters) < 2:
        return None
    best = None
    for n in (None, *left):
        if n is not None and not isinstance(n, Cluster):
            break
        clusters += (n,) if n else ()
        run = Run(clusters, scop, deps, classes)
        if not run.in_block()[1]:
            break
        best = run
    return best


def _in_block(node: Serial, run: Run, classes: dict[str, dict[str, str]]) -> Resident:
    """The node; `classes` are changed, so that each loop around has one class throughout."""
    loops, tile = run.in_block()
    run.rename(loops, classes)
    gone = {c for x in loops for c in x}
    inside = tuple(replace(c, shell=tuple(k for k in c.shell if k not in gone)) for c in run.clusters)
    n = len(node.body)
    body: list[Serial | Cluster] = [replace(node, body=inside[:n])]
    rows = list(tile[:n])
    for c, row in zip(inside[n:], tile[n:], strict=True):
        parts = _apart(c)
        body += parts
        rows += [row] * len(parts)
    return Resident(tuple(x[0] for x in loops), tuple(body), tuple(rows), ROWS)


def _apart(c: Cluster) -> tuple[Cluster, ...]:
    """`c`, with each group that has one loop inside the shell, and reduces nothing, as a cluster of its own."""
    out: list[Cluster] = []
    for g in c.body:
        is_matrix = isinstance(g, Group) and len(g.kept) == 1 and not g.reduced and all(s.kind == MAP for s in g.stmts)
        if isinstance(g, Group) and is_matrix:
            out.append(Cluster(g.stmts, (*c.shell, *g.kept), (replace(g, kept=()),)))
        elif out and len(out[-1].shell) == len(c.shell):
            out[-1] = replace(out[-1], stmts=(*out[-1].stmts, *g.stmts), body=(*out[-1].body, g))
        else:
            out.append(Cluster(g.stmts, c.shell, (g,)))
    return tuple(out)


# --- what is kept where ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Kept:
    """Temporaries of a block: how much of each is kept in shared memory (`inside`), and those kept in registers (`held`).

    units   those in shared memory that a matrix unit may read there itself
    made    those that a unit of the target writes there from its registers, if it has such units
    """

    inside: Folds
    held: frozenset[str]
    units: frozenset[str] = frozenset()
    made: Mapping[str, Atom] = field(default_factory=dict)


def kept(plan: Plan, schedule: Schedule, node: Resident) -> Kept:
    """What a block keeps of the temporaries that only `node` uses.

    Raises  UnsupportedError, if one of them is used elsewhere, or has an extent without a bound.
    """
    scop, held = plan.scop, _held(plan, node)
    clusters = _clusters(node)
    inside: Folds = {}
    serial = next(n for n in node.body if isinstance(n, Serial))
    for tensor in dict.fromkeys(s.target.source for s in node.stmts):
        t = scop.op.tensor(tensor)
        if t.role != "temp" or tensor in held or _in_registers(plan, clusters, tensor, node):
            continue
        if not set(scop.users(tensor)) <= set(node.stmts):
            raise UnsupportedError(f"{tensor} is used outside of the block")
        found: dict[int, int | Tile] = {}
        for d, extent in enumerate(t.shape):
            if any(kept_along(scop, schedule, (c,), node.stmts, tensor, d) == 1 for c in node.loops):
                found[d] = 1
            elif kept_along(scop, schedule, node.tile, node.stmts, tensor, d) == 1:
                found[d] = Tile(tile_coord(node.tile[0]), node.step)
            elif (turns := kept_along(scop, schedule, (serial.loop,), serial.stmts, tensor, d)) is not None:
                found[d] = turns
            elif not extent.is_constant:
                raise UnsupportedError(f"a block would keep {extent} elements of {tensor}")
        inside[tensor] = found
    products = [(u, _atoms(plan, u)) for c in clusters if c.is_contraction for u in c.stmts if u.kind == UPDATE]
    units = {x.source for u, atoms in products for x in u.reads if any(a.a_map is None and a.b_map is None for a in atoms)}
    made = {u.target.source: next(iter(atoms)) for u, atoms in products if atoms}
    return Kept(inside, held, frozenset(units & inside.keys()), {t: a for t, a in made.items() if t in inside})


def _atoms(plan: Plan, u: Stmt) -> tuple[Atom, ...]:
    """The matrix units of the target for an update."""
    found = tuple(dict.fromkeys(u.reads))
    return atoms_for(plan.target, found[0].dtype, found[1].dtype, u.target.dtype) if len(found) == 2 else ()


def _clusters(node: Resident | Serial) -> tuple[Cluster, ...]:
    return tuple(c for n in node.body for c in (n.body if isinstance(n, Serial) else (n,)) if isinstance(c, Cluster))


def _in_registers(plan: Plan, clusters: Sequence[Cluster], tensor: str, node: Resident) -> bool:
    """Whether one cluster alone uses it, and has one element of it for each point."""
    for c in clusters:
        if is_local(plan, c, tensor):
            around = {*c.shell, *node.loops, *(n.loop for n in node.body if isinstance(n, Serial))}
            dims = range(len(plan.scop.op.tensor(tensor).shape))
            return c.is_contraction or all(aligned(plan, s, x, d, around) for s, x in uses(c, tensor) for d in dims)
    return False


def _held(plan: Plan, node: Resident) -> frozenset[str]:
    """What the last contraction makes, and what only it and clusters with its rows and columns use beside that."""
    last = [c for c in _clusters(node) if c.is_contraction][-1]
    alike = {s for c in _clusters(node) if c is last or _is_matrix(c) for s in c.stmts}
    mine = dict.fromkeys(s.target.source for s in last.stmts)
    return frozenset(t for t in mine if plan.scop.op.tensor(t).role == "temp" and not is_local(plan, last, t)
                     and set(plan.scop.users(t)) <= alike)


def _is_matrix(c: Cluster) -> bool:
    return not c.is_contraction and len(c.shell) == 2 and all(s.kind == MAP for s in c.stmts)


# --- the part ------------------------------------------------------------------------------------------------------------


def build(plan: Plan, node: Resident, found: Kept, temporaries: Iterable[Buffer]) -> Part:
    """The part of the tile program for `node`, whose `temporaries` lie as they do.

    Raises  UnsupportedError, if its clusters do not agree on the threads of a block, or its memory is too small.
    """
    temporaries, why = tuple(temporaries), ""
    first = Coord(tile_coord(node.tile[0]), node.step)
    plan = replace(plan, tiled=dict.fromkeys(node.tile, first), inside=frozenset(found.inside))
    outer = {c: Axis((Coord(c),)) for c in node.loops}
    serial = next(n for n in node.body if isinstance(n, Serial))
    turn = {**outer, serial.loop: serial_axis(plan, serial)}
    for strategies, f, without_unit in _ways(plan, node, serial, turn, found.held):
        if why and without_unit:  # memory is no reason to
            continue
        several = ((2, BESIDE), (1, BESIDE)) if _is_light(plan, serial, strategies) else ()
        for slots, blocks in (*several, (2, 2), (1, 1)) if plan.target.copies else ((1, 1),):
            kept, each = () if f else temporaries, _staged(plan, serial, found, strategies, turn, slots)
            cells = f.cells if f else None
            # where fewer slots may follow, nothing is built of more than there is room for
            more = sum(staged.tile_bytes(*x, cells) for x in each if x and blocks > 1)
            refused = _too_large(plan.target, kept, blocks, more)
            if not refused:
                begun = [x and replace(staged.build(*x, cells), chosen=(f"{x[1]}: {x[3]}",)) for x in each]
                part = _built(plan, node, found, strategies, f, outer, turn, begun)
                refused = _too_large(plan.target, (*kept, *part.buffers), blocks)
                if not refused:
                    return part
            why = why or refused
    raise UnsupportedError(why or "contractions have blocks of different threads")


def _is_light(plan: Plan, serial: Serial, strategies: Strategies) -> bool:
    """Whether lanes have registers for more than two blocks: rows in between read no tensor, and one condition cuts atoms.

    Where two slots leave no room for three blocks, one is better than two blocks: an H200 took 0.94 of the time with 128
    channels, and of causal rows 0.85, but 1.12 where registers then left room for two.
    """
    rows = [c for c, s in zip(_clusters(serial), strategies, strict=True) if s is None]
    tensors = any(plan.scop.op.tensor(x.source).role != "temp" for c in rows for u in c.stmts for x in u.reads)
    units = all(s.reads_shared for s in strategies if s)
    return units and not tensors and sum(len(s.cuts) for s in strategies if s) <= 1


def _ways(plan: Plan, node: Resident, serial: Serial, turn: Axes, held: frozenset[str]
          ) -> Iterator[tuple[Strategies, Fragments | None, bool]]:
    """How contractions are tiled; with registers for what is between them first, where some units leave it there."""
    every = tuple(_strategies(plan, _clusters(serial), turn))
    for strategies, _ in every:
        whole = fragmentunits.by_rows(strategies, plan.target)
        if whole and (f := _registers(plan, node, serial, whole, held)):
            yield whole, f, False
    # terms of atoms that are cut are added where lanes have the rows of the other operand
    yield from ((s, None, without_unit) for s, without_unit in every if not any(x and x.reads_shared and x.cuts for x in s))


def _registers(plan: Plan, node: Resident, serial: Serial, strategies: Strategies, held: frozenset[str]) -> Fragments | None:
    """The registers of what is between contractions; None, if something there is in no lane's registers."""
    with suppress(UnsupportedError):
        return fragments.fragments(plan, node, serial, strategies, held)
    return None


def _staged(plan: Plan, serial: Serial, found: Kept, strategies: Strategies, turn: Axes, slots: int
            ) -> list[tuple[Plan, Cluster, Axes, StagedStrategy, frozenset[str], Turns] | None]:
    """What the contractions of a turn are built of, whose tiles have so many slots; None for the other clusters."""
    last, begins = (next(s for s in ordered if s) for ordered in (reversed(strategies), strategies))
    plan = replace(plan, block=last.threads)
    # what others copy is on its way while the one that `begins` adds up
    return [(plan, c, turn, s, found.held if s is last else frozenset(), Turns(serial.loop, slots, int(s is begins or slots > 1)))
            if s else None for c, s in zip(_clusters(serial), strategies, strict=True)]


def _built(plan: Plan, node: Resident, found: Kept, strategies: Strategies, f: Fragments | None, outer: Axes, turn: Axes,
           begun: Sequence[Part | None]) -> Part:
    """The whole, of which the contractions are `begun`."""
    serial = next(n for n in node.body if isinstance(n, Serial))
    first = plan.tiled[node.tile[0]]
    last = next(s for s in reversed(strategies) if s)
    plan = replace(plan, block=last.threads)
    parts = [p or _part(plan, c, turn, f) for c, p in zip(_clusters(serial), begun, strict=True)]
    after = []
    for c in node.body:
        if isinstance(c, Cluster):
            column, cells = next((k for k in c.shell if k not in plan.tiled), None), f.cells if f else Cells()
            after.append(staged.follow(plan, c, outer, last, column, found.held, cells) if column
                         else _part(plan, c, outer, f))
    turns = bands((serial.loop,), *(t for p in parts for t in p.early), *(t for p in parts for t in p.tree))
    tree = bands((*node.loops, first.name), *(t for p in parts for t in p.once), *turns, *(t for p in after for t in p.tree))
    every = (*parts, *after)
    kinds = dict.fromkeys((*node.loops, first.name), (Kind.PARALLEL, None))
    return Part(
        stmts=tuple(s for p in every for s in p.stmts),
        buffers=tuple({b.name: b for p in every for b in p.buffers}.values()),
        tree=tree,
        kinds=(*((c, k, e) for c, (k, e) in kinds.items()), *(k for p in every for k in p.kinds)),
        weights=tuple(w for p in every for w in p.weights),
        chosen=(f"{node.step} rows in a block of {last.threads} threads", *(x for p in every for x in p.chosen)),
    )


def _too_large(target: Target, buffers: Iterable[Buffer], blocks: int, more: int = 0) -> str:
    """Why the memory of so many blocks does not hold those of `buffers` that lie there, and bytes `more`; empty if it does."""
    shared = (b for b in buffers if b.space == Space.SHARED)
    bytes_ = more + sum(prod(-(-e.const // unit) for e, unit in b.dims) * b.dtype.bytes_ for b in shared)
    most = target.multi.room(blocks) if target.multi else blocktile.SHARED
    return f"a block would keep {bytes_} bytes, and has {most}" if bytes_ > most else ""


Strategies = tuple[StagedStrategy | None, ...]
"""For each cluster of a recurrence, if it is a contraction, how it is tiled."""


def _strategies(plan: Plan, clusters: Sequence[Cluster], outer: Axes) -> Iterator[tuple[Strategies, bool]]:
    """Those in which all contractions have as many threads: the last one has the most results, and chooses first.

    And whether some contraction goes without the matrix unit that it could have.
    """
    found = [tilechoice.choose(plan, c, outer) if c.is_contraction else (None,) for c in clusters]
    units = [any(s and s.atom for s in x) for x in found]
    last = max(n for n, c in enumerate(clusters) if c.is_contraction)
    for chosen in found[last]:
        alike = [[s for s in x if s is None or (chosen and s.threads == chosen.threads)] for x in found]
        for all_ in product(*([chosen] if n == last else x for n, x in enumerate(alike))):
            yield all_, any(has and s and not s.atom for s, has in zip(all_, units, strict=True))


def _part(plan: Plan, c: Cluster, outer: Axes, f: Fragments | None) -> Part:
    if f:
        return replace(fragments.build(plan, c, outer, f), chosen=(f"{c}: on the registers of results",))
    spreading = spreadchoice.choose(plan, c)[0]
    return replace(spread.build(plan, c, outer, spreading), chosen=(f"{c}: {spreading}",))
