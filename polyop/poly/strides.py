"""How loops lie to memory and where they start: element strides along them, their first values, their axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import lcm

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, Quasi, affine, affines, expr_names, names, quasi, substitute
from polyop.ir.expr import Test as Tests
from polyop.ir.target import NEAR
from polyop.poly.build import Axes, Plan
from polyop.poly.schedule.nodes import Serial
from polyop.poly.scop import Stmt
from polyop.poly.tiles import Axis, Coord

ODD = 7
"""The greatest odd number of vectors in one pass, for digits by multiples of it."""


def stride(plan: Plan, s: Stmt, load: Load, loop: str) -> int | None:
    """The element stride of `load` along class `loop`: 0, 1, -1, or None for anything else (another dimension, a gather)."""
    found = spacing(plan, s, load, loop)
    return found if found in (0, 1, -1) else None


def spacing(plan: Plan, s: Stmt, load: Load, loop: str) -> int | None:
    """The element stride of `load` along class `loop`, or None if it is no constant (another dimension, a gather)."""
    unit = unit_of(plan, load)
    own = [i for i in s.dims if plan.classes[s.name].get(i) == loop]
    found: int | None = 0
    for d, p in enumerate(load.index):
        if not isinstance(p, Affine):
            if any(i in expr_names(p) for i in own):
                return None
            continue
        for i in own:
            if i in names(p):
                f = p.factor(i)
                if d != unit or any(i in names(affine(a)) for a, _ in p.terms if not isinstance(a, str)):
                    return None
                found = f
    return found


def is_near(plan: Plan, s: Stmt, load: Load, loop: str) -> bool:
    """Whether neighbours along class `loop` lie a few places apart in `load`: lanes are then picked out of whole vectors."""
    return spacing(plan, s, load, loop) in range(2, NEAR + 1)


def is_apart(plan: Plan, s: Stmt, load: Load, loop: str) -> bool:
    """Whether `load` runs along class `loop` in the last dimension of a tensor of which none has unit stride, as `x[:, ::2]` has.

    Its elements are read one by one then, whatever loop has the lanes, and of its dimensions the last one is likely the nearest.
    """
    own = {i for i in s.dims if plan.classes[s.name].get(i) == loop}
    along = [names(p) & own for p in load.index if isinstance(p, Affine)]
    if unit_of(plan, load) is not None or not along or len(along) < len(load.index):
        return False
    return bool(along.pop()) and not any(along)


def lies_along(plan: Plan, s: Stmt, load: Load, lane: str, loops: Iterable[str]) -> bool:
    """Whether `load` has its unit stride along one of `loops`, and another dimension along `lane`, so that it can be turned."""
    if not all(isinstance(p, Affine) for p in load.index) or spacing(plan, s, load, lane) is not None:
        return False
    return any(spacing(plan, s, load, c) == 1 for c in loops)


def unit_of(plan: Plan, load: Load) -> int | None:
    """The dimension of unit stride of what `load` reads or writes, if there is one."""
    is_temp = plan.scop.op.tensor(load.source).role == "temp"
    return len(load.index) - 1 if is_temp else plan.layout.unit(load.source)


def unclamped(load: Load, own: list[str]) -> Load:
    """`load` as it is where no minimum or maximum along the iterators `own` holds it back: `X[i - 2]` of `X[max(i - 2, 0)]`."""
    def free(atom: Quasi) -> Affine:
        if atom.op not in ("min", "max"):
            return affine(atom)
        return max((_mapped(a, own, free) for a in atom.args), key=lambda a: (any(map(a.factor, own)), sum(map(a.factor, own))))

    return replace(load, index=tuple(_mapped(p, own, free) if isinstance(p, Affine) else p for p in load.index))


def unbent(load: Load, own: list[str]) -> Load:
    """`load` as it counts for lanes along `own`: `X[i]` of `X[i/2]`, of which lanes side by side read few elements side by side.

    What repeats itself in each vector is none: `W[0]` of `W[i % 4]`. Vectors begin at multiples of few numbers, see `odd_digits`.
    """
    def straight(atom: Quasi) -> Affine:
        if atom.op not in ("div", "mod") or _odd(atom.args[1].const) > ODD:
            return affine(atom)
        return _mapped(atom.args[0], own, straight) if atom.op == "div" else affine(0)

    load = unclamped(load, own)
    return replace(load, index=tuple(_mapped(p, own, straight) if isinstance(p, Affine) else p for p in load.index))


def odd_digits(plan: Plan, stmts: Iterable[Stmt], loop: str) -> int:
    """The odd number at whose multiples vectors along `loop` had better begin: 3 for `X[i/3]` or `X[i % 6]`; 1 above `ODD`."""
    found = [_odd(q.args[1].const) for s in stmts for x in affines(s.expr)
             for q in _quotients(x, {i for i in s.dims if plan.classes[s.name].get(i) == loop})]
    odd = lcm(*found)
    return odd if odd <= ODD else 1


def _quotients(x: Affine, own: set[str]) -> Iterator[Quasi]:
    """The quotients and remainders in `x` of what has one of `own`."""
    for a, _ in x.terms:
        if not isinstance(a, str) and names(affine(a)) & own:
            yield from (q for arg in a.args for q in _quotients(arg, own))
            if a.op in ("div", "mod"):
                yield a


def _odd(d: int) -> int:
    """`d` without its factors of two."""
    return d // (d & -d)


def _mapped(x: Affine, own: list[str], f: Callable[[Quasi], Affine]) -> Affine:
    """`x` with what `f` makes of the quotients, remainders, minima and maxima of the iterators `own`."""
    total = affine(x.const)
    for atom, factor in x.terms:
        total = total + (affine(atom) if isinstance(atom, str) or not names(affine(atom)) & {*own} else f(atom)) * factor
    return total


def lower_bound(plan: Plan, s: Stmt, loop: str, axes: Axes, asked: Sequence[Affine] = ()) -> Affine:
    """The first value of the iterator of class `loop` in `s`, in terms of sizes and of the loops in `axes`.

    asked  conditions that are tests of each element, so that no loop begins by them
    Notes  Tiles that several clusters take start where its range does, in all of them.
    """
    own = plan.classes[s.name]
    i = next(i for i in s.dims if own[i] == loop)
    known = set(plan.scop.op.sizes) | {j for j in s.dims if own[j] in axes}
    found = []
    for r in s.ranges:
        if r.index == i:
            if not names(r.lower) <= known:
                raise UnsupportedError(f"{i} starts at {r.lower}, which is not known outside its loop")
            found.append(r.lower)
    for w in s.where if loop not in plan.tiled else ():
        if isinstance(w, Tests):
            for t in w.tests:
                rest = t + affine(i) * -1
                if t.factor(i) == 1 and t not in asked and i not in names(rest) and names(rest) <= known:
                    found.append(rest * -1)
    return substitute(quasi("max", *found) if len(found) > 1 else found[0], plan.values(s, axes))


def serial_axis(plan: Plan, node: Serial) -> Axis:
    """The axis of a serial loop. Raises UnsupportedError, if it runs backwards from different ends."""
    if not node.is_reversed:
        return Axis((Coord(node.loop),))
    ends = set()
    for s in node.stmts:
        own = plan.classes[s.name]
        ends |= {r.upper for r in s.ranges if own[r.index] == node.loop}
    if len(ends) != 1:
        raise UnsupportedError(f"statements along {node.loop} end at different places")
    end = ends.pop()
    if not names(end) <= set(plan.scop.op.sizes):
        raise UnsupportedError(f"{node.loop} ends at {end}, which depends on other loops")
    return Axis((Coord(node.loop),), end - 1, -1)


def common_start(plan: Plan, stmts: Iterable[Stmt], loop: str, axes: Axes,
                 asked: Callable[[Stmt], Sequence[Affine]] = lambda _: ()) -> Affine:
    """Where the lanes along `loop` start for all of `stmts`; see `lower_bound`. Raises UnsupportedError, if they differ."""
    starts = {lower_bound(plan, s, loop, axes, asked(s)) for s in stmts if loop in plan.classes[s.name].values()}
    if len(starts) != 1:
        raise UnsupportedError(f"statements along {loop} start at different places")
    return starts.pop()
