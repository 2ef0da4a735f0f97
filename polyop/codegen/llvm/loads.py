"""Loads: scalars, vectors of consecutive elements either way or near each other, gathers, squares transposed in registers."""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place, lane_offsets
from polyop.codegen.llvm.convert import from_memory
from polyop.codegen.llvm.index import below, existing, known_extent, splat
from polyop.codegen.llvm.masked import load_first, masked_load
from polyop.codegen.llvm.pieces import Piece, lanes_between, pieces_of
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.reach import lane_mask
from polyop.codegen.llvm.spread import elements_of, first_elements, spots, spread
from polyop.codegen.llvm.state import Active, Axis, Point, State, Value, only_if
from polyop.codegen.llvm.types import alignment, constant, register, shuffle_mask, suffix, vector
from polyop.codegen.vecmath.ops import V
from polyop.ir.expr import Load
from polyop.ir.integers import power_of_two
from polyop.ir.target import NEAR


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
        bad = V(b, "i1", w, wrong).somewhere().text
        ok = b.both(ok, some, w) or ok
    else:
        bad = b.both(b.pure(f"xor i1 {ok}, true", ok), must) or ""
    with only_if(s, bad):  # a store in each iteration, of whatever, would wait for its turn among those of results
        old = b.do(f"load i64, ptr {s.status}, align 8")
        first = b.do(f"icmp eq i64 {old}, 0")
        b.line(f"store i64 {b.do(f'select i1 {first}, i64 {number}, i64 {old}')}, ptr {s.status}, align 8")
    return ok


def raw(s: State, place: Place, text: str, width: int) -> str:
    return from_memory(V(s.b, place.element, width, text), place.buffer.dtype, s.shared.target).text


def scalar_load(s: State, place: Place, p: str) -> str:
    return raw(s, place, s.b.read(f"load {place.element}, ptr {p}, align {alignment(place.element)}"), 1)


def vector_load(s: State, e: Load, place: Place, conditions: Active, point: Point, v: int) -> str:
    w, b = s.width, s.b
    t, align = vector(place.element, w), alignment(place.element)
    must, mask = scalar_part(s, conditions, point), lanes_part(s, conditions, point, v)
    if place.stride == 1:
        there, known = lane_mask(s, place, v, write=False), known_extent(s.lanes) if s.lanes else None
        p = gep(s, place.element, place.base(point, must), v * w)
        if there is not None and known is not None and mask is None:
            return raw(s, place, load_first(s, place.element, w, p, known - v * w), w)
        mask = b.both(mask, there, w)
        if mask is None:
            return raw(s, place, b.read(f"load {t}, ptr {p}, align {align}"), w)
        return raw(s, place, masked_load(s, place.element, p, mask), w)
    is_first = mask is None and must is None
    mask = b.both(mask, existing(s, v), w)
    if must is not None:
        mask = b.both(mask, splat(s, must, "i1"), w)
    p = place.base(point, None)
    if place.runs is not None:
        return raw(s, place, _in_pieces(s, place.element, p, pieces_of(s, place.runs, v), mask), w)
    if place.stride == -1:
        p = gep(s, place.element, p, -(v * w + w - 1))
        if mask is None:
            text = b.do(f"load {t}, ptr {p}, align {align}")
        else:
            text = masked_load(s, place.element, p, reverse(s, mask, "i1"))
        return raw(s, place, reverse(s, text, place.element), w)
    if isinstance(place.stride, int) and place.offsets is None and 1 < place.stride <= NEAR:
        return raw(s, place, picked(s, place.element, gep(s, place.element, p, v * w * place.stride), place.stride, mask), w)
    near = spots(s, place, point, v)
    if near is not None:
        start, each = near
        wanted = None if mask is None else first_elements(s, each, v) if is_first else elements_of(s, place.element, each, mask)
        if mask is None or wanted is not None:
            return raw(s, place, spread(s, place.element, gep(s, place.element, p, start), each, wanted), w)
    offsets = place.offsets(point, v) if place.offsets else lane_offsets(s, place.stride, v)
    return raw(s, place, gather(s, place.element, p, offsets, mask), w)


