"""Stores to registers; stores to memory are in `memory.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from math import prod

from polyop.codegen.llvm.dots import operands, store_dots
from polyop.codegen.llvm.expressions import condition, operand, value_of
from polyop.codegen.llvm.index import existing
from polyop.codegen.llvm.loads import lanes_part, scalar_part
from polyop.codegen.llvm.memory import store_beside, store_to_memory
from polyop.codegen.llvm.monoids import pair
from polyop.codegen.llvm.registers import blended_axes, key_of, register_axes, register_type
from polyop.codegen.llvm.repeat import across, as_scalar, is_folded, points, row_exists, rows_needed
from polyop.codegen.llvm.state import Point, RegKey, State, Value
from polyop.codegen.llvm.turn import store_turned
from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Apply, Const, Expr
from polyop.ir.loops import Space, Store


def store(s: State, n: Store) -> None:
    s.loaded = {}
    if s.nest.buffer(n.target.source).space == Space.REG and (found := conditional(n)) is not None:
        test, value = found
        keep, s.active = s.active, (*s.active, condition(s, test, value_of(s, test, s.active), True))
        _to_register(s, n, value_of(s, value, s.active))
        s.active = keep
        return
    dots = operands(s, n)
    if dots is not None:
        store_dots(s, n, dots)
        return
    x = value_of(s, n.expr, s.active)
    if s.nest.buffer(n.target.source).space == Space.REG:
        _to_register(s, n, x)
        return
    if not store_turned(s, n, x):
        store_to_memory(s, n, x)
    s.forget_reads(n.target.source)


def store_together(s: State, together: tuple[Store, ...]) -> None:
    """Carry out stores that fill each other's gaps (`woven.by_turns`)."""
    s.loaded = {}
    store_beside(s, together, tuple(value_of(s, n.expr, ()) for n in together))
    s.forget_reads(together[0].target.source)


def conditional(n: Store) -> tuple[Expr, Expr] | None:
    """The test and the value of `target reduce= test ? value : identity`, which changes nothing where the test fails.

    Not where something is added to floats: -0 + 0 is 0.
    """
    match n.expr:
        case Apply(fn="select", args=(test, value, Const(value=other))) if n.reduce is not None and test.dtype == BOOL:
            exact = n.reduce.fn in ("min", "max") or not n.target.dtype.is_float
            return (test, value) if exact and other == n.reduce.identity and value.dtype == n.target.dtype else None
    return None


def _to_register(s: State, n: Store, x: Value) -> None:
    rows, lanes = register_axes(s, n.target)
    blend, write = blended_axes(s, n.target), register_update(s, n, x)
    for point in points(s, rows_needed(s, n, x, rows)):
        if is_folded(s, n, x, lanes):
            missing = tuple(a for a in s.rows if a.index not in rows or a.index in blend)
            exists = s.b.both(row_exists(s, missing, point), scalar_part(s, s.active, point))
            key = key_of(s, n.target, point, 0)
            old = as_scalar(s, n, s.regs[key]) if key in s.regs else None
            new = across(s, n, x, point, s.active, old)
            s.regs[key] = _kept(s, key, exists, new.text)
            continue
        write(point, s.pieces() if lanes else range(1))


def register_update(s: State, n: Store, x: Value) -> Callable[[Point, Iterable[int]], None]:
    """What carries out `n`, of the value `x`, for one copy of the rows and some vectors; 0 is what is the same in all lanes."""
    rows, lanes = register_axes(s, n.target)
    blend = blended_axes(s, n.target)
    missing = tuple(a for a in s.rows if a.index not in rows or a.index in blend)
    ignored = s.lives.ignored.get(n.target.source, frozenset())
    active = tuple(c for c in s.active if not c.tests or c.tests not in ignored)
    chains = prod(a.extent for a in s.rows if a.index in rows) * (len(s.pieces()) if lanes else 1)
    waits = chains < 2 * s.shared.target.fma_chains  # two instructions on each, as long as a multiply-add

    def update(point: Point, vectors: Iterable[int]) -> None:
        exists = s.b.both(row_exists(s, missing, point), scalar_part(s, active, point))
        for v in vectors:
            key = key_of(s, n.target, point, v)
            new = operand(s, x, point, v, lanes)
            if n.reduce is not None:
                new = pair(s, n.reduce, replace(new.like(s.regs[key]), waits=waits), new, n.target.dtype)
            mask = lanes_part(s, active, point, v)
            if lanes and s.lanes and s.lanes.index in blend:
                mask = s.b.both(mask, existing(s, v), s.width)
            s.regs[key] = _kept(s, key, exists, _kept_lanes(s, key, mask, new.text))

    return update


def _kept(s: State, key: RegKey, test: str | None, new: str) -> str:
    if test is None or key not in s.regs:
        return new
    t = register_type(s, key)
    return s.b.do(f"select i1 {test}, {t} {new}, {t} {s.regs[key]}")


def _kept_lanes(s: State, key: RegKey, mask: str | None, new: str) -> str:
    if mask is None or key not in s.regs:
        return new
    t = register_type(s, key)
    return s.b.do(f"select <{s.width} x i1> {mask}, {t} {new}, {t} {s.regs[key]}")
