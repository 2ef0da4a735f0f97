"""Which C++ compiler builds the emulator."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
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


BROKEN = "#!/bin/sh\n{}echo no cc1plus >&2\nexit 1\n"


@pytest.mark.parametrize("tells_version", [False, True])
def test_a_compiler_that_does_not_work_is_left_alone_or_named(tmp_path: Path, tells_version: bool,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "g++"
    own.write_text(BROKEN.format('[ "$1" = --version ] && echo g++ 99 && exit 0\n' if tells_version else ""))
    own.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(own) if name == "g++" else None)
    monkeypatch.setattr(cxx, "zig", lambda: None)
    module = cuda.emit(CASES["saxpy"].nest, target("cuda:sm_80"), Options())
    why = f"and {own} compiles nothing: no cc1plus" if tells_version else "g++, clang++ or c++ on the path"
    with pytest.raises(UnsupportedError, match=re.escape(why)):
        cxx.library(module, watched=True)


@pytest.mark.skipif(zig() is None, reason="ziglang is not installed")
def test_zig_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cxx.shutil, "which", lambda name: None)
    case = CASES["saxpy"]
    arrays = data(case, {"N": 200})
    report = emulated.run(cuda.emit(case.nest, target("cuda:sm_80"), Options()), {"N": 200}, case.scalars, arrays)
    assert str(report) == "no fault found"
    np.testing.assert_allclose(arrays["Y"], np.float32(1.5) * arrays["X"] + arrays["Z"], rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(zig() is None, reason="ziglang is not installed")
@pytest.mark.skipif(not find_spec("elftools"), reason="pyelftools is not installed")
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


HEADER = """inline __attribute__((always_inline)) int once(int x) {
    return x * x + 1;
}

inline __attribute__((always_inline)) int twice(const int* x) {
    return 2 * once(x[0]) +
           once(x[1]);
}
"""

SOURCE = """#include "sum.h"

int sum(const int* x, int n) {
    int out = 0;
    for (int i = 0; i < n; i++)
        if (x[i] > 3)
            out += twice(x + i);
#line 2000
    return out;
}
"""


@pytest.mark.skipif(not shutil.which("addr2line"), reason="there is no addr2line")
@pytest.mark.skipif(not find_spec("elftools"), reason="pyelftools is not installed")
@pytest.mark.parametrize("flags", [(), ("-gdwarf-4",), ("-gdwarf-5", "-O2")])
def test_a_table_of_lines_says_what_addr2line_says(flags: tuple[str, ...], tmp_path: Path) -> None:
    text, library = tmp_path / "sum.cpp", tmp_path / "sum.so"
    text.write_text(SOURCE)
    (tmp_path / "sum.h").write_text(HEADER)
    object_, compiler = library.with_suffix(".o"), cxx.compiler()
    subprocess.run([*compiler.compile, "-fPIC", "-g1", *flags, "-c", str(text), "-o", str(object_)], check=True)
    subprocess.run([*compiler.link, str(object_), "-o", str(library)], check=True)
    places = range(library.stat().st_size)
    told = lines_of(library, [p + 1 for p in places])  # a call is before its return address
    found = linetable.lines(library, places, ".cpp")
    assert {p: found.get(p, 0) for p in places} == {p: told[p + 1] for p in places}
    assert {7, 2001} <= {*found.values()}
    assert {2} <= {*linetable.lines(library, places, ".h").values()}


@pytest.mark.skipif(zig() is None, reason="ziglang is not installed")
def test_a_run_that_nobody_watches_has_no_lines_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    path = cxx.library(cuda.emit(CASES["saxpy"].nest, target("cuda:sm_80"), Options()), watched=False)
    assert lines_of(path, (0, 4096)) == {0: 0, 4096: 0}


def test_where_nobody_asks_for_a_line_no_library_is_read(tmp_path: Path) -> None:
    assert lines_of(tmp_path / "none.so", ()) == {} and lines_of(tmp_path / "none.so", (0,)) == {0: 0}


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
