"""Parallel loops: the body as a function of a range of iterations, which the caller's threads may share.

Several are shared out together (`chains.py` says which): their iterations are counted through, and a range of that count is some
iterations of the outer loop, of which the first and the last may have only a part of the inner ones.

    for i in [0, I) (parallel) { for j in [0, J) (parallel) { S } }        becomes, for the range [lo, hi) of I J trips,

    for t in [floor(lo / J), ceil(hi / J)) { for j in [max(lo - t J, 0), min(hi - t J, J)) { S } }
"""

from __future__ import annotations

from polyop.codegen.llvm.builder import Builder
from polyop.codegen.llvm.chains import Chain, together
from polyop.codegen.llvm.effort import Effort, effort
from polyop.codegen.llvm.emitters import Emitters
from polyop.codegen.llvm.index import index
from polyop.codegen.llvm.state import State, Trips
from polyop.codegen.llvm.types import Int
from polyop.ir.expr import Affine, affine, loads, quasi
from polyop.ir.loops import For, IfData, stores, walk

LOTS = 4  # for each thread, of which a smaller one does not matter
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
    tests = (x for c in walk(n.body) if isinstance(c, IfData) for x in loads(c.test))
    return any(x.source in live for x in (*tests, *(y for st in stores(n.body) for y in (st.target, *loads(st.expr)))))


def trips(n: For) -> Affine:
    """How many iterations `n` has, if that is not negative."""
    return quasi("div", n.upper - n.lower + (n.step - 1), affine(n.step))


def parallel_loop(s: State, n: For, by: Emitters) -> None:
    """The body as a function `void(ptr ctx, i64 lo, i64 hi, i64 thread)`, called through slot 0 if several threads are there.

    ctx holds the arguments, the address of the status, and the indices of the loops around.
    """
    shared = s.shared
    name = f"{s.nest.name}.p{shared.bodies}"
    shared.bodies += 1
    chain = together(s.nest, n)
    outer = [f.index for f in s.loops]
    _outlined_body(s, chain.loops, name, outer, by)
    b = s.b
    context = b.pure(f"alloca [{2 + len(outer)} x i64], align 8 ; {name}")
    values = [("ptr", s.args), ("ptr", s.status), *(("i64", str(s.env[i])) for i in outer)]
    for i, (t, x) in enumerate(values):
        b.line(f"store {t} {x}, ptr {b.pure(f'getelementptr i64, ptr {context}, i64 {i}', context)}, align 8")
    step: Int = n.step
    lower, upper = index(s, n.lower, {}), index(s, n.upper, {})
    call = b.pure(f"load ptr, ptr {s.args}, align 8", s.args)
    place = b.pure(f"getelementptr i64, ptr {s.args}, i64 1", s.args)
    threads = b.pure(f"load i64, ptr {place}, align 8", place)
    lot: Int = 1
    if len(chain.loops) > 1:
        lower, upper, step, lot = 0, _count(s, chain.loops), 1, _lot(s, chain, threads)
    test = b.both(b.pure(f"icmp ne ptr {call}, null", call), b.compare("sgt", threads, 1))
    test = b.both(test, b.compare("slt", b.add(lower, step), upper))
    assert test is not None
    with_pool, alone, done = b.new_label(), b.new_label(), b.new_label()
    b.line(f"br i1 {test}, label %{with_pool}, label %{alone}")
    s.label(with_pool)
    work = _work(s, effort(s.nest, n))
    region = f"i64 {lower}, i64 {upper}, i64 {step}, i64 {threads}, i64 {work}, i64 {lot}"
    b.line(f"call void {call}(ptr @{name}, ptr {context}, {region})")
    b.line(f"br label %{done}")
    s.label(alone)
    b.line(f"call void @{name}(ptr {context}, i64 {lower}, i64 {upper}, i64 0)")
    b.line(f"br label %{done}")
    s.label(done)


def _count(s: State, loops: tuple[For, ...]) -> Int:
    """The number of iterations of `loops` together."""
    total: Int = 1
    for n in loops:
        total = s.b.mul(total, s.b.extreme("max", index(s, trips(n), {}), 0))
    return total


