"""Calls of an operator nobody has data for: arguments by name, the rest made up, and what the results should have been."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np

from polyop.dsl.names import did_you_mean
from polyop.ir import reference
from polyop.ir.deep import with_room
from polyop.ir.dtypes import BY_NUMPY, DTYPES, DType
from polyop.ir.errors import UserError, fail
from polyop.ir.expr import Affine, evaluate, is_computed, loads
from polyop.ir.interface import Interface, Parameter
from polyop.ir.op import Op, Tensor
from polyop.runtime.estimate import work

SIZE = 64   # of what nobody gave a size
STEPS = 4   # a run-time integer that nobody gave: often a number of steps in time
_POINTS = 100_000  # that are evaluated one by one: some seconds
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
          size: int = SIZE) -> Trial:
    """A call of the operator that `make` instantiates.

    given   by name: dtype variables, consts, numbers, arrays, sizes
    rank    how many dimensions `...` stands for; else what the arrays say, else 1
    seed    of the random inputs; size: what every size is that nobody gave

    Raises UserError E910, if something given is wrong, and whatever `make` raises.
    """
    known = sort(interface, given)
    if rank is None and interface.has_rest:
        rank = next((known.arrays[p.name].ndim - len(p.dims) + 1 for p in interface.tensors
                     if "..." in p.dims and p.name in known.arrays), 1)
    op = make(known.dtypes, known.consts, max(rank, 0) if rank is not None else None)
    sizes, assumed = _sizes(op, interface, known, size)
    rng = np.random.default_rng(seed)
    arguments: dict[str, Any] = {}
    _affordable(op, sizes)
    for p in interface.parameters:
        arguments[p.name] = _argument(p, op, known, sizes, rng)
    return Trial(op, interface, {n: v for n, v in arguments.items() if v is not None}, sizes, assumed)


def _wrong(name: str, wanted: str, got: object, hint: str = "") -> UserError:
    return fail("E910", f"`{name}` is {wanted}, got {got}", hint=hint)


def _sizes(op: Op, interface: Interface, known: Given, default: int) -> tuple[dict[str, int], dict[str, int]]:
    """Every size of `op`, and those that nobody gave."""
    sizes: dict[str, int] = {}
    for name, value in known.rest.items():
        if name not in op.sizes:
            own = [*op.sizes, *(p.name for p in interface.parameters), *(n for n, _ in interface.variables)]
            raise fail("E910", f"`{interface.name}` has no size or parameter `{name}`" + did_you_mean(name, own),
                       hint=str(interface))
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise _wrong(name, "a size, an integer of at least 0", value)
        sizes[name] = value
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
    for name in op.sizes:
        if name not in sizes:
            sizes[name] = assumed[name] = default
    return sizes, assumed


def shape(t: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of `t`. Raises UserError, if one is negative."""
    out = tuple(evaluate(e, sizes) for e in t.shape)
    if any(n < 0 for n in out):
        used = ", ".join(f"{n} = {v}" for n, v in sizes.items())
        raise fail("E910", f"`{t}` has a negative extent {min(out)} when {used}")
    return out


def _affordable(op: Op, sizes: Mapping[str, int]) -> None:
    for t in (*op.inputs, *op.outputs):
        bytes_ = t.dtype.bytes_
        for n in shape(t, sizes):
            bytes_ *= n
        if bytes_ > _MOST:
            raise fail("E910", f"`{t}` would take {_gib(bytes_)}; a trial has arrays of at most {_MOST >> 30} GiB")


def _gib(bytes_: int) -> str:
    return f"{bytes_ >> 30} GiB" if bytes_ < 1 << 80 else f"2^{bytes_.bit_length() - 1} bytes"


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


# --- comparing -----------------------------------------------------------------------------------------------------------

_EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison showed; `right` is true too if nothing could be compared, and then the text says so."""

    right: bool
    text: str

    def __str__(self) -> str:
        return self.text


class Called(Protocol):
    """What a trial calls: an Operator, or something that stands for one."""

    @property
    def interface(self) -> Interface: ...
    def __call__(self, **arguments: Any) -> Any: ...


def compared(operator: Called, make: MakeOp, given: Mapping[str, Any], rank: int | None = None, seed: int = 0) -> Outcome:
    """A call, compared with a plain evaluation in float64; if it is too large for that, at smaller sizes on random inputs."""
    call = trial(operator.interface, make, given, rank, seed)
    if work(call.op, call.sizes) <= _POINTS:
        return _compare(operator, call, "")
    kept = _without_sizes(call, given)
    for cap in (11, 7, 5, 3, 2, 1):
        sizes = {n: min(v, cap) for n, v in call.sizes.items()}
        try:
            smaller = trial(operator.interface, make, kept | sizes, _rank(call), seed)
            if work(smaller.op, smaller.sizes) <= _POINTS:
                return _compare(operator, smaller, f" at {', '.join(f'{n} = {v}' for n, v in smaller.sizes.items())}")
        except UserError:
            continue  # the operator's conditions do not allow these sizes
    return Outcome(True, "not checked: too large to evaluate element by element, and no smaller sizes are allowed")


def _compare(operator: Called, call: Trial, where: str) -> Outcome:
    inputs = {n: a.copy() for n, a in call.inputs.items()}  # a call may write into them
    got = operator(**call.arguments)
    @cache
    def plain(wide: bool) -> dict[str, Array]:
        return with_room(lambda: reference.evaluate(call.op, call.sizes, call.scalars, inputs, wide=wide))

    worst, allowed = 0.0, 0.0
    for t, x in zip(call.op.outputs, got if isinstance(got, tuple) else (got,), strict=True):
        terms = work(call.op, call.sizes) / max(1, np.asarray(x).size)
        error, limit = difference(np.asarray(x), plain(True)[t.name]), tolerance(t.dtype, terms)
        if error > limit:  # where something overflows, ties or jumps, the operator's own dtypes have the word
            error = difference(np.asarray(x), plain(True)[t.name], plain(False)[t.name])
        if error > limit:
            return Outcome(False, f"WRONG{where}: `{t.name}` is off by {error:.1e} of its greatest element, "
                                  f"where rounding explains {limit:.1e}")
        worst, allowed = max(worst, error), max(allowed, limit)
    return Outcome(True, f"right{where}: off by {worst:.1e} of the greatest element, where rounding explains {allowed:.1e}")


def _without_sizes(call: Trial, given: Mapping[str, Any]) -> dict[str, Any]:
    """Consts, scalars and dtypes of a call, without what says how large it is."""
    variables = dict(call.interface.variables)
    kept = {n: v for n, v in given.items() if not isinstance(v, np.ndarray) and n not in call.sizes}
    found = {p.dtype: call.op.tensor(p.name_in_op).dtype.name for p in call.interface.tensors if p.dtype in variables}
    return kept | found


def _rank(call: Trial) -> int | None:
    """How many dimensions `...` stood for."""
    return next((len(call.op.tensor(p.name_in_op).shape) - len(p.dims) + 1 for p in call.interface.tensors if "..." in p.dims),
                None)


def difference(got: Array, want: Array, working: Array | None = None) -> float:
    """The greatest difference, as a part of the greatest element wanted; infinite if shapes or special values disagree.

    want     in float64
    working  in the operator's own dtypes: an element may be near either. Where that is not finite, something overflowed on
             the way, and in another order it may have become another infinity or NaN.
    """
    if got.shape != want.shape:
        return float("inf")
    apart = _apart(got, want)
    if working is not None:
        overflowed = ~np.isfinite(_wide(working)) & ~np.isfinite(_wide(got))
        apart = np.where(overflowed, 0.0, np.minimum(apart, _apart(got, working)))
    if want.dtype.kind != "f":
        return float("inf") if apart.any() else 0.0
    counted = np.isfinite(want) & np.isfinite(_wide(got))
    return float(apart.max(initial=0.0) / max(1.0, float(np.abs(want[counted]).max(initial=0.0))))


def _apart(got: Array, want: Array) -> Array:
    """|got - want| of each element; infinite where only one is finite, or two infinities differ, or integers do."""
    if want.dtype.kind not in "fV":
        return np.where(got == want, 0.0, np.inf)
    a, b = _wide(got), _wide(want)
    both = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(both, np.abs(np.where(both, a, 0.0) - np.where(both, b, 0.0)), np.inf))


def _wide(a: Array) -> Array:
    return a.astype(np.float64)


def tolerance(dtype: DType, terms: float) -> float:
    """What rounding alone may do to a result that `terms` steps went into."""
    if not dtype.is_float:
        return 0.0
    stored = _EPSILON[dtype.name]
    return 16 * stored + 4 * min(stored, _EPSILON["f32"]) * terms
