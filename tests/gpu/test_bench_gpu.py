"""The parts of `bench/gpu.py`, on the fake driver and, where it takes torch, on the CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpu
from gpu_kernels import module
from strange_jobs import strange_job

import polyop
from bench.device import apart, cases, clock, frameworks, helpers, library, speed, twice
from polyop.ir.module import Boxes
from polyop.runtime import device as compilers
from polyop.runtime import emulated
from polyop.runtime.findings import Report
from polyop.runtime.gpu.driver import Device
from tests.library.catalog import IDS

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import gpu as script

ROOT = Path(__file__).parents[2]

# --- wrappers ------------------------------------------------------------------------------------------------------------


def test_a_kernel_that_agrees_is_run_on_the_device_too(cuda: FakeGpu) -> None:
    both = twice.Twice(Device("cuda", 0))
    arrays = {"X": np.arange(32, dtype=np.float32), "Y": np.zeros(32, np.float32)}
    for _ in range(6):
        both(module("Y[t] = pop_shuffle_xor(X[t], 1);", arrays), {}, {}, arrays)
    assert len(cuda.launches) == twice.SAME and both.differ == [] and list(both.agreed.values()) == [twice.SAME]
    np.testing.assert_array_equal(arrays["Y"], np.arange(32) ^ 1)


def test_a_kernel_that_the_emulator_finds_fault_with_stays_away_from_the_device(cuda: FakeGpu) -> None:
    both = twice.Twice(Device("cuda", 0))
    arrays = {"X": np.zeros(32, np.float32), "Y": np.zeros(32, np.float32)}
    report = both(module("Y[0] = X[t] + t;", arrays), {}, {}, arrays)
    assert report.findings and not cuda.launches
    both(module("Y[t] = X[t];", arrays, target="hip:gfx942"), {}, {}, arrays)
    assert not cuda.launches


BOXED = """POP_SHARED_VIEW(X_s, float, 0, 32);
POP_SHARED_VIEW(full, pop_u64, 128, 1);
float* X_s = (float*)(pop_shared + 0);
pop_u64* full = (pop_u64*)(pop_shared + 128);
if (t == 0) {
    pop_mbarrier_init(full, 1);
    pop_mbarrier_fence();
    pop_mbarrier_expect(full, 128);
    pop_tile_load(X_s, X_map, 4, 3, full);
}
pop_barrier();
pop_mbarrier_wait(full, 0);
Y[t] = X_s[t];"""


def test_a_kernel_that_copies_boxes_is_told_by_the_device_how_its_tensor_lies(cuda: FakeGpu) -> None:
    both = twice.Twice(Device("cuda", 0))
    arrays = {"X": np.arange(32, dtype=np.float32).reshape(4, 8), "Y": np.zeros(32, np.float32)}
    boxed = module(BOXED, arrays, shared=136, target="cuda:sm_90a", boxes=(Boxes("X", (1, 0), (8, 4), 0),))
    report = both(boxed, {}, {}, arrays, aligned=True)
    assert str(report) == "no fault found" and both.agreed == {boxed.text: 1} and not both.differ
    assert len(cuda.launches) == 1 and cuda.calls("cuTensorMapEncodeTiled") == 1
    want = np.zeros((4, 8))
    want[0, :4] = np.arange(28, 32)
    np.testing.assert_array_equal(arrays["Y"], want.reshape(-1))


def test_a_device_that_computes_something_else_is_told(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    both = twice.Twice(Device("cuda", 0))
    arrays = {"X": np.zeros(32, np.float32), "Y": np.zeros(32, np.float32)}
    plain = emulated.run

    def other(m: Any, sizes: Any, scalars: Any, given: dict[str, np.ndarray], **how: Any) -> Any:
        report = plain(m, sizes, scalars, given, **how)
        given["Y"][3] += 1
        return report

    both.run = other
    both(module("Y[t] = X[t];", arrays), {}, {}, arrays)
    mine = "test_a_device_that_computes_something_else_is_told: "
    assert both.differ == [f"{mine}k for cuda:sm_80: Y[3] is 0.0, on the emulator 1.0; 1 of 32 differ"]
    cuda.fail("cuLaunchKernel", 900)
    both.run = plain
    both(module("Y[t] = X[t] + 1;", arrays), {}, {}, arrays)
    assert "InternalError: cuda: cuLaunchKernel failed" in both.differ[1]
    seen = len(both.differ)
    both(module("Y[t] = X[t] + 1;", arrays), {}, {}, arrays)  # a text is told of once
    assert len(both.differ) == seen == len(both.wrong)


@pytest.mark.parametrize(("target", "arch", "runs"), [
    ("cuda:sm_80", (8, 0, b""), True), ("cuda:sm_80", (9, 0, b""), True), ("cuda:sm_90a", (9, 0, b""), True),
    ("cuda:sm_90a", (8, 6, b""), False), ("cuda:sm_90", (8, 9, b""), False), ("hip:gfx942", (9, 0, b""), False)])
def test_texts_run_on_their_chip_and_later_ones(cuda: FakeGpu, target: str, arch: tuple[int, int, bytes], runs: bool) -> None:
    cuda.reset(arch=arch)
    assert twice.runs_here(module("", {}, target=target), Device("cuda", 0)) == runs


@pytest.mark.parametrize(("target", "text", "runs"), [
    ("hip:gfx90a", "pop_mfma_f32_16x16x16_f16(d, a, b);", True), ("hip:gfx90a", "pop_mfma_i32_16x16x16_i8(d, a, b);", False),
    ("hip:gfx942", "pop_mfma_i32_16x16x32_i8(d, a, b);", True), ("hip:gfx1100", "", False), ("cuda:sm_80", "", False)])
def test_amds_texts_run_where_their_matrix_units_are(gpu: FakeGpu, target: str, text: str, runs: bool) -> None:
    here = twice.runs_here(module(text, {}, target=target), Device(gpu.family, 0))
    assert here == (runs if gpu.family == "hip" else target.startswith("cuda"))


def test_the_tests_of_the_wrappers_are_what_is_run_twice(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    import pytest as inner

    seen: list[Any] = []
    monkeypatch.setattr(inner, "main", lambda arguments: seen.append((arguments, emulated.run)) or inner.ExitCode.OK)
    before = emulated.run
    made = twice.compared(Device("cuda", 0), only="move")
    assert seen[0][1] is made and emulated.run is before and made.differ == []
    assert [Path(x).name for x in seen[0][0][:2]] == ["test_wrappers.py", "test_matrix.py"] and seen[0][0][-1] == "move"


def test_functions_are_compared_too_though_their_tests_do_not_watch(cuda: FakeGpu) -> None:
    both = twice.Twice(Device("cuda", 0))
    arrays = {"X": np.linspace(0, 1, 32, dtype=np.float32), "Y": np.zeros(32, np.float32)}
    both(module("Y[t] = pop_sigmoid(X[t]);", arrays), {}, {}, arrays, watched=False)
    assert len(cuda.launches) == 1 and both.differ == []
    both(module("Y[0] = X[t] + t;", arrays), {}, {}, arrays, watched=False)  # a race, which nobody has told of so far
    assert len(cuda.launches) == 1


@pytest.mark.parametrize(("want", "near", "far"), [
    (np.array([3e38, 1.0, 2.0], np.float32), [3e38, 1.000001, 2.0], [3e38, 1.001, 2.0]),   # a large one hides no other
    (np.array([100.0, 90.0, 1e-6], np.float32), [100.0, 90.0, 2e-5], [100.0, 90.0, 1e-2]),  # a sum that is nearly 0
    (np.array([np.nan, np.inf, 1], np.float32), [np.nan, np.inf, 1], [np.nan, -np.inf, 1]),
    (np.array([np.nan, np.inf, 1], np.float32), [np.nan, np.inf, 1], [np.nan, 3e38, 1]),
    (np.array([1, np.nan, 1], np.float32), [1, np.nan, 1], [1, 1, 1]),
    (np.array([2**60 + 1, 5], np.int64), [2**60 + 1, 5], [2**60, 5]),
    (np.array([1.0, 2.0], np.float16), [1.001, 2.0], [1.01, 2.0]), (np.array([True, False]), [True, False], [True, True])])
def test_results_agree_but_for_rounding(want: np.ndarray, near: list[float], far: list[float]) -> None:
    assert not twice.apart(np.array(near, want.dtype), want).any()
    assert twice.apart(np.array(far, want.dtype), want).sum() == 1


def test_what_a_kernel_tells_of_the_emulators_memory_is_not_compared(cuda: FakeGpu) -> None:
    made = twice.compared(Device("cuda", 0), ("test_wrappers.py",), "aligned_in_some_orders or test_a_sum_over_the_warp")
    assert made.differ == [] and len(made.agreed) == 1


def test_a_kernel_that_differs_is_told_with_its_test(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(twice, "differs", lambda *given: "Y[0] is 1")
    made = twice.compared(Device("cuda", 0), ("test_wrappers.py",), "test_a_sum_over_the_warp")
    assert made.differ == ["test_a_sum_over_the_warp_takes_five_shuffles: k for cuda:sm_80: Y[0] is 1"]


def test_a_text_with_sizes_is_run_once_for_each_of_them(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(twice, "differs", lambda module, sizes, *given: asked.append(sizes["M"]) or "")
    both = twice.Twice(Device("cuda", 0), run=lambda *given, **how: Report(None, ()))
    for m in (1, 1, 640, 7, 640, 8, 9, 10):
        both(module("Y[t] = X[t];", {}), {"M": m}, {}, {})
    assert asked == [1, 640, 7, 8, 9, 10] and list(both.agreed.values()) == [6]


def test_after_a_fault_nothing_more_is_said_of_the_texts_of_this_process(cuda: FakeGpu) -> None:
    both = twice.Twice(Device("cuda", 0))
    arrays = {"X": np.zeros(32, np.float32), "Y": np.zeros(32, np.float32)}
    cuda.fail("cuLaunchKernel", 1)
    both(module("Y[t] = X[t];", arrays), {}, {}, arrays)  # refused, and the device goes on
    assert len(both.differ) == 1 and not both.lost
    cuda.fail("cuCtxSynchronize", 700)
    both(module("Y[t] = X[t] + 1;", arrays), {}, {}, arrays)
    assert both.lost and both.differ[1].endswith("; the rest of this test was not tried")
    both(module("Y[t] = X[t] + 2;", arrays), {}, {}, arrays)
    assert len(both.differ) == len(both.wrong) == len(both.agreed) == 2


def test_each_test_of_the_wrappers_is_a_job_of_its_own_and_one_that_never_ends_is_told(
        cuda: FakeGpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    every = twice.tests()
    assert len(every) > 80 and {x.partition("::")[0] for x in every} == set(twice.FILES)
    asked: list[str] = []

    def each(f: Any, jobs: Any, *how: Any, is_wrong: Any, **more: Any) -> Any:
        asked.extend(test for _, test in jobs)
        assert is_wrong((3, 1, ["k differs"])) and is_wrong((1, 0, ["the tests fail"])) and not is_wrong((3, 0, []))
        return iter([helpers.Done(0, (3, 1, ["k differs"])), helpers.Done(1, lost="no answer after 60 s"),
                     *(helpers.Done(k, (1, 0, [])) for k in range(2, len(every) - 1))])

    monkeypatch.setattr(helpers, "each", each)
    said = script.wrappers(Device("cuda", 0), 90.0, 4)
    assert asked == every and said["kernels"] == len(every) and "wrappers: " in capsys.readouterr().out
    assert said["differ"] == ["k differs", f"{every[1]}: no answer after 60 s", f"1 tests not done after 90 s: {every[-1]}"]


def test_tests_of_the_emulator_alone_are_none_that_fail(cuda: FakeGpu) -> None:
    (name,) = (t for t in twice.tests() if t.endswith("aligned_in_some_orders_and_not_in_others"))
    made = twice.compared(Device("cuda", 0), (name,))
    assert made.differ == [] and not made.agreed


# --- the library ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["softmax-softmax", "movement-eye", "linalg-gemm_update", "movement-split"])
def test_a_case_of_the_library_is_right_on_a_device(gpu: FakeGpu, name: str) -> None:
    index = next(k for k, x in enumerate(IDS) if x.startswith(name))
    done = library.tried(index, "f32", Device(gpu.family, 0))
    assert done.wrong == "" and done.name == IDS[index] and gpu.launches


def test_a_case_that_goes_wrong_says_how_and_the_rest_goes_on(cuda: FakeGpu) -> None:
    index = IDS.index("linalg-dot")
    cuda.fail("cuLaunchKernel", 2)
    (bad, worse), left = library.all_of([(index, "f32"), (index, "f64")], Device("cuda", 0), 60, 1)
    assert "InternalError: cuda: cuLaunchKernel failed" in bad.wrong and worse.wrong and left == 0
    assert library.all_of([(index, "f32")], Device("cuda", 0), -1, 1) == ([], 1)


def test_each_case_has_its_first_dtype_and_those_asked_for() -> None:
    assert len(library.jobs()) == len(IDS) and len(library.jobs(("f16",))) > len(IDS)


# --- speed ------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage() -> speed.Stage:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    return speed.limits(speed.Stage(torch, "cpu", clock.Walls(), 4096), 1.0, small=True)


def test_what_a_machine_can_do_is_measured(stage: speed.Stage) -> None:
    assert stage.copy > 0 and stage.peak > 0


EACH = {(c.group, c.op, str(c.also)): c for c in cases.cases(small=True)}
"""One case of each operator and what torch does instead; others of it have other sizes and dtypes."""


@pytest.mark.parametrize("case", EACH.values(), ids=lambda c: f"{c.group} {c.name}")
def test_each_case_agrees_with_torch_in_float64(stage: speed.Stage, case: cases.Case) -> None:
    row = speed.measured(case, stage, 0.1, compiled=False)
    assert row.wrong == "" and set(row.ms) == {"polyop", "torch"} and row.ratio > 0, row


def test_a_case_that_cannot_be_measured_says_why(stage: speed.Stage) -> None:
    case = cases.cases(small=True)[0]
    broken = cases.Case(**{**{n: getattr(case, n) for n in case.__dataclass_fields__}, "peer": lambda torch, *a: a[0] + 1})
    row = speed.measured(broken, stage, 0.1, compiled=False)
    assert row.wrong.startswith("off by ") or row.wrong.startswith("RuntimeError")
    assert speed.line(speed.missing(case, "no time was left")).endswith("no time was left")
    assert speed.line(row).endswith(row.wrong)


def test_a_peer_that_cannot_take_part_is_told(stage: speed.Stage) -> None:
    case = next(c for c in cases.cases(small=True) if c.group == "conv")
    assert speed.measured(case, stage, 0.1, compiled=True).said == "triton: it has no code for a CPU"


def test_a_compiler_that_refuses_leaves_the_others_be(stage: speed.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(f: Any, dynamic: bool) -> Any:
        raise RuntimeError("no working triton")

    monkeypatch.setattr(stage.torch, "compile", lambda f, dynamic: partial(refuses, f, dynamic))
    row = speed.measured(next(c for c in cases.cases(small=True) if c.fused), stage, 0.1, compiled=True)
    assert set(row.ms) == {"polyop", "torch"} and row.wrong == ""
    assert row.said.startswith("torch.compile: ") and "triton: it has no code for a CPU" in row.said


def test_torch_compiles_each_case_however_many_there_are(stage: speed.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, made = stage.torch, list[Any]()
    counted = partial(torch.compile, backend=lambda graph, given: made.append(graph) or graph.forward)
    monkeypatch.setattr(torch, "compile", counted)
    case = next(c for c in cases.cases(small=True) if c.op == "silu")
    for k in range(10):  # of one function torch compiles eight variants, and then carries it out as it is
        x = torch.ones(k + 2)
        (ways,) = (ways for name, ways in speed._peers(case, stage, [x], True) if name == "torch.compile")
        assert torch.equal(ways[0](x), torch.nn.functional.silu(x)) and len(made) == k + 1


def test_what_torch_does_is_the_fastest_of_its_ways_that_are_right(stage: speed.Stage) -> None:
    case = next(c for c in cases.cases(small=True) if c.group == "attention" and c.others)

    def slow(torch: Any, *given: Any) -> Any:
        time.sleep(0.2)
        return case.peer(torch, *given)

    row = speed.measured(replace(case, peer=slow, others=(case.peer, lambda torch, q, k, v: 0 * q)), stage, 0.1, compiled=False)
    assert row.wrong == row.said == "" and row.ms["torch"] < 200


def test_the_fastest_right_way_of_triton_is_measured(stage: speed.Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    torch, case = stage.torch, next(c for c in cases.cases(small=True) if c.op == "softmax")

    def slow(x: Any) -> Any:
        time.sleep(0.5)
        return torch.softmax(x, -1)

    def refuses(x: Any) -> Any:
        raise RuntimeError("out of resource: shared memory")

    ways = [lambda x: 0 * x, refuses, slow, lambda x: torch.softmax(x, -1)]
    fake = ModuleType("bench.device.triton_peers")
    monkeypatch.setattr(fake, "ways", lambda op, tensors: ways, raising=False)
    monkeypatch.setitem(sys.modules, "bench.device.triton_peers", fake)
    monkeypatch.setattr("bench.device.triton_peers", fake, raising=False)
    on = speed.Stage(torch, "cpu:0", stage.clock, stage.l2, stage.copy, stage.peak)
    row = speed.measured(replace(case, fused=False), on, 0.1, compiled=True)
    assert set(row.ms) == {"polyop", "torch", "triton"} and row.said == "" and row.ms["triton"] < 500
    del ways[2:]
    row = speed.measured(replace(case, fused=False), on, 0.1, compiled=True)
    assert row.wrong == "" and row.said == "triton: RuntimeError: out of resource: shared memory"


# --- processes that may die ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 3])
def test_a_job_that_kills_its_process_does_not_stop_the_others(tmp_path: Path, workers: int) -> None:
    jobs = [(k, str(tmp_path)) for k in range(6)]
    done = sorted(helpers.each(strange_job, jobs, 100, workers, longest=2, is_wrong=lambda r: r == 40), key=lambda d: d.index)
    assert [(d.result, d.lost) for d in done] == [
        (0, ""), (None, "its process ended with 7"), (None, "ValueError: no such thing"), (None, "no answer after 2 s"),
        (40, ""), (50, "")]
    if workers == 1:
        assert len(list(tmp_path.iterdir())) == 5  # behind each of 1 to 4 there was a new process


def test_jobs_that_do_not_fit_into_the_time_are_left(tmp_path: Path) -> None:
    start = time.monotonic()
    assert list(helpers.each(strange_job, [(3, str(tmp_path)), (0, str(tmp_path))], 4.0)) == []
    assert time.monotonic() - start < 30 and list(helpers.each(strange_job, [(0, str(tmp_path))], -1.0)) == []


def test_arrays_are_so_many_that_none_is_in_the_cache(stage: speed.Stage) -> None:
    case = next(c for c in cases.cases(small=True) if c.group == "softmax")
    sets = speed.arrays(case, stage)
    bytes_ = sum(x.numel() * x.element_size() for s in sets for x in s)
    assert bytes_ >= 2 * stage.l2 and len({x.data_ptr() for s in sets for x in s}) == len(sets)


def test_calls_take_turns_and_their_median_counts() -> None:
    class Told:
        def __init__(self) -> None:
            self.asked: list[tuple[int, int]] = []

        def ms(self, call: clock.Call, times: int, sets: int) -> float:
            self.asked.append((call(0), times))
            return float(call(0))

    told = Told()
    assert clock.timed([lambda k: 1, lambda k: 2], 3, told, 100.0, rounds=3) == [1.0, 2.0]
    assert told.asked[4:] == [(1, 33), (2, 16)] * 3


# --- the script ---------------------------------------------------------------------------------------------------------------


def test_without_a_gpu_the_script_says_so(cuda: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.reset(devices=0)
    assert script.main([]) == 2
    assert "there is no GPU here: no CUDA device can be used" in capsys.readouterr().out


def test_without_a_compiler_the_script_says_so_once(cuda: FakeGpu, capsys: pytest.CaptureFixture[str],
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "unavailable", lambda family: f"no {family} here")
    assert script.main([]) == 2
    assert capsys.readouterr().out == "cuda:0 is sm_90, and there are no kernels for it: no cuda here\n"


def test_the_script_says_what_is_wrong_and_writes_it_down(cuda: FakeGpu, capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [(IDS.index("linalg-dot"), "f32")]
    monkeypatch.setattr(library, "jobs", lambda dtypes: jobs)
    arguments = ["library", "--workers", "1", "--json", str(tmp_path / "x.json")]
    assert script.main(arguments) == 0
    assert "library: 1 of 1 cases agree with float64, 0 were left" in capsys.readouterr().out
    cuda.fail("cuLaunchKernel", 2)
    assert script.main(arguments) == 1
    said = json.loads((tmp_path / "x.json").read_text())
    assert said["device"] == "sm_90" and said["library"]["wrong"][0]["name"] == "linalg-dot"


def test_a_run_says_its_day_and_whose_versions(cuda: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "jobs", lambda dtypes: [])
    assert script.main(["library", "--workers", "1", "--json", str(tmp_path / "x.json")]) == 0
    said = json.loads((tmp_path / "x.json").read_text())
    assert (said["made_for"], said["driver"]) == ("cuda:sm_90a", "CUDA 12.4") and date.fromisoformat(said["date"])
    assert said["versions"]["polyop"] == polyop.__version__ and said["versions"]["numpy"] == np.__version__


def test_a_result_without_a_number_is_written_down_so_that_all_can_read_it(cuda: FakeGpu, tmp_path: Path,
                                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(speed.missing(cases.cases()[0], ""), error=float("inf"), wrong="off by inf of the norm", ms={"polyop": 1.0})
    said = {"device": "G", "rows": [asdict(row)]}
    monkeypatch.setattr(script, "speeds", lambda *given: said)
    assert script.main(["speed", "--json", str(tmp_path / "x.json")]) == 1

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    read = json.loads((tmp_path / "x.json").read_text(), parse_constant=refuse)
    assert read["speed"]["rows"][0]["error"] == "inf" and read["speed"]["rows"][0]["ms"] == {"polyop": 1.0}


@pytest.mark.parametrize(("part", "package"), [("wrappers", "pytest"), ("nests", "pytest"), ("library", "scipy")])
def test_a_part_whose_packages_are_not_there_says_so_and_the_rest_goes_on(
        cuda: FakeGpu, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, part: str, package: str) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *more: None if n == package else found(n, *more))
    assert script.main([part, "--workers", "1"]) == 2
    said = capsys.readouterr().out
    assert f"{part}: nothing can be compared: {package} is not installed: `polyop[test]` brings it" in said


def test_the_script_begins_without_the_packages_of_the_tests() -> None:
    blocked = "import sys; sys.modules.update(dict.fromkeys(('pytest', 'scipy', 'hypothesis'))); import bench.gpu"
    subprocess.run([sys.executable, "-c", blocked], cwd=ROOT, check=True)


@pytest.mark.parametrize(("arch", "asked"), [((9, 0, b""), True), ((8, 0, b""), False)])
def test_units_of_ampere_are_measured_on_a_hopper_alone(cuda: FakeGpu, arch: tuple[int, int, bytes], asked: bool,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.reset(arch=arch)
    given: list[int] = []

    def each(f: Any, jobs: Any, *how: Any, **more: Any) -> Any:
        if f is not apart.machine:
            given.extend(k for k, *_ in jobs)
        return iter([helpers.Done(0, ("G", "1", 1.0, 1.0))] if f is apart.machine else [])

    monkeypatch.setattr(helpers, "each", each)
    said = script.speeds(Device("cuda", 0), 9.0, ["gemm"], False, lambda r: None)
    chosen = [cases.cases()[k] for k in given]
    assert [c.group for c in chosen] == ["gemm"] * (6 if asked else 5) and len(said["rows"]) == len(chosen)
    assert [c.target for c in chosen if c.name.endswith("mma.sync")] == ["cuda:sm_90"] * asked
    assert all(speed._operator(c).target == (c.target or "x86") for c in chosen)


@pytest.mark.parametrize("check", [frameworks.own_arrays, frameworks.faults, frameworks.two_places], ids=lambda c: c.__name__)
def test_what_users_do_is_checked_on_the_fake_device_too(check: Any, cuda: FakeGpu) -> None:
    k = frameworks.CHECKS.index(check)
    said, wrong = frameworks.tried(k, Device("cuda", 0))
    assert said and not wrong


def test_a_check_of_what_users_do_can_fail(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frameworks, "product", lambda a, b: a.astype(float) @ b.astype(float) + 0.01)
    said, wrong = frameworks.tried(frameworks.CHECKS.index(frameworks.own_arrays), Device("cuda", 0))
    assert not said and wrong.startswith("AssertionError")
    monkeypatch.setattr(polyop, "synchronize", lambda: None)
    assert "nobody said" in frameworks.tried(frameworks.CHECKS.index(frameworks.faults), Device("cuda", 0))[1]


def test_the_script_says_which_calls_are_wrong(cuda: FakeGpu, capsys: pytest.CaptureFixture[str],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [helpers.Done(0, ("GpuArray", "")), helpers.Done(1, ("", "AssertionError: no")), helpers.Done(2, lost="it ended")]
    monkeypatch.setattr(helpers, "each", lambda *a, **k: iter(seen))
    assert script.main(["calls"]) == 1
    said = capsys.readouterr().out
    for line in ("1 of 8", "own_arrays: GpuArray", "faults: AssertionError: no", "two_places: it ended", "cost: no time"):
        assert line in said


def test_the_script_says_which_wrappers_differ(cuda: FakeGpu, capsys: pytest.CaptureFixture[str],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    made = twice.Twice(Device("cuda", 0), agreed={"a": 1, "b": 2}, differ=["k for cuda:sm_80: Y[0] is 1"], wrong={"a"})
    monkeypatch.setattr(twice, "compared", lambda device, files: made)
    assert script.main(["wrappers", "--workers", "1"]) == 1
    assert "wrappers: 1 of 2 kernels agree with the emulator" in capsys.readouterr().out
    assert script.main(["nests", "--workers", "1"]) == 1
    assert "nests: 1 of 2 kernels agree with the emulator" in capsys.readouterr().out


def test_every_test_that_a_device_carries_out_too_is_there() -> None:
    assert all((twice.TESTS / f).exists() for f in (*twice.FILES, *twice.NESTS)) and not set(twice.FILES) & set(twice.NESTS)
    assert all(len(twice.tests((f,))) > 0 for f in (*twice.FILES, *twice.NESTS))


def test_what_was_measured_is_a_page() -> None:
    rows = [speed.Row("gemm", "a", {"polyop": 2.0, "torch": 3.0, "triton": 4.0}, 10, 20, 0.5, 0.25, 0),
            speed.Row("gemm", "b", {"polyop": 2.0, "torch": 1.0}, 10, 20, 0.5, 0.25, 0, "off by 1"),
            speed.missing(cases.cases(small=True)[0], "it ended")]
    text = speed.page({"device": "G", "torch": "2", "copy": 1e12, "peak": 5e14, "rows": [asdict(r) for r in rows]})
    assert f"Mean over the fastest peer: gemm {(1.5 * 0.5)**0.5:.2f}." in text
    assert "| gemm | a | 2000.0 | 10 | 50% | 20.0 | 25% | 1.50 |  | 2.00 |" in text and "| b (off by 1) |" in text
    assert {line.count("|") for line in text.splitlines() if line.startswith("|")} == {11} and "it ended" in text


def test_a_torch_without_a_gpu_measures_nothing(cuda: FakeGpu, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    assert script.main(["speed"]) == 0
    assert "speed: nothing can be measured: UnsupportedError: this torch sees no GPU" in capsys.readouterr().out


def test_what_was_measured_is_kept_after_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    kept: list[int] = []
    said = script.speeds(None, 200.0, ["pooling", "decode"], False, lambda r: kept.append(len(r["rows"])))
    assert kept == [1, 2, 3, 4] and [r["group"] for r in said["rows"]] == ["decode", "decode", "pooling", "pooling"]
    assert not any(r["wrong"] for r in said["rows"]) and "decode" in capsys.readouterr().out
    late = script.speeds(None, 0.0, [], False, lambda r: None)
    assert late == {"missing": "no time was left"}
