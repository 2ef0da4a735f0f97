"""Loads of few elements that many lanes read, see `digits.py`: they are read once, side by side, and spread over the lanes.

    X[floor((t + v)/2)], 0 <= v < 16:    eight elements from t/2 on, each in two lanes

A gather takes a cycle for each lane, and of bytes three.
"""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place
from polyop.codegen.llvm.digits import in_parts, lanes_of_vector
from polyop.codegen.llvm.index import index
from polyop.codegen.llvm.masked import masked_load
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.state import Point, State
from polyop.codegen.llvm.types import Int, alignment, constant, constant_mask, constants, is_constant, shuffle_mask

SHARED = 4
"""Lanes that read one element of which the masks are joined; where more do, they gather."""

Spots = tuple[Int, tuple[int, ...]]
"""Where the first element lies from which lanes read on, and how many elements behind it each lane reads."""


def spots(s: State, place: Place, point: Point, v: int) -> Spots | None:
    """Where vector `v` of the lanes reads: within as many elements as there are lanes, from one address on; None for all else."""
    lanes = lanes_of_vector(s, v)
    if not place.bent or not isinstance(place.along, int):
        return None
    start: Int = 0
    each = [place.along * i for i in lanes]
    for x, factor in place.bent:
        found = in_parts(s, x, lanes)
        if found is None or not isinstance(factor, int):
            return None
        start = s.b.add(start, s.b.mul(index(s, found[0], point), factor))
        each = [y + factor * more for y, more in zip(each, found[1], strict=True)]
    low = min(each)
    return (s.b.add(start, low), tuple(y - low for y in each)) if max(each) - low < s.width else None


def first_elements(s: State, each: tuple[int, ...], v: int) -> str:
    """The mask of the elements that the lanes of vector `v` read which exist, the first ones of its row."""
    assert s.lanes is not None
    room, none = _room(each), s.vectors() * s.width
    first = [v * s.width + each.index(e) if e in each else none for e in range(room)]
    valid = s.lanes.extent if s.lanes.valid is None else s.lanes.valid
    if isinstance(valid, int):
        return constant_mask(f < valid for f in first)
    n = s.b.extreme("max", s.b.extreme("min", valid, none), 0)
    one = s.b.pure(f"insertelement <{room} x i64> poison, i64 {n}, i64 0", n)
    all_ = s.b.pure(f"shufflevector <{room} x i64> {one}, <{room} x i64> poison, <{room} x i32> zeroinitializer", one)
    return s.b.pure(f"icmp sgt <{room} x i64> {all_}, {constants(first)}", all_)


def elements_of(s: State, element: str, each: tuple[int, ...], mask: str) -> str | None:
    """The mask of the elements that lanes in `mask` read, None where to find them takes longer than to gather them."""
    narrow, is_known = alignment(element) < 4, is_constant(mask)
    if max(map(each.count, each)) > SHARED or not (narrow or is_known):
        return None
    room = _room(each)
    readers = [[i for i, y in enumerate(each) if y == e] for e in range(room)]
    total, none = "", constant(False, "i1", s.width)
    for k in range(max(map(len, readers))):
        order = shuffle_mask([r[k] if k < len(r) else s.width for r in readers])
        some = s.b.pure(f"shufflevector <{s.width} x i1> {mask}, <{s.width} x i1> {none}, {order}", mask)
        total = s.b.pure(f"or <{room} x i1> {total}, {some}", total, some) if total else some
    return total


def _room(each: tuple[int, ...]) -> int:
    """Lanes of a vector, two or more, that has all elements."""
    return 1 << max(1, max(each).bit_length())


def spread(s: State, element: str, p: str, each: tuple[int, ...], mask: str | None) -> str:
    """The elements so many places behind `p`, one for each lane; only those in `mask` are read, and none behind the last."""
    count, room = max(each) + 1, _room(each)
    if mask is not None:
        t = f"<{room} x {element}>"
        x = masked_load(s, element, p, mask, room)
        return s.b.do(f"shufflevector {t} {x}, {t} poison, {shuffle_mask(list(each))}")
    size = room if room == count else room // 2
    t = f"<{size} x {element}>"

    def loaded(at: int) -> str:
        return s.b.read(f"load {t}, ptr {gep(s, element, p, at)}, align {alignment(element)}")

    if size == count:
        return s.b.do(f"shufflevector {t} {loaded(0)}, {t} poison, {shuffle_mask(list(each))}")
    order = shuffle_mask([y if y < size else y + 2 * size - count for y in each])  # of two loads, which overlap
    return s.b.do(f"shufflevector {t} {loaded(0)}, {t} {loaded(count - size)}, {order}")
