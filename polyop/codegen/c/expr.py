"""Expr -> C text that CUDA, HIP and the emulator's C++ all understand.

A value of a 16-bit float type is held as a `float` that the type can represent: every operation is carried out in f32 and
rounded back, as `ir/scalars.py` says. Whatever C leaves undefined or does otherwise (signed overflow, division, NaN in max,
shifts, casts) is a `pop_*` call; `device/pop_device.h` defines those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from polyop.codegen.c.index import ATOM, CHOICE, UNARY, Text, conditions, index
from polyop.codegen.c.place import NARROW, STORED, computed, element, offset, value_type, widened
from polyop.codegen.c.scope import Scope
from polyop.ir.dtypes import F32, I32, DType
from polyop.ir.errors import assert_never
from polyop.ir.expr import Apply, Const, Expr, Load, Number, Scalar, Test, children, rebuild
from polyop.ir.op import Monoid

T = TypeVar("T")

INFIX = {"add": ("+", 12), "sub": ("-", 12), "mul": ("*", 13), "div": ("/", 13), "lt": ("<", 10), "le": ("<=", 10),
         "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9), "and": ("&&", 5), "or": ("||", 4)}
"""Functions that are C operators for floats (and bools), with C's precedence; comparisons are for every type."""

NEAR = ("gelu", "silu", "sigmoid")
"""Functions of floats that have a shorter one, `pop_near_*`, for what is rounded to 16 bits at once, or times something."""


def literal(value: float | int | bool, t: DType) -> str:
    """A constant of `t` that C reads back exactly."""
    if t.kind == "bool":
        return "true" if value else "false"
    if t.is_float:
        x = float(t.numpy.type(value))
        single = t.bits < 64
        if math.isnan(x):
            return "pop_nan_f()" if single else "pop_nan()"
        if math.isinf(x):
            return ("-" if x < 0 else "") + ("pop_inf_f()" if single else "pop_inf()")
        return repr(float(np.float32(x))) + "f" if single else repr(x)
    n = int(value)
    if t == I32 and n > t.lowest:
        return str(n)
    if t.bits == 64 and t.kind == "int":
        return f"{n}ll" if n > t.lowest else f"({n + 1}ll - 1)"
    if t.kind == "uint" and t.bits >= 32:
        return f"{n}u" if t.bits == 32 else f"{n}ull"
    return f"({STORED[t.name]})({n})" if t.bits < 32 else f"({n + 1} - 1)"


def fold(e: Expr, f: Callable[[Expr, Sequence[T]], T]) -> T:
    """`f` of every sub-expression and the results of its children, from the leaves up; depth costs no Python stack."""
    todo: list[tuple[Expr, bool]] = [(e, False)]
    done: list[T] = []
    while todo:
        x, ready = todo.pop()
        below = children(x)
        if ready or not below:
            first = len(done) - len(below)
            result = f(x, done[first:])
            del done[first:]
            done.append(result)
        else:
            todo.append((x, True))
            todo.extend((c, False) for c in reversed(below))
    return done[0]


def expression(e: Expr, scope: Scope) -> Text:
    """The value of `e`."""
    def one(x: Expr, args: Sequence[Text]) -> Text:
        match x:
            case Const(value=v, dtype=t):
                text = literal(v, t)
                return Text(text, UNARY if text[0] in "-(" else ATOM)
            case Number(value=v, dtype=t):
                return converted(Text(f"(pop_i64){index(v, scope.names).at(UNARY)}", UNARY), "pop_i64", t)
            case Scalar(name=n, dtype=t):
                return Text(scope.names[n] if n in scope.values else widened(scope.names[n], t))
            case Test(tests=ts):
                return conditions(ts, scope.names)
            case Load():
                return read(x, args, scope)
            case Apply(fn="select", args=(Test(tests=ts), Load(guard=g) as y, _)) if g and {*g} <= {*ts} and not children(y):
                return apply(x, (args[0], read(replace(y, guard=()), (), scope), args[2]))  # its guard has been asked
            case Apply():
                return apply(x, args)
        assert_never(x)
    return fold(nearly(e), one)


