"""What programs compute, by the reference evaluator, against NumPy."""

import numpy as np
import pytest
from helpers import EXAMPLES, F16, body, compute, normal, op, run
from numpy.testing import assert_allclose, assert_array_equal

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dtypes import DTYPES
from polyop.ir.expr import Apply
from polyop.ir.reference import CycleError, TwiceError, UnwrittenError, evaluate, first_outside
from polyop.ir.span import Source

PROGRAM = parse(Source("examples.pop", EXAMPLES))
X = np.array([3.0, 1.0, 2.0, 5.0], np.float32)


def example(name, arrays, **given):
    values = given.pop("values", {})
    return run(instantiate(PROGRAM, name, **given), arrays, **values)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# --- the examples of the language ------------------------------------------------------------------------------------


def test_matmul_sums_over_what_stands_only_on_the_right():
    a, b = normal(3, 4), normal(4, 2)
    assert_allclose(example("matmul", {"A": a, "B": b}), a @ b, rtol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "softmax2"])
def test_softmax_may_reduce_in_statements_or_inside_an_expression(name):
    x = normal(3, 4)
    assert_allclose(example(name, {"X": x}), softmax(x), rtol=1e-5)


def test_convolution_reads_zero_outside():
    x, f = normal(1, 2, 4, 5), normal(3, 2, 3, 2)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    want = np.zeros((1, 3, 2, 3), np.float32)
    for p, q in np.ndindex(2, 3):
        want[:, :, p, q] = np.einsum("bcrs,kcrs->bk", padded[:, :, 2 * p : 2 * p + 3, 2 * q : 2 * q + 2], f)
    assert_allclose(example("conv2d", {"X": x, "F": f}, consts={"stride": 2, "pad": 1}), want, rtol=1e-4, atol=1e-5)


def test_a_recurrence_reads_its_own_earlier_points():
    x, u, h0 = normal(3, 2, 3), normal(3, 3), normal(2, 3)
    h, want = h0, []
    for t in range(3):
        h = np.tanh(h @ u + x[t])
        want.append(h)
    assert_allclose(example("elman", {"X": x, "U": u, "h0": h0}), np.array(want), rtol=1e-5)


def test_causal_attention_stays_below_the_diagonal():
    q, k, v = (normal(1, 1, 3, 2, seed=n).astype(np.float16) for n in range(3))
    score = np.einsum("bhid,bhjd->bhij", q.astype(np.float32), k.astype(np.float32)) * 0.5
    score = np.where(np.tril(np.ones((3, 3), bool)), score, -np.inf)
    want = np.einsum("bhij,bhjd->bhid", softmax(score), v.astype(np.float32))
    got = example("causal_attention", {"Q": q, "K": k, "V": v}, values={"scale": 0.5})
    assert got.dtype == np.float16
    assert_allclose(got, want, rtol=3e-3)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_rest_stands_for_any_number_of_dimensions(rank):
    x, g = normal(*(2,) * rank, 3), normal(3, seed=1)
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g
    assert_allclose(example("rmsnorm", {"X": x, "g": g}, rank=rank), want, rtol=1e-5)


def test_a_call_is_written_out_over_the_callers_tensors():
    e, g = normal(5, 3), normal(3, seed=1)
    ids = np.array([[0, 4], [2, 2]])
    x = e[ids]
    want = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g
    got = example("embed_norm", {"ids": ids, "E": e, "g": g}, dtypes={"T": F16})
    assert got.dtype == np.float16
    assert_allclose(got, want, rtol=5e-3)


def test_data_that_points_outside_is_found_and_named():
    made = instantiate(PROGRAM, "embed_norm")
    arrays = {"ids": np.array([[0, 7]]), "E": normal(5, 3), "g": normal(3)}
    found = first_outside(made, {"B": 1, "S": 2, "V": 5, "D": 3}, {"eps": 0.0}, arrays)
    assert str(found) == "ids[0, 1] = 7 reads outside `E`, which has V = 5 rows"


