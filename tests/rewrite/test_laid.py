"""What lies across a larger tensor is read from, or goes through, a copy that lies along it."""

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.operator import Operator
from polyop.poly.wellformed import check
from polyop.rewrite.copies.laid import OPERAND, PLAIN, RESULT, THIRD, across, find_beside, laid_alongside
from polyop.rewrite.regimes.regimes import as_it_lies, kinds, regime, regimes_of
from polyop.runtime.arrays import view
from polyop.runtime.layout import contiguous, layout
from tests.rewrite.ops import integers, op

XEON = target("x86:sapphirerapids")


def text(equation, dtype="f32", by="+=", times="*"):
    *operands, result = equation.replace("->", ",").split(",")
    shape = {t: ", ".join(i.upper() for i in t) for t in (*operands, result)}
    at = {t: ", ".join(t) for t in shape}
    given = ", ".join(f"X{k}: {dtype}[{shape[t]}]" for k, t in enumerate(operands))
    value = f" {times} ".join(f"X{k}[{at[t]}]" for k, t in enumerate(operands))
    return f"op f({given}) -> (Z: {dtype}[{shape[result]}]) {{ Z[{at[result]}] {by} {value} }}"


def lying(o):
    """What is copied of contiguous arrays, if it pays."""
    return list(across(find_beside(o), contiguous(o), sorted({x.name for x in find_beside(o)})))


SUMS = {"cb,abc->a": ["X0"], "ca,abc->b": ["X0"], "cd,abdc->ab": ["X0"], "a,abc->cb": ["Z"], "abc->cb": ["Z"],
        "edacb,ade->abc": ["Z"], "eda,dbaec->cba": ["Z"], "cad,abcd->db": ["Z"], "dac,abcd->db": ["X0", "Z"]}
PLAIN_STEPS = {"ab,cb->cab": [], "ba,c->cab": ["X0"], "acb,da->bdac": ["X0"], "cb,cab,b->acb": [], "cab,cb->abc": ["X1"],
               "cab,bca->abc": ["X1"], "acb,bca,acb->abc": ["X1"], "cab,ba->abc": [], "acb,ca->abc": ["X1"], "abc,acb->abc": []}


@pytest.mark.parametrize("how", [("i32", "+=", "*"), ("i32", "max=", "+")], ids=str)
@pytest.mark.parametrize("equation", SUMS)
def test_the_sum_is_that_of_the_text(equation, how):
    o = op(text(equation, *how))
    made = laid_alongside(o, SUMS[equation])
    check(made)
    assert [t.name.removesuffix("_laid") for t in made.tensors if t.role == "temp"] == SUMS[equation]
    assert lying(o) == SUMS[equation]
    for sizes in (dict.fromkeys(o.sizes, 3), {n: 1 + k for k, n in enumerate(o.sizes)}):
        arrays = integers(o, sizes)
        np.testing.assert_array_equal(evaluate(made, sizes, {}, arrays)["Z"], evaluate(o, sizes, {}, arrays)["Z"])


@pytest.mark.parametrize("equation", PLAIN_STEPS)
def test_so_is_what_is_not_added_up(equation):
    o = op(text(equation, "i32", "="))
    made = laid_alongside(o, PLAIN_STEPS[equation])
    check(made)
    assert lying(o) == PLAIN_STEPS[equation]
    sizes = {n: 2 + k for k, n in enumerate(o.sizes)}
    arrays = integers(o, sizes)
    np.testing.assert_array_equal(evaluate(made, sizes, {}, arrays)["Z"], evaluate(o, sizes, {}, arrays)["Z"])


def test_copies_lie_as_the_large_tensor_does():
    def steps(*names):
        return [str(s).split("  where")[0] for s in laid_alongside(op(text("dac,abcd->db")), names).steps]

    assert steps("X0", "Z") == ["X0_laid[a, c, d] = X0[d, a, c]", "Z_laid[b, d] += (X0_laid[a, c, d] * X1[a, b, c, d])",
                                "Z[d, b] = Z_laid[b, d]"]
    assert steps("Z") == ["Z_laid[b, d] += (X0[d, a, c] * X1[a, b, c, d])", "Z[d, b] = Z_laid[b, d]"]


@pytest.mark.parametrize("other", [
    text("mk,kn->mn"), text("mk,nk->mn"), text("km,nk->mn"),       # no operand has all indices
    text("bc,abc->a"), text("b,abc->a"), text("a,abc->bc"),        # everything lies along
    text("abc,acb->a"),                                            # both are as large
    text("cb,abc->a").replace(" }", " where c <= b }"),
    text("ba->ab", by="="),
    "op f(X: f32[C, B], Y: f32[A, B, C]) -> (Z: f32[A + 1]) { Z[a + 1] += X[c, b] * Y[a, b, c] }",
    "op f(X: f32[C + 1, B], Y: f32[A, B, C]) -> (Z: f32[A]) { Z[a] += X[c + 1, b] * Y[a, b, c] }",
    "op f(inout Z: f32[C, B], Y: f32[A, B, C]) { Z[c, b] += Y[a, b, c] }",
    "op f(X: f32[A, K], Y: f32[K, B, C], s: f32[C, B]) -> (Z: f32[A]) { t[a, b, c] += X[a, k] * Y[k, b, c]\n"
    "  Z[a] += t[a, b, c] * s[c, b] }",
])
def test_others_stay(other):
    assert lying(op(other)) == []


