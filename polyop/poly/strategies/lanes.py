"""Strategy "rows", chosen: where lanes run, by how the accesses stride along each loop; `rows.py` builds it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import lcm

from polyop.ir.dots import dot, product
from polyop.ir.expr import Affine, Apply, Const, Load, loads, names, walk
from polyop.ir.integers import power_of_two
from polyop.ir.options import SHORT, STRIP
from polyop.ir.scalars import computes
from polyop.poly.build import Plan
from polyop.poly.homes import is_local
from polyop.poly.schedule.nodes import Cluster, Group, Node, Serial
from polyop.poly.scop import MAP, UPDATE, Stmt
from polyop.poly.strategies.along import is_few, is_turned_back, score, strung
from polyop.poly.strategies.blocking import spare
from polyop.poly.strategies.crossed import square_of, squares_of_sums, transposed
from polyop.poly.strategies.sharing import beside, is_line, is_tied, is_window, looked_up, multiplied, others, sharing
from polyop.poly.strategies.short import SUMS, several_sums, short_loops, turned_rows
from polyop.poly.strategies.turned import TurnedStrategy
from polyop.poly.strategies.turned import choose as turned
from polyop.poly.strides import ODD, odd_digits, stride

FEW = 16
"""Vector registers that have no room for so many sums beside what a function computes with: a dozen numbers."""

ACROSS, ALONG = 32, 4
"""Rows that are copied in another order, in one block: as they lie where they are read, and where they are written."""

DOWN, ASIDE = 2, 256
"""Rows of a result, for each byte of a vector, whose columns are read, and bytes of each, in one block, where columns as a whole
are too much for L2.
"""

OTHERS = 4
"""Rows in lock step that share a vector: from memory they come in as many streams, and one alone does not keep it busy."""


ALIKE = 4
"""Rows in lock step that read at the same places, which are looked up once: twice as many gain nothing more."""


@dataclass(frozen=True, slots=True)
class RowStrategy:
    """Where lanes run.

    lane      a class of the shell, or None
    inner     for each group, in order, the class its lanes run along, or None; used where `lane` is None
    rows      a class of the shell that runs in lock step too, `row_extent` at a time, or None
    also      another one around these, and how many at a time
    run       how many elements along `lane` each turn of the recurrence in the shell takes; 0: one block of lanes, for all turns
    vectors   vector registers' worth of lanes in one pass
    around    blocks of lanes stand around those of rows: what a window reads for one of them, filters too, stays in L1
    apart     conditions between the lanes and the loops inside them stand as tests, since those loops run in step
    blocks    classes of the shell, the outermost first, that are taken so many at a time inside the loops over all blocks
    inside    rows are inside all loops of the groups, and the shell stays in its order: where they share places looked up one by
              one, and on a GPU, where windows overlap
    within    loops of the groups that are rows inside the lanes, and how many iterations each has: what lies along them is turned
    fine      steps of the loop with the lanes that one lane takes at once: those of a dot-product instruction, or 1
    several   a loop that is added up, so many of whose iterations run in lock step, with sums of their own
    squares   a loop that is added up, so many of whose iterations are rows around lanes along another one: squares of what lies
              along it are turned
    """

    lane: str | None
    inner: tuple[str | None, ...]
    rows: str | None
    row_extent: int
    vectors: int
    lanes: int
    apart: bool = False
    around: bool = False
    also: tuple[str, int] | None = None
    run: int = 0
    blocks: tuple[tuple[str, int], ...] = ()
    inside: bool = False
    within: tuple[tuple[str, int], ...] = ()
    several: tuple[str, int] | None = None
    squares: tuple[str, int] | None = None
    fine: int = 1

    @property
    def turn(self) -> tuple[str, ...]:
        """The coordinates of `lane` that each turn of the recurrence goes through."""
        return (f"{self.lane}_t", f"{self.lane}_v") if self.run else ()

    def __str__(self) -> str:
        where = f"lanes {self.lane} (shell)" if self.lane else f"lanes {', '.join(i or '-' for i in self.inner)}"
        rows = f", rows {self.rows} x {self.row_extent}" if self.rows else ""
        rows += f" and {self.also[0]} x {self.also[1]}" if self.also else ""
        rows += f", {self.run} in each turn" if self.run else ""
        rows += f", {' and '.join(f'{c} x {n}' for c, n in self.within)} turned" if self.within else ""
        rows += f", {self.several[1]} sums along {self.several[0]}" if self.several else ""
        rows += f", squares with {self.squares[1]} {self.squares[0]}" if self.squares else ""
        rows += f", {self.fine} steps of each lane" if self.fine > 1 else ""
        rows += f", blocks of {' and '.join(f'{n} {c}' for c, n in self.blocks)}" if self.blocks else ""
        return f"rows: {where}, {self.vectors} x {self.lanes}{rows}{', conditions apart' if self.apart else ''}"


def groups_of(items: Iterable[Node]) -> list[Group]:
    """All groups, in order, with those inside serial loops."""
    out: list[Group] = []
    for item in items:
        if isinstance(item, Group):
            out.append(item)
        elif isinstance(item, Serial):
            out += groups_of(item.body)
    return out


def choose(plan: Plan, cluster: Cluster) -> tuple[RowStrategy | TurnedStrategy, ...]:
    """Strategies to try, best first; the last one has no lanes."""
    found = turned(plan, cluster)
    return (found, *_in_rows(plan, cluster)) if found else _in_rows(plan, cluster)


def _in_rows(plan: Plan, cluster: Cluster) -> tuple[RowStrategy, ...]:
    groups = groups_of(cluster.body)
    inner, total = _inner_lanes(plan, groups)
    lane, gain = _shell_lane(plan, cluster, groups, any(inner))
    found = _along_shell(plan, cluster, groups, lane) if lane and gain > 0 else []
    if any(inner):
        at = len(found) if lane and gain >= total else 0
        found[at:at] = _along_groups(plan, cluster, groups, inner)
    found = [_no_wider(plan, cluster, groups, r) for r in found]
    lanes = plan.target.lanes(_shell_bytes(plan, groups))
    if not plan.target.warp and (not found or found[0].rows is None) and (square := square_of(plan, cluster)):
        plain = replace(_no_lanes(groups), lane=square[0], rows=square[1], row_extent=lanes, lanes=lanes)
        found[:0] = _in_squares(plan, cluster, plain)
    if not plan.target.warp and (squares := squares_of_sums(plan, cluster, groups, lanes)):
        along = _in_squares_of_sums(plan, cluster, groups, squares, lanes)
        found, inner = [along, *found], along.inner
    brief = None if plan.target.warp else side_by_side(plan, cluster, groups, inner)
    return (*((brief,) if brief else ()), *found, _no_lanes(groups))


def _no_lanes(groups: Sequence[Group]) -> RowStrategy:
    return RowStrategy(None, (None,) * len(groups), None, 1, 1, 1)


def _inner_lanes(plan: Plan, groups: Sequence[Group]) -> tuple[tuple[str | None, ...], int]:
    """For each group the class that its lanes had better run along, or None; and how much better that is."""
    lanes, strict = plan.target.lanes(_shell_bytes(plan, groups)), plan.options.numerics == "strict"
    inner: list[str | None] = []
    total = 0
    for g in groups:
        loops = [c for c in (*g.kept, *g.reduced) if not (strict and c in g.reduced)]
        loops = [c for c in loops if not is_few(plan, g.stmts, c, lanes)]
        gains = {c: score(plan, g.stmts, c) // (2 if c in g.reduced and is_window(plan, g.stmts, c) else 1) for c in loops}
        best = max(loops, key=lambda c: gains[c], default=None)
        gain = gains[best] if best else 0
        if best and gain <= 0:
            best, gain = None, 0
        inner.append(best)
        total += gain
    return tuple(inner), total


def _shell_lane(plan: Plan, cluster: Cluster, groups: Sequence[Group], has_inner: bool) -> tuple[str | None, int]:
    """The class of the shell that lanes had better run along, and how much better that is; None if it has none.

    has_inner   whether those of some group could
    """
    lanes = plan.target.lanes(_shell_bytes(plan, groups))
    local = frozenset(s.target.source for s in cluster.stmts if is_local(plan, cluster, s.target.source))
    # where no loop inside has lanes, what has no stride yet counts as what it will have: else a sum that a step takes on,
    # whose value has no place in memory, had no lanes where the same sum alone has them
    shell = {c: score(plan, cluster.stmts, c, local if has_inner else frozenset()) for c in cluster.shell}
    lane = max(shell, key=lambda c: shell[c], default=None)
    if lane and is_few(plan, cluster.stmts, lane, lanes):  # then whatever is longer, and has no worse than near strides
        longer = {c: score(plan, cluster.stmts, c, local) for c in shell if not is_few(plan, cluster.stmts, c, lanes)}
        longer = {c: x for c, x in longer.items() if x > 0}
        lane = max(longer, key=lambda c: longer[c], default=None if has_inner else lane)
        shell |= longer
    return lane, shell[lane] if lane else 0


def _along_shell(plan: Plan, cluster: Cluster, groups: Sequence[Group], lane: str) -> list[RowStrategy]:
    """Strategies with lanes along a class of the shell, best first: what runs in lock step with them, and what does not."""
    lanes, registers, free = plan.target.lanes(_shell_bytes(plan, groups)), plan.target.registers, _free(plan, cluster)
    rows = transposed(plan, cluster, lane)
    odd = 1 if plan.target.warp else odd_digits(plan, cluster.stmts, lane)
    count = 1 if is_turned_back(plan, cluster, lane) else odd if odd > 1 else _strip_vectors(plan, cluster)
    plain = RowStrategy(lane, (None,) * len(groups), None, 1, count, lanes)
    copies = min(4, (registers - max(2, 1 + free)) // SUMS - 1)  # of so many vectors of sums, and as many of what they share
    if plan.options.fixed and plan.options.short == SHORT and plan.options.height + max(2, 1 + free) < registers:
        plain, copies = replace(plain, vectors=1), plan.options.height or copies
    out: list[RowStrategy] = []
    if rows:
        out += _in_squares(plan, cluster, replace(plain, rows=rows, row_extent=lanes, vectors=1))
    else:
        if not plan.target.warp and (near := strung(plan, cluster.shell, cluster.stmts, lane)):
            out.append(replace(plain, rows=near[0], row_extent=near[1], vectors=1, around=True))
        if copies >= 2 and (shared := sharing(plan, cluster, lane)):
            narrow = plain if odd > 1 else replace(plain, vectors=min(SUMS, plain.vectors))
            out.append(replace(narrow, rows=shared, row_extent=copies, around=is_line(plan, cluster, lane, shared)))
        if not plan.target.warp and (looked := looked_up(plan, cluster, lane)):
            alike = replace(_no_lanes(groups), inside=True) if plan.options.picked else replace(plain, vectors=1)
            out.append(replace(alike, rows=looked, row_extent=ALIKE))
    if run := run_along(plan, cluster, plain):
        out.append(replace(plain, run=run))
    if not rows and (blocks := rows_across(plan, cluster, lane)):
        out.append(replace(plain, blocks=blocks))
    if several := several_sums(plan, cluster, groups, lane, lanes):
        out.append(replace(plain, vectors=several[0], several=several[1:]))
    out.append(plain)
    return [*out, replace(plain, apart=True)] if is_tied(plan, cluster, lane) else out


def _in_squares(plan: Plan, cluster: Cluster, r: RowStrategy) -> list[RowStrategy]:
    """`r`, whose rows and lanes are squares that are turned; where these stand in tall columns, in blocks of rows first."""
    assert r.rows and r.lane
    is_tall = plan.options.tall and plan.lane_bytes == cluster.stmts[0].target.dtype.bytes_
    blocks = ((r.rows, DOWN * plan.target.vector_bytes), (r.lane, ASIDE // plan.lane_bytes))
    return [replace(r, blocks=blocks), r] if is_tall else [r]


def _in_squares_of_sums(plan: Plan, cluster: Cluster, groups: Sequence[Group], loops: tuple[str, str], lanes: int) -> RowStrategy:
    """Lanes along the first of `loops`, of the shell or of a sum, and rows of a square around them along the second, a sum's."""
    lane, rows = loops
    tied = any(is_tied(plan, cluster, c) for c in loops)
    inner = tuple(lane if lane in g.reduced else None for g in groups)
    shell = None if any(inner) else lane
    return replace(_no_lanes(groups), lane=shell, inner=inner, lanes=lanes, squares=(rows, lanes), apart=tied)


