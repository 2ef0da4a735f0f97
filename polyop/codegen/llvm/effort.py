"""How much a loop computes, as a formula of sizes and of the indices around it: what little work stays on one thread by.

Where loops depend on each other, those inside are taken in the middle of those around:

    for i in [0, N) { for j in [0, i) { Y[i, j] = 2 * X[i, j] } }        (N)*((floor((N - 1)/2))*(13))

Of what stands in one loop that counts which is in the most loops, tiles and what they leave alike, and of the rest what goes over
sizes that these do not: sums to computed places, behind as many zeros. Of two branches it is the one in which more is known, that
of full tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.codegen.cpu.weight import INSTRUCTIONS
from polyop.ir.dots import product
from polyop.ir.expr import Affine, Apply, Load, affine, evaluate, expr_names, loads, names, quasi, substitute, walk
from polyop.ir.loops import LOCKSTEP, For, If, IfData, Kind, LoopNest, Node, Space, Store

MOVED = 4
"""What an element that is read beyond the first cache costs, in operations on registers; written, it costs twice as much."""

APART = 32
"""What an element costs beyond that which is moved by itself: there are no lanes, or its neighbours do not lie beside it."""

MOST = 150
"""Operations that a function counts for at most."""


ONCE = affine(1)


@dataclass(frozen=True, slots=True)
class Effort:
    """`times` the sum of `cost` and all `parts`, in operations on elements in registers: about 130,000 in a microsecond.

    depth   of loops; known: the product of the numbers among their trips, along the way where it is greatest
    """

    cost: int = 0
    times: Affine = ONCE
    parts: tuple[Effort, ...] = ()
    depth: int = 0
    known: int = 0

    @property
    def rank(self) -> tuple[int, int]:
        return self.depth, self.known

    @property
    def sizes(self) -> frozenset[str]:
        """What it depends on."""
        return names(self.times).union(*(p.sizes for p in self.parts))

    def value(self, sizes: Mapping[str, int]) -> int:
        return max(0, evaluate(self.times, sizes)) * (self.cost + sum(p.value(sizes) for p in self.parts))

    def __str__(self) -> str:
        inside = " + ".join([*([str(self.cost)] if self.cost or not self.parts else []), *map(str, self.parts)])
        return inside if self.times == ONCE else f"({self.times})*({inside})"


def effort(nest: LoopNest, n: For) -> Effort:
    """What all iterations of `n` do, for the indices of the loops around it."""
    return _of(nest, n, {}, ())


def _of(nest: LoopNest, n: Node, middle: Mapping[str, Affine], lockstep: tuple[str, ...]) -> Effort:
    match n:
        case For() if _is_one_step(nest, n):
            return Effort(1, depth=1, known=1)
        case For():
            lower, upper = substitute(n.lower, middle), substitute(n.upper, middle)
            inside = {**middle, n.index: lower + quasi("div", upper - lower - 1, affine(2 * n.step)) * n.step}
            held = (*lockstep, n.index) if n.kind in LOCKSTEP else lockstep
            return _times(quasi("div", upper - lower + (n.step - 1), affine(n.step)), _sum(nest, n.body, inside, held))
        case If() | IfData():
            return max((_sum(nest, x, middle, lockstep) for x in (n.then, n.other)), key=lambda e: e.rank)
        case Store():
            return Effort(_cost(nest, n, lockstep), known=1)
        case _:
            return Effort()


def _is_one_step(nest: LoopNest, n: For) -> bool:
    """Whether `n` is the steps of a lane that a dot-product instruction takes at once: it adds products to the same registers."""
    return n.kind == Kind.ROWS and all(
        isinstance(s, Store) and s.reduce is not None and product(s.expr) is not None and n.index not in expr_names(s.target)
        and nest.buffer(s.target.source).space == Space.REG for s in n.body)


def _sum(nest: LoopNest, body: tuple[Node, ...], middle: Mapping[str, Affine], lockstep: tuple[str, ...]) -> Effort:
    found = [_of(nest, n, middle, lockstep) for n in body]
    depth = max((e.depth for e in found), default=0)
    deepest = [e for e in found if e.depth == depth]
    over = frozenset[str]().union(*(e.sizes for e in deepest))
    deep = [e for e in found if e in deepest or not e.sizes <= over]
    plain = sum(e.cost for e in deep if not e.parts and e.times == ONCE)
    parts = tuple(e for e in deep if e.parts or e.times != ONCE)
    known = max((e.known for e in deep), default=0)
    if len(parts) == 1 and not plain:
        return parts[0]
    return Effort(plain, parts=parts, depth=depth, known=known)


def _times(trips: Affine, inside: Effort) -> Effort:
    """`inside`, so many times: one loop more."""
    if not trips.is_constant:
        if inside.times != ONCE:
            return Effort(0, trips, (inside,), inside.depth + 1, inside.known)
        return Effort(inside.cost, trips, inside.parts, inside.depth + 1, inside.known)
    count = max(0, trips.const)
    if inside.times == ONCE and not inside.parts:
        return Effort(inside.cost * count, depth=inside.depth + 1, known=inside.known * count)
    return Effort(0, trips, (inside,), inside.depth + 1, inside.known * count)


def _cost(nest: LoopNest, s: Store, lockstep: tuple[str, ...]) -> int:
    """Of one element. What lies in registers, or is the same along rows or lanes, has been read for others already."""
    moved = [x for x in loads(s.expr) if nest.buffer(x.source).space != Space.REG and expr_names(x).issuperset(lockstep)]
    written = nest.buffer(s.target.source).space != Space.REG
    apart = sum(_is_apart(nest, x, lockstep) for x in (*moved, *([s.target] if written else [])))
    functions = sum(min(INSTRUCTIONS.get(x.fn, 1), MOST) for x in walk(s.expr) if isinstance(x, Apply))
    return max(1, functions) + MOVED * (len(moved) + 2 * written) + APART * apart


def _is_apart(nest: LoopNest, x: Load, lockstep: tuple[str, ...]) -> bool:
    """Whether each element of `x` is moved by itself: no loop in lock step runs along those that lie side by side.

    What does not vary with these loops, if there are any, is moved for all of them.
    """
    if not lockstep:
        return True
    b = nest.buffer(x.source)
    unit = b.dense
    if not expr_names(x) & set(lockstep):
        return False
    p = x.index[unit] if unit is not None and x.index else None
    return not isinstance(p, Affine) or not any(abs(p.factor(i)) == 1 for i in lockstep)
