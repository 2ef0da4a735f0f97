"""Loads from tables that registers hold, see `ir/tables.py`: elements at places known from data, a vector of them at a time.

    Y[i + v] = t[X[i + v]]      the registers of t are read at the head of the function; then a few instructions for each vector

Elements of more than `REGISTERS` registers are looked up byte by byte, `LINE` lanes at once, and their bytes put together by
interleaving vectors. That takes the low and the high half of each 16 bytes, so the places are put in such an order before that
elements come out in theirs: of b bytes each, with c = 16 / b,

    { [16 l + c k + j] -> [(64 / b) k + c l + j] : 0 <= l < 4, 0 <= k < b, 0 <= j < c }
"""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place
from polyop.codegen.llvm.index import index
from polyop.codegen.llvm.loads import raw
from polyop.codegen.llvm.masked import part
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.state import Point, State, Value
from polyop.codegen.llvm.types import Int, alignment, constant, iota, shuffle_mask, suffix, vector
from polyop.ir.tables import REGISTERS, Lookup, lookup
from polyop.ir.target import LINE

LANE = 16  # bytes of which interleaving takes halves


def lookup_of(s: State, place: Place) -> Lookup | None:
    """What looks up the elements at `place`; None if registers hold no such table, or all lanes read one element."""
    if not place.buffer.table or place.offsets is None:
        return None
    return lookup(s.shared.target, alignment(place.element), place.buffer.table)


def looked_up(s: State, place: Place, row: Lookup, at: Value) -> Value:
    """The elements at the places `at`, integers of any width, in each lane; of a place outside, some element or 0."""
    found: dict[tuple[tuple[int, ...], int], str] = {}
    count, w = alignment(place.element) // row.bytes_, s.width
    bits = f"i{8 * row.bytes_}"

    def make(point: Point, v: int) -> str:
        key = tuple(point[a] for a in at.order), v
        if key not in found:
            beside = _beside(s, v, count)
            places = _joined(s, [_as(s, at, point, u, bits) if u is not None else "poison" for u in beside], bits, row.width)
            if count == 1:
                parts = [_find(s, row, _registers(s, place, row, 0), places)]
            else:
                places = _in_order(s, places, count)
                planes = [_find(s, row, _registers(s, place, row, k), places) for k in range(count)]
                parts = _interleaved(s, planes)
            for u, x in zip(beside, _cut(s, place.element, row, parts, len(beside)), strict=True):
                if u is not None:
                    found[key[0], u] = raw(s, place, x, w)
        return found[key]

    return Value(place.buffer.dtype, at.rows, True, make)


