"""A loop as LLVM's text: its head, the values that it carries round, and the zone before it for what stays the same inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyop.codegen.llvm.builder import IMPURE, Code
from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import Int


def go_round(s: State, lower: Int, upper: Int, step: int, carried: Sequence[tuple[str, str]],
             body: Callable[[str, list[str]], Sequence[str]], runs: bool = False, copies: bool = False,
             ahead: Callable[[], None] = lambda: None) -> list[str]:
    """`for i in [lower, upper)` in steps of `step`; what has become of `carried` behind it.

    carried   the type of each value and what it is before the loop
    body      writes one iteration: given i and the values before it, those after it
    runs      whether there is one for certain; copies: whether it writes to memory of the kernel's own
    ahead     writes what stands before the first iteration, if there is one
    """
    b = s.b
    vectors = sum(t.startswith("<") for t, _ in carried)
    b.text.carried, b.text.copying = max(b.text.carried, vectors), max(b.text.copying, vectors if copies else 0)
    head, done, before = b.new_label(), b.new_label(), b.block
    if not runs:
        first = b.new_label()
        b.line(f"br i1 {b.compare('slt', lower, upper)}, label %{first}, label %{done}")
        s.label(first)
    ahead()
    entry = b.block
    b.line(f"br label %{head}")
    s.label(head)
    iv, after = b.fresh(), b.fresh()
    phis: Code = []
    zone: Code = []
    b.code += [phis, zone]
    b.zones.append(zone)
    b.depth[iv], b.depth[after] = len(b.zones) - 1, IMPURE
    given = [b.fresh() for _ in carried]
    b.depth |= dict.fromkeys(given, IMPURE)
    ends = body(iv, given)
    b.zones.pop()
    b.line(f"{after} = add i64 {iv}, {step}")
    again = b.do(f"icmp slt i64 {after}, {upper}")
    last = b.block
    b.line(f"br i1 {again}, label %{head}, label %{done}, !llvm.loop !0")
    joined = [f"phi {t} [ {start}, %{before} ], [ {end}, %{last} ]" for (t, start), end in zip(carried, ends, strict=True)]
    phis.append(f"  {iv} = phi i64 [ {lower}, %{entry} ], [ {after}, %{last} ]")
    phis += [f"  {x} = phi {t} [ {start}, %{entry} ], [ {end}, %{last} ]"
             for x, (t, start), end in zip(given, carried, ends, strict=True)]
    s.label(done)
    return list(ends) if runs else [b.do(phi) for phi in joined]


def several_at_once(s: State, lower: Int, upper: Int, step: int, carried: Sequence[tuple[str, str]],
                    body: Callable[[Int, list[str]], Sequence[str]], times: int) -> list[str]:
    """The same with `times` iterations one after the other in the text; those that are left go round one by one."""
    b, stride = s.b, step * times

    def together(at: str, given: list[str]) -> list[str]:
        for k in range(times):
            given = list(body(b.add(at, k * step), given))
        return given

    whole = b.add(lower, b.mul(b.floor_div(b.extreme("max", b.sub(upper, lower), 0), stride), stride))
    so_far = go_round(s, lower, whole, stride, carried, together)
    return go_round(s, whole, upper, step, [(t, x) for (t, _), x in zip(carried, so_far, strict=True)], body)
