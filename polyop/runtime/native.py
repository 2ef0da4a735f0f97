"""Machine code that Python calls as its own functions: https://docs.python.org/3/c-api/structures.html#c.PyMethodDef."""

from __future__ import annotations

import ctypes
from typing import Any

FAST = 0x80           # METH_FASTCALL: (self, where the arguments are, how many)
KEYWORDS = 0x80 | 2   # METH_FASTCALL | METH_KEYWORDS

_kept: list[Any] = []  # functions may be called until Python is gone


class MethodDef(ctypes.Structure):
    """A row of what Python knows of such a function."""

    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


def function(name: str, address: int, flags: int) -> Any:
    """What calls the code at `address`, which stays there for as long as this process lives."""
    definition = MethodDef(name.encode(), address, flags, None)
    _kept.append(definition)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    return make(ctypes.addressof(definition), None, None)
