"""Which conversions keep every value, and so which chains of them are shorter than they look."""

from __future__ import annotations

from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, DType

_DIGITS = {F16: 11, BF16: 8, F32: 24, F64: 53}
_WIDER = {F16: (F32, F64), BF16: (F32, F64), F32: (F64,), F64: ()}


def lossless(source: DType, target: DType) -> bool:
    """Whether converting from `source` to `target` keeps every value: NaN, the infinities and -0 included."""
    if source in (target, BOOL):
        return True
    if target == BOOL:
        return False
    if source.is_float:
        return target in _WIDER[source]
    digits = source.bits - (source.kind == "int")
    if target.is_float:
        return digits <= _DIGITS[target]
    if source.kind == target.kind:
        return source.bits <= target.bits
    return source.kind == "uint" and source.bits < target.bits


def passes_through(source: DType, middle: DType, target: DType) -> bool:
    """Whether converting `source` to `middle` and that to `target` is converting `source` to `target`.

    The value must arrive in `middle` whole. Then only one thing can differ: integers wrap into a smaller integer, where
    floats saturate.
    """
    if not lossless(source, middle):
        return False
    return not (source.is_integer and middle.is_float and target.is_integer) or lossless(source, target)
