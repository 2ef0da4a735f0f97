"""Expressions: each is written once for every copy of the rows and every vector of lanes that it depends on."""

from __future__ import annotations

from polyop.codegen.convert import cast, from_memory
from polyop.codegen.functions import apply
from polyop.codegen.llvm.addresses import Place, gep, lane_mask, lane_offsets, lane_stride_is_rows_unit, locate
from polyop.codegen.llvm.index import (
    index,
    index_vector,
    lane_factor,
    rows_of,
    splat,
    test_lanes,
    test_scalar,
)
from polyop.codegen.llvm.outline import shared_function
from polyop.codegen.llvm.registers import read_register
from polyop.codegen.llvm.state import Condition, Point, State, Value
from polyop.codegen.llvm.types import alignment, constant, held, register, suffix, vector
from polyop.codegen.vecmath.ops import V
from polyop.codegen.vecmath.table import ALWAYS, INSTRUCTIONS
from polyop.ir.dtypes import BOOL, I64, DType
from polyop.ir.errors import assert_never
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Scalar, Test, walk
from polyop.ir.loops import Space

Active = tuple[Condition, ...]
NONE: frozenset[str] = frozenset()


def value_of(s: State, e: Expr, active: Active = ()) -> Value:
    """`e` where all of `active` hold; elsewhere its value is of no interest, and nothing is touched."""
    match e:
        case Const(value=v, dtype=t):
            text = constant(held(v, t), register(t), 1)
            return Value(t, NONE, False, lambda p, v: text)
        case Number(value=x, dtype=t):
            return _number(s, x, t)
        case Scalar(name=n, dtype=t):
            return Value(t, NONE, False, lambda p, v: _scalar(s, n, t))
        case Test(tests=tests):
            return test_value(s, tests)
        case Load() if s.nest.buffer(e.source).space == Space.REG:
            return _guarded_register(s, e)
        case Load():
            return load_value(s, e, active)
        case Apply(fn="select", args=(c, a, b), dtype=t):
            return _select(s, c, a, b, t, active)
        case Apply(fn="and" | "or", args=(a, b), dtype=t) if a.dtype == BOOL:
            x = value_of(s, a, active)
            y = value_of(s, b, (*active, condition(s, a, x, e.fn == "and")))
            return combine(s, e.fn, (x, y), BOOL, t)
        case Apply(fn=fn, args=args, dtype=t):
            return combine(s, fn, tuple(value_of(s, a, active) for a in args), args[0].dtype, t)
    assert_never(e)


def condition(s: State, e: Expr, x: Value, holds: bool) -> Condition:
    """`x`, the value of `e`, as a condition; its negation unless `holds`."""
    affine = any(isinstance(part, Test) for part in walk(e))
    return Condition(x if holds else negation(s, x), affine)


def negation(s: State, x: Value) -> Value:
    def make(point: Point, v: int) -> str:
        t = vector("i1", s.width if x.lanes else 1)
        text = x.at(point, v)
        return s.b.pure(f"xor {t} {text}, {constant(True, 'i1', s.width if x.lanes else 1)}", text)

    return Value(BOOL, x.rows, x.lanes, make)


def test_value(s: State, tests: tuple[Affine, ...]) -> Value:
    """Whether every test is >= 0."""
    rows = NONE.union(*(rows_of(s, t) for t in tests)) if tests else NONE
    lanes = any(lane_factor(s, t) != 0 for t in tests)

    def make(point: Point, v: int) -> str:
        total: str | None = None
        for t in tests:
            one = test_lanes(s, t, point, v) if lanes else test_scalar(s, t, point)
            total = one if total is None else s.b.both(total, one, s.width if lanes else 1)
        return total or "true"

    return Value(BOOL, rows, lanes, make)


def _scalar(s: State, name: str, t: DType) -> str:
    slot = s.shared.slots[name]
    place = s.b.pure(f"getelementptr i64, ptr {s.args}, i64 {slot}", s.args)
    from polyop.codegen.llvm.types import memory

    raw = s.b.pure(f"load {memory(t)}, ptr {place}, align 8", place)
    keep = s.b.code
    s.b.code = s.b.zones[0]
    out = from_memory(V(s.b, memory(t), 1, raw), t, s.shared.target).text
    s.b.code = keep
    s.b.depth[out] = 0
    return out