def _along_groups(plan: Plan, cluster: Cluster, groups: Sequence[Group], inner: tuple[str | None, ...]) -> list[RowStrategy]:
    """Strategies with lanes along loops of the groups, best first."""
    odd = 1 if plan.target.warp else lcm(*(odd_digits(plan, g.stmts, c) for g, c in zip(groups, inner, strict=True) if c))
    vectors = odd if 1 < odd <= ODD else _vectors(plan, groups, inner)
    plain = RowStrategy(None, inner, None, 1, vectors, plan.target.lanes(_widest(plan, groups, inner)))
    few, free = beside(plan, cluster), _free(plan, cluster)
    near = None if few or plan.target.warp else strung_along(plan, cluster, groups, inner)
    many = plan.options.lockstep or OTHERS
    one = None if few or near or many == 1 else multiplied(plan, cluster, groups, inner)
    sides = [with_rows(plan, plain, *(few or near or (one, many)), free)] if few or near or one else []
    across = others(plan, cluster, few[0]) if few else None
    found = [*(y for x in sides if across and (y := with_others(plan, x, across, free))), *sides]
    fine = steps_of_lanes(plan, groups, inner) if found else 1
    return [*(replace(x, vectors=1, fine=fine) for x in found if fine > 1), *found, plain]


def _free(plan: Plan, cluster: Cluster) -> int:
    """Registers that are to be left free beside sums."""
    return max((spare(plan, s) for s in cluster.stmts), default=0)


