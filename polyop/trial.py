"""Calls of an operator nobody has data for: arguments by name, the rest made up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib import NumpyVersion

from polyop.dsl.names import did_you_mean
from polyop.ir.dtypes import BY_NUMPY, DTYPES, DType
from polyop.ir.errors import UserError, fail
from polyop.ir.expr import Affine, evaluate, is_computed, loads
from polyop.ir.interface import Interface, Parameter
from polyop.ir.op import Op, Tensor
from polyop.runtime import room
from polyop.runtime.estimate import work

SIZE = 64   # of what nobody gave a size, at most
POINTS = 1 << 28  # that a call has at most, as long as sizes are left that nobody gave: less than a second
STEPS = 4   # a run-time integer that nobody gave: often a number of steps in time
_DIMS = 64 if NumpyVersion(np.__version__) >= "2.0.0" else 32  # of an array of NumPy, at most
_MOST = 64 << 30  # bytes of made-up inputs, beyond which there is a mistake rather than a machine

Array = np.ndarray[Any, Any]
MakeOp = Callable[[Mapping[str, DType], Mapping[str, Any], int | None], Op]


@dataclass(frozen=True, eq=False)
class Trial:
    """One call of an operator.

    arguments   by the names that the user gave his parameters
    sizes       by name, as far as they are known before the call: all of them
    assumed     the sizes and run-time integers that nobody gave
    """

    op: Op
    interface: Interface
    arguments: dict[str, Any]
    sizes: dict[str, int]
    assumed: dict[str, int]

    @property
    def scalars(self) -> dict[str, Any]:
        """The run-time scalars by their names in the Op."""
        inner = {p.name: p.name_in_op for p in self.interface.parameters if p.kind == "scalar"}
        return {inner[n]: v for n, v in self.arguments.items() if n in inner}

    @property
    def inputs(self) -> dict[str, Array]:
        """The input arrays by their names in the Op."""
        names = {p.name: p.name_in_op for p in self.interface.tensors}
        return {names[n]: np.asarray(v) for n, v in self.arguments.items() if n in names}


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gave, sorted by what it is."""

    dtypes: dict[str, DType]
    consts: dict[str, Any]
    values: dict[str, Any]     # scalars and run-time integers
    arrays: dict[str, Array]
    rest: dict[str, Any]       # sizes, if the operator has them


def sort(interface: Interface, given: Mapping[str, Any]) -> Given:
    """`given` by kind.

    Raises UserError E910, if a value cannot be what its name stands for.
    """
    out = Given({}, {}, {}, {}, {})
    variables = dict(interface.variables)
    for name, value in given.items():
        p = interface.parameter(name)
        if name in variables:
            if value not in DTYPES:
                raise _wrong(name, "a dtype", value, f"dtypes are {', '.join(DTYPES)}")
            out.dtypes[name] = DTYPES[value]
        elif p is None:
            out.rest[name] = value
        elif p.kind == "tensor":
            if not isinstance(value, np.ndarray):
                raise _wrong(name, "the name of a .npy file", value)
            out.arrays[name] = value
        elif isinstance(value, np.ndarray | str):
            raise _wrong(name, "a number", "an array" if isinstance(value, np.ndarray) else value)
        else:
            (out.consts if p.kind == "const" else out.values)[name] = value
    for p in interface.tensors:
        if p.dtype in variables and p.name in out.arrays:
            found = BY_NUMPY.get(out.arrays[p.name].dtype)
            if found is not None:
                out.dtypes.setdefault(p.dtype, found)
    return out


def trial(interface: Interface, make: MakeOp, given: Mapping[str, Any], rank: int | None = None, seed: int = 0,
          size: int = SIZE, points: int = POINTS) -> Trial:
    """A call of the operator that `make` instantiates.

    given   by name: dtype variables, consts, numbers, arrays, sizes
    rank    how many dimensions `...` stands for; else what the arrays say, else 1
    seed    of the random inputs
    size    what every size is that nobody gave; half of it, or a quarter, .. where the call would have more than `points` else

    Raises UserError E910, if something given is wrong, and whatever `make` raises.
    """
    known = sort(interface, given)
    if rank is None and interface.has_rest:
        rank = next((known.arrays[p.name].ndim - len(p.dims) + 1 for p in interface.tensors
                     if "..." in p.dims and p.name in known.arrays), 1)
    op = make(known.dtypes, known.consts, max(rank, 0) if rank is not None else None)
    sizes, assumed = _sizes(op, interface, known, size, points)
    rng = np.random.default_rng(seed)
    arguments: dict[str, Any] = {}
    _affordable(op, sizes)
    for p in interface.parameters:
        arguments[p.name] = _argument(p, op, known, sizes, rng)
    return Trial(op, interface, {n: v for n, v in arguments.items() if v is not None}, sizes, assumed)


def _wrong(name: str, wanted: str, got: object, hint: str = "") -> UserError:
    return fail("E910", f"`{name}` is {wanted}, got {got}", hint=hint)


