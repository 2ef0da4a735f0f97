"""Frozen dataclasses as JSON and back. Decoding follows the declared types: what does not fit them is refused.

A dataclass is `{"Name": [fields in order]}` without the fields that do not count in comparisons (places in the user's
text), a tuple a list, an enum its value, a DType its name.
"""

from __future__ import annotations

import types
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from polyop.ir.dtypes import DTYPES, DType
from polyop.ir.errors import InternalError

T = TypeVar("T")


class CodecError(InternalError):
    """The data are not what an encoder wrote."""


def encode(value: Any) -> Any:
    """`value` as JSON data."""
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [encode(v) for v in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: [encode(getattr(value, f.name)) for f in _counted(type(value))]}
    raise InternalError(f"codec: no JSON for {type(value).__name__}")


def decode(cls: type[T], data: Any) -> T:
    """The value of type `cls` that `data` encodes.

    Raises CodecError, if it does not encode one.
    """
    out = _decode(cls, data)
    if not isinstance(out, cls):
        raise CodecError(f"codec: expected {cls.__name__}")
    return out


@lru_cache(maxsize=256)
def _counted(cls: type) -> tuple[Field[Any], ...]:
    return tuple(f for f in fields(cls) if f.compare)


@lru_cache(maxsize=256)
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@lru_cache(maxsize=1024)
def _shape(hint: Any) -> tuple[str, tuple[Any, ...]]:
    """What a type hint asks for: its sort, and the types inside."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return "union", args
    if origin is tuple:
        return ("list", args[:1]) if args[1:] == (Ellipsis,) else ("tuple", args)
    if hint is DType:
        return "dtype", ()
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "enum", ()
    if is_dataclass(hint):
        return "class", ()
    if hint in (int, float, str, bool, type(None)):
        return "plain", ()
    raise InternalError(f"codec: no decoder for {hint}")


def _decode(hint: Any, data: Any) -> Any:
    sort, inner = _shape(hint)
    match sort:
        case "plain":
            if type(data) is hint:
                return data
        case "dtype":
            if isinstance(data, str) and data in DTYPES:
                return DTYPES[data]
        case "enum":
            if type(data) in (str, int) and data in {m.value for m in hint}:
                return hint(data)
        case "list":
            if isinstance(data, list):
                return tuple(_decode(inner[0], x) for x in data)
        case "tuple":
            if isinstance(data, list) and len(data) == len(inner):
                return tuple(_decode(h, x) for h, x in zip(inner, data, strict=True))
        case "union":
            return _alternative(inner, data)
        case "class":
            if isinstance(data, dict) and list(data) == [hint.__name__]:
                return _build(hint, data[hint.__name__])
    raise CodecError(f"codec: {str(data)[:60]!r} is no {hint}")


def _alternative(hints: tuple[Any, ...], data: Any) -> Any:
    """A dataclass names itself; of plain types, the one that fits exactly."""
    for h in hints:
        sort, _ = _shape(h)
        if (sort == "class" and isinstance(data, dict) and list(data) == [h.__name__]) or (sort == "plain" and type(data) is h):
            return _decode(h, data)
    raise CodecError(f"codec: {str(data)[:60]!r} is none of {', '.join(map(str, hints))}")


def _build(cls: type, data: Any) -> Any:
    names = [f.name for f in _counted(cls)]
    if not isinstance(data, list) or len(data) != len(names):
        raise CodecError(f"codec: wrong number of fields for {cls.__name__}")
    hints = _hints(cls)
    values = {n: _decode(hints[n], x) for n, x in zip(names, data, strict=True)}
    try:
        return cls(**values)
    except CodecError:
        raise
    except Exception as e:  # whatever a constructor says against the values, they were not written by us
        raise CodecError(f"codec: {cls.__name__}: {e}") from e
