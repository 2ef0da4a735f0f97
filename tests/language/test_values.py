"""Dtypes, conditions, functions, calls, numbers, limits."""

import math

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.reference import evaluate
from polyop.ir.span import Source

from .programs import body, f32, i64, make, normal, report, run, strict

X = f32(3, 1, 2, 5)
NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "i8": np.int8, "i16": np.int16,
         "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}


# --- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMPY)
def test_every_dtype_is_stored_and_its_name_is_the_cast(name):
    got = run(body(f"Y[i] = {name}(X[i])", result=f"Y: {name}[N]"), X)
    assert got.dtype == NUMPY[name]
    assert_array_equal(got.astype(np.float32), X)


def test_bool_is_a_dtype():
    got = run(body("Y[i] = bool(X[i])", result="Y: bool[N]"), f32(0, 2, np.nan))
    assert got.dtype == np.bool_
    assert_array_equal(got, [False, True, True])


def test_numbers_indices_sizes_and_consts_take_the_dtype_they_meet():
    for t in ("f16", "f64", "i8", "u64"):
        header = f"X: {t}[N]; const c: int = 2"
        got = run(body("Y[i] = X[i] + 1 + i + N + c", header, f"Y: {t}[N]"), np.ones(3, NUMPY[t]))
        assert got.dtype == NUMPY[t]
        assert_array_equal(got, [7, 8, 9])


def test_alone_they_are_i64_or_the_widest_float_among_the_parameters():
    assert run("op f(n: int) -> (Y: i64[n]) {\nT[i] = 3*i\nY[i] = T[i]\n}", 3).tolist() == [0, 3, 6]
    assert "f64 does not fit" in report(body("T[i] = 0.5\nY[i] = T[i]", "X: f64[N]"))
    assert "f32 does not fit" in report(body("T[i] = 0.5 where i in 0:N\nY[i] = T[i]", "X: i32[N]", "Y: f16[N]"))


@pytest.mark.parametrize("a, b, meet", [("i64", "f16", "f16"), ("i32", "f32", "f32"), ("f16", "bf16", "f32"),
                                        ("f32", "f64", "f64"), ("i8", "i32", "i32"), ("u8", "u16", "u16")])
def test_dtypes_meet(a, b, meet):
    text = body("Y[i] = A[i] + B[i]", f"A: {a}[N], B: {b}[N]", f"Y: {meet}[N]")
    assert_array_equal(run(text, np.full(2, 2, NUMPY[a]), np.full(2, 3, NUMPY[b])), [5, 5])


def test_storing_never_narrows_without_a_cast():
    said = report(body("Y[i] = X[i]", result="Y: f16[N]"))
    assert "f32 does not fit into `Y`, which is f16" in said and "help: write the cast: `f16(...)`" in said


@pytest.mark.parametrize("how", [run, strict])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_reducing_statement_of_16_bit_floats_works_in_f32(name, how):
    x = np.full(5000, 0.1, NUMPY[name])
    want = x.astype(np.float64).sum()
    assert_allclose(float(how(body("Y += X[i]", f"X: {name}[N]", f"Y: {name}"), x)), want, rtol=2 ** -8)
    assert_allclose(how(body("T += X[i]\nY = T", f"X: {name}[N]", "Y: f32"), x), want, rtol=1e-5)


@pytest.mark.parametrize("how", [run, strict])
@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_max_and_argmax_of_16_bit_floats_are_exact(name, how):
    x = normal(3, 37).astype(NUMPY[name])
    got = how(body("M[r] max= X[r, c]\nY[r] argmax= X[r, c]", f"X: {name}[R, C]", f"M: {name}[R], Y: i64[R]"), x)
    assert_array_equal(got[0].astype(np.float32), x.astype(np.float32).max(1))
    assert_array_equal(got[1], x.astype(np.float32).argmax(1))


def test_smaller_integers_are_summed_in_32_bits():
    assert run(body("T += X[i]\nY = T", "X: i8[N]", "Y: i32"), np.full(9, 100, np.int8)) == 900
    assert run(body("T += X[i]\nY = T", "X: u8[N]", "Y: u32"), np.full(9, 200, np.uint8)) == 1800
    assert run(body("Y += X[i]", "X: i8[N]", "Y: i8"), np.full(9, 100, np.int8)) == np.array(900).astype(np.int8)


