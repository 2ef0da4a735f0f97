"""Loops and tests. A serial loop is a loop; rows and lanes are no loops at all, but axes along which stores repeat."""

from __future__ import annotations

from collections.abc import Callable

from polyop.codegen.llvm.addresses import gep, locate
from polyop.codegen.llvm.builder import IMPURE, Builder, Code
from polyop.codegen.llvm.expressions import negation, test_value
from polyop.codegen.llvm.facts import is_positive
from polyop.codegen.llvm.index import index, test_scalar
from polyop.codegen.llvm.registers import register_type
from polyop.codegen.llvm.state import Axis, Condition, RegKey, State
from polyop.codegen.llvm.stores import points, store
from polyop.codegen.llvm.types import Int
from polyop.ir.errors import UnsupportedError, assert_never
from polyop.ir.expr import names
from polyop.ir.loops import For, If, Kind, Node, Prefetch, Store, stores


def emit_nodes(s: State, body: tuple[Node, ...]) -> None:
    for n in body:
        match n:
            case For(kind=Kind.ROWS | Kind.LANES):
                _axis(s, n)
            case For(kind=Kind.PARALLEL) if not s.outlined and not s.axes and not _shares_registers(s, n):
                _parallel(s, n)
            case For():
                _refuse_lockstep(s, n)
                _loop(s, n, index(s, n.lower, {}), index(s, n.upper, {}))
            case If():
                _if(s, n)
            case Store():
                store(s, n)
            case Prefetch():
                _prefetch(s, n)
            case _:
                assert_never(n)


def _refuse_lockstep(s: State, n: For) -> None:
    used = (names(n.lower) | names(n.upper)) & s.axes.keys()
    if used:
        raise UnsupportedError(f"the bounds of {n.index} depend on {', '.join(sorted(used))}, which run in lock step")


def _axis(s: State, n: For) -> None:
    """Open a lock-step loop; without any iteration nothing inside happens."""
    _refuse_lockstep(s, n)
    if n.kind == Kind.LANES and s.lanes is not None:
        raise UnsupportedError(f"lanes {n.index} inside lanes {s.lanes.index}")
    assert n.extent is not None
    extent = n.extent

    def inside() -> None:
        valid = None if n.is_full else index(s, n.upper, {})
        keep = s.tile_depth
        if not s.axes:
            s.tile_depth = len(s.b.zones) - 1
        s.open_axis(Axis(n.index, n.kind, extent, valid, n.upper))
        emit_nodes(s, n.body)
        s.close_axis(n.index)
        s.tile_depth = keep

    if n.is_full or is_positive(n.upper, s.loops, s.tests):
        inside()
        return
    keep, s.tests = s.tests, (*s.tests, n.upper - 1)
    branch(s, s.b.compare("sge", index(s, n.upper, {}), 1), inside, lambda: None)
    s.tests = keep


def branch(s: State, test: str, then: Callable[[], None], other: Callable[[], None]) -> None:
    """`then` or `other`; registers written in either are merged."""
    yes, no, done = s.b.new_label(), s.b.new_label(), s.b.new_label()
    s.b.line(f"br i1 {test}, label %{yes}, label %{no}")
    before = dict(s.regs)
    ends: list[tuple[str, dict[RegKey, str]]] = []
    for name, body in ((yes, then), (no, other)):
        s.regs = dict(before)
        s.label(name)
        body()
        ends.append((s.b.block, s.regs))
        s.b.line(f"br label %{done}")
    s.label(done)
    s.regs = {}
    for key in sorted(ends[0][1].keys() | ends[1][1].keys()):
        values = [regs.get(key, "poison") for _, regs in ends]
        if values[0] == values[1]:
            s.regs[key] = values[0]
        else:
            pairs = ", ".join(f"[ {x}, %{block} ]" for x, (block, _) in zip(values, ends, strict=True))
            s.regs[key] = s.b.do(f"phi {register_type(s, key)} {pairs}")


def _if(s: State, n: If) -> None:
    """A branch; or, if rows or lanes decide differently, a condition on every store inside."""
    used = frozenset().union(*(names(t) for t in n.tests)) & s.axes.keys()
    keep_active, keep_tests = s.active, s.tests
    if used:
        test = test_value(s, n.tests)
        s.active = (*keep_active, Condition(test, True))
        emit_nodes(s, n.then)
        s.active = (*keep_active, Condition(negation(s, test), True))
        emit_nodes(s, n.other)
        s.active = keep_active
        return
    total: str | None = None
    for t in n.tests:
        total = s.b.both(total, test_scalar(s, t, {}))

    def then() -> None:
        s.tests = (*keep_tests, *n.tests)
        emit_nodes(s, n.then)
        s.tests = keep_tests

    branch(s, total or "true", then, lambda: emit_nodes(s, n.other))