# --- reading outside, conditions, pieces -----------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "want"), [
    ("Y[i] = (X[i - 1] else 0) + X[i]", [3, 4, 3, 7]),
    ("Y[i] = X[i + 1] else -1", [1, 2, 5, -1]),
    ("Y[i] = (X[i - 2] else X[i + 2] else 9)", [2, 5, 3, 1]),
    ("Y[i] = i == 0 ? X[0] : X[i - 1]", [3, 3, 1, 2]),
    ("Y[i] = i > 0 and i < N - 1 ? X[i - 1] + X[i + 1] : 7", [7, 5, 6, 7]),
    ("Y[i] = i > 0 and X[i - 1] > 2 ? 1 : 0", [0, 1, 0, 0]),
    ("Y[i] = i == 0 or X[i - 1] > 2 ? 1 : 0", [1, 1, 0, 0]),
    ("Y[i] = i != 0 ? X[i - 1] : 0", [0, 3, 1, 2]),
    ("Y[i] = not (i == 0) ? X[i - 1] : 0", [0, 3, 1, 2]),
    ("Y[0] = X[0]\nY[i] = X[i] + X[i - 1]", [3, 4, 3, 7]),
    ("Y[2*i] = X[2*i]\nY[2*i + 1] = -X[2*i + 1]", [3, -1, 2, -5]),
    ("Y[i] = X[N - 1 - i]", [5, 2, 1, 3]),
    ("Y[i] = i < 2 ? 1 : Y[i - 1] + Y[i - 2]", [1, 1, 2, 3]),
    ("Y[i] = (Y[i - 1] else 0) + X[i]", [3, 4, 6, 11]),
    ("d[i] = X[i + 1] - X[i + 2]\nY[i] = (d[i] else 0)", [-1, -3, 0, 0]),
    ("Y[i] = (X[i64(X[i])] else 8)", [5, 1, 2, 8]),
    ("Y[i] = X[i / 2 * 2]", [3, 3, 2, 2]),
    ("Y[i] = X[i % 2]", [3, 1, 3, 1]),
])
def test_only_what_is_needed_is_read(text, want):
    assert compute(body(text), {"X": X}).tolist() == want


@pytest.mark.parametrize(("text", "want"), [
    ("Y[i] += X[j] where j <= i", [3, 4, 6, 11]),
    ("Y[i] += X[j] where X[j] > 1.5, j != i", [7, 10, 8, 5]),
    ("Y[i] max= X[j] where j < i", [-np.inf, 3, 3, 3]),
    ("Y[i] += X[i] * j where j in 0:i", [0, 0, 2, 15]),
    ("Y[i] += X[j] where 0 <= j < i", [0, 3, 4, 6]),
    ("Y[i] = X[i] + sum[k](X[k]) - prod[k](X[k])", [-16, -18, -17, -14]),
    ("Y[i] = sum[k](X[k]) where k <= i", [3, 4, 6, 11]),
    ("Y[i] = i > 1 ? sum[k](X[k]) : max[k](X[k])", [5, 5, 11, 11]),
    ("Y[i] = sum[j](X[j] * max[k](X[k] - X[j]))", [16, 16, 16, 16]),
    ("Y[i] *= X[j] where j <= i", [3, 3, 6, 30]),
    ("Y[i / 2] += X[i]", [4, 7, 0, 0]),
    ("s: f32[N]\ns[i] += X[j] where i in 1:3, j <= i\nY[i] = s[i]", [0, 4, 6, 0]),
    ("t[i, j] = i * 10 + j\nY[i] = t[i, 2 * i]", [0, 12, 24, 36]),
    ("a[i] = X[i]\na[i] = 0.0 where i in N:N + 2\nY[i] = a[i + 2]", [2, 5, 0, 0]),
])
def test_ranges_come_from_where_reads_and_readers(text, want):
    assert compute(body(text), {"X": X}).tolist() == want


