"""The types of symbolic values: `f32["B", "S", "D"]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from polyop.ir import dtypes
from polyop.ir.dtypes import DType
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, affine

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


@dataclass(frozen=True, slots=True)
class TensorType:
    """An element type and a shape over named sizes."""

    dtype: DType
    shape: tuple[Affine, ...] = ()

    def __str__(self) -> str:
        return str(self.dtype) + (f"[{', '.join(map(str, self.shape))}]" if self.shape else "")


@dataclass(frozen=True, slots=True)
class Element:
    """An element type that makes tensor types: `f32["B", 768]`; alone it is a tensor of rank 0."""

    dtype: DType

    def __getitem__(self, dims: Any) -> TensorType:
        """Each extent is a size's name, a number, or an index expression (an extent of another value).

        Raises  UserError E701.
        """
        return TensorType(self.dtype, tuple(map(extent, dims if isinstance(dims, tuple) else (dims,))))


def is_name(text: str) -> bool:
    """Whether an input or a size may be called so."""
    return _NAME.fullmatch(text) is not None


def extent(x: Any) -> Affine:
    """An extent as an index expression.

    Raises  UserError E701.
    """
    match x:
        case Affine():
            return x
        case str() if is_name(x):
            return affine(x)
        case int() if not isinstance(x, bool) and x >= 0:
            return affine(x)
    raise fail("E701", f"an extent is a name or a number >= 0, got {x!r}")


def tensor_type(x: TensorType | Element) -> TensorType:
    """What the user gave as a type.

    Raises  UserError E701.
    """
    match x:
        case TensorType():
            return x
        case Element(dtype=dtype):
            return TensorType(dtype)
    raise fail("E701", f"expected a type such as f32[\"B\", \"D\"], got {x!r}")


f16, bf16, f32, f64 = (Element(t) for t in (dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.F64))
i8, i16, i32, i64 = (Element(t) for t in (dtypes.I8, dtypes.I16, dtypes.I32, dtypes.I64))
u8, u16, u32, u64 = (Element(t) for t in (dtypes.U8, dtypes.U16, dtypes.U32, dtypes.U64))
bool_ = Element(dtypes.BOOL)