def _in_pieces(s: State, element: str, p: str, pieces: tuple[Piece, ...], mask: str | None) -> str:
    """A vector that lies in pieces, of which the lanes in `mask` are read."""
    out = "zeroinitializer"
    for x in pieces:
        here = s.b.both(mask, lanes_between(s, x), s.width)
        assert here is not None
        out = masked_load(s, element, gep(s, element, p, s.b.add(x.at, -x.first)), here, rest=out)
    return out


def one_for_all(s: State, e: Load, place: Place, conditions: Active, point: Point) -> str:
    """The element at a place that is the same for all lanes, in every lane; it is read if some lane of some vector needs it."""
    b, total = s.b, ""
    for v in s.pieces():
        some = needed(s, conditions, point, v)
        total = b.do(f"or <{s.width} x i1> {total}, {some}") if total else some
    must = b.both(scalar_part(s, conditions, point), V(b, "i1", s.width, total).somewhere().text)
    return splat(s, scalar_load(s, place, place.base(point, must)), register(e.dtype))


def needed(s: State, conditions: Active, point: Point, v: int) -> str:
    """The lanes of vector `v` for which the conditions hold, of those that exist: others may choose a place that does not."""
    mask = s.b.both(lanes_part(s, conditions, point, v), existing(s, v), s.width)
    assert mask is not None
    return mask


def or_zero(s: State, x: str, e: Load, conditions: Active, point: Point, v: int) -> str:
    """`x` in the lanes that need it, 0 in others."""
    return zero_but(s, x, e, needed(s, conditions, point, v))


def zero_but(s: State, x: str, e: Load, mask: str) -> str:
    """`x`, elements of `e`, in the lanes of `mask`, 0 in others."""
    t, zero = vector(register(e.dtype), s.width), constant(0, register(e.dtype), s.width)
    return s.b.do(f"select <{s.width} x i1> {mask}, {t} {x}, {t} {zero}")


def gather(s: State, element: str, p: str, offsets: str, mask: str | None) -> str:
    """The elements at `offsets` from p for which the mask holds, else 0."""
    w = s.width
    pointers = s.b.pure(f"getelementptr {element}, ptr {p}, <{w} x i64> {offsets}", p, offsets)
    args = ((f"<{w} x ptr> align {alignment(element)}", pointers), (f"<{w} x i1>", mask or constant(True, "i1", w)),
            (vector(element, w), "zeroinitializer"))
    return s.b.call(vector(element, w), f"llvm.masked.gather.{suffix(element, w)}.v{w}p0", *args)


def picked(s: State, element: str, p: str, stride: int, mask: str | None) -> str:
    """The elements 0, stride, 2 stride, .. from p, one for each lane that the mask has, out of whole vectors.

    The last vector starts early, so that nothing is read behind the last element: p[w k - 1] may not exist.
    """
    w = s.width
    starts = [*range(0, w * (stride - 1), w), (w - 1) * (stride - 1)]
    t, bits = vector(element, w), f"<{w} x i1>"
    total: str | None = None
    done = 0
    for start in starts:
        q = gep(s, element, p, start)
        lanes = [i for i in range(done, w) if i * stride < start + w]
        if mask is None:
            x = s.b.do(f"load {t}, ptr {q}, align {alignment(element)}")
        else:  # the mask, spread to where the lanes' elements are
            at = {i * stride - start: i for i in lanes}
            order = ", ".join(f"i32 {at.get(j, w)}" for j in range(w))
            some = s.b.pure(f"shufflevector {bits} {mask}, {bits} zeroinitializer, <{w} x i32> <{order}>", mask)
            x = masked_load(s, element, q, some)
        order = ", ".join(f"i32 {i if i < done else w + i * stride - start if i in lanes else 0}" for i in range(w))
        total = s.b.do(f"shufflevector {t} {total or x}, {t} {x}, <{w} x i32> <{order}>")
        done += len(lanes)
    assert total is not None
    return total


def reverse(s: State, x: str, element: str) -> str:
    w = s.width
    order = ", ".join(f"i32 {w - 1 - i}" for i in range(w))
    return s.b.pure(f"shufflevector <{w} x {element}> {x}, <{w} x {element}> poison, <{w} x i32> <{order}>", x)