# --- reducing forms --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "fn"), [("argmax", np.argmax), ("argmin", np.argmin)])
def test_the_position_of_the_best_is_the_first_on_a_tie_and_of_nan_if_there_is_one(form, fn):
    text = body(f"Y[i] {form}= X[i, j]", "X: f32[M, N]", "Y: i64[M]")
    x = np.array([[1, 3, 3], [2, 2, 2], [1, np.nan, 7], [-np.inf, -np.inf, -np.inf]], np.float32)
    assert_array_equal(compute(text, {"X": x}), fn(x, 1))
    assert compute(text, {"X": np.zeros((2, 0))}).tolist() == [-1, -1]


@pytest.mark.parametrize(("t", "chosen"), [("f32", "f32(1.0) : f32(0.0)"), ("u8", "u8(1) : u8(0)"), ("i64", "i64(1) : i64(0)")])
def test_a_choice_between_small_integers_is_one_in_the_type_that_takes_it(t, chosen):
    assert chosen in str(op(f"op f(N: int) -> (Y: {t}[N, N]) {{ Y[i, j] = i == j ? 1 : 0 }}"))


def test_a_choice_between_integers_that_a_type_may_not_hold_is_made_before():
    assert "f16(((" in str(op("op f(N: int) -> (Y: f16[N, N]) { Y[i, j] = i == j ? 4097 : 0 }"))


@pytest.mark.parametrize(("t", "asked"), [("u8", False), ("u64", False), ("i8", True)])
def test_whether_natural_numbers_are_below_0_is_not_asked(t, asked):
    text = f"""op f(X: {t}[N]) -> (Y: {t}[N], n: i64) {{
        Y[i] = X[i] < 0 or 0 > X[i] ? 1 : 2
        n += 1  where i in 0:N, X[i] >= 0, 0 <= X[i]
    }}"""
    assert ("X[i]" in str(op(text)).partition("{")[2]) == asked
    y, n = compute(text, {"X": np.array([0, 1, 100], DTYPES[t].numpy)})
    assert y.tolist() == [2, 2, 2] and n == 3


@pytest.mark.parametrize(("sign", "fn"), [("&=", np.bitwise_and), ("|=", np.bitwise_or), ("^=", np.bitwise_xor)])
def test_bits_are_reduced(sign, fn):
    x = np.array([12, 10, 7], np.int32)
    assert compute(f"op f(X: i32[N]) -> (Y: i32) {{ Y {sign} X[i] }}", {"X": x}) == fn.reduce(x)


def test_conditions_are_reduced_and_counted():
    text = "op f(X: f32[N]) -> (a: bool, o: bool, n: i64) {\n a and= X[i] > 1\n o or= X[i] > 4\n n += X[i] > 1\n}"
    assert [x.item() for x in compute(text, {"X": X})] == [False, True, 3]


def test_a_monoid_of_the_user_reduces():
    text = (
        "fn both(a, b) = max(a, b) + log1p(exp(-abs(a - b)))\nmonoid lse(-inf, both)\nop f(X: f64[N]) -> (Y: f64) { Y lse= X[i] }"
    )
    assert_allclose(compute(text, {"X": X}), np.log(np.exp(X.astype(np.float64)).sum()))


def test_an_empty_reduction_gives_the_identity():
    made = op("op f(X: f32[M, K]) -> (a: f32[M], b: f32[M]) {\n a[m] += X[m, k]\n b[m] min= X[m, k]\n}")
    a, b = run(made, {"X": np.zeros((2, 0))})
    assert a.tolist() == [0, 0] and b.tolist() == [np.inf, np.inf]


def test_sixteen_bits_are_summed_in_thirty_two_and_products_too():
    text = "op f(X: f16[N]) -> (Y: f16) { Y += X[i] * X[i] }"
    assert compute(text, {"X": np.full(3000, 1)}) == 3000
    assert compute("op f(X: i8[N]) -> (Y: i32) { Y += X[i] * X[i] }", {"X": np.full(3, 100)}) == 30000