def _loop(s: State, n: For, lower: Int, upper: Int) -> None:
    """`for index in [lower, upper)`; registers that it writes and that exist before are carried round."""
    b = s.b
    head, done, before = b.new_label(), b.new_label(), b.block
    b.line(f"br i1 {b.compare('slt', lower, upper)}, label %{head}, label %{done}")
    s.label(head)
    iv, after = b.fresh(), b.fresh()
    phis: Code = []
    zone: Code = []
    b.code += [phis, zone]
    b.zones.append(zone)
    b.depth[iv], b.depth[after] = len(b.zones) - 1, IMPURE
    written = {x.target.source for x in stores(n.body)}
    entering = dict(s.regs)
    carried = {k: b.fresh() for k in sorted(entering) if k[0] in written}
    for phi in carried.values():
        b.depth[phi] = IMPURE
    s.regs = {**entering, **carried}
    keep = s.env, s.loops
    s.env, s.loops = {**s.env, n.index: iv}, (*s.loops, n)
    emit_nodes(s, n.body)
    s.env, s.loops = keep
    b.zones.pop()
    b.line(f"{after} = add i64 {iv}, {n.step}")
    again = b.do(f"icmp slt i64 {after}, {upper}")
    last = b.block
    b.line(f"br i1 {again}, label %{head}, label %{done}, !llvm.loop !0")
    phis.append(f"  {iv} = phi i64 [ {lower}, %{before} ], [ {after}, %{last} ]")
    s.label(done)
    inside, s.regs = s.regs, entering
    for key, phi in carried.items():
        t = register_type(s, key)
        pairs = f"[ {entering[key]}, %{before} ], [ {inside[key]}, %{last} ]"
        phis.append(f"  {phi} = phi {t} {pairs}")
        s.regs[key] = b.do(f"phi {t} {pairs}")


# --- parallel loops


def _shares_registers(s: State, n: For) -> bool:
    """Whether the loop's body touches registers that live outside it."""
    live = {key[0] for key in s.regs}
    from polyop.ir.expr import loads

    return any(x.source in live for st in stores(n.body) for x in (st.target, *loads(st.expr)))


def _parallel(s: State, n: For) -> None:
    """The body as a function `void(ptr ctx, i64 lo, i64 hi, i64 thread)`, called through slot 0 if several threads are there.

    ctx holds the arguments, the address of the status, and the indices of the loops around.
    """
    shared = s.shared
    name = f"{s.nest.name}.p{shared.bodies}"
    shared.bodies += 1
    outer = [f.index for f in s.loops]
    _outlined_body(s, n, name, outer)
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
    branch(s, test,
           lambda: b.line(f"call void {call}(ptr @{name}, ptr {context}, i64 {lower}, i64 {upper}, i64 {n.step}, i64 {threads})"),
           lambda: b.line(f"call void @{name}(ptr {context}, i64 {lower}, i64 {upper}, i64 0)"))


def _outlined_body(s: State, n: For, name: str, outer: list[str]) -> None:
    b = Builder(s.b.text)
    inner = State(b, s.shared, "", "%status", "%thread", outlined=True, loops=s.loops, tests=s.tests)
    inner.args = b.pure("load ptr, ptr %ctx, align 8")
    for i, index_name in enumerate(outer):
        place = b.pure(f"getelementptr i64, ptr %ctx, i64 {2 + i}")
        inner.env[index_name] = b.pure(f"load i64, ptr {place}, align 8", place)
    _loop(inner, n, "%lo", "%hi")
    head = [f"define internal void @{name}(ptr %ctx, i64 %lo, i64 %hi, i64 %thread) #0 {{", "entry:"]
    tail = ["  ret void", "}"]
    if inner.checks:
        head += ["  %status = alloca i64, align 8", "  store i64 0, ptr %status, align 8"]
        tail = ["  %found = load i64, ptr %status, align 8", "  %bad = icmp ne i64 %found, 0", "  br i1 %bad, label %report, label %finish",
                "report:", "  %up = getelementptr i64, ptr %ctx, i64 1", "  %shared = load ptr, ptr %up, align 8",
                "  store atomic i64 %found, ptr %shared monotonic, align 8", "  br label %finish", "finish:", *tail]
    if inner.streams:
        tail = ["  call void @llvm.x86.sse.sfence()", *tail]
        b.text.declared.add("declare void @llvm.x86.sse.sfence()")
    s.checks |= inner.checks
    b.text.functions.append("\n".join([*head, *b.lines(), *tail]))


def _prefetch(s: State, n: Prefetch) -> None:
    """One hint for each vector, or each copy of the rows."""
    place = locate(s, n.place)
    lanes = range(s.vectors()) if place.stride == 1 else range(1)
    for point in points(s, place.rows):
        for v in lanes:
            p = gep(s, place.element, place.base(point, None), v * s.width)
            s.b.call("void", "llvm.prefetch.p0", ("ptr", p), ("i32", 0), ("i32", 3), ("i32", 1))


