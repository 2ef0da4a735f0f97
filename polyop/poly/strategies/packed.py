"""Strategy "packed", built: the tile program of a contraction in register tiles.

    batch.. m_c k_c ( pack_left  n_c ( pack_right  row.. m_r n_r n_v ( init fill  contracted.. k_p(update)  spill finish ) ) )
    batch.. y_c m_c k.. k_c ( pack_left  y n_c ( .. ) )         along several long k, y the last of other columns
    batch.. n_c k_c ( pack_right  row.. m_c ( m_r .. ) )        for several threads, if there are blocks n_c; else inside m_c
    m_c k_c ( pack_left!  n_c! ( pack_right  row..! m_r! .. ) ) for several threads, which share what has a `!`, without batches;
                                                                m_r only where pack_right is not fused
    batch.. n_c k_c ( n_r n_v ( init fill  contracted.. k_p(update)  spill finish ) )                         without rows

with every compute statement in its own m_p loop; a fused pack_right stands just before the update, where m_r is 0.

Rows m_p and lanes n_v run in lock step outside the contraction, so the outer product in registers is a consequence of
where the loops stand. Accumulators are a register buffer that `fill` and `spill` move from and to memory between chunks of
depth: so even the register promotion is in the proof.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, map_loads, place, substitute_expr
from polyop.ir.loops import Buffer, Space
from polyop.poly.build import Axes, Part, Plan, shared_out
from polyop.poly.homes import is_local
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import INIT, MAP, Stmt
from polyop.poly.strategies.contract import TILES, PackedStrategy
from polyop.poly.strategies.packedtile import Bands, Tile
from polyop.poly.strategies.packs import (
    ahead_place,
    is_one_block,
    left_place,
    pack_ahead,
    pack_left,
    pack_right,
    right_place,
    shares_left,
)
from polyop.poly.strategies.roles import BATCH, COLUMN, CONTRACTED, iterators_of, written_order
from polyop.poly.strides import stride
from polyop.poly.tiles import Coord, band, bands


def build(plan: Plan, cluster: Cluster, outer: Axes, s: PackedStrategy) -> Part:
    """The part of the tile program that `s` stands for, inside the loops `outer`."""
    t = Tile(plan, cluster, outer, s)
    u = t.u
    batch, other_m = t.batch, t.other_m
    near = [i for i in (s.beside, s.across) if i]
    other_n, other_k = t.others(COLUMN, s.column, *near), t.others(CONTRACTED, s.depth, *s.apart)
    before, after = _accumulator(t)
    packed: dict[Load, Load] = {}
    tree_left: Bands = ()
    tree_right: Bands = ()
    fused: Bands = ()
    values = t.plan.values(u, t.axes)
    ahead: Bands = ()
    if s.ahead:
        ahead = pack_ahead(t, other_k)
    elif s.pack_right:
        tree_right, fused = pack_right(t, other_m, other_k)
    if s.pack_right:
        where = ahead_place if s.ahead else right_place
        packed[place(t.c.rights[0], values)] = where(t, t.axes, other_k)
    if s.pack_left:
        common_k = tuple(i for i in other_k if i in iterators_of(t.c.lefts[0]))  # the right one alone may be summed too
        tree_left = pack_left(t, other_m, common_k)
        packed[place(t.c.lefts[0], values)] = left_place(t, t.axes, other_m, common_k)
    expr = map_loads(substitute_expr(u.expr, values), lambda x: packed.get(x, x))
    every = [t.own[i] for i in u.dims]
    every = [*t.outer, *(q for q in every if q not in t.outer)]
    t.b.compute(u, t.axes, every, target=t.acc, expr=expr)
    depth = [c.name for c in t.coords(s.depth) if c.name != t.chunk and (c.name, s.fine) not in t.fine]
    update = bands(tuple(c for c, _ in (*t.row, *t.across, *t.fine)), u.name)
    inner = (*before, band((*t.loops(other_k), *depth), *fused, *update), *after)
    m_c, m_r = ((c.name,) for c in t.coords(s.row)[:2]) if s.row else ((), ())
    n_c, n_r = (c.name for c in t.coords(s.column)[:2])
    within = tuple(t.coords(i)[1].name for i in near)
    micro = band((*t.loops(other_m), *m_r, *within, n_r, t.n_v), *inner)
    blocks = tuple(c for c in (n_c,) if c not in t.given)
    beside = (*(c for c in t.loops(other_n) if c not in t.beyond), *(t.coords(i)[0].name for i in near))
    block = (*beside, *blocks)
    chunk = (*t.apart, t.chunk) if t.chunk else ()
    around = (*t.loops(batch), *t.beyond, *(c for c in m_c if c not in t.given))
    if s.row and (s.pack_left or not t.plan.splits(u)):  # a block of the left operand is for all columns
        tree = bands((*around, *chunk), *tree_left, *bands(block, *tree_right, micro))
        rows = () if fused and is_one_block(t) else (*t.loops(other_m), *(() if fused else m_r))
        around = (*block, *rows) if shares_left(t) else around
    else:
        own = t.loops(t.others(BATCH))
        rows = around[len(own):]
        around = (*own, *block, *rows)
        if t.beyond:
            around = (*own, *rows, *blocks)
            tree = bands((*around, *chunk), *tree_right, *bands(beside, micro))
        elif s.rows_behind:
            tree = bands((*own, *block, *chunk), *tree_right, *bands(rows, micro))
        else:
            tree = bands((*around, *chunk), *tree_right, micro)
    t.b.kinds |= shared_out(t.plan, around or block, len(t.loops(batch)) - 1)
    part = t.b.part(tree)
    return replace(part, once=ahead) if s.ahead == TILES else replace(part, ahead=ahead)


def _accumulator(t: Tile) -> tuple[Bands, Bands]:
    """What stands before and after the contraction: init or fill; spill, or finish and the statements that follow."""
    u, s, plan = t.u, t.s, t.plan
    init = next((q for q in t.cluster.stmts if q.kind == INIT and q.target.source == u.target.source), None)
    follow = [q for q in t.cluster.stmts if q.kind == MAP]
    local = is_local(plan, t.cluster, u.target.source)
    result = home = place(u.target, plan.values(u, t.axes))
    scattered = bool(t.chunk) and _is_scattered(t)
    if s.apart and (local or scattered or follow):
        raise UnsupportedError(f"the last turn of {' and '.join(s.apart)} is not the last chunk of each of them")
    if scattered:
        home = _sums_aside(t)
    elif local and t.chunk:
        home = _partial_home(t, follow)
    loops = [*t.outer, *(t.own[i] for i in u.dims if i in iterators_of(u.target) and t.own[i] not in t.outer)]
    extra = [c for i in (*s.apart, s.depth) for c in t.coords(i) if c.name == t.chunk or i in s.apart]
    k, kc = t.chunk, s.kc or 0
    extent = t.extent(s.depth) if k else Affine()
    starts = [f"0 <= {k} < {extent}", *(f"0 <= {c} < {t.extent(i)}" for i, c in zip(s.apart, t.apart, strict=True))] if k else []
    turn = " + ".join((*t.apart, k)) if k else ""  # none of them is negative
    first, later = ([f"{turn} = 0", *(starts if s.apart else ())], [*starts, f"{turn} > 0"]) if k else ([], [])
    last, early = ([*starts, f"{k} >= {extent - kc}"], [*starts, f"{k} < {extent - kc}"]) if k else ([], [])
    # a tile is started, and ends, also where nothing is added up; a dimension of one has no loop here
    has_loops = init is not None and all(plan.classes[init.name][i] in t.axes for i in init.dims)
    every = init if init is not None and has_loops else u
    before: list[str] = []
    after: list[str] = []
    if init:
        before.append(t.b.move(init.name, every, t.axes, loops, t.acc, init.expr, extra=extra, only=first,
                                  origin=init))
    elif scattered:
        before.append(t.b.move(f"{u.name}_start", every, t.axes, loops, t.acc, result, extra=extra, only=first))
    if k or not init:
        only = later if init or scattered else starts
        before.append(t.b.move(f"{u.name}_fill", every, t.axes, loops, t.acc, home, extra=extra, only=only))
    if k and (local or scattered):
        after.append(t.b.move(f"{u.name}_spill", every, t.axes, loops, home, t.acc, extra=extra, only=early))
    if not local:
        only = last if scattered else starts
        after.append(t.b.move(f"{u.name}_finish", every, t.axes, loops, result, t.acc, extra=extra, only=only))
    for q in follow:
        after.append(_epilogue(t, q, extra, last))
    return t.on_rows(*before), t.on_rows(*after)


def _is_scattered(t: Tile) -> bool:
    """Whether lanes lie apart in the target, which is written by its iterators alone."""
    plain = len(written_order(t.u)) == len(t.u.target.index)
    return plain and stride(t.plan, t.u, t.u.target, t.own[t.s.column]) != 1


def _sums_aside(t: Tile) -> Load:
    """Memory for partial sums with lanes side by side: a target in which they are not is written once, with whole sums."""
    whole, order = t.plan.scop.op.tensor(t.u.target.source), written_order(t.u)
    values = t.plan.values(t.u, t.axes)
    extents = dict(zip(order, whole.shape, strict=True))
    kept = (*(i for i in order if i != t.s.column), t.s.column)
    name = t.name_beside("sum")
    t.b.buffer(Buffer(name, whole.dtype, tuple((extents[i], 1) for i in kept), Space.WORK))
    return Load(name, tuple(values[i] for i in kept), whole.dtype)


def _partial_home(t: Tile, follow: list[Stmt]) -> Load:
    """Memory for partial sums of a temporary: the last result computed from it, if that has its shape and dtype."""
    u, plan = t.u, t.plan
    for q in reversed(follow):
        plain = sorted(p.name or "" for p in q.target.index if isinstance(p, Affine)) == sorted(q.dims)
        memory = {q.target.source, *(i for i, o in plan.scop.op.updates if o == q.target.source)}
        read = any(x.source in memory for p in follow for x in p.reads)
        if q.target.dtype == u.target.dtype and plain and not read and not is_local(plan, t.cluster, q.target.source):
            return place(q.target, plan.values(q, t.axes))
    whole = plan.scop.op.tensor(u.target.source)
    t.b.buffer(Buffer(f"{t.stem}_sum", whole.dtype, tuple((e, 1) for e in whole.shape), Space.WORK))
    return replace(place(u.target, plan.values(u, t.axes)), source=f"{t.stem}_sum")


def _epilogue(t: Tile, q: Stmt, extra: list[Coord], only: list[str]) -> str:
    """A statement that follows the update at the same point; it reads the accumulator."""
    loops = [*t.outer, *(c for i in q.dims if (c := t.plan.classes[q.name][i]) not in t.outer)]
    expr = map_loads(q.expr, lambda x: t.acc if x.source == t.u.target.source else x)
    return t.b.compute(q, t.axes, loops, expr=t.b.located(q, expr, t.axes), extra=extra, only=only)
