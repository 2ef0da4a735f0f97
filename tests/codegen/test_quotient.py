"""What a loop divides by and does not change is inverted once: quotients keep all their digits, and those of special values."""

from functools import cache

import numpy as np
import pytest

from polyop.codegen.llvm.steady import divisors
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import F32, F64, I32
from polyop.ir.expr import Const, Number, Scalar
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V2, V4, compiled
from tests.codegen.nests import A, ap, ld, loop, nest, reg, st, strip, tensor

FUSED = [t for t in RUNNABLE if t.vector_bytes >= 32]


def quotients(t=F32, divisor=None, *inside):
    """y[r, i] = x[i] / top, where top = d[r] is a register; or by `divisor`."""
    at = A("i_c", "i_v")
    e = ap("div", ld("x", at, t=t), divisor or ld("top", t=t), t=t)
    body = [st(ld("top", t=t), ld("d", "r", t=t)), strip("i", 32, "N", st(ld("y", "r", at, t=t), e), *inside)]
    buffers = [tensor("x", "N", t=t), tensor("d", "M", t=t), tensor("y", "M", "N", t=t), reg("top", t=t)]
    return nest(buffers, [loop("r", "M", *body)], sizes=("M", "N"), scalars=(("z", t),))


@cache
def kernel(t, target):
    return compiled(quotients(t), target)


def computed(x, d, target):
    y = np.zeros((len(d), len(x)), x.dtype)
    divide = kernel(F64 if x.dtype == np.float64 else F32, target)
    assert divide({"M": len(d), "N": len(x)}, {"z": 1.0}, {"x": x, "d": d, "y": y}) == 0
    return y


def numbers(dtype, count, seed):
    """Of all exponents, denormals too, and special ones."""
    info, rng = np.finfo(dtype), np.random.default_rng(seed)
    least, most = int(np.log2(info.smallest_subnormal)), info.maxexp
    x = np.ldexp(rng.uniform(1, 2, count), rng.integers(least, most, count)) * rng.choice([-1, 1], count)
    near = 1 + info.eps * rng.integers(-4, 5, 50)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, info.smallest_subnormal]
    special += [1.0, -1.0, 0.5, 3.0, 41.0]
    with np.errstate(all="ignore"):
        return np.concatenate([x, near, near * 2.0**(info.maxexp - 2), near * info.tiny * 2, special]).astype(dtype)


@pytest.mark.parametrize("target", FUSED, ids=lambda t: t.arch)
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_a_quotient_is_right_to_little_more_than_half_of_the_last_place(dtype, target):
    x, d = numbers(dtype, 3000, 1), numbers(dtype, 200, 2)
    got = computed(x, d, target)
    info = np.finfo(dtype)
    with np.errstate(all="ignore"):
        want, rounded = x.astype(np.longdouble) / d.astype(np.longdouble)[:, None], x / d[:, None]
        last = np.maximum(np.spacing(np.abs(rounded)), info.smallest_subnormal).astype(np.longdouble)
        off = np.abs(got.astype(np.longdouble) - want) / last
    finite = np.isfinite(rounded) & np.isfinite(got)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    large = finite & (np.abs(rounded) >= info.tiny / info.eps * 8)
    assert off[large].max() < 0.5 + 2.0**-10
    assert off[finite].max() < 2  # what is hardly normal is rounded three times
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(rounded[finite]))


@pytest.mark.parametrize("target", FUSED, ids=lambda t: t.arch)
@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_a_quotient_that_is_a_number_is_exact(dtype, target):
    d = np.concatenate([np.arange(1, 400), np.random.default_rng(5).random(50) + 1e-3]).astype(dtype)
    k = np.arange(1, 130).astype(dtype)
    for by in d:
        with np.errstate(all="ignore"):
            x = (k * by).astype(dtype)
        exact = x.astype(np.longdouble) == k.astype(np.longdouble) * np.longdouble(by)
        assert (computed(x, np.array([by]), target)[0] == k)[exact].all(), by
    assert (1 / d != 1 / d.astype(np.longdouble)).any()


@pytest.mark.parametrize("size", (0, 1, 15, 16, 17, 31, 32, 33, 64, 97))
def test_each_element_of_a_row_is_divided_whatever_its_length(size):
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    d = np.array([3.0, 7.0, -0.1], np.float32)
    np.testing.assert_allclose(computed(x, d, V4), x / d[:, None], rtol=2e-7)


def loop_of(n):
    return n, n.body[0].body[1]


def test_what_the_loop_does_not_change_is_a_divisor_that_is_inverted():
    assert divisors(*loop_of(quotients())) == (ld("top"),)
    assert divisors(*loop_of(quotients(divisor=Scalar("z", F32)))) == (Scalar("z", F32),)
    assert divisors(*loop_of(quotients(divisor=Number(A("M"), F32)))) == (Number(A("M"), F32),)
    assert divisors(*loop_of(quotients(divisor=Const(3.0, F32)))) == (Const(3.0, F32),)
    root = ap("sqrt", ap("add", ld("top"), Scalar("z", F32)))
    assert divisors(*loop_of(quotients(divisor=root))) == (root,)


@pytest.mark.parametrize("divisor", [
    Const(0.25, F32),
    ld("x", A("i_c", "i_v")),
    ap("add", ld("top"), ld("x", A("i_c", "i_v"))),
    Number(A("i_c"), F32),
    Number(A("i_c", "i_v"), F32),
], ids=["a power of two", "an element", "of an element", "the loop's index", "of lanes"])
def test_other_divisors_are_not(divisor):
    assert divisors(*loop_of(quotients(divisor=divisor))) == ()


def test_neither_is_what_the_loop_writes():
    assert divisors(*loop_of(quotients(F32, None, st(ld("top"), ld("x", A("i_c", "i_v")), "max")))) == ()


def test_integers_are_divided_as_they_stand():
    assert divisors(*loop_of(quotients(I32))) == ()


def test_strict_numerics_and_targets_without_fused_products_divide_each_element():
    n = quotients()

    def divisions(target, numerics="fast"):
        text = emit(n, target, Options(numerics)).text
        return text.count("fdiv "), text.count("call <") if "llvm.fma" in text else 0

    assert divisions(V4)[1] > 0
    assert divisions(V4, "strict") == (2, 0)
    assert divisions(V2)[1] == 0