def _number(s: State, x: Affine, t: DType) -> Value:
    lanes = lane_factor(s, x) != 0

    def make(point: Point, v: int) -> str:
        if lanes:
            return cast(V(s.b, "i64", s.width, index_vector(s, x, point, v)), I64, t, s.shared.target).text
        return cast(V(s.b, "i64", 1, str(index(s, x, point))), I64, t, s.shared.target).text

    return Value(t, rows_of(s, x), lanes, make)


def as_vector(s: State, x: Value, point: Point, v: int) -> str:
    """`x` in every lane."""
    text = x.at(point, v)
    if x.lanes:
        return text
    key = (tuple(point[a] for a in x.order), 0, "splat")
    if key not in x.made:
        x.made[key] = splat(s, text, register(x.dtype))
    return x.made[key]


def operand(s: State, x: Value, point: Point, v: int, lanes: bool) -> V:
    """`x` with operators, in every lane or as a scalar."""
    text = as_vector(s, x, point, v) if lanes else x.at(point, v)
    return V(s.b, register(x.dtype), s.width if lanes else 1, text, "" if s.shared.strict else "contract ")


def combine(s: State, fn: str, parts: tuple[Value, ...], source: DType, t: DType) -> Value:
    """`fn` of values."""
    lanes = any(p.lanes for p in parts)
    rows = NONE.union(*(p.rows for p in parts))

    def make(point: Point, v: int) -> str:
        xs = [operand(s, p, point, v, lanes) for p in parts]
        return function(s, fn, xs, source, t).text

    return Value(t, rows, lanes, make)


def function(s: State, fn: str, xs: list[V], source: DType, t: DType) -> V:
    """`fn(xs)`; through a function of its own where it is long and often needed."""
    if fn == "cast":
        return cast(xs[0], source, t, s.shared.target)
    if (fn, source.name) in s.shared.heavy or (source.is_float and INSTRUCTIONS.get(fn, 0) >= ALWAYS):
        return shared_function(s, fn, xs, source, t)
    return apply(fn, xs, source, t, s.shared.target)


def _select(s: State, c: Expr, a: Expr, b: Expr, t: DType, active: Active) -> Value:
    x = value_of(s, c, active)
    if c.dtype != BOOL:
        x = combine(s, "cast", (x,), c.dtype, BOOL)
    yes = value_of(s, a, (*active, condition(s, c, x, True)))
    no = value_of(s, b, (*active, condition(s, c, x, False)))
    lanes = x.lanes or yes.lanes or no.lanes

    def make(point: Point, v: int) -> str:
        wide = vector(register(t), s.width if lanes else 1)
        i, j = operand(s, yes, point, v, lanes), operand(s, no, point, v, lanes)
        test = as_vector(s, x, point, v) if x.lanes else x.at(point, v)
        i, j = (cast(z, w.dtype, t, s.shared.target) for z, w in ((i, yes), (j, no)))
        return s.b.do(f"select {vector('i1', s.width if x.lanes else 1)} {test}, {wide} {i.text}, {wide} {j.text}")

    return Value(t, x.rows | yes.rows | no.rows, lanes, make)


def _guarded_register(s: State, e: Load) -> Value:
    x = read_register(s, e)
    if not e.guard:
        return x
    zero = Value(e.dtype, NONE, False, lambda p, v: constant(0, register(e.dtype), 1))
    test = test_value(s, e.guard)
    lanes = test.lanes or x.lanes

    def make(point: Point, v: int) -> str:
        wide = vector(register(e.dtype), s.width if lanes else 1)
        i, j = operand(s, x, point, v, lanes), operand(s, zero, point, v, lanes)
        return s.b.do(f"select {vector('i1', s.width if test.lanes else 1)} {test.at(point, v)}, {wide} {i.text}, {wide} {j.text}")

    return Value(e.dtype, test.rows | x.rows, lanes, make)


# --- loads


def computed_positions(s: State, load: Load, active: Active) -> tuple[Value | None, ...]:
    """Each position that comes from data, as i64."""
    out: list[Value | None] = []
    for p in load.index:
        if isinstance(p, Affine):
            out.append(None)
            continue
        x = value_of(s, p, active)
        out.append(x if x.dtype == I64 else combine(s, "cast", (x,), x.dtype, I64))
    return tuple(out)


def conditions_of(s: State, load: Load, active: Active) -> Active:
    """What must hold for `load` to be read: its guard, and those of `active` on which its place may rely."""
    computed = any(not isinstance(p, Affine) for p in load.index)
    needed = tuple(c for c in (*s.active, *active) if c.affine or computed)
    return (*needed, Condition(test_value(s, load.guard), True)) if load.guard else needed


