"""Copies that lay several steps of a rows loop side by side in each lane, as dot products want them.

    T[.., v, f] = A[f, v]                      the vectors of a lane's steps are woven into one
    T[.., k - k mod 4, v, k mod 4] = A[v, k]   they lie side by side already: squares of words are transposed
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.llvm.addresses import Place, locate
from polyop.codegen.llvm.convert import to_memory
from polyop.codegen.llvm.expressions import operand
from polyop.codegen.llvm.index import existing, splat
from polyop.codegen.llvm.loads import transpose
from polyop.codegen.llvm.masked import store_vector
from polyop.codegen.llvm.pointers import gep, strides
from polyop.codegen.llvm.repeat import points, row_exists
from polyop.codegen.llvm.state import Active, Axis, Point, State, Value
from polyop.codegen.llvm.types import Int, alignment, shuffle_mask, suffix, vector
from polyop.ir.expr import Affine, Load, affine, evaluate, names
from polyop.ir.loops import Space, Store

WORD = 4  # bytes of a lane


@dataclass(frozen=True, slots=True)
class Weave:
    """`steps` of `axis` lie side by side in each lane; `groups`: where the first of each so many steps lies, in elements."""

    axis: Axis
    steps: int
    groups: tuple[int, ...]


def weave(s: State, n: Store, place: Place, conditions: Active) -> Weave | None:
    """How the steps of a rows loop fill the gaps between the lanes of the target of `n`; None if they do not."""
    steps = place.stride
    if n.reduce is not None or conditions or s.lanes is None or place.offsets is not None or n.stream:
        return None
    if not isinstance(steps, int) or steps < 2 or steps * alignment(place.element) != WORD:
        return None
    for axis in s.rows:
        at = offsets_along(s, n.target, axis)
        if at is not None and axis.extent % steps == 0 and all(x == at[i - i % steps] + i % steps for i, x in enumerate(at)):
            return Weave(axis, steps, at[::steps])
    return None


def offsets_along(s: State, x: Load, axis: Axis) -> tuple[int, ...] | None:
    """Elements from the first step of `axis` to each, None if they are not constant."""
    b = s.nest.buffer(x.source)
    total = [0] * axis.extent
    for position, step, (_, unit) in zip(x.index, strides(s, b), b.dims, strict=True):
        if not isinstance(position, Affine):
            return None
        own = tuple((a, f) for a, f in position.terms if axis.index in names(affine(a)))
        if not own:
            continue
        if not isinstance(step, int) or any(names(affine(a)) != {axis.index} for a, _ in own):
            return None
        for i in range(axis.extent):
            at = evaluate(Affine(own), {axis.index: i})
            if at % unit:
                return None
            total[i] += at // unit * step
    return tuple(total)


def write_woven(s: State, n: Store, x: Value, place: Place, w: Weave) -> None:
    """Carry out `n`: a vector of words for each group of steps."""
    s.forget(n.target.source)
    source = _side_by_side(s, n, w)
    others = tuple(a for a in s.rows if a is not w.axis)
    for point in points(s, place.rows - {w.axis.index}):
        first = {**point, w.axis.index: 0}
        exists = row_exists(s, others, point)
        for v in range(s.vectors()):
            mask = existing(s, v)
            if exists is not None:
                mask = s.b.both(mask, splat(s, exists, "i1"), s.width)
            square = _square(s, source, w, first, v) if source else None
            for g in range(len(w.groups)):
                raw = square[g] if square else _woven(s, x, place, w, point, v, g)
                p = gep(s, place.element, place.base(first, None), w.groups[g] + v * s.width * w.steps)
                _write(s, place, w, raw, p, g, mask)


def _side_by_side(s: State, n: Store, w: Weave) -> Place | None:
    """The place that is copied, if the steps lie side by side there too, as many words as a vector has lanes."""
    e = n.expr
    if len(w.groups) != s.width or not isinstance(e, Load) or e.guard or not all(isinstance(p, Affine) for p in e.index):
        return None
    b = s.nest.buffer(e.source)
    if b.space == Space.REG or b.dtype != s.nest.buffer(n.target.source).dtype:
        return None
    if offsets_along(s, e, w.axis) != tuple(range(w.axis.extent)):
        return None
    place = locate(s, e, (None,) * len(e.index))
    return place if place.lanes and place.offsets is None else None


def _square(s: State, source: Place, w: Weave, first: Point, v: int) -> list[str]:
    """One load for each lane, as many words as there are lanes; then a transpose. A lane that does not exist repeats the last."""
    lanes, whole = s.lanes, s.width * w.steps
    assert lanes is not None
    t, words, align = vector(source.element, whole), vector("i32", s.width), alignment(source.element)
    start = source.base(first, None)
    lines: list[str] = []
    for lane in range(v * s.width, (v + 1) * s.width):
        at = lane if lanes.valid is None or lane == 0 else s.b.extreme("min", lane, s.b.add(lanes.valid, -1))
        p = gep(s, source.element, start, s.b.mul(source.stride, at))
        if w.axis.valid is None:
            raw = s.b.do(f"load {t}, ptr {p}, align {align}")
        else:
            args = ((f"ptr align {align}", p), (f"<{whole} x i1>", _below(s, whole, 1, w.axis.valid)), (t, "zeroinitializer"))
            raw = s.b.call(t, f"llvm.masked.load.{suffix(source.element, whole)}.p0", *args)
        lines.append(s.b.do(f"bitcast {t} {raw} to {words}"))
    return [s.b.do(f"bitcast {words} {x} to {t}") for x in transpose(s, lines, "i32")]


def _woven(s: State, x: Value, place: Place, w: Weave, point: Point, v: int, g: int) -> str:
    """The vectors of a group's steps in one: 0 with 2 and 1 with 3, then both, so that the order in the end is 0 1 2 3."""
    rows = [to_memory(operand(s, x, {**point, w.axis.index: g * w.steps + f}, v, True), place.buffer.dtype, s.shared.target).text
            for f in range(w.steps)]
    while len(rows) > 1:
        half, long = len(rows) // 2, s.width * w.steps // len(rows)
        t, mixed = vector(place.element, long), shuffle_mask([i // 2 + long * (i % 2) for i in range(2 * long)])
        rows = [s.b.do(f"shufflevector {t} {rows[i]}, {t} {rows[i + half]}, {mixed}") for i in range(half)]
    return rows[0]


def _write(s: State, place: Place, w: Weave, raw: str, p: str, g: int, mask: str | None) -> None:
    """Write the steps that exist of the lanes that exist."""
    b, whole = s.b, s.width * w.steps
    if mask is not None:
        wide = f"<{s.width} x i1>"
        mask = b.pure(f"shufflevector {wide} {mask}, {wide} poison, {shuffle_mask([i // w.steps for i in range(whole)])}", mask)
    if w.axis.valid is not None:
        mask = b.both(mask, _below(s, whole, w.steps, b.add(w.axis.valid, -g * w.steps)), whole)
    store_vector(s, place.element, whole, raw, p, mask)


def _below(s: State, whole: int, period: int, count: Int) -> str:
    """The places of a vector of `whole` whose number (modulo `period`, if that is more than 1) is less than `count`."""
    n = s.b.extreme("max", s.b.extreme("min", count, whole), 0)
    n32 = n if isinstance(n, int) else s.b.pure(f"trunc i64 {n} to i32", n)
    one = s.b.pure(f"insertelement <{whole} x i32> poison, i32 {n32}, i64 0", n32)
    many = s.b.pure(f"shufflevector <{whole} x i32> {one}, <{whole} x i32> poison, <{whole} x i32> zeroinitializer", one)
    numbers = "<" + ", ".join(f"i32 {i % period if period > 1 else i}" for i in range(whole)) + ">"
    return s.b.pure(f"icmp ult <{whole} x i32> {numbers}, {many}", many)
