"""The code of entry.ll in this process: whether it can be here, and what it has to know of Python, NumPy and torch."""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polyop.ir.module import Module, Signature
from polyop.runtime import blocks, cache, cpu, threads
from polyop.runtime.entry_plan import PLACES, STACK
from polyop.runtime.entry_table import front
from polyop.runtime.native import KEYWORDS, MethodDef, function

log = logging.getLogger("polyop")

ATTRIBUTE = "_front"     # where an operator has its Front
RANK = 64                # of an array, as in NumPy
WORDS = 512              # of a look
_TEXTS = ("entry.ll", "entry_look.ll", "entry_run.ll")
_NUMBERS = {"PLACES": PLACES, "STACK": STACK, "TRIES": blocks.TRIES, "WORDS": WORDS, "MARGIN": WORDS - 3 - 2 * RANK, "RANK": RANK}
_ASKED = ("look", "outline", "form", "carry")  # functions that Python calls
_SYMBOLS = ("polyop_entry", "polyop_call", *(f"polyop_{n}" for n in _ASKED))
_CONTEXT = 23            # words
_TORCH = 14              # which of them is the first that belongs to torch
_TENSOR, _STREAM = 5, 6  # which words of `DLPackExchangeAPI`: dltensor_from_py_object_no_sync, current_work_stream
_SIGNATURE = "__call__($self, /, *args, out=None, **keywords)\n--\n\n"


class UnfitError(Exception):
    """This process is not one that the code knows."""


@dataclass(frozen=True, eq=False, slots=True)
class Code:
    """The code, loaded.

    look      (front, *args, **keywords) -> what the code sees of a call, as bytes, or None
    outline   the same, and of sizes only how many bits they have
    form      the same, and of sizes only whether they are 0, 1 or more
    carry     (front, record, *args, **keywords) -> what the call gives by that record, or NotImplemented
    call      the definition of `__call__`
    context   the code's `@polyop_entry`
    kept      what it points to
    """

    look: Callable[..., bytes | None]
    outline: Callable[..., bytes | None]
    form: Callable[..., bytes | None]
    carry: Callable[..., Any]
    call: MethodDef
    context: Any
    kept: list[Any]


def load(general: Any, said: str) -> Code:
    """The code, which passes on to the function `general` what it does not know.

    said   what `__call__` is documented as

    Raises UnfitError and whatever goes wrong where things are not as expected.
    """
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16 or hasattr(sys, "gettotalrefcount"):
        raise UnfitError("objects are not laid out as in a release of CPython")
    if "t" in sys.abiflags:
        raise UnfitError("Python runs without its lock")
    api = _numpy_api()
    loaded = assembled("polyop_entry", text(), _SYMBOLS).keep()
    context = (ctypes.c_size_t * _CONTEXT).from_address(loaded.addresses["polyop_entry"])
    kept = [general, vars(threads), np.dtype(np.uint8), *map(sys.intern, (ATTRIBUTE, "setting", "out"))]
    words = (api[2], api[94], api[282], id(kept[2]), id(general), id(kept[3]), id(kept[1]), id(kept[4]), id(kept[5]),
             id(None), id(tuple), id(int), id(bool), id(float))
    for k, word in enumerate(words):
        context[k] = word
    call = MethodDef(b"__call__", loaded.addresses["polyop_call"], KEYWORDS, (_SIGNATURE + said).encode())
    look, outline, form, carry = (function(n, loaded.addresses[f"polyop_{n}"], KEYWORDS) for n in _ASKED)
    code = Code(look, outline, form, carry, call, context, [*kept, loaded])
    _probe(code)
    return code


@lru_cache(maxsize=1)
def text() -> str:
    """The code as LLVM IR."""
    found = "\n".join(Path(__file__).with_name(name).read_text() for name in _TEXTS)
    for name, value in _NUMBERS.items():
        found = found.replace(name, str(value))
    return found