def _no_wider(plan: Plan, cluster: Cluster, groups: Sequence[Group], r: RowStrategy) -> RowStrategy:
    """`r` with vectors that have no more lanes than there are iterations, if these are known: of wider ones half would be empty,
    and often on a line of their own.
    """
    loops = {r.lane} if r.lane else {c for c in r.inner if c}
    extents = {x.upper - x.lower for s in cluster.stmts for x in s.ranges if plan.classes[s.name][x.index] in loops}
    most = max((e.const if e.is_constant else r.lanes for e in extents), default=r.lanes)
    lanes = max(2, power_of_two(most))
    is_alone = len(cluster.stmts) == len(plan.scop.stmts) and not (plan.target.warp or r.run or r.blocks)
    if lanes >= r.lanes or not is_alone or r.row_extent == r.lanes:
        return r
    return replace(r, lanes=lanes, vectors=1)


def side_by_side(plan: Plan, cluster: Cluster, groups: Sequence[Group], inner: Iterable[str | None]) -> RowStrategy | None:
    """Lanes through short rows that lie beside each other, where these would fill no vectors: n of { Y[n] += X[n, c] }."""
    few = short_loops(plan, groups)
    if not few or any(c and c not in few for c in inner):
        return None
    lanes = plan.target.lanes(_shell_bytes(plan, groups))
    along = {c: score(plan, cluster.stmts, c, few=few) for c in cluster.shell if not is_few(plan, cluster.stmts, c, lanes)}
    lane = max(along, key=lambda c: along[c], default=None)
    within = turned_rows(plan, cluster, groups, lane, few) if lane and along[lane] > 0 else ()
    return RowStrategy(lane, (None,) * len(groups), None, 1, 1, lanes, within=within) if within else None


