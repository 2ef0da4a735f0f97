"""Simplification: each law holds bit for bit, and what only looks like one is left alone."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir import scalars
from polyop.ir.casts import lossless, passes_through
from polyop.ir.dtypes import BF16, BOOL, DTYPES, F16, F32, F64, I8, I32, I64, U8
from polyop.ir.expr import Affine, Apply, Const, Load, Number, Scalar, affine, quasi
from polyop.ir.expr import Test as Holds
from polyop.ir.op import Range
from polyop.rewrite.algebra import apply_laws
from polyop.rewrite.bounds import never_negative
from polyop.rewrite.simplify import Known, simplify, simplify_expr
from tests.rewrite.ops import assert_same, op

N, I, J = affine("N"), affine("i"), affine("j")
X, Y = Scalar("x", F32), Scalar("y", F32)
HARD = [0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 3.4e38, 1e-45, 0.1]


def f32(value):
    return Const(value, F32)


def run(e, x, y=2.0):
    match e:
        case Scalar(name=n):
            return {"x": x, "y": np.float32(y)}[n]
        case Const(value=v, dtype=t):
            return t.numpy.type(v)
        case Apply(fn=fn, args=args, dtype=t):
            return scalars.apply(fn, tuple(run(a, x, y) for a in args), t)


@pytest.mark.parametrize("e", [
    Apply("mul", (X, f32(1.0)), F32), Apply("mul", (f32(1.0), X), F32), Apply("div", (X, f32(1.0)), F32),
    Apply("add", (X, f32(-0.0)), F32), Apply("sub", (X, f32(0.0)), F32), Apply("neg", (Apply("neg", (X,), F32),), F32),
    Apply("max", (X, f32(float("-inf"))), F32), Apply("min", (f32(float("inf")), X), F32), Apply("cast", (X,), F32),
    Apply("cast", (Apply("cast", (X,), F64),), F32), Apply("select", (Const(True, BOOL), X, Y), F32),
    Apply("select", (Const(False, BOOL), Y, X), F32),
], ids=str)
def test_what_changes_nothing_goes_and_hard_numbers_agree(e):
    assert apply_laws(e) == X
    for x in map(np.float32, HARD):
        assert np.float32(run(e, x)).tobytes() == x.tobytes()


@pytest.mark.parametrize("e", [
    Apply("add", (X, f32(0.0)), F32), Apply("sub", (X, f32(-0.0)), F32), Apply("mul", (X, f32(0.0)), F32),
    Apply("sub", (X, X), F32), Apply("div", (X, X), F32), Apply("sub", (f32(0.0), X), F32),
    Apply("cast", (Apply("cast", (X,), F16),), F32),
], ids=str)
def test_what_is_wrong_for_one_number_stays(e):
    assert apply_laws(e) == e


@given(
    st.sampled_from(["add", "sub", "mul", "div", "max", "min", "lt", "eq", "pow", "mod"]),
    st.sampled_from(HARD), st.sampled_from(HARD))
def test_constants_fold_to_what_the_reference_computes(fn, a, b):
    dtype = BOOL if fn in ("lt", "eq") else F32
    got = apply_laws(Apply(fn, (f32(a), f32(b)), dtype))
    assert isinstance(got, Const)
    want = scalars.apply(fn, (np.float32(a), np.float32(b)), dtype)
    assert dtype.numpy.type(got.value).tobytes() == np.asarray(want).tobytes()


def test_a_division_of_integers_by_zero_folds_to_zero():
    assert apply_laws(Apply("div", (Const(7, I32), Const(0, I32)), I32)) == Const(0, I32)


SAMPLES = {
    "float": [0.0, -0.0, 1.5, -2.0, 300.0, -70000.0, float("inf"), float("-inf"), float("nan")],
    "int": [0, 1, -1, 127, -128, 40000, -70000, 2**31 - 1, -(2**31), 2**62 + 1],
    "uint": [0, 1, 200, 255, 70000, 2**32 - 1, 2**63 + 3],
    "bool": [False, True],
}


def test_a_chain_of_casts_is_cut_only_where_every_value_arrives_the_same():
    for a, b, c in itertools.product(DTYPES.values(), repeat=3):
        if passes_through(a, b, c):
            for x in (scalars.convert(np.asarray(v), a) for v in SAMPLES[a.kind] if a.is_float or a.lowest <= v <= a.highest):
                direct, chained = scalars.convert(x, c), scalars.convert(scalars.convert(x, b), c)
                assert np.asarray(direct).tobytes() == np.asarray(chained).tobytes(), (a, b, c, x)


def test_conversions_that_lose_something_are_known():
    assert lossless(F16, F32) and lossless(BF16, F32) and lossless(I8, F16) and lossless(U8, I32) and lossless(BOOL, I8)
    assert not lossless(F32, BF16) and not lossless(I32, F32) and not lossless(I64, F64) and not lossless(I8, U8)
    assert not passes_through(I32, F64, I8)  # the float saturates, the integer wraps


def known(*ranges):
    return Known(("M", "N"), ranges)


SQUARE = (Range("i", Affine(), N), Range("j", Affine(), I + 1))


@pytest.mark.parametrize("test, always", [
    (I, True), (N - I - 1, True), (I - J, True), (N - J - 1, True), (N, True), (I + 3 + N, True),
    (quasi("mod", I, affine(4)), True), (quasi("mod", I, affine(4)) * -1 + 3, True), (N - 1, False),
    (J - I, False), (I - 1, False), (affine("M") - I, False),
    (quasi("div", N, affine(2)), True), (quasi("min", N, affine(3)), True), (quasi("min", N, affine(-3)), False),
])
def test_a_test_goes_if_ranges_and_sizes_imply_it(test, always):
    assert never_negative(test, ("M", "N"), SQUARE) == always
    assert simplify_expr(Holds((test,)), known(*SQUARE)) == (Const(True, BOOL) if always else Holds((test,)))


@given(st.integers(-3, 3), st.integers(-3, 3), st.integers(-3, 3), st.integers(-6, 6))
def test_what_is_said_never_to_be_negative_never_is(a, b, c, d):
    x = I * a + J * b + N * c + d
    if never_negative(x, ("N",), SQUARE):
        assert all(a * i + b * j + c * n + d >= 0 for n in range(6) for i in range(n) for j in range(i + 1))


def test_a_test_that_cannot_hold_is_false():
    assert simplify_expr(Holds((I * -1 - 1,)), known(*SQUARE)) == Const(False, BOOL)


def test_of_tests_that_differ_by_a_constant_the_stronger_stays():
    assert simplify_expr(Holds((I - 1, I - 3, I - 1)), known(*SQUARE)) == Holds((I - 3,))


def test_a_guard_goes_if_the_domain_implies_it_and_stays_if_only_a_choice_does():
    read = Load("X", (I - 1,), F32, (I - 1, N - I - 1))
    assert simplify_expr(read, known(*SQUARE)) == Load("X", (I - 1,), F32, (I - 1,))
    choice = Apply("select", (Holds((I - 1,)), read, f32(0.0)), F32)
    assert simplify_expr(choice, known(*SQUARE)).args[1].guard == (I - 1,)


def test_a_choice_inside_the_same_choice_is_decided():
    inner = Apply("select", (Holds((I - 1,)), X, Y), F32)
    assert simplify_expr(Apply("select", (Holds((I - 1,)), inner, Y), F32), known(*SQUARE)).args[1] == X


def test_a_read_whose_guard_never_holds_is_zero():
    assert simplify_expr(Load("X", (I,), F32, (I * -1 - 1,)), known(*SQUARE)) == f32(0.0)


def test_numbers_of_constants_are_constants():
    assert simplify_expr(Apply("cast", (Number(Affine(const=3), I64),), F32), known()) == f32(3.0)


def test_a_temporary_that_no_output_needs_goes():
    made = op("op f(X: f32[N]) -> (Y: f32[N]) { t[i] = X[i] * 2\n u[i] = t[i] + 1\n Y[i] = X[i] }")
    assert [t.name for t in simplify(made).temporaries] == []


def test_an_empty_reduction_keeps_its_step():
    made = op("op f(X: f32[N]) -> (Y: f32) { Y += X[i] where i < 0 }")
    assert_same(made, simplify(made), {"N": 3})


LEAVES = st.sampled_from(["X[i]", "1", "0", "i", "N", "(X[i - 1] else 0)", "(X[i + 1] else 1)"])
CONDITIONS = st.sampled_from(["i >= 0", "i > 0", "i < N", "i < N - 1", "X[i] > 0", "i >= 0 and X[i] > 0"])


@settings(max_examples=30, deadline=None)
@given(st.recursive(LEAVES, lambda inner: st.one_of(
    st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    st.tuples(CONDITIONS, inner, inner).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
), max_leaves=8))
def test_a_simplified_operator_computes_the_same(text):
    made = op(f"op f(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = f32({text}) }}")
    for n in (0, 1, 3):
        assert_same(made, simplify(made), {"N": n})
