"""Other people's arrays, seen as address, shape and strides; no framework is imported that the user has not imported."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyop.ir.dtypes import BOOL, BY_NUMPY, DTYPES, DType
from polyop.ir.errors import CallError, Diagnostic, PolyopError
from polyop.runtime import blocks, forks

_TORCH = {
    "float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "int8": "i8", "int16": "i16", "int32": "i32",
    "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64", "bool": "bool",
}
_MOST = int(np.finfo(np.float64).max)  # Python's integers know no infinity
_SPELLED = {t: n for n, t in _TORCH.items()}
_DEVICES = {3: "pinned CUDA", 4: "OpenCL", 7: "Vulkan", 8: "Metal", 11: "pinned ROCm"}


@dataclass(frozen=True, slots=True)
class View:
    """Memory that looks like an array of `dtype`.

    Units   address in bytes, strides in elements; strides of dimensions with at most one element mean nothing.
    Notes   `owner` is what the caller gave, and `kind` says what he expects back; `memory` keeps the memory alive where the
            owner does not: a number has none of its own. `device` is the GPU that the memory lies on, if it does.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    writeable: bool
    owner: Any
    kind: Any = "numpy"
    memory: Any = None
    device: Any = None

    def turned(self, order: Sequence[int]) -> View:
        """The same memory with its dimensions in another order."""
        return replace(self, shape=tuple(self.shape[d] for d in order), strides=tuple(self.strides[d] for d in order))

    def span(self) -> tuple[int, int]:
        """The bytes [first, last) that the elements lie in; empty if there are none."""
        if 0 in self.shape:
            return self.address, self.address
        reach = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        first = self.address + sum(r for r in reach if r < 0) * self.dtype.bytes_
        return first, self.address + (sum(r for r in reach if r > 0) + 1) * self.dtype.bytes_


def refuse(code: str, message: str, hint: str = "") -> CallError:
    """The error of a call whose arguments do not fit."""
    return CallError(Diagnostic(code, message, hint=hint))


def is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def view(value: Any, name: str, wanted: DType | None = None) -> View:
    """`value`, the argument for `name`, as memory; nothing is copied.

    wanted   what a plain number becomes, for a tensor of rank 0

    Raises CallError, if it is no array or one that kernels cannot read.
    """
    if is_torch(value):
        return _torch_view(value, name)
    if isinstance(value, np.ndarray):
        return _numpy_view(value, name, value, "numpy")
    if isinstance(value, bool | int | float | np.generic):
        held = number(value, name, wanted)
        held.flags.writeable = False  # the caller would not see the new value of his number
        return _numpy_view(held, name, value, "numpy")
    try:
        found = _gpu_view(value, name)
        if found is not None:
            return found
        if hasattr(value, "__dlpack_device__") and value.__dlpack_device__()[0] != 1:
            number_ = int(value.__dlpack_device__()[0])
            where = _DEVICES.get(number_, f"type {number_}")
            raise refuse("E608", f"`{name}` is in {where} memory; expected an array on the CPU or a GPU")
        kind = value.__array_namespace__() if hasattr(value, "__array_namespace__") else "numpy"
        if hasattr(value, "__array_interface__"):
            return _numpy_view(np.asarray(value), name, value, kind)
        if hasattr(value, "__dlpack__"):
            return _numpy_view(np.from_dlpack(value), name, value, kind)
    except PolyopError:
        raise
    except Exception as e:  # it is somebody else's code that runs here
        raise refuse("E608", f"`{name}`: {type(value).__name__} cannot be read as an array: {e}") from e
    raise refuse("E608", f"`{name}` is {_sort(value)}; expected an array",
                 f"numpy.asarray({name})" if name.isidentifier() and _holds_numbers(value) else "")


def _gpu_view(value: Any, name: str) -> View | None:
    """The view of an array on a GPU; what knows about these is imported when there is one."""
    if not hasattr(value, "__cuda_array_interface__") and (
            not hasattr(value, "__dlpack_device__") or value.__dlpack_device__()[0] == 1):
        return None
    with forks.IMPORTS:
        from polyop.runtime.gpu import views
    return views.view(value, name)


def _sort(value: Any) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _holds_numbers(value: Any) -> bool:
    """Whether NumPy makes a useful array of `value`."""
    try:
        return isinstance(value, list | tuple | range) or (not isinstance(value, bytes) and memoryview(value).nbytes >= 0)
    except TypeError:
        return False


