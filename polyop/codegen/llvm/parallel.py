"""Parallel loops: the body as a function of a range of iterations, which the caller's threads may share."""

from __future__ import annotations

from collections.abc import Callable

from polyop.codegen.llvm.builder import Builder
from polyop.codegen.llvm.index import index
from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import Int
from polyop.ir.expr import loads
from polyop.ir.loops import For, stores

Loop = Callable[[State, For, Int, Int], None]
"""Emits a serial loop with given bounds."""

STATUS = ["  %status = alloca i64, align 8", "  store i64 0, ptr %status, align 8"]
REPORT = [
    "  %found = load i64, ptr %status, align 8", "  %bad = icmp ne i64 %found, 0", "  br i1 %bad, label %report, label %finish",
    "report:", "  %up = getelementptr i64, ptr %ctx, i64 1", "  %shared = load ptr, ptr %up, align 8",
    "  store atomic i64 %found, ptr %shared monotonic, align 8", "  br label %finish", "finish:",
]
"""A body keeps the site it found to itself until its end."""


def shares_registers(s: State, n: For) -> bool:
    """Whether the loop's body touches registers that live outside it."""
    live = {key[0] for key in s.regs}
    return any(x.source in live for st in stores(n.body) for x in (st.target, *loads(st.expr)))


def parallel_loop(s: State, n: For, run: Loop) -> None:
    """The body as a function `void(ptr ctx, i64 lo, i64 hi, i64 thread)`, called through slot 0 if several threads are there.

    ctx holds the arguments, the address of the status, and the indices of the loops around.
    """
    shared = s.shared
    name = f"{s.nest.name}.p{shared.bodies}"
    shared.bodies += 1
    outer = [f.index for f in s.loops]
    _outlined_body(s, n, name, outer, run)
    b = s.b
    context = b.pure(f"alloca [{2 + len(outer)} x i64], align 8 ; {name}")
    values = [("ptr", s.args), ("ptr", s.status), *(("i64", str(s.env[i])) for i in outer)]
    for i, (t, x) in enumerate(values):
        b.line(f"store {t} {x}, ptr {b.pure(f'getelementptr i64, ptr {context}, i64 {i}', context)}, align 8")
    lower, upper = index(s, n.lower, {}), index(s, n.upper, {})
    call = b.pure(f"load ptr, ptr {s.args}, align 8", s.args)
    place = b.pure(f"getelementptr i64, ptr {s.args}, i64 1", s.args)
    threads = b.pure(f"load i64, ptr {place}, align 8", place)
    test = b.both(b.pure(f"icmp ne ptr {call}, null", call), b.compare("sgt", threads, 1))
    test = b.both(test, b.compare("slt", b.add(lower, n.step), upper))
    assert test is not None
    with_pool, alone, done = b.new_label(), b.new_label(), b.new_label()
    b.line(f"br i1 {test}, label %{with_pool}, label %{alone}")
    s.label(with_pool)
    b.line(f"call void {call}(ptr @{name}, ptr {context}, i64 {lower}, i64 {upper}, i64 {n.step}, i64 {threads})")
    b.line(f"br label %{done}")
    s.label(alone)
    b.line(f"call void @{name}(ptr {context}, i64 {lower}, i64 {upper}, i64 0)")
    b.line(f"br label %{done}")
    s.label(done)


def _outlined_body(s: State, n: For, name: str, outer: list[str], run: Loop) -> None:
    b = Builder(s.b.text)
    inner = State(b, s.shared, "", "%status", "%thread", outlined=True, loops=s.loops, tests=s.tests)
    inner.args = b.pure("load ptr, ptr %ctx, align 8")
    for i, index_name in enumerate(outer):
        place = b.pure(f"getelementptr i64, ptr %ctx, i64 {2 + i}")
        inner.env[index_name] = b.pure(f"load i64, ptr {place}, align 8", place)
    run(inner, n, "%lo", "%hi")
    head = [f"define internal void @{name}(ptr %ctx, i64 %lo, i64 %hi, i64 %thread) #0 {{", "entry:"]
    tail = ["  ret void", "}"]
    if inner.checks:
        head += STATUS
        tail = [*REPORT, *tail]
    if inner.streams:
        tail = [b.fence(), *tail]
    s.checks |= inner.checks
    b.text.functions.append("\n".join([*head, *b.lines(), *tail]))
