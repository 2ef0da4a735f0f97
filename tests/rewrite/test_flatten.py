"""Dimensions that lie one after the other are one, and nothing else changes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.known import Known
from polyop.rewrite.flatten import Dims, allowed, chains, dims, flatten, in_arrays
from polyop.runtime.bind import bind

SCALE = "op f(X: f32[B, C, H, W], g: f32[C]) -> (Y: f32[B, C, H, W]) { Y[b, c, h, w] = X[b, c, h, w] * g[c] }"
MEAN = "op f(X: f32[B, H, W]) -> (Y: f32[B]) { t[b] += X[b, h, w]; Y[b] = t[b] / (H * W) }"
MOVE = "op f(X: f32[A, B, C]) -> (Y: f32[C, A, B]) { Y[c, a, b] = X[a, b, c] + 1 }"


def op_of(text: str):
    return instantiate(parse(Source("<test>", text)), "f")


@pytest.mark.parametrize(("text", "found"), [
    (SCALE, (("H", "W"),)),
    (MEAN, (("H", "W"),)),
    (MOVE, (("A", "B"),)),
    ("op f(X: f32[A, B, C]) -> (Y: f32[A, B, C]) { Y[a, b, c] = relu(X[a, b, c]) }", (("A", "B", "C"),)),
    ("op f(X: f32[A, B]) -> (Y: f32[B, A]) { Y[b, a] = X[a, b] }", ()),
    ("op f(X: f32[A, B]) -> (Y: f32[A, B]) { Y[a, b] = X[a, b] + a }", ()),                    # tells the rows apart
    ("op f(X: f32[A, B]) -> (Y: f32[A, B]) { Y[a, b] = X[a, b] + A }", (("A", "B"),)),         # only counts them
    ("op f(X: f32[A, B]) -> (Y: f32[A, B]) { Y[a, b] = (X[a - 1, b] else 0) }", ()),
    ("op f(X: f32[A, B], i: i64[A]) -> (Y: f32[A, B]) { Y[a, b] = X[i[a], b] }", ()),
    ("op f(X: f32[A, B]) -> (Y: f32[A, B]) { Y[a, b] = X[a, b] where b <= a, else 0 }", None),
    ("op f(X: f32[A, A]) -> (Y: f32[A, A]) { Y[a, b] = X[a, b] }", ()),
    ("op f(X: f32[A, B], Z: f32[B]) -> (Y: f32[A, B]) { Y[a, b] = X[a, b] * Z[b] }", ()),
    ("op f(X: f32[A, B]) -> (i: i64) { i argmax= X[a, b] }", None),
    ("op f(X: f32[A, B], A: int) -> (Y: f32[A, B]) { Y[a, b] = X[a, b] }", None),
])
def test_what_can_be_one_follows_from_the_text(text, found):
    try:
        op = op_of(text)
    except polyop.PolyopError:
        assert found is None
        return
    assert chains(op) == (found or ())


@pytest.mark.parametrize("text", [SCALE, MEAN, MOVE])
def test_the_flat_operator_computes_the_same(text):
    op = op_of(text)
    made = flatten(op, chains(op))
    flat = made.op
    sizes = dict(zip(op.sizes, (2, 3, 4, 5), strict=False))
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.standard_normal([sizes[str(e)] for e in t.shape]).astype(np.float32) for t in op.inputs}
    groups = chains(op)
    assert made.sizes == {"_".join(g): g for g in groups}
    more = {"_".join(g): int(np.prod([sizes[n] for n in g])) for g in groups}
    shaped = {t.name: arrays[t.name].reshape([(sizes | more)[str(e)] for e in t.shape]) for t in flat.inputs}
    want, got = evaluate(op, sizes, {}, arrays)["Y"], evaluate(flat, sizes | more, {}, shaped)["Y"]
    np.testing.assert_array_equal(got.reshape(want.shape), want)


extents = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(extents, st.data())
def test_strides_of_one_run_reach_every_element_in_order(shape, data):
    strides = data.draw(st.lists(st.integers(-6, 6), min_size=len(shape), max_size=len(shape)))
    if data.draw(st.booleans()):  # mostly as if contiguous
        strides = [int(np.prod(shape[d + 1:])) * 2 for d in range(len(shape))]
    together = Dims(((0, len(shape)),))
    found = together.strides(shape, strides)
    places = [int(np.dot(i, strides)) for i in np.ndindex(*shape)]
    if found is not None:
        assert places == [n * found[0] for n in range(len(places))]
    else:
        assert len({b - a for a, b in itertools.pairwise(places)}) > 1


def test_a_view_with_a_gap_keeps_the_dimensions_around_the_gap_apart():
    op = op_of("op f(X: f32[A, B, C]) -> (Y: f32[A, B, C]) { Y[a, b, c] = relu(X[a, b, c]) }")
    shape = (3, 4, 5)
    whole, gap = (20, 5, 1), (40, 5, 1)
    found, shapes = in_arrays(op), {"X": shape, "Y": shape}
    assert allowed(found, shapes, {"X": whole, "Y": whole}) == (("A", "B", "C"),)
    assert allowed(found, shapes, {"X": gap, "Y": whole}) == (("B", "C"),)
    assert allowed(found, shapes, {"X": (60, 15, 3), "Y": whole}) == (("A", "B", "C"),)
    assert allowed(found, {"X": (3, 0, 5), "Y": (3, 0, 5)}, {"X": whole, "Y": whole}) == ()


@given(st.lists(st.integers(1, 3), min_size=4, max_size=4), st.data())
def test_the_parts_that_are_allowed_are_as_long_as_strides_let_them_be(shape, data):
    op = op_of("op f(X: f32[A, B, C, D]) -> (Y: f32[A, B, C, D]) { Y[a, b, c, d] = relu(X[a, b, c, d]) }")
    whole = [int(np.prod(shape[d + 1:])) for d in range(4)]
    strides = [n * data.draw(st.sampled_from([1, 1, 1, 2])) for n in whole]
    groups = allowed(in_arrays(op), {"X": shape, "Y": shape}, {"X": strides, "Y": whole})

    def fits(*group):
        return dims(op.tensor("X"), (group,)).strides(shape, strides) is not None

    assert all(fits(*g) for g in groups)
    parts = [*groups, *((n,) for n in "ABCD" if not any(n in g for g in groups))]
    for a, b in itertools.pairwise(sorted(parts)):
        assert not fits(*a, b[0])


@settings(deadline=None, max_examples=80)
@given(st.lists(st.integers(0, 4), min_size=3, max_size=3), st.data())
def test_calls_with_views_of_all_sorts_give_what_numpy_gives(shape, data):
    add = polyop.op("op add3(X: f32[A, B, C], Z: f32[A, B, C]) -> (Y: f32[A, B, C]) { Y[a, b, c] = X[a, b, c] + 2 * Z[a, b, c] }")

    def view():
        kind = data.draw(st.sampled_from(["plain", "gap", "turned", "moved", "broadcast"]))
        x = np.random.default_rng(len(kind)).standard_normal([2 * n for n in shape]).astype(np.float32)
        a, b, c = shape
        match kind:
            case "plain":
                return np.ascontiguousarray(x[:a, :b, :c])
            case "gap":
                return x[::2, :b, ::2]
            case "turned":
                return x[:a, :b, :c][::-1, :, ::-1]
            case "moved":
                return np.ascontiguousarray(x[:a, :b, :c].transpose(1, 2, 0)).transpose(2, 0, 1)
        return np.broadcast_to(x[:1, :b, :c] if a else x[:0, :b, :c], shape)

    x, z = view(), view()
    np.testing.assert_allclose(add(x, z), x + 2 * z, rtol=1e-6)
    out = np.zeros([n + 1 for n in shape], np.float32)[: shape[0], : shape[1], : shape[2]]
    add(x, z, out=out)
    np.testing.assert_allclose(out, x + 2 * z, rtol=1e-6)


FIRST = """op f(X: f32[B, C, H, W], F: f32[K, C, R, S]; const stride: int = 1, const pad: int = 0)
    -> (Y: f32[B, K, (H + 2*pad - R) / stride + 1, (W + 2*pad - S) / stride + 1]) where R >= 1, S >= 1 {
    Y[b, k, p, q] += (X[b, c, stride*p + r - pad, stride*q + s - pad] else 0) * F[k, c, r, s]
}"""
LAST = """op f(X: f32[B, H, W, C], F: f32[R, S, C, K]) -> (Y: f32[B, H - R + 1, W - S + 1, K]) where R >= 1, S >= 1 {
    Y[b, p, q, k] += X[b, p + r, q + s, c] * F[r, s, c, k]
}"""


@pytest.mark.parametrize(("text", "consts", "x", "f", "found"), [
    (FIRST, {}, (2, 3, 5, 7), (4, 3, 1, 1), {("H", "W")}),
    (FIRST, {}, (2, 3, 5, 7), (4, 3, 3, 3), set()),
    (FIRST, {}, (2, 3, 5, 7), (4, 3, 3, 1), set()),
    (FIRST, {"stride": 2}, (2, 3, 5, 7), (4, 3, 1, 1), set()),
    (FIRST, {"pad": 1}, (2, 3, 5, 7), (4, 3, 1, 1), set()),
    (FIRST, {}, (2, 3, 0, 7), (4, 3, 1, 1), set()),
    (LAST, {}, (2, 5, 7, 3), (1, 1, 3, 4), {("B", "H", "W")}),
    (LAST, {}, (2, 5, 7, 3), (2, 1, 3, 4), set()),
])
def test_pixels_are_one_dimension_where_windows_have_one_element(text, consts, x, f, found):
    op = instantiate(parse(Source("<test>", text)), "f", consts=consts)
    image, filter_ = np.ones(x, np.float32), np.ones(f, np.float32)
    bound = bind(op, {"X": image, "F": filter_})
    assert set(Known(op).merged(bound, special=True).flat.sizes.values()) == found
    assert not Known(op).merged(bound).flat.sizes
    gap = bind(op, {"X": np.ones((*x[:-1], 2 * x[-1]), np.float32)[..., : x[-1]], "F": filter_})
    assert ("H", "W") not in Known(op).merged(gap, special=True).flat.sizes.values() or text == LAST


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 2), st.sampled_from([1, 3, 17]), st.sampled_from([1, 5, 16, 33]), st.sampled_from([0, 1, 2, 7, 8, 13]),
       st.sampled_from([1, 2, 4, 11, 28]), st.sampled_from([1, 2]), st.integers(0, 1), st.booleans())
def test_convolutions_of_one_element_are_what_products_in_float64_are(b, c, k, h, w, window, gap, last):
    rng = np.random.default_rng(b + 2 * c + 3 * k + 5 * h + 7 * w)
    image = rng.standard_normal((b, c, h + window - 1, w + window - 1 + gap), np.float32)[..., : w + window - 1]
    filter_ = rng.standard_normal((k, c, window, window), np.float32)
    want = sum(np.einsum("bcpq,kc->bkpq", image[:, :, r : r + h, s : s + w].astype(np.float64), filter_[:, :, r, s])
               for r, s in np.ndindex(window, window))
    f = WITH_WINDOWS[last]
    if last:
        turned = image.transpose(0, 2, 3, 1), filter_.transpose(2, 3, 1, 0)
        got = f(*map(np.ascontiguousarray, turned)).transpose(0, 3, 1, 2)
    else:
        got = f(image, filter_)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


WITH_WINDOWS = polyop.op(FIRST), polyop.op(LAST)


TABLE = "op f(X: u8[A, B], t: f32[T]) -> (Y: f32[A, B]) { Y[a, b] = t[X[a, b]] }"
ROWS = "op f(X: f32[N, A, B], i: i64[P]) -> (Y: f32[P, A, B]) { Y[p, a, b] = X[i[p], a, b] }"
SCATTER = "op f(X: f32[P, A, B], i: i64[P], N: int) -> (Y: f32[N, A, B]) { Y[i[p], a, b] += X[p, a, b] }"
SPREAD = "op f(X: f32[A, B], i: i64[A, B], N: int) -> (Y: f32[N]) { Y[i[a, b]] += X[a, b] }"


@pytest.mark.parametrize(("text", "found"), [
    (TABLE, (("A", "B"),)), (ROWS, (("A", "B"),)), (SCATTER, (("A", "B"),)), (SPREAD, (("A", "B"),)),
    ("op f(X: f32[A, B], i: i64[P]) -> (Y: f32[A, P]) { Y[a, p] = X[a, i[p]] }", ()),
    ("op f(X: f32[A, B], i: i64[A, B], t: f32[T]) -> (Y: f32[A, B]) { Y[a, b] = t[i[a, b] + a] }", ()),
    ("op f(X: f32[A, B], i: i64[A, B], N: int) -> (Y: f32[N]) { Y[i[a, b] + b] += X[a, b] }", ()),
])
def test_dimensions_beside_places_that_are_looked_up_are_one_too(text, found):
    o = op_of(text)
    assert chains(o) == found
    flat, sizes = flatten(o, found), {"A": 3, "B": 4, "N": 6, "P": 5, "T": 9}
    rng = np.random.default_rng(0)
    arrays = {t.name: rng.integers(0, 3, [sizes[str(e)] for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
    inner = {n: a.reshape(flat.dims[n].shape(a.shape)) for n, a in arrays.items()}
    own = {n: sizes[n] for n in o.sizes}
    want = evaluate(o, own, {}, arrays)["Y"]
    got = evaluate(flat.op, own | dict.fromkeys(flat.sizes, 12), {}, inner)["Y"]
    np.testing.assert_array_equal(got.reshape(want.shape), want)


def test_facts_that_say_that_something_is_there_keep_nothing_apart():
    text = "op f(X: f32[A, B]) -> (Y: f32[A, B]) where {} {{ Y[a, b] = X[a, b] + 1 }}"
    assert chains(op_of(text.format("A >= 1, B >= 1"))) == (("A", "B"),)
    assert chains(op_of(text.format("A >= 2"))) == chains(op_of(text.format("A >= B"))) == ()
    assert flatten(op_of(text.format("A >= 1, B >= 1")), (("A", "B"),)).op.facts == ()
    with pytest.raises(polyop.CallError):
        polyop.op(text.format("A >= 1, B >= 1"))(np.zeros((0, 3), np.float32))
