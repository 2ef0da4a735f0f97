"""Images whose border is 0 are copied with it, where products of narrow numbers have an instruction."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.copies.bordered import CHANNELS, with_borders
from polyop.rewrite.regimes.regimes import regime, regimes_of
from tests.rewrite.ops import arguments, op

AMX = target("x86:sapphirerapids")
BORDERED = Options(bordered=True)
TEXTS = {
    "bf16": """op f(X: bf16[B, H, W, C], F: bf16[3, 3, C, K]) -> (Y: f32[B, H, W, K]) {
        Y[b, p, q, k] += (X[b, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }""",
    "bytes in steps of two": """op f(X: u8[B, C, H], F: i8[K, C, 3]) -> (Y: i32[B, K, (H + 1) / 2]) {
        Y[b, k, p] += i32((X[b, c, 2*p + r - 1] else 0)) * i32(F[k, c, r]) }""",
    "one side": """op f(X: bf16[N, C], F: bf16[R, C, K]) -> (Y: f32[N, K]) { Y[n, k] += (X[n - r, c] else 0) * F[r, c, k] }""",
}
PLAIN = ("op f(X: bf16[N, C], F: bf16[C, K]) -> (Y: f32[N, K]) { Y[n, k] += X[n, c] * F[c, k] }",
         "op f(X: f32[N, C], F: f32[R, C, K]) -> (Y: f32[N, K]) { Y[n, k] += (X[n - r, c] else 0) * F[r, c, k] }",
         "op f(X: bf16[N, C], F: bf16[R, C]) -> (Y: f32[N, C]) { Y[n, c] += (X[n - r, c] else 0) * F[r, c] }",
         "op f(X: bf16[N, C], F: bf16[R, C, K]) -> (Y: f32[N, K]) { Y[n, k] += (X[n - r, c] else 1) * F[r, c, k] }")


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_the_copy_has_what_the_text_reads(name, data):
    o = op(TEXTS[name])
    made = with_borders(o, AMX, BORDERED)
    check(made)
    assert len(made.steps) == len(o.steps) + 1
    assert not any(x.guard for s in made.steps if s.reduce for x in s.reads)
    sizes = {n: data.draw(st.integers(1, 4), n) for n in o.sizes}
    values, arrays = arguments(o, sizes, data.draw(st.integers(0, 9), "seed"))
    want, got = (evaluate(x, sizes, values, arrays, wide=True) for x in (o, made))
    np.testing.assert_allclose(got["Y"], want["Y"], rtol=1e-11)


@pytest.mark.parametrize("text", PLAIN)
def test_what_has_no_border_or_no_instruction_stays(text):
    o = op(text)
    assert with_borders(o, AMX, BORDERED) is o


def test_neither_sizes_of_0_nor_targets_without_such_an_instruction_have_copies():
    o = op(TEXTS["bf16"])
    assert with_borders(o, AMX, Options(regime="any", bordered=True)) is with_borders(o, target("x86:x86-64-v3"), BORDERED) is o
    assert with_borders(o, AMX, Options(numerics="strict", bordered=True)) is o


def test_its_products_take_several_steps_at_once():
    notes = polyop.op(TEXTS["bf16"], options=BORDERED).compile(target="x86:sapphirerapids").notes
    assert any("depth c x 2" in n for n in notes)


def test_kernels_compute_it():
    f = polyop.op(TEXTS["bytes in steps of two"], options=BORDERED)
    rng = np.random.default_rng(0)
    for b, c, h, k in ((0, 1, 1, 1), (1, 0, 3, 2), (1, 1, 1, 1), (2, 17, 9, 33), (1, 64, 14, 40)):
        x, w = rng.integers(0, 256, (b, c, h), np.uint8), rng.integers(-128, 128, (k, c, 3), np.int8)
        padded = np.pad(x.astype(int), ((0, 0), (0, 0), (1, 2)))
        taps = (padded[:, :, r:r + h:2][:, :, :(h + 1) // 2] for r in range(3))
        want = sum(np.einsum("bch,kc->bkh", tap, w[:, :, r].astype(int)) for r, tap in enumerate(taps))
        np.testing.assert_array_equal(f(x, w), want)


def test_few_channels_are_read_in_place():
    q, sizes = regimes_of(op(TEXTS["bf16"])), {"B": 1, "H": 28, "W": 28, "C": CHANNELS, "K": 64}
    assert regime(q, sizes, Options(), AMX).bordered
    assert not regime(q, sizes | {"C": CHANNELS - 1}, Options(), AMX).bordered
