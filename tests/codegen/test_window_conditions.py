"""Windows under a condition, with lanes along them: what lies outside is no term, at all places where vectors and tiles end."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest

import polyop
from polyop.codegen.llvm.expressions import _somewhere
from polyop.compiler import compile_op
from polyop.ir.expr import affine, evaluate
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous

TEXT = """op f(X: f32[C, W], F: f32[C, K, R]) -> (O: f32[K, W + R - 1]) {
    O[k, p] += X[c, p - r] * F[c, k, r]  where 0 <= p - r < W }"""


@pytest.fixture(scope="module")
def full():
    return polyop.op(TEXT, options=polyop.Options(special=False))


@pytest.mark.parametrize("w", [1, 2, 15, 16, 17, 31, 47, 63, 64, 65, 127, 131, 330])
def test_each_place_has_its_own_terms_and_no_others(full, w):
    rng = np.random.default_rng(w)
    for channels, filters, taps in ((1, 1, 1), (3, 7, 2), (5, 13, 5), (2, 6, 70)):
        x, f = (rng.standard_normal(s).astype("f4") for s in ((channels, w), (channels, filters, taps)))
        f[:, 0, taps // 2] = np.inf  # times a 0 that was read instead of what lies outside it would be NaN
        want = np.zeros((filters, w + taps - 1))
        with np.errstate(invalid="ignore"):  # inf - inf
            for r in range(taps):
                want[:, r : r + w] += (f[:, :, r].astype(float)[..., None] * x[:, None]).sum(0)
        np.testing.assert_allclose(full(x, f), want, rtol=1e-4, atol=1e-4)


def test_copies_are_written_whole_and_what_lanes_are_few_of_has_narrow_tiles(monkeypatch):
    monkeypatch.setattr(cpu, "assemble", lambda *_: None)  # which takes longest
    o = polyop.op(TEXT)
    op = o._op(o.choice())
    lines = str(compile_op(op, contiguous(op), target("x86:sapphirerapids"), Options(check=False)).final).splitlines()
    copies = [x.strip() for x in lines if "_right[" in x.split(" = ")[0] and " = " in x]
    assert copies and all("= (X[" in x and " if " in x for x in copies)
    assert {x.split("(lanes ")[1] for x in lines if "(lanes " in x} == {"16)", "32)", "48)", "64)"}


def test_what_holds_for_some_lane_is_said_without_lanes():
    state = SimpleNamespace(axes={"v": SimpleNamespace(upper=affine(8))})
    terms = tuple(product((-2, -1, 0, 1, 2), (0, 1), (-5, 0, 3)))
    for pair in product(terms, terms):
        tests, tied = tuple(affine("v") * a + affine("q") * b + c for a, b, c in pair), [a for a, _, _ in pair if a]
        said = _somewhere(state, tests, frozenset("v" if tied else ()))
        assert (said is None) == (len(tied) > 1 and max(map(abs, tied)) > 1)
        for q in (-6, -3, 0, 2) if said is not None else ():
            holds = any(all(a * v + b * q + c >= 0 for a, b, c in pair) for v in range(8))
            assert all(evaluate(t, {"q": q}) >= 0 for t in said) == holds, pair
