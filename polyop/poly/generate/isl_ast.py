"""isl's AST in our words: index expressions and tests, and counts of steps as coordinates."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any

import islpy as isl

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Affine, Quasi, affine, bounds, quasi

E: Any = isl.ast_expr_op_type  # the stubs lack `and_`, `if_` and their like, and call the enums int
K: Any = isl.ast_expr_type
N: Any = isl.ast_node_type
Test = tuple[Affine, ...]


def rescale(x: Affine, scale: dict[str, tuple[str, int]], inequality: bool = False) -> Affine:
    """`x` over coordinates instead of counts of steps; an inequality `x >= 0` may be multiplied to make that possible.

    Else a count stands as the coordinate divided by its step, which leaves no remainder.
    """
    factors = [scale[a][1] // gcd(f, scale[a][1]) for a, f in x.terms if isinstance(a, str) and a in scale]
    factor = lcm(*factors) if factors and inequality else 1
    total = affine(x.const * factor)
    for atom, f in x.terms:
        if isinstance(atom, Quasi):
            total = total + rescale_atom(atom, scale) * (f * factor)
        else:
            coord, step = scale.get(atom, (atom, 1))
            whole = quasi("div", affine(coord), affine(step // gcd(f * factor, step)))
            total = total + whole * (f * factor // gcd(f * factor, step))
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
    if e.get_op_type() in (E.cond, E.select):
        return _chosen(e, env)
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


def _chosen(e: isl.AstExpr, env: dict[str, Affine]) -> Affine:
    """`t >= 0 ? x : y` for values that are a constant apart: { y + (x - y) min(max(t + 1, 0), 1) }."""
    found = cases(e.get_op_arg(0), env)
    x, y = (index(e.get_op_arg(i), env) for i in (1, 2))
    if len(found) != 1 or len(found[0]) != 1 or not (x - y).is_constant:
        raise UnsupportedError(f"isl chose a value by a condition: {e.to_C_str()}")
    holds = quasi("min", quasi("max", found[0][0] + 1, affine(0)), affine(1))
    return y + holds * (x - y).const


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
