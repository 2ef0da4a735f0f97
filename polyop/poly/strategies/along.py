"""How accesses run along a loop: whether lanes had better lie there."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from polyop.ir.expr import Affine, affine, substitute
from polyop.ir.target import NEAR
from polyop.poly.build import Plan
from polyop.poly.iterators import written
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import UPDATE, Stmt
from polyop.poly.strides import is_apart, is_near, lies_along, spacing, stride, unbent, unclamped


def score(plan: Plan, stmts: Sequence[Stmt], loop: str, free: frozenset[str] = frozenset(), once: bool = False,
          few: Collection[str] = ()) -> int:
    """How well accesses run along `loop`: unit strides count for it, others against, but for near ones; reductions weigh more.

    Tensors in `free` have no stride yet: they get the one that the lanes want.
    Where none is better than others, since a tensor has no unit stride, the last dimension counts once, for no sum weighs more.
    That near ones count, if only a little, decides where a loop has no other access: with 0 the `sinusoids` of the library, which
    write each second place, take 2.3 to 4.9 times as long, and no other operator of it changes.

    once   whether a read counts once, and not as often as the text has it
    few    loops inside along which rows would be turned: what lies along them counts as near
    """
    total = 0
    for s in stmts:
        if loop not in plan.classes[s.name].values():
            continue
        weight = 3 if s.kind == UPDATE and set(s.dims) - written(s) else 1
        for load in dict.fromkeys(s.reads) if once else s.reads:
            if load.source in free:
                continue
            own = [i for i in s.dims if plan.classes[s.name].get(i) == loop]
            step = stride(plan, s, unclamped(load, own) if plan.target.warp else unbent(load, own), loop)
            near = is_near(plan, s, load, loop) or lies_along(plan, s, load, loop, few)
            found = weight * (2 if step in (1, -1) else 0 if step == 0 else 1 if near else -2)
            total += 1 if is_apart(plan, s, load, loop) else found
        if s.target.source in free:
            continue
        step = stride(plan, s, s.target, loop)
        filled = strung(plan, plan.classes[s.name].values(), (s,), loop) is not None or _fill_gaps(plan, s, stmts, loop)
        is_filled = plan.target.masks or filled
        is_close = (is_filled and is_near(plan, s, s.target, loop)) or is_apart(plan, s, s.target, loop)
        near = is_close or lies_along(plan, s, s.target, loop, few)
        total += 4 if step in (1, -1) else 0 if step == 0 else 1 if near else -6
    return total


def _fill_gaps(plan: Plan, s: Stmt, stmts: Sequence[Stmt], loop: str) -> bool:
    """Whether `stmts` write all that lies between what lanes along `loop` write of `s`: Y[2i] and Y[2i + 1], in whole vectors."""
    step = spacing(plan, s, s.target, loop)
    if step is None or not 1 < step <= NEAR:
        return False
    run, _ = _run(plan, s)
    numbers = {number for other, number in (_run(plan, x) for x in stmts) if other == run}
    return any(numbers.issuperset(range(k, k + step)) for k in numbers)


def _run(plan: Plan, s: Stmt) -> tuple[object, int]:
    """Where `s` writes, by loops and but for a number added to the last position; that number."""
    loops = {i: affine(c) for i, c in plan.classes[s.name].items()}
    places = [substitute(p, loops) if isinstance(p, Affine) else p for p in s.target.index]
    last = places.pop() if places else affine(0)
    number = last.const if isinstance(last, Affine) else 0
    return (s.target.source, *places, last - number if isinstance(last, Affine) else last), number


def is_few(plan: Plan, stmts: Iterable[Stmt], loop: str, lanes: int) -> bool:
    """Whether `loop` is known to have fewer iterations than a vector has lanes, as the window of a pooling has."""
    extents = [r.upper - r.lower for s in stmts for r in s.ranges if plan.classes[s.name].get(r.index) == loop]
    return any(e.is_constant and e.const < lanes for e in extents)


def strung(plan: Plan, loops: Iterable[str], stmts: Iterable[Stmt], lane: str) -> tuple[str, int] | None:
    """One of `loops` with a few iterations that lie between the lanes, and how many: c of { Y[3n + c] = X[3n + c] - m[c] }.

    Rows in lock step then read and write the same vectors.
    """
    for c in loops:
        for s in stmts:
            extents = {(r.upper - r.lower) for r in s.ranges if plan.classes[s.name][r.index] == c}
            many = next((e.const for e in extents if e.is_constant), 0)
            if c != lane and many in range(2, NEAR + 1) and any(
                    spacing(plan, s, x, lane) == many and stride(plan, s, x, c) == 1 for x in (s.target, *s.reads)):
                return c, many
    return None


def is_turned_back(plan: Plan, cluster: Cluster, lane: str) -> bool:
    """Whether some read goes along `lane` and back again, as `X[max(j - 1, 1 - j)]` does at the edge of an image.

    The vectors at the edge are then put together from several, so only these are tiles of their own: one vector each.
    """
    def back(p: Affine, own: list[str]) -> bool:
        choices = [a.args for a, _ in p.terms if not isinstance(a, str) and a.op in ("min", "max")]
        return any(any(x.factor(i) < 0 for x in args for i in own) or any(back(x, own) for x in args) for args in choices)

    for s in cluster.stmts:
        own = [i for i in s.dims if plan.classes[s.name][i] == lane]
        if any(back(p, own) for x in s.reads for p in x.index if isinstance(p, Affine)):
            return True
    return False