def nearly(e: Expr) -> Expr:
    """`e` with the shorter of two functions where 16 bits are all that is left: of one factor, as each brings its own error."""
    def one(x: Expr, below: Sequence[Expr]) -> Expr:
        parts = iter(below)
        match rebuild(x, lambda _: next(parts)):
            case Apply(fn="cast", args=(Apply(fn="mul", args=(a, b), dtype=of),), dtype=t) if t in NARROW and of == F32:
                first = _near(a)
                pair = (first, b) if first is not a else (a, _near(b))
                return Apply("cast", (Apply("mul", pair, of),), t)
            case Apply(fn="cast", args=(y,), dtype=t) if t in NARROW:
                return Apply("cast", (_near(y),), t)
            case new:
                return new
    return fold(e, one)


def _near(e: Expr) -> Expr:
    match e:
        case Apply(fn=fn, dtype=t) if fn in NEAR and t == F32:
            return Apply(f"near_{fn}", e.args, t)
    return e


def read(load: Load, args: Sequence[Text], scope: Scope) -> Text:
    values = computed(load, args)
    if values:
        out = f"pop_read({scope.names[load.source]}, {offset(load, values, scope).c})"
    else:
        out = element(load, values, scope)
    out = widened(out, load.dtype)
    if not load.guard:
        return Text(out)
    return Text(f"{conditions(load.guard, scope.names).at(CHOICE + 1)} ? {out} : {literal(0, load.dtype)}", CHOICE)


def converted(x: Text, source: str, t: DType) -> Text:
    """A value of the C type `source` cast to `t`: see `ir.scalars.convert`."""
    if t in NARROW:
        return Text(f"pop_round_{t}({x.c if source in ('float', 'double') else f'(float){x.at(UNARY + 1)}'})")
    if t.kind == "bool":
        return Text(f"{x.at(10)} != 0", 9)
    if t.is_integer and source in ("float", "double"):
        return Text(f"pop_to_{t}({x.c})")
    return Text(f"({STORED[t.name]}){x.at(UNARY + 1)}", UNARY)


def of_dtype(x: Text, source: DType, t: DType) -> Text:
    """A value of `source` as one of `t`."""
    return x if source == t else converted(x, value_type(source), t)


def combined(m: Monoid, t: DType, a: Text, b: Text, scope: Scope) -> Text:
    """`a` and `b`, of dtype `t`, joined by a monoid. They are named more than once, so they had better be names."""
    if m.fn not in (None, "and", "or"):  # C's own `&&` and `||` would skip what may fail
        one = Const(m.identity, t)
        return apply(Apply(m.fn, (one, one), t), (a, b))
    inner = replace(scope, names={"a": a.c, "b": b.c}, values=frozenset("ab"))
    return of_dtype(expression(m.body, inner), m.body.dtype, t)


def apply(e: Apply, args: Sequence[Text]) -> Text:
    """One function of values."""
    t, of = e.dtype, e.args[0].dtype
    if e.fn == "select":
        yes, no = ((a if x.dtype == t else converted(a, value_type(x.dtype), t)).at(CHOICE)
                   for a, x in zip(args[1:], e.args[1:], strict=True))
        return Text(f"{args[0].at(CHOICE + 1)} ? {yes} : {no}", CHOICE)
    if e.fn == "cast":
        return args[0] if of == t else converted(args[0], value_type(of), t)
    if e.fn in INFIX and (of.is_float or of.kind == "bool" or e.fn not in ("add", "sub", "mul", "div")):
        sign, level = INFIX[e.fn]
        if e.fn == "or":  # `a && b || c` is a warning
            args = [Text(f"({a.c})") if a.level == INFIX["and"][1] else a for a in args]
        out = Text(f"{args[0].at(level)} {sign} {args[1].at(level + 1)}", level)
    elif e.fn == "neg" and of.is_float:
        out = Text(f"-{args[0].at(UNARY + 1)}", UNARY)
    elif e.fn == "not":
        out = Text(f"!{args[0].at(UNARY + 1)}", UNARY)
    else:
        near = "near_" if t in NARROW and e.fn in NEAR else ""
        out = Text(f"pop_{near}{e.fn}({', '.join(a.c for a in args)})")
    return Text(f"pop_round_{t}({out.c})") if t in NARROW else out