def number(value: Any, name: str, wanted: DType | None) -> np.ndarray:
    """A plain number as an array of rank 0. Python's numbers take the dtype they meet, NumPy's keep their own.

    Raises CallError, if it does not fit into `wanted`.
    """
    if isinstance(value, np.generic):
        return np.asarray(value)
    if wanted is None:
        return np.asarray(value)
    if isinstance(value, bool) or wanted == BOOL:
        fits = isinstance(value, bool) and wanted == BOOL
    else:
        fits = wanted.is_float or isinstance(value, int)
    if fits and isinstance(value, int) and wanted != BOOL:
        fits = -_MOST <= value <= _MOST if wanted.is_float else wanted.lowest <= value <= wanted.highest
    if not fits:
        raise refuse("E609", f"`{name}` is {wanted}, got {shown(value)}")
    with np.errstate(over="ignore"):
        return np.asarray(value).astype(wanted.numpy)


def converted(name: str, value: Any, dtype: DType) -> str:
    """How the caller's own library converts `value`, in words to paste."""
    is_torch = type(value).__module__.partition(".")[0] == "torch"
    return f"{name}.to(torch.{dtype.numpy})" if is_torch else f"{name}.astype('{dtype.numpy}')"


def shown(value: Any) -> str:
    """`value` in a message; Python refuses to write out very long integers."""
    return f"an integer of {value.bit_length()} bits" if isinstance(value, int) and value.bit_length() > 80 else repr(value)


def _numpy_view(a: np.ndarray, name: str, owner: Any, kind: Any) -> View:
    if "numpy.ma" in sys.modules and isinstance(a, np.ma.MaskedArray):  # importing it takes longer than a kernel
        raise refuse("E608", f"`{name}` is a masked array, and kernels know no masks", f"{name}.filled(...)")
    if not a.dtype.isnative:
        raise refuse("E608", f"`{name}` has the byte order of another machine ({a.dtype.str})",
                     f'{name}.astype({name}.dtype.newbyteorder("="))')
    dtype = BY_NUMPY.get(a.dtype)
    if dtype is None:
        raise refuse("E602", f"`{name}` has dtype {a.dtype}; expected one of {', '.join(DTYPES)}")
    size = a.itemsize
    if not a.flags.aligned or any(s % size for n, s in zip(a.shape, a.strides, strict=True) if n > 1):
        raise refuse("E608", f"`{name}` is not aligned to its elements of {size} bytes", f"{name}.copy()")
    return View(address(a), a.shape, tuple(s // size for s in a.strides), dtype, a.flags.writeable, owner, kind, a)


def _torch_view(t: Any, name: str) -> View:
    torch = sys.modules["torch"]
    if t.device.type not in ("cpu", "cuda"):
        raise refuse("E608", f"`{name}` is on {t.device}; expected a tensor on the CPU or a GPU", f"{name}.cpu()")
    if t.layout != torch.strided:
        raise refuse("E608", f"`{name}` has layout {t.layout}; expected a dense tensor", f"{name}.to_dense()")
    if t.requires_grad and torch.is_grad_enabled():
        raise refuse("E608", f"`{name}` requires a gradient, which would be lost here", f"{name}.detach()")
    if t.is_conj() or t.is_neg():
        raise refuse("E608", f"`{name}` is a lazy conjugate or negative", f"{name}.resolve_conj().resolve_neg()")
    dtype = torch_dtype(t.dtype)
    if dtype is None:
        raise refuse("E602", f"`{name}` has dtype {str(t.dtype)[6:]}; expected one of {', '.join(DTYPES)}")
    at = _torch_address(t, name)
    if at % dtype.bytes_:
        raise refuse("E608", f"`{name}` is not aligned to its elements of {dtype.bytes_} bytes", f"{name}.clone()")
    if t.device.type == "cpu":
        return View(at, tuple(t.shape), t.stride(), dtype, True, t, "torch")
    with forks.IMPORTS:
        from polyop.runtime.gpu import home
    kind = home.torch_home(t)
    return View(at, tuple(t.shape), t.stride(), dtype, True, t, kind, None, kind.device)


def _torch_address(t: Any, name: str) -> int:
    """Where the first element of `t` lies.

    Raises CallError, if not all elements lie in memory: fake tensors, those of a `vmap`, those whose storage was freed.
    """
    with suppress(Exception):  # a subclass may run anybody's code here
        if type(t).__torch_dispatch__ is sys.modules["torch"].Tensor.__torch_dispatch__:
            last = t.storage_offset() + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True)) + 1
            if not t.numel() or (t.data_ptr() and last * t.element_size() <= t.untyped_storage().nbytes()):
                return int(t.data_ptr())
    raise refuse("E608", f"`{name}` has no memory for its elements, as tensors that are traced, or whose storage was freed")


