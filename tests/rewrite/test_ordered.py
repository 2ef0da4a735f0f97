"""Tensors whose dimensions are in the order in which they lie in a call's memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.reference import evaluate
from polyop.known import Known
from polyop.poly.wellformed import check
from polyop.rewrite.ordered import in_order, order, orders
from polyop.runtime.bind import bind
from tests.rewrite.ops import LIBRARY, all_of, arguments, fits, integers, op

PRODUCT = "op f(X: f32[M, K], Y: f32[K, N]) -> (Z: f32[M, N]) { Z[m, n] += X[m, k] * Y[k, n] }"


def turned(array, lies):
    """`array` in memory that has its dimensions `lies`, outermost first."""
    return array.transpose(lies).copy().transpose(np.argsort(lies))


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), max_size=5).flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))))
def test_the_largest_stride_comes_first(case):
    shape, lies = case
    x = turned(np.zeros(shape, np.int8), lies)
    found = order(x.shape, x.strides)
    assert sorted(found) == list(range(len(shape)))
    long = [x.strides[d] for d in found if x.shape[d] > 1]
    assert long == sorted(long, reverse=True) or 0 in shape
    assert all(found[d] == d for d in range(len(shape)) if x.shape[d] == 1)


@pytest.mark.parametrize(("shape", "strides", "found"), [
    ((), (), ()), ((3, 4), (4, 1), (0, 1)), ((3, 4), (1, 3), (1, 0)), ((3, 4), (0, 1), (0, 1)), ((3, 4), (1, 0), (0, 1)),
    ((3, 1, 4), (1, 99, 3), (2, 1, 0)), ((1, 4), (1, 1), (0, 1)), ((3, 0), (1, 3), (0, 1)), ((3, 4), (-4, -1), (0, 1)),
    ((3, 4), (-1, 3), (1, 0)), ((3, 4, 5), (1, 0, 3), (2, 1, 0)), ((4, 3), (1, 1), (0, 1)), ((2, 3, 4), (1, 2, 6), (2, 1, 0)),
    ((2, 3, 4), (4, 8, 1), (1, 0, 2))])
def test_what_has_one_element_or_no_stride_stays(shape, strides, found):
    assert order(shape, strides) == found


def test_a_text_in_order_says_the_same_of_the_same_memory():
    o = op(PRODUCT)
    made = in_order(o, (("X", (1, 0)), ("Z", (1, 0))), strict=False)
    assert str(made.steps[0]) == "Z[n, m] += (X[k, m] * Y[k, n])  where n in 0:N, m in 0:M, k in 0:K"
    assert [str(t.shape[0]) for t in made.tensors] == ["K", "K", "N"]


def test_sums_are_taken_in_the_order_of_memory_unless_the_text_decides():
    o = op("op f(X: f32[A, B, C]) -> (s: f32[B]) { s[b] += X[a, b, c] }")
    for strict, by in ((False, ["b", "c", "a"]), (True, ["b", "a", "c"])):
        assert list(in_order(o, (("X", (2, 1, 0)),), strict).steps[0].indices) == by


@pytest.mark.parametrize("text", [
    "op f(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = X[i, j] where j <= i; Y[i, j] = 0 where j > i }",
    "op f(X: f32[T, N]) -> (Y: f32[T, N]) { Y[t, n] = X[t, n] where t < 1; Y[t, n] = Y[t - 1, n] + X[t, n] where t >= 1 }",
    "op f(X: f32[H, W], F: f32[R, S]) -> (Y: f32[H - R + 1, W - S + 1]) { Y[y, x] += X[y + r, x + s] * F[r, s] }",
    "op f(X: f32[V, D], ids: i32[B]) -> (Y: f32[B, D]) { Y[b, d] = X[ids[b], d] }",
    "op f(X: f32[M, N]) -> (p: i64[M]) { p[m] argmax= X[m, n] }"])
def test_steps_of_any_kind_mean_the_same(text):
    o = op(text)
    for strict in (False, True):
        _same(o, np.random.default_rng(3), strict)


@pytest.mark.parametrize("room", LIBRARY)
def test_every_operator_of_the_library_means_the_same_in_any_order(room):
    for k, o in enumerate(all_of(room)):
        _same(o, np.random.default_rng(k), strict=bool(k % 2))


def _same(o, rng, strict):
    """That `o` and what `in_order` makes of it agree, with all tensors turned at random."""
    ends = {end: i for i, end in o.updates}
    lies = {t.name: tuple(rng.permutation(len(t.shape)).tolist()) for t in (*o.inputs, *o.outputs)}
    lies |= {end: lies[i] for end, i in ends.items()}
    made = in_order(o, tuple(lies.items()), strict)
    check(made)
    given = {p.name: 0 for p in o.params if p.is_size}
    sizes = next(s for n in (2, 3, 6, 9, 16) for g in ({}, given) if fits(o, s := dict.fromkeys(o.sizes, n) | g))
    scalars, arrays = arguments(o, sizes)
    got = evaluate(made, sizes, scalars, {n: x.transpose(lies[n]) for n, x in arrays.items()})
    for name, want in evaluate(o, sizes, scalars, arrays).items():
        np.testing.assert_allclose(got[name], want.transpose(lies[name]), rtol=1e-4, atol=1e-5, err_msg=str(o))


def test_both_ends_of_what_is_updated_lie_alike():
    o = op("op f(inout X: f32[M, N]) { X[i, j] = X[i, j] * 2 }")
    (i, end), = o.updates
    found = dict(orders(o, {i: (3, 4), end: (3, 4)}, {i: (4, 1), end: (1, 3)}))
    assert found[i] == found[end] == (1, 0)


TEXTS = {
    "product": PRODUCT,
    "sum": "op f(X: f32[A, B, C], Y: f32[C, B, A]) -> (Z: f32[A, C]) { Z[a, c] += X[a, b, c] * Y[c, b, a] }",
    "map": "op f(X: f32[A, B], Y: f32[A, B]) -> (Z: f32[A, B]) { Z[a, b] = X[a, b] * Y[a, b] + X[a, b] }",
    "all": "op f(X: f32[A, B, C]) -> (s: f32[], m: f32[B]) { s += X[a, b, c]; m[b] max= X[a, b, c] }",
    "scan": "op f(X: f32[T, N]) -> (Y: f32[T, N]) { Y[t, n] = X[t, n] where t < 1; "
            "Y[t, n] = Y[t - 1, n] + X[t, n] where t >= 1 }",
    "window": "op f(X: f32[C, H, W], F: f32[O, C, 3, 3]) -> (Y: f32[O, H - 2, W - 2]) "
              "{ Y[o, y, x] += X[c, y + r, x + s] * F[o, c, r, s] }",
    "rows": "op f(X: f32[V, D], ids: i32[B]) -> (Y: f32[B, D]) { Y[b, d] = X[ids[b], d] }",
    "update": "op f(inout X: f32[M, N], Y: f32[N, M]) { X[m, n] += Y[n, m] }",
    "back": "op f(inout X: f32[M, M]) { X[m, n] = X[n, m] * 2 }",
}


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.parametrize("numerics", ["fast", "strict"])
def test_kernels_compute_what_the_text_says_however_arrays_lie(what, numerics):
    f, o, rng = polyop.op(TEXTS[what], options=polyop.Options(numerics=numerics)), op(TEXTS[what]), np.random.default_rng(1)
    for n in (1, 2, 9, 17):
        sizes = {s: n + k + 3 * (s in "HW") for k, s in enumerate(o.sizes)}
        arrays = integers(o, sizes)
        if what == "rows":
            arrays["ids"] = rng.integers(0, sizes["V"], sizes["B"]).astype(np.int32)
        want = evaluate(o, sizes, {}, arrays)
        for _ in range(3):
            given = {k: turned(x, rng.permutation(x.ndim)) for k, x in arrays.items()}
            if o.updates:
                ((i, end),) = o.updates
                f(*given.values())
                np.testing.assert_array_equal(given[i], want[end])
                continue
            results = tuple(turned(np.zeros_like(w), rng.permutation(w.ndim)) for w in want.values())
            got = f(*given.values(), out=results if rng.random() < 0.6 and results[0].ndim else None)
            for y, w in zip(got if len(want) > 1 else (got,), want.values(), strict=True):
                np.testing.assert_array_equal(y, w)


def test_calls_of_one_order_share_a_kernel_and_those_of_another_have_their_own():
    o, rng = op(TEXTS["sum"]), np.random.default_rng(0)
    known = Known(o)

    def seen(lies, n):
        arrays = {"X": turned(np.zeros((n, n + 1, n + 2), np.float32), lies), "Y": np.zeros((n + 2, n + 1, n), np.float32)}
        return known.as_it_lies(bind(o, arrays))

    assert seen((0, 1, 2), 5)[0] is known
    one, two = seen((2, 0, 1), 5)[0], seen((0, 2, 1), 5)[0]
    assert one is seen((2, 0, 1), 7)[0] and len({known, one, two}) == 3
    assert [str(p) for p in one.op.steps[0].reads[0].index] == ["c", "a", "b"]
    f = polyop.op(TEXTS["sum"])
    for n in (*range(40, 60), 3, 90):  # also where machine code knows the look of a call, its outline or its form
        for lies in ((0, 1, 2), (1, 0, 2), (2, 0, 1), (2, 1, 0)):
            x = turned(rng.integers(-3, 4, (n, n + 1, n + 2)).astype(np.float32), lies)
            y = rng.integers(-3, 4, (n + 2, n + 1, n)).astype(np.float32)
            np.testing.assert_array_equal(f(x, y), np.einsum("abc,cba->ac", x, y, optimize=True))


def test_who_leaves_a_tensor_is_told_so_in_the_order_of_the_text():
    f = polyop.op(TEXTS["rows"])
    table = turned(np.zeros((5, 300), np.float32), (1, 0))
    with pytest.raises(polyop.CallError, match=r"outside `X`.*5 rows"):
        f(table, np.array([0] * 299 + [5], np.int32))