def _beside(s: State, v: int, count: int) -> list[int | None]:
    """The vectors of lanes that are looked up together with `v`: it alone; where parts of elements are, all of `LINE` lanes."""
    if count == 1:
        return [v]
    each = LINE // s.width
    return [u if u in s.pieces() else None for u in range(v // each * each, (v // each + 1) * each)]


def _as(s: State, at: Value, point: Point, v: int, bits: str) -> str:
    """Vector `v` of the places `at`, as integers of so many bits; their other bits say nothing of places inside."""
    x, have, want = at.at(point, v), at.dtype.bits, int(bits[1:])
    if have == want:
        return x
    how = "trunc" if have > want else "zext"
    return s.b.pure(f"{how} {vector(f'i{have}', s.width)} {x} to {vector(bits, s.width)}", x)


def _joined(s: State, xs: list[str], bits: str, width: int) -> str:
    """Vectors one after the other, in one of `width` lanes; what lies behind them may be anything."""
    w = s.width
    while len(xs) > 1:
        t, order = vector(bits, w), shuffle_mask([*range(2 * w)])
        xs = ["poison" if a == b == "poison" else s.b.pure(f"shufflevector {t} {a}, {t} {b}, {order}", a, b)
              for a, b in zip(xs[::2], xs[1::2], strict=True)]
        w *= 2
    if w == width:
        return xs[0]
    t, order = vector(bits, w), shuffle_mask([min(i, w) for i in range(width)])
    return s.b.pure(f"shufflevector {t} {xs[0]}, {t} poison, {order}", xs[0])


def _registers(s: State, place: Place, row: Lookup, k: int) -> list[str]:
    """The registers of the table: the elements, if they are as wide as those of `row`, or the byte `k` of each."""
    bytes_, b, n = alignment(place.element), s.b, row.width
    extent, p, out = index(s, place.buffer.dims[0][0], {}), place.base({}, None), list[str]()
    bits, wide = vector(f"i{8 * row.bytes_}", n), vector(f"i{8 * bytes_}", n)
    for first in range(0, place.buffer.table, n):
        args = ((f"ptr align {bytes_}", gep(s, place.element, p, first)), (f"<{n} x i1>", _exist(s, b.sub(extent, first), n)),
                (wide, "zeroinitializer"))
        x = b.pure_call(wide, f"llvm.masked.load.{suffix(f'i{8 * bytes_}', n)}.p0", *args)
        if wide != bits:
            x = b.pure(f"lshr {wide} {x}, {constant(8 * k, f'i{8 * bytes_}', n)}", x) if k else x
            x = b.pure(f"trunc {wide} {x} to {bits}", x)
        out.append(x)
    return out


def _exist(s: State, count: Int, n: int) -> str:
    """Which of `n` lanes are among the first `count`."""
    least = s.b.extreme("max", s.b.extreme("min", count, n), 0)
    few = least if isinstance(least, int) else s.b.pure(f"trunc i64 {least} to i8", least)
    one = s.b.pure(f"insertelement <{n} x i8> poison, i8 {few}, i64 0", few)
    many = s.b.pure(f"shufflevector <{n} x i8> {one}, <{n} x i8> poison, <{n} x i32> zeroinitializer", one)
    return s.b.pure(f"icmp ult <{n} x i8> {iota(n, 'i8')}, {many}", many)


def _find(s: State, row: Lookup, table: list[str], places: str) -> str:
    """The elements of `table`, one, two or four registers, at `places`."""
    bits, n, b = f"i{8 * row.bytes_}", row.width, s.b
    t = vector(bits, n)
    if len(table) == 1:
        return b.pure_call(t, row.one, (t, table[0]), (t, places))
    halves = [b.pure_call(t, row.two, (t, x), (t, places), (t, y)) for x, y in zip(table[::2], table[1::2], strict=True)]
    if len(halves) == 1:
        return halves[0]
    assert len(table) == REGISTERS
    further = b.pure(f"and {t} {places}, {constant(2 * n, bits, n)}", places)
    second = b.pure(f"icmp ne {t} {further}, zeroinitializer", further)
    return b.pure(f"select <{n} x i1> {second}, {t} {halves[1]}, {t} {halves[0]}", second, *halves)


def _in_order(s: State, places: str, count: int) -> str:
    """`LINE` places, in the order from which elements of `count` bytes come out in theirs."""
    c = LANE // count
    order = [LINE // count * k + c * lane + j for lane in range(LINE // LANE) for k in range(count) for j in range(c)]
    t = vector("i8", LINE)
    return s.b.pure(f"shufflevector {t} {places}, {t} poison, {shuffle_mask(order)}", places)


def _interleaved(s: State, planes: list[str]) -> list[str]:
    """The bytes of `planes` by turns, in as many vectors: of each lane of 16 bytes the low halves, then the high ones."""
    t, size, rows = vector("i8", LINE), 1, [[x] for x in planes]

    def half(a: str, b: str, at: int) -> str:
        order = [first + i for lane in range(at, LINE, LANE) for i in range(lane, lane + LANE // 2)
                 if i % size == 0 for first in (0, LINE)]
        order = [i + j for i in order for j in range(size)]
        return s.b.pure(f"shufflevector {t} {a}, {t} {b}, {shuffle_mask(order)}", a, b)

    while len(rows) > 1:
        rows = [[half(x, y, at) for x, y in zip(a, b, strict=True) for at in (0, LANE // 2)]
                for a, b in zip(rows[::2], rows[1::2], strict=True)]
        size *= 2
    return rows[0]


def _cut(s: State, element: str, row: Lookup, parts: list[str], many: int) -> list[str]:
    """`many` vectors of `element` out of what lies in `parts`, one after the other."""
    n = LINE // alignment(element)
    have, want = vector(f"i{8 * row.bytes_}", row.width), vector(element, n)
    whole = [x if have == want else s.b.pure(f"bitcast {have} {x} to {want}", x) for x in parts]
    return [part(s, element, n, whole[u * s.width // n], u * s.width % n, s.width) for u in range(many)]
