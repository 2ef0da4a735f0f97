"""Stores to memory: scalars, vectors of consecutive elements, past the caches, scattered, lane by lane."""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place, lane_offsets, locate
from polyop.codegen.llvm.broken import store_in_pieces
from polyop.codegen.llvm.builder import IMPURE
from polyop.codegen.llvm.convert import from_memory, to_memory
from polyop.codegen.llvm.expressions import computed_positions, operand
from polyop.codegen.llvm.index import existing, first_of, is_whole, known_extent
from polyop.codegen.llvm.interleave import weave, write_woven
from polyop.codegen.llvm.loads import check_inside, gather, lanes_part, reverse, scalar_part
from polyop.codegen.llvm.masked import masked_load, part, store_first, store_vector, whole_parts
from polyop.codegen.llvm.monoids import combined, fold, fold_each, pair
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.reach import bypasses, lane_mask, row_stride
from polyop.codegen.llvm.repeat import across, is_folded, lanes_of, points, row_exists, rows_alike, rows_needed, together
from polyop.codegen.llvm.spaced import is_spaced, write_spaced
from polyop.codegen.llvm.state import Active, Axis, Condition, Point, State, Value, only_if
from polyop.codegen.llvm.types import alignment, constant, register, suffix, vector
from polyop.codegen.llvm.woven import between, spread_masks, woven
from polyop.codegen.vecmath.ops import V
from polyop.ir.dtypes import BOOL
from polyop.ir.expr import is_computed
from polyop.ir.integers import power_of_two
from polyop.ir.loops import Store


def store_to_memory(s: State, n: Store, x: Value) -> None:
    place = locate(s, n.target, computed_positions(s, n.target, s.active))
    conditions = s.active
    if place.inside is not None:
        inside = place.inside
        wide = inside.lanes or any(c.value.lanes for c in s.active)
        rows = inside.rows.union(*(c.value.rows for c in s.active))
        before = s.active
        ok = Value(BOOL, rows, wide, lambda p, v: check_inside(s, n.target, inside, before, p, v))
        conditions = (*conditions, Condition(ok, True))
    folded = is_folded(s, n, x, place.lanes)
    side_by_side = weave(s, n, place, conditions)
    if side_by_side is not None:
        write_woven(s, n, x, place, side_by_side)
        return
    gaps = None if conditions or n.reduce is not None else between(s, place)
    if gaps is not None:
        _by_turns(s, n, x, place, gaps)
        return
    # what was stored elsewhere in this buffer may overlap, and here may be left in some lanes
    whole = not any(c.value.lanes for c in conditions)
    s.forget(n.target.source, but=n.target if whole else None)
    if place.runs is not None and n.reduce is None:
        store_in_pieces(s, n, x, place, conditions)
        return
    if folded and not conditions and (beside := _beside(s, n, place)) is not None:
        _fold_rows(s, n, x, place, beside)
        return
    alike = rows_alike(s, n, place.rows.union(*(c.value.rows for c in conditions)))
    x = together(s, n, x, alike)
    for point in points(s, rows_needed(s, n, x, place.rows) - {a.index for a in alike}):
        exists = s.b.both(row_exists(s, s.rows, point), scalar_part(s, conditions, point))
        if folded:
            _fold_to_memory(s, n, x, place, conditions, point, exists)
        elif not place.lanes:
            new = operand(s, x, point, 0, False)
            with only_if(s, exists):
                p = place.base(point, None)
                old = _read_scalar(s, place, p) if n.reduce is not None else None
                _write_scalar(s, place, p, pair(s, n.reduce, old, new, n.target.dtype) if n.reduce and old else new)
        elif place.stride in (1, -1):
            _write_vectors(s, n, x, place, conditions, point, exists)
        else:
            news, masks = lanes_of(s, x, point, conditions)
            with only_if(s, exists):
                for v, new, mask in zip(s.pieces(), news, masks, strict=True):
                    _scatter(s, n, place, new, mask, point, v)


