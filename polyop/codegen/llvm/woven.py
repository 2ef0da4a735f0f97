"""Elements that lie by turns: where steps of a rows loop fill the gaps between lanes, whole vectors are taken apart and woven.

    X[3v + f]        with f in [0, 3): three vectors, of which the steps have every third element
    Y[3v + f] = ..   the vectors of the steps, by turns in three that lie one after the other

All that lies between two lanes is some step's, so that nothing else is read or written.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyop.codegen.llvm.addresses import Place
from polyop.codegen.llvm.index import existing
from polyop.codegen.llvm.loads import raw
from polyop.codegen.llvm.masked import masked_load
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.reach import row_stride
from polyop.codegen.llvm.state import Axis, Point, State, Value
from polyop.codegen.llvm.types import alignment, shuffle_mask, vector
from polyop.ir.target import NEAR


def between(s: State, place: Place) -> Axis | None:
    """The rows axis whose steps fill the gaps between the lanes of `place`; None if they do not."""
    step = place.stride
    if s.lanes is None or place.offsets is not None or not isinstance(step, int) or not 1 < step <= NEAR:
        return None
    return next((a for a in s.rows if a.extent == step and a.valid is None and row_stride(s, place, a) == 1), None)


def read_by_turns(s: State, place: Place, axis: Axis, rows: frozenset[str]) -> Value:
    """What lies at `place`, whose gaps the steps of `axis` fill: read once for all of them."""
    read: dict[tuple[tuple[int, ...], int], list[str]] = {}
    others, count, t = sorted(rows - {axis.index}), axis.extent, vector(place.element, s.width)

    def lines(p: str, v: int) -> list[str]:
        at = [gep(s, place.element, p, (v * count + k) * s.width) for k in range(count)]
        masks = spread_masks(s, existing(s, v), count)
        whole = f"align {alignment(place.element)}"
        return [masked_load(s, place.element, q, m) if m else s.b.do(f"load {t}, ptr {q}, {whole}")
                for q, m in zip(at, masks, strict=True)]

    def make(point: Point, v: int) -> str:
        key = tuple(point[a] for a in others), v
        if key not in read:
            found = lines(place.base({**point, axis.index: 0}, None), v)
            read[key] = [raw(s, place, x, s.width) for x in apart(s, place.element, found)]
        return read[key][point[axis.index]]

    return Value(place.buffer.dtype, rows, True, make)


def spread_masks(s: State, mask: str | None, count: int) -> list[str | None]:
    """For each of `count` vectors that have the lanes of one by turns, which of its elements are of lanes in `mask`."""
    if mask is None:
        return [None] * count
    t = f"<{s.width} x i1>"
    order = [[i // count for i in range(k * s.width, (k + 1) * s.width)] for k in range(count)]
    return [s.b.pure(f"shufflevector {t} {mask}, {t} poison, {shuffle_mask(o)}", mask) for o in order]


def apart(s: State, element: str, xs: Sequence[str]) -> list[str]:
    """Vectors that lie one after the other -> every so many elements of them, from the first, the second, .. one on."""
    w, n = s.width, len(xs)
    if n % 2:
        return [chosen(s, element, xs, [(i // w, i % w) for i in range(f, n * w, n)]) for f in range(n)]
    orders = [[(i // w, i % w) for i in range(f, 2 * w, 2)] for f in (0, 1)]
    even, odd = ([chosen(s, element, xs[k:k + 2], order) for k in range(0, n, 2)] for order in orders)
    if n > 2:
        even, odd = apart(s, element, even), apart(s, element, odd)
    return [x for pair in zip(even, odd, strict=True) for x in pair]


def woven(s: State, element: str, xs: Sequence[str]) -> list[str]:
    """The elements of vectors by turns, in as many that lie one after the other: what `apart` undoes."""
    w, n = s.width, len(xs)
    if n % 2:
        return [chosen(s, element, xs, [(i % n, i // n) for i in range(k * w, (k + 1) * w)]) for k in range(n)]
    halves = [woven(s, element, xs[f::2]) for f in (0, 1)] if n > 2 else [[xs[0]], [xs[1]]]
    return [chosen(s, element, pair, [(i % 2, i // 2) for i in range(k * w, (k + 1) * w)])
            for pair in zip(*halves, strict=True) for k in (0, 1)]


def chosen(s: State, element: str, xs: Sequence[str], order: Sequence[tuple[int, int]]) -> str:
    """For each lane the element of which of `xs` it has, and of which lane of that."""
    w, t = s.width, vector(element, s.width)
    total = xs[0]
    for k, x in enumerate(xs[1:], 1):
        lanes = [w + at if which == k else (at if which == 0 else 0) if k == 1 else i for i, (which, at) in enumerate(order)]
        total = s.b.do(f"shufflevector {t} {total}, {t} {x}, {shuffle_mask(lanes)}")
    return total
