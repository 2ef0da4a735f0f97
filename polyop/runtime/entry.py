"""The native front of an operator's calls: machine code that knows calls of looks seen before (`entry.ll`).

It stands where `Operator.__call__` did, and passes on to that whatever it does not know for sure. So nothing depends on it:
where this interpreter or this NumPy is not as it expects, there is none, and the log says why.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from polyop.ir.errors import PolyopError
from polyop.ir.module import Binary, Module, Signature
from polyop.runtime import cache, cpu, forks, threads
from polyop.runtime.call import Plan
from polyop.runtime.entry_plan import PLACES, record

log = logging.getLogger("polyop")

ATTRIBUTE = "_front"      # where an operator has its (table, info)
RANK = 64                 # of an array, as in NumPy
WORDS = 512               # of a look
_LEAST, _MOST = 16, 4096  # places of a table
_MARGIN = WORDS - 3 - 2 * RANK
_TEXTS = ("entry.ll", "entry_run.ll")
_SYMBOLS = ("polyop_entry", "polyop_call", "polyop_look")
_KEYWORDS = 0x80 | 0x02  # METH_FASTCALL | METH_KEYWORDS
_CONTEXT = 22
_TORCH = 14              # where in the context what belongs to torch begins
_SIGNATURE = "($self, /, *args, out=None, **keywords)\n--\n\n"
_lock = forks.rlock()

Front = tuple[list[Any], bytes]
"""What the code needs of an operator: the table of records, and what its parameters are."""


class _MethodDef(ctypes.Structure):
    """https://docs.python.org/3/c-api/structures.html#c.PyMethodDef"""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _UnfitError(Exception):
    """This process is not one that the code knows."""


@dataclass(frozen=True, eq=False, slots=True)
class Entry:
    """The code, loaded.

    look      (front, *args, **keywords) -> what the code sees of a call, as bytes, or None
    context   the code's `@polyop_entry`
    kept      what it points to
    """

    look: Callable[..., bytes | None]
    context: Any
    kept: list[Any]

    def remember(self, front: Front, plan: Plan, values: Sequence[Any], args: tuple[Any, ...], keywords: Mapping[str, Any],
                 ) -> None:
        """Let the next call of this look go straight to `plan`.

        values   those of all parameters, then the arrays of `out`: what `plan` was made for
        """
        if plan.has_torch and not self._knows_torch():
            return
        look, table = self.look(front, *args, **keywords), front[0]
        if look is None or any(table[k] is not None and table[k][0] == look for k in _places(look, len(table))):
            return  # what is in the way is nothing that a look shows
        words = record(plan, values)
        if words is not None:
            kept = (plan, threads.setting, [(type(v), v.dtype if isinstance(v, np.ndarray) else None) for v in values])
            _put(table, (look, words.plan, *words.objects, kept))

    def _knows_torch(self) -> bool:
        """Whether torch has told the code how to read its tensors, as it does from version 2.10 on."""
        if self.context[_TORCH]:
            return True
        try:
            torch: Any = sys.modules["torch"]
            read = _dlpack(torch.Tensor)
            kept = [torch.nn.Parameter, "requires_grad", True, torch.is_grad_enabled, torch.Tensor.is_neg, torch.empty_like]
        except (AttributeError, KeyError, ValueError) as e:
            log.debug("calls with tensors take the way through Python: torch does not tell how to read them (%s)", e)
            return False
        self.kept.extend(kept)
        for k, word in enumerate((id(kept[0]), read, *map(id, kept[1:]))):
            self.context[_TORCH + 1 + k] = word
        self.context[_TORCH] = id(torch.Tensor)  # last: from now on the others are used
        return True


def _places(look: bytes, length: int) -> tuple[int, int]:
    """Where in a table of this length a record may stand; see `find` of entry.ll."""
    first = int.from_bytes(look[4:8], "little") & (length - 1)
    return first, first ^ 1


def _put(table: list[Any], made: tuple[Any, ...]) -> None:
    """Put a record where it belongs; where it meets two others, the table grows, and at last one of them has to go."""
    while True:
        places = _places(made[0], len(table))
        free = next((k for k in places if table[k] is None), None)
        if free is not None or len(table) >= _MOST:
            table[places[0] if free is None else free] = made
            return
        larger: list[Any] = [None] * (4 * len(table))
        for old in table:
            if old is not None:
                places = _places(old[0], len(larger))
                larger[next((k for k in places if larger[k] is None), places[0])] = old
        table[:] = larger  # at once, for whoever looks


def front(names: Sequence[str], by_value: Sequence[bool], most: int) -> Front | None:
    """The front of an operator with such parameters, of which `most` may go by position; None if they are too many."""
    if len(names) > PLACES // 2:
        return None
    words = [len(names), most]
    for name, fixed in zip(names, by_value, strict=True):
        words += [id(name), fixed]
    return [None] * _LEAST, np.array(words, np.int64).tobytes()


@lru_cache(maxsize=1)
def text() -> str:
    """The code as LLVM IR."""
    found = "\n".join(Path(__file__).with_name(name).read_text() for name in _TEXTS)
    for name, value in (("PLACES", PLACES), ("WORDS", WORDS), ("MARGIN", _MARGIN), ("RANK", RANK)):
        found = found.replace(name, str(value))
    return found


_made: list[Entry | None] = []