def test_float_to_integer_truncates_and_saturates_and_nan_gives_zero():
    x = np.array([1.9, -1.9, 1e30, -1e30, np.nan, np.inf, -np.inf, 300, -0.5])
    for t in ("i8", "u8", "i32", "u32", "i64", "u64"):
        info = np.iinfo(NUMPY[t])
        want = [0 if math.isnan(v) else info.max if v > info.max else info.min if v < info.min else int(v) for v in x]
        for how in (run, strict):
            got = how(body(f"Y[i] = {t}(X[i])", "X: f64[N]", f"Y: {t}[N]"), x)
            assert got.tolist() == want, t


def test_integer_division_floors_and_by_zero_gives_zero_and_the_remainder_has_the_divisors_sign():
    a, b = np.array([7, -7, 7, -7, 5, 0]), np.array([2, 2, -2, -2, 0, 3])
    q, r = run(body("Q[i] = A[i] / B[i]\nR[i] = A[i] % B[i]", "A: i64[N], B: i64[N]", "Q: i64[N], R: i64[N]"), a, b)
    assert q.tolist() == [3, -4, -4, 3, 0, 0]
    assert r.tolist()[:4] == [1, 1, -1, -1]


def test_integers_wrap():
    assert run(body("Y[i] = X[i] + 1", "X: i8[N]", "Y: i8[N]"), np.array([127], np.int8)).tolist() == [-128]
    assert run(body("Y[i] = X[i] * X[i]", "X: i32[N]", "Y: i32[N]"), np.array([1 << 16], np.int32)).tolist() == [0]
    least = -2 ** 63
    assert run(body("Y[i] = X[i] / -1", "X: i64[N]", "Y: i64[N]"), i64(least)).tolist() == [least]


# --- conditions and constants ----------------------------------------------------------------------------------------


def test_bits_have_pythons_precedence():
    a, b = i64(12, 5, -3), i64(10, 3, 7)
    got = run(body("Y[i] = A[i] & B[i] | A[i] ^ B[i] << 2 >> 1 + 1 & ~A[i]", "A: i64[N], B: i64[N]", "Y: i64[N]"), a, b)
    assert_array_equal(got, a & b | a ^ b << 2 >> 1 + 1 & ~a)


def test_conditions_compare_and_join():
    got = run(body("Y[i] = not (X[i] > 1 and X[i] < 5) or X[i] == 2 ? 1 : 0", result="Y: i64[N]"), X)
    assert_array_equal(got, [0, 1, 1, 1])


def test_constants():
    assert_array_equal(run("op f(n: int) -> (Y: f32[n]) {\nY[i] = i == 0 ? inf : i == 1 ? -inf : i == 2 ? pi : nan\n}", 4),
                       np.array([np.inf, -np.inf, np.pi, np.nan], np.float32))
    assert run("op f() -> (Y: bool) {\nY = true and not false\n}")


# --- functions -------------------------------------------------------------------------------------------------------


ONE = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2, "log1p": np.log1p, "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": lambda x: np.array([math.erf(v) for v in x]),
    "gelu": lambda x: np.array([v / 2 * (1 + math.erf(v / 2 ** 0.5)) for v in x]),
    "silu": lambda x: x / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0), "softplus": lambda x: np.log1p(np.exp(x)),
    "abs": np.abs, "sign": np.sign, "floor": np.floor, "ceil": np.ceil, "round": np.round, "trunc": np.trunc,
}


@pytest.mark.parametrize("how", [run, strict])
def test_every_function_of_one_argument(how):
    x = f32(0.1, 0.25, 0.5, 0.75, 0.9)
    results = ", ".join(f"Y_{n}: f32[N]" for n in ONE)
    got = how(body("\n".join(f"Y_{n}[i] = {n}(X[i])" for n in ONE), result=results), x)
    for (name, f), y in zip(ONE.items(), got, strict=True):
        assert_allclose(y, f(x.astype(np.float64)), rtol=1e-5, err_msg=name)


