"""Expressions: each is written once for every copy of the rows and every vector of lanes that it depends on."""

from __future__ import annotations

from dataclasses import replace

from polyop.codegen.cpu.facts import is_positive
from polyop.codegen.cpu.weight import ALWAYS, INSTRUCTIONS
from polyop.codegen.llvm.addresses import locate
from polyop.codegen.llvm.convert import cast, from_memory, round_to
from polyop.codegen.llvm.cut import power_from
from polyop.codegen.llvm.functions import apply
from polyop.codegen.llvm.index import index, index_vector, lane_factor, rows_of, splat, test_lanes, test_scalar
from polyop.codegen.llvm.loads import (
    check_inside,
    lanes_part,
    one_for_all,
    or_zero,
    scalar_load,
    scalar_part,
    transposed,
    vector_load,
    zero_but,
)
from polyop.codegen.llvm.outline import shared_function
from polyop.codegen.llvm.reach import transposable
from polyop.codegen.llvm.registers import read_register
from polyop.codegen.llvm.state import Active, Condition, Point, State, Value
from polyop.codegen.llvm.tables import looked_up, lookup_of
from polyop.codegen.llvm.types import constant, held, is_constant, memory, opposite, register, vector
from polyop.codegen.llvm.woven import between, read_beside, read_by_turns
from polyop.codegen.vecmath.ops import V
from polyop.codegen.vecmath.quotient import Inverse, quotient
from polyop.ir.dtypes import BOOL, I64, DType
from polyop.ir.errors import assert_never
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, Scalar, Test, affine, names, substitute, walk
from polyop.ir.loops import For, Space

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
            key = e, *map(id, active)
            if key not in s.loaded:
                s.loaded[key] = load_value(s, e, active), active
            return s.loaded[key][0]
        case Apply() if e in s.steady:
            text = s.steady[e]
            return Value(e.dtype, NONE, False, lambda p, v: text)
        case Apply(fn="div", args=(a, d), dtype=t) if d in s.inverses and a.dtype == d.dtype == t:
            return _divided(s, value_of(s, a, active), s.inverses[d], t)
        case Apply(fn="select" | "exp" | "exp2", dtype=t) if (power := power_from(s, e)) is not None:
            fn, args = power
            return combine(s, fn, tuple(value_of(s, x, active) for x in args), t, t)
        case Apply(fn="select", args=(c, a, b), dtype=t):
            return _select(s, c, a, b, t, active)
        case Apply(fn="and" | "or", args=(a, b), dtype=t) if a.dtype == BOOL:
            first = value_of(s, a, active)
            second = value_of(s, b, (*active, condition(s, a, first, e.fn == "and")))
            return combine(s, e.fn, (first, second), BOOL, t)
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
        if is_constant(text):
            return opposite(text)
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


def _divided(s: State, x: Value, by: Inverse, t: DType) -> Value:
    """`x` divided by what has the inverse `by`, which is the same in all lanes."""
    def make(point: Point, v: int) -> str:
        out = round_to(quotient(operand(s, x, point, v, True), by), t, s.shared.target)
        return out.text if x.lanes or s.width == 1 else s.b.do(f"extractelement {out.type_} {out.text}, i64 0")

    return Value(t, x.rows, x.lanes, make)


def _select(s: State, c: Expr, a: Expr, b: Expr, t: DType, active: Active) -> Value:
    x = value_of(s, c, active)
    if c.dtype != BOOL:
        x = combine(s, "cast", (x,), c.dtype, BOOL)
    yes = value_of(s, a, (*active, condition(s, c, x, True)))
    no = value_of(s, b, (*active, condition(s, c, x, False)))
    lanes = x.lanes or yes.lanes or no.lanes

    def arm(w: Value, point: Point, v: int) -> V:
        return cast(operand(s, w, point, v, lanes), w.dtype, t, s.shared.target)

    def make(point: Point, v: int) -> str:
        wide = vector(register(t), s.width if lanes else 1)
        test = as_vector(s, x, point, v) if x.lanes else x.at(point, v)
        if test in ("true", "false"):  # a row decides, and nothing of the other way is written
            return arm(yes if test == "true" else no, point, v).text
        i, j = arm(yes, point, v), arm(no, point, v)
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
        mask = vector("i1", s.width if test.lanes else 1)
        return s.b.do(f"select {mask} {test.at(point, v)}, {wide} {i.text}, {wide} {j.text}")

    return Value(e.dtype, test.rows | x.rows, lanes, make)


