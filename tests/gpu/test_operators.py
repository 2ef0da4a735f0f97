"""Operators of the library, from their text to CUDA and HIP text, executed on the emulator and compared with NumPy."""

from __future__ import annotations

import pytest
from gpu_operators import FILES, OPERATORS, calls, together

from polyop.ir.errors import UnsupportedError
from polyop.runtime import amdgcn, cxx, emulated, nvrtc

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


@pytest.mark.parametrize("file", FILES)
def test_every_operator_of_the_library_computes_what_numpy_says_at_some_small_size(file: str) -> None:
    wrong = []
    for k, call in enumerate(together(file, ("cuda:sm_80", "hip:gfx942")[len(file) % 2])):
        report = emulated.run(call.module, call.sizes, call.scalars, call.arrays, order=emulated.ORDERS[k % 3])
        try:
            assert str(report) == "no fault found"
            call.check()
        except AssertionError as error:
            wrong.append(f"{call.case}, {call.dtype}, {dict(call.given)}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(("name", "dtype"), OPERATORS[:4])
def test_its_hip_text_computes_the_same(name: str, dtype: str) -> None:
    call = calls(name, dtype, "hip:gfx942")[-1]
    assert str(emulated.run(call.module, call.sizes, call.scalars, call.arrays)) == "no fault found"
    call.check()


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("name", "dtype"), OPERATORS)
def test_nvrtc_accepts_it(name: str, dtype: str) -> None:
    assert nvrtc.assemble(calls(name, dtype, "cuda:sm_90a")[-1].module).code


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
@pytest.mark.parametrize(("name", "dtype"), OPERATORS)
def test_amdgcn_accepts_it(name: str, dtype: str) -> None:
    assert amdgcn.assemble(calls(name, dtype, "hip:gfx942")[-1].module).code