def transposed(s: State, place: Place, axis: Axis, rows: frozenset[str]) -> Value:
    """Squares whose unit stride runs along the rows: one vector load for each lane, then a transpose.

    Copies that do not exist are masked out of each load; a lane that does not exist repeats the last one.
    """
    squares: dict[tuple[tuple[int, ...], int, int], list[str]] = {}
    others = sorted(rows - {axis.index})
    w, lanes, known = s.width, s.lanes, known_extent(axis)
    assert lanes is not None

    def pointer(p: str, lane: int) -> str:
        """From lane to lane by one addition: offsets of their own would fill the registers."""
        if lanes.valid is None:
            return gep(s, place.element, pointer(p, lane - 1), place.stride) if lane else p
        return gep(s, place.element, p, s.b.mul(place.stride, s.b.extreme("min", lane, s.b.add(lanes.valid, -1)) if lane else 0))

    def line(p: str, block: int, height: int, lane: int) -> str:
        q = gep(s, place.element, pointer(p, lane), block * w)
        if known is not None:
            return load_first(s, place.element, height, q, known - block * w)
        assert axis.valid is not None
        mask = below(s, axis.valid, block)
        if height < w:
            mask = s.b.pure(f"shufflevector <{w} x i1> {mask}, <{w} x i1> poison, {shuffle_mask(list(range(height)))}", mask)
        return masked_load(s, place.element, q, mask, height)

    def whole(parts: list[str]) -> str:
        """What several lanes load, one after the other in a vector."""
        width = w // len(parts)
        while len(parts) > 1:
            t, order = vector(place.element, width), shuffle_mask(list(range(2 * width)))
            parts = [s.b.do(f"shufflevector {t} {a}, {t} {b}, {order}") for a, b in zip(parts[::2], parts[1::2], strict=True)]
            width *= 2
        return parts[0]

    def make(point: Point, v: int) -> str:
        key = tuple(point[a] for a in others), point[axis.index] // w, v
        if key not in squares:
            p, count = place.base({**point, axis.index: 0}, None), (axis.extent if known is None else known) - key[1] * w
            height = min(w, power_of_two(max(2, count)))
            each = [line(p, key[1], height, v * w + lane) for lane in range(w)]
            lines = [whole(each[i::height]) for i in range(height)]
            squares[key] = [raw(s, place, x, w) for x in transpose(s, lines, place.element)]
        return squares[key][min(point[axis.index] % w, len(squares[key]) - 1)]  # a copy that does not exist has any value

    return Value(place.buffer.dtype, rows, True, make)


def transpose(s: State, lines: list[str], element: str) -> list[str]:
    """w vectors of w lanes -> their columns, by log2(w) rounds of exchanging blocks of 1, 2, 4, .. lanes.

    With fewer vectors, each square of as many lanes is turned by itself. One that is not there is "poison".

    Notes   LLVM asks of each shuffle what those before it come to together, a tree as deep as there are rounds: 16 vectors of f32
            took 8 ms to compile, 64 of bytes half a second. What two rounds come to is worth knowing, so it sees these together.
    """
    w, half = s.width, 1
    t = vector(element, w)

    def shuffle(a: str, b: str, lanes: list[int]) -> str:
        return s.b.do(f"shufflevector {t} {a}, {t} {b}, <{w} x i32> <{', '.join(f'i32 {x}' for x in lanes)}>")

    while half < len(lines):
        low = [i if not i & half else w + i - half for i in range(w)]
        high = [i + half if not i & half else w + i for i in range(w)]
        new = list(lines)
        for i in range(len(lines)):
            if not i & half and lines[i] != "poison":
                new[i] = shuffle(lines[i], lines[i + half], low)
                new[i + half] = shuffle(lines[i], lines[i + half], high)
        lines, half = new, half * 2
        if half < len(lines) and half.bit_length() % 2:
            lines = [x if x == "poison" else _fenced(s, x, element) for x in lines]
    return lines


def _fenced(s: State, x: str, element: str) -> str:
    """`x`, of which LLVM does not see how it was made; no instruction."""
    t, count = vector(element, s.width), s.width * alignment(element) // 4
    words = vector("float", count)
    same = x if t == words else s.b.do(f"bitcast {t} {x} to {words}")
    out = s.b.call(words, f"llvm.arithmetic.fence.{suffix('float', count)}", (words, same))
    return out if t == words else s.b.do(f"bitcast {words} {out} to {t}")
