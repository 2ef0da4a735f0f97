"""Folding storage along a loop that carries a recurrence: of a temporary `A[t, i]` only the last few `t` are kept.

        A[t, i] -> A[t mod m, i]      where every read inside the loop reaches back less than m iterations

The fold is proposed here from the indices alone; whether it keeps every value is for the checker to prove.

Source: Lefebvre and Feautrier, "Automatic storage management for parallel programs", 1998.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Expr, Load, affine, map_loads, names, quasi
from polyop.ir.loops import Buffer
from polyop.poly.edges import single
from polyop.poly.schedule.nodes import Cluster, Node, Schedule, Serial, Shared
from polyop.poly.scop import MAP, Scop, Stmt
from polyop.poly.tiles import TileProgram, TileStmt


@dataclass(frozen=True, slots=True)
class Tile:
    """What is kept of a dimension that runs along the loop `coord` in steps of `step`: one tile, counted from its start."""

    coord: str
    step: int


Folds = dict[str, dict[int, int | Tile]]
"""tensor -> dimension -> how many of it are kept."""


def find_batches(scop: Scop, schedule: Schedule, local: Iterable[str]) -> Folds:
    """The temporaries that only the clusters below shared loops use: one batch or tile of them is kept, by each thread."""
    found: Folds = {}
    around: list[tuple[Node, tuple[str, ...]]] = [(n, ()) for n in schedule.nodes]
    around += [(x, (n.loop,)) for n in schedule.nodes if isinstance(n, Serial) for x in n.body]
    for node, serial in around:
        if isinstance(node, Shared):
            serial = (*serial, *node.serial)
            for tensor in dict.fromkeys(s.target.source for s in node.stmts):
                t = scop.op.tensor(tensor)
                if t.role != "temp" or tensor in local or not set(scop.users(tensor)) <= set(node.stmts):
                    continue
                def is_one(d: int, loop: str, tensor: str = tensor, inside: tuple[Stmt, ...] = node.stmts) -> bool:
                    return kept_along(scop, schedule, (loop,), inside, tensor, d) == 1

                along = [d for d in range(len(t.shape)) if any(is_one(d, loop) for loop in (*serial, *node.loops))]
                if len(along) != len(node.loops) + len(serial):  # what the next turn of a recurrence needs stays
                    continue
                found[tensor] = dict.fromkeys(along, 1)
                if node.tile:
                    tiled = [d for d in range(len(t.shape)) if is_one(d, node.tile)]
                    found[tensor] |= dict.fromkeys(tiled, Tile(tile_coord(node.tile), node.step))
    return found


def tile_coord(loop: str) -> str:
    """The coordinate of the tiles of a loop that several clusters take tile by tile."""
    return f"{loop}_o"


def find_folds(scop: Scop, schedule: Schedule, local: Iterable[str]) -> Folds:
    """The temporaries that may be folded along an outermost serial loop, or one that each thread goes through alone."""
    found: Folds = {}
    for node in (x for n in schedule.nodes for x in (n.body if isinstance(n, Shared) else (n,))):
        if not isinstance(node, Serial) or node.is_reversed:
            continue
        inside = statements(node)
        for tensor in dict.fromkeys(s.target.source for s in inside):
            t = scop.op.tensor(tensor)
            if t.role != "temp" or tensor in local:
                continue
            for d in range(len(t.shape)):
                kept = kept_along(scop, schedule, (node.loop,), inside, tensor, d)
                if kept is not None:
                    found[tensor] = {d: kept}
                    break
    return found


def find_reuse(scop: Scop, clusters: Iterable[Cluster], local: Iterable[str]) -> dict[str, str]:
    """Temporaries that may take the memory of another: { T[i] = f(U[i], ..), where nothing after it reads U }.

    Not what follows a contraction in its tiles: partial sums live in the memory of T before U is read.
    """
    found: dict[str, str] = {}
    follows = {s.name for c in clusters if c.is_contraction for s in c.stmts}
    for n, s in enumerate(scop.stmts):
        t = scop.op.tensor(s.target.source)
        if s.kind != MAP or s.name in follows or t.role != "temp" or t.name in local or len(scop.writers(t.name)) > 1:
            continue
        for x in s.reads:
            u = scop.op.tensor(x.source)
            later = any(y.source == u.name for q in scop.stmts[n + 1 :] for y in q.reads)
            here = all(y.index == s.target.index for y in s.reads if y.source == u.name)  # elsewhere it may be gone by then
            plain = here and len({p.name for p in x.index if isinstance(p, Affine)} - {None}) == len(x.index)
            if u.role == "temp" and u.name not in local and u.dtype == t.dtype and u.shape == t.shape and plain and not later:
                found[t.name] = found.get(u.name, u.name)
                break
    return found


def reused(program: TileProgram, reuse: Mapping[str, str]) -> TileProgram:
    """`program` with the places of each temporary in the memory of the other."""
    def at(load: Load) -> Load:
        return replace(load, source=reuse.get(load.source, load.source))

    return replace(program, stmts=tuple(replace(s, target=at(s.target), expr=map_loads(s.expr, at)) for s in program.stmts))


def statements(node: Node) -> tuple[Stmt, ...]:
    """All statements below a node."""
    if isinstance(node, Serial):
        return tuple(s for n in node.body for s in statements(n))
    return node.stmts


def kept_along(scop: Scop, schedule: Schedule, loops: tuple[str, ...], inside: tuple[Stmt, ...], tensor: str,
               d: int) -> int | None:
    """How many values of dimension `d` must be kept along a loop that has one of the classes; None if that is not a constant.

    Statements outside the loop may only use one place of the dimension for each element of the others: its start before, its
    end after.
    """
    ahead: set[int] = set()
    back: set[int] = set()
    for s in scop.stmts:
        for load, is_write in [(s.target, True), *((r, False) for r in s.reads)]:
            if load.source != tensor:
                continue
            p = load.index[d]
            if not isinstance(p, Affine):
                return None
            if s not in inside:
                others = {q.name for e, q in enumerate(load.index) if e != d and isinstance(q, Affine)}
                if names(p) & set(s.dims) - others or p.name in s.dims:
                    return None
                continue
            i = single(p, s.dims)
            if i is None or schedule.classes[s.name].get(i) not in loops:
                return None
            (ahead if is_write else back).add(p.const)
    if not ahead or not back or max(ahead) != min(ahead):
        return None
    return max(ahead) - min(*back, max(ahead)) + 1


def folded(program: TileProgram, folds: Folds, inside: Folds) -> TileProgram:
    """`program` with every place in a folded tensor taken modulo what is kept; `inside` a block it is gone where that is one."""
    def at(load: Load) -> Load:
        if load.source not in folds:
            return load
        kept = folds[load.source]
        return replace(load, index=tuple(_place(p, kept[d]) if d in kept and isinstance(p, Affine) else p
                                         for d, p in enumerate(load.index) if load.source not in inside or kept.get(d) != 1))

    def within(e: Expr) -> Expr:
        return map_loads(e, at)

    def one(s: TileStmt) -> TileStmt:
        return replace(s, target=at(s.target), expr=within(s.expr))

    return replace(program, stmts=tuple(map(one, program.stmts))) if folds else program


def _place(p: Affine, kept: int | Tile) -> Affine:
    return p - affine(kept.coord) if isinstance(kept, Tile) else quasi("mod", p, affine(kept))


def folded_buffer(b: Buffer, folds: Folds, private: Iterable[str]) -> Buffer:
    """`b` as far as it is kept; those in `private` are kept by each thread."""
    if b.name not in folds:
        return b
    kept = folds[b.name]
    dims = tuple((_extent(dim[0], kept[d]), 1) if d in kept else dim for d, dim in enumerate(b.dims))
    return replace(b, dims=dims, private=b.private or b.name in private)


def _extent(whole: Affine, kept: int | Tile) -> Affine:
    return quasi("min", whole, affine(kept.step)) if isinstance(kept, Tile) else affine(kept)
