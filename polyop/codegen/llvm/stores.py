"""Stores: to registers, to memory, across lanes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product

from polyop.codegen.convert import from_memory, to_memory
from polyop.codegen.llvm.addresses import Place, gep, lane_mask, lane_offsets, locate
from polyop.codegen.llvm.expressions import as_vector, computed_positions, operand, value_of
from polyop.codegen.llvm.index import existing
from polyop.codegen.llvm.loads import check_inside, lanes_part, masked_load, reverse, scalar_part
from polyop.codegen.llvm.monoids import fold, fold_in_order, pair
from polyop.codegen.llvm.registers import key_of, register_axes, register_type
from polyop.codegen.llvm.state import Axis, Condition, Point, State, Value
from polyop.codegen.llvm.types import alignment, constant, register, suffix, vector
from polyop.codegen.vecmath.ops import V
from polyop.ir.dtypes import BOOL
from polyop.ir.errors import InternalError
from polyop.ir.loops import Space, Store
from polyop.ir.op import Monoid


def points(s: State, rows: frozenset[str]) -> Iterator[dict[str, int]]:
    """Every copy of the rows axes in `rows`, in order; the others stay at 0."""
    axes = s.rows
    for at in product(*(range(a.extent) if a.index in rows else (0,) for a in axes)):
        yield {a.index: i for a, i in zip(axes, at, strict=True)}


def row_exists(s: State, axes: tuple[Axis, ...], point: Point) -> str | None:
    """Whether the copy `point` exists on all of `axes`; None if it always does."""
    total: str | None = None
    for a in axes:
        if a.valid is not None and point[a.index] > 0:
            total = s.b.both(total, s.b.compare("sgt", a.valid, point[a.index]))
    return total


@contextmanager
def only_if(s: State, test: str | None) -> Iterator[None]:
    """What is written inside runs only where `test` holds."""
    if test is None:
        yield
        return
    then, done = s.b.new_label(), s.b.new_label()
    s.b.line(f"br i1 {test}, label %{then}, label %{done}")
    s.label(then)
    yield
    s.b.line(f"br label %{done}")
    s.label(done)


def store(s: State, n: Store) -> None:
    x = value_of(s, n.expr, s.active)
    if s.nest.buffer(n.target.source).space == Space.REG:
        _to_register(s, n, x)
    else:
        _to_memory(s, n, x)


def _rows(s: State, n: Store, x: Value, target: frozenset[str]) -> frozenset[str]:
    """The rows axes that must be run through: all of them if repeating the store changes the result."""
    if n.reduce is not None:
        return frozenset(a.index for a in s.rows)
    return target.union(x.rows, *(c.value.rows for c in s.active))


def _is_folded(s: State, n: Store, x: Value, target_lanes: bool) -> bool:
    """Whether several lanes meet in one target."""
    return s.lanes is not None and not target_lanes and (n.reduce is not None or x.lanes or any(c.value.lanes for c in s.active))


def _combined(s: State, m: Monoid | None, old: V, new: V, n: Store) -> V:
    return pair(s, m, old, new, n.target.dtype) if m is not None else new


# --- registers


def _to_register(s: State, n: Store, x: Value) -> None:
    rows, lanes = register_axes(s, n.target)
    folded = _is_folded(s, n, x, lanes)
    blend = id(n) in s.shared.blended
    for point in points(s, _rows(s, n, x, rows)):
        missing = tuple(a for a in s.rows if a.index not in rows or blend)
        exists = s.b.both(row_exists(s, missing, point), scalar_part(s, s.active, point))
        if folded:
            key = key_of(s, n.target, point, 0)
            new = _across(s, n, x, point, _scalar(s, n, s.regs[key]) if key in s.regs else None)
            s.regs[key] = _kept(s, key, exists, new.text)
            continue
        for v in range(s.vectors()) if lanes else (0,):
            key = key_of(s, n.target, point, v)
            new = operand(s, x, point, v, lanes)
            if n.reduce is not None:
                new = pair(s, n.reduce, new.like(s.regs[key]), new, n.target.dtype)
            mask = lanes_part(s, s.active, point, v)
            if lanes and blend:
                mask = s.b.both(mask, existing(s, v), s.width)
            s.regs[key] = _kept(s, key, exists, _kept_lanes(s, key, mask, new.text))


def _scalar(s: State, n: Store, text: str) -> V:
    return V(s.b, register(n.target.dtype), 1, text, "" if s.shared.strict else "contract ")


def _kept(s: State, key: tuple[str, tuple[int, ...], int], test: str | None, new: str) -> str:
    if test is None or key not in s.regs:
        return new
    t = register_type(s, key)
    return s.b.do(f"select i1 {test}, {t} {new}, {t} {s.regs[key]}")


def _kept_lanes(s: State, key: tuple[str, tuple[int, ...], int], mask: str | None, new: str) -> str:
    if mask is None or key not in s.regs:
        return new
    t = register_type(s, key)
    return s.b.do(f"select <{s.width} x i1> {mask}, {t} {new}, {t} {s.regs[key]}")


def _across(s: State, n: Store, x: Value, point: Point, old: V | None) -> V:
    """What a target that does not depend on the lanes gets from all that exist."""
    xs, masks = [], []
    for v in range(s.vectors()):
        text = as_vector(s, x, point, v)
        xs.append(V(s.b, register(x.dtype), s.width, text, "" if s.shared.strict else "contract "))
        masks.append(s.b.both(existing(s, v), lanes_part(s, s.active, point, v), s.width))
    t = n.target.dtype
    if n.reduce is None:
        return _last(s, xs, masks, old)
    if old is None:
        raise InternalError(f"emit: {n.target} is updated before it is written")
    if s.shared.strict:
        return fold_in_order(s, n.reduce, old, xs, masks, t)
    return pair(s, n.reduce, old, fold(s, n.reduce, xs, masks, t), t)


def _last(s: State, xs: list[V], masks: list[str | None], old: V | None) -> V:
    """The value of the last lane for which a mask holds: what remains if all write to one place in order."""
    for x, mask in zip(xs, masks, strict=True):
        for i in range(x.width):
            lane = V(x.b, x.element, 1, s.b.do(f"extractelement {x.type_} {x.text}, i64 {i}"), x.flags)
            if mask is not None and old is not None:
                lane = V(x.b, "i1", 1, s.b.do(f"extractelement <{x.width} x i1> {mask}, i64 {i}")).pick(lane, old)
            old = lane
    assert old is not None
    return old


# --- memory


def _to_memory(s: State, n: Store, x: Value) -> None:
    place = locate(s, n.target, computed_positions(s, n.target, s.active))
    conditions = s.active
    if place.inside is not None:
        inside = place.inside
        wide = inside.lanes or any(c.value.lanes for c in s.active)
        rows = inside.rows.union(*(c.value.rows for c in s.active))
        before = s.active
        ok = Value(BOOL, rows, wide, lambda p, v: check_inside(s, n.target, inside, before, p, v))
        conditions = (*conditions, Condition(ok, True))
    folded = _is_folded(s, n, x, place.lanes)
    # what was stored elsewhere in this buffer may overlap
    s.stored = {k: y for k, y in s.stored.items() if k[0] == n.target or k[0].source != n.target.source}
    for point in points(s, _rows(s, n, x, place.rows)):
        exists = s.b.both(row_exists(s, s.rows, point), scalar_part(s, conditions, point))
        if folded:
            _fold_to_memory(s, n, x, place, conditions, point, exists)
        elif not place.lanes:
            new = operand(s, x, point, 0, False)
            with only_if(s, exists):
                p = place.base(point, None)
                _write_scalar(s, place, p, _combined(s, n.reduce, _read_scalar(s, place, p), new, n) if n.reduce else new)
        elif place.stride in (1, -1):
            _write_vectors(s, n, x, place, conditions, point, exists)
        else:
            news = [operand(s, x, point, v, True) for v in range(s.vectors())]
            masks = [s.b.both(existing(s, v), lanes_part(s, conditions, point, v), s.width) for v in range(s.vectors())]
            with only_if(s, exists):
                for v, new in enumerate(news):
                    _scatter(s, n, place, new, masks[v], point, v)


def _read_scalar(s: State, place: Place, p: str) -> V:
    raw = V(s.b, place.element, 1, s.b.do(f"load {place.element}, ptr {p}, align {alignment(place.element)}"),
            "" if s.shared.strict else "contract ")
    return from_memory(raw, place.buffer.dtype, s.shared.target)


def _write_scalar(s: State, place: Place, p: str, x: V) -> None:
    text = to_memory(x, place.buffer.dtype, s.shared.target).text
    s.b.line(f"store {place.element} {text}, ptr {p}, align {alignment(place.element)}")


def _fold_to_memory(s: State, n: Store, x: Value, place: Place, conditions: tuple[Condition, ...], point: Point, exists: str | None) -> None:
    keep, s.active = s.active, conditions
    if n.reduce is not None and s.shared.strict:
        for v in range(s.vectors()):
            as_vector(s, x, point, v)
        with only_if(s, exists):
            p = place.base(point, None)
            _write_scalar(s, place, p, _across(s, n, x, point, _read_scalar(s, place, p)))
    elif n.reduce is not None:
        neutral = _scalar(s, n, constant(n.reduce.identity, register(n.target.dtype), 1))
        xs = _across(s, n, x, point, neutral)
        with only_if(s, exists):
            p = place.base(point, None)
            _write_scalar(s, place, p, pair(s, n.reduce, _read_scalar(s, place, p), xs, n.target.dtype))
    else:
        for v in range(s.vectors()):
            as_vector(s, x, point, v)
        with only_if(s, exists):
            p = place.base(point, None)
            _write_scalar(s, place, p, _across(s, n, x, point, _read_scalar(s, place, p)))
    s.active = keep


def _write_vectors(s: State, n: Store, x: Value, place: Place, conditions: tuple[Condition, ...], point: Point, exists: str | None) -> None:
    """Consecutive lanes to consecutive elements, forwards or backwards."""
    masks = [s.b.both(lane_mask(s, place, v, write=True), lanes_part(s, conditions, point, v), s.width) for v in range(s.vectors())]
    if place.stride == -1:
        masks = [s.b.both(existing(s, v), lanes_part(s, conditions, point, v), s.width) for v in range(s.vectors())]
    if n.stream and n.reduce is None and place.stride == 1 and exists is None and all(m is None for m in masks):
        _stream(s, x, place, point)
        return
    if exists is not None:
        for v in range(s.vectors()):
            operand(s, x, point, v, True)
    p = place.base(point, None)
    with only_if(s, exists):
        for v, mask in enumerate(masks):
            new = operand(s, x, point, v, True)
            q = gep(s, place.element, p, v * s.width if place.stride == 1 else -(v * s.width + s.width - 1))
            if n.reduce is not None:
                new = pair(s, n.reduce, _read_vector(s, place, q, mask), new, n.target.dtype)
            raw = to_memory(new, place.buffer.dtype, s.shared.target).text
            if place.stride == -1:
                raw, mask = reverse(s, raw, place.element), reverse(s, mask, "i1") if mask else None
            _write_vector(s, place, raw, q, mask)
            if place.stride == 1 and exists is None:
                s.stored[n.target, tuple(point[a] for a in sorted(place.rows)), v] = new.text


def _read_vector(s: State, place: Place, p: str, mask: str | None) -> V:
    t = vector(place.element, s.width)
    if mask is not None:
        raw = masked_load(s, place.element, p, reverse(s, mask, "i1") if place.stride == -1 else mask)
    else:
        raw = s.b.do(f"load {t}, ptr {p}, align {alignment(place.element)}")
    raw = reverse(s, raw, place.element) if place.stride == -1 else raw
    flags = "" if s.shared.strict else "contract "
    return from_memory(V(s.b, place.element, s.width, raw, flags), place.buffer.dtype, s.shared.target)


def _write_vector(s: State, place: Place, raw: str, p: str, mask: str | None) -> None:
    t, align = vector(place.element, s.width), alignment(place.element)
    if mask is None:
        s.b.line(f"store {t} {raw}, ptr {p}, align {align}")
    else:
        s.b.call("void", f"llvm.masked.store.{suffix(place.element, s.width)}.p0", (t, raw), (f"ptr align {align}", p), (f"<{s.width} x i1>", mask))


def _stream(s: State, x: Value, place: Place, point: Point) -> None:
    """Past the caches if the address is aligned, else as usual; all vectors of a row agree."""
    t = vector(place.element, s.width)
    bytes_ = s.width * alignment(place.element)
    raws = [to_memory(operand(s, x, point, v, True), place.buffer.dtype, s.shared.target).text for v in range(s.vectors())]
    p = place.base(point, None)
    address = s.b.pure(f"ptrtoint ptr {p} to i64", p)
    low = s.b.pure(f"and i64 {address}, {bytes_ - 1}", address)
    aligned = s.b.compare("eq", low, 0)
    fast, slow, done = s.b.new_label(), s.b.new_label(), s.b.new_label()
    places = [gep(s, place.element, p, v * s.width) for v in range(s.vectors())]
    s.b.line(f"br i1 {aligned}, label %{fast}, label %{slow}")
    for name, note in ((fast, f"align {bytes_}, !nontemporal !2"), (slow, f"align {alignment(place.element)}")):
        s.label(name)
        for raw, q in zip(raws, places, strict=True):
            s.b.line(f"store {t} {raw}, ptr {q}, {note}")
        s.b.line(f"br label %{done}")
    s.label(done)
    s.streams = True


def _scatter(s: State, n: Store, place: Place, new: V, mask: str | None, point: Point, v: int) -> None:
    """Lanes to places that are not consecutive; an update of places known only from data goes lane by lane."""
    w, b = s.width, s.b
    p = place.base(point, None)
    offsets = place.offsets(point, v) if place.offsets else lane_offsets(s, place.stride, v)
    if n.reduce is not None and place.offsets is not None:
        _lane_by_lane(s, n, place, p, offsets, new, mask)
        return
    align, t = alignment(place.element), vector(place.element, w)
    pointers = b.pure(f"getelementptr {place.element}, ptr {p}, <{w} x i64> {offsets}", p, offsets)
    some = mask or constant(True, "i1", w)
    if n.reduce is not None:
        raw = b.call(t, f"llvm.masked.gather.{suffix(place.element, w)}.v{w}p0", (f"<{w} x ptr> align {align}", pointers),
                     (f"<{w} x i1>", some), (t, "zeroinitializer"))
        old = from_memory(V(b, place.element, w, raw, new.flags), place.buffer.dtype, s.shared.target)
        new = pair(s, n.reduce, old, new, n.target.dtype)
    raw = to_memory(new, place.buffer.dtype, s.shared.target).text
    b.call("void", f"llvm.masked.scatter.{suffix(place.element, w)}.v{w}p0", (t, raw), (f"<{w} x ptr> align {align}", pointers), (f"<{w} x i1>", some))


def _lane_by_lane(s: State, n: Store, place: Place, p: str, offsets: str, new: V, mask: str | None) -> None:
    """Several lanes may name one place, so each update must see the one before."""
    w, b, t = s.width, s.b, n.target.dtype
    element = "i8" if t == BOOL else register(t)
    value = new.cast("zext", "i8") if t == BOOL else new
    bits = b.pure(f"zext <{w} x i1> {mask or constant(True, 'i1', w)} to <{w} x i8>", mask or 0)
    kept = []
    for what, kind, text in (("value", element, value.text), ("offset", "i64", offsets), ("mask", "i8", bits)):
        room = b.pure(f"alloca <{w} x {kind}>, align 64 ; {what}")
        b.line(f"store <{w} x {kind}> {text}, ptr {room}, align 64")
        kept.append((kind, room))
    head, then, next_, done, before = b.new_label(), b.new_label(), b.new_label(), b.new_label(), b.block
    i, after = b.fresh(), b.fresh()
    b.depth[i] = b.depth[after] = 1 << 30
    b.line(f"br label %{head}")
    s.label(head)
    b.line(f"{i} = phi i64 [ 0, %{before} ], [ {after}, %{next_} ]")

    def lane(which: int) -> str:
        kind, room = kept[which]
        q = b.do(f"getelementptr {kind}, ptr {room}, i64 {i}")
        return b.do(f"load {kind}, ptr {q}, align {alignment(kind)}")

    live = b.do(f"icmp ne i8 {lane(2)}, 0")
    b.line(f"br i1 {live}, label %{then}, label %{next_}")
    s.label(then)
    q = b.do(f"getelementptr {place.element}, ptr {p}, i64 {lane(1)}")
    one = V(b, element, 1, lane(0), new.flags)
    one = one.cmp("ne", 0) if t == BOOL else one
    assert n.reduce is not None
    _write_scalar(s, place, q, pair(s, n.reduce, _read_scalar(s, place, q), one, t))
    b.line(f"br label %{next_}")
    s.label(next_)
    b.line(f"{after} = add i64 {i}, 1")
    again = b.do(f"icmp slt i64 {after}, {w}")
    b.line(f"br i1 {again}, label %{head}, label %{done}")
    s.label(done)


