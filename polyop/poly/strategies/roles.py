"""What each iterator of a contraction is: row, column, batch or contracted, from which access uses which iterator.

Nothing here knows an operator, or how large anything is.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.dots import Dot, dot, product
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, names
from polyop.ir.expr import Test as Tests
from polyop.ir.options import TURNED
from polyop.poly.build import Axes, Plan
from polyop.poly.iterators import blocks_of
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strides import stride

BATCH, ROW, COLUMN, CONTRACTED = "batch", "row", "column", "contracted"
LONG = 64
"""Rows in a number that is known which are worth cutting: each may be a page, of which the first level of a TLB has as many."""


@dataclass(frozen=True, eq=False)
class Contraction:
    """The update `C op= f(lefts, rights)` of a cluster; `roles` says what each iterator is, for those that are not fixed.

    The reads with the output's unit-stride iterator stand on the right, the others on the left. Output and both sides:
    batch. Output and left: row. Output and right: column. Not in the output: contracted.
    """

    update: Stmt
    lefts: tuple[Load, ...]
    rights: tuple[Load, ...]
    roles: dict[str, str]
    lane: str

    def having(self, role: str) -> tuple[str, ...]:
        return tuple(i for i in self.update.dims if self.roles.get(i) == role)


def classify(plan: Plan, cluster: Cluster, outer: Axes) -> Contraction:
    """The roles in the cluster's one update; its column operand, which has the lanes, is put on the right."""
    update = next(s for s in cluster.stmts if s.kind == UPDATE)
    operands = tuple(dict.fromkeys(update.reads))
    own = plan.classes[update.name]
    free = [i for i in update.dims if own[i] not in outer]
    unit = next((i for i in free if stride(plan, update, update.target, own[i]) == 1), None)
    if unit is None:
        raise UnsupportedError(f"nothing has unit stride in the target of {update.name}")
    lane: str | None = unit
    if plan.options.short == TURNED:  # lanes along what is a row otherwise: its loops are long, and its stores are scattered
        rows = [i for i in written_order(update) if i in free
                and all((i in iterators_of(x)) != (unit in iterators_of(x)) for x in operands)]
        lane = rows[-1] if rows else None
    if lane is None:
        raise UnsupportedError(f"{update.name} has no row to run lanes along")
    lefts = tuple(x for x in operands if lane not in iterators_of(x))
    rights = tuple(x for x in operands if lane in iterators_of(x))
    if not lefts or not rights:
        raise UnsupportedError(f"{lane}, which has unit stride in the target, is in every operand or in none")
    left_has, right_has = (frozenset[str]().union(*map(iterators_of, side)) for side in (lefts, rights))
    roles = {}
    for i in free:
        key = (i in iterators_of(update.target), i in left_has, i in right_has)
        match key:
            case (True, True, True):
                roles[i] = BATCH
            case (True, True, False):
                roles[i] = ROW
            case (True, False, True):
                roles[i] = COLUMN
            case (False, _, _):
                roles[i] = CONTRACTED
            case _:
                raise UnsupportedError(f"{i} is in the target of {update.name} and in no operand")
    what = Contraction(update, lefts, rights, roles, lane)
    if not what.having(ROW) or not what.having(CONTRACTED):
        raise UnsupportedError(f"{update.name} has no row or nothing to contract")
    return what


def iterators_of(load: Load) -> frozenset[str]:
    return frozenset[str]().union(*(names(p) for p in load.index if isinstance(p, Affine)))


def is_movable(u: Stmt, load: Load) -> bool:
    """Whether a copy of what `load` reads can be made over its own iterators: what guards it asks for no others of `u`."""
    return frozenset[str]().union(*map(names, load.guard)) & {*u.dims} <= iterators_of(load)


def begins_late(u: Stmt, depth: str) -> bool:
    """Whether rows or columns begin to add up at places of their own: { k >= i }.

    Whole chunks of depth come before them then, in which partial sums are only moved on: too many copies for a proof.
    """
    return any(isinstance(w, Tests) and any(x.factor(depth) > 0 and names(x) & set(written_order(u)) for x in w.tests)
               for w in u.where)


def ends_early(u: Stmt, depth: str, around: frozenset[str]) -> bool:
    """Whether each turn of a loop around adds up a number of terms of its own: { k < 32 b }."""
    return bool(ends(u, depth, around))


def ends(u: Stmt, depth: str, around: frozenset[str]) -> tuple[Affine, ...]:
    """The conditions that say where `depth` ends in a turn of a loop around."""
    return tuple(x for w in u.where if isinstance(w, Tests) for x in w.tests if x.factor(depth) < 0 and names(x) & around)


def is_triangular(c: Contraction) -> bool:
    """Whether a condition ties rows of the result to its columns, { j <= i }: tiles beyond the diagonal do nothing then."""
    return any(isinstance(w, Tests) and any(names(x) & {*c.having(ROW)} and names(x) & {*c.having(COLUMN)} for x in w.tests)
               for w in c.update.where)


def dotted(plan: Plan, c: Contraction, depth: str) -> Dot | None:
    """The instruction that adds up several steps of `depth` in each lane, if the update is a plain sum of products.

    Every step must exist for every row and column, or for none: conditions and guards could take some of a lane's alone.
    """
    u = c.update
    factors = product(u.expr)
    if factors is None or u.reduce is None or u.reduce.name != "add" or len(c.lefts) + len(c.rights) != 2 or u.where:
        return None
    both = (factors.a, factors.b)
    if set(both) != {c.lefts[0], c.rights[0]} or any(x.guard for x in both) or plan.lane_bytes != 4:
        return None
    extent = u.extent(depth)
    if depth not in iterators_of(c.lefts[0]) or not set(c.having(CONTRACTED)) <= iterators_of(c.rights[0]):
        return None
    if not names(extent) <= set(plan.scop.op.sizes):
        return None
    found = dot(plan.target, plan.target.vector_bytes, u.target.dtype, c.lefts[0].dtype, c.rights[0].dtype,
                plan.options.numerics == "strict", factors.side(c.rights[0]))
    return None if found is None or (extent.is_constant and extent.const < found.steps) else found


def written_order(s: Stmt) -> tuple[str, ...]:
    """The iterators of the target of `s`, in the order of its positions; a size may be a position, too."""
    return tuple(p.name for p in s.target.index if isinstance(p, Affine) and p.name in s.dims)


def stands_alone(u: Stmt, iterator: str, load: Load) -> bool:
    """Whether some position of `load` is just `iterator`, or the element of a block that it is: `i` of `X[4096*b + i]`."""
    return any(isinstance(p, Affine) and (p.name == iterator or blocks_of(p, iterator, u)) for p in load.index)


def is_window(u: Stmt, iterator: str) -> bool:
    """Whether `iterator` is added to another one in some read of `u`, and so mostly short."""
    return not all(stands_alone(u, iterator, x) for x in u.reads if iterator in iterators_of(x))


def is_long(u: Stmt, iterator: str) -> bool:
    """Whether `iterator` is worth cutting: it runs often, or nobody knows how often, or it counts the elements of a block."""
    extent = u.extent(iterator)
    return not extent.is_constant or extent.const >= LONG or any(
        isinstance(p, Affine) and blocks_of(p, iterator, u) for x in u.reads for p in x.index)


def is_shared(window: str, row: str, load: Load) -> bool:
    """Whether `window` is added to `row` in some position of `load`."""
    return any(isinstance(p, Affine) and {window, row} <= names(p) for p in load.index)
