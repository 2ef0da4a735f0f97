"""Operators of the library, from their text to CUDA and HIP text, executed on the emulator and compared with NumPy."""

from __future__ import annotations

import pytest
from gpu_operators import OPERATORS, calls

from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx, emulated

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


@pytest.mark.parametrize(("name", "dtype"), OPERATORS)
def test_an_operator_computes_on_the_emulator_what_numpy_says(name: str, dtype: str) -> None:
    for k, call in enumerate(calls(name, dtype, "cuda:sm_80")):
        report = emulated.run(call.module, call.sizes, call.scalars, call.arrays, order=emulated.ORDERS[k % 3])
        assert str(report) == "no fault found"
        call.check()


@pytest.mark.parametrize(("name", "dtype"), OPERATORS[:4])
def test_its_hip_text_computes_the_same(name: str, dtype: str) -> None:
    call = calls(name, dtype, "hip:gfx942")[-1]
    assert str(emulated.run(call.module, call.sizes, call.scalars, call.arrays)) == "no fault found"
    call.check()