def torch_dtype(t: Any) -> DType | None:
    """What torch calls `t`, or None if kernels cannot read it."""
    return DTYPES.get(_TORCH.get(str(t)[6:], ""))


def spelled(dtype: DType) -> Any:
    """What torch has for `dtype`."""
    return getattr(sys.modules["torch"], _SPELLED[dtype.name])


def empty(shape: tuple[int, ...], dtype: DType, kind: Any) -> tuple[Any, int]:
    """A new array of `kind`, aligned to 64 bytes, with unset contents; and its address.

    Raises CallError, if there is not enough memory.
    """
    try:
        if kind == "torch":
            return _empty_torch(shape, dtype)
        if hasattr(kind, "maker"):
            made: tuple[Any, int] = kind.maker(shape, dtype)()
            return made
        array, at = blocks.empty(shape, dtype.numpy)
    except (MemoryError, RuntimeError, ValueError) as e:
        raise refuse("E606", f"no memory for a result of shape {shape} and dtype {dtype}: {e}") from e
    return (array if kind == "numpy" else kind.from_dlpack(array)), at


def as_numpy(v: View) -> np.ndarray:
    """A NumPy array over the memory of `v`, which the caller keeps alive."""
    first, last = v.span()
    strides = tuple(s * v.dtype.bytes_ for s in v.strides)
    if first == last:
        return np.empty(v.shape, v.dtype.numpy)
    memory: Any = (ctypes.c_char * (last - first)).from_address(first)
    out: np.ndarray = np.ndarray(v.shape, v.dtype.numpy, memory, v.address - first, strides)
    return out


def snapshot(v: View) -> View:
    """A copy of `v`, with the same order of strides."""
    copy = as_numpy(v).copy(order="K")
    return View(address(copy), v.shape, tuple(s // v.dtype.bytes_ for s in copy.strides), v.dtype, True, copy)


OWN = 1 << 20  # bytes from which torch's own allocator gives memory back to the system after each call


def wraps(dtype: DType) -> bool:
    """Whether torch makes a tensor of NumPy's array with this dtype."""
    return dtype.numpy.kind != "V"


def wrapper() -> Callable[[np.ndarray], Any]:
    """What makes a tensor upon the memory of an array, for results of OWN bytes and more."""
    found: Callable[[np.ndarray], Any] = sys.modules["torch"].from_numpy
    return found


def _empty_torch(shape: tuple[int, ...], dtype: DType) -> tuple[Any, int]:
    torch = sys.modules["torch"]
    elems = 1
    for n in shape:
        elems *= n
    if elems * dtype.bytes_ < OWN:
        t = torch.empty(shape, dtype=spelled(dtype))
        return t, t.data_ptr()
    if wraps(dtype):
        array, at = blocks.empty(shape, dtype.numpy)
        return wrapper()(array), at
    array, at = blocks.empty((elems * dtype.bytes_,), np.dtype(np.uint8))
    return wrapper()(array).view(spelled(dtype)).view(shape), at


def _read_address() -> Callable[[np.ndarray], int]:
    """How to find an array's memory: ten times faster through the C layout of `PyArrayObject`, if it is as documented.

    Source  numpy/core/include/numpy/ndarraytypes.h: `data` follows the object header.
    """
    header, word = object.__basicsize__, ctypes.c_size_t.from_address
    probe: list[np.ndarray] = [np.zeros(3)[1:], np.zeros((2, 2), np.int8), np.zeros(4, np.float32)[::-1]]

    def quick(a: np.ndarray) -> int:
        return word(id(a) + header).value

    def plain(a: np.ndarray) -> int:
        return int(a.__array_interface__["data"][0])

    if sys.implementation.name == "cpython" and all(quick(a) == plain(a) for a in probe):
        return quick
    return plain


address = _read_address()