def scalar_part(s: State, conditions: Active, point: Point) -> str | None:
    """The conjunction of the conditions that are the same in all lanes."""
    total: str | None = None
    for c in conditions:
        if not c.value.lanes:
            total = s.b.both(total, c.value.at(point, 0))
    return None if total == "true" else total


def lanes_part(s: State, conditions: Active, point: Point, v: int) -> str | None:
    """The conjunction of the conditions that differ between lanes."""
    total: str | None = None
    for c in conditions:
        if c.value.lanes:
            total = s.b.both(total, c.value.at(point, v), s.width)
    return total


def check_inside(s: State, load: Load, inside: Value, conditions: Active, point: Point, v: int) -> str:
    """`inside` where the conditions hold; a position outside is reported as the number of its site."""
    from polyop.codegen.llvm.index import existing

    s.checks = True
    sites = s.shared.sites
    if load not in sites:
        sites.append(load)
    number, b, w = sites.index(load) + 1, s.b, s.width
    lanes = inside.lanes or any(c.value.lanes for c in conditions)
    must = scalar_part(s, conditions, point)
    some = s.b.both(existing(s, v), lanes_part(s, conditions, point, v), w) if lanes else None
    ok = inside.at(point, v)
    if lanes:
        ok = ok if inside.lanes else splat(s, ok, "i1")
        if must is not None:
            some = b.both(some, splat(s, must, "i1"), w)
        wrong = b.pure(f"xor <{w} x i1> {ok}, {constant(True, 'i1', w)}", ok)
        wrong = b.both(wrong, some, w) or wrong
        bits = b.do(f"bitcast <{w} x i1> {wrong} to i{w}")
        bad = b.do(f"icmp ne i{w} {bits}, 0")
        ok = b.both(ok, some, w) or ok
    else:
        bad = b.both(b.pure(f"xor i1 {ok}, true", ok), must) or ""
    old = b.do(f"load i64, ptr {s.status}, align 8")
    first = b.do(f"icmp eq i64 {old}, 0")
    note = b.do(f"and i1 {first}, {bad}")
    new = b.do(f"select i1 {note}, i64 {number}, i64 {old}")
    b.line(f"store i64 {new}, ptr {s.status}, align 8")
    return ok


def load_value(s: State, e: Load, active: Active) -> Value:
    """An element of memory, or 0 where the guard says so."""
    conditions = conditions_of(s, e, active)
    place = locate(s, e, computed_positions(s, e, (*s.active, *active)))
    rows = place.rows.union(*(c.value.rows for c in conditions)) if conditions else place.rows
    if place.inside is not None:
        checked = place.inside
        before = conditions

        def ok(point: Point, v: int) -> str:
            return check_inside(s, e, checked, before, point, v)

        wide = checked.lanes or any(c.value.lanes for c in before)
        conditions = (*conditions, Condition(Value(BOOL, rows, wide, ok), True))
    lanes = place.lanes or any(c.value.lanes for c in conditions)

    def make(point: Point, v: int) -> str:
        if not lanes:
            return _scalar_load(s, place, place.base(point, scalar_part(s, conditions, point)))
        return _vector_load(s, e, place, conditions, point, v)

    if place.lanes and place.offsets is None and not conditions and place.stride not in (1, -1):
        axis = lane_stride_is_rows_unit(s, place)
        if axis is not None:
            return _transposed(s, place, axis.index, rows)
    if place.lanes and place.stride == 1 and not conditions:
        def forwarded(point: Point, v: int) -> str:
            known = s.stored.get((e, tuple(point[a] for a in sorted(rows)), v))
            return known or make(point, v)

        return Value(e.dtype, rows, lanes, forwarded)
    return Value(e.dtype, rows, lanes, make)


def _raw(s: State, place: Place, text: str, width: int) -> str:
    return from_memory(V(s.b, place.element, width, text), place.buffer.dtype, s.shared.target).text


def _scalar_load(s: State, place: Place, p: str) -> str:
    return _raw(s, place, s.b.do(f"load {place.element}, ptr {p}, align {alignment(place.element)}"), 1)


