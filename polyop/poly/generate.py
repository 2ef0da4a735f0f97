"""Tile program -> LoopNest: isl's AST generator writes the loops, this file renames them and fills in the stores."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any

import islpy as isl

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Affine, Quasi, affine, bounds, names, place, quasi, substitute, substitute_expr
from polyop.ir.loops import LOCKSTEP, For, If, Kind, Node, Store
from polyop.poly.tiles import Order, TileProgram, order

E: Any = isl.ast_expr_op_type  # the stubs lack `and_`, `if_` and their like, and call the enums int
K: Any = isl.ast_expr_type
N: Any = isl.ast_node_type
Test = tuple[Affine, ...]


def generate(p: TileProgram, head: str) -> tuple[Node, ...]:
    """The body of the nest that `p` stands for.

    Raises  UnsupportedError, if a lock-step loop comes out with a start other than 0, or bounds that differ by lane.
    """
    schedule = order(p, head)
    depth = len(next(iter(schedule.times.values())))
    ids = isl.IdList.alloc(isl.DEFAULT_CONTEXT, depth)
    for i in range(depth):
        ids = ids.add(isl.Id(f"t{i}"))
    ast = isl.AstBuild.from_context(p.context).set_iterators(ids).node_from_schedule_map(schedule.schedule)
    return _Writer(p, schedule).body(ast, {}, {}, frozenset())


class _Writer:
    """The walk over isl's AST; state is what does not change on the way."""

    def __init__(self, p: TileProgram, schedule: Order) -> None:
        self.stmts = {s.name: s for s in p.stmts}
        self.times, self.steps = schedule.times, schedule.steps
        self.kinds = {c: (kind, extent) for c, kind, extent in p.kinds}

    def body(self, n: isl.AstNode, env: dict[str, Affine], coord: dict[str, str], locked: frozenset[str]) -> tuple[Node, ...]:
        """env: value of a loop that isl dropped. coord: iterator of isl -> our coordinate, of which it counts the steps."""
        match n.get_type():
            case N.block:
                items = n.block_get_children()
                return tuple(x for i in range(items.n_ast_node()) for x in self.body(items.get_at(i), env, coord, locked))
            case N.if_:
                return self.branch(n, env, coord, locked)
            case N.for_:
                return self.loop(n, env, coord, locked)
            case N.user:
                return (self.store(n, env, coord),)
        raise InternalError(f"generate: unexpected AST node {n.get_type()}")

    def scale(self, coord: dict[str, str]) -> dict[str, tuple[str, int]]:
        return {i: (c, self.steps.get(c, 1)) for i, c in coord.items()}

    def branch(self, n: isl.AstNode, env: dict[str, Affine], coord: dict[str, str], locked: frozenset[str]) -> tuple[Node, ...]:
        """`if a or b { S } else { T }` becomes `if a { S } else { if b { S } else { T } }`: still one run of S."""
        other = self.body(n.if_get_else(), env, coord, locked) if n.if_has_else() else ()
        then = self.body(n.if_get_then(), env, coord, locked)
        scale = self.scale(coord)
        for case in reversed(cases(n.if_get_cond(), env)):
            other = (If(tuple(rescale(t, scale, inequality=True) for t in case), then, other),)
        return other

    def loop(self, n: isl.AstNode, env: dict[str, Affine], coord: dict[str, str], locked: frozenset[str]) -> tuple[Node, ...]:
        iterator = n.for_get_iterator().get_id().get_name()
        lower = index(n.for_get_init(), env)
        found = {self.times[s][int(iterator[1:])] for s in statements(n)}
        if len(found) != 1:
            raise InternalError(f"generate: one loop for several coordinates: {sorted(found)}")
        c = found.pop()
        step = self.steps.get(c, 1)
        kind, extent = self.kinds.get(c, (Kind.SERIAL, None))
        scale = self.scale(coord)
        if n.for_is_degenerate():
            if c.isdigit() or kind not in LOCKSTEP:
                if not c.isdigit() and names(lower) & locked:
                    raise UnsupportedError(f"loop {c} depends on what runs in lock step")
                return self.body(n.for_get_body(), env | {iterator: lower}, coord, locked)
            upper = rescale(lower, scale) + 1
        else:
            condition = n.for_get_cond()
            last = index(condition.get_op_arg(1), env) - (1 if condition.get_op_type() == E.lt else 0)
            upper = rescale(end(last, step), scale)
        first = rescale(lower * step, scale)
        stride = 1 if n.for_is_degenerate() else n.for_get_inc().get_val().to_python()
        if (names(first) | names(upper)) & locked:
            raise UnsupportedError(f"the bounds of {c} depend on what runs in lock step")
        if kind in LOCKSTEP:
            if first != Affine() or stride != 1:
                raise UnsupportedError(f"lock-step loop {c} starts at {first}, not at 0")
            locked = locked | {c}
            if n.for_is_degenerate() and extent is not None:
                upper = quasi("min", upper, affine(extent))
        inner = self.body(n.for_get_body(), env, coord | {iterator: c}, locked)
        return (For(c, first, upper, inner, stride * step, kind, extent if kind in LOCKSTEP else None),)

    def store(self, n: isl.AstNode, env: dict[str, Affine], coord: dict[str, str]) -> Store:
        call = n.user_get_expr()
        s = self.stmts[call.get_op_arg(0).get_id().get_name()]
        counts = (index(call.get_op_arg(i), env) for i in range(1, call.get_op_n_arg()))
        scale = self.scale(coord)
        instance = tuple(rescale(x * c.step, scale) for c, x in zip(s.coords, counts, strict=True))
        at = {c.name: x for c, x in zip(s.coords, instance, strict=True)}
        lift = tuple(substitute(x, at) for x in s.lift)
        return Store(s.name, instance, s.origin, lift, place(s.target, at), s.reduce, substitute_expr(s.expr, at))