def test_calls_ask_for_what_pays():
    def asked(equation, by="+=", **sizes):
        return regime(regimes_of(op(text(equation, by=by))), {"A": 9, "B": 9, "C": 9} | sizes, Options(), XEON).laid

    (few, short), (times, narrow), (plain, row) = OPERAND, RESULT, PLAIN
    assert asked("cb,abc->a", A=few, C=short) == ("X0",)
    assert asked("cb,abc->a", A=few, C=short - 1) == asked("cb,abc->a", A=few - 1, C=short) == ()
    assert asked("abc->cb", A=times, C=narrow) == ("Z",) and asked("abc->cb", A=times, C=narrow - 1) == ()
    assert asked("cb,a->abc", "=", A=plain, C=row) == ("X0",)
    assert asked("cb,a->abc", "=", A=plain - 1, C=row) == asked("cb,a->abc", "=", A=plain, C=row - 1) == ()
    assert asked("cab,bca->abc", "=", A=1, B=1, C=THIRD[1]) == ("X1",) and asked("cab,bca->abc", "=", C=THIRD[1] - 1) == ()
    assert "lie across it" in " ".join(kinds(op(text("cb,abc->a"))))


def test_what_lies_along_a_third_index_is_turned_by_itself():
    o = op(text("cab,bca->abc", by="="))
    made = compile_op(o, contiguous(o), XEON, Options(laid=("X1",), check=False))
    assert len(made.chosen) == 2 and all("x 16" in c for c in made.chosen) and "squares of another loop" in " ".join(made.notes)


def test_how_tensors_lie_is_said_by_the_call():
    rng = np.random.default_rng(0)

    def left(equation, x, y):
        o = op(text(equation))
        views = {n: view(np.asarray(a, np.float32, order="K"), n, None) for n, a in {"X0": x, "X1": y, "Z": np.zeros(3)}.items()}
        return as_it_lies(regimes_of(o), layout(o, views), Options(laid=("X0",))).laid

    x, y = rng.random((5, 4)), rng.random((3, 4, 5))
    assert left("cb,abc->a", x, y) == ("X0",) and left("cb,abc->a", rng.random((4, 5)).T, y) == ()
    assert left("bc,abc->a", x.T, y) == ("X0",) and left("bc,abc->a", rng.random((4, 5)), y) == ()
    assert left("cb,abc->a", x, rng.random((4, 5, 3)).transpose(2, 0, 1)) == ()  # the large one does not lie as in the text


@pytest.mark.parametrize("a", [1, 2, 19])
def test_what_a_caller_turned_is_copied_too(a):
    g = np.random.default_rng(a)
    y, x = g.integers(-3, 4, (a, 9, 17)).astype(np.float32), g.integers(-3, 4, (17, 9)).astype(np.float32)
    for equation, given in (("bc,abc->a", x.T), ("cb,abc->a", x), ("cb,abc->a", np.asfortranarray(x))):
        for _ in range(3):
            np.testing.assert_array_equal(polyop.einsum(equation, given, y), np.einsum(equation, given, y.astype(np.float64)))


def test_sums_are_turned_by_themselves():
    o = op(text("a,abc->cb"))
    made = compile_op(o, contiguous(o), XEON, Options(laid=("Z",), check=False))
    assert len(made.chosen) == 2 and "lies across its lanes" in " ".join(made.notes)


@pytest.mark.parametrize("extents", [(1, 1, 1, 1, 1), (2, 3, 8, 7, 5), (3, 17, 9, 16, 2), (4, 1, 33, 5, 12)])
@pytest.mark.parametrize("equation", [*SUMS, *PLAIN_STEPS])
def test_kernels_compute_what_numpy_does(equation, extents):
    by = "+=" if equation in SUMS else "="
    f = polyop.op(text(equation, by=by), options=Options(laid=tuple(SUMS.get(equation) or PLAIN_STEPS.get(equation))))
    sizes, g = dict(zip("abcde", extents, strict=True)), np.random.default_rng(sum(extents))
    given = [g.integers(-3, 4, [sizes[i] for i in t]).astype(np.float32) for t in equation.split("->")[0].split(",")]
    np.testing.assert_array_equal(f(*given), np.einsum(equation, *(x.astype(np.float64) for x in given)))


def test_a_call_that_needs_no_copy_after_all_has_a_plan(monkeypatch):
    f, long = polyop.op("op f(X: f32[A, B], Y: f32[B, C]) -> (Z: f32[A, B, C]) { Z[a, b, c] = X[a, b] + Y[b, c] }"), []
    real = Operator._long
    monkeypatch.setattr(Operator, "_long", lambda self, *a: (long.append(a), real(self, *a))[1])
    x, y = np.ones((12, 70), np.float32), np.ones((70, 9), np.float32)
    for _ in range(6):
        f(x, y)
    assert len(long) == 1
    for n in range(80, 100):
        f(np.ones((12, n), np.float32), np.ones((n, 9), np.float32))
    assert len(long) < 12
