"""What a printed kernel computes on the emulator is what the interpreter says the nest means."""

from __future__ import annotations

import numpy as np
import pytest
from gpu_cases import CASES, Case, data
from gpu_texts import compiled

from polyop.codegen import cuda, hip
from polyop.ir.errors import UnsupportedError
from polyop.ir.interpret import PositionError, interpret
from polyop.ir.module import Module
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, room

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)


def printed(case: Case, name: str) -> Module:
    row = target(name)
    return {"cuda": cuda, "hip": hip}[row.family].emit(case.nest, row, Options())


def close(a: np.ndarray, b: np.ndarray) -> None:
    """Equal but for the order of rounding in transcendental functions."""
    if a.dtype.kind in "iub":
        np.testing.assert_array_equal(a, b)
    else:
        eps = 2.0**-8 if a.dtype.itemsize == 2 else float(np.finfo(a.dtype).eps) * 8
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=eps, atol=eps)


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("name", CASES)
def test_an_emulated_kernel_computes_what_the_interpreter_says_without_a_fault(name: str, order: str) -> None:
    case = CASES[name]
    for sizes in case.sizes:
        arrays, expected = data(case, sizes), data(case, sizes)
        report = emulated.run(printed(case, "cuda:sm_80"), sizes, case.scalars, arrays, order=order)
        assert str(report) == "no fault found"
        interpret(case.nest, sizes, case.scalars, expected)
        for x in arrays:
            close(arrays[x], expected[x])


@pytest.mark.parametrize("name", ["matmul", "heat", "dot_f16"])
def test_hip_text_computes_the_same_and_so_does_a_run_that_nobody_watches(name: str) -> None:
    case = CASES[name]
    arrays, expected = data(case, case.sizes[0]), data(case, case.sizes[0])
    emulated.run(printed(case, "hip:gfx942"), case.sizes[0], case.scalars, arrays, watched=False)
    interpret(case.nest, case.sizes[0], case.scalars, expected)
    for x in arrays:
        close(arrays[x], expected[x])


def test_a_text_that_has_run_for_long_and_one_whose_accesses_are_counted_is_not_built_in_a_hurry(
        monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[bool] = []
    library = cxx.library
    monkeypatch.setattr(cxx, "library", lambda m, w, quick: built.append(quick) or library(m, w, quick))
    monkeypatch.setattr(emulated, "_ran", {})
    case = CASES["softmax"]
    module, sizes = printed(case, "cuda:sm_80"), {"M": 3, "N": 20}
    results = []
    for seconds, banks in ((1e9, False), (0.0, False), (1e9, True)):
        monkeypatch.setattr(emulated, "LONG", seconds)
        arrays = data(case, sizes)
        assert str(emulated.run(module, sizes, {}, arrays, banks=banks)) == "no fault found"
        results.append(arrays["Y"].tobytes())
    assert built == [True, False, False] and len({*results}) == 1


def test_a_position_outside_its_tensor_is_reported_as_the_interpreter_reports_it() -> None:
    case = CASES["gather"]
    arrays = data(case, case.sizes[0])
    arrays["ids"][4] = 5
    with pytest.raises(PositionError) as outside:
        interpret(case.nest, case.sizes[0], {}, data(case, case.sizes[0]) | {"ids": arrays["ids"]})
    report = emulated.run(printed(case, "cuda:sm_80"), case.sizes[0], {}, arrays)
    assert report.site == outside.value.load
    assert report.findings == ()


def test_a_store_at_a_position_outside_is_reported_and_not_carried_out() -> None:
    case = CASES["scatter"]
    arrays = data(case, case.sizes[0])
    arrays["ids"][3] = 7
    report = emulated.run(printed(case, "cuda:sm_80"), case.sizes[0], {}, arrays)
    assert str(report.site) == "Y[ids[i]]"
    assert report.findings == ()


ROWS = "op rows(E: f32[V, D], ids: i32[N]) -> (Y: f32[N, D]) {{ Y[i, d] = {} }}"


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
@pytest.mark.parametrize(("read", "needed"), [
    ("(E[ids[i], d] else 7)", False), ("ids[i] >= 0 ? E[ids[i], d] : 7", False), ("E[ids[i], d]", True)])
def test_rows_that_are_not_needed_may_be_outside_where_neighbours_are_moved_at_once(read: str, needed: bool, on: str) -> None:
    made = compiled(ROWS.format(read), on=on).module
    assert made is not None and "pop_wide<4>" in made.text
    for d, order in zip((1, 35, 36), emulated.ORDERS, strict=True):
        table, ids = np.arange(5 * d, dtype=np.float32).reshape(5, d), np.array([4, -1, 0, 2], np.int32)
        arrays = {"E": table, "ids": ids, "Y": np.zeros((4, d), np.float32)}
        report = emulated.run(made, {"V": 5, "D": d, "N": 4}, {}, arrays, order=order)
        assert (report.site is not None) == needed and report.findings == ()
        if not needed:
            np.testing.assert_array_equal(arrays["Y"], np.where(ids[:, None] >= 0, table[ids], 7))


def test_inputs_with_any_strides_are_accepted() -> None:
    case = CASES["saxpy"]
    arrays = data(case, {"N": 300})
    expected = np.float32(1.5) * arrays["X"][::-1] + arrays["Z"]
    arrays["X"] = arrays["X"][::-1]
    emulated.run(printed(case, "cuda:sm_80"), {"N": 300}, case.scalars, arrays)
    np.testing.assert_allclose(arrays["Y"], expected, rtol=1e-6)


def test_a_run_that_memory_has_no_room_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["saxpy"]
    module = cuda.emit(case.nest, target("cuda:sm_80"), Options())
    monkeypatch.setattr(room, "free", lambda: 3 * 200 * 38)  # three tensors
    emulated.run(module, {"N": 200}, case.scalars, data(case, {"N": 200}))
    with pytest.raises(UnsupportedError, match=r"the emulator needs .* GiB for arrays of these sizes"):
        emulated.run(module, {"N": 201}, case.scalars, data(case, {"N": 201}))
