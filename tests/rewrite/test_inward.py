"""What a product reads along the rows of its tiles is copied to lie along what is added up, which changes no number."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.expr import evaluate as value
from polyop.ir.options import TURNED, Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.copies.inward import AGAIN, FAR, find_inward, turned_inward
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.windows.traffic import MOST
from tests.rewrite.ops import integers, op

XEON, AVX2 = target("x86:sapphirerapids"), target("x86:x86-64-v3")
IMAGE = """op f(X: f32[B, C, H, W], F: f32[K, C, R, S]) -> (Y: f32[B, K, H, W]) where R >= 1, S >= 1 {
    Y[b, k, p, q] += (X[b, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]  where p in 0:H, q in 0:W }"""
TEXTS = {
    "image": IMAGE,
    "filters first": """op f(X: f32[C, H, W], F: f32[K, C, R]) -> (Y: f32[K, H, W]) where R >= 1 {
        Y[k, p, q] += F[k, c, r] * (X[c, p + r - 1, q] else 0)  where p in 0:H }""",
    "steps of two": """op f(X: f32[C, H, W], F: f32[K, C]) -> (Y: f32[K, (H + 1) / 2, (W + 1) / 2]) {
        Y[k, p, q] += X[c, 2*p, 2*q] * F[k, c] }""",
    "followed": """op f(X: f32[C, H, W], F: f32[K, C], b: f32[K]) -> (Y: f32[K, H, W]) {
        y[k, p, q] += X[c, p, q] * F[k, c]
        Y[k, p, q] = max(y[k, p, q] + b[k], 0.0) }""",
    "maxima": "op f(X: i32[C, W], F: i32[K, C]) -> (Y: i32[K, W]) { Y[k, q] max= X[c, q] + F[k, c] }",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_sum_is_that_of_the_text(name):
    o = op(TEXTS[name])
    (x,) = find_inward(o)
    made = turned_inward(o, {x.source: x.depth})
    check(made)
    for sizes in (dict.fromkeys(o.sizes, 3), {n: 1 + k for k, n in enumerate(o.sizes)}):
        arrays = integers(o, sizes)
        np.testing.assert_array_equal(evaluate(made, sizes, {}, arrays)["Y"], evaluate(o, sizes, {}, arrays)["Y"])


def test_the_copy_stands_before_the_sum():
    copy, update = (str(s).split("  where")[0] for s in turned_inward(op(IMAGE), {"X": 1}).steps)
    assert copy == "X_inward[X_0, X_2, X_3, X_1] = X[X_0, X_1, X_2, X_3]"
    assert "X_inward[b, p + r - 1, q + s - 1, c]" in update
    assert turned_inward(op(IMAGE), {}) == op(IMAGE)


STEPS = """op f(X: f32[C, H, W], F: f32[K, C, R]) -> (Y: f32[K, (H - R) / 2 + 1, W]) where R >= 1, H >= R {
    Y[k, p, q] += X[c, 2*p + r, q] * F[k, c, r] }"""


def test_of_an_image_that_is_read_in_steps_what_is_read_is_copied():
    o = op(STEPS)
    copy, update = (str(s).split("  where")[0] for s in turned_inward(o, {"X": 0}, {"R": 1}).steps)
    assert copy == "X_inward[X_1, X_2, X_0] = X[X_0, 2*X_1, X_2]" and "X_inward[p, q, c]" in update
    assert "X[X_0, X_1, X_2]" in str(turned_inward(o, {"X": 0}, {"R": 2}).steps[0]) == str(turned_inward(o, {"X": 0}).steps[0])
    made = turned_inward(o, {"X": 0}, {"R": 1})
    check(made)
    for c, h, w, k in ((2, 1, 1, 3), (3, 2, 5, 1), (2, 7, 4, 2), (1, 8, 3, 2)):
        sizes = {"C": c, "H": h, "W": w, "K": k, "R": 1}
        rng = np.random.default_rng(h)
        arrays = {t.name: rng.integers(-9, 9, [value(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
        np.testing.assert_array_equal(evaluate(made, sizes, {}, arrays)["Y"], evaluate(o, sizes, {}, arrays)["Y"])


def test_a_guarded_image_is_copied_as_a_whole():
    text = STEPS.replace("X[c, 2*p + r, q]", "(X[c, 2*p + r - 1, q] else 0)")
    assert "X[X_0, X_1, X_2]" in str(turned_inward(op(text), {"X": 0}, {"R": 1}).steps[0])


@pytest.mark.parametrize("text", [
    "op f(X: f32[W, C], F: f32[C, K]) -> (Y: f32[W, K]) { Y[q, k] += X[q, c] * F[c, k] }",              # F has no other dimension
    "op f(X: f32[C, W], F: f32[C, W]) -> (Y: f32[C, W]) { Y[c, q] += X[c, q] * F[c, q] }",                # no rows of F
    "op f(X: f32[C, W], F: f32[K, C]) -> (Y: f32[K, (W + 8) / 9]) { Y[k, q] += X[c, 9*q] * F[k, c] }",   # far apart
    "op f(X: f64[C, W], F: f64[K, C]) -> (Y: f64[K, W]) { Y[k, q] += X[c, q] * F[k, c] }",
    "op f(X: f32[C, W], F: f32[K, C]) -> (Y: f32[K, W]) { x[c, q] = X[c, q] + 1\n Y[k, q] += x[c, q] * F[k, c] }",
])
def test_what_lies_another_way_stays(text):
    assert all(x.source != "X" for x in find_inward(op(text)))


def asked(threads: int = 1, **sizes: int) -> Options:
    return regime(regimes_of(op(IMAGE)), dict({"B": 1, "R": 3, "S": 3}, **sizes), Options(), XEON, threads)


def test_windows_that_use_each_element_often_ask_for_it():
    small = {"C": 128, "H": 28, "W": 28}
    assert asked(K=128, **small).inward == (("X", 1),) and asked(K=128, **small).overlap == 0
    assert asked(K=128, **small).short == TURNED
    assert asked(K=16, **small).inward == ()                                       # fewer than AGAIN
    assert asked(K=128, C=15, H=28, W=28).inward == ()                             # not even a vector to lie along
    assert asked(K=512, R=1, S=1, **small).inward == ()                            # no window, and one thread
    assert 9 * 16 < AGAIN < 9 * 48 < AGAIN * FAR <= 9 * 64                       # what these tests count on


TRANSPOSED = """op f(X: f32[C, H, W], F: f32[C, K, R, S]) -> (Y: f32[K, 2*H + R - 4, 2*W + S - 4]) where R >= 1, S >= 1 {
    Y[k, p, q] += (X[c, (p + 1 - r) / 2, (q + 1 - s) / 2] else 0) * F[c, k, r, s]
        where (p + 1 - r) % 2 == 0, (q + 1 - s) % 2 == 0 }"""


def test_an_image_that_all_classes_of_residues_read_is_copied_where_vectors_are_narrow():
    r, sizes = regimes_of(op(TRANSPOSED)), {"C": 64, "H": 28, "W": 28, "K": 32, "R": 4, "S": 4}
    (found,) = r.questions.inward
    assert (found.source, found.depth, found.classes) == ("X", 0, 4)
    narrow, wide = (regime(r, sizes, Options(), t, 1) for t in (AVX2, XEON))
    assert (narrow.short, narrow.inward) == (TURNED, (("X", 0),)) and not wide.short and not wide.inward


@pytest.mark.parametrize(("height", "width", "filters", "window"), [(28, 28, 32, 4), (5, 29, 17, 4), (9, 7, 33, 3)])
def test_what_classes_of_residues_read_of_a_copy_is_what_the_image_has(height, width, filters, window):
    rng = np.random.default_rng(width)
    x = rng.integers(-4, 4, (19, height, width)).astype(np.float32)
    w = rng.integers(-4, 4, (19, filters, window, window)).astype(np.float32)
    f = polyop.op(TRANSPOSED, options=Options(special=False, short=TURNED, height=6, inward=(("X", 0),)))
    whole = np.zeros((filters, 2 * height + window, 2 * width + window))
    for r in range(window):
        for s in range(window):
            whole[:, r : r + 2 * height : 2, s : s + 2 * width : 2] += np.einsum("chw,ck->khw", x, w[:, :, r, s])
    np.testing.assert_array_equal(f(x, w), whole[:, 1 : 2 * height + window - 3, 1 : 2 * width + window - 3])


def test_large_copies_are_made_image_by_image():
    many = {"B": 8, "C": 128, "H": 28, "W": 28}
    assert asked(K=128, **many).overlap == MOST                                    # 3.2 MB, where L2 holds 2
    assert asked(K=512, **many).inward and asked(K=512, **many).overlap == 0       # an image and these filters leave L2
    assert asked(K=48, **many).inward and asked(K=48, **many).overlap == MOST      # as often as for a copy that stays in L2
    assert asked(threads=2, K=48, **many).inward == ()                             # beyond it that is not often enough
    assert asked(threads=2, B=64, C=512, H=7, W=7, K=300, R=1, S=1).inward == (("X", 1),)  # else each has copies of its own
    assert asked(threads=4, K=128, **many).overlap == 0                            # images are too few to share
    assert asked(K=128, **many).slim and not asked(K=128, threads=2, **many).slim  # one's filters leave it room in L2
    assert not asked(K=128, **dict(many, B=1)).slim                                # an image alone is copied in full


def test_images_that_leave_l2_are_copied_by_rows():
    large = {"C": 64, "H": 112, "W": 112}
    wide = {"C": 256, "H": 112, "W": 224}
    assert asked(K=32, **large).inward and asked(K=32, **large).overlap == 32      # 0.9 of 3.2 MB
    assert asked(K=32, B=8, **large).overlap == 32 and asked(K=32, **dict(large, W=224)).overlap == 16
    assert asked(K=32, **wide).inward == ()                         # not even 8 rows
    assert asked(K=64, **wide).inward and asked(K=64, **wide).overlap == 0
    assert asked(threads=2, K=32, B=8, **large).inward == () and asked(threads=2, K=64, B=8, **large).overlap == 0
    assert asked(K=32, **dict(large, C=512, H=28, W=28)).overlap == 0              # all of the copy stays in L2


def test_threads_have_broad_blocks_of_filters_where_the_image_stays_as_it_lies():
    halved = IMAGE.replace("K, H, W", "K, (H + 1) / 2, (W + 1) / 2").replace("p + r", "2*p + r").replace("q + s", "2*q + s")
    q = regimes_of(op(halved.replace("0:H", "0:(H + 1) / 2").replace("0:W", "0:(W + 1) / 2")))
    sizes = {"B": 8, "C": 128, "H": 56, "W": 56, "R": 3, "S": 3}
    few, many = (regime(q, {**sizes, "K": k}, Options(), XEON, 2) for k in (128, 256))  # 288 and 576 uses of each element
    assert few.short == many.short == TURNED
    assert few.broad and not few.inward and many.inward and not many.broad
    some, one = (regime(q, {**sizes, "B": b, "K": 64}, Options(), XEON, 1) for b in (8, 1))  # 144 uses, beyond L2 and within
    assert some.inward and some.overlap == MOST and not one.inward


@pytest.mark.parametrize(("images", "overlap"), [(1, 0), (3, 0), (1, 8), (3, 8)])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (7, 7), (14, 15), (28, 29)])
@pytest.mark.parametrize("channels", [1, 16, 17, 33])
def test_images_of_all_sizes(images, overlap, height, width, channels):
    rng, filters = np.random.default_rng(height), 53  # two tiles
    x = rng.integers(-4, 4, (images, channels, height, width)).astype(np.float32)
    w = rng.integers(-4, 4, (filters, channels, 3, 3)).astype(np.float32)
    options = Options(special=False, short=TURNED, height=7, inward=(("X", 1),), overlap=overlap, slim=overlap > 0)
    f = polyop.op(IMAGE, options=options)
    around = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))).astype(np.float64)
    want = sum(np.einsum("bchw,kc->bkhw", around[:, :, r : r + height, s : s + width], w[:, :, r, s])
               for r in range(3) for s in range(3))
    np.testing.assert_array_equal(f(x, w), want)  # sums of small integers are exact


@pytest.mark.parametrize("overlap", [0, 8])
def test_tiles_read_the_copy(overlap):
    options = Options(short=TURNED, height=7, inward=(("X", 1),), overlap=overlap)
    made = polyop.op(IMAGE).compile(target=XEON.name, options=options)
    copy = "X_inward_tile: f32[1, 1," if overlap else "X_inward: f32["
    assert copy in made.trace["loops"] and "rows q x 7, lanes k x 48" in "\n".join(made.notes)


@pytest.mark.parametrize("inward", [(), (("X", 1),)])
@pytest.mark.parametrize("width", [7, 8, 13, 29, 30])
@pytest.mark.parametrize("filters", [31, 32, 65])
def test_windows_in_steps_of_two(inward, width, filters):
    rng, place = np.random.default_rng(width), slice(None, None, 2)
    x = rng.integers(-4, 4, (2, 3, 9, width)).astype(np.float32)
    w = rng.integers(-4, 4, (filters, 3, 7, 7)).astype(np.float32)
    f = polyop.op("""op f(X: f32[B, C, H, W], F: f32[K, C, R, S]) -> (Y: f32[B, K, (H - R) / 2 + 4, (W - S) / 2 + 4])
        where R >= 1, S >= 1, H >= R, W >= S { Y[b, k, p, q] += (X[b, c, 2*p + r - 3, 2*q + s - 3] else 0) * F[k, c, r, s] }""",
                  options=Options(special=False, short=TURNED, height=4, inward=inward))
    around = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3))).astype(np.float64)
    want = sum(np.einsum("bchw,kc->bkhw", around[:, :, r : r + 9, s : s + width][:, :, place, place], w[:, :, r, s])
               for r in range(7) for s in range(7))
    np.testing.assert_array_equal(f(x, w), want)
