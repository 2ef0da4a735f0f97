"""Squares of which only two to four lanes, or rows, exist, and these side by side: pixels of three colours.

    Y[p, v] = X[v, p]  with v in [0, 3)      three vectors of X are woven into three of Y, which lie one after the other
    Y[p, v] = X[v, p]  with p in [0, 3)      three vectors of X that lie one after the other are pulled apart

A whole square is otherwise transposed for it, and written in short pieces: pictures of 224 x 224 x 3 took 3.5 times as long. How
many exist is known only in the call: the code asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from polyop.codegen.llvm.addresses import Place, locate
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.reach import row_stride, transposable
from polyop.codegen.llvm.state import Active, Axis, State
from polyop.codegen.llvm.types import Int, alignment, vector
from polyop.codegen.llvm.woven import chosen
from polyop.ir.expr import Load, is_computed
from polyop.ir.loops import Space, Store

COUNTS = (2, 3, 4)


@dataclass(frozen=True, slots=True)
class Few:
    """A square that is copied: `axis` are its rows, along which the source has unit stride, as the target has along the lanes."""

    source: Place
    target: Place
    axis: Axis
    lanes: Axis


def square_of(s: State, n: Store, target: Place, conditions: Active) -> Few | None:
    """The square that `n` copies, if some of it may be missing; None if it copies none."""
    e, lanes = n.expr, s.lanes
    if not isinstance(e, Load) or e.guard or any(map(is_computed, e.index)) or conditions or n.reduce is not None:
        return None
    if lanes is None or lanes.extent != s.width or len(s.rows) != 1 or target.stride != 1 or target.inside is not None:
        return None
    if s.nest.buffer(e.source).space == Space.REG or e.dtype != n.target.dtype:
        return None
    source = locate(s, e)
    axis = transposable(s, source) if source.lanes and source.offsets is None else None
    if axis is None or axis.extent != s.width or (axis.valid is None and lanes.valid is None):
        return None
    return Few(source, target, axis, lanes)


@contextmanager
def unless_few(s: State, f: Few | None) -> Iterator[None]:
    """What is written inside runs only where neither few lanes nor few rows exist, or these are not side by side."""
    step = None if f is None else row_stride(s, f.target, f.axis)
    if f is None or step is None:
        yield
        return
    done = s.b.new_label()
    for few, whole, apart in ((f.lanes, f.axis, step), (f.axis, f.lanes, f.source.stride)):
        if few.valid is None:
            continue
        for count in COUNTS:
            test = s.b.both(s.b.compare("eq", few.valid, count), s.b.compare("eq", apart, count))
            if whole.valid is not None:
                test = s.b.both(test, s.b.compare("eq", whole.valid, whole.extent))
            yes, no = s.b.new_label(), s.b.new_label()
            s.b.line(f"br i1 {test}, label %{yes}, label %{no}")
            s.label(yes)
            _woven(s, f, count) if few is f.lanes else _pulled_apart(s, f, count, step)
            s.b.line(f"br label %{done}")
            s.label(no)
    yield
    s.b.line(f"br label %{done}")
    s.label(done)


def _woven(s: State, f: Few, count: int) -> None:
    """A few vectors of the source, their elements by turns into as many of the target."""
    w = s.width
    xs = [_load(s, f.source, s.b.mul(f.source.stride, v)) for v in range(count)]
    for k in range(count):
        at = range(k * w, (k + 1) * w)
        _store(s, f.target, k * w, chosen(s, f.target.element, xs, [(i % count, i // count) for i in at]))


def _pulled_apart(s: State, f: Few, count: int, step: Int) -> None:
    """A few vectors of the source that lie one after the other, every so many elements of them into each row of the target."""
    w = s.width
    xs = [_load(s, f.source, k * w) for k in range(count)]
    for p in range(count):
        at = range(p, w * count, count)
        _store(s, f.target, s.b.mul(step, p), chosen(s, f.target.element, xs, [(i // w, i % w) for i in at]))


def _at(s: State, place: Place, by: Int) -> str:
    return gep(s, place.element, place.base({a.index: 0 for a in s.rows}, None), by)


def _load(s: State, place: Place, by: Int) -> str:
    t = vector(place.element, s.width)
    return s.b.do(f"load {t}, ptr {_at(s, place, by)}, align {alignment(place.element)}")


def _store(s: State, place: Place, by: Int, x: str) -> None:
    t = vector(place.element, s.width)
    s.b.line(f"store {t} {x}, ptr {_at(s, place, by)}, align {alignment(place.element)}")