def _sizes(op: Op, interface: Interface, known: Given, default: int, points: int) -> tuple[dict[str, int], dict[str, int]]:
    """Every size of `op`, and those that nobody gave."""
    sizes = given_sizes(op, interface, known)
    for p in interface.tensors:
        if p.name in known.arrays:
            for d, (extent, n) in enumerate(zip(op.tensor(p.name_in_op).shape, known.arrays[p.name].shape, strict=False)):
                if extent.name is not None and sizes.setdefault(extent.name, n) != n:
                    raise fail("E910", f"`{extent.name}` is {sizes[extent.name]}, but dimension {d} of `{p.name}` has {n}")
    assumed: dict[str, int] = {}
    for p in interface.parameters:
        if p.kind == "int":
            value = known.values.get(p.name, p.default)
            if value is None:
                value = assumed[p.name] = STEPS
            if isinstance(value, bool) or not isinstance(value, int):
                raise _wrong(p.name, "an integer", value)
            sizes[p.name_in_op] = value
    missing = [name for name in op.sizes if name not in sizes]
    while default > 1 and _extent(op, sizes | dict.fromkeys(missing, default)) > points:
        default //= 2
    return sizes | dict.fromkeys(missing, default), assumed | dict.fromkeys(missing, default)


def _extent(op: Op, sizes: Mapping[str, int]) -> int:
    """Points of the steps, and elements of all tensors."""
    return work(op, sizes) + sum(prod(max(0, evaluate(e, sizes)) for e in t.shape) for t in op.tensors)


def given_sizes(op: Op, interface: Interface, known: Given) -> dict[str, int]:
    """The sizes of `op` that the user gave. Raises UserError E910, if what is left of his names is none, or no size."""
    for name, value in known.rest.items():
        if name not in op.sizes:
            own = [*op.sizes, *(p.name for p in interface.parameters), *(n for n, _ in interface.variables)]
            raise fail("E910", f"`{interface.name}` has no size or parameter `{name}`" + did_you_mean(name, own),
                       hint=str(interface))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong(name, "a size, an integer of at least 0", value)
    return dict(known.rest)


def shape(t: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of `t`. Raises UserError, if one is negative."""
    out = tuple(evaluate(e, sizes) for e in t.shape)
    if any(n < 0 for n in out):
        used = ", ".join(f"{n} = {v}" for n, v in sizes.items())
        raise fail("E910", f"`{t}` has a negative extent {min(out)} when {used}")
    return out


def _affordable(op: Op, sizes: Mapping[str, int]) -> None:
    whole = 0
    for t in (*op.inputs, *op.outputs):
        if len(t.shape) > _DIMS:
            raise fail("E910", f"`{t.name}` has {len(t.shape)} dimensions; NumPy has at most {_DIMS}")
        bytes_ = t.dtype.bytes_ * prod(shape(t, sizes))
        if bytes_ > _MOST:
            raise fail("E910", f"`{t}` would take {room.gib(bytes_)}; a trial has arrays of at most {room.gib(_MOST)}")
        whole += bytes_
    if whole > room.free():
        raise fail("E910", f"the arrays of `{op.name}` would take {room.gib(whole)}; {room.gib(room.free())} of memory are free",
                   hint=f"sizes are {', '.join(f'{n} = {v}' for n, v in sizes.items())}")


def _argument(p: Parameter, op: Op, known: Given, sizes: Mapping[str, int], rng: np.random.Generator) -> Any:
    """The value of one parameter; None leaves a const to its default."""
    match p.kind:
        case "const":
            return known.consts.get(p.name, p.default)
        case "int":
            return sizes[p.name_in_op]
        case "scalar":
            return known.values.get(p.name, 1 if p.default is None else p.default)
    if p.name in known.arrays:
        return known.arrays[p.name].copy() if p.inout else known.arrays[p.name]
    t = op.tensor(p.name_in_op)
    return sample(rng, t.dtype, shape(t, sizes), _limit(op, t.name, sizes))


def sample(rng: np.random.Generator, dtype: DType, extents: tuple[int, ...], limit: int = 8) -> Array:
    """Random elements: floats around 0, integers from 0 up to `limit` (excluded), truth values."""
    if dtype.is_float:
        wide = np.float64 if dtype.bits == 64 else np.float32
        return rng.standard_normal(extents, dtype=wide).astype(dtype.numpy, copy=False)
    if dtype.is_integer:
        return rng.integers(0, max(1, limit), extents).astype(dtype.numpy)
    return rng.random(extents) < 0.5


def _limit(op: Op, name: str, sizes: Mapping[str, int]) -> int:
    """Below what the elements of `name` must stay to be positions wherever they are used as such."""
    most: list[int] = []
    for s in op.steps:
        for x in (s.target, *loads(s.expr)):
            for position, extent in zip(x.index, op.tensor(x.source).shape, strict=True):
                if is_computed(position) and not isinstance(position, Affine) and name in _sources(position):
                    most.append(evaluate(extent, sizes))
    return min(most, default=8)


def _sources(e: Any) -> set[str]:
    return {x.source for x in loads(e)}