def _by_turns(s: State, n: Store, x: Value, place: Place, axis: Axis) -> None:
    """Steps of `axis`, which fill the gaps between lanes."""
    s.forget(n.target.source)
    for point in points(s, place.rows.union(x.rows) - {axis.index}):
        steps = [{**point, axis.index: f} for f in range(axis.extent)]
        exists, first = row_exists(s, tuple(a for a in s.rows if a is not axis), point), place.base(steps[0], None)
        for v in s.pieces():
            _write_by_turns(s, place, first, [operand(s, x, at, v, True) for at in steps], exists, v)


def store_beside(s: State, together: tuple[Store, ...], xs: tuple[Value, ...]) -> None:
    """Carry out stores of `xs` that fill each other's gaps between lanes, in the order of their places: in whole vectors."""
    place = locate(s, together[0].target)
    s.forget(place.load.source)
    for point in points(s, place.rows.union(*(x.rows for x in xs))):
        exists, first = row_exists(s, s.rows, point), place.base(point, None)
        for v in s.pieces():
            _write_by_turns(s, place, first, [operand(s, x, point, v, True) for x in xs], exists, v)


def _write_by_turns(s: State, place: Place, first: str, steps: list[V], exists: str | None, v: int) -> None:
    """What lies by turns from `first` on, if the row exists."""
    raws = woven(s, place.element, [to_memory(y, place.buffer.dtype, s.shared.target).text for y in steps])
    masks = spread_masks(s, existing(s, v), len(steps))
    with only_if(s, exists):
        for k, (raw, mask) in enumerate(zip(raws, masks, strict=True)):
            store_vector(s, place.element, s.width, raw, gep(s, place.element, first, (v * len(steps) + k) * s.width), mask)


def _read_scalar(s: State, place: Place, p: str) -> V:
    raw = V(s.b, place.element, 1, s.b.do(f"load {place.element}, ptr {p}, align {alignment(place.element)}"),
            "" if s.shared.strict else "contract ")
    return from_memory(raw, place.buffer.dtype, s.shared.target)


def _write_scalar(s: State, place: Place, p: str, x: V) -> None:
    text = to_memory(x, place.buffer.dtype, s.shared.target).text
    s.b.line(f"store {place.element} {text}, ptr {p}, align {alignment(place.element)}")


def _beside(s: State, n: Store, place: Place) -> Axis | None:
    """The rows axis whose copies fold all their lanes into elements side by side; None if there is none."""
    if n.reduce is None or s.shared.strict or any(existing(s, v) is not None for v in s.pieces()):
        return None
    fits = (a for a in s.rows if 1 < a.extent <= s.width and a.extent == power_of_two(a.extent))
    return next((a for a in fits if row_stride(s, place, a) == 1), None)


def _fold_rows(s: State, n: Store, x: Value, place: Place, axis: Axis) -> None:
    """All lanes of each copy of `axis` into an element of its own: one vector of them."""
    assert n.reduce is not None
    t, width, m = n.target.dtype, axis.extent, n.reduce
    others = tuple(a for a in s.rows if a is not axis)
    mask = first_of(s, width, width if axis.valid is None else axis.valid)
    for point in points(s, frozenset(a.index for a in others)):
        each = [combined(s, m, [operand(s, x, {**point, axis.index: r}, v, True) for v in s.pieces()], t) for r in range(width)]
        new = fold_each(s, m, each, t)
        with only_if(s, row_exists(s, others, point)):
            p = place.base({**point, axis.index: 0}, None)
            raw = masked_load(s, place.element, p, mask, width) if mask else \
                s.b.do(f"load {vector(place.element, width)}, ptr {p}, align {alignment(place.element)}")
            old = from_memory(V(s.b, place.element, width, raw, new.flags), place.buffer.dtype, s.shared.target)
            raw = to_memory(pair(s, m, old, new, t), place.buffer.dtype, s.shared.target).text
            store_vector(s, place.element, width, raw, p, mask)


