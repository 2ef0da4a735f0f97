"""Which C++ compiler builds the emulator."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gpu_cases import CASES, data

from polyop.codegen import cuda
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, linetable
from polyop.runtime.findings import lines_of
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


@pytest.mark.skipif(zig() is None, reason="ziglang is not installed")
@pytest.mark.parametrize("name", ["ampere", "cdna", "rdna", "hopper"])
def test_zig_alone_tells_the_line_of_each_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from test_matmuls import FOUND, kinds, multiplied  # which skips where there is no compiler

    _, _, change, found = next(f for f in FOUND if f[0] == name)
    told = multiplied(name, change)[0].findings
    monkeypatch.setattr(shutil, "which", lambda name: None)
    cxx.compiler.cache_clear()
    report, _, _ = multiplied(name, change)
    assert kinds(report) & found and all(f.line for f in report.findings), report
    assert {f.code for f in report.findings} & {f.code for f in told}, report


SOURCE = """int twice(int x) {
    return 2 * x;
}

int sum(const int* x, int n) {
    int out = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > 3)
            out += twice(x[i]);
#line 2000
    return out;
}
"""


@pytest.mark.skipif(not shutil.which("addr2line"), reason="there is no addr2line")
def test_a_table_of_lines_says_what_addr2line_says(tmp_path: Path) -> None:
    text, library = tmp_path / "sum.cpp", tmp_path / "sum.so"
    text.write_text(SOURCE)
    object_, compiler = library.with_suffix(".o"), cxx.compiler()
    subprocess.run([*compiler.compile, "-fPIC", "-g1", "-gdwarf-5", "-c", str(text), "-o", str(object_)], check=True)
    subprocess.run([*compiler.link, str(object_), "-o", str(library)], check=True)
    places = range(0, library.stat().st_size, 3)
    asked = subprocess.run(["addr2line", "-e", str(library), *map(hex, places)], capture_output=True, text=True, check=True)
    want = [line.split(" (")[0].rpartition(":")[2] for line in asked.stdout.splitlines()]
    found = linetable.lines(library.read_bytes(), places, ".cpp")
    assert [str(found[p]) for p in places] == ["0" if w == "?" else w for w in want]
    assert {2, 9, 2000} <= {*found.values()} and not any(linetable.lines(library.read_bytes(), places, ".h").values())


@pytest.mark.skipif(zig() is None, reason="ziglang is not installed")
def test_a_run_that_nobody_watches_has_no_lines_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    path = cxx.library(cuda.emit(CASES["saxpy"].nest, target("cuda:sm_80"), Options()), watched=False)
    assert lines_of(path, (0, 4096)) == {0: 0, 4096: 0}


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