def test_unlike_bytes_are_multiplied_in_the_accumulators_dtype_at_once():
    made = op("op f(A: u8[N], B: i8[N]) -> (Y: i32) { Y += A[i] * B[i] }")  # which instructions for dot products need
    assert str(made.steps[0].expr) == "(i32(A[i]) * i32(B[i]))"


def test_the_accumulator_of_an_output_can_be_chosen():
    made = op("op f(X: f32[N]) -> (Y: f32) { Y: f64 [] += X[i] }")
    assert [str(s.expr.dtype) for s in made.steps] == ["f64", "f32"]


def test_scatter_combines_what_meets():
    text = body("Y[idx[i]] += X[i]", "X: f32[M], idx: i64[M], Z: f32[N]", "Y: f32[N]")
    assert compute(text, {"X": X, "idx": [1, 1, 0, 1], "Z": [0, 0, 0]}).tolist() == [2, 9, 0]


# --- inout -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "want"), [
    ("X[i] = 2 * X[i]", [6, 2, 4, 10]),
    ("X[i] = X[i - 1] + X[i + 1] where i in 1:N - 1", [3, 5, 6, 5]),
    ("X[0] = -1.0", [-1, 1, 2, 5]),
    ("X[i] = X[N - 1 - i]", [5, 2, 1, 3]),
    ("X[2*i] = 0.0", [0, 1, 0, 5]),
    ("X[i] += X[j]", [14, 12, 13, 16]),
    ("X[i] += 1.0 where i in 1:3", [3, 2, 3, 5]),
    ("X[i64(X[i]) % 2] max= 4.0", [4, 4, 2, 5]),
    ("X[i] = X[i]", [3, 1, 2, 5]),
    ("X[i + 1] = X[i] where i in 0:2", [3, 3, 1, 5]),
])
def test_inout_keeps_what_is_not_written_and_reads_what_the_caller_passed(text, want):
    made = op(f"op f(inout X: f32[N]) {{\n{text}\n}}")
    assert made.updates == (("X", "X_out"),)
    assert run(made, {"X": X}).tolist() == want


def test_results_are_the_outputs_then_the_updated():
    made = op("op f(inout X: f32[N]) -> (Y: f32[N]) {\n Y[i] = X[i]\n X[i] = 0.0\n}")
    assert [t.name for t in made.outputs] == ["Y", "X_out"]


# --- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        ("a[i] * 2", "f16"),
        ("a[i] + 0.5", "f16"),
        ("a[i] * b[i]", "f32"),
        ("a[i] * c[i]", "f16"),
        ("c[i] + d[i]", "i32"),
        ("c[i] + 1", "i8"),
        ("c[i] * 0.5", "f32"),
        ("c[i] / d[i]", "i32"),
        ("i", "i64"),
        ("i * 0.5", "f32"),
        ("N", "i64"),
        ("exp(d[i])", "f32"),
        ("exp(a[i])", "f16"),
        ("a[i] > 0", "bool"),
        ("i < 2 ? a[i] : 1", "f16"),
        ("e[i] + d[i]", "i64"),
        ("f64(1)", "f64"),
        ("floor(d[i])", "i32"),
        ("max(a[i], 0)", "f16"),
        ("(a[i] > 0) + (b[i] > 0)", "i64"),
        ("g[i] * a[i]", "f32"),
        ("-c[i]", "i8"),
        ("~c[i]", "i8"),
        ("pow(a[i], 2)", "f16"),
        ("i / 2", "i64"),
        ("i * i", "i64"),
        ("pi * i", "f32"),
    ],
)
def test_values_take_the_dtype_they_meet(value, dtype):
    header = "a: f16[N], b: f32[N], c: i8[N], d: i32[N], e: u32[N], g: bf16[N]"
    made = op(body(f"t[i] = {value} where i in 0:N\nY[i] = 0", header))
    assert made.tensor("t").dtype.name == dtype


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("i64(X[i])", [-2, -1, 2, 0]),
        ("u8(X[i])", [0, 0, 2, 0]),
        ("i8(200 * X[i])", [-128, -128, 127, 0]),
        ("i * i - 2", [-2, -1, 2, 7]),
        ("-i / 2", [0, -1, -1, -2]),
        ("-i % 3", [0, 2, 1, 0]),
        ("i / 0", [0, 0, 0, 0]),
        ("1 << i", [1, 2, 4, 8]),
        ("~i & 2", [2, 2, 0, 0]),
        ("max(i, 2, 1)", [2, 2, 2, 3]),
        ("abs(i - 2)", [2, 1, 0, 1]),
        ("sign(i - 1)", [-1, 0, 1, 1]),
        ("N / 3 + 0x10", [17] * 4),
    ],
)
def test_integers_floor_wrap_and_saturate(value, want):
    text = f"op f(X: f32[N]) -> (Y: i64[N]) {{ Y[i] = {value} }}"
    assert compute(text, {"X": [-2.7, -1.2, 2.5, np.nan]}).tolist() == want


