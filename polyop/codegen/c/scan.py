"""Scans over the threads of a block, as C text.

    for v in [0, 128) (threads 128 by 1) { before[v] = c   if U - v - 1 >= 0 { c = c + x[v] } }

    float pop_before;
    const float pop_v = pop_scan<128, 1, 128>(U > v ? x : 0.0f, 0.0f, &pop_before, [](a, b) { return a + b; });
    before = c + pop_before;
    c = c + pop_v;

All threads of the block take part, and those beyond the end have nothing to add: they are the last ones, so nobody's result
has to do with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from polyop.codegen.c.expr import combined, expression, of_dtype
from polyop.codegen.c.index import Text, condition
from polyop.codegen.c.place import element, narrowed, value_type, widened
from polyop.codegen.c.scope import Scope
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Const
from polyop.ir.loops import For, If, Node, Store
from polyop.ir.scans import Scan, step_of


def spaced(loops: Iterable[For]) -> tuple[int, int]:
    """How many threads differ in the digits of `loops` alone, and by how much neighbours of these do.

    Raises  UnsupportedError, if these digits are not one number, or no powers of 2.
    """
    digits = sorted((f.weight, f.extent or 1) for f in loops)
    step, over = digits[0][0], 1
    for weight, extent in digits:
        if weight != step * over or extent & (extent - 1) or step & (step - 1):
            raise UnsupportedError(f"threads of the digits {digits} do not lie in even steps")
        over *= extent
    return over, step


def scan(inside: Sequence[Node], s: Store, tests: list[str], block: int, scope: Scope) -> list[str]:
    """The lines for `inside`, which stands in loops over threads of a `block` where `tests` hold, and ends in the step `s`.

    Raises  UnsupportedError, if there is more than moves of what is before the step.
    """
    form, c = step_of(s.expr, s.target), s.target
    found = [x for n in inside for x in _tested(n, (), scope)]
    if form is None or found[-1][1] is not s or any(x.expr != c or x.reduce is not None for _, x in found[:-1]):
        raise UnsupportedError("threads scan in a loop of their own, with what is before each step")
    over, step = spaced(scope.folds[s.stmt])
    t, kind = c.dtype, _kind(form, c.dtype.is_float, value_type(c.dtype))
    when = [*tests, *found[-1][0]]
    place, nothing = element(c, {}, scope), _nothing(form, s, kind, scope)
    value = _step(form, s, kind, scope)
    value = f"{' && '.join(when)} ? {value} : {nothing}" if when else value
    lines = [f"// {s.stmt}", f"{kind} pop_before;",
             f"const {kind} pop_v = pop_scan<{over}, {step}, {block}>({value}, {nothing}, &pop_before, "
             f"[](const {kind} pop_a, const {kind} pop_b) {{", f"    return {_both(form, s, kind, scope)};", "});"]
    for also, x in found[:-1]:
        write = f"{element(x.target, {}, scope)} = {narrowed(_after(form, s, place, 'pop_before', scope), t)};"
        lines.append(f"if ({' && '.join((*tests, *also))}) {write}" if (*tests, *also) else write)
    return [*lines, f"{place} = {narrowed(_after(form, s, place, 'pop_v', scope), t)};"]


def _tested(n: Node, tests: tuple[str, ...], scope: Scope) -> list[tuple[tuple[str, ...], Store]]:
    """The stores of `n`, each with the tests around it."""
    match n:
        case Store():
            return [(tests, n)]
        case If(other=()):
            return [x for y in n.then for x in _tested(y, (*tests, *(condition(t, scope.names) for t in n.tests)), scope)]
    raise UnsupportedError("threads scan in a loop of their own")


def _kind(form: Scan, is_float: bool, value: str) -> str:
    return value if form.monoid else f"pop_linear<{value}>"


def _step(form: Scan, s: Store, kind: str, scope: Scope) -> str:
    values = [of_dtype(expression(x, scope), x.dtype, s.target.dtype).c for x in form.each]
    return f"({kind})({values[0]})" if form.monoid else f"{kind}{{{', '.join(values)}}}"


def _nothing(form: Scan, s: Store, kind: str, scope: Scope) -> str:
    """The step that changes nothing."""
    t = s.target.dtype
    values = (form.monoid.identity,) if form.monoid else (1.0, 0.0) if t.is_float else (1, 0)
    texts = [expression(Const(x, t), scope).c for x in values]
    return f"({kind})({texts[0]})" if form.monoid else f"{kind}{{{', '.join(texts)}}}"


def _both(form: Scan, s: Store, kind: str, scope: Scope) -> str:
    """Two steps that follow each other as one."""
    if form.monoid:
        return f"({kind})({combined(form.monoid, s.target.dtype, Text('pop_a'), Text('pop_b'), scope).c})"
    return "pop_then(pop_a, pop_b)"


def _after(form: Scan, s: Store, place: str, step: str, scope: Scope) -> str:
    """What is known, after a step."""
    t = s.target.dtype
    if form.monoid:
        return combined(form.monoid, t, Text(widened(place, t)), Text(step), scope).c
    return f"{step}.a * {widened(place, t)} + {step}.b"
