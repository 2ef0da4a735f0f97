"""The element types, and how they meet in an expression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True, slots=True)
class DType:
    """An element type: `kind` is "float", "int", "uint" or "bool"; `bits` is its size in memory."""

    name: str
    kind: str
    bits: int

    def __str__(self) -> str:
        return self.name

    @property
    def bytes_(self) -> int:
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        return self.kind in ("int", "uint")

    @property
    def numpy(self) -> np.dtype[Any]:
        return _NUMPY[self.name]

    @property
    def lowest(self) -> int | float:
        """The identity of `max`: -inf, or the least integer."""
        return float("-inf") if self.is_float else -(2 ** (self.bits - 1)) if self.kind == "int" else 0

    @property
    def highest(self) -> int | float:
        """The identity of `min`: inf, or the greatest integer."""
        if self.is_float:
            return float("inf")
        return 1 if self.kind == "bool" else 2 ** (self.bits - (self.kind == "int")) - 1


F16, BF16, F32, F64 = (DType(n, "float", b) for n, b in (("f16", 16), ("bf16", 16), ("f32", 32), ("f64", 64)))
I8, I16, I32, I64 = (DType(f"i{b}", "int", b) for b in (8, 16, 32, 64))
U8, U16, U32, U64 = (DType(f"u{b}", "uint", b) for b in (8, 16, 32, 64))
BOOL = DType("bool", "bool", 8)

DTYPES = {t.name: t for t in (F16, BF16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, BOOL)}

CLASSES = {
    "float": (F16, BF16, F32, F64),
    "int": (I8, I16, I32, I64, U8, U16, U32, U64),
    "number": (F16, BF16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64),
    "any": tuple(DTYPES.values()),
}
"""What a dtype variable may be declared as: `<T: float>`."""

_NUMPY: dict[str, np.dtype[Any]] = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f32": np.dtype(np.float32), "f64": np.dtype(np.float64),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "u8": np.dtype(np.uint8), "u16": np.dtype(np.uint16), "u32": np.dtype(np.uint32), "u64": np.dtype(np.uint64),
    "bool": np.dtype(np.bool_),
}
BY_NUMPY: dict[np.dtype[Any], DType] = {d: DTYPES[n] for n, d in _NUMPY.items()}


def promote(a: DType, b: DType) -> DType:
    """The dtype in which `a` and `b` meet.

    Integer with float gives the float; otherwise the wider; f16 with bf16 gives f32; a signed with an unsigned integer
    gives a signed one that holds both, at most i64.
    """
    if a == b:
        return a
    if BOOL in (a, b):
        return b if a == BOOL else a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        return F32 if a.bits == b.bits else max(a, b, key=lambda t: t.bits)
    if a.kind == b.kind:
        return max(a, b, key=lambda t: t.bits)
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    bits = signed.bits if signed.bits > unsigned.bits else min(64, 2 * unsigned.bits)
    return DTYPES[f"i{bits}"]


def fits(source: DType, target: DType) -> bool:
    """Whether storing `source` into `target` never narrows, so needs no cast."""
    if source == target:
        return True
    if target == BOOL:
        return False
    if source.is_float and not target.is_float:
        return False
    return promote(source, target) == target


def accumulator(t: DType) -> DType:
    """The dtype in which a reduction of `t` is carried out."""
    if t in (F16, BF16):
        return F32
    if t.is_integer and t.bits < 32:
        return I32 if t.kind == "int" else U32
    return t
