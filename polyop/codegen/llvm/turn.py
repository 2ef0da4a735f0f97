"""Stores whose unit stride runs along the rows, not along the lanes: squares are turned in registers.

    Y[v, p] = acc[p, v]      rows p of 7, lanes v of 16: eight vectors, the last one empty, become sixteen of up to 7 elements
"""

from __future__ import annotations

from polyop.codegen.convert import to_memory
from polyop.codegen.llvm.addresses import locate
from polyop.codegen.llvm.expressions import operand
from polyop.codegen.llvm.loads import transpose
from polyop.codegen.llvm.masked import store_vector
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.reach import row_stride
from polyop.codegen.llvm.repeat import only_if, points, row_exists
from polyop.codegen.llvm.state import State, Value
from polyop.codegen.llvm.types import Int, iota, shuffle_mask, vector
from polyop.ir.expr import Affine
from polyop.ir.integers import power_of_two
from polyop.ir.loops import Store


def store_turned(s: State, n: Store, x: Value) -> bool:
    """Carry out `n` in squares, if its place has stride 1 along rows and none that is known along the lanes."""
    lanes = s.lanes
    if n.reduce is not None or s.active or lanes is None or lanes.extent % s.width or not x.lanes:
        return False
    if not all(isinstance(p, Affine) for p in n.target.index):
        return False
    place = locate(s, n.target, (None,) * len(n.target.index))
    if place.offsets is not None or place.stride in (-1, 0, 1):
        return False
    axis = next((a for a in s.rows if row_stride(s, place, a) == 1), None)
    if axis is None:
        return False
    s.stored = {k: y for k, y in s.stored.items() if k[0].source != n.target.source}
    height = min(s.width, power_of_two(axis.extent))
    t = vector(place.element, s.width)
    others = tuple(a for a in s.rows if a is not axis)
    for point in points(s, place.rows.union(x.rows) - {axis.index}):
        start = place.base({**point, axis.index: 0}, None)
        exists = row_exists(s, others, point)
        for v in range(s.vectors()):
            for first in range(0, axis.extent, height):
                rows = [operand(s, x, {**point, axis.index: r}, v, True) for r in range(first, min(first + height, axis.extent))]
                with only_if(s, exists):
                    lines = [to_memory(r, place.buffer.dtype, s.shared.target).text for r in rows]
                    lines = transpose(s, lines + ["poison"] * (height - len(lines)), place.element)
                    mask = _first(s, height, len(rows) if axis.valid is None else s.b.add(axis.valid, -first))
                    done = s.b.new_label() if lanes.valid is not None else ""
                    for lane in range(s.width):
                        number, group = v * s.width + lane, lane - lane % height
                        order = shuffle_mask(list(range(group, group + height)))
                        line = lines[lane % height]
                        raw = line if height == s.width else s.b.do(f"shufflevector {t} {line}, {t} poison, {order}")
                        p = gep(s, place.element, start, s.b.add(s.b.mul(place.stride, number), first))
                        if lanes.valid is not None:  # from here on no lane exists
                            more = s.b.new_label()
                            s.b.line(f"br i1 {s.b.compare('sgt', lanes.valid, number)}, label %{more}, label %{done}")
                            s.label(more)
                        store_vector(s, place.element, height, raw, p, mask)
                    if done:
                        s.b.line(f"br label %{done}")
                        s.label(done)
    return True


def _first(s: State, height: int, count: Int) -> str | None:
    """The first `count` of `height` places; None if that is all of them."""
    if isinstance(count, int):
        whole = "<" + ", ".join(f"i1 {'true' if i < count else 'false'}" for i in range(height)) + ">"
        return None if count >= height else whole
    one = s.b.pure(f"insertelement <{height} x i64> poison, i64 {count}, i64 0", count)
    many = s.b.pure(f"shufflevector <{height} x i64> {one}, <{height} x i64> poison, <{height} x i32> zeroinitializer", one)
    return s.b.pure(f"icmp slt <{height} x i64> {iota(height)}, {many}", many)
