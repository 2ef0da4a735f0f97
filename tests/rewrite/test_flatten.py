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
from polyop.rewrite.flatten import Dims, allowed, chains, dims, flatten, in_arrays

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
