"""Elements that lie by turns: where what fills the gaps between lanes is needed too, whole vectors are taken apart and woven.

    X[3v + f]        with f in [0, 3): three vectors, of which the steps of a rows loop have every third element
    Y[3v + f] = ..   the vectors of the steps, by turns in three that lie one after the other
    X[2v], X[2v + 1] both in the open body: two vectors, of which each has every second element, read or written
    for c in [0, 3) { .. X[3v + c] .. }     written out, so that the three vectors are read once

All that lies between two lanes is some step's, or read anyway, so that nothing else is read or written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyop.codegen.cpu.certain import at_known, certain_reads, first_of_run, run_of, turns_of
from polyop.codegen.llvm.addresses import Place, locate
from polyop.codegen.llvm.index import existing
from polyop.codegen.llvm.loads import raw
from polyop.codegen.llvm.masked import masked_load
from polyop.codegen.llvm.pointers import gep, strides
from polyop.codegen.llvm.reach import row_stride
from polyop.codegen.llvm.state import Axis, Point, State, Value
from polyop.codegen.llvm.types import alignment, shuffle_mask, vector
from polyop.ir.expr import Affine, Load, affine, walk
from polyop.ir.loops import For, Node, Space, Store, stores
from polyop.ir.target import NEAR


def between(s: State, place: Place) -> Axis | None:
    """The rows axis whose steps fill the gaps between the lanes of `place`; None if they do not."""
    step = _gap(s, place)
    return next((a for a in s.rows if a.extent == step and a.valid is None and row_stride(s, place, a) == 1), None)


def read_by_turns(s: State, place: Place, axis: Axis, rows: frozenset[str]) -> Value:
    """What lies at `place`, whose gaps the steps of `axis` fill: read once for all of them."""
    def make(point: Point, v: int) -> str:
        return _taken_apart(s, place, place.base({**point, axis.index: 0}, None), v)[point[axis.index]]

    return Value(place.buffer.dtype, rows, True, make)


def read_beside(s: State, place: Place) -> Value | None:
    """What lies at `place`, whose gaps other reads fill that run anyway: read once for all of them. None if they do not."""
    known = {n: affine(x) for n, x in s.env.items() if isinstance(x, int)}
    step, found = _step(s, place), run_of(at_known(place.load, known))
    if step is None or found is None:
        return None
    if any(x.target.source == place.load.source for body in s.certain for x in stores(body)):
        return None  # a row may read what another one wrote
    run, number = found
    rows = [(a.index, range(a.extent)) for a in s.rows if a.valid is None and a.extent <= NEAR]
    numbers = frozenset[int]().union(*(certain_reads(s.nest, body, rows, known).get(run, ()) for body in s.certain))
    first = first_of_run(numbers, number, step)
    if first is None:
        return None
    start = locate(s, replace(place.load, index=(*run[1], run[2] + first)))

    def make(point: Point, v: int) -> str:
        return _taken_apart(s, start, start.base(point, None), v)[number - first]

    return Value(place.buffer.dtype, place.rows, True, make)


def takes_turns(s: State, n: For) -> bool:
    """Whether the iterations of the serial loop `n` read what lies by turns between lanes: all together read whole vectors."""
    turns = turns_of(n)
    if s.lanes is None or s.active or turns < 2:
        return False
    reads = [x for y in stores(n.body) for x in walk(y.expr) if isinstance(x, Load) and not x.guard and run_of(x) is not None]
    in_memory = [x for x in reads if s.nest.buffer(x.source).space != Space.REG]
    along = [x for x in in_memory if isinstance(x.index[-1], Affine) and x.index[-1].factor(n.index) == 1]
    return any(_step(s, locate(s, x)) == turns for x in along)


def by_turns(s: State, body: Sequence[Node]) -> Iterator[tuple[Node, ...]]:
    """The nodes of `body` one by one, but for stores that fill each other's gaps between lanes: these together, by place."""
    at = 0
    while at < len(body):
        together = _filling(s, body[at:]) or (body[at],)
        yield together
        at += len(together)


def _filling(s: State, body: Sequence[Node]) -> tuple[Store, ...]:
    """The stores that `body` begins with, if they fill each other's gaps; () if they do not.

    None of them reads what another one writes, so that all may be computed before any is written.
    """
    match body:
        case (Store(target=first), Store(target=Load(source=source)), *_) if s.lanes is not None and source == first.source:
            pass
        case _:
            return ()
    found = run_of(first)
    if s.active or found is None or s.nest.buffer(source).space == Space.REG:
        return ()
    place = locate(s, first)
    step = _step(s, place)
    if step is None:
        return ()
    several = {}
    for n in body[:step]:
        if not isinstance(n, Store) or n.reduce is not None or source in {e.source for e in walk(n.expr) if isinstance(e, Load)}:
            return ()
        where = run_of(n.target) if n.target.source == source else None
        if where is None or where[0] != found[0]:
            return ()
        several[where[1]] = n
    ends = min(several), max(several)
    return tuple(several[k] for k in sorted(several)) if len(several) == step == ends[1] - ends[0] + 1 else ()


def _gap(s: State, place: Place) -> int | None:
    """The elements from lane to lane of `place`, if these are few and more than one."""
    step = place.stride
    is_near = s.lanes is not None and place.offsets is None and isinstance(step, int) and 1 < step <= NEAR
    return step if is_near and isinstance(step, int) else None


def _step(s: State, place: Place) -> int | None:
    """The same, if they lie along the last position."""
    step = _gap(s, place)
    return step if step and strides(s, place.buffer)[-1] == 1 and place.buffer.dims[-1][1] == 1 else None


def _taken_apart(s: State, place: Place, p: str, v: int) -> list[str]:
    """The elements 0, 1, .. of each lane of vector `v` from p on, as many as lie between two lanes of `place`."""
    count, t, mask = place.stride, vector(place.element, s.width), existing(s, v)
    assert isinstance(count, int)
    key = place.load.source, p, mask or "", count, v
    if key not in s.apart:
        at = [gep(s, place.element, p, (v * count + k) * s.width) for k in range(count)]
        whole = f"align {alignment(place.element)}"
        found = [masked_load(s, place.element, q, m) if m else s.b.do(f"load {t}, ptr {q}, {whole}")
                 for q, m in zip(at, spread_masks(s, mask, count), strict=True)]
        s.apart[key] = [raw(s, place, x, s.width) for x in apart(s, place.element, found)]
    return s.apart[key]


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
