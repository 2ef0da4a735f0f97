"""The ends of DLPack's capsules: what is in one lives until its last reader is done, whatever happens meanwhile."""

from __future__ import annotations

import ctypes
import subprocess
import sys

from polyop.ir.dtypes import F32
from polyop.runtime.gpu import dlpack

NAMED = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", ctypes.pythonapi))
WITH_AN_ERROR = """
from polyop.ir.dtypes import F32
from polyop.runtime.gpu import dlpack

class Owner:
    def __del__(self):
        print("freed")

try:
    print(dlpack.capsule(4096, (2,), F32, "cuda", 0, Owner()), 1 / 0)
except ZeroDivisionError as error:
    print(error)
print(len(dlpack._lent))
"""


class Owner:
    freed = 0

    def __del__(self) -> None:
        Owner.freed += 1


def test_what_nobody_took_ends_with_its_capsule_and_what_somebody_took_with_its_deleter() -> None:
    before = Owner.freed
    capsule = dlpack.capsule(4096, (2, 3), F32, "cuda", 0, Owner())
    assert dlpack.read(capsule).shape == (2, 3) and Owner.freed == before
    del capsule
    assert Owner.freed == before + 1
    taken = dlpack.capsule(4096, (2, 3), F32, "cuda", 0, Owner())
    managed = dlpack._pointer(id(taken), b"dltensor")
    NAMED(taken, b"used_dltensor")
    del taken
    assert Owner.freed == before + 1
    dlpack._Managed.from_address(managed).deleter(managed)
    assert Owner.freed == before + 2 and not dlpack._lent


def test_a_capsule_that_ends_while_an_error_is_on_its_way_leaves_the_error_alone() -> None:
    done = subprocess.run([sys.executable, "-c", WITH_AN_ERROR], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "freed\ndivision by zero\n0\n", "")
