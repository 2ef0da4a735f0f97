"""Scans on a GPU: threads have chunks of a row, whose totals they scan; values, races and proofs at sizes around each edge."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.making import Job, Way, make
from polyop.poly.middle import scop_of
from polyop.rewrite.regimes.block_regimes import rows_apart
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.sums.scans import cut_scans
from polyop.runtime import amdgcn, cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage
from polyop.trace import Recorder

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

EACH = {"f64": 4, "f32": 8, "i32": 8, "f16": 16, "i64": 4, "i8": 16}
BLOCK = 128
NUMPY = {"cumsum": np.cumsum, "cumprod": np.cumprod, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate}


@cache
def op_of(name: str, dtype: str = "f32") -> Op:
    o = polyop.library(name)
    return o._op(o.choice(dtypes={"T": dtype}))


@cache
def made(name: str, dtype: str = "f32", where: str = "cuda:sm_80", options: Options | None = None) -> Compiled:
    op = op_of(name, dtype)
    return compile_op(op, contiguous(op), target(where), options or Options())


def ran(c: Compiled, arrays: dict[str, np.ndarray], sizes: dict[str, int], scalars: dict[str, float] | None = None,
        **how: str) -> str:
    assert c.module is not None and c.rung == "tuned" and all(p.holds for p in c.proofs), c.notes
    return str(emulated.run(c.module, sizes, scalars or {}, arrays, **how))


def row(dtype: str, shape: tuple[int, ...], name: str = "cumsum") -> np.ndarray:
    """Numbers whose sums and products are exact in any order."""
    g = np.random.default_rng(sum(shape))
    t = DTYPES[dtype].numpy
    if name == "cumprod":
        return g.choice([1, -1], shape).astype(t)
    return g.integers(-1, 2, shape).astype(t)


def edges(dtype: str) -> tuple[int, ...]:
    each = EACH[dtype]
    block = BLOCK * each
    return (1, 2, each - 1, each, each + 1, 31, 32, 33, 97, 509, block - 1, block, block + 1, 2 * block + each + 3)


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "i32", "i64", "i8"])
@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_a_sum_of_all_before_is_right_at_every_edge_of_chunks_and_blocks(where: str, dtype: str) -> None:
    c = made("cumsum", dtype, where)
    assert "scanned" in str(c.chosen)
    for k, n in enumerate(edges(dtype)):
        x = row(dtype, (2, n))
        arrays = {"X": x, "Y": np.zeros_like(x)}
        assert ran(c, arrays, {"N": n, "dim0": 2}, order=emulated.ORDERS[k % 3]) == "no fault found"
        np.testing.assert_array_equal(arrays["Y"], np.cumsum(x, 1, dtype=x.dtype))


@pytest.mark.parametrize("name", ["cumprod", "cummax", "cummin"])
@pytest.mark.parametrize("dtype", ["f32", "i32", "f16"])
def test_products_and_extremes_scan_alike(name: str, dtype: str) -> None:
    c = made(name, dtype)
    assert "scanned" in str(c.chosen)
    for n in (1, 33, 127, 8 * BLOCK + 1):
        x = row(dtype, (3, n), name)
        arrays = {"X": x, "Y": np.zeros_like(x)}
        assert ran(c, arrays, {"N": n, "dim0": 3}) == "no fault found"
        np.testing.assert_array_equal(arrays["Y"], NUMPY[name](x, axis=1))


@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_columns_are_scanned_side_by_side(dtype: str) -> None:
    c = made("cumsum_columns", dtype)
    assert "side by side" in str(c.chosen)
    for k, (n, d) in enumerate(((1, 1), (15, 33), (16, 32), (65, 7), (511, 33), (530, 3), (1030, 35))):
        x = row(dtype, (n, d))
        arrays = {"X": x, "Y": np.zeros_like(x)}
        assert ran(c, arrays, {"N": n, "dim0": d}, order=emulated.ORDERS[k % 3]) == "no fault found"
        np.testing.assert_array_equal(arrays["Y"], np.cumsum(x, 0))


@pytest.mark.parametrize("n", [1, 33, 1023, 1025])
def test_a_scan_may_start_at_the_end_or_leave_out_its_own_element(n: int) -> None:
    x = row("f32", (2, n))
    for name, want in (("cumsum_reverse", np.cumsum(x[:, ::-1], 1)[:, ::-1]), ("cumsum_exclusive", np.cumsum(x, 1) - x)):
        c = made(name)
        arrays = {"X": x, "Y": np.zeros_like(x)}
        assert "scanned" in str(c.chosen) and ran(c, arrays, {"N": n, "dim0": 2}) == "no fault found"
        np.testing.assert_array_equal(arrays["Y"], want)


def stepped(a: np.ndarray, x: np.ndarray, first: np.ndarray) -> np.ndarray:
    out, h = np.zeros_like(x), first
    for t in range(len(x)):
        h = a[t] * h + x[t]
        out[t] = h
    return out


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx90a", "hip:gfx1100"])
def test_linear_recurrences_scan_pairs(where: str) -> None:
    c = made("linear_recurrence", "f32", where)
    assert "scanned" in str(c.chosen)
    g = np.random.default_rng(3)
    for n, d in ((1, 1), (63, 33), (65, 5), (200, 32)):
        a, x, h = (g.uniform(-1, 1, s).astype(np.float32) for s in ((n, d), (n, d), (d,)))
        arrays = {"A": a, "X": x, "h0": h, "H": np.zeros_like(x)}
        assert ran(c, arrays, {"L": n, "D": d}) == "no fault found"
        np.testing.assert_allclose(arrays["H"], stepped(*(z.astype(np.float64) for z in (a, x, h))), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx1100"])
def test_factors_alone_may_be_larger_than_16_bits_hold(where: str) -> None:
    c, a = made("linear_recurrence", "f16", where), np.full((100, 2), 2, np.float16)
    x, h = np.zeros((100, 2), np.float16), np.array([0, 2.0**-24], np.float16)
    a[24:, 1] = 0.5
    arrays = {"A": a, "X": x, "h0": h, "H": np.full_like(x, 7)}
    assert ran(c, arrays, {"L": 100, "D": 2}) == "no fault found"
    want = stepped(*(z.astype(np.float64) for z in (a, x, h)))
    assert not arrays["H"][:, 0].any()  # infinity times 0 would be no number
    np.testing.assert_allclose(arrays["H"][:, 1], want[:, 1], rtol=2e-3, atol=2.0**-24)


def test_a_moving_average_and_discounted_returns_are_such_recurrences() -> None:
    g = np.random.default_rng(4)
    x = g.uniform(-1, 1, (2, 1100)).astype(np.float32)
    c = made("ema")
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert "scanned" in str(c.chosen) and ran(c, arrays, {"N": 1100, "dim0": 2}, {"alpha": 0.25}) == "no fault found"
    y = x.astype(np.float64)
    want = stepped(np.full((1100, 1), 0.75), np.concatenate([y[:, :1], 0.25 * y[:, 1:]], 1).T, np.zeros(2)).T
    np.testing.assert_allclose(arrays["Y"], want, rtol=1e-4, atol=1e-5)
    r = g.uniform(-1, 1, (131, 40)).astype(np.float32)
    c = made("discounted_returns")
    arrays = {"R": r, "G": np.zeros_like(r)}
    assert "scanned" in str(c.chosen) and ran(c, arrays, {"L": 131, "B": 40}, {"discount": 0.9}) == "no fault found"
    want = stepped(np.full((131, 1), 0.9), r.astype(np.float64)[::-1], np.zeros(40))[::-1]
    np.testing.assert_allclose(arrays["G"], want, rtol=1e-4, atol=1e-5)


def test_the_states_of_a_selective_scan_are_one_and_what_reads_them_stands_alone() -> None:
    c = made("selective_scan")
    g = np.random.default_rng(5)
    n, d, m = 70, 3, 5
    x, dt = (g.uniform(0, 1, (n, d)).astype(np.float32) for _ in range(2))
    a, b, read = -g.uniform(0, 1, (d, m)).astype(np.float32), *(g.uniform(-1, 1, (n, m)).astype(np.float32) for _ in range(2))
    skip = g.uniform(-1, 1, d).astype(np.float32)
    arrays = {"X": x, "dt": dt, "A": a, "B": b, "C": read, "skip": skip, "Y": np.zeros_like(x)}
    assert "scanned" in c.chosen[0] and "spread" in c.chosen[1]
    assert ran(c, arrays, {"L": n, "D": d, "N": m}) == "no fault found"
    decay = np.exp(dt[:, :, None].astype(np.float64) * a)
    states = stepped(decay, dt[:, :, None] * b[:, None, :] * x[:, :, None].astype(np.float64), np.zeros((d, m)))
    np.testing.assert_allclose(arrays["Y"], (states * read[:, None, :]).sum(2) + skip * x, rtol=1e-4, atol=1e-5)


def test_what_follows_a_scan_reads_its_result() -> None:
    o = polyop.op("op f(X: f32[R, N]) -> (Y: f32[R, N], Z: f32[R, N], s: f32[R]) {\n  Y[r, n] = (Y[r, n - 1] else 0) + X[r, n]\n"
                  "  Z[r, n] = relu(Y[r, n])\n  s[r] += Y[r, n]\n}")
    op = o._op(o.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_80"), Options())
    x = row("f32", (2, 133))
    arrays = {"X": x, "Y": np.zeros_like(x), "Z": np.zeros_like(x), "s": np.zeros(2, np.float32)}
    assert "scanned" in str(c.chosen) and ran(c, arrays, {"R": 2, "N": 133}) == "no fault found"
    y = np.cumsum(x, 1)
    np.testing.assert_array_equal(arrays["Z"], np.maximum(y, 0))
    np.testing.assert_array_equal(arrays["s"], y.sum(1))


def test_recurrences_that_need_each_other_are_not_cut() -> None:
    o = polyop.op("op f(X: f32[N, D]) -> (Y: f32[N, D], Z: f32[N, D]) {\n"
                  "  Y[n, d] = (Y[n - 1, d] else 0) + (Z[n - 1, d] else 0)\n  Z[n, d] = Y[n, d] * X[n, d]\n}")
    op = o._op(o.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_80"), Options())
    assert "scanned" not in str(c.chosen) and c.rung == "tuned"


def test_chunks_that_would_lie_in_memory_are_given_up() -> None:
    op = op_of("cumsum")
    chunks = cut_scans(op)
    assert chunks is not None
    job = Job(scop_of(chunks.op), contiguous(op), inside=chunks.inside | {"X"})
    assert make(job, "tuned", Way(), target("cuda:sm_80"), Options(), Recorder()).proofs
    with pytest.raises(UnsupportedError, match="would be in memory"):
        make(job, "default", Way(), target("cuda:sm_80"), Options(), Recorder())


@pytest.mark.parametrize(("rows", "n"), [(0, 5), (3, 0), (0, 0), (2, 3)])
def test_rows_without_elements_have_a_kernel_of_their_own(rows: int, n: int) -> None:
    c = made("cumsum", options=Options(regime="any"))
    x = row("f32", (rows, n))
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert "scanned" not in str(c.chosen) and c.module is not None
    assert str(emulated.run(c.module, {"N": n, "dim0": rows}, {}, arrays)) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], np.cumsum(x, 1))


@pytest.mark.parametrize("apart", [False, True])
def test_a_scan_may_go_along_any_dimension_and_write_another_order(apart: bool) -> None:
    o = polyop.op("op f(X: f32[A, N, B]) -> (Y: f32[N, A, B]) {\n"
                  "  Y[n, a, b] = (Y[n - 1, a, b] else 0) + X[a, n, b] * 2 + 1\n}")
    op = o._op(o.choice())
    c = compile_op(op, contiguous(op), target("hip:gfx942"), Options(apart=apart))
    for n in (1, 9, 130, 515):
        x = row("f32", (2, n, 3))
        arrays = {"X": x, "Y": np.zeros((n, 2, 3), np.float32)}
        assert "scanned" in str(c.chosen) and ran(c, arrays, {"A": 2, "N": n, "B": 3}) == "no fault found"
        np.testing.assert_array_equal(arrays["Y"], np.cumsum(2 * x + 1, 1).transpose(1, 0, 2))


def test_a_row_that_is_known_to_be_short_has_fewer_threads() -> None:
    c = made("cumsum", options=Options(hints=(("N", 256),)))
    assert "x 64 threads" in str(c.chosen)
    x = row("f32", (2, 253))
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert ran(c, arrays, {"N": 253, "dim0": 2}) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], np.cumsum(x, 1))


def test_a_single_row_is_scanned_by_one_block() -> None:
    o = polyop.op("op scan(X: f32[N]) -> (Y: f32[N]) { Y[n] = (Y[n - 1] else 0) + X[n] }")
    op = o._op(o.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_80"), Options())
    x = row("f32", (2500,))
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert "scanned" in str(c.chosen) and ran(c, arrays, {"N": 2500}) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], np.cumsum(x))


@pytest.mark.parametrize(("name", "dtype"), [("cumsum", "f32"), ("cumsum", "i32"), ("cumsum", "f16"), ("cummax", "f32"),
                                             ("cumprod", "i32"), ("cumsum_reverse", "f32")])
def test_blocks_may_share_a_row(name: str, dtype: str) -> None:
    c = made(name, dtype, options=Options(apart=True))
    assert str(c.chosen).count("scanned") == 2 and "spread" in str(c.chosen)
    for k, n in enumerate((1, 33, 4095, 4096, 4097, 12289)):
        x = row(dtype, (2, n), name)
        arrays = {"X": x, "Y": np.zeros_like(x)}
        assert ran(c, arrays, {"N": n, "dim0": 2}, order=emulated.ORDERS[k % 3]) == "no fault found"
        want = np.cumsum(x[:, ::-1], 1)[:, ::-1] if name == "cumsum_reverse" else NUMPY[name](x, axis=1, dtype=x.dtype)
        np.testing.assert_array_equal(arrays["Y"], want)


def test_the_total_of_a_part_may_be_larger_than_16_bits_hold() -> None:
    c, x = made("cumsum", "f16", options=Options(apart=True)), np.full((1, 8200), 16, np.float16)
    x[0, :4096], x[0, 4095] = 0, -60000  # the second part alone is 65536
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert ran(c, arrays, {"N": 8200, "dim0": 1}) == "no fault found"
    np.testing.assert_allclose(arrays["Y"], np.cumsum(x.astype(np.float64), 1), rtol=2.0**-11)


def test_columns_may_be_shared_too() -> None:
    c = made("cumsum_columns", options=Options(apart=True))
    x = row("f32", (1030, 35))
    arrays = {"X": x, "Y": np.zeros_like(x)}
    assert str(c.chosen).count("scanned") == 2 and ran(c, arrays, {"N": 1030, "dim0": 35}) == "no fault found"
    np.testing.assert_array_equal(arrays["Y"], np.cumsum(x, 0))


@pytest.mark.parametrize(("rows", "extent", "apart"), [(1, 1 << 20, True), (127, 1 << 15, True), (128, 1 << 20, False),
                                                       (1, 1 << 14, False), (1 << 20, 8, False)])
def test_rows_are_shared_where_they_are_few_and_long(rows: int, extent: int, apart: bool) -> None:
    assert rows_apart(questions(op_of("cumsum")), {"dim0": rows, "N": extent}) == apart
    assert not rows_apart(questions(op_of("linear_recurrence")), {"D": rows, "L": extent})


@pytest.mark.parametrize(("rows", "extent", "apart"), [(1024, 1 << 16, True), (4096, 1 << 16, False), (1024, 4095, False)])
def test_rows_that_lie_side_by_side_are_fewer_blocks(rows: int, extent: int, apart: bool) -> None:
    assert rows_apart(questions(op_of("cumsum_columns")), {"dim0": rows, "N": extent}) == apart


def test_strict_numerics_add_in_the_order_of_the_text() -> None:
    assert "scanned" not in str(made("cumsum", options=Options(numerics="strict")).chosen)


def test_what_is_no_chain_of_associative_steps_is_not_cut() -> None:
    assert "scanned" not in str(made("biquad").chosen)


@pytest.mark.parametrize(("right", "wrong"), [
    ("pop_scan<128, 1, 128>", "pop_scan<32, 1, 128>"),                              # warps do not know of each other
    ("Y_before_carried = Y_before_carried + pop_v", "Y_before_carried = pop_v"),      # rounds neither
])
def test_a_planted_bug_shows_in_the_values(right: str, wrong: str) -> None:
    module = made("cumsum").module
    assert module is not None
    assert right in module.text
    x = np.ones((1, 2100), np.float32)
    arrays = {"X": x, "Y": np.zeros_like(x)}
    emulated.run(replace(module, text=module.text.replace(right, wrong)), {"N": 2100, "dim0": 1}, {}, arrays)
    assert not np.array_equal(arrays["Y"], np.cumsum(x, 1))


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize(("name", "dtype"), [("cumsum", "f32"), ("cumsum", "f16"), ("linear_recurrence", "f32")])
def test_chunks_stay_in_registers_on_nvidia(name: str, dtype: str) -> None:
    module = made(name, dtype).module
    assert module is not None
    (taken,) = usage(nvrtc.assemble(module))
    assert taken.local == 0 and taken.registers <= 128


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
@pytest.mark.parametrize("where", ["hip:gfx90a", "hip:gfx1100"])
def test_chunks_stay_in_registers_on_amd(where: str) -> None:
    module = made("cumsum", "f32", where).module
    assert module is not None
    (taken,) = usage(amdgcn.assemble(module))
    assert taken.local == 0
