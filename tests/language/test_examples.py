"""The examples, compiled, at sizes 0, 1 and a prime."""

import pathlib

import numpy as np
import pytest
from numpy.testing import assert_allclose

import polyop
from polyop.ir.options import Options

from .programs import normal

TEXT = (pathlib.Path(__file__).parents[1] / "dsl" / "examples.pop").read_text()
SIZES = (0, 1, 5)


@pytest.fixture(scope="module", params=["fast", "strict"])
def ops(request):
    return {name: polyop.op(TEXT, name, options=Options(numerics=request.param))
            for name in ("matmul", "softmax", "softmax2", "conv2d", "elman", "causal_attention", "rmsnorm", "embed_norm")}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("n", SIZES)
def test_matmul(ops, n):
    a, b = normal(3, n), normal(n, 7)
    assert_allclose(ops["matmul"](a, b), a @ b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["softmax", "softmax2"])
def test_softmax(ops, name, n):
    x = normal(3, n)
    assert_allclose(ops[name](x), softmax(x), rtol=1e-5)


@pytest.mark.parametrize("n", (1, 5))
def test_conv2d(ops, n):
    x, f = normal(n, 2, 6, 5), normal(3, 2, 3, 2)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    h, w = (6 + 2 - 3) // 2 + 1, (5 + 2 - 2) // 2 + 1
    want = np.zeros((n, 3, h, w), np.float32)
    for p, q in np.ndindex(h, w):
        want[:, :, p, q] = np.einsum("bcrs,kcrs->bk", padded[:, :, 2 * p:2 * p + 3, 2 * q:2 * q + 2], f)
    assert_allclose(ops["conv2d"](x, f, stride=2, pad=1), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", SIZES)
def test_elman(ops, n):
    x, u, h = normal(n, 2, 3), normal(3, 3), normal(2, 3)
    want = np.empty_like(x)
    state = h
    for t in range(n):
        state = want[t] = np.tanh(state @ u + x[t])
    assert_allclose(ops["elman"](x, u, h), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", SIZES)
def test_causal_attention(ops, n):
    q, k, v = (normal(1, 2, n, 4, seed=s).astype(np.float16) for s in range(3))
    s = np.einsum("bhid,bhjd->bhij", q, k, dtype=np.float64) * 0.5
    s[:, :, ~np.tri(n, dtype=bool)] = -np.inf
    want = np.einsum("bhij,bhjd->bhid", softmax(s), v.astype(np.float64))
    got = ops["causal_attention"](q, k, v, scale=0.5)
    assert got.dtype == np.float16
    assert_allclose(got.astype(np.float64), want, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("lead", [(), (3,), (2, 0), (2, 3)])
def test_rmsnorm_has_any_number_of_leading_dimensions(ops, lead):
    x, g = normal(*lead, 5), normal(5)
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g
    assert_allclose(ops["rmsnorm"](x, g), want, rtol=1e-5)


def test_rmsnorm_is_for_a_class_of_dtypes(ops):
    x, g = normal(2, 5).astype(np.float16), normal(5).astype(np.float16)
    want = x.astype(float) / np.sqrt((x.astype(float) ** 2).mean(-1, keepdims=True) + 1e-6) * g
    got = ops["rmsnorm"](x, g)
    assert got.dtype == np.float16
    assert_allclose(got.astype(float), want, rtol=5e-3)


def test_embed_norm_gathers_by_data_and_calls(ops):
    ids, e, g = np.array([[0, 4], [2, 2]]), normal(5, 3), normal(3)
    x = e[ids]
    assert_allclose(ops["embed_norm"](ids, e, g), x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g, rtol=1e-5)