def _fold_to_memory(s: State, n: Store, x: Value, place: Place, conditions: Active, point: Point, exists: str | None) -> None:
    """All lanes into one element."""
    xs, masks = lanes_of(s, x, point, conditions)
    total = fold(s, n.reduce, xs, masks, n.target.dtype) if n.reduce is not None and not s.shared.strict else None
    with only_if(s, exists):
        p = place.base(point, None)
        old = _read_scalar(s, place, p)
        if total is not None and n.reduce is not None:
            _write_scalar(s, place, p, pair(s, n.reduce, old, total, n.target.dtype))
        else:
            _write_scalar(s, place, p, across(s, n, x, point, conditions, old))


def _write_vectors(s: State, n: Store, x: Value, place: Place, conditions: Active, point: Point, exists: str | None) -> None:
    """Consecutive lanes to consecutive elements, forwards or backwards."""
    vectors, forwards = s.pieces(), place.stride == 1
    anywhere = n.reduce is not None and forwards and any(map(is_computed, n.target.index))
    in_parts = anywhere or (forwards and not s.shared.target.masks)
    known = known_extent(s.lanes) if in_parts and s.lanes and not any(c.value.lanes for c in conditions) else None
    there = [None if anywhere and _all_there(s, v) else lane_mask(s, place, v, write=True) if forwards else existing(s, v)
             for v in vectors]
    masks = [s.b.both(t, lanes_part(s, conditions, point, v), s.width) for v, t in zip(vectors, there, strict=True)]
    if n.stream and n.reduce is None and forwards and exists is None and all(m is None for m in masks):
        _stream(s, x, place, point)
        return
    if exists is not None:  # nothing may be computed only inside the branch, since later copies may use it
        for v in vectors:
            operand(s, x, point, v, True)
    p = place.base(point, None)
    with only_if(s, exists):
        for v, mask in zip(vectors, masks, strict=True):
            new = operand(s, x, point, v, True)
            q = gep(s, place.element, p, v * s.width if forwards else -(v * s.width + s.width - 1))
            if mask is not None and known is not None and anywhere:
                _update_in_parts(s, n, place, q, new, known - v * s.width)
                continue
            if n.reduce is not None:
                new = pair(s, n.reduce, _read_vector(s, place, q, mask), new, n.target.dtype)
            raw = to_memory(new, place.buffer.dtype, s.shared.target).text
            if not forwards:
                raw, mask = reverse(s, raw, place.element), reverse(s, mask, "i1") if mask else None
            if mask is not None and known is not None:
                store_first(s, place.element, s.width, raw, q, known - v * s.width)
            else:
                store_vector(s, place.element, s.width, raw, q, mask)
            if forwards and exists is None and not any(c.value.lanes for c in conditions):
                s.stored[n.target, tuple(point[a] for a in sorted(place.rows)), v] = new.text


def _all_there(s: State, v: int) -> bool:
    """Whether all lanes of vector `v` are known to exist, by their number or by tests around."""
    assert s.lanes is not None
    known = known_extent(s.lanes)
    return is_whole(s, s.lanes, v) or (known is not None and known >= (v + 1) * s.width)


def _update_in_parts(s: State, n: Store, place: Place, p: str, new: V, count: int) -> None:
    """Update the first `count` elements from `p` on by lanes of `new`, in vectors of 8, 4, 2 and 1 that have no masks.

    The next row may be the same one, and what was stored under a mask is not handed on to a load, which waits for the cache.
    """
    for at, some in whole_parts(count):
        q, t = gep(s, place.element, p, at), vector(place.element, some)
        raw = V(s.b, place.element, some, s.b.do(f"load {t}, ptr {q}, align {alignment(place.element)}"), new.flags)
        mine = V(s.b, new.element, some, part(s, new.element, s.width, new.text, at, some), new.flags)
        assert n.reduce is not None
        total = pair(s, n.reduce, from_memory(raw, place.buffer.dtype, s.shared.target), mine, n.target.dtype)
        store_vector(s, place.element, some, to_memory(total, place.buffer.dtype, s.shared.target).text, q, None)