def assembled(name: str, code: str, symbols: tuple[str, ...], level: int = 2) -> cpu.Loaded:
    """Code of this machine, from the cache if it is there; `level`: how hard LLVM tries."""
    module = Module(name, "x86:host", code, Signature(name, (), (), (), ()))
    key = cache.key("entry", cpu.VERSION, code, str(cpu.host()), str(level))
    return cpu.link(cache.remember_code(key, lambda: cpu.assemble(module, cpu.host(), level).code), symbols)


def _numpy_api() -> Any:
    """NumPy's table of C functions: numbers never change, https://numpy.org/doc/stable/reference/c-api/array.html.

    Raises UnfitError, if it has another binary interface than versions 1 and 2.
    """
    module: Any = sys.modules.get("numpy._core.multiarray") or sys.modules["numpy.core.multiarray"]
    table = ctypes.cast(_pointer(module._ARRAY_API, None), ctypes.POINTER(ctypes.c_size_t))
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])()
    if version not in (0x01000009, 0x02000000):
        raise UnfitError(f"NumPy has the binary interface {version:#x}")
    if table[2] != id(np.ndarray):
        raise UnfitError("NumPy's table of functions is not in the order that it should be")
    return table


def _dlpack(tensor: Any, which: int) -> int:
    """The address of a function of DLPack for a type of arrays.

    Source  https://dmlc.github.io/dlpack/latest/c_api.html, `DLPackExchangeAPI`: version, a link, then five functions.
    Raises  AttributeError or ValueError, if it has none.
    """
    table = ctypes.cast(_pointer(tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"), ctypes.POINTER(ctypes.c_size_t))
    if table[0] & 0xFFFFFFFF != 1 or not table[which]:
        raise ValueError("another version of DLPack")
    return int(table[which])


def _pointer(capsule: Any, name: bytes | None) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, name))


def _probe(code: Code) -> None:
    """Raises UnfitError, unless the code sees what NumPy and Python say of some calls."""
    names, by_value = [sys.intern(n) for n in ("a", "b", "c", "d")], (False, True, False, True)
    some = front(names, by_value, 3)
    for a in (np.zeros(5, np.float32), np.zeros((4, 6), np.int8)[::-1, ::2], np.zeros(()), np.zeros((2, 0, 3), np.complex64)):
        dims = [w for pair in zip(a.shape, a.strides, strict=True) for w in pair]
        array = [id(np.ndarray), id(a.dtype), a.ndim, *dims]
        wanted = [id(threads.setting), 5 << 1, *array, id(int), -7, id(float), id(bool), 1, *array]
        seen = code.look(some, a, -7, d=True, c=1.5, out=a)
        if seen is None or np.frombuffer(seen, np.int64)[1:].tolist() != wanted:
            raise UnfitError("arrays or numbers are not laid out as expected")


def knows_torch(code: Code) -> bool:
    """Whether torch has told the code how to read its tensors, as it does from version 2.10 on."""
    if code.context[_TORCH]:
        return True
    told = _told_by(sys.modules.get("torch"))
    if told is None:
        return False
    read, kept = told
    code.kept.extend(kept)
    for k, word in enumerate((id(kept[0]), read, *map(id, kept[1:-1]))):
        code.context[_TORCH + 1 + k] = word
    code.context[_TORCH] = id(kept[-1])  # last: from now on the others are used
    return True


@lru_cache(maxsize=1)
def _told_by(torch: Any) -> tuple[int, list[Any]] | None:
    """What torch tells, asked once: each call with its tensors would ask again for nothing."""
    try:
        return _dlpack(torch.Tensor, _TENSOR), [torch.nn.Parameter, "requires_grad", True, torch.is_grad_enabled,
                                                torch.Tensor.is_neg, torch.empty_like, torch.empty, torch.Tensor]
    except (AttributeError, ValueError) as e:
        log.debug("calls with tensors take the way through Python: torch does not tell how to read them (%s)", e)
        return None


def current_stream() -> int:
    """The address of the function by which torch tells the current stream of a device; 0 if it has none."""
    try:
        return _dlpack(sys.modules["torch"].Tensor, _STREAM)
    except (AttributeError, KeyError, ValueError):
        return 0
