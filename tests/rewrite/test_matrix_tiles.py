"""What calls ask for where instructions multiply matrices: tiles of whole units, and images that lie along the sum."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.module import room
from polyop.ir.options import TURNED, Options
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import op

AMX, V4 = BY_NAME["x86:sapphirerapids"], BY_NAME["x86:x86-64-v4"]
PRODUCT = "op f(A: bf16[M, K], B: bf16[K, N]) -> (C: bf16[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
LAST = """op f(X: bf16[N, H, W, C], F: bf16[R, S, C, K]) -> (Y: bf16[N, H, W, K]) {
    Y[n, p, q, k] += (X[n, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""
FIRST = """op f(X: bf16[N, C, H, W], F: bf16[K, C, R, S]) -> (Y: bf16[N, K, H, W]) {
    Y[n, k, p, q] += (X[n, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }"""
BYTES = FIRST.replace("X: bf16", "X: u8").replace("F: bf16", "F: i8").replace("Y: bf16", "Y: i32").replace(
    "(X[n, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]", "i32((X[n, c, p + r - 1, q + s - 1] else 0)) * i32(F[k, c, r, s])")
STRIDED = FIRST.replace("H, W]) {", "H/2, W/2]) {").replace("p + r", "2*p + r").replace("q + s", "2*q + s")


def said(text: str, target=AMX, numerics: str = "fast", **sizes: int) -> Options:
    o = op(text)
    return regime(regimes_of(o), {"R": 3, "S": 3, **sizes}, Options(numerics=numerics), target)


@pytest.mark.parametrize(("rows", "height", "of_copies"), [
    (16, 16, 16), (9, 16, 16), (17, 16, 0), (28, 16, 0), (33, 16, 16), (56, 16, 0), (64, 16, 0), (65, 0, 0), (1000, 0, 0)])
def test_tiles_have_as_many_rows_as_a_unit_or_two(rows, height, of_copies):
    assert said(PRODUCT, M=rows, N=1000, K=1000).height == height
    assert said(LAST, N=8, H=28, W=rows, C=64, K=64).height == of_copies  # with their border, and rows behind it


def test_few_rows_and_other_targets_have_tiles_as_before():
    narrow = {"N": 8, "H": 7, "W": 7, "C": 512, "K": 512}
    assert said(LAST, **narrow).height == said(LAST, V4, **narrow).height == 8 and said(LAST, **narrow).down
    assert not said(LAST, N=8, H=28, W=28, C=128, K=128).down
    assert said(LAST, numerics="strict", N=8, H=28, W=28, C=64, K=64).height != 16
    assert said(LAST, N=8, H=28, W=28, C=3, K=64).height != 16  # no copy with their border, and so no instruction


@pytest.mark.parametrize("text", [FIRST, BYTES])
def test_images_with_channels_first_are_copied_to_lie_along_the_sum_and_lanes_run_along_filters(text):
    found = said(text, N=8, H=28, W=28, C=64, K=64)
    assert found.short == TURNED and dict(found.inward) == {"X": 1} and found.height == 0 and not found.down
    for sizes in ({"C": 3}, {"K": 8}, {"R": 1, "S": 1}):
        assert not said(text, **{"N": 8, "H": 28, "W": 28, "C": 64, "K": 64} | sizes).inward
    assert not said(text, V4, N=8, H=28, W=28, C=64, K=64).inward


def test_images_in_steps_are_not():
    assert not said(STRIDED, N=8, H=28, W=28, C=64, K=64).inward


@pytest.mark.parametrize(("text", "options", "copy"), [
    (LAST, {"bordered": True, "height": 16}, "X_bordered"),
    (FIRST, {"bordered": True, "short": TURNED, "inward": (("X", 1),)}, "X_inward_bordered")])
def test_copies_have_room_for_the_rows_that_a_last_tile_does_not_have(text, options, copy):
    o = op(text)
    made = compile_op(o, contiguous(o), AMX, Options(**options))
    found = {b.name: b for b in made.module.signature.work if b.beyond}
    assert list(found) == [copy] and found[copy].beyond == options.get("height", 32) - 1
    sizes = {"N": 2, "H": 5, "W": 7, "C": 40, "K": 20, "R": 3, "S": 3}
    bytes_ = 2 * 7 * 9 * 40 * 2
    assert room(found[copy], sizes, 1) == -(-bytes_ // 64) * 64 + -(-found[copy].beyond * 40 * 2 // 64) * 64
    assert not any(b.beyond for b in compile_op(o, contiguous(o), V4, Options(**options)).module.signature.work)


def test_all_columns_are_copied_before_the_tiles():
    few = {"M": 16, "N": 4096, "K": 4096}
    assert said(PRODUCT.replace("bf16", "f32"), **few).slim and not said(PRODUCT, **few).slim


made = cache(polyop.op)  # kernels for sizes that come again, and code for new ones, are what the calls before left


@pytest.mark.skipif(not cpu.cpu_features().get("amx-tile"), reason="no matrix tiles here")
@pytest.mark.parametrize(("images", "height", "width", "channels", "filters"), [
    (1, 5, 9, 16, 16), (2, 9, 16, 17, 20), (1, 3, 17, 64, 33), (3, 4, 28, 40, 64), (1, 2, 65, 33, 16), (2, 7, 7, 32, 48)])
def test_convolutions_are_right(images, height, width, channels, filters):
    rng = np.random.default_rng(height)
    x = rng.integers(-4, 5, (images, channels, height, width))
    w = rng.integers(-4, 5, (filters, channels, 3, 3))
    bordered = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = sum(np.einsum("ncpq,kc->nkpq", bordered[:, :, r : r + height, s : s + width], w[:, :, r, s])
               for r in range(3) for s in range(3))
    narrow = [y.astype(ml_dtypes.bfloat16) for y in (x, w)]
    first = made(FIRST.replace("Y: bf16", "Y: f32"))(*narrow)
    last = made(LAST.replace("Y: bf16", "Y: f32"))(
        np.ascontiguousarray(narrow[0].transpose(0, 2, 3, 1)), np.ascontiguousarray(narrow[1].transpose(2, 3, 1, 0)))
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), want)
    np.testing.assert_array_equal(made(BYTES)((x + 4).astype(np.uint8), w.astype(np.int8)),
                                  want + 4 * made(BYTES)(np.ones(x.shape, np.uint8), w.astype(np.int8)))