def rows_across(plan: Plan, cluster: Cluster, lane: str) -> tuple[tuple[str, int], ...]:
    """Blocks of what lies beside each other where rows along `lane` are read, and of what does where they are written.

    Of rows that are written in order the next one is read a long way off, where no hardware looks for it.
    """
    (s, *others) = cluster.stmts
    order = [c for c in cluster.shell if c != lane]
    if not plan.target.across or others or s.kind != MAP or len(order) < 2 or stride(plan, s, s.target, lane) != 1:
        return ()
    both = (x for x in s.reads if stride(plan, s, x, lane) == 1 and stride(plan, s, x, order[-1]) != 0)
    far = next((c for c in (_beside(plan, s, x, lane) for x in both) if c in order[:-1]), None)
    return ((far, ACROSS), (order[-1], ALONG)) if far and _beside(plan, s, s.target, lane) == order[-1] else ()


def _beside(plan: Plan, s: Stmt, x: Load, lane: str) -> str | None:
    """The class along which rows of `x` along `lane` follow each other."""
    own = plan.classes[s.name]
    found = [{own[i] for i in names(p) if i in own} - {lane} if isinstance(p, Affine) else {lane} for p in x.index]
    last = next((f for f in reversed(found) if f), set())
    return next(iter(last)) if len(last) == 1 and lane not in last else None