def remember(owner: type, front: Front, plan: Plan, values: Sequence[Any], args: tuple[Any, ...], keywords: Mapping[str, Any],
             ) -> None:
    """Let the next call of this look go straight to `plan`: from now on the code is `owner.__call__`.

    values   those of all parameters, then the arrays of `out`: what `plan` was made for
    Notes    What the code does not know it passes on to `owner._general`. Where there can be no code, nothing happens.
    """
    if not _made:
        with _lock:
            if not _made:
                _made.append(_entry(owner))
    if _made[0] is not None:
        _made[0].remember(front, plan, values, args, keywords)


def _entry(owner: Any) -> Entry | None:
    """The code, in its place; None if there can be none, and the log says why."""
    try:
        made, call = _load(owner._general, owner.__call__.__doc__)
        _probe(made)
    except (_UnfitError, PolyopError, ImportError, AttributeError, RuntimeError, ValueError) as e:
        log.debug("calls take the way through Python: %s", e)
        return None
    method = ctypes.pythonapi.PyDescr_NewMethod
    method.restype, method.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_void_p)
    type.__setattr__(owner, "__call__", method(owner, ctypes.addressof(call)))
    made.kept.append(call)
    return made


def _load(general: Any, said: str | None) -> tuple[Entry, _MethodDef]:
    """The code, and the definition of the method.

    Raises _UnfitError and whatever goes wrong where things are not as expected.
    """
    if sys.implementation.name != "cpython" or object.__basicsize__ != 16 or hasattr(sys, "gettotalrefcount"):
        raise _UnfitError("objects are not laid out as in a release of CPython")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise _UnfitError("Python runs without its lock")
    api = _numpy_api()
    empty = Signature("polyop_entry", (), (), (), ())
    key = cache.key("entry", cpu.VERSION, text(), str(cpu.host()))
    code = cache.remember_code(key, lambda: cpu.assemble(Module(empty.name, "x86:host", text(), empty), cpu.host()).code)
    loaded = cpu.link(Binary(empty.name, "x86:host", code, empty).code, _SYMBOLS).keep()
    context = (ctypes.c_size_t * _CONTEXT).from_address(loaded.addresses["polyop_entry"])
    kept = [general, vars(threads), np.dtype(np.uint8), *map(sys.intern, (ATTRIBUTE, "setting", "out"))]
    words = (api[2], api[94], api[282], id(kept[2]), id(general), id(kept[3]), id(kept[1]), id(kept[4]), id(kept[5]),
             id(None), id(tuple), id(int), id(bool), id(float))
    for k, word in enumerate(words):
        context[k] = word
    call = _MethodDef(b"__call__", loaded.addresses["polyop_call"], _KEYWORDS,
                      ("__call__" + _SIGNATURE + (said or "")).encode())
    look = _MethodDef(b"look", loaded.addresses["polyop_look"], _KEYWORDS, None)
    function = ctypes.pythonapi.PyCFunction_NewEx
    function.restype, function.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return Entry(function(ctypes.addressof(look), None, None), context, [*kept, call, look, loaded]), call


def _numpy_api() -> Any:
    """NumPy's table of C functions: numbers never change, https://numpy.org/doc/stable/reference/c-api/array.html.

    Raises _UnfitError, if it has another binary interface than versions 1 and 2.
    """
    module: Any = sys.modules.get("numpy._core.multiarray") or sys.modules["numpy.core.multiarray"]
    table = ctypes.cast(_pointer(module._ARRAY_API, None), ctypes.POINTER(ctypes.c_size_t))
    version = ctypes.CFUNCTYPE(ctypes.c_uint)(table[0])()
    if version not in (0x01000009, 0x02000000):
        raise _UnfitError(f"NumPy has the binary interface {version:#x}")
    if table[2] != id(np.ndarray):
        raise _UnfitError("NumPy's table of functions is not in the order that it should be")
    return table


def _dlpack(tensor: Any) -> int:
    """The address of DLPack's `dltensor_from_py_object_no_sync` for a type of arrays.

    Source  https://dmlc.github.io/dlpack/latest/c_api.html, `DLPackExchangeAPI`: version, a link, then five functions.
    Raises  AttributeError or ValueError, if it has none.
    """
    table = ctypes.cast(_pointer(tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"), ctypes.POINTER(ctypes.c_size_t))
    if table[0] & 0xFFFFFFFF != 1 or not table[5]:
        raise ValueError("another version of DLPack")
    return int(table[5])


def _pointer(capsule: Any, name: bytes | None) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, name))


def _probe(made: Entry) -> None:
    """Raises _UnfitError, unless the code sees what NumPy and Python say of some calls."""
    names, by_value = [sys.intern(n) for n in ("a", "b", "c", "d")], (False, True, False, True)
    some = front(names, by_value, 3)
    for a in (np.zeros(5, np.float32), np.zeros((4, 6), np.int8)[::-1, ::2], np.zeros(()), np.zeros((2, 0, 3), np.complex64)):
        dims = [w for pair in zip(a.shape, a.strides, strict=True) for w in pair]
        array = [id(np.ndarray), id(a.dtype), a.ndim, *dims]
        wanted = [id(threads.setting), 5, *array, id(int), -7, id(float), id(bool), 1, *array]
        seen = made.look(some, a, -7, d=True, c=1.5, out=a)
        if seen is None or np.frombuffer(seen, np.int64)[1:].tolist() != wanted:
            raise _UnfitError("arrays or numbers are not laid out as expected")
