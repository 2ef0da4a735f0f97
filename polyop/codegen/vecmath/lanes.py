"""What is seldom asked for: some lanes of a vector one by one, which have no vector code; or all of it by longer code."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyop.codegen.llvm.builder import IMPURE
from polyop.codegen.llvm.types import alignment
from polyop.codegen.vecmath.ops import V


def one_by_one(which: V, given: Sequence[V], found: Sequence[V], fix: Callable[[list[str]], list[str]]) -> tuple[V, ...]:
    """`found`, with what `fix` makes of the elements of `given` in the lanes where `which` is true; no such lane costs a test.

    Notes   `fix` writes the code of one lane: the names of its elements go in, those of its results come out.
    """
    b, w = which.b, which.width
    rooms = [(v, b.pure(f"alloca {v.type_}, align 64 ; one by one {k}"))
             for k, v in enumerate((which.cast("zext", "i8"), *given, *found))]
    some = b.do(f"icmp ne i{w} {b.do(f'bitcast {which.type_} {which.text} to i{w}')}, 0")
    slow, head, lane, next_, finish, done = (b.new_label() for _ in range(6))
    before = b.block
    b.line(f"br i1 {some}, label %{slow}, label %{done}")
    b.label(slow)
    for v, room in rooms:
        b.line(f"store {v.type_} {v.text}, ptr {room}, align 64")
    b.line(f"br label %{head}")
    b.label(head)
    i, after = b.fresh(), b.fresh()
    b.depth[i] = b.depth[after] = IMPURE
    b.line(f"{i} = phi i64 [ 0, %{slow} ], [ {after}, %{next_} ]")
    places = [b.do(f"getelementptr {v.element}, ptr {room}, i64 {i}") for v, room in rooms]
    flag = b.do(f"load i8, ptr {places[0]}, align 1")
    b.line(f"br i1 {b.do(f'icmp ne i8 {flag}, 0')}, label %{lane}, label %{next_}")
    b.label(lane)
    elements = [b.do(f"load {v.element}, ptr {p}, align {alignment(v.element)}") for v, p in zip(given, places[1:], strict=False)]
    for v, p, new in zip(found, places[1 + len(given):], fix(elements), strict=True):
        b.line(f"store {v.element} {new}, ptr {p}, align {alignment(v.element)}")
    b.line(f"br label %{next_}")
    b.label(next_)
    b.line(f"{after} = add i64 {i}, 1")
    b.line(f"br i1 {b.do(f'icmp slt i64 {after}, {w}')}, label %{head}, label %{finish}")
    b.label(finish)
    fixed = [b.do(f"load {v.type_}, ptr {room}, align 64") for v, room in rooms[1 + len(given):]]
    b.line(f"br label %{done}")
    b.label(done)
    return tuple(v.like(b.do(f"phi {v.type_} [ {v.text}, %{before} ], [ {x}, %{finish} ]"))
                 for v, x in zip(found, fixed, strict=True))


def by_another_way(which: V, found: Sequence[V], way: Callable[[], Sequence[V]]) -> tuple[V, ...]:
    """`found`, or what `way` makes of the whole vector if `which` is true in some lane; no such lane costs a test."""
    b = which.b
    some, slow, done, before = which.somewhere(), b.new_label(), b.new_label(), b.block
    b.line(f"br i1 {some.text}, label %{slow}, label %{done}")
    b.label(slow)
    others, end = way(), b.block
    b.line(f"br label %{done}")
    b.label(done)
    return tuple(v.like(b.do(f"phi {v.type_} [ {v.text}, %{before} ], [ {x.text}, %{end} ]"))
                 for v, x in zip(found, others, strict=True))