def computed_positions(s: State, load: Load, active: Active) -> tuple[Value | None, ...]:
    """Each position that comes from data, as i64."""
    out: list[Value | None] = []
    for p in load.index:
        if isinstance(p, Affine):
            out.append(None)
            continue
        x = value_of(s, _uncast(p), active)
        out.append(x if x.dtype == I64 else replace(combine(s, "cast", (x,), x.dtype, I64), narrow=x))
    return tuple(out)


def _uncast(p: Expr) -> Expr:
    """The integers that `p` is a cast to i64 of, if it is one."""
    match p:
        case Apply(fn="cast", args=(x,), dtype=t) if t == I64 and not x.dtype.is_float and x.dtype != BOOL:
            return x
    return p


def conditions_of(s: State, load: Load, active: Active) -> Active:
    """What must hold for `load` to be read: its guard, and those of `active` on which its place may rely."""
    computed = any(not isinstance(p, Affine) for p in load.index)
    needed = tuple({id(c): c for c in (*s.active, *active) if c.affine or computed}.values())
    if needed and not computed and _is_inside(s, load):
        needed = ()
    if len(needed) == 1 and not computed:  # of two, each may hold for a lane of its own
        needed = (_enough(s, load, needed[0]),)
    # what all lanes decide alike moves a pointer, only the rest makes a mask, which then does not depend on as many rows
    alike = tuple(t for t in load.guard if lane_factor(s, t) == 0)
    apart = tuple(t for t in load.guard if t not in alike)
    return (*needed, *(Condition(test_value(s, tests), True) for tests in (alike, apart) if tests))


def _is_inside(s: State, load: Load) -> bool:
    """Whether `load` names one element of a tensor for all lanes, which the loops around keep inside: it may be read anyway."""
    buffer, lane = s.nest.buffer(load.source), s.lanes.index if s.lanes else None
    places = [p for p in load.index if isinstance(p, Affine)]
    if buffer.space != Space.TENSOR or load.guard or any(lane in names(p) for p in places):
        return False
    loops = (*s.loops, *(For(a.index, affine(0), a.upper, ()) for a in s.rows))
    return all(is_positive(p + 1, loops, s.tests) and is_positive(extent - p, loops, s.tests)
               for p, (extent, _) in zip(places, buffer.dims, strict=True))


def _enough(s: State, load: Load, c: Condition) -> Condition:
    """What must hold for `load` to lie inside its buffer where `c` holds for some row and lane: that, instead of `c` for each.

    Its place is the same for all of them; or differs between lanes alone, of which the buffer has room for all, so it lies inside
    for all if it does for one. What else is read for a lane is not used, since whatever is done under `c` is done where it holds.
    """
    buffer, lanes = s.nest.buffer(load.source), s.lanes
    if not c.tests or not all(isinstance(a, str) for t in c.tests for a, _ in t.terms):
        return c
    if lanes is None or buffer.space != Space.WORK or not load.dtype.is_float or load.guard:
        return c
    used = frozenset[str]().union(*map(names, c.tests)) & s.axes.keys()
    at = [d for d, p in enumerate(load.index) if isinstance(p, Affine) and names(p) & used]
    if at and (len(at) > 1 or load.index[at[0]] != affine(lanes.index)):
        return c
    extent, unit = buffer.dims[at[0]] if at else (affine(0), 1)
    if at and (unit != 1 or not extent.is_constant or extent.const < s.vectors() * s.width):
        return c
    tests = _somewhere(s, c.tests, used)
    return Condition(test_value(s, tests), True) if tests is not None else c