def _work(s: State, e: Effort) -> Int:
    """About how many operations `e` says, see `effort.py`."""
    total: Int = e.cost
    for part in e.parts:
        total = s.b.add(total, _work(s, part))
    return s.b.mul(s.b.extreme("max", index(s, e.times, {}), 0), total)


def _lot(s: State, chain: Chain, threads: str) -> Int:
    """How many trips of `chain` in a row use what a thread does for itself alone, so that it is seldom done twice.

    1 where whole lots would not be shared out evenly: there are few, and the last of a loop is smaller than the others, or
    some threads have one more.
    """
    if not chain.around:
        return 1
    b, around = s.b, chain.loops[: chain.around]
    lots, size = (b.extreme("max", _count(s, part), 1) for part in (around, chain.loops[chain.around:]))
    many = b.compare("sge", lots, b.mul(threads, LOTS))
    fair: str | None = b.compare("eq", b.pure(f"urem i64 {lots}, {threads}", lots, threads), 0)
    for n in around:
        if n.step > 1:
            extent = index(s, n.upper - n.lower, {})
            fair = b.both(fair, b.compare("eq", b.pure(f"urem i64 {extent}, {n.step}", extent), 0))
    whole = b.pure(f"or i1 {many}, {fair}", many, fair or "true")
    return b.pure(f"select i1 {whole}, i64 {size}, i64 1", whole, size)


def _ceil(b: Builder, x: Int, y: Int) -> Int:
    """ceil(x / y) of positive numbers."""
    beyond = b.sub(b.add(x, y), 1)
    return b.pure(f"udiv i64 {beyond}, {y}", beyond, y)


def part_of(s: State, n: For, t: Trips, by: Emitters) -> None:
    """The trips `t` of the loop `n` and of those that stand in it and are counted with it."""
    b = s.b
    lower = index(s, n.lower, {})
    s.trips = None
    if not t.inside:
        b.counted = len(b.zones)
        by.loop(s, n, b.add(lower, b.mul(t.lower, n.step)), b.add(lower, b.mul(t.upper, n.step)))
        b.counted = 0
        return
    inside = b.extreme("max", _count(s, t.inside), 1)
    first = b.pure(f"udiv i64 {t.lower}, {inside}", t.lower, inside)
    last = _ceil(b, t.upper, inside)
    s.trips = Trips(t.lower, t.upper, t.inside[1:], n, lower, inside)
    by.plain(s, n, b.add(lower, b.mul(first, n.step)), b.add(lower, b.mul(last, n.step)))


def inner_part(s: State, t: Trips) -> Trips:
    """Those of the trips `t` that belong to the current iteration of the loop around."""
    b = s.b
    assert t.around is not None
    trip = b.sub(s.env[t.around.index], t.start)
    if t.around.step > 1:
        trip = b.pure(f"udiv exact i64 {trip}, {t.around.step}", trip)
    before = b.mul(trip, t.size)
    return Trips(b.extreme("max", b.sub(t.lower, before), 0), b.extreme("min", b.sub(t.upper, before), t.size), t.inside)


def _outlined_body(s: State, chain: tuple[For, ...], name: str, outer: list[str], by: Emitters) -> None:
    b = Builder(s.b.text)
    inner = State(b, s.shared, "", "%status", "%thread", s.lives, outlined=True, loops=s.loops, tests=s.tests)
    inner.args = b.pure("load ptr, ptr %ctx, align 8")
    for i, index_name in enumerate(outer):
        place = b.pure(f"getelementptr i64, ptr %ctx, i64 {2 + i}")
        inner.env[index_name] = b.pure(f"load i64, ptr {place}, align 8", place)
    if len(chain) > 1:
        part_of(inner, chain[0], Trips("%lo", "%hi", chain[1:]), by)
    else:
        by.loop(inner, chain[0], "%lo", "%hi")
    head = [f"define internal void @{name}(ptr %ctx, i64 %lo, i64 %hi, i64 %thread) #0 {{", "entry:"]
    tail = ["  ret void", "}"]
    if inner.checks:
        head += STATUS
        tail = [*REPORT, *tail]
    if inner.streams:
        tail = [b.fence(), *tail]
    s.checks |= inner.checks
    b.text.functions.append("\n".join([*head, *b.lines(), *tail]))