@pytest.mark.parametrize(("dtype", "power", "fn"), [
    ("f32", "2", "mul"), ("f32", "3.0", "mul"), ("f64", "4", "mul"), ("f16", "2", "mul"), ("f32", "-1", "div"),
    ("f32", "1", "X[i]"), ("f16", "3", "pow"), ("f32", "5", "pow"), ("f32", "0.5", "pow"), ("f32", "0", "pow"),
    ("f32", "X[i]", "pow")])
def test_a_small_whole_power_is_a_product(dtype, power, fn):
    made = op(f"op f(X: {dtype}[N]) -> (Y: {dtype}[N]) {{ Y[i] = pow(X[i], {power}) }}")
    e = made.steps[0].expr
    assert (e.fn if isinstance(e, Apply) else str(e)) == fn
    with np.errstate(all="ignore"):
        x = np.array([0, -0.0, 1, -2.5, 3e-5, 1e9, -1e-30, np.inf, -np.inf, np.nan]).astype(made.tensor("X").dtype.numpy)
        want = np.power(x, x if power == "X[i]" else x.dtype.type(float(power)))
        got = evaluate(made, {"N": len(x)}, {}, {"X": x})["Y"]
    np.testing.assert_array_max_ulp(got[:-1], want[:-1], 2)
    np.testing.assert_array_equal(np.signbit(got[:-1]), np.signbit(want[:-1]))


def test_powers_of_powers_stay_short():
    text = "X[i]"
    for _ in range(40):
        text = f"pow({text}, 2)"
    assert len(str(op(f"op f(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = {text} }}"))) < 2000


def test_a_temporary_that_feeds_itself_gets_its_dtype_from_what_enters_it():
    made = op(body("a[i] = (b[i - 1] else X[i])\nb[i] = a[i] * 2\nY[i] = b[i]"))
    assert made.tensor("a").dtype.name == made.tensor("b").dtype.name == "f32"


# --- facts and shapes ------------------------------------------------------------------------------------------------


def facts(text, **given):
    return [str(f) for f in op(text, **given).facts]


def test_an_extent_that_could_be_negative_is_a_fact():
    head = "op f(X: f32[N], F: f32[R]; const s: int = 1) -> (Y: f32[(N - R) / s + 1]) { Y[i] += X[s*i + r] * F[r] }"
    assert facts(head) == ["(N - R + 1 >= 0)"]
    assert facts(head, consts={"s": 2}) == ["(N - R + 2 >= 0)"]
    assert facts("op f(X: f32[N]) -> (Y: f32[N + 1]) { Y[i] = (X[i] else 0) }") == []


def test_a_stated_fact_is_kept():
    assert facts("op f(X: f32[N]) -> (Y: f32[N]) where N % 8 == 0, N >= 8 { Y[i] = X[i] }") == [
        "(((N) mod 8) >= 0 and -((N) mod 8) >= 0)", "(N - 8 >= 0)"]


