"""Operators for a GPU with NumPy arrays: on a device if there is one that runs the target's code, else on the emulator."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from fake_gpu import FakeGpu

from polyop.cli.look import targets
from polyop.cli.named import called
from polyop.dsl.parse import parse
from polyop.ir.errors import CallError, InternalError
from polyop.ir.module import Module
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.program import operator
from polyop.rehearsal import OnDevice, Rehearsal, device_for
from polyop.runtime import emulated
from polyop.runtime.emulated import Report
from polyop.runtime.gpu.driver import Device

TEXT = parse(Source("t", """
op both(X: f32[N]; a: f32) -> (Y: f32[N], Z: f32[N]) { Y[i] = a * X[i]; Z[i] = X[i] + a }
op gather(E: f32[V], ids: i32[N]) -> (Y: f32[N]) { Y[i] = E[ids[i]] }
op products(A: f16[B, H, M, K], W: f16[B, H, K, N]) -> (C: f32[B, H, M, N]) {
  C[b, h, m, n] += f32(A[b, h, m, k]) * f32(W[b, h, k, n])
}
op bump(inout X: f32[N]) { X[i] = X[i] + 1 }
"""))
X = np.arange(5, dtype=np.float32)
NATIVE = {"cuda": "cuda:sm_90a", "hip": "hip:gfx942"}


def test_where_there_is_a_device_it_runs_there(gpu: FakeGpu) -> None:
    both = called(TEXT, "both", NATIVE[gpu.family])
    assert isinstance(both, OnDevice) and str(both) == f"on {gpu.family}:0, copies to and fro included"
    y, z = both(X=X, a=2.0)
    np.testing.assert_array_equal(y, 2 * X)
    np.testing.assert_array_equal(z, X + 2)
    np.testing.assert_array_equal(called(TEXT, "bump", NATIVE[gpu.family])(X=X.copy()), X + 1)
    assert gpu.launches


def test_emulation_can_be_asked_for_where_there_is_a_device(gpu: FakeGpu) -> None:
    both = called(TEXT, "both", NATIVE[gpu.family], emulate=True)
    np.testing.assert_array_equal(both(X=X, a=2.0)[0], 2 * X)
    assert isinstance(both, Rehearsal) and not gpu.launches


def test_a_device_that_does_not_run_the_code_is_left_alone(cuda: FakeGpu) -> None:
    assert device_for(target("cuda:sm_90")) == device_for(target("cuda:sm_90a")) == Device("cuda", 0)
    assert device_for(target("cuda:sm_80")) is None
    cuda.reset(arch=(8, 6, b""))
    assert device_for(target("cuda:sm_80")) == Device("cuda", 0)
    cuda.reset(devices=0)
    assert device_for(target("cuda:sm_90a")) is None


def test_targets_say_what_runs_where(gpu: FakeGpu) -> None:
    done = " ".join(CliRunner().invoke(targets, []).output.split())
    assert {"cuda": "; runs on cuda:0, which is sm_90", "hip": "; runs on hip:0, which is gfx942"}[gpu.family] in done
    gpu.reset(devices=0)
    done = " ".join(CliRunner().invoke(targets, []).output.split())
    assert "runs on" not in done and "no CUDA device can be used" in done and "no HIP device can be used" in done


def test_what_lies_outside_is_told_by_the_call_itself(gpu: FakeGpu) -> None:
    with pytest.raises(CallError, match=r"`E\[ids\[i\]\]` reads outside `E`"):
        called(TEXT, "gather", NATIVE[gpu.family])(E=X, ids=np.array([9], np.int32))


def test_a_thorough_rehearsal_takes_every_order(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def run(module: object, sizes: object, scalars: object, arrays: dict[str, np.ndarray], **how: str) -> Report:
        seen.append((how["order"], how["completion"]))
        arrays["X_out" if "X_out" in arrays else next(iter(arrays))][...] += 1
        return Report(None, ())

    monkeypatch.setattr(emulated, "run", run)
    bump = called(TEXT, "bump", "cuda:sm_80", thorough=True)
    assert isinstance(bump, Rehearsal) and "in 6 orders" in str(bump)
    bump(X=X.copy())
    assert len(set(seen)) == len(seen) == 6
    seen.clear()
    called(TEXT, "bump", "hip:gfx942", thorough=True)(X=X.copy())
    assert seen == [("forward", "late"), ("backward", "late"), ("shuffled", "late")]


def test_a_fault_in_one_order_is_one_of_the_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*_: object, order: str, **__: object) -> Report:
        return Report(None, (emulated.Finding("race", "k", "X", (0,), "by all"),) if order == "shuffled" else ())

    monkeypatch.setattr(emulated, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    called(TEXT, "bump", "cuda:sm_80")(X=X.copy())
    with pytest.raises(InternalError, match="threads shuffled: race in k"):
        called(TEXT, "bump", "cuda:sm_80", thorough=True)(X=X.copy())


@pytest.mark.parametrize(("where", "kind"), [("cuda:sm_80", ".cu"), ("hip:gfx942", ".hip")])
def test_a_fault_says_where_the_text_lies_whose_line_it_names(
        where: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts: list[str] = []

    def run(module: Module, *_: object, **__: object) -> Report:
        texts.append(module.text)
        return Report(None, (emulated.Finding("race", "k", "X", (0,), "by all", 3, "code"),))

    monkeypatch.setattr(emulated, "run", run)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(InternalError) as raised:
        called(TEXT, "bump", where, emulate=True)(X=X.copy())
    (path,) = tmp_path.iterdir()
    assert path.suffix == kind and path.read_text(encoding="utf-8") == texts[0]
    assert str(raised.value).endswith(f"line 3: `code`\nlines are of {path}")


@pytest.mark.parametrize(("rows", "bits"), [(1000, 32), (65536, 64)])
def test_what_is_shown_of_a_large_call_counts_places_in_64_bits(rows: int, bits: int) -> None:
    shown = operator(TEXT, "products", Options()).compile("cuda:sm_80", sizes={"B": 1, "H": 1, "M": rows, "K": 16, "N": rows})
    assert ("indices have 32 bits" in shown.source) == (bits == 32)
    assert ("pop_i64" in shown.source) == (bits == 64)


@pytest.mark.parametrize("sizes", [(2, 3, 40, 70, 33), (1, 1, 5, 3000, 1)])
def test_what_is_shown_of_a_call_is_the_very_text_that_it_runs(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []

    def run(module: Module, *_: object, **__: object) -> Report:
        texts.append(module.text)
        return Report(None, ())

    monkeypatch.setattr(emulated, "run", run)
    b, h, m, k, n = sizes
    arrays = {"A": np.zeros((b, h, m, k), np.float16), "W": np.zeros((b, h, k, n), np.float16)}
    called(TEXT, "products", "cuda:sm_80", emulate=True)(**arrays)
    shown = operator(TEXT, "products", Options()).compile("cuda:sm_80", sizes=dict(zip("BHMKN", sizes, strict=True)))
    assert texts == [shown.source] and f"calls with B = {b}, H = {h}" in shown.explain()
    assert "\n// proved of its loops, for all sizes of at least 1 at once: the nest makes sense" in shown.source
    assert n == 1 or re.search(r"// A_S0_tile0: a tile of A, \d x \d+ x \d+", shown.source)
