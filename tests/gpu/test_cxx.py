"""Which C++ compiler builds the emulator."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from gpu_cases import CASES, data

from polyop.codegen import cuda
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated
from polyop.runtime.zig import zig


@pytest.fixture(autouse=True)
def _ask_again() -> Iterator[None]:
    cxx.compiler.cache_clear()
    yield
    cxx.compiler.cache_clear()


def test_without_any_compiler_the_emulator_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cxx.shutil, "which", lambda name: None)
    monkeypatch.setattr(cxx, "zig", lambda: None)
    with pytest.raises(UnsupportedError, match="the emulator needs a C\\+\\+ compiler"):
        cxx.compiler()


@pytest.mark.skipif(zig() is None, reason="ziglang is not installed")
def test_zig_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cxx.shutil, "which", lambda name: None)
    case = CASES["saxpy"]
    arrays = data(case, {"N": 200})
    report = emulated.run(cuda.emit(case.nest, target("cuda:sm_80"), Options()), {"N": 200}, case.scalars, arrays)
    assert str(report) == "no fault found"
    np.testing.assert_allclose(arrays["Y"], np.float32(1.5) * arrays["X"] + arrays["Z"], rtol=1e-6, atol=1e-6)


def test_the_same_text_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        cxx.compiler()
    except UnsupportedError as e:
        pytest.skip(str(e))
    module = cuda.emit(CASES["total"].nest, target("cuda:sm_80"), Options())
    first = cxx.library(module, watched=True)
    first.unlink()  # the copy of this process; the cache has another
    monkeypatch.setattr(cxx, "_built", lambda *args: pytest.fail("built again"))
    assert cxx.library(module, watched=True) == first