def _read_vector(s: State, place: Place, p: str, mask: str | None) -> V:
    t = vector(place.element, s.width)
    if mask is not None:
        raw = masked_load(s, place.element, p, reverse(s, mask, "i1") if place.stride == -1 else mask)
    else:
        raw = s.b.do(f"load {t}, ptr {p}, align {alignment(place.element)}")
    raw = reverse(s, raw, place.element) if place.stride == -1 else raw
    flags = "" if s.shared.strict else "contract "
    return from_memory(V(s.b, place.element, s.width, raw, flags), place.buffer.dtype, s.shared.target)


def _stream(s: State, x: Value, place: Place, point: Point) -> None:
    """Past the caches if the address is aligned and the tensor is large, else as usual; all vectors of a row agree."""
    t = vector(place.element, s.width)
    bytes_ = s.width * alignment(place.element)
    raws = [to_memory(operand(s, x, point, v, True), place.buffer.dtype, s.shared.target).text for v in range(s.vectors())]
    p = place.base(point, None)
    places = [gep(s, place.element, p, v * s.width) for v in range(s.vectors())]
    s.streams = True
    if s.past:
        for raw, q in zip(raws, places, strict=True):
            s.b.line(f"store {t} {raw}, ptr {q}, align {bytes_}, !nontemporal !2")
        return
    address = s.b.do(f"ptrtoint ptr {p} to i64")  # here, since rows of another length do not ask
    low = s.b.pure(f"and i64 {address}, {bytes_ - 1}", address)
    aligned = s.b.both(s.b.compare("eq", low, 0), bypasses(s, place))
    fast, slow, done = s.b.new_label(), s.b.new_label(), s.b.new_label()
    s.b.line(f"br i1 {aligned}, label %{fast}, label %{slow}")
    for name, note in ((fast, f"align {bytes_}, !nontemporal !2"), (slow, f"align {alignment(place.element)}")):
        s.label(name)
        for raw, q in zip(raws, places, strict=True):
            s.b.line(f"store {t} {raw}, ptr {q}, {note}")
        s.b.line(f"br label %{done}")
    s.label(done)


def _scatter(s: State, n: Store, place: Place, new: V, mask: str | None, point: Point, v: int) -> None:
    """Lanes to places that are not consecutive; an update of places known only from data goes lane by lane."""
    w, b = s.width, s.b
    p = place.base(point, None)
    offsets = place.offsets(point, v) if place.offsets else lane_offsets(s, place.stride, v)
    if n.reduce is not None and place.offsets is not None:
        _lane_by_lane(s, n, place, p, offsets, new, mask)
        return
    if n.reduce is not None:
        raw = gather(s, place.element, p, offsets, mask)
        old = from_memory(V(b, place.element, w, raw, new.flags), place.buffer.dtype, s.shared.target)
        new = pair(s, n.reduce, old, new, n.target.dtype)
    raw = to_memory(new, place.buffer.dtype, s.shared.target).text
    if is_spaced(s, place):
        write_spaced(s, place, raw, p, v, mask)
        return
    pointers = b.pure(f"getelementptr {place.element}, ptr {p}, <{w} x i64> {offsets}", p, offsets)
    args = ((vector(place.element, w), raw), (f"<{w} x ptr> align {alignment(place.element)}", pointers),
            (f"<{w} x i1>", mask or constant(True, "i1", w)))
    b.call("void", f"llvm.masked.scatter.{suffix(place.element, w)}.v{w}p0", *args)


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
    b.depth[i] = b.depth[after] = IMPURE
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