def test_every_function_of_more_arguments():
    a, b = f32(0.5, 2, 3), f32(2, 0.5, -1)
    text = body("P[i] = pow(A[i], B[i])\nT[i] = atan2(A[i], B[i])\nL[i] = min(A[i], B[i], 1)\nG[i] = max(A[i], B[i], 1)\n"
                "F[i] = fma(A[i], B[i], 1)\nE[i] = nextafter(A[i], B[i])", "A: f32[N], B: f32[N]",
                ", ".join(f"{n}: f32[N]" for n in "PTLGFE"))
    least, most = np.minimum(np.minimum(a, b), 1), np.maximum(np.maximum(a, b), 1)
    want = (a ** b, np.arctan2(a, b), least, most, a * b + 1, np.nextafter(a, b))
    for got, w in zip(run(text, a, b), want, strict=True):
        assert_allclose(got, w, rtol=1e-6)


def test_tests_of_floats():
    got = run(body("A[i] = isnan(X[i])\nB[i] = isinf(X[i])\nC[i] = isfinite(X[i])", result="A: bool[N], B: bool[N], C: bool[N]"),
              f32(np.nan, np.inf, -np.inf, 1))
    assert [x.tolist() for x in got] == [[True, False, False, False], [False, True, True, False], [False, False, False, True]]


def test_round_is_half_to_even():
    assert_array_equal(run(body("Y[i] = round(X[i])"), f32(0.5, 1.5, 2.5, -0.5, -1.5)), [0, 2, 2, -0.0, -2])


def test_fn_adds_a_function_in_any_order():
    text = "op f(X: f32[N]) -> (Y: f32[N]) {\nY[i] = g(X[i]) + 1\n}\nfn g(x) = h(x) * 2\nfn h(x) = x + 1"
    assert_array_equal(run(text, X), (X + 1) * 2 + 1)
    assert "E214" in report("fn g(x) = g(x)\nop f(X: f32[N]) -> (Y: f32[N]) {\nY[i] = g(X[i])\n}")


@pytest.mark.parametrize("how", [run, strict])
@pytest.mark.parametrize("c", [0, 1, 7])
def test_monoid_adds_a_reducing_operator(how, c):
    text = ("fn both(a, b) = max(a, b) == -inf ? -inf : max(a, b) + log(exp(a - max(a, b)) + exp(b - max(a, b)))\n"
            "monoid lse(-inf, both)\nop f(A: f32[R, C]) -> (Y: f32[R]) {\nY[r] lse= A[r, c]\n}")
    a = normal(3, c)
    assert_allclose(how(text, a), np.logaddexp.reduce(a, axis=1) if c else np.full(3, -np.inf), rtol=1e-5)


def test_what_the_library_defines_keeps_its_meaning_whatever_the_file_calls_its_own():
    text = "op f(X: f32[N]) -> (y: f32) { y lse= X[i] }"
    assert_allclose(run(f"fn logaddexp(a, b) = a\n{text}", X), np.logaddexp.reduce(X), rtol=1e-5)
    assert run(f"fn logaddexp(a, b) = max(a, b)\nmonoid lse(-inf, logaddexp)\n{text}", X) == X.max()


@pytest.mark.parametrize("how", [run, strict])
def test_a_monoid_may_combine_with_a_built_in_function(how):
    text = "monoid highest(0, max)\nop f(A: u32[R, C]) -> (Y: u32[R]) {\nY[r] highest= A[r, c]\n}"
    a = np.arange(21, dtype=np.uint32).reshape(3, 7) * 7 % 11
    assert_array_equal(how(text, a), a.max(1))
    assert_array_equal(how(text, a[:, :0]), np.zeros(3))
    for wrong in ("exp", "fma", "f32", "nothing"):
        assert f"E225]: `{wrong}` is no function of two arguments" in report(text.replace("max", wrong))


# --- calls -----------------------------------------------------------------------------------------------------------


