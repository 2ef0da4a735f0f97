"""Pointers: where a buffer begins, its strides, and the address of what a Load names in each copy of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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

FAR = 4096
"""Bytes of a row whose ends need not be aligned to bypass the caches; rows of 256 bytes took five times as long so."""
ASKED = 2
"""How many times as large results are that bypass the caches though they are asked for: log softmax of 8 to 20 MB takes 0.65 to
0.7 of the time if they do not, of 25 MB 1.1, of 33 MB 1.25.
"""


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
    if b.private:
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
    """Whether so much is written to `b`, or `times` that, that it does not stay in the caches anyway.

    Results that are asked for while something else is computed do not wait for memory, so more of them are worth it. Where all
    that a call reads and writes stays, so does what is written as it is read.
    """
    times *= ASKED if b.name in s.shared.asked else 1
    large = has_bytes(s, b, times * s.shared.target.stream_bytes)
    if not s.shared.target.stays or b.name not in s.shared.as_read:
        return large
    total: Int = 0
    for x in s.nest.buffers:
        if x.space == Space.TENSOR:
            total = s.b.add(total, s.b.mul(_elements(s, x), x.dtype.bytes_))
    return s.b.both(large, s.b.compare("sge", total, s.shared.target.stays)) or large


def has_bytes(s: State, b: Buffer, least: int) -> str:
    """Whether `b` has so many bytes or more."""
    return s.b.compare("sge", _elements(s, b), least // b.dtype.bytes_)


def _elements(s: State, b: Buffer) -> Int:
    elems: Int = 1
    for extent, _ in b.dims:
        elems = s.b.mul(elems, index(s, extent, {}))
    return elems


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
    order = tuple(sorted(s.axes))
    made: dict[tuple[tuple[int, ...], str | None], str] = {}
    sums = _Sums(s, terms, const)

    def base(point: Point, test: str | None) -> str:
        key = tuple(point.get(a, 0) for a in order), test
        if key in made:
            return made[key]
        p = _through(s, b, element, sums.at(point), test)
        if s.b.level(p) != IMPURE:  # else it may stand behind a test that does not hold where it is wanted again
            made[key] = p
        return p

    return base


@dataclass(frozen=True, slots=True)
class _Inner:
    """A summand of an offset inside a tile: `value` * `factor`, known in loop `level`; at most `span`, unless that is open."""

    level: int
    value: Int
    factor: Int
    span: int | None


@dataclass(slots=True)
class _Offset:
    """What lies between the beginning of a buffer and an element: `const`, and summands.

    outer   (level, elements) of loops outside the tile, and of sizes
    own     the same of the row itself
    """

    const: int
    outer: list[tuple[int, Int]] = field(default_factory=list)
    own: list[tuple[int, Int]] = field(default_factory=list)
    inner: list[_Inner] = field(default_factory=list)


class _Sums:
    """The offsets of all copies of the rows: the sum of `terms` and `const` for each."""

    def __init__(self, s: State, terms: list[Term], const: int) -> None:
        self._s, self._terms, self._const, self._here = s, terms, const, s.tile_depth
        self._window = {t.step for t in terms if isinstance(t.atom, str) and isinstance(s.env.get(t.atom), int)
                        and 0 < t.times <= NEAR}
        self._known: dict[int, tuple[Int, Int, int]] = {}  # what `_product` says where that is the same for all copies

    def at(self, point: Point) -> _Offset:
        """The one of the copy at `point`."""
        out, b = _Offset(self._const), self._s.b
        for k, t in enumerate(self._terms):
            if isinstance(t.atom, Value):
                found = t.atom.at(point, 0)
                out.inner.append(_Inner(b.level(b.mul(found, t.factor)), found, t.factor, None))
            elif t.atom == "":
                out.outer.append((b.level(t.factor), t.factor))
            else:
                self._add(out, t, t.atom, *(self._known[k] if k in self._known else self._product(k, t.atom, t.factor, point)))
        out.inner.sort(key=lambda x: x.level)
        return out

    def _product(self, k: int, atom: Atom, factor: Int, point: Point) -> tuple[Int, Int, int]:
        """The value of a term's atom, that times its factor, and in which loop this is known."""
        s = self._s
        value = atom_value(s, atom, point)
        by = s.b.mul(value, factor)
        found = value, by, s.b.level(by)
        if found[2] != IMPURE and not names(Affine(((atom, 1),))) & s.axes.keys():
            self._known[k] = found
        return found

    def _add(self, out: _Offset, t: Term, atom: Atom, value: Int, by: Int, level: int) -> None:
        s = self._s
        if isinstance(by, int):
            out.const += by
        elif isinstance(value, int) and value >= 0 and 0 < t.times <= NEAR and t.step in self._window:
            out.own += [(s.b.level(t.step), t.step)] * (value * t.times)  # row 2 p + r of a window, whichever p and r
        elif isinstance(atom, str) and atom in s.axes:
            # from copy to copy by one addition: offsets of their own would fill the registers
            out.own += [(s.b.level(t.factor), t.factor)] * value if isinstance(value, int) else [(level, by)]
        elif level <= self._here:
            out.outer.append((level, by))
        else:
            top = s.limit(atom) if isinstance(atom, str) else None
            span = top * t.factor if top is not None and isinstance(t.factor, int) and t.factor >= 0 else None
            out.inner.append(_Inner(level, value, t.factor, span))


def _through(s: State, b: Buffer, element: str, by: _Offset, test: str | None) -> str:
    """The address so far from the beginning of `b`, or of zeros where `test` does not hold."""
    p = base_pointer(s, b)
    for _, elems in (*sorted(by.outer, key=_level), *sorted(by.own, key=_level)):
        p = gep(s, element, p, elems)
    if test is not None:
        at = max(s.b.level(p), s.b.level(test))
        early = (s.vectors() * s.width + sum(x.span or 0 for x in by.inner if x.level > at)) * b.dtype.bytes_
        if early <= ZEROS:  # the pointer, or that of zeros, then goes through the loops further in
            p = gep(s, element, p, by.const)
            for x in (x for x in by.inner if x.level <= at):
                p = gep(s, element, p, s.b.mul(x.value, x.factor))
            p = _or_zeros(s, p, test, early)
            for x in (x for x in by.inner if x.level > at):
                stays = x.span is None
                step = s.b.pure(f"select i1 {test}, i64 {x.factor}, i64 0", test, x.factor) if stays else x.factor
                p = gep(s, element, p, s.b.mul(x.value, step))
            return p
    for x in by.inner:
        p = gep(s, element, p, s.b.mul(x.value, x.factor))
    p = gep(s, element, p, by.const)
    room = (s.vectors() * s.width + abs(by.const)) * b.dtype.bytes_
    return _or_zeros(s, p, test, room) if test else p


def _level(item: tuple[int, Int]) -> int:
    return item[0]


def _or_zeros(s: State, p: str, test: str, bytes_: int) -> str:
    s.b.text.zeros = max(s.b.text.zeros, -(-bytes_ // 64) * 64)
    return s.b.pure(f"select i1 {test}, ptr {p}, ptr @zeros", p, test)
