"""A call's arguments by name, and the Op that they ask for: dtypes of the variables, values of the consts, the rank of `...`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

import numpy as np

from polyop.ir.dtypes import BOOL, BY_NUMPY, CLASSES, DTYPES, F32, I32, I64, DType
from polyop.ir.errors import UserError, fail
from polyop.ir.interface import Choice, Interface, Parameter
from polyop.runtime import arrays
from polyop.runtime.arrays import refuse


def named(interface: Interface, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter's value by name, in the order of the interface, defaults filled in.

    Raises CallError, if there are too many, too few, unknown ones or one twice.
    """
    plain = [p for p in interface.parameters if not p.by_name]
    if len(args) > len(plain):
        extra = [p.name for p in interface.parameters if p.by_name and p.name not in keywords]
        raise refuse("E601", f"`{interface.name}` takes {_arguments(len(plain))} by position, got {len(args)}",
                     f"pass by name: {', '.join(f'{n}=...' for n in extra)}" if extra else "")
    given = {p.name: a for p, a in zip(plain, args, strict=False)}
    for name, value in keywords.items():
        if interface.parameter(name) is None:
            raise refuse("E601", f"`{interface.name}` has no parameter `{name}`{meant(name, interface)}")
        if name in given:
            raise refuse("E601", f"`{name}` is given by position and by name")
        given[name] = value
    missing = [f"`{p.name}`" for p in interface.parameters if p.name not in given and p.required]
    if missing:
        raise refuse("E601", f"`{interface.name}` is called without {', '.join(missing)}", str(interface))
    return {p.name: given.get(p.name, p.default) for p in interface.parameters}


def _arguments(n: int) -> str:
    return f"{n} argument{'' if n == 1 else 's'}"


def meant(name: str, interface: Interface) -> str:
    close = get_close_matches(name, [p.name for p in interface.parameters], 1)
    return f"; did you mean `{close[0]}`?" if close else ""


def choose(interface: Interface, values: Mapping[str, Any]) -> Choice:
    """The Op that arguments ask for.

    Raises CallError, if they ask for two at once or for one that the operator excludes.
    """
    found: dict[str, tuple[DType, str]] = {}
    rest: Rest | None = None
    known = dict(interface.variables)
    for p in interface.tensors:
        if p.dtype not in known and "..." not in p.dims:
            continue
        v = arrays.view(values[p.name], p.name, None if p.dtype in known else DTYPES.get(p.dtype))
        if p.dtype in known:
            _agree(found, p, v.dtype, values[p.name])
        if "..." in p.dims:
            rest = _rest(rest, p, v.shape)
    for p in interface.parameters:
        if p.kind == "scalar" and p.dtype in known and p.dtype not in found:
            found[p.dtype] = (_weak(values[p.name]), p.name)
    for n, classes in interface.variables:
        allowed = members(classes)
        if n in found and found[n][0] not in allowed:
            dtype, where = found[n]
            raise refuse("E602", f"`{where}` is {dtype}, but `{n}` is one of {', '.join(map(str, allowed))}")
        if n not in found:
            raise refuse("E602", f"no argument says what `{n}` is")
    consts = tuple((p.name, const(p, values[p.name])) for p in interface.consts if values[p.name] is not None or not p.derived)
    return Choice(tuple((n, found[n][0]) for n, _ in interface.variables), consts, rest[0] if rest else None)


def members(classes: tuple[str, ...]) -> tuple[DType, ...]:
    """The dtypes that a variable may be."""
    return tuple(dict.fromkeys(t for c in classes for t in (CLASSES[c] if c in CLASSES else (DTYPES[c],))))


def _agree(found: dict[str, tuple[DType, str]], p: Parameter, got: DType, value: Any) -> None:
    first, where = found.setdefault(p.dtype, (got, p.name))
    if first != got:
        raise refuse("E602", f"`{p.dtype}` is {first} in `{where}` and {got} in `{p.name}`",
                     f"convert one: {arrays.converted(p.name, value, first)}")


Rest = tuple[int, Parameter, tuple[int, ...]]  # how many dimensions, and the parameter and shape that say so


def _rest(known: Rest | None, p: Parameter, shape: tuple[int, ...]) -> Rest:
    least = len(p.dims) - 1
    here = len(shape) - least
    if here < 0:
        raise refuse("E603", f"`{p.name}` has at least {least} dimension{'' if least == 1 else 's'} [{', '.join(p.dims)}], "
                             f"got {len(shape)}: shape {shape}")
    if known and known[0] != here:
        raise refuse("E603", f"`...` is {known[0]} dimensions in `{known[1].name}` (shape {known[2]}) "
                             f"and {here} in `{p.name}` (shape {shape})")
    return known or (here, p, shape)


def _weak(value: Any) -> DType:
    """The dtype a number brings along when no tensor says what the variable is."""
    if isinstance(value, np.generic | np.ndarray):
        return BY_NUMPY.get(np.asarray(value).dtype, F32)
    if arrays.is_torch(value):
        return arrays.torch_dtype(value.dtype) or F32
    return BOOL if isinstance(value, bool) else I64 if isinstance(value, int) else F32


def const(p: Parameter, value: Any) -> float | int | bool:
    """The value of a `const`.

    Raises CallError, if it has not the parameter's sort.
    """
    if isinstance(value, np.generic):
        value = value.item()
    dtype = DTYPES.get(p.dtype)
    if dtype is None:
        return cast("float | int | bool", value)  # the operator itself is wrong, and says so when it is instantiated
    right = isinstance(value, bool) if dtype == BOOL else not isinstance(value, bool) and isinstance(
        value, int if dtype.is_integer else int | float)
    if not right:
        wanted = "true or false" if dtype == BOOL else "an integer" if dtype.is_integer else "a number"
        raise refuse("E609", f"`{p.name}` is {wanted} and fixed when the operator is compiled, got {value!r}")
    arrays.number(value, p.name, dtype)  # refuses what is too large
    return float(value) if dtype.is_float else value


def by_names(interface: Interface, dtypes: Mapping[str, str | DType], consts: Mapping[str, Any], rank: int | None) -> Choice:
    """The Op meant by names alone, without arguments.

    dtypes   of dtype variables; if one is not given: f32, else i32, else the first that it may be
    rank     how many dimensions `...` stands for; 1 if it is not given

    Raises UserError, if there is nothing of such a name.
    """
    given, fixed = dict(dtypes), dict(consts)
    variables = []
    for name, classes in interface.variables:
        allowed = members(classes)
        wanted = given.pop(name, next((x for x in (F32, I32) if x in allowed), allowed[0]))
        dtype = DTYPES.get(wanted) if isinstance(wanted, str) else wanted
        if dtype not in allowed:
            raise fail("E602", f"`{name}` cannot be {wanted}; it is one of {', '.join(map(str, allowed))}")
        variables.append((name, dtype))
    values = []
    for p in interface.consts:
        value = fixed.pop(p.name, p.default)
        if value is None and p.derived:
            continue
        if value is None:
            raise fail("E601", f"`{p.name}` has no default; give it in `consts`")
        values.append((p.name, const(p, value)))
    unknown = [*given, *fixed]
    if unknown:
        raise _unknown(interface, unknown[0])
    rest = (1 if rank is None else rank) if interface.has_rest else None
    return Choice(tuple(variables), tuple(values), rest)


def _unknown(interface: Interface, name: str) -> UserError:
    return fail("E601", f"`{interface.name}` has no dtype variable or const `{name}`")
