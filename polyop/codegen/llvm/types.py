"""How dtypes look in LLVM IR: in memory, in registers, as constants, as vectors.

16-bit floats are computed and held in f32, always rounded to what the dtype can hold; bool is i1 in registers and a byte
in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

from polyop.ir.dtypes import BF16, BOOL, F16, F64, DType

Int = str | int
"""An i64: the name of an SSA value, or a constant."""


def register(t: DType) -> str:
    """The element type in which a value is held."""
    if t.is_float:
        return "double" if t == F64 else "float"
    return "i1" if t == BOOL else f"i{t.bits}"


def memory(t: DType) -> str:
    """The element type that is loaded and stored."""
    if t.is_float:
        return {"f16": "half", "bf16": "i16", "f32": "float", "f64": "double"}[t.name]
    return f"i{t.bits}"


@lru_cache(1024)
def vector(element: str, width: int) -> str:
    """`width` elements; one is a scalar."""
    return f"<{width} x {element}>" if width > 1 else element


@lru_cache(1024)
def suffix(element: str, width: int) -> str:
    """How an overloaded intrinsic spells the type: v16f32."""
    name = {"float": "f32", "double": "f64", "half": "f16", "ptr": "p0"}.get(element, element)
    return f"v{width}{name}" if width > 1 else name


def number(value: float | int | bool, element: str) -> str:
    """A scalar constant of `element`."""
    if element == "i1":
        return "true" if value else "false"
    if element == "float":
        value = narrow(float(value))
    if element in ("float", "double"):
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    bits = int(element[1:])
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def narrow(value: float) -> float:
    """`value` rounded to f32."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
        return rounded
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def constant(value: float | int | bool, element: str, width: int) -> str:
    """A constant in every lane."""
    text = number(value, element)
    return f"splat ({element} {text})" if width > 1 else text


def known(text: str, element: str) -> float | None:
    """The number that such a constant of a float is; None of what is no constant."""
    _, _, digits = text.rpartition("0x")
    if element not in ("float", "double") or text not in (f"0x{digits}", f"splat ({element} 0x{digits}"):
        return None
    return float(struct.unpack("<d", int(digits.rstrip(")"), 16).to_bytes(8, "little"))[0])


def held(value: float | int | bool, t: DType) -> float | int | bool:
    """A constant of dtype `t` as its registers hold it: 16-bit floats are rounded."""
    if t in (F16, BF16):
        return float(t.numpy.type(value))
    return value


@lru_cache(1024)
def iota(width: int, element: str = "i64", start: int = 0, step: int = 1) -> str:
    """The constant vector start, start + step, .."""
    return "<" + ", ".join(f"{element} {start + step * i}" for i in range(width)) + ">"


def constants(values: Iterable[int], element: str = "i64") -> str:
    """The constant vector of `values`."""
    return "<" + ", ".join(f"{element} {x}" for x in values) + ">"


def shuffle_mask(lanes: list[int]) -> str:
    return f"<{len(lanes)} x i32> <" + ", ".join(f"i32 {i}" for i in lanes) + ">"


def constant_mask(chosen: Iterable[bool]) -> str:
    """A constant mask, a bit for each lane."""
    return "<" + ", ".join(f"i1 {'true' if x else 'false'}" for x in chosen) + ">"


def is_constant(mask: str) -> bool:
    """Whether `mask` is one of those, and no name of what is known in the call."""
    return mask.startswith("<")


def opposite(mask: str) -> str:
    """The constant mask that has the lanes which `mask`, another one, has not."""
    return constant_mask(lane.endswith("false") for lane in mask.strip("<>").split(", "))


def alignment(element: str) -> int:
    """The bytes that an element in memory is aligned to."""
    return {"float": 4, "double": 8, "half": 2}.get(element) or int(element[1:]) // 8
