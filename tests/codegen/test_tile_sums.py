"""Sums of matrix tiles and what uses them: results, batches, windows, rows that go on; on hardware, or by functions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest

from polyop.codegen.cpu.rolled import rolled, sums_of_tiles
from polyop.codegen.cpu.verify import verify
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import Kind, Space, walk
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.runtime.cpu import cpu_features
from polyop.runtime.layout import contiguous
from tests.children import finished
from tests.codegen.harness import load
from tests.codegen.test_tiles import AMX, MATMUL, WITHOUT, Tiles, here, tiled

HARDWARE = bool(cpu_features().get("amx-tile"))
NUMPY = {"bf16": ml_dtypes.bfloat16, "i8": np.int8, "f32": np.float32, "i32": np.int32}
BATCH = "op f(A: bf16[B, M, K], W: bf16[B, K, N]) -> (C: f32[B, M, N]) { C[b, m, n] += f32(A[b, m, k]) * f32(W[b, k, n]) }"
BIAS = """op f(A: bf16[M, K], W: bf16[N, K], v: f32[N]) -> (C: bf16[M, N]) {
    t[m, n] += f32(A[m, k]) * f32(W[n, k])
    C[m, n] = bf16(max(t[m, n] + v[n], 0.0)) }"""
TWICE = """op f(A: i8[M, K], W: i8[N, K], v: i32[N]) -> (C: i32[M, N]) {
    t[m, n] += i32(A[m, k]) * i32(W[n, k])
    y[m, n] = t[m, n] + v[n]
    u[m, n] = y[m, n] * y[m, n] + t[m, n]
    C[m, n] = max(u[m, n], 3 * y[m, n]) }"""
TURNED = "op f(A: bf16[M, K], W: bf16[K, N]) -> (C: f32[N, M]) { C[n, m] += f32(A[m, k]) * f32(W[k, n]) }"
WINDOW = """op f(X: i8[H, W, C], F: i8[3, 3, C, N]) -> (Y: i32[H-2, W-2, N]) {
    Y[p, q, n] += i32(X[p + r, q + s, c]) * i32(F[r, s, c, n])  where p in 0:H-2, q in 0:W-2 }"""
SOFTMAX = """op f(A: bf16[M, K], W: bf16[N, K]) -> (C: f32[M, N]) {
    t[m, n] += f32(A[m, k]) * f32(W[n, k]); h[m] max= t[m, n]; e[m, n] = exp(t[m, n] - h[m]); s[m] += e[m, n]
    C[m, n] = e[m, n] / s[m] }"""
SIZES = [(33, 65, 17), (64, 64, 64), (31, 130, 70), (1, 3, 40), (40, 32, 1)]


@cache
def kernel(text: str, threads: bool = False):
    op = instantiate(parse(Source("<test>", text)), "f")
    out = compile_op(op, contiguous(op), AMX, Options(threads=threads))
    assert out.rung == "tuned" and all(p.holds for p in out.proofs) and "x86_amx" in out.module.text
    soft = Tiles()
    return (load(out.module, AMX) if HARDWARE else
            load(replace(out.module, text=Tiles.text(out.module.text)), WITHOUT, soft.addresses)), soft


def run(text: str, sizes: dict[str, int], shape: tuple[int, ...], threads: bool = False, **arrays: tuple[str, np.ndarray]):
    """What `text` makes of `arrays`, each with its dtype; the result has the shape `shape`."""
    op = instantiate(parse(Source("<test>", text)), "f")
    out = op.outputs[0]
    result = np.full(shape, 77, out.dtype.numpy)
    with np.errstate(all="ignore"):
        kernel(text, threads)[0](sizes, {}, {x: a.astype(NUMPY[t]) for x, (t, a) in arrays.items()} | {out.name: result})
    return result.astype(np.float64)


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape)


@here
@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("m,k,n", SIZES)
def test_batches(m, k, n, threads):
    a, w = numbers(3, m, k), numbers(3, k, n)
    got = run(BATCH, {"B": 3, "M": m, "K": k, "N": n}, (3, m, n), threads, A=("bf16", a), W=("bf16", w))
    np.testing.assert_array_equal(got, a @ w)


@here
@pytest.mark.parametrize("m,k,n", SIZES)
def test_what_is_done_with_sums_reads_them_from_the_stack(m, k, n):
    a, w, v = numbers(m, k), numbers(n, k), numbers(n)
    got = run(BIAS, {"M": m, "K": k, "N": n}, (m, n), A=("bf16", a), W=("bf16", w), v=("f32", v))
    np.testing.assert_array_equal(got, np.maximum(a @ w.T + v, 0).astype(ml_dtypes.bfloat16).astype(float))


@here
@pytest.mark.parametrize("m,k,n", SIZES)
def test_what_rows_make_of_their_sums_may_be_read_twice(m, k, n):
    a, w, v = numbers(m, k), numbers(n, k), numbers(n)
    t = a @ w.T
    y = t + v
    got = run(TWICE, {"M": m, "K": k, "N": n}, (m, n), A=("i8", a), W=("i8", w), v=("i32", v))
    np.testing.assert_array_equal(got, np.maximum(y * y + t, 3 * y))


@here
@pytest.mark.parametrize("m,k,n", SIZES)
def test_results_may_be_written_across(m, k, n):
    a, w = numbers(m, k), numbers(k, n)
    np.testing.assert_array_equal(run(TURNED, {"M": m, "K": k, "N": n}, (n, m), A=("bf16", a), W=("bf16", w)), (a @ w).T)


@here
@pytest.mark.parametrize("h,w,c,n", [(5, 40, 64, 32), (4, 7, 33, 17), (3, 35, 3, 70), (6, 66, 130, 16)])
def test_loops_around_carry_tiles_round(h, w, c, n):
    x, f = numbers(h, w, c), numbers(3, 3, c, n)
    want = sum(x[r : r + h - 2, s : s + w - 2] @ f[r, s] for r in range(3) for s in range(3))
    got = run(WINDOW, {"H": h, "W": w, "C": c, "N": n}, (h - 2, w - 2, n), X=("i8", x), F=("i8", f))
    np.testing.assert_array_equal(got, want)


@here
@pytest.mark.parametrize("m,k,n", SIZES)
def test_rows_that_go_on(m, k, n):
    a, w = numbers(m, k), numbers(n, k)
    t = (a @ w.T).astype(np.float64)
    e = np.exp(t - t.max(1, keepdims=True))
    got = run(SOFTMAX, {"M": m, "K": k, "N": n}, (m, n), A=("bf16", a), W=("bf16", w))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_the_right_operand_is_copied_before_the_tiles():
    """A tile that copies as it goes would be one of vectors, on the stack: the first of every 32 rows, 30 times as slow."""
    op = instantiate(parse(Source("<test>", MATMUL.format("bf16", "bf16", "f32"))), "f")
    for options in (Options(regime="positive"), Options(regime="positive", threads=True)):
        (chosen,) = compile_op(op, contiguous(op), AMX, options).chosen
        assert "rows m x 32" in chosen and "packs" in chosen and "fused" not in chosen, chosen


def test_only_sums_of_tiles_leave_the_registers():
    op = instantiate(parse(Source("<test>", MATMUL.format("bf16", "bf16", "f32"))), "f")
    nest = compile_op(op, contiguous(op), AMX, Options()).final
    (name,) = sums_of_tiles(nest, AMX)
    assert sums_of_tiles(nest, WITHOUT) == frozenset() and rolled(nest, WITHOUT) is nest
    new = rolled(nest, AMX)
    assert new.buffer(name).space == Space.STACK and nest.buffer(name).space == Space.REG
    assert not any(getattr(n, "kind", None) == Kind.ROWS and n.index == "m_p" for n in walk(new.body))
    with pytest.raises(UnsupportedError, match="keeps"):
        verify(nest, WITHOUT)  # 32 rows of two vectors


@tiled
def test_tiles_in_other_threads_after_fork_and_among_signals():
    text = MATMUL.format("bf16", "bf16", "f32")
    a, b = numbers(70, 200), numbers(200, 90)
    f, want, wrong = kernel(text)[0], a @ b, []
    a, b = (x.astype(ml_dtypes.bfloat16) for x in (a, b))

    def work() -> None:
        for _ in range(50):
            c = np.zeros((70, 90), np.float32)
            f({"M": 70, "K": 200, "N": 90}, {}, {"A": a, "B": b, "C": c})
            if not np.array_equal(c, want):
                wrong.append(c)

    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    work()
    for t in threads:
        t.join()
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    child = os.fork()
    if child == 0:
        work()
        os._exit(len(wrong) > 0)
    assert finished(child) == 0 and not wrong


FOUR_TILES = """
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.options import Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.runtime.layout import contiguous

text = "op f(X: bf16[B, M, K], W: bf16[N, P, K, B]) -> (C: bf16[P, B, N, M]) { C[p, b, n, m] += X[b, m, k] * W[n, p, k, b] }"
op = instantiate(parse(Source("<test>", text)), "f")
print(compile_op(op, contiguous(op), target("x86:sapphirerapids"), Options(rows=4)).rung)
"""


def test_a_row_of_four_tiles_leaves_registers_for_its_operands():
    # LLVM ends a process in which it has no register for a tile
    done = subprocess.run([sys.executable, "-c", FOUR_TILES], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("tuned\n", "")