def test_names_that_generated_text_cannot_hold_are_changed_inside():
    made = op("op f(_a: f32[mod], int: f32[mod]) -> (while: f32[mod]) { while[min] = _a[min] * int[min] }")
    assert str(made).splitlines()[0] == "op f(u_a_: f32[mod_], int_: f32[mod_]) -> (while_: f32[mod_]) {"
    assert made.steps[0].indices == ("min_",)


def test_spans_point_at_what_the_user_wrote():
    made = op(body("Y[i] = X[i] +\n  X[0]"))
    (step,) = made.steps
    assert (step.span.line, step.span.end_line) == (2, 3)
    assert [x.span.text for x in step.expr.args] == ["X[i]", "X[0]"]


# --- calls -----------------------------------------------------------------------------------------------------------

TWO = "op g(A: f32[M]; k: f32 = 3) -> (p: f32[M], q: f32) {\n p[i] = k * A[i]\n q += A[i]\n}\n"


def test_an_operator_with_two_results_is_called():
    assert compute(TWO + body("a, s = g(X, k=2)\nY[i] = a[i] + s"), {"X": X}).tolist() == [17, 13, 15, 21]


def test_calls_nest_through_operators():
    text = TWO + "op h(A: f32[M]) -> (p: f32[M]) {\n p, q = g(A)\n}\n" + body("a = h(X)\nY = h(a)")
    assert compute(text, {"X": X}).tolist() == [27, 9, 18, 45]


def test_a_callees_extents_become_facts_of_the_caller():
    text = "op g(A: f32[M], B: f32[2*M]) -> (p: f32[M]) { p[i] = A[i] + B[i + M] }\n" + body(
        "Y = g(X, Z)", "X: f32[N], Z: f32[K]"
    )
    assert facts(text) == ["(-K + 2*N >= 0 and K - 2*N >= 0)"]


def test_a_whole_tensor_is_copied_by_its_name():
    assert compute(body("Y = X"), {"X": X}).tolist() == X.tolist()


# --- the evaluator refuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "error"), [
    ("Y[i] = (Y[i - 1] else 0) + (Y[i + 1] else 0)", CycleError),
    ("Y[i] = X[i]\nY[0] = 2.0", TwiceError),
    ("Y[i] = X[i] where i in 1:N", UnwrittenError),
])
def test_the_evaluator_refuses_what_has_no_meaning(text, error):
    with pytest.raises(error):
        compute(body(text), {"X": X})


def test_a_long_recurrence_is_no_matter():
    n = 3000
    assert compute(body("Y[i] = (Y[i - 1] else 0) + X[i]"), {"X": np.ones(n)})[-1] == n


def test_a_position_that_no_term_reaches_is_minus_one():
    text = body("Y[i] argmax= X[j] where j < i, X[j] > 1.5", result="Y: i64[N]")
    assert compute(text, {"X": X}).tolist() == [-1, 0, 0, 0]
    assert compute(body("Y[i] argmin= X[j] where i in 1:3", result="Y: i64[N]"), {"X": X}).tolist() == [-1, 1, 1, -1]


@pytest.mark.parametrize("text", [
    "op f(Q: i64[H, N], K: i64[G, N]) -> (Y: i64[H, N]) where H == 3*G {\n"
    "    s[g, u, n] = Q[3*g + u, n] * K[g, n]  where u in 0:3\n    Y[3*g + u, n] = s[g, u, n]  where u in 0:3\n}",
    "op f(Q: i64[H, N], K: i64[G, N]) -> (Y: i64[H, N]) where H == 3*G {\n"
    "    L: i64[3*G, N]\n    L[3*g + u, n] = K[g, n]  where u in 0:3\n    t[h, n] = Q[h, n] * L[h, n]\n"
    "    Y[h, n] = t[h, n]\n}",
])
def test_ranges_that_a_fact_makes_equal_agree(text):
    q, k = np.arange(12).reshape(6, 2), np.array([[2, 3], [5, 7]])
    assert_array_equal(compute(text, {"Q": q, "K": k}), q * np.repeat(k, 3, 0))
