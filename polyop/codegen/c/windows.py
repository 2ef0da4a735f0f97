"""What windows of neighbouring results share, as C text: read once to registers, before the loops over these windows.

    for r < 3 { for s < 3 { for p in [0, 4) (rows 4) { Y[p] += X[p_s + p + r, q + s] * F[r, s] } } }

    for a < 6 { for b < 3 { w[3 a + b] = X[p_s + a, q + b] } }
    for r < 3 { for s < 3 { for p < 4 { Y[p] += w[3 (p + r) + s] * F[r, s] } } }

The loops write registers alone, so nothing that they read changes meanwhile, and rows beyond the bounds may run, too: nobody
reads those registers. What is asked of an element is asked once, at its place in the window, and beyond the last row nothing is
read.

    { [p, r] -> [a] : a = p + r }      so that 0 <= a <= (last p) + 2
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from polyop.codegen.c.lines import unrolled
from polyop.codegen.c.place import STORED
from polyop.codegen.c.scope import Scope
from polyop.codegen.c.store import store
from polyop.codegen.nested import nested
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, affine, bounds, children, loads, names, substitute_expr, walk
from polyop.ir.expr import rebuild as rebuild_expr
from polyop.ir.loops import Buffer, For, Kind, Node, Space, Store, rebuild

MOST = 256  # terms that are written out


@dataclass(frozen=True, slots=True)
class Window:
    """An expression that reads one element, and what the loops around choose of it.

    sides   for each dimension that they choose: loop -> by how much it moves there; its length is `ends`
    inside  for each of these, whether what is asked tells that an element is not beyond the end of its tensor
    """

    expr: Expr
    sides: tuple[tuple[tuple[str, int], ...], ...]
    ends: tuple[int, ...]
    inside: tuple[bool, ...]

    def at(self) -> Affine:
        """Where an element lies among those of the window, by the indices of the loops."""
        out = Affine()
        for side, end in zip(self.sides, self.ends, strict=True):
            out = out * end + sum((affine(i) * f for i, f in side), Affine())
        return out


def prepared(n: For, scope: Scope) -> tuple[list[str], Node, Scope] | None:
    """The lines by which windows come to registers, the loops that use them, and what these know; None, if no windows overlap."""
    loops, inside = nested((n,), Kind.SERIAL, Kind.ROWS)
    ends = {f.index: _end(f) for f in loops}
    if scope.block or {f.kind for f in loops} != {Kind.SERIAL, Kind.ROWS} or prod(ends.values()) not in range(1, MOST + 1):
        return None
    if not all(isinstance(s, Store) and scope.buffers[s.target.source].space == Space.REG for s in inside):
        return None
    body = [s for s in inside if isinstance(s, Store)]
    rows = {f.index for f in loops if f.kind == Kind.ROWS}
    found = dict.fromkeys(w for s in body for x in _places(s.expr) if (w := _window(x, ends, rows, scope)))
    if not found:
        return None
    held = {w: Buffer(f"pop_w{k}", w.expr.dtype, ((affine(prod(w.ends)), 1),), Space.REG) for k, w in enumerate(found)}
    taken = {w.expr: Load(b.name, (w.at(),), b.dtype) for w, b in held.items()}
    inner = replace(scope, names={**scope.names, **{b.name: b.name for b in held.values()}},
                    buffers={**scope.buffers, **{b.name: b for b in held.values()}})
    left = [x for s in body for x in loads(_put(s.expr, taken)) if scope.buffers.get(x.source, None) is not None]
    free = not any(rows & names(p) for x in left if scope.buffers[x.source].space != Space.REG for p in x.index
                   if isinstance(p, Affine))
    lines = [x for w, b in held.items() for x in _read(w, b, loops, inner)]
    return lines, _using(n, taken, free), inner


def is_free(n: For, scope: Scope) -> bool:
    """Whether rows that are not there may run: they write registers of their own, and read no memory."""
    def alone(s: Node) -> bool:
        return (isinstance(s, Store) and scope.buffers[s.target.source].space == Space.REG and s.reduce is None
                and any(n.index in names(p) for p in s.target.index if isinstance(p, Affine)) and not loads(s.expr))

    return all(map(alone, n.body))


def _end(f: For) -> int:
    """How often a loop runs at most, if that is a number and all steps are 1; else 0."""
    if f.step != 1 or f.lower != Affine():
        return 0
    if f.kind == Kind.ROWS:
        return f.extent or 0
    return f.upper.const if f.upper.is_constant else 0


def _places(e: Expr) -> Iterable[Expr]:
    """The reads in `e`, each with what is chosen instead where its guard does not hold."""
    match e:
        case Apply(fn="select", args=(Test(tests=ts), Load(guard=g) as x, Const())) if {*g} <= {*ts} and not children(x):
            yield e
        case Load() if not children(e):
            yield e
        case _:
            for y in children(e):
                yield from _places(y)


def _window(e: Expr, ends: Mapping[str, int], rows: set[str], scope: Scope) -> Window | None:
    """The window that the loops go through as they evaluate `e`; None, if there is none, or no element is in two of them."""
    (x,) = loads(e)
    if scope.buffers[x.source].space not in (Space.TENSOR, Space.WORK):
        return None
    sides = [_terms(p, ends) for p in x.index if isinstance(p, Affine)]
    chosen = tuple(s for s in sides if s)
    used = [i for s in chosen for i, _ in s]
    if len(used) != len({*used}) or not rows & {*used} or any(f < 1 for s in chosen for _, f in s):
        return None
    if any(all(f != 1 for _, f in s) for s in chosen) or any(_side(t, chosen, ends) is None for t in _asked(e)):
        return None
    asked = {*_asked(e)}
    inside = tuple(isinstance(extent, Affine) and unit == 1 and extent - 1 - p in asked
                   for p, (extent, unit) in zip(x.index, scope.buffers[x.source].dims, strict=True)
                   if isinstance(p, Affine) and _terms(p, ends))
    w = Window(e, chosen, tuple(sum(f * (ends[i] - 1) for i, f in s) + 1 for s in chosen), inside)
    return w if prod(w.ends) < prod(ends[i] for i in used) else None


def _terms(p: Affine, ends: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((i, p.factor(i)) for i in ends if i in names(p))


def _asked(e: Expr) -> Iterable[Affine]:
    for x in walk(e):
        if isinstance(x, Test):
            yield from x.tests
        elif isinstance(x, Load):
            yield from x.guard


def _side(t: Affine, sides: tuple[tuple[tuple[str, int], ...], ...], ends: Mapping[str, int]) -> int | None:
    """The dimension of a window about which `t` asks, -1 if that is none; None, if `t` tells elements of one place apart."""
    mine = _terms(t, ends)
    if not mine:
        return -1
    for d, side in enumerate(sides):
        times = t.factor(mine[0][0]) // dict(side).get(mine[0][0], 1) if mine[0][0] in dict(side) else 0
        if times and mine == tuple((i, times * f) for i, f in side):
            return d
    return None


def _put(e: Expr, taken: Mapping[Expr, Load]) -> Expr:
    return taken[e] if e in taken else rebuild_expr(e, lambda x: _put(x, taken))


def _using(n: Node, taken: Mapping[Expr, Load], free: bool) -> Node:
    """The loops with registers in the place of what they hold; of `free` ones all rows run."""
    if isinstance(n, Store):
        return replace(n, expr=_put(n.expr, taken))
    n = rebuild(n, lambda inside: tuple(_using(x, taken, free) for x in inside))
    return replace(n, upper=affine(n.end)) if free and isinstance(n, For) and n.kind == Kind.ROWS else n


def _read(w: Window, b: Buffer, loops: tuple[For, ...], scope: Scope) -> list[str]:
    """The elements of a window, one by one: those of the last rows only where these rows are there."""
    places = [f"pop_x{d}" for d in range(len(w.ends))]
    env, tests, at = dict[str, Affine](), list[Affine](), Affine()
    of = {f.index: f for f in loops}
    for side, end, x, is_inside in zip(w.sides, w.ends, places, w.inside, strict=True):
        one = next(i for i, f in side if f == 1)
        env |= {i: affine(x) if i == one else Affine() for i, _ in side}
        at = at * end + affine(x)
        for i, f in () if is_inside else side:
            most = sum(g * (_end(of[j]) - 1) for j, g in side if j != i)
            tests += [(u - 1) * f + most - affine(x) for u in bounds(of[i].upper) if not u.is_constant]
    inner = replace(scope, names={**scope.names, **{x: x for x in places}})
    target = Load(b.name, (at,), b.dtype)
    e = substitute_expr(w.expr, env)
    if tests:
        e = _if_there(e, tuple(tests), b)
    lines = store(Store("", (), None, (), target, None, e), inner)
    for x, end in reversed(list(zip(places, w.ends, strict=True))):
        lines = unrolled(x, end, lines)
    return [f"{STORED[b.dtype.name]} {b.name}[{prod(w.ends)}];", *lines]


def _if_there(e: Expr, tests: tuple[Affine, ...], b: Buffer) -> Expr:
    """`e` where all `tests` hold; else it is not evaluated, and any value will do."""
    match e:
        case Load():
            return replace(e, guard=tuple(dict.fromkeys((*tests, *e.guard))))
        case Apply(fn="select", args=(Test(tests=ts), yes, no)):
            return Apply("select", (Test((*tests, *ts)), yes, no), b.dtype)
    return e
