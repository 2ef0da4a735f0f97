"""What is legal and most likely not meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyop.dsl import syntax as s
from polyop.dsl.names import names_of, safe_names
from polyop.dsl.text import unparse
from polyop.ir.errors import Diagnostic, Label
from polyop.ir.expr import expr_names
from polyop.ir.op import Op, Step


def warnings_of(definition: s.OpDef, op: Op, consts: Mapping[str, int | float | bool]) -> tuple[Diagnostic, ...]:
    """W401 (a term added once for each reduced point), W402 (an integer division that loses its fraction)."""
    out: list[Diagnostic] = []
    safe = safe_names(names_of(definition))
    for x in definition.body:
        if isinstance(x, s.Assignment):
            out += _added_often(x, op, safe)
        if not isinstance(x, s.Declaration):
            out += _lost_fractions(x.value, consts)
    return tuple(out)


def _added_often(x: s.Assignment, op: Op, safe: Mapping[str, str]) -> Iterator[Diagnostic]:
    """`C[m, n] += A[m, k] * B[k, n] + bias[n]`: the bias is added once for each k."""
    step = next((p for p in op.steps if p.span == x.span and p.reduce is not None and p.reduce.name == "add"), None)
    if x.reduce != "+" or step is None or not isinstance(x.value, s.Binary) or x.value.sign not in ("+", "-"):
        return
    reduced = _reduced(step)
    first, links = s.spine(x.value)
    outer = len(links)
    while outer and links[outer - 1].sign in ("+", "-"):
        outer -= 1
    start: s.Syntax = links[outer - 1] if outer else first
    terms = [("+", start), *((link.sign, link.right) for link in links[outer:])]
    depends = [any(safe.get(n) in reduced for n in _names(t)) for _, t in terms]
    if not any(depends):
        return
    for (sign, term), inside in zip(terms, depends, strict=True):
        if inside:
            continue
        shown = ", ".join(f"`{r}`" for r in sorted(reduced))
        times = " * ".join(str(r.upper) if not r.lower.terms and r.lower.const == 0 else f"({r.upper - r.lower})"
                           for r in step.ranges if r.index in reduced)
        minus = "-" if sign == "-" else ""
        index = f"[{', '.join(map(unparse, x.index))}]" if x.index else ""
        yield Diagnostic("W401", f"`{unparse(term)}` does not depend on {shown} and is added {times} times", Label(term.span),
                         hint=f"give it its own statement, `{x.name}{index} += {minus}{unparse(term)}`", severity="warning")


def _reduced(step: Step) -> set[str]:
    return {r.index for r in step.ranges} - expr_names(step.target)


def _names(e: s.Syntax) -> set[str]:
    return {x.name for x in s.walk(e) if isinstance(x, s.Name)}


def _lost_fractions(root: s.Syntax, consts: Mapping[str, int | float | bool]) -> Iterator[Diagnostic]:
    """`1 / 2 * x`: integers divide as integers. Positions are left alone: there it is meant."""
    stack = [root]
    while stack:
        e = stack.pop()
        if isinstance(e, s.Access):
            continue
        if isinstance(e, s.Binary) and e.sign == "/":
            a, b = _integer(e.left, consts), _integer(e.right, consts)
            if a is not None and b and a % b:
                left, right = unparse(e.left), unparse(e.right)
                better = f"{left}.0 / {right}" if isinstance(e.left, s.Number) else f"f32({left}) / {right}"
                yield Diagnostic("W402", f"`{left} / {right}` is an integer division and gives {a // b}", Label(e.span),
                                 hint=f"write `{better}`", severity="warning")
        if isinstance(e, s.Compare | s.Inside):
            continue
        stack += reversed(s.children(e))


def _integer(e: s.Syntax, consts: Mapping[str, int | float | bool]) -> int | None:
    value = e.value if isinstance(e, s.Number) else consts.get(e.name) if isinstance(e, s.Name) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