def _vector_load(s: State, e: Load, place: Place, conditions: Active, point: Point, v: int) -> str:
    w, b = s.width, s.b
    t, align = vector(place.element, w), alignment(place.element)
    must, mask = scalar_part(s, conditions, point), lanes_part(s, conditions, point, v)
    if not place.lanes:
        assert mask is not None
        any_ = b.do(f"icmp ne i{w} {b.do(f'bitcast <{w} x i1> {mask} to i{w}')}, 0")
        x = splat(s, _scalar_load(s, place, place.base(point, b.both(must, any_))), register(e.dtype))
        r = vector(register(e.dtype), w)
        return b.do(f"select <{w} x i1> {mask}, {r} {x}, {r} {constant(0, register(e.dtype), w)}")
    if place.stride == 1:
        mask = b.both(mask, lane_mask(s, place, v, write=False), w)
        p = gep(s, place.element, place.base(point, must), v * w)
        if mask is None:
            return _raw(s, place, b.do(f"load {t}, ptr {p}, align {align}"), w)
        return _raw(s, place, masked_load(s, place.element, p, mask), w)
    from polyop.codegen.llvm.index import existing

    mask = b.both(mask, existing(s, v), w)
    if must is not None:
        mask = b.both(mask, splat(s, must, "i1"), w)
    p = place.base(point, None)
    if place.stride == -1:
        p = gep(s, place.element, p, -(v * w + w - 1))
        if mask is None:
            text = b.do(f"load {t}, ptr {p}, align {align}")
        else:
            text = masked_load(s, place.element, p, reverse(s, mask, "i1"))
        return _raw(s, place, reverse(s, text, place.element), w)
    offsets = place.offsets(point, v) if place.offsets else lane_offsets(s, place.stride, v)
    pointers = b.pure(f"getelementptr {place.element}, ptr {p}, <{w} x i64> {offsets}", p, offsets)
    all_ = constant(True, "i1", w)
    text = b.call(t, f"llvm.masked.gather.{suffix(place.element, w)}.v{w}p0", (f"<{w} x ptr> align {align}", pointers),
                  (f"<{w} x i1>", mask or all_), (t, "zeroinitializer"))
    return _raw(s, place, text, w)


def masked_load(s: State, element: str, p: str, mask: str) -> str:
    w = s.width
    t = vector(element, w)
    return s.b.call(t, f"llvm.masked.load.{suffix(element, w)}.p0", (f"ptr align {alignment(element)}", p), (f"<{w} x i1>", mask), (t, "zeroinitializer"))


def reverse(s: State, x: str, element: str) -> str:
    w = s.width
    order = ", ".join(f"i32 {w - 1 - i}" for i in range(w))
    return s.b.pure(f"shufflevector <{w} x {element}> {x}, <{w} x {element}> poison, <{w} x i32> <{order}>", x)


def _transposed(s: State, place: Place, axis: str, rows: frozenset[str]) -> Value:
    """A square block whose unit stride runs along the rows: one vector load for each lane, then a transpose."""
    blocks: dict[tuple[int, ...], list[str]] = {}
    others = sorted(rows - {axis})

    def make(point: Point, v: int) -> str:
        key = tuple(point[a] for a in others)
        if key not in blocks:
            p = place.base({**point, axis: 0}, None)
            t, align = vector(place.element, s.width), alignment(place.element)
            lines = [s.b.do(f"load {t}, ptr {gep(s, place.element, p, s.b.mul(place.stride, lane))}, align {align}") for lane in range(s.width)]
            blocks[key] = [_raw(s, place, x, s.width) for x in transpose(s, lines, place.element)]
        return blocks[key][point[axis]]

    return Value(place.buffer.dtype, rows, True, make)


def transpose(s: State, lines: list[str], element: str) -> list[str]:
    """w vectors of w lanes -> their columns, by log2(w) rounds of exchanging blocks of 1, 2, 4, .. lanes."""
    w, half = s.width, 1
    t = vector(element, w)

    def shuffle(a: str, b: str, lanes: list[int]) -> str:
        return s.b.do(f"shufflevector {t} {a}, {t} {b}, <{w} x i32> <{', '.join(f'i32 {x}' for x in lanes)}>")

    while half < w:
        low = [i if not i & half else w + i - half for i in range(w)]
        high = [i + half if not i & half else w + i for i in range(w)]
        new = list(lines)
        for i in range(w):
            if not i & half:
                new[i] = shuffle(lines[i], lines[i + half], low)
                new[i + half] = shuffle(lines[i], lines[i + half], high)
        lines, half = new, half * 2
    return lines


