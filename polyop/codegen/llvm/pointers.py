"""Pointers: where a buffer begins, its strides, and the address of what a Load names in each copy of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from polyop.codegen.llvm.builder import IMPURE
from polyop.codegen.llvm.index import atom_value, index
from polyop.codegen.llvm.state import Point, State, Value
from polyop.codegen.llvm.types import Int, memory
from polyop.ir.expr import Affine, Atom, names
from polyop.ir.loops import Buffer, Space
from polyop.ir.target import NEAR, PAGE

ZEROS = 16 << 10
"""Bytes of zeros that a guarded pointer may run through before its test is taken at every access instead."""


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
    return gep(s, "i8", p, s.b.mul(s.thread, s.b.add(rounded, PAGE)))


def is_large(s: State, b: Buffer, times: int = 1) -> str:
    """Whether so much is written to `b`, or `times` that, that it does not stay in the caches anyway."""
    elems: Int = 1
    for extent, _ in b.dims:
        elems = s.b.mul(elems, index(s, extent, {}))
    return s.b.compare("sge", elems, times * s.shared.target.stream_bytes // b.dtype.bytes_)


def gep(s: State, element: str, p: str, by: Int) -> str:
    return p if by == 0 else s.b.pure(f"getelementptr {element}, ptr {p}, i64 {by}", p, by)


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of an offset: an atom (or computed value) times a number of elements, which is `times` of `step`."""

    atom: Atom | Value
    factor: Int
    step: Int = 0
    times: int = 0


def pointer(s: State, b: Buffer, element: str, terms: list[Term], const: int) -> Callable[[Point, str | None], str]:
    """The pointer for a copy of the rows, and for a test under which it is not read.

    Loops outside the tile come first, then the row's own offset, then loops inside the tile, constants last. Where the
    test fails the pointer is that of a row of zeros, from the first loop the test does not depend on: it runs through that row
    by steps that are known, and by others, such as from channel to channel of an image, it stays.
    """
    here = s.tile_depth
    order = tuple(sorted(s.axes))
    made: dict[tuple[tuple[int, ...], str | None], str] = {}
    window = {t.step for t in terms if isinstance(t.atom, str) and isinstance(s.env.get(t.atom), int) and 0 < t.times <= NEAR}
    known: dict[int, tuple[Int, Int, int]] = {}  # value, product and level of terms that are the same for all copies, once found

    def base(point: Point, test: str | None) -> str:
        key = tuple(point.get(a, 0) for a in order), test
        if key in made:
            return made[key]
        p = fresh(point, test)
        if s.b.level(p) != IMPURE:  # else it may stand behind a test that does not hold where it is wanted again
            made[key] = p
        return p

    def product_of(k: int, atom: Atom, factor: Int, point: Point) -> tuple[Int, Int, int]:
        value = atom_value(s, atom, point)
        by = s.b.mul(value, factor)
        found = value, by, s.b.level(by)
        if found[2] != IMPURE and not names(Affine(((atom, 1),))) & s.axes.keys():
            known[k] = found
        return found

    def fresh(point: Point, test: str | None) -> str:
        offset = const
        outer: list[tuple[int, Int]] = []
        own: list[tuple[int, Int]] = []
        inner: list[_Inner] = []
        for k, t in enumerate(terms):
            if isinstance(t.atom, Value):
                found = t.atom.at(point, 0)
                inner.append(_Inner(s.b.level(s.b.mul(found, t.factor)), found, t.factor, None))
                continue
            if t.atom == "":
                by = t.factor
                outer.append((s.b.level(by), by))
                continue
            value, by, level = known[k] if k in known else product_of(k, t.atom, t.factor, point)
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
