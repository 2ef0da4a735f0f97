"""Nests written by hand: what the GPU tests print, compile and run."""

from __future__ import annotations

from polyop.ir.dtypes import F32, DType
from polyop.ir.expr import Affine, Apply, Expr, Load, affine
from polyop.ir.loops import Buffer, For, Kind, LoopNest, Node, Space, Store
from polyop.ir.op import Monoid, builtin_monoid


def at(source: str, *index: Affine | str | int | Expr, dtype: DType = F32, guard: tuple[Affine, ...] = ()) -> Load:
    return Load(source, tuple(affine(p) if isinstance(p, str | int) else p for p in index), dtype, guard)


def call(fn: str, *args: Expr, dtype: DType | None = None) -> Apply:
    return Apply(fn, args, dtype or args[0].dtype)


def store(name: str, target: Load, expr: Expr, reduce: str | Monoid | None = None) -> Store:
    monoid = builtin_monoid(reduce, target.dtype) if isinstance(reduce, str) else reduce
    return Store(name, (), name, (), target, monoid, expr)


def loop(index: str, upper: Affine | str | int, *body: Node, lower: Affine | str | int = 0, step: int = 1,
         kind: Kind = Kind.SERIAL, extent: int | None = None) -> For:
    return For(index, affine(lower), affine(upper), body, step, kind, extent)


def parallel(index: str, upper: Affine | str | int, *body: Node, lower: Affine | str | int = 0, step: int = 1) -> For:
    return loop(index, upper, *body, lower=lower, step=step, kind=Kind.PARALLEL)


def buffer(name: str, *shape: Affine | str | int, dtype: DType = F32, space: Space = Space.TENSOR,
           unit: int | None = None) -> Buffer:
    return Buffer(name, dtype, tuple((affine(e), 1) for e in shape), space, unit)


def nest(name: str, sizes: str, buffers: tuple[Buffer, ...], *body: Node,
         scalars: tuple[tuple[str, DType], ...] = ()) -> LoopNest:
    return LoopNest(name, tuple(sizes.split()), scalars, buffers, body)