def test_calls_stand_alone_take_whole_tensors_and_names_are_looked_up_in_the_file_then_in_the_library():
    text = ("op two(X: f32[N]; a: f32 = 1) -> (P: f32[N], Q: f32[N]) {\nP[i] = X[i] + a\nQ[i] = X[i] - a\n}\n"
            "op f(X: f32[M, N], Z: f32[K]) -> (Y: f32[M, N], A: f32[K], B: f32[K]) {\nY = softmax(X)\nA, B = two(Z, a=2)\n}")
    x = normal(2, 3)
    y, a, b = run(text, x, X)
    assert_allclose(y, np.exp(x) / np.exp(x).sum(1, keepdims=True), rtol=1e-5)
    assert_array_equal(a, X + 2)
    assert_array_equal(b, X - 2)
    assert "E207" in report(text.replace("Y = softmax(X)", "Y[i, j] = 1 + softmax(X)"))


G = """
op g(inout X: f32[N]) { X[i] = X[i] + 1 }
op part(inout X: f32[N]) where N >= 1 { X[0] = 7 }
op sum1(inout X: f32[N], A: f32[N, M]) { X[i] += A[i, j] }
"""


@pytest.mark.parametrize("n", [0, 1, 7])
def test_an_operator_with_inout_called_returns_what_it_would_write(n):
    x = normal(n)
    old = x.copy()
    assert_array_equal(run(G + body("Y = g(X)"), x), old + 1)
    assert_array_equal(x, old)
    assert_array_equal(run(G + body("T[i] = 2 * X[i]\nU = g(T)\nY = g(U)"), x), 2 * old + 2)
    assert_array_equal(run(G + "op f(inout A: f32[M]) {\nA = g(A)\n}", x), old + 1)
    assert_array_equal(x, old + 1)


def test_a_called_operator_may_write_part_of_the_callers_inout():
    x = f32(1, 2, 3)
    run(G + "op f(inout A: f32[M]) where M >= 1 {\nA = part(A)\n}", x)
    assert_array_equal(x, [7, 2, 3])
    run(G + "op f(inout A: f32[M], B: f32[M, K]) {\nA = sum1(A, B)\n}", x, np.ones((3, 2), np.float32))
    assert_array_equal(x, [9, 4, 5])
    assert_array_equal(run(G + "op f(A: f32[M]) -> (Y: f32[M]) where M >= 1 {\nY = part(A)\n}", f32(1, 2, 3)), [7, 2, 3])


def test_the_result_of_a_call_is_written_by_nothing_else():
    assert "`T` is the whole result of `g`, and is written elsewhere too" in report(G + body("T[i] = X[i]\nT = g(T)\nY = g(T)"))
    assert "E244" in report(G + "op f(inout A: f32[M]) {\nA = g(A)\nA = g(A)\n}")
    x = f32(1, 2)
    run(G + "op f(inout A: f32[M]) {\nT = g(A)\nA = g(T)\n}", x)
    assert_array_equal(x, [3, 4])


def test_elsewhere_a_tensor_always_has_its_brackets():
    assert "E204" in report(body("Y[i] = X + 1"))


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [run, strict])
@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f64"])
def test_max_and_min_return_nan_if_either_side_is(how, name):
    a, b = np.array([np.nan, 1, 2], NUMPY[name]), np.array([1, np.nan, 3], NUMPY[name])
    hi, lo, m = how(body("H[i] = max(A[i], B[i])\nL[i] = min(A[i], B[i])\nM max= A[i]", f"A: {name}[N], B: {name}[N]",
                         f"H: {name}[N], L: {name}[N], M: {name}"), a, b)
    assert_array_equal(hi.astype(float), [np.nan, np.nan, 3])
    assert_array_equal(lo.astype(float), [np.nan, np.nan, 2])
    assert np.isnan(float(m))


def test_strict_numerics_keep_source_order_and_rounding():
    x = normal(1000) * 1e4
    want = np.float32(0)
    for v in x:
        want += v
    assert strict(body("Y += X[i]", result="Y: f32"), x) == want
    a, b, c = normal(99), normal(99, seed=1), normal(99, seed=2)
    assert_array_equal(strict(body("Y[i] = A[i] * B[i] + C[i]", "A: f32[N], B: f32[N], C: f32[N]"), a, b, c), a * b + c)