def run_along(plan: Plan, cluster: Cluster, r: RowStrategy) -> int:
    """How many elements of a row each turn of the recurrence takes that `cluster` is; 0, if its rows are not handed on in memory.

    A block of lanes down all rows keeps what it hands on in registers, but has a piece of each page, and hardware sees no stream.
    """
    match cluster.body:
        case (Serial(body=body),) if all(isinstance(g, Group) and not (g.kept or g.reduced) for g in body):
            width = r.vectors * r.lanes
            has_rows = all(plan.scop.op.tensor(s.target.source).role != "temp" for s in cluster.stmts)
            return plan.options.along // plan.lane_bytes // width * width if has_rows else 0
        case _:
            return 0


def steps_of_lanes(plan: Plan, groups: Sequence[Group], inner: Iterable[str | None]) -> int:
    """Terms of a sum of products that each lane adds up at once, since an instruction does, and both factors lie along it.

    Where some vector might be cut off within a lane's terms, 1.
    """
    (of, *more) = [(g, c) for g, c in zip(groups, inner, strict=True) if c]
    updates = [s for s in of[0].stmts if s.kind == UPDATE]
    if more or len(updates) != 1 or of[1] not in of[0].reduced:
        return 1
    s, t = updates[0], plan.target
    found, whole = product(s.expr), dict(plan.options.multiples)
    loops = [i for i, c in plan.classes[s.name].items() if c == of[1]]
    if found is None or found.raised or any(s.extent(i).name not in whole for i in loops):
        return 1
    if any(stride(plan, s, x, of[1]) != 1 for x in (found.a, found.b)):
        return 1
    d = dot(t, t.vector_bytes, s.target.dtype, found.a.dtype, found.b.dtype, plan.options.numerics == "strict")
    return d.steps if d and not d.flipped else 1


def with_rows(plan: Plan, r: RowStrategy, rows: str | None, few: int, free: int) -> RowStrategy:
    """`r` with its `few` `rows` in lock step, each with sums of its own in as many vectors as registers hold but `free`."""
    most = max((v for v in (2, 4) if (few + 1) * v + free < plan.target.registers and few * v <= 16), default=1)
    return replace(r, rows=rows, row_extent=few, vectors=most)


