"""Register buffers: a table of SSA values, indexed by copies of the rows, vectors of lanes and constants."""

from __future__ import annotations

from polyop.codegen.llvm.index import rows_of
from polyop.codegen.llvm.state import Point, RegKey, State, Value, require_buffer
from polyop.codegen.llvm.types import register, vector
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Affine, Load, evaluate, names
from polyop.ir.loops import Kind


def register_axes(s: State, load: Load) -> tuple[frozenset[str], bool]:
    """The rows axes that index `load`, and whether the lanes do. Raises UnsupportedError for any other index."""
    b = require_buffer(s.nest, load)
    rows: frozenset[str] = frozenset()
    lanes = False
    for position, (_, unit) in zip(load.index, b.dims, strict=True):
        if not isinstance(position, Affine):
            raise UnsupportedError(f"{load}: a register cannot be chosen by data")
        for n in names(position):
            axis = s.axes.get(n)
            if axis is None:
                raise UnsupportedError(f"{load}: registers are indexed by rows, lanes and constants, not by {n}")
            if axis.kind == Kind.LANES:
                if lanes or unit != 1 or position != Affine(((n, 1),)):
                    raise UnsupportedError(f"{load}: the lanes index {n} must stand alone")
                lanes = True
        rows |= rows_of(s, position)
    return rows, lanes


def blended_axes(s: State, load: Load) -> frozenset[str]:
    """The rows and lanes along which a store to `load` must keep what does not exist."""
    dims = s.lives.blended.get(load.source, ())
    return frozenset[str]().union(*(names(p) for d in dims if isinstance(p := load.index[d], Affine)))


def key_of(s: State, load: Load, point: Point, v: int) -> RegKey:
    """The name of one register value."""
    lanes = s.lanes.index if s.lanes else None
    at: list[int] = []
    wide = -1
    for position, (_, unit) in zip(load.index, s.nest.buffer(load.source).dims, strict=True):
        assert isinstance(position, Affine)
        name = position.name
        if name is None:
            at.append(evaluate(position, point) // unit)
        elif name == lanes:
            wide = v
            at.append(-1)
        else:
            at.append(point[name] // unit)
    return load.source, tuple(at), wide


def read_register(s: State, load: Load) -> Value:
    rows, lanes = register_axes(s, load)

    def make(point: Point, v: int) -> str:
        key = key_of(s, load, point, v)
        if key not in s.regs:
            raise InternalError(f"emit: {load} is read before it is written, at {key}")
        return s.regs[key]

    return Value(load.dtype, rows, lanes, make)


def register_type(s: State, key: RegKey) -> str:
    """The LLVM type of a register value."""
    return vector(register(s.nest.buffer(key[0]).dtype), s.width if key[2] >= 0 else 1)