@pytest.mark.parametrize("dtype", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"])
def test_an_empty_max_or_min_has_the_identity_of_the_dtype_of_its_result(dtype):
    text = f"op f(X: {dtype}[R, C]) -> (a: {dtype}[R], b: {dtype}[R]) {{ a[r] max= X[r, c]\n b[r] min= X[r, c] }}"
    a, b = run(text, np.zeros((2, 0), getattr(np, f"{'u' * (dtype[0] == 'u')}int{dtype[1:]}")))
    info = np.iinfo(a.dtype)
    assert a.tolist() == [info.min] * 2 and b.tolist() == [info.max] * 2


def test_an_unsigned_integer_is_not_compared_with_a_negative_number():
    for condition in ("X[i] > -1", "-1 < X[i]", "X[i] == -3"):
        assert "E213" in report(body(f"Y[i] = {condition}", "X: u8[N]", "Y: bool[N]"))
    assert_array_equal(run(body("Y[i] = X[i] & -2", "X: u8[N]", "Y: u8[N]"), np.array([5, 255], np.uint8)), [4, 254])


@pytest.mark.parametrize("value", ["(X[i * 4611686018427387904] else 0)", "(X[i - 9223372036854775807] else 0)",
                                   "i * 4611686018427387904 < 5 ? 1.0 : 0.0", "(X[min(i, 3) * 8589934592 + 1] else 0)"])
def test_places_and_conditions_that_64_bits_may_not_hold_are_refused(value):
    assert "E213" in report(body(f"Y[i] = {value}"))
    assert_array_equal(run(body("Y[i] = (X[i * 4294967296] else 0)"), X), [X[0], 0, 0, 0])


def evaluated(text, sizes):
    """The one result, by the reference evaluator."""
    op = instantiate(parse(Source("<test>", text)), "f")
    return next(iter(evaluate(op, sizes, {}, {"X": np.zeros(sizes["N"], np.float32)}).values()))


def test_a_value_made_of_indices_wraps_like_any_integer():
    i = np.arange(9, dtype=np.uint64)
    big = (i * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)).astype(np.int64)
    text = body("Y[i] = (i * 6364136223846793005 + 1442695040888963407) % 1000 where i in 0:N", "X: f32[N]", "Y: i64[N]")
    assert_array_equal(run(text, np.zeros(9, np.float32)), big % 1000)
    assert_array_equal(evaluated(text, {"N": 9}), big % 1000)


# --- limits and einsum -----------------------------------------------------------------------------------------------


def test_brackets_nest_to_100_and_a_sum_may_have_900_terms():
    assert_array_equal(run(body(f"Y[i] = {'(' * 98}X[i]{')' * 98}"), X), X)
    assert "error[E1" in report(body(f"Y[i] = {'(' * 101}X[i]{')' * 101}"))
    assert_array_equal(run(body("Y[i] = " + " + ".join(["X[i]"] * 900)), X), 900 * X)
    assert "error[E1" in report(body("Y[i] = " + " + ".join(["X[i]"] * 5000)))


@pytest.mark.parametrize("t", ["f32", "f16"])
def test_so_may_a_sum_of_elements_outside(t):
    f = polyop.op(f"op f(X: {t}[N]) -> (Y: {t}[N]) {{ Y[i] = {' + '.join(['(X[i - 1] else 0)'] * 900)} }}")
    assert_array_equal(f(np.ones(5, {"f32": np.float32, "f16": np.float16}[t])), [0, 900, 900, 900, 900])


def test_einsum_strings_are_the_same_thing_shorter():
    q, k = normal(2, 3, 5, 4), normal(2, 3, 7, 4)
    for spec, arrays in {"bhid,bhjd->bhij": (q, k), "...id,...jd->...ij": (q, k), "bhid->": (q,), "bhid": (q,)}.items():
        assert_allclose(polyop.einsum(spec, *arrays), np.einsum(spec, *arrays), rtol=1e-4, atol=1e-5)
    s = normal(3, 3)
    for spec in ("ii", "ii->i", "ij->ji", "ij,jk", "ba"):
        arrays = (s, s) if "," in spec else (s,)
        assert_allclose(polyop.einsum(spec, *arrays), np.einsum(spec, *arrays), rtol=1e-4, atol=1e-5)


def test_operators_may_be_asked_for_by_name():
    assert make("op g(X: f32[N]) -> (Y: f32[N]) {\nY[i] = X[i]\n}", "g").__name__ == "g"