def with_others(plan: Plan, r: RowStrategy, across: str, free: int) -> RowStrategy | None:
    """`r` with rows `across` in lock step around its own, as many as there are registers for but `free`; None if that is one."""
    t = plan.target
    kept = max(1 + free, 1 if t.masks else 3)  # of 16 registers, 4 x 3 and 6 x 2 sums took twice as long as 4 x 2 and 6 x 1
    most = max((n for n in range(2, OTHERS + 1) if (r.row_extent + 1) * n + kept <= t.registers), default=1)
    return replace(r, also=(across, most), vectors=1) if most > 1 else None


def _vectors(plan: Plan, groups: Iterable[Group], inner: Iterable[str | None]) -> int:
    """Vectors of lanes in one pass: twice as many where rows are added up, of which memory likes to be read in order.

    Half as many where functions are added up and registers are few: what these compute with takes most of them, and sums of two
    vectors wait for nothing.
    """
    if plan.target.warp:
        return narrowed(plan, SUMS)
    along = tuple(zip(groups, inner, strict=True))
    adds = any(len(g.stmts) == 1 and c in g.kept and g.reduced and g.stmts[0].kind == UPDATE for g, c in along)
    computed = any(c in g.reduced and any(computes(s.expr) for s in g.stmts) for g, c in along)
    few = plan.target.registers <= FEW
    return narrowed(plan, SUMS // 2 if few and computed else SUMS if few or not adds else 2 * SUMS)


def _strip_vectors(plan: Plan, cluster: Cluster) -> int:
    """Vectors of lanes in one pass: short rows are added up whole if half of the registers have them: memory is read in order."""
    t, sums = plan.target, sum(s.kind == UPDATE for s in cluster.stmts)
    most = min(STRIP // t.vector_bytes, t.registers // 2 // max(1, sums)) if plan.options.strip and not t.warp else 0
    return narrowed(plan, max(SUMS, most))


def narrowed(plan: Plan, vectors: int) -> int:
    """So many vectors in one pass, or as many times half as many as leave the registers free that are to be spare."""
    few = vectors
    while few > 1 and vectors - few < plan.spare:
        few //= 2
    return few


def _widest(plan: Plan, groups: Iterable[Group], inner: Iterable[str | None]) -> int:
    """The bytes of the widest element that statements along the lanes `inner` of their groups use, if that is 8; else 4.

    Where all that they do is with integers of one or two bytes, these.
    """
    along = [s for g, c in zip(groups, inner, strict=True) for s in g.stmts if c in plan.classes[s.name].values()]
    used = [x for s in along for x in (s.target, *walk(s.expr))]
    if all(isinstance(x, Load | Apply | Const) and x.dtype.bytes_ < 4 and not x.dtype.is_float for x in used):
        return max((x.dtype.bytes_ for x in used), default=4)
    return 8 if any(x.dtype.bytes_ == 8 for s in along for x in (s.target, *loads(s.expr))) else 4


def _shell_bytes(plan: Plan, groups: Iterable[Group]) -> int:
    """The bytes of the element that a lane of the shell is made for: of what the loops inside do, if there are any."""
    inside = [s for g in groups for s in g.stmts if {*g.kept, *g.reduced} & {*plan.classes[s.name].values()}]
    is_narrow = bool(inside) and all(x.dtype.bytes_ < 8 for s in inside for x in (s.target, *loads(s.expr)))
    return 4 if is_narrow and not plan.target.warp else plan.lane_bytes


def strung_along(plan: Plan, cluster: Cluster, groups: Sequence[Group], inner: Sequence[str | None]) -> tuple[str, int] | None:
    """The same of lanes inside the shell: c of { Y[c] += X[3n + c] }."""
    found = (strung(plan, cluster.shell, g.stmts, c) for g, c in zip(groups, inner, strict=True) if c)
    return next((x for x in found if x), None)
