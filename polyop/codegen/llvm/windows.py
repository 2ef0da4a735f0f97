"""A window of known size along rows in lock step, written out, so that rows which several of them read are read once.

    for r in [0, 3) { for s in [0, S) { for p (rows 4) { acc[p, v] += X[p + r, v + s] * F[r, s] } } }

becomes, by r, p and the order of the loops alone,

    for s in [0, S) { h = 0: p = 0, r = 0;  h = 1: p = 0, r = 1 and p = 1, r = 0;  ..  h = 5: p = 3, r = 2 }         h = p + r

Row h of X serves up to three rows of the result: 6 vectors are read for 12 multiply-adds, and not 12. The loops that share
nothing stay loops: written out too, they would leave LLVM more values than there are registers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from polyop.codegen.llvm.expressions import condition, value_of
from polyop.codegen.llvm.repeat import points
from polyop.codegen.llvm.state import Active, Point, State, Value
from polyop.codegen.llvm.stores import conditional, register_update
from polyop.ir.expr import Affine, evaluate, is_computed, loads, names
from polyop.ir.loops import For, Kind, Node, Space, Store
from polyop.ir.registers import WINDOW


def arranged(s: State, n: For) -> For:
    """The loops from `n` in, rows outside and the window that they share inside, where there is one; else `n` itself.

    Notes   Each register still has all its updates, but in another order, so not where numerics are strict.
    """
    loops: list[For] = []
    at: Node = n
    while isinstance(at, For) and at.kind in (Kind.SERIAL, Kind.ROWS) and len(at.body) == 1:
        loops.append(at)
        at = at.body[0]
    rows = [f for f in loops if f.kind == Kind.ROWS]
    if s.shared.strict or not isinstance(at, Store) or (loops[: len(rows)] == rows and len(rows) > 0):
        return n
    every = {a.index for a in s.rows} | {f.index for f in rows}
    window = next((f for f in loops if _is_window(s, f, at, every)), None)
    bounds = frozenset().union(*(names(x) for f in loops for x in (f.lower, f.upper)))
    if window is None or bounds & {f.index for f in loops}:
        return n
    order = [*rows, *(f for f in loops if f not in rows and f is not window), window]
    if order == loops:
        return n
    for f in reversed(order):
        at = replace(f, body=(at,))
    assert isinstance(at, For)
    return at


def is_window(s: State, n: For) -> bool:
    """Whether `n` is a loop over a window of known size, directly around its update, that rows in lock step share."""
    match n.body:
        case (Store() as update,):
            return _is_window(s, n, update, {a.index for a in s.rows})
    return False


def _is_window(s: State, n: For, update: Store, rows: set[str]) -> bool:
    if not (n.kind == Kind.SERIAL and n.step == 1 and n.lower.is_constant and n.upper.is_constant):
        return False
    own = frozenset().union(*(names(p) for p in update.target.index if isinstance(p, Affine)))
    plain = not any(is_computed(p) for x in loads(update.expr) for p in x.index)
    is_register = s.nest.buffer(update.target.source).space == Space.REG
    return (0 < n.upper.const - n.lower.const <= WINDOW and s.lanes is not None and update.reduce is not None and plain
            and is_register and own == {s.lanes.index} | rows and _shared(update, n.index, rows, s.lanes.index) is not None)


def _shared(update: Store, window: str, rows: set[str], lane: str) -> Affine | None:
    """What `window` and rows add up to in a position of what is read along the lanes: p + r of `X[p_s + p + r - 1, v]`."""
    along = [x for x in loads(update.expr) if any(isinstance(p, Affine) and p.factor(lane) for p in x.index)]
    for p in (p for x in along for p in x.index if isinstance(p, Affine)):
        linear = tuple((a, f) for a, f in p.terms if isinstance(a, str) and a in rows | {window})
        inside = frozenset[str]().union(*(names(Affine(((a, 1),))) for a, _ in p.terms if not isinstance(a, str)))
        if p.factor(window) and len(linear) > 1 and not inside & (rows | {window}):
            return Affine(linear)
    return None


def write_out(s: State, n: For) -> None:
    """The update in the window `n`, once for each step and copy of the rows; those that read the same row stand together."""
    update, env, active = n.body[0], s.env, s.active
    assert isinstance(update, Store)
    rows = frozenset(a.index for a in s.rows)
    copies = tuple(points(s, rows))
    assert s.lanes is not None
    row = _shared(update, n.index, set(rows), s.lanes.index)
    assert row is not None
    made: dict[int, tuple[Callable[[Point, Iterable[int]], None], Active]] = {}
    steps = [(i, point) for i in range(n.lower.const, n.upper.const) for point in copies]
    steps.sort(key=lambda x: evaluate(row, {**x[1], n.index: x[0]}))
    with s.b.reading_once():
        for v in range(s.vectors()):  # one after the other, or the window's elements would need registers for all
            for i, point in steps:
                s.env = {**env, n.index: i}
                if i not in made:
                    s.loaded, s.active = {}, active
                    x, s.active = _value(s, update)
                    made[i] = register_update(s, update, x), s.active
                write, s.active = made[i]
                write(point, (v,))
    s.env, s.active = env, active


def _value(s: State, n: Store) -> tuple[Value, Active]:
    """What `n` adds, and where."""
    found = conditional(n)
    if found is None:
        return value_of(s, n.expr, s.active), s.active
    s.active = (*s.active, condition(s, found[0], value_of(s, found[0], s.active), True))
    return value_of(s, found[1], s.active), s.active
