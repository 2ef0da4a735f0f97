"""Store -> C text: an assignment, an update, or an indivisible one."""

from __future__ import annotations

from polyop.codegen.c import copy as ccopy
from polyop.codegen.c.expr import combined, expression, of_dtype
from polyop.codegen.c.index import Text
from polyop.codegen.c.place import NARROW, STORED, computed, element, moved, narrowed, offset, value_type, widened
from polyop.codegen.c.scope import Scope
from polyop.ir.expr import Affine, Load, loads
from polyop.ir.loops import Store, sign


def store(s: Store, scope: Scope) -> list[str]:
    """`target = expr`, or the old value combined with it."""
    t = s.target.dtype
    if copy := ccopy.one(s, scope):
        return copy
    if isinstance(s.expr, Load) and s.reduce is None and s.expr.dtype == t in NARROW and not _is_computed(s):
        return [f"{element(s.target, {}, scope)} = {moved(s.expr, scope).c};"]  # the bits as they are
    value = of_dtype(expression(s.expr, scope), s.expr.dtype, t)
    positions = [p for p in s.target.index if not isinstance(p, Affine)]
    if not positions:
        return _assign(s, element(s.target, {}, scope), value, scope)
    at = offset(s.target, computed(s.target, [expression(p, scope) for p in positions]), scope)
    place = f"{scope.names[s.target.source]}[pop_place]"
    return ["{", f"    const pop_i64 pop_place = {at.c};", "    if (pop_is_inside(pop_place)) {",
            *("        " + x for x in _assign(s, place, value, scope)), "    }", "}"]


def _is_computed(s: Store) -> bool:
    return any(not isinstance(p, Affine) for x in (s.target, *loads(s.expr)) for p in x.index)


def _assign(s: Store, place: str, value: Text, scope: Scope) -> list[str]:
    t = s.target.dtype
    if s.atomic:
        return _atomic(s, place, value, scope)
    if s.reduce is None:
        return [f"{place} = {narrowed(value.c, t)};"]
    if s.reduce.fn in ("add", "mul") and t.is_float and t.bits >= 32:
        return [f"{place} {sign(s.reduce)} {value.c};"]
    if s.reduce.fn not in (None, "and", "or"):
        return [f"{place} = {narrowed(combined(s.reduce, t, Text(widened(place, t)), value, scope).c, t)};"]
    kind, body = value_type(t), combined(s.reduce, t, Text("pop_a"), Text("pop_b"), scope)
    return ["{", f"    const {kind} pop_a = {widened(place, t)};", f"    const {kind} pop_b = {value.c};",
            f"    {place} = {narrowed(body.c, t)};", "}"]


def _atomic(s: Store, place: str, value: Text, scope: Scope) -> list[str]:
    """The same in one piece, beside other threads: by an instruction where there is one, else until nobody came between."""
    assert s.reduce is not None
    t = s.target.dtype
    is_wide = t.is_integer and t.bits >= 32
    if (s.reduce.fn == "add" and (is_wide or (t.is_float and t.bits >= 32))) or (s.reduce.fn in ("max", "min") and is_wide):
        return [f"pop_atomic_{s.reduce.fn}(&{place}, ({STORED[t.name]})({value.c}));"]
    kind, body = value_type(t), combined(s.reduce, t, Text("pop_a"), Text("pop_b"), scope)
    stored = STORED[t.name]
    return ["{", f"    const {kind} pop_b = {value.c};", f"    pop_atomic(&{place}, [=](const {stored} pop_old) {{",
            f"        const {kind} pop_a = {widened('pop_old', t)};", f"        return ({stored})({narrowed(body.c, t)});",
            "    });", "}"]
