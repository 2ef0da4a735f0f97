"""Where a Load or Store's target lies: pointers, strides along the lanes, and the masks that go with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from polyop.codegen.llvm.builder import IMPURE
from polyop.codegen.llvm.index import atom_value, index, index_vector, rows_of, splat
from polyop.codegen.llvm.state import Point, State, Value, require_buffer
from polyop.codegen.llvm.types import Int, iota, memory
from polyop.ir.dtypes import BOOL
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Atom, Load, affine, names
from polyop.ir.loops import Buffer, Space
from polyop.ir.target import NEAR

ZEROS = 16 << 10
"""Bytes of zeros that a guarded pointer may run through before its test is taken at every access instead."""


@dataclass(slots=True)
class Place:
    """The memory that a Load names, for each copy of the rows.

    stride   elements from lane to lane: 0 if the place does not depend on the lanes
    offsets  vectors of further offsets, where the place depends on the lanes in another way
    base     the pointer of lane 0, without `offsets`
    inside   whether the computed positions lie in their dimensions, or None if none is computed
    """

    load: Load
    buffer: Buffer
    element: str
    rows: frozenset[str]
    stride: Int
    offsets: Callable[[Point, int], str] | None
    base: Callable[[Point, str | None], str]
    inside: Value | None

    @property
    def lanes(self) -> bool:
        return self.stride != 0 or self.offsets is not None


def strides(s: State, b: Buffer) -> tuple[Int, ...]:
    """Elements from slot to slot of each dimension."""
    if b.space == Space.TENSOR:
        return tuple(1 if d == b.unit else s.slot(f"{b.name}.{d}") for d in range(len(b.dims)))
    out: list[Int] = []
    step: Int = 1
    for extent, unit in reversed(b.dims):
        out.append(step)
        count = s.b.floor_div(index(s, extent + (unit - 1), {}), unit, True)
        if len(out) == 1 and b.pad > 1:
            count = s.b.mul(s.b.floor_div(s.b.add(count, b.pad - 1), b.pad, True), b.pad)
        step = s.b.mul(step, s.b.extreme("max", count, 0))
    if (b.private and not isinstance(step, int)) or b.private:
        s.env.setdefault(f"{b.name}.slots", step)
    return tuple(reversed(out))


def base_pointer(s: State, b: Buffer) -> str:
    """The address of element [0, .., 0]; of the thread's own copy, if there is one for each."""
    if b.space == Space.STACK:
        slots = prod(-(-e.const // unit) for e, unit in b.dims)
        return s.b.pure(f"alloca [{slots} x {memory(b.dtype)}], align 64 ; {b.name}")
    p = s.slot(f"{b.name}.ptr", "ptr")
    if not b.private:
        return p
    strides(s, b)
    bytes_ = s.b.mul(s.env[f"{b.name}.slots"], b.dtype.bytes_)
    rounded = s.b.mul(s.b.floor_div(s.b.add(bytes_, 63), 64, True), 64)
    return gep(s, "i8", p, s.b.mul(s.thread, rounded))


def gep(s: State, element: str, p: str, by: Int) -> str:
    return p if by == 0 else s.b.pure(f"getelementptr {element}, ptr {p}, i64 {by}", p, by)


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of an offset: an atom (or computed value) times a number of elements, which is `times` of `step`."""

    atom: Atom | Value
    factor: Int
    step: Int = 0
    times: int = 0


def locate(s: State, load: Load, computed: tuple[Value | None, ...] = ()) -> Place:
    """The place of `load`. `computed`: for each position, its value as i64, if it comes from data.

    { load[position] -> base + sum of stride * position }, split into what depends on serial loops, on the rows (the
    pointer of a copy), and on the lanes.
    """
    b = require_buffer(s.nest, load)
    lane = s.lanes.index if s.lanes else None
    const: int = 0
    terms: list[Term] = []
    vectors: list[tuple[Affine | Value, Int]] = []
    along: Int = 0
    rows: frozenset[str] = frozenset()
    inside: list[tuple[Value, Int]] = []
    for d, (position, step) in enumerate(zip(load.index, strides(s, b), strict=True)):
        extent, unit = b.dims[d]
        if not isinstance(position, Affine):
            value = computed[d]
            assert value is not None
            if unit != 1:
                raise InternalError(f"emit: {load}: a computed position in steps of {unit}")
            inside.append((value, index(s, extent, {})))
            rows |= value.rows
            if value.lanes:
                vectors.append((value, step))
            else:
                terms.append(Term(value, step))
            continue
        rows |= rows_of(s, position)
        for atom, factor in _scaled(s, position, step, unit):
            if lane is None or (atom != lane and (isinstance(atom, str) or lane not in names(affine(atom)))):
                if atom == "":
                    if isinstance(factor, int):
                        const += factor
                    else:
                        terms.append(Term("", factor))
                else:
                    terms.append(Term(atom, factor, step, position.factor(atom) if unit == 1 and isinstance(atom, str) else 0))
            elif atom == lane:
                along = s.b.add(along, factor)
            else:
                vectors.append((affine(atom), factor))

    def offsets(point: Point, v: int) -> str:
        w = s.width
        total = lane_offsets(s, along, v) if along != 0 else "zeroinitializer"
        for item, factor in vectors:
            x = item.at(point, v) if isinstance(item, Value) else index_vector(s, item, point, v)
            f = splat(s, factor)
            scaled = x if factor == 1 else s.b.pure(f"mul <{w} x i64> {x}, {f}", x, f)
            total = scaled if total == "zeroinitializer" else s.b.pure(f"add <{w} x i64> {total}, {scaled}", total, scaled)
        return total

    element = memory(b.dtype)
    base = _base(s, b, element, terms, const)
    return Place(load, b, element, rows, 0 if vectors else along, offsets if vectors else None, base, _inside(s, inside))


def run_along(s: State, x: Load, index: str) -> Int | None:
    """Elements from one step of `index` to the next, None if that is not constant."""
    b = require_buffer(s.nest, x)
    total: Int = 0
    for position, step, (_, unit) in zip(x.index, strides(s, b), b.dims, strict=True):
        if not isinstance(position, Affine):
            return None
        if index in names(position):
            if unit != 1 or any(not isinstance(a, str) and index in names(affine(a)) for a, _ in position.terms):
                return None
            total = s.b.add(total, s.b.mul(step, position.factor(index)))
    return total


def lane_offsets(s: State, stride: Int, v: int) -> str:
    """stride * lane number, for the lanes of vector `v`."""
    w = s.width
    if isinstance(stride, int):
        return iota(w, "i64", v * w * stride, stride)
    step = splat(s, stride)
    return s.b.pure(f"mul <{w} x i64> {step}, {iota(w, 'i64', v * w)}", step)


def _scaled(s: State, position: Affine, step: Int, unit: int) -> list[tuple[Atom, Int]]:
    """`position / unit * step` as (atom, factor); the constant has the atom "". """
    whole = [*position.terms, ("", position.const)] if position.const else list(position.terms)
    if unit == 1:
        return [(a, s.b.mul(step, f)) for a, f in whole]
    if isinstance(step, int) and step % unit == 0:
        return [(a, step // unit * f) for a, f in whole]
    out: list[tuple[Atom, Int]] = []
    for a, f in whole:
        if f % unit == 0:
            out.append((a, s.b.mul(step, f // unit)))
        elif isinstance(a, str) and a in s.axes:
            raise InternalError(f"emit: {a} runs in steps of 1 through a dimension with unit {unit}")
        else:
            x = s.b.whole_div(atom_value(s, a, {}), unit)
            out.append(("", s.b.mul(s.b.mul(x, f), step)))
    return out


def _base(s: State, b: Buffer, element: str, terms: list[Term], const: int) -> Callable[[Point, str | None], str]:
    """The pointer for a copy of the rows, and for a test under which it is not read.

    Loops outside the tile come first, then the row's own offset, then loops inside the tile, constants last. Where the
    test fails the pointer is that of a row of zeros, from the first loop the test does not depend on: it runs through that row
    by steps that are known, and by others, such as from channel to channel of an image, it stays.
    """
    here = s.tile_depth
    order = tuple(sorted(s.axes))
    made: dict[tuple[tuple[int, ...], str | None], str] = {}

    def base(point: Point, test: str | None) -> str:
        key = tuple(point.get(a, 0) for a in order), test
        if key in made:
            return made[key]
        p = fresh(point, test)
        if s.b.level(p) != IMPURE:  # else it may stand behind a test that does not hold where it is wanted again
            made[key] = p
        return p

    def fresh(point: Point, test: str | None) -> str:
        offset = const
        outer: list[tuple[int, Int]] = []
        own: list[tuple[int, Int]] = []
        inner: list[_Inner] = []
        window = {t.step for t in terms if isinstance(t.atom, str) and isinstance(s.env.get(t.atom), int) and 0 < t.times <= NEAR}
        for t in terms:
            if isinstance(t.atom, Value):
                found = t.atom.at(point, 0)
                inner.append(_Inner(s.b.level(s.b.mul(found, t.factor)), found, t.factor, None))
                continue
            if t.atom == "":
                by = t.factor
                outer.append((s.b.level(by), by))
                continue
            value = atom_value(s, t.atom, point)
            by = s.b.mul(value, t.factor)
            level = s.b.level(by)
            if isinstance(by, int):
                offset += by
            elif isinstance(value, int) and value >= 0 and 0 < t.times <= NEAR and t.step in window:
                own += [(s.b.level(t.step), t.step)] * (value * t.times)  # row 2 p + r of a window, whichever p and r
            elif isinstance(t.atom, str) and t.atom in s.axes:
                # from copy to copy by one addition: offsets of their own would fill the registers
                own += [(s.b.level(t.factor), t.factor)] * value if isinstance(value, int) else [(level, by)]
            elif level <= here:
                outer.append((level, by))
            else:
                top = s.limit(t.atom) if isinstance(t.atom, str) else None
                span = top * t.factor if top is not None and isinstance(t.factor, int) and t.factor >= 0 else None
                inner.append(_Inner(level, value, t.factor, span))
        p = base_pointer(s, b)
        for _, by in (*sorted(outer, key=_level), *sorted(own, key=_level)):
            p = gep(s, element, p, by)
        inner.sort(key=lambda x: x.level)
        room = (s.vectors() * s.width + abs(offset)) * b.dtype.bytes_
        if test is not None:
            at = max(s.b.level(p), s.b.level(test))
            early = (s.vectors() * s.width + sum(x.span or 0 for x in inner if x.level > at)) * b.dtype.bytes_
            if early <= ZEROS:  # the pointer, or that of zeros, then goes through the loops further in
                p = gep(s, element, p, offset)
                for x in (x for x in inner if x.level <= at):
                    p = gep(s, element, p, s.b.mul(x.value, x.factor))
                p = _or_zeros(s, p, test, early)
                for x in (x for x in inner if x.level > at):
                    stays = x.span is None
                    step = s.b.pure(f"select i1 {test}, i64 {x.factor}, i64 0", test, x.factor) if stays else x.factor
                    p = gep(s, element, p, s.b.mul(x.value, step))
                return p
        for x in inner:
            p = gep(s, element, p, s.b.mul(x.value, x.factor))
        p = gep(s, element, p, offset)
        return _or_zeros(s, p, test, room) if test else p

    return base


@dataclass(frozen=True, slots=True)
class _Inner:
    """A summand of an offset inside a tile: `value` * `factor`, known in loop `level`; at most `span`, unless that is open."""

    level: int
    value: Int
    factor: Int
    span: int | None


def _level(item: tuple[int, Int]) -> int:
    return item[0]


def _or_zeros(s: State, p: str, test: str, bytes_: int) -> str:
    s.b.text.zeros = max(s.b.text.zeros, -(-bytes_ // 64) * 64)
    return s.b.pure(f"select i1 {test}, ptr {p}, ptr @zeros", p, test)


def _inside(s: State, checks: list[tuple[Value, Int]]) -> Value | None:
    """Whether 0 <= position < extent for every computed position."""
    if not checks:
        return None
    rows = frozenset().union(*(v.rows for v, _ in checks))
    lanes = any(v.lanes for v, _ in checks)

    def make(point: Point, v: int) -> str:
        total: str | None = None
        for value, extent in checks:
            x = value.at(point, v)
            if lanes:
                x = x if value.lanes else splat(s, x)
                n = splat(s, extent)
                ok = s.b.pure(f"icmp ult <{s.width} x i64> {x}, {n}", x, n)
            else:
                ok = s.b.compare("ult", x, extent)
            total = s.b.both(total, ok, s.width if lanes else 1)
        assert total is not None
        return total

    return Value(BOOL, rows, lanes, make)