def _somewhere(s: State, tests: tuple[Affine, ...], used: frozenset[str]) -> tuple[Affine, ...] | None:
    """What holds if and only if all of `tests` do for some values of the rows or lanes `used`; None if that cannot be said.

    Of several tests with one of these, { v >= -a } and { v <= b }, each must hold somewhere, and each two at the same place.
    """
    tied = [t for t in tests if names(t) & used]
    if len(tied) > 1 and (len(used) > 1 or any(abs(t.factor(n)) != 1 for t in tied for n in used)):
        return None
    ends = [{n: s.axes[n].upper - 1 if t.factor(n) > 0 else affine(0) for n in used} for t in tied]
    most = [substitute(t, at) for t, at in zip(tied, ends, strict=True)]
    both = [a + b for a in tied for b in tied if used and a.factor(min(used)) > 0 > b.factor(min(used))]
    return tuple(dict.fromkeys((*(t for t in tests if t not in tied), *most, *both)))


def load_value(s: State, e: Load, active: Active) -> Value:
    """An element of memory, or 0 where the guard says so."""
    conditions = conditions_of(s, e, active)
    computed = computed_positions(s, e, (*s.active, *active))
    place = locate(s, e, computed)
    rows = place.rows.union(*(c.value.rows for c in conditions)) if conditions else place.rows
    if place.inside is not None:
        checked = place.inside
        before = conditions

        def ok(point: Point, v: int) -> str:
            return check_inside(s, e, checked, before, point, v)

        wide = checked.lanes or any(c.value.lanes for c in before)
        conditions = (*conditions, Condition(Value(BOOL, rows, wide, ok), True))
    lanes = place.lanes or any(c.value.lanes for c in conditions)
    shared: dict[tuple[int, ...], str] = {}

    def make(point: Point, v: int) -> str:
        if not lanes:
            return scalar_load(s, place, place.base(point, scalar_part(s, conditions, point)))
        if place.lanes:
            return vector_load(s, e, place, conditions, point, v)
        key = tuple(point[a] for a in sorted(rows))
        if key not in shared:
            shared[key] = one_for_all(s, e, place, conditions, point)
        return or_zero(s, shared[key], e, conditions, point, v) if e.guard else shared[key]

    row = lookup_of(s, place)
    if row is not None:
        (at,) = computed
        assert at is not None
        return _in_table(s, e, looked_up(s, place, row, at.narrow or at), conditions, rows)
    if place.lanes and not e.guard and (beside := read_beside(s, place)) is not None:
        return beside
    if place.lanes and place.offsets is None and not conditions and place.stride not in (1, -1):
        gaps = between(s, place)
        if gaps is not None:
            return read_by_turns(s, place, gaps, rows)
        axis = transposable(s, place)
        if axis is not None:
            return transposed(s, place, axis, rows)
    if place.lanes and place.stride == 1 and place.inside is None and not e.guard:
        # under a condition, too, which decides only which lanes are used
        def forwarded(point: Point, v: int) -> str:
            known = s.stored.get((e, tuple(point[a] for a in sorted(place.rows)), v))
            return known or make(point, v)

        return Value(e.dtype, rows, lanes, forwarded)
    return Value(e.dtype, rows, lanes, make)


def _in_table(s: State, e: Load, x: Value, conditions: Active, rows: frozenset[str]) -> Value:
    """`x`, which registers hold, or 0 where the guard of `e` says so; to ask about the conditions reports places outside."""
    def make(point: Point, v: int) -> str:
        must, mask = scalar_part(s, conditions, point), lanes_part(s, conditions, point, v)
        if not e.guard:
            return x.at(point, v)
        mask = s.b.both(mask, splat(s, must, "i1") if must is not None else None, s.width)
        return zero_but(s, x.at(point, v), e, mask) if mask else x.at(point, v)

    return Value(e.dtype, rows, True, make)


