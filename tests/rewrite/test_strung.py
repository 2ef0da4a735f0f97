"""A few elements at the end of arrays become part of the place before, and whole vectors are taken apart and woven."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.known import Known
from polyop.operator import Operator
from polyop.poly.wellformed import check
from polyop.rewrite.copies.strung import MANY, few_of, find_ends, find_rows, kinds_of, lying, strung
from polyop.rewrite.flatten import flatten
from polyop.rewrite.ones import fix_sizes
from polyop.runtime.bind import bind
from polyop.runtime.layout import contiguous
from tests.rewrite.ops import integers, op, shape_of

PLAIN = "op f(X: i32[N, C], m: i32[C]) -> (Y: i32[N, C]) { Y[n, c] = X[n, c] - m[c] }"
TURNED = "op f(X: i32[H, W, C]) -> (Y: i32[C, H, W]) { Y[c, h, w] = X[h, w, c] }"
SUM = "op f(X: i32[N, C], W: i32[C, D]) -> (Y: i32[N, D]) { Y[n, d] += X[n, c] * W[c, d] }"
EDGE = "op f(X: i32[N, C]) -> (Y: i32[N, C]) { Y[n, c] = (X[n - 1, c] else 7) + X[n, C - 1 - c] where c in 0:C }"
COLUMNS = "op f(X: i32[N, C]) -> (Y: i32[C]) { Y[c] max= X[n, c] }"
SOME = "op f(X: i32[N, C]) -> (Y: i32[N, C]) { Y[n, c] += X[n, d] where d <= c }"
PAIRS = "op f(X: i32[N, C, C]) -> (Y: i32[N, C, C]) { Y[n, i, j] = X[n, j, i] * 2 }"
TEXTS = [PLAIN, TURNED, SUM, EDGE, COLUMNS, SOME, PAIRS]


def made(o, few):
    known = fix_sizes(o, few)
    flat = flatten(known, ())
    return strung(flat, find_rows(known))



@pytest.mark.parametrize(("text", "n", "few"), [(t, n, c) for t, n, c in product(TEXTS, (1, 2, 5), (2, 3, 4))])
def test_what_is_strung_computes_the_same(text, n, few):
    o = op(text)
    sizes = {x: few if x in "CD" else n for x in o.sizes}
    flat = made(o, {x: few for x in o.sizes if x in "CD"})
    check(flat.op)
    if text not in (TURNED, PAIRS):
        assert len(flat.op.tensor("X").shape) == 1
    arrays = integers(o, sizes)
    given = {x: a.reshape(shape_of(flat.op.tensor(x), sizes)) for x, a in arrays.items()}
    want, got = (evaluate(p, sizes, {}, a)["Y"] for p, a in ((o, arrays), (flat.op, given)))
    np.testing.assert_array_equal(got.reshape(want.shape), want)


@pytest.mark.parametrize(("text", "few", "half", "brief"), [
    (PLAIN, {"C"}, {"C"}, set()), (SUM, {"C", "D"}, set(), set()), (PAIRS, {"C"}, {"C"}, set()), (COLUMNS, {"C"}, {"C"}, {"C"}),
    ("op f(X: f32[M, K], W: f32[K, N]) -> (Y: f32[M, N]) { Y[m, n] += X[m, k] * W[k, n] }", {"N", "K"}, set(), set()),
    ("op f(X: f32[A, B, C]) -> (Y: f32[A, B, C]) { t[a, c] max= X[a, b, c]\n e[a, b, c] = exp(X[a, b, c] - t[a, c])\n "
     "z[a, c] += e[a, b, c]\n Y[a, b, c] = e[a, b, c] / z[a, c] }", {"C"}, {"C"}, set()),           # known, not strung
    ("op f(X: f32[A, B, C]) -> (Y: f32[A, C]) { Y[a, c] += X[a, b, c] }", {"C"}, {"C"}, {"C"}),
    ("op f(X: f32[N, C], m: f32[N]) -> (Y: f32[C]) { Y[c] += X[n, c] * m[n] }", {"C"}, {"C"}, {"C"}),
    ("op f(X: f32[N, C], m: f32[C]) -> (Y: f32[N]) { Y[n] += X[n, c] * m[c] }", {"C"}, {"C"}, {"C"}),
    ("op f(X: f32[B, C, H, W], F: f32[K, C, R, R]) -> (Y: f32[B, K, H - R + 1, W - R + 1]) where H >= R, W >= R "
     "{ Y[b, k, p, q] += X[b, c, p + r, q + s] * F[k, c, r, s] }", set(), set(), set()),                   # sums over much
    ("op f(X: f32[B, M, K], W: f32[B, K, N]) -> (Y: f32[B, M, N]) { Y[b, m, n] += X[b, m, k] * W[b, k, n] }",
     set(), set(), set()),
    ("op f(X: f32[N, C], i: i64[P]) -> (Y: f32[P, C]) { Y[p, c] = X[i[p], c] }", {"C"}, {"C"}, set()),  # as are rows anywhere
    ("op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[n] + 1 }", set(), set(), set()),
])
def test_which_sizes_had_better_be_numbers_where_they_are_few(text, few, half, brief):
    o = op(text)
    long = {n: 100 for n in o.sizes if n not in "CDNK" or (n == "N" and "K" not in o.sizes)}
    for n in (2, 3, 4):
        assert {x for x, _ in few_of(find_ends(o), dict.fromkeys(o.sizes, n) | long)} == few
        assert few_of(find_ends(o), dict.fromkeys(o.sizes, n)) == ()
    own_way = any(e.is_part for e in find_ends(o))
    for n, found in ((1, set() if own_way else few), (257, set())):
        assert {x for x, _ in few_of(find_ends(o), dict.fromkeys(o.sizes, n) | long)} == found
    for n, found in ((5, half), (8, half), (9, brief), (15, brief), (23, brief)):
        assert {x for x, _ in few_of(find_ends(o), dict.fromkeys(o.sizes, n) | long)} == found


def test_few_elements_had_better_be_known_behind_many_rows_however_short_the_dimension_before():
    o = op("op f(X: f32[A, B, C]) -> (Y: f32[A, C]) { Y[a, c] += X[a, b, c] }")
    product_ = op("op f(X: f32[A, B, C], W: f32[C, D]) -> (Y: f32[A, B, D]) { Y[a, b, d] += X[a, b, c] * W[c, d] }")
    for a, b, is_known in ((64, 1, True), (1, 64, True), (8, 4, True), (4, 4, False)):
        assert dict(few_of(find_ends(o), {"A": a, "B": b, "C": 3})) == ({"C": 3} if is_known else {})
        few = few_of(find_ends(product_), {"A": a, "B": b, "C": 3, "D": 3})
        assert few == ((("C", 3), ("D", 3)) if b > 32 else ())  # else what is narrow has a way of its own


def test_so_had_rows_of_a_few_vectors_unless_they_are_multiplied():
    gather = op("op f(X: f32[N, C], i: i64[P]) -> (Y: f32[P, C]) { Y[p, c] = X[i[p], c] }")
    for o, has_all in ((op(PLAIN), True), (gather, True), (op(COLUMNS), True), (op(SUM), False)):
        for n in (16, 20, 64):
            assert few_of(find_ends(o), dict.fromkeys(o.sizes, n)) == ((("C", n),) if has_all else ())
    bag = op("op f(E: f32[V, C], i: i64[B, L]) -> (S: f32[B, C]) { S[b, c] += E[i[b, l], c] }")  # whose rows lie anywhere
    for n in (12, 64):
        assert "C" not in dict(few_of(find_ends(bag), dict.fromkeys(bag.sizes, n)))
    pick = op("op f(X: f32[A, C], i: i64[P]) -> (Y: f32[A, P]) { Y[a, p] = X[a, i[p]] }")  # no row of C is gone through
    assert [few_of(find_ends(pick), {"A": 99, "C": c, "P": p}) for c, p in ((6, 9), (9, 6))] == [(), (("P", 6),)]
    bytes_ = op(PLAIN.replace("i32", "u8"))
    assert few_of(find_ends(bytes_), {"N": 9, "C": 20}) == () and few_of(find_ends(bytes_), {"N": 9, "C": 64}) == (("C", 64),)


@pytest.mark.parametrize("text", [
    "op f(X: i32[N, 5]) -> (Y: i32[N]) { Y[n] += X[n, c] }",                                         # too many
    "op f(X: i32[N, 2], i: i64[M]) -> (Y: i32[M]) { Y[m] = X[i[m], 1] }",                            # looked up
    "op f(X: i32[3, 2]) -> (Y: i32[3]) { Y[n] += X[n, c] }",                                         # nothing to be part of
    "op f(X: i32[N, 1]) -> (Y: i32[N]) { Y[n] = X[n, 0] }",
])
def test_what_is_not_strung(text):
    assert find_rows(op(text)) == ()


def test_results_that_are_not_one_whole_sum_are_left_as_they_are():
    part = op("op f(X: i32[N, 2]) -> (Y: i32[N, 2]) { Y[n, 0] += X[n, c] }")
    twice = op("op f(X: i32[N, 2]) -> (Y: i32[N, 2]) { Y[n, c] += X[n, c]\n Y[n, c] += 3 * X[n, 1 - c] where c in 0:2 }")
    assert {r.tensor for r in find_rows(twice)} == {r.tensor for r in find_rows(part)} == {"X"}


def test_rows_are_strung_where_a_call_has_them_in_one_piece():
    o = fix_sizes(op(TURNED), {"C": 3})
    rows, shape = find_rows(o), {"X": (4, 5, 3), "Y": (3, 4, 5)}
    assert not lying(o, rows, (), {"X": (99, 5, 3)}, {"X": (15, 3, 1)})  # many short ones
    assert lying(o, rows, (), {"X": (99, 50, 3)}, {"X": (150, 3, 1)})
    assert [r.tensor for r in rows] == ["X"]
    for strides, fits in (((15, 3, 1), True), ((20, 4, 1), False), ((40, 3, 1), True), ((1, 12, 4), True), ((15, -3, 1), False)):
        assert bool(lying(o, rows, (), shape, {"X": strides})) == fits
    groups = (("H", "W"),)
    for strides, fits in (((15, 3, 1), True), ((40, 3, 1), False)):
        assert bool(lying(o, rows, groups, shape, {"X": strides})) == fits
    one = {"X": (4, 1, 3), "Y": (3, 4, 1)}  # a row of one: whatever lies between rows is between those before
    assert lying(o, rows, (), one, {"X": (9, 77, 1)}) and not lying(o, rows, groups, one, {"X": (9, 77, 1)})


def colours(body, result="[N, C]"):
    return f"op f(X: f32[N, C], m: f32[C]) -> (Y: f32{result}) {{ {body} }}"


COLOURS = {
    "plain": (colours("Y[n, c] = (X[n, c] - m[c]) * m[c]"), lambda x, m: (x - m) * m),
    "turned": (colours("Y[c, n] = X[n, c] + m[c]", "[C, N]"), lambda x, m: (x + m).T),
    "weighted": (colours("Y[n] += X[n, c] * m[c]", "[N]"), lambda x, m: x @ m),
    "columns": (colours("s[c] += X[n, c]\n Y[c] = s[c] * m[c]", "[C]"), lambda x, m: x.sum(0) * m),
    "most": (colours("Y[n] max= X[n, c] * m[c]", "[N]"), lambda x, m: (x * m).max(1)),
    "outer": (colours("Y[n, d] += X[n, c] * m[c] * m[d]"), lambda x, m: (x @ m)[:, None] * m),
    "before": (colours("Y[n, c] = (Y[n, c - 1] else 0) + X[n, c] * m[c]"), lambda x, m: (x * m).cumsum(1)),
    "normed": (colours("q[n] += X[n, c] * X[n, c]\n Y[n, c] = m[c] * X[n, c] / sqrt(q[n] + 1)"),
               lambda x, m: m * x / np.sqrt((x * x).sum(1) + 1)[:, None]),
    "neighbours": (colours("Y[n, c] = (X[n - 1, c] else 0) + (X[n + 1, C - 1 - c] else 0) * m[c] where c in 0:C"),
                   lambda x, m: np.vstack([0 * x[:1], x[:-1]]) + np.vstack([x[1:], 0 * x[:1]])[:, ::-1] * m),
}
OPERATORS = {name: polyop.op(text) for name, (text, _) in COLOURS.items()}


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(sorted(COLOURS)), st.sampled_from([0, 1, 2, 7, 15, 16, 17, 31, 33, 47, 48, 49, 63, 64, 65, 131]),
       st.sampled_from([1, 2, 3, 4, 5, 16, 17, 64, 65]), st.sampled_from(["whole", "gap", "flipped", "other"]), st.booleans())
def test_calls_give_what_float64_gives(name, n, c, lies, into):
    rng = np.random.default_rng(n + 7 * c)
    wide = rng.standard_normal((n + 1, c + 2)).astype(np.float32)
    x = {"whole": np.ascontiguousarray(wide[:n, :c]), "gap": wide[:n, :c], "flipped": np.ascontiguousarray(wide[:n, :c])[::-1],
         "other": np.asfortranarray(wide[:n, :c])}[lies]
    m, f = rng.standard_normal(c).astype(np.float32), OPERATORS[name]
    if name == "most" and n == 0:
        return
    want = COLOURS[name][1](x.astype(np.float64), m.astype(np.float64))
    for _ in range(3):  # what serves for any sizes, and then what is made for these
        out = np.full(want.shape, np.nan, np.float32) if into else None
        got = f(x, m, out=out)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def groups_of(body, result="[N, K, C]", beside=""):
    return f"op f(X: f32[N, K, C]{beside}) -> (Y: f32{result}) {{ {body} }}"


def softmax(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


GROUPS = {
    "sum": (groups_of("Y[n, c] += X[n, k, c]", "[N, C]"), lambda x, i: x.sum(1)),
    "most": (groups_of("Y[n, c] max= X[n, k, c]", "[N, C]"), lambda x, i: x.max(1)),
    "along": (groups_of("Y[n, k] += X[n, k, c]", "[N, K]"), lambda x, i: x.sum(2)),
    "softmax": (groups_of("e[n, k, c] = exp(X[n, k, c] - max[j](X[n, j, c])); Y[n, k, c] = e[n, k, c] / sum[j](e[n, j, c])"),
                lambda x, i: softmax(x)),
    "sums": (groups_of("q[n, c] += exp(X[n, k, c]); Y[n] += exp(-q[n, c])", "[N]"),
             lambda x, i: np.exp(-np.exp(x).sum(1)).sum(1)),
    "less": (groups_of("q[n, c] += X[n, k, c]; Y[n, k, c] = X[n, k, c] * 2 - q[n, c]"),
             lambda x, i: 2 * x - x.sum(1, keepdims=True)),
    "before": (groups_of("Y[n, k, c] = (Y[n, k - 1, c] else 0) + X[n, k, c]"), lambda x, i: x.cumsum(1)),
    "found": (groups_of("Y[p, k, c] = X[i[p], k, c] - X[i[p], 0, c]", "[P, K, C]", ", i: i64[P]"),
              lambda x, i: x[i] - x[i][:, :1]),
    "placed": (groups_of("Y[i[p], c] += X[p, k, c] where p in 0:min(P, N)", "[7, C]", ", i: i64[P]"),
               lambda x, i: np.stack([x[:len(i)][i[:len(x)] == y].sum((0, 1)) for y in range(7)])),
}
GROUP_OPERATORS = {name: polyop.op(text) for name, (text, _) in GROUPS.items()}


@settings(deadline=None, max_examples=120)
@given(st.sampled_from(sorted(GROUPS)), st.sampled_from([7, 16, 33, 65]), st.sampled_from([1, 3, 4, 15, 17]),
       st.sampled_from([1, 2, 3, 4, 5]), st.sampled_from(["whole", "gap", "flipped", "other"]))
def test_groups_of_few_give_what_float64_gives(name, n, k, c, lies):
    rng = np.random.default_rng(n + 7 * c + k)
    wide = rng.standard_normal((n, k + 1, c + 2)).astype(np.float32)
    x = {"whole": np.ascontiguousarray(wide[:, :k, :c]), "gap": wide[:, :k, :c], "flipped": wide[:, :k, :c][:, ::-1],
         "other": np.ascontiguousarray(wide[:, :k, :c].transpose(2, 0, 1)).transpose(1, 2, 0)}[lies]
    at, f = rng.integers(0, 7, n + 5), GROUP_OPERATORS[name]
    arrays = (x, at) if "i: i64" in GROUPS[name][0] else (x,)
    want = GROUPS[name][1](x.astype(np.float64), at)
    for _ in range(3):
        np.testing.assert_allclose(f(*arrays), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f64", "f16", "bf16", "i8", "u8", "i16", "u32", "i64", "bool"])
@pytest.mark.parametrize("c", [2, 3, 4])
@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
def test_elements_of_all_sizes_are_taken_apart_and_woven(dtype, c, arch):
    flip = op(f"op f(X: {dtype}[N, {c}]) -> (Y: {dtype}[N, {c}]) {{ Y[n, c] = X[n, {c - 1} - c] where c in 0:{c} }}")
    flat = strung(flatten(flip, ()), find_rows(flip))
    on = target(f"x86:{arch}")
    compiled = compile_op(flat.op, contiguous(flat.op), on, Options())
    assert all(p.holds for p in compiled.proofs) and "gather" not in compiled.module.text
    if arch != "x86-64-v2":
        assert "scatter" not in compiled.module.text
    if arch != "x86-64-v4":
        return
    f = polyop.op(f"op f(X: {dtype}[N, C]) -> (Y: {dtype}[N, C]) {{ Y[n, c] = X[n, C - 1 - c] where c in 0:C }}")
    for n in (1, 15, 31, 64, 65, 127, 129, 200):
        x = np.arange(n * c).reshape(n, c)
        x = (x % 2 if dtype == "bool" else x).astype(flip.tensor("X").dtype.numpy)
        for _ in range(2):
            np.testing.assert_array_equal(f(x), x[:, ::-1])


def test_what_is_copied_to_lie_along_a_larger_array_is_no_string():
    o = op("op f(X: f32[D, C, B, E], Y: f32[E, C, B]) -> (Z: f32[D, C]) { Z[d, c] += X[d, c, b, e] * Y[e, c, b] }")
    assert [r.tensor for r in find_rows(fix_sizes(o, {"B": 3}))] == []
    o = op("op f(X: f32[D, E, C, B], Y: f32[E, C, B]) -> (Z: f32[D, E]) { Z[d, e] += X[d, e, c, b] * Y[e, c, b] }")
    assert {r.tensor for r in find_rows(fix_sizes(o, {"B": 3}))} == {"X", "Y"}


def test_calls_of_other_sizes_go_without_until_it_pays():
    o = op(PLAIN.replace("i32", "f32"))
    known = Known(o)

    def merged(n, c, look):
        x = np.ones((n, c), np.float32)
        return known.merged(bind(o, {"X": x, "m": x[0]}), True, look=look, points=n * c).numbers

    assert merged(70, 7, "a") == ()
    assert merged(70, 3, "b") == ()            # a kernel for any sizes is there
    assert merged(70, 2, "c") == merged(80, 3, "d") == ()
    assert merged(80, 3, "d") == (("C", 3),)   # twice in a row
    assert merged(81, 3, "e") == (("C", 3),)   # from then on
    assert merged(9, 3, "f") == ()             # there is nothing long
    assert merged(70, 4, "g") == () and merged(10 ** 8, 4, "h") == (("C", 4),)  # what takes long
    assert merged(70, 20, "i") == () and merged(70, 20, "i") == (("C", 20),)
    first, x = Known(o), np.ones((70, 20), np.float32)
    assert first.merged(bind(o, {"X": x, "m": x[0]}), True, look="a", points=27).numbers == ()  # it is as good as others
    first = Known(o)
    x = np.ones((70, 3), np.float32)
    assert first.merged(bind(o, {"X": x, "m": x[0]}), True, look="a", points=27).numbers == (("C", 3),)  # nothing is there yet


def test_they_have_plans_and_forms_do_not_hide_them(monkeypatch):
    f, long = polyop.op(PLAIN.replace("i32", "f32")), []
    real = Operator._long
    monkeypatch.setattr(Operator, "_long", lambda self, *a: (long.append(a[0][0].shape), real(self, *a))[1])

    def called(n, c):
        x = np.random.default_rng(n).standard_normal((n, c)).astype(np.float32)
        np.testing.assert_allclose(f(x, x[0]), x - x[0], rtol=1e-6)

    for n in range(20, 40):
        called(n, 9)  # of a form for any sizes
    long.clear()
    for _ in range(8):
        called(50, 3)
    assert 1 <= len(long) <= 3
    long.clear()
    for n in (50, 51, 52, 53, 54, 55, 56, 57, 58):
        called(n, 3)
        called(n, 4)
        called(n, 9)
    assert long
    for c in (3, 4, 5, 2, 3, 1, 16, 17):
        called(33, c)


def test_what_the_kernel_is_like_is_told():
    text = polyop.op("op f(X: f32[N, 3]) -> (Y: f32[N]) { Y[n] += X[n, c] }").compile(target="x86:x86-64-v4").explain()
    assert "X: f32[3*N]" in text and "X[c + 3*n]" in text
    assert kinds_of(op(PLAIN)) == ("where C is one of 1 to 4, and the dimensions before together have at least 16 elements",
                                   "where C is 5 to 8, once they come again",
                                   "where C is one of 16, 20 to 64, once they come again")
    assert kinds_of(op(COLUMNS)) == ("where C is one of 1 to 4, and the dimensions before together have at least 32 elements",
                                     "where C is 5 to 24, once they come again",
                                     "where C is one of 16, 20 to 64, once they come again")
    assert kinds_of(op(SUM))[0] == "where C or D is one of 2 to 4, and the dimension before has at least 32 elements"
    assert kinds_of(op("op f(X: f32[N]) -> (Y: f32[N]) { Y[n] = X[n] }")) == ()


@pytest.mark.parametrize("right", ["N, K", "K, N"])
def test_few_columns_of_many_terms_are_no_few_elements(right):
    """They are dot products."""
    o = op(f"op f(A: f32[M, K], B: f32[{right}], b: f32[N]) -> (C: f32[M, N]) "
           f"{{ t[m, n] += A[m, k] * B[{right.lower()}]; C[m, n] = t[m, n] + b[n] }}")
    found = [few_of(find_ends(o), {"M": 1000, "N": 3, "K": k}) for k in (MANY - 1, MANY)]
    assert [("N", 3) in f for f in found] == [True, False]
