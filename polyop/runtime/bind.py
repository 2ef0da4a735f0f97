"""The arguments of one call, bound to an Op: every size has one value, every tensor its memory, or the call is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyop.ir import spelled
from polyop.ir.dtypes import DType
from polyop.ir.expr import evaluate, expr_names, names
from polyop.ir.op import Op, Param, Tensor
from polyop.ir.updates import in_place
from polyop.runtime import arrays
from polyop.runtime.arrays import View, refuse
from polyop.runtime.layout import dense

MOST = 1 << 40  # no memory has so many elements; a position with factors of up to 2**20 still has bits to spare


@dataclass(frozen=True, slots=True)
class Bound:
    """What a kernel of `op` needs: values of sizes and scalars by name, views of inputs and outputs by name.

    results   what the caller gets back, in the order of the Op's outputs
    sources   for each size, the parameter that gave it its value
    home      where new arrays of a call on a GPU come from (gpu/home.py); None: the call is one for the CPU
    said      the same call as its text has it, where this one has some dimensions as one
    """

    op: Op
    sizes: dict[str, int]
    scalars: dict[str, Any]
    views: dict[str, View]
    results: tuple[Any, ...]
    sources: dict[str, str]
    home: Any = None
    said: Bound | None = None

    @property
    def value(self) -> Any:
        """What the call returns: the result, or a tuple of several."""
        return self.results[0] if len(self.results) == 1 else self.results


def bind(op: Op, arguments: Mapping[str, Any], out: Any = None) -> Bound:
    """Arguments by name (those of `inout` parameters under the name of the Op's input), checked against `op`.

    Outputs are allocated in the kind of the first array argument unless `out` gives them: one array, or a tuple.

    Raises CallError; UnsupportedError for arrays of a GPU whose driver cannot be used.
    """
    views = {t.name: _input(t, arguments[t.name]) for t in op.inputs}
    first, home = _home(views, out)
    if home is not None or any(v.device is not None for v in views.values()):
        views = _gathered(views, first, home)
    sizes, sources, scalars = _integers(op, arguments)
    _sizes(op, views, sizes, sources)
    _facts(op, sizes, sources)
    updated = {o: i for i, o in op.updates}
    for o, i in updated.items():
        _writeable(i, views[i])
        views[o] = views[i]
    fresh = [t for t in op.outputs if t.name not in updated]
    given = _given(op, fresh, out)
    kind = home or next((views[t.name].kind for t in op.inputs if views[t.name].kind != "numpy" or views[t.name].shape), "numpy")
    results: dict[str, Any] = {o: views[o].owner for o in updated}
    for t in fresh:
        shape = _shape(op, t, sizes, sources)
        if given is None:
            results[t.name], at = arrays.empty(shape, t.dtype, kind)
            views[t.name] = View(at, shape, dense(shape), t.dtype, True, results[t.name], kind, device=home and home.device)
        else:
            results[t.name] = given[t.name]
            views[t.name] = _output(t, given[t.name], shape)
            if home is not None or views[t.name].device is not None:
                _together("out", views[t.name], first, home)
    _disjoint(op, views, [t.name for t in fresh] if given else [], updated)
    views.update({i: _set_aside(views[i], home) for i in updated.values() if i not in in_place(op)})
    return Bound(op, sizes, scalars, views, tuple(results[t.name] for t in op.outputs), sources, home)


# --- devices -------------------------------------------------------------------------------------------------------


def _home(views: Mapping[str, View], out: Any) -> tuple[str, Any]:
    """The first array of a call by name, and where it comes from if it lies on a GPU, else None; a plain number lies nowhere."""
    for name, v in views.items():
        if not _is_number(v):
            return name, v.kind if v.device is not None else None
    for value in (out if isinstance(out, tuple | list) else (out,)) if out is not None else ():
        if not isinstance(value, bool | int | float | np.generic):
            v = arrays.view(value, "out")
            return "out", v.kind if v.device is not None else None
    return "", None


def _gathered(views: Mapping[str, View], first: str, home: Any) -> dict[str, View]:
    """All views on the device of `home`: numbers go along, arrays must be there."""
    for name, v in views.items():
        _together(name, v, first, home)
    if not any(map(_is_number, views.values())):
        return dict(views)
    from polyop.runtime.gpu import moves as gpu  # imported already: there is an array of a GPU

    return {n: gpu.lifted(v, home) if _is_number(v) else v for n, v in views.items()}


def _together(name: str, v: View, first: str, home: Any) -> None:
    here = None if home is None else home.device
    if v.device != here and not _is_number(v):
        raise refuse("E608", f"`{name}` is on {v.device or 'the CPU'} and `{first}` on {here or 'the CPU'}; "
                             "expected all arrays of a call on one device")


def _is_number(v: View) -> bool:
    return not v.shape and isinstance(v.owner, bool | int | float | np.generic)


def _set_aside(v: View, home: Any) -> View:
    """A copy of `v`, which is about to be overwritten."""
    if home is None:
        return arrays.snapshot(v)
    from polyop.runtime.gpu import moves as gpu

    return gpu.snapshot(v, home)


# --- inputs --------------------------------------------------------------------------------------------------------


def _input(t: Tensor, value: Any) -> View:
    if t.shape and isinstance(value, bool | int | float):
        raise refuse("E608", f"`{t.name}` is {arrays.shown(value)}; expected an array of {_count(len(t.shape), 'dimension')}")
    v = arrays.view(value, t.name, t.dtype if not t.shape else None)
    _dtype(t, v.dtype, value)
    _rank(t, v.shape)
    return v


def _dtype(t: Tensor, got: DType, value: Any) -> None:
    if got != t.dtype:
        hint = f"convert it first: {arrays.converted(t.name, value, t.dtype)}"
        raise refuse("E602", f"`{t.name}` is {t.dtype}, got {got}", hint)


def _rank(t: Tensor, shape: tuple[int, ...]) -> None:
    if len(shape) != len(t.shape):
        dims = ", ".join(map(spelled.extent, t.shape))
        raise refuse("E603", f"`{t.name}` has {_count(len(t.shape), 'dimension')}{f' [{dims}]' if dims else ''}, "
                             f"got {_count(len(shape), 'dimension')}: shape {shape}")


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _integers(op: Op, arguments: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, str], dict[str, Any]]:
    sizes: dict[str, int] = {}
    sources: dict[str, str] = {}
    scalars: dict[str, Any] = {}
    for p in op.params:
        value = plain(p, arguments[p.name])
        if p.is_size:
            if value < 0:
                raise refuse("E609", f"`{p.name}` is {value}; a size is at least 0")
            if value > MOST:
                raise refuse("E609", f"`{p.name}` is {value}; a size is at most 2**40")
            sizes[p.name], sources[p.name] = int(value), p.name
        else:
            scalars[p.name] = value
    return sizes, sources, scalars


def plain(p: Param, value: Any) -> Any:
    """A scalar argument as a NumPy number of the parameter's dtype; arrays of rank 0 are numbers too.

    value   None stands for the default, which the caller does not know where it follows from consts

    Raises CallError, if it does not fit.
    """
    value = p.default if value is None else value
    if arrays.is_torch(value) or isinstance(value, np.ndarray | np.generic):
        shape = tuple(value.shape)
        if shape:
            raise refuse("E609", f"`{p.name}` is a number of dtype {p.dtype}, got an array of shape {shape}")
        value = value.item()
    elif hasattr(value, "__index__") and not isinstance(value, bool | int):
        value = value.__index__()
    if not isinstance(value, bool | int | float):
        raise refuse("E609", f"`{p.name}` is a number of dtype {p.dtype}, got a {type(value).__name__}")
    return arrays.number(value, p.name, p.dtype)[()]


# --- sizes ---------------------------------------------------------------------------------------------------------


def _sizes(op: Op, views: dict[str, View], sizes: dict[str, int], sources: dict[str, str]) -> None:
    """Give each size its value from the dimensions it stands alone in, then check all other extents."""
    where: dict[str, str] = {n: f"the argument `{n}`" for n in sizes}
    for t in op.inputs:
        shape = views[t.name].shape
        for d, x in enumerate(t.shape):
            name = x.name
            if name is None:
                continue
            place = f"`{t.name}` (dimension {d} of {shape})"
            if name not in sizes:
                sizes[name], sources[name], where[name] = shape[d], t.name, place
            elif sizes[name] != shape[d]:
                first = f"in {where[name]}" if where[name][0] == "`" else f"as {where[name]}"
                raise refuse("E604", f"`{name}` is {sizes[name]} {first} and {shape[d]} in {place}")
    for t in op.inputs:
        for d, x in enumerate(t.shape):
            got = views[t.name].shape[d]
            if x.name is not None or got == evaluate(x, sizes):
                continue
            message = f"`{t.name}` has {got} elements in dimension {d}, expected {evaluate(x, sizes)}"
            if x.is_constant:
                raise refuse("E604", message)
            raise refuse("E604", f"{message} = {spelled.extent(x)} with {_values(names(x), sizes, sources)}")


def _values(wanted: frozenset[str], sizes: dict[str, int], sources: dict[str, str]) -> str:
    """`D = 12 (from `X`), N = 3`"""
    return ", ".join(f"{n} = {sizes[n]}" + (f" (from `{sources[n]}`)" if sources.get(n, n) != n else "") for n in sorted(wanted))


def _facts(op: Op, sizes: dict[str, int], sources: dict[str, str]) -> None:
    for t in op.outputs:
        _shape(op, t, sizes, sources)
    for fact in op.facts:
        if not spelled.holds(fact, sizes):
            used = expr_names(fact)
            values = f", and {_values(used, sizes, sources)}" if used else ""
            raise refuse("E605", f"`{op.name}` needs {spelled.condition(fact)}{values}")


def _shape(op: Op, t: Tensor, sizes: dict[str, int], sources: dict[str, str]) -> tuple[int, ...]:
    shape = tuple(evaluate(x, sizes) for x in t.shape)
    for d, n in enumerate(shape):
        if n < 0:
            x = t.shape[d]
            raise refuse("E606", f"`{t.name}` would have {n} elements in dimension {d}: "
                                 f"{spelled.extent(x)} with {_values(names(x), sizes, sources)}")
    return shape


# --- outputs -------------------------------------------------------------------------------------------------------


def _given(op: Op, fresh: list[Tensor], out: Any) -> dict[str, Any] | None:
    if out is None:
        return None
    several = out if isinstance(out, tuple | list) else (out,)
    if len(several) != len(fresh):
        wanted = ", ".join(f"`{t.name}`" for t in fresh) or "none"
        raise refuse("E607", f"`out` has {_count(len(several), 'array')}, but `{op.name}` returns "
                             f"{_count(len(fresh), 'new array')}: {wanted}")
    return {t.name: o for t, o in zip(fresh, several, strict=True)}


def _output(t: Tensor, value: Any, shape: tuple[int, ...]) -> View:
    if isinstance(value, bool | int | float | np.generic):
        raise refuse("E607", f"`out` for `{t.name}` is a number; expected an array of shape {shape} and dtype {t.dtype}")
    v = arrays.view(value, "out")
    if v.dtype != t.dtype:
        raise refuse("E607", f"`out` for `{t.name}` has dtype {v.dtype}, expected {t.dtype}")
    if v.shape != shape:
        raise refuse("E607", f"`out` for `{t.name}` has shape {v.shape}, expected {shape}")
    _writeable("out", v)
    return v


def _writeable(name: str, v: View) -> None:
    if not v.writeable:
        raise refuse("E607", f"`{name}` is read-only, and would be written")
    if overlaps_itself(v):
        raise refuse("E607", f"`{name}` overlaps itself (shape {v.shape}, strides {v.strides} in elements), and would be written",
                     f"{name}.copy()")


def overlaps_itself(v: View) -> bool:
    """Whether two positions of `v` may be one place: unless each stride exceeds all that smaller strides reach."""
    if 0 in v.shape:
        return False
    reach = 0
    for n, s in sorted(((n, abs(s)) for n, s in zip(v.shape, v.strides, strict=True) if n > 1), key=lambda p: p[1]):
        if s <= reach:
            return True
        reach += (n - 1) * s
    return False


def _disjoint(op: Op, views: dict[str, View], given: list[str], updated: dict[str, str]) -> None:
    """Refuse an output that shares memory with anything else; only an `inout` is the same memory on purpose."""
    written = [*given, *updated]
    for k, o in enumerate(written):
        others = [(f"`{i.name}`", views[i.name]) for i in op.inputs if i.name != updated.get(o)]
        others += [(f"`out` for `{p}`", views[p]) for p in written[k + 1:] if p not in updated]
        for name, other in others:
            if _share(views[o], other):
                mine = f"`{updated[o]}`" if o in updated else f"`out` for `{o}`"
                raise refuse("E607", f"{mine} overlaps {name}", "give it memory of its own")


def _share(a: View, b: View) -> bool:
    (a0, a1), (b0, b1) = a.span(), b.span()
    if a0 >= b1 or b0 >= a1:
        return False
    try:
        work: Any = 10_000  # candidate solutions; a decision this hard is taken to be yes
        return bool(np.shares_memory(arrays.as_numpy(a), arrays.as_numpy(b), max_work=work))
    except np.exceptions.TooHardError:
        return True
