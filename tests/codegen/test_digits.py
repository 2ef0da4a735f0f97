"""What lanes divide by a number is known where their loop begins at its multiples: no gathers, and the same values."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

NIBBLES = "op f(W: u8[N, H]) -> (Y: f32[N, 2*H]) { Y[n, j] = f32((W[n, j/2] >> (4*(j % 2))) & 15) }"
PAIRS = "op f(W: u8[N, H]) -> (Y: u8[N, 4*H]) { Y[n, j] = u8((W[n, j/4] >> (2*(j % 4))) & 3) }"
BITS = "op f(W: u8[N, H]) -> (Y: u8[N, 8*H]) { Y[n, j] = u8((W[n, j/8] >> (j % 8)) & 1) }"
WORDS = "op f(W: u32[N, H]) -> (Y: f32[N, 8*H]) { Y[n, j] = f32((W[n, j/8] >> (4*(j % 8))) & 15) }"
TURNED = "op f(X: f64[N, H], F: f64[4]) -> (Y: f64[N, 4*H]) { Y[n, j] = X[n, j/4] * F[j % 4] + (j % 3) }"
GROUPS = """op f(X: f32[N, K], F: f64[4]) -> (Y: f64[N]) where K % 32 == 0 {
    Y[n] += X[n, j] * F[j % 4] * (X[n, 2*(j/32)] + X[n, j/2]) }"""
THIRDS = "op f(X: f32[N, H]) -> (Y: f32[N, 3*H]) { Y[n, j] = X[n, j/3] * (1 + j % 6) }"
FIFTHS = "op f(X: u8[N, H]) -> (Y: u8[N, 5*H]) { Y[n, j] = X[n, j/5] }"
RING = "op f(X: f64[N, H], F: f64[7]) -> (Y: f64[N, H]) { Y[n, j] = X[n, j] * F[(j + 2) % 7] }"
FAR = "op f(X: f32[N, H]) -> (Y: f32[N, 11*H]) { Y[n, j] = X[n, j/11] + (j % 3) }"
EITHER = "op f(A: f32[N, H], B: f32[N, H]) -> (Y: f32[N, 2*H]) { Y[n, j] = j % 2 == 0 ? A[n, j/2] : B[n, j/2] }"
BESIDE = "op f(X: f32[N, H]) -> (Y: f32[N, 2*H]) { Y[n, j] = X[n, j/2] + (X[n, (j + 1)/2] else 0) + (X[n, (j - 3)/2] else 0) }"


def nibbles(w, each, bits):
    h = w.shape[1]
    j = np.arange(each * h)
    return (w[:, j // each].astype(np.int64) >> (bits * (j % each))) & (2**bits - 1)


def turned(x, f):
    j = np.arange(4 * x.shape[1])
    return x[:, j // 4] * f[j % 4] + j % 3


def groups(x, f):
    j = np.arange(x.shape[1])
    return (x * f[j % 4] * (x[:, 2 * (j // 32)].astype(np.float64) + x[:, j // 2])).sum(1)


def ring(x, f):
    return x * f[(np.arange(x.shape[1]) + 2) % 7]


def either(a, b):
    return np.stack([a, b], -1).reshape(len(a), 2 * a.shape[1])


def beside(x):
    h = x.shape[1]
    j = np.arange(2 * h)
    edge = np.pad(x.astype(np.float64), ((0, 0), (2, 2)))
    return edge[:, j // 2 + 2] + edge[:, (j + 1) // 2 + 2] + edge[:, (j - 3) // 2 + 2]


CASES = [
    (NIBBLES, "u1", lambda w: nibbles(w, 2, 4)),
    (PAIRS, "u1", lambda w: nibbles(w, 4, 2)),
    (BITS, "u1", lambda w: nibbles(w, 8, 1)),
    (WORDS, "u4", lambda w: nibbles(w, 8, 4)),
    (TURNED, "f8", turned),
    (GROUPS, "f4", groups),
    (THIRDS, "f4", lambda x: np.repeat(x, 3, 1) * (1 + np.arange(3 * x.shape[1]) % 6)),
    (FIFTHS, "u1", lambda x: np.repeat(x, 5, 1)),
    (RING, "f8", ring),
    (FAR, "f4", lambda x: np.repeat(x, 11, 1) + np.arange(11 * x.shape[1]) % 3),
    (EITHER, "f4", either),
    (BESIDE, "f4", beside),
]


@pytest.mark.parametrize(("text", "dtype", "want"), CASES,
                         ids=("nibbles", "pairs", "bits", "words", "turned", "groups", "thirds", "fifths", "ring", "far",
                              "either", "beside"))
def test_digits_of_rows_of_any_length(text, dtype, want, caplog):
    f = polyop.op(text)
    rng = np.random.default_rng(0)
    for n, h in [(0, 3), (3, 0), (1, 1), (3, 2), (2, 7), (3, 8), (2, 9), (1, 31), (2, 32), (2, 33), (3, 67), (2, 131)]:
        x = rng.integers(0, 256 if dtype == "u1" else 2**20, (n, 32 * h if want is groups else h)).astype(dtype)
        weights = {turned: 4, groups: 4, ring: 7}.get(want)
        more = [np.array([1.0, -2, 3, 0.5, 4, 8, 2])[:weights]] if weights else [x + 1] if want is either else []
        assert np.array_equal(f(x, *more), want(x, *more)), (n, h)
    assert not caplog.messages  # as where LLVM refuses what was written for it


WHOLE = {"nibbles": NIBBLES, "pairs": PAIRS, "bits": BITS, "words": WORDS, "groups": GROUPS, "thirds": THIRDS, "fifths": FIFTHS,
         "ring": RING, "either": EITHER}
GATHERED = {("x86-64-v3", "ring"), ("x86-64-v3", "groups")}  # 4 of 7 numbers in a vector, and f32 in vectors of f64
GATHERLESS = [(a, n) for a in ("sapphirerapids", "x86-64-v3") for n in WHOLE if (a, n) not in GATHERED]


@pytest.mark.parametrize(("arch", "name"), GATHERLESS)
def test_no_lane_of_a_whole_vector_gathers(arch, name):
    o = op(WHOLE[name])
    made = compile_op(o, contiguous(o), target(f"x86:{arch}"), Options(check=False))
    loop = made.module.text.split("!llvm.loop")[0]
    assert "masked.gather" not in loop and "shufflevector" in loop