def rescale(x: Affine, scale: dict[str, tuple[str, int]], inequality: bool = False) -> Affine:
    """`x` over coordinates instead of counts of steps; an inequality `x >= 0` may be multiplied to make that possible."""
    factors = [scale[a][1] // gcd(f, scale[a][1]) for a, f in x.terms if isinstance(a, str) and a in scale]
    factor = lcm(*factors) if factors else 1
    if factor != 1 and not inequality:
        raise UnsupportedError(f"{x} is not a sum of whole steps")
    total = affine(x.const * factor)
    for atom, f in x.terms:
        if isinstance(atom, Quasi):
            total = total + rescale_atom(atom, scale) * (f * factor)
        else:
            coord, step = scale.get(atom, (atom, 1))
            total = total + affine(coord) * (f * factor // step)
    return total


def rescale_atom(a: Quasi, scale: dict[str, tuple[str, int]]) -> Affine:
    """floor(x / d) of a count x may need x times s: floor(s x / (s d)) is the same."""
    if a.op in ("div", "mod"):
        x, d = a.args
        factors = [scale[n][1] // gcd(f, scale[n][1]) for n, f in x.terms if isinstance(n, str) and n in scale]
        s = lcm(*factors) if factors else 1
        if s != 1 and a.op == "div":
            return quasi("div", rescale(x * s, scale), d * s)
        if s != 1:
            raise UnsupportedError(f"{a} is not a sum of whole steps")
    return quasi(a.op, *(rescale(x, scale) for x in a.args))


def end(last: Affine, step: int) -> Affine:
    """The first value of a coordinate past the end, where `last` is its last count.

        count <= floor(x / step) + c     is     step * count < x + step * c + 1
    """
    parts = bounds(last)
    if len(parts) > 1:
        return quasi("min", *(end(a, step) for a in parts))
    for atom, factor in last.terms:
        if isinstance(atom, Quasi) and factor == 1 and atom.op == "div" and atom.args[1] == affine(step):
            return atom.args[0] + (last - affine(atom)) * step + 1
    return (last + 1) * step


def statements(n: isl.AstNode) -> set[str]:
    """The names of all statements below a node."""
    match n.get_type():
        case N.block:
            items = n.block_get_children()
            return {s for i in range(items.n_ast_node()) for s in statements(items.get_at(i))}
        case N.if_:
            return statements(n.if_get_then()) | (statements(n.if_get_else()) if n.if_has_else() else set())
        case N.for_:
            return statements(n.for_get_body())
        case N.user:
            return {n.user_get_expr().get_op_arg(0).get_id().get_name()}
    raise InternalError(f"generate: unexpected AST node {n.get_type()}")


def index(e: isl.AstExpr, env: dict[str, Affine]) -> Affine:
    """An index expression of isl's AST."""
    if e.get_type() == K.int:
        return affine(e.get_val().to_python())
    if e.get_type() == K.id:
        name = e.get_id().get_name()
        return env.get(name, affine(name))
    a = [index(e.get_op_arg(i), env) for i in range(e.get_op_n_arg())]
    match e.get_op_type():
        case E.add:
            return a[0] + a[1]
        case E.sub:
            return a[0] - a[1]
        case E.minus:
            return a[0] * -1
        case E.mul:
            return a[0] * a[1].const if a[1].is_constant else a[1] * a[0].const
        case E.min:
            return quasi("min", *a)
        case E.max:
            return quasi("max", *a)
        case E.fdiv_q | E.pdiv_q:
            return quasi("div", *a)
        case E.div:  # exact
            return quasi("div", *a)
        case E.pdiv_r | E.zdiv_r:
            return quasi("mod", *a)
    raise UnsupportedError(f"isl wrote an operator that indices do not have: {e.get_op_type()}")


def cases(e: isl.AstExpr, env: dict[str, Affine]) -> list[Test]:
    """The condition as alternatives, each a conjunction of expressions that must be >= 0."""
    a = [e.get_op_arg(i) for i in range(e.get_op_n_arg())]
    match e.get_op_type():
        case E.and_ | E.and_then:
            return [x + y for x in cases(a[0], env) for y in cases(a[1], env)]
        case E.or_ | E.or_else:
            return cases(a[0], env) + cases(a[1], env)
    x, y = (index(arg, env) for arg in a)
    match e.get_op_type():
        case E.le:
            return [(y - x,)]
        case E.lt:
            return [(y - x - 1,)]
        case E.ge:
            return [(x - y,)]
        case E.gt:
            return [(x - y - 1,)]
        case E.eq:
            return [(x - y, y - x)]
    raise UnsupportedError(f"isl wrote a test that nests do not have: {e.get_op_type()}")
