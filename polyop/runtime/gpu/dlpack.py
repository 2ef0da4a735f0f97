"""DLPack's capsules: how arrays of any framework are handed on without a copy.

Source  https://dmlc.github.io/dlpack/latest/c_api.html: DLManagedTensor, DLTensor, DLDevice, DLDataType.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from polyop.ir.dtypes import DTYPES, DType
from polyop.ir.module import Module, Signature
from polyop.runtime import cache, cpu
from polyop.runtime.layout import dense

CPU, CUDA, ROCM, CUDA_MANAGED = 1, 2, 10, 13
"""Types of devices."""

FAMILIES = {CUDA: "cuda", CUDA_MANAGED: "cuda", ROCM: "hip"}
NUMBERS = {"cuda": CUDA, "hip": ROCM}

_CODES = {"int": 0, "uint": 1, "float": 2, "bool": 6}
_BFLOAT = 4
_NAME = b"dltensor"
_ENDS = "polyop_capsule_ends"


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("rank", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
                ("byte_offset", ctypes.c_uint64)]


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _DELETER)]


@dataclass(frozen=True, slots=True)
class Seen:
    """An array in a capsule. Units: strides in elements. `dtype` is None for one that kernels do not know."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType | None
    family: str
    index: int


def _code(t: DType) -> tuple[int, int]:
    return (_BFLOAT if t.name == "bf16" else _CODES[t.kind]), t.bits


_DTYPES = {_code(t): t for t in DTYPES.values()}


def read(capsule: Any) -> Seen:
    """What is in a capsule; it owns the memory as long as it lives.

    Raises ValueError, if it is no such capsule, or not one of a GPU.
    """
    t = _Managed.from_address(_pointer(id(capsule), _NAME)).tensor
    if t.device_type not in FAMILIES:
        raise ValueError(f"a capsule of device type {t.device_type}")
    shape = tuple(t.shape[: t.rank]) if t.rank else ()
    strides = tuple(t.strides[: t.rank]) if t.rank and t.strides else dense(shape)
    dtype = _DTYPES.get((t.code, t.bits)) if t.lanes == 1 else None
    return Seen((t.data or 0) + t.byte_offset, shape, strides, dtype, FAMILIES[t.device_type], t.device_id)


_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(("PyCapsule_New", ctypes.pythonapi))

_lent: dict[int, Any] = {}
"""What is kept for as long as somebody has a capsule of it."""


def _delete(managed: int) -> None:
    _lent.pop(managed, None)


_deleted = _DELETER(_delete)


@lru_cache(maxsize=1)
def _ends() -> cpu.Loaded:
    """`capsule.ll` in this process: what Python calls where a capsule ends."""
    text = Path(__file__).with_name("capsule.ll").read_text(encoding="utf-8")
    module = Module(_ENDS, "x86:host", text, Signature(_ENDS, (), (), (), ()))
    key = cache.key("capsule", cpu.VERSION, text, str(cpu.host()))
    return cpu.link(cache.remember_code(key, lambda: cpu.assemble(module, cpu.host()).code), (_ENDS,)).keep()


def capsule(address: int, shape: tuple[int, ...], dtype: DType, family: str, index: int, owner: Any) -> Any:
    """A capsule of a dense array; `owner` lives until the last reader is done with it."""
    rank = len(shape)
    sizes, steps = (ctypes.c_int64 * max(1, rank))(*shape), (ctypes.c_int64 * max(1, rank))(*dense(shape))
    code, bits = _code(dtype)
    tensor = _Tensor(address, NUMBERS[family], index, rank, code, bits, 1, sizes, steps, 0)
    managed = _Managed(tensor, None, _deleted)
    at = ctypes.addressof(managed)
    _lent[at] = (managed, sizes, steps, owner)
    return _new(at, _NAME, _ends().addresses[_ENDS])
