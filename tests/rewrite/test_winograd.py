"""Which sums over windows take fewer multiplications, in which calls, and that they are the text's at all sizes."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import polyop
from polyop import filtering
from polyop.ir.expr import evaluate as number
from polyop.ir.module import Proof
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.verify import bilinear
from polyop.poly.verify.bilinear import CLAIM, same_sums
from polyop.poly.wellformed import check
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.windows.filtered import filtered
from polyop.rewrite.windows.winograd import Way, find_filters, known_sizes, ways
from polyop.runtime import cpu
from tests.rewrite.ops import arguments, op

V4 = target("x86:x86-64-v4")
WINOGRAD = polyop.Options(numerics="winograd")


def text(signature, *steps):
    return f"op f({signature}) {{\n" + "\n".join(steps) + "\n}"


def last(*more, result="O: f64[N, H, W, K]", given=""):
    """A convolution whose channels lie last."""
    return text(f"X: f64[N, H, W, C], F: f64[R, S, C, K]{given}) -> ({result}", *more)


def first(*more, given=""):
    """One whose channels come first."""
    return text(f"X: f64[N, C, H, W], F: f64[K, C, R, S]{given}) -> (O: f64[N, K, H, W]", *more)


def line(sum_, given="", result="O: f64[L, K]", dtype="f64"):
    """One along a line."""
    return text(f"X: {dtype}[L, C], F: {dtype}[R, C, K]{given}) -> ({result}", sum_)


LAST = "O[n, p, q, k] += (X[n, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k]"
FIRST = "O[n, k, p, q] += (X[n, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]"
INTO = FIRST.replace("O", "t") + "  where p in 0:H, q in 0:W"
LAST_INTO = LAST.replace("O", "t") + "  where p in 0:H, q in 0:W"
LINE = "O[p, k] += (X[p + r - 1, c] else 0) * F[r, c, k]"
LINE_INTO = LINE.replace("O", "t") + "  where p in 0:L"

IMAGES = {
    "channels last": last(LAST),
    "channels first": first(FIRST),
    "weights before the image": last("O[n, p, q, k] += F[r, s, c, k] * (X[n, p + r - 1, q + s - 1, c] else 0)"),
    "bias": first(FIRST, "O[n, k, p, q] += b[k]", given=", b: f64[K]"),
    "bias first": first("O[n, k, p, q] += b[k]", FIRST, given=", b: f64[K]"),
    "bias twice": first(FIRST, "O[n, k, p, q] += b[k]", "O[n, k, p, q] += b[k]", given=", b: f64[K]"),
    "a bias that is a sum": last(LAST, "t[k] += b[k] * b[j]  where j in 0:K, k in 0:K", "O[n, p, q, k] += t[k]",
                                 given=", b: f64[K]"),
    "relu": first(INTO, "O[n, k, p, q] = relu(t[n, k, p, q])"),
    "twice in what takes it": first(INTO, "O[n, k, p, q] = t[n, k, p, q] * exp(t[n, k, p, q])"),
    "residual": first(INTO, "O[n, k, p, q] = relu(t[n, k, p, q] + b[k] + Z[n, k, p, q])",
                      given=", b: f64[K], Z: f64[N, K, H, W]"),
    "a factor for each place": last(LAST_INTO, "O[n, p, q, k] = t[n, p, q, k] * z[p, q]",
                                    given=", z: f64[H, W]"),
    "taken across": text("X: f64[N, C, H, W], F: f64[K, C, R, S]) -> (O: f64[H, K, N, W]", INTO,
                         "O[p, k, n, q] = t[n, k, p, q] + 1"),
    "taken backwards": last(LAST_INTO, "O[n, p, q, k] = t[n, H - 1 - p, q, k]"),
    "taken twice": last(LAST_INTO, "O[n, p, q, k] = t[n, p, q, k] + 1",
                        "P[n, p, q, k] = t[n, p, q, k] - 1", result="O: f64[N, H, W, K], P: f64[N, H, W, K]"),
    "added to what is given": text("inout O: f64[N, H, W, K], X: f64[N, H, W, C], F: f64[R, S, C, K]", LAST),
    "no border": text("X: f64[N, H, W, C], F: f64[R, S, C, K]) -> (O: f64[N, H - R + 1, W - S + 1, K]",
                      "O[n, p, q, k] += X[n, p + r, q + s, c] * F[r, s, c, k]"),
    "groups": text("X: f64[N, G, C, H, W], F: f64[G, K, C, R, S]) -> (O: f64[N, G, K, H, W]",
                   "O[n, g, k, p, q] += (X[n, g, c, p + r - 1, q + s - 1] else 0) * F[g, k, c, r, s]"),
    "groups in one dimension": text("X: f64[N, H, W, C], F: f64[G, K, 2, R, S]) -> (O: f64[N, H, W, G, K]",
                                    "O[n, p, q, g, k] += (X[n, p + r - 1, q + s - 1, 2*g + j] else 0) * F[g, k, j, r, s]"),
    "a volume": text("X: f64[H, W, L, C], F: f64[R, S, Q, C, K]) -> (O: f64[H, W, L, K]",
                     "O[p, q, l, k] += (X[p + r - 1, q + s - 1, l + z - 1, c] else 0) * F[r, s, z, c, k]"),
    "holes along one window": last("O[n, p, q, k] += (X[n, p + 2*r - 2, q + s - 1, c] else 0) * F[r, s, c, k]"),
    "strides along one window": last("O[n, p, q, k] += (X[n, 2*p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k]"),
    "narrow operands": last("O[n, p, q, k] += f64((X[n, p + r - 1, q + s - 1, c] else 0)) * f64(F[r, s, c, k])").replace(
        "X: f64", "X: f32").replace("F: f64", "F: f32"),
}
LINES = {
    "line": line(LINE),
    "a channel twice": line("O[p, k] += (X[p + r - 1, c, c] else 0) * F[r, c, k]").replace("X: f64[L, C]", "X: f64[L, C, C]"),
    "channels that go by each other": text("X: f64[L, C + D, C], F: f64[R, C, D, K]) -> (O: f64[L, K]",
                                           "O[p, k] += (X[p + r - 1, c + d, c] else 0) * F[r, c, d, k]"),
    "channels in pairs": line("O[p, k] += (X[p + r - 1, c/2] else 0) * F[r, c, k]"),
    "two sums in a row": text("X: f64[L, C], F: f64[R, C, C], G: f64[R, C, K]) -> (O: f64[L, K]",
                              LINE_INTO, "u[p, k] = relu(t[p, k])",
                              "O[p, k] += (u[p + r - 1, c] else 0) * G[r, c, k]"),
    "two sums, and a bias before both": text("X: f64[L, C], F: f64[R, C, C], G: f64[R, C, K], b: f64[K]) -> (O: f64[L, K]",
                                             "O[p, k] += b[k]", LINE_INTO,
                                             "O[p, k] += (t[p + r - 1, c] else 0) * G[r, c, k]"),
}
FOUND = IMAGES | LINES

STAYS = {
    "another reduction": first(FIRST.replace("+=", "max=")),
    "integers": line(LINE, dtype="i32", result="O: i32[L, K]"),
    "products of f16": line(LINE, dtype="f16", result="O: f16[L, K]"),
    "rounded products": line("O[p, k] += f64((X[p + r - 1, c] else 0) * F[r, c, k])", dtype="f32"),
    "conditions": first(FIRST + "  where c <= k"),
    "a window that begins later": first(FIRST + "  where r in 1:R"),
    "another value outside": line(LINE.replace("else 0", "else 1")),
    "stride": line("O[p, k] += (X[2*p + r, c] else 0) * F[r, c, k]"),
    "dilation": line("O[p, k] += (X[p + 2*r, c] else 0) * F[r, c, k]"),
    "backwards": line("O[p, k] += (X[p - r, c] else 0) * F[r, c, k]"),
    "halves": line("O[p, k] += (X[(p + r)/2, c] else 0) * F[r, c, k]  where p in 0:L"),
    "a diagonal": text("X: f64[L, L, C], F: f64[R, C, K]) -> (O: f64[L, K]",
                       "O[p, k] += (X[p + r - 1, p + r - 1, c] else 0) * F[r, c, k]"),
    "depthwise": text("X: f64[N, H, W, C], F: f64[R, S, C]) -> (O: f64[N, H, W, C]",
                      "O[n, p, q, c] += (X[n, p + r - 1, q + s - 1, c] else 0) * F[r, s, c]"),
    "one filter": text("X: f64[L, C], F: f64[R, C]) -> (O: f64[L]", "O[p] += (X[p + r - 1, c] else 0) * F[r, c]"),
    "one channel": text("X: f64[L], F: f64[R, K]) -> (O: f64[L, K]", "O[p, k] += (X[p + r - 1] else 0) * F[r, k]"),
    "an index that weights alone have": text("X: f64[L, C], F: f64[R, D, C, K]) -> (O: f64[L, K]",
                                             "O[p, k] += (X[p + r - 1, c] else 0) * F[r, d, c, k]"),
    "one that the image alone has": text("X: f64[L, D, C], F: f64[R, C, K]) -> (O: f64[L - R + 1, K]",
                                         "O[p, k] += X[p + r, d, c] * F[r, c, k]"),
    "a part of the result": text("X: f64[L, C], F: f64[R, C, K]) -> (O: f64[2*L, K]", LINE + "  where p in 0:L",
                                 "O[p, k] += 1  where p in L:2*L"),
    "three factors": line("O[p, k] += 2 * (X[p + r - 1, c] else 0) * F[r, c, k]"),
    "a sum in it": line("O[p, k] += ((X[p + r - 1, c] else 0) + 1) * F[r, c, k]"),
    "two sums into one result": text("X: f64[L, C], F: f64[R, C, K]) -> (O: f64[L, K]", LINE, LINE),
}

SIZES = {"N": 2, "H": 5, "W": 7, "L": 9, "C": 3, "K": 4, "G": 2, "D": 2}
WINDOW = {"R": 3, "S": 3, "Q": 3}


def rewritten(o, window=3, results=2, block=2, whole=False, image=None):
    """`o` with windows of so many elements, and the same with its sums computed so; with blocks of images of sizes `image`."""
    o = fix_sizes(o, {n: window for n in WINDOW if n in o.sizes} | {n: v for n, v in (image or {}).items() if n in o.sizes})
    found = find_filters(o)
    chosen = tuple(Way(f.number, (results,) * len(f.windows), block, (whole,) * len(f.windows), bool(image)) for f in found)
    return o, filtered(o, chosen)


def agree(o, new, sizes, seed=0):
    sizes = {n: sizes[n] for n in o.sizes}
    values, arrays = arguments(o, sizes, seed)
    want, got = (evaluate(x, sizes, values, {n: a.copy() for n, a in arrays.items()}) for x in (o, new))
    assert want.keys() == got.keys()
    for n in want:
        assert want[n].shape == got[n].shape
        np.testing.assert_allclose(got[n], want[n], rtol=1e-11, atol=1e-12)


# --- which sums
@pytest.mark.parametrize("name", FOUND)
def test_a_sum_over_windows_is_found_and_is_the_same_and_proved(name):
    o, new = rewritten(op(FOUND[name]))
    assert new != o and not find_filters(new)
    check(new)
    proof = same_sums(o, new)
    assert proof.holds, proof
    agree(o, new, SIZES | WINDOW | ({"H": 3, "W": 2, "L": 3, "C": 1, "K": 1} if name == "a volume" else {}))


@pytest.mark.parametrize("name", STAYS)
def test_other_sums_stay(name):
    assert not find_filters(op(STAYS[name]))


@pytest.mark.parametrize("name, windows", [("line", "p"), ("channels first", "pq"), ("a volume", "pql"),
                                           ("holes along one window", "q"), ("strides along one window", "q")])
def test_windows_are_found_outermost_first(name, windows):
    f, = find_filters(op(FOUND[name]))
    assert "".join(w.along for w in f.windows) == windows


def test_indices_are_told_apart():
    f, = find_filters(op(FOUND["groups"]))
    assert (f.groups, f.rows, f.columns, f.added) == (("g",), ("n",), ("k",), ("c",))
    f, = find_filters(op(FOUND["channels that go by each other"]))
    assert f.added == ("c", "d")


def test_sums_of_wide_numbers_may_be_of_narrow_ones_not_the_other_way():
    wide = "O[p, k] += f32((X[p + r - 1, c] else 0)) * f32(F[r, c, k])"
    assert find_filters(op(line(wide, dtype="f16", result="O: f32[L, K]")))
    assert not find_filters(op(line(wide, dtype="f64", result="O: f32[L, K]")))


@pytest.mark.parametrize("r, s", [(1, 3), (3, 1)])
def test_a_window_of_one_element_is_none(r, s):
    o = op(FOUND["channels last"])
    sizes = {"N": 1, "H": 64, "W": 64, "C": 256, "K": 256, "R": r, "S": s}
    found = find_filters(o)
    way, = ways(found, sizes, V4, frozenset("F"))
    assert len(way.results) == 1
    fixed = fix_sizes(o, known_sizes(found, (way,), sizes) | {"R": r, "S": s})
    new = filtered(fixed, (way,))
    check(new)
    assert same_sums(fixed, new).holds
    agree(fixed, new, SIZES | {"R": r, "S": s})


def test_a_window_of_one_element_by_the_text_is_none():
    o = op(text("X: f64[H, W, C], F: f64[1, 3, C, K]) -> (O: f64[H, W, K]",
                "O[p, q, k] += (X[p + r, q + s - 1, c] else 0) * F[r, s, c, k]"))
    f, = find_filters(o)
    assert [w.along for w in f.windows] == ["q"]
    new = filtered(o, (Way(0, (4,), 2, (False,)),))
    assert same_sums(o, new).holds
    agree(o, new, SIZES)


# --- at which sizes
@pytest.mark.parametrize("window, results, block", [(3, 2, 1), (3, 2, 4), (3, 4, 1), (3, 4, 2), (2, 2, 3), (2, 4, 2), (5, 2, 2)])
@pytest.mark.parametrize("name", ["line", "two sums in a row"])
def test_results_on_both_sides_of_a_tile_and_a_block_are_the_same(name, window, results, block):
    o, new = rewritten(op(FOUND[name]), window, results, block)
    assert same_sums(o, new).holds
    rows = block * results
    for n in sorted({1, 2, 3, results - 1, results + 1, rows - 1, rows, rows + 1, 2 * rows + 1, 13}):
        agree(o, new, SIZES | {"L": n, "R": window}, n)


@pytest.mark.parametrize("h, w", [(1, 1), (1, 5), (2, 3), (4, 4), (7, 5), (8, 9)])
@pytest.mark.parametrize("name", ["channels first", "residual"])
def test_small_images_are_the_same(name, h, w):
    o, new = rewritten(op(FOUND[name]), results=4, block=1)
    agree(o, new, SIZES | WINDOW | {"H": h, "W": w, "C": 1, "N": 1})


MANY = [n for n in IMAGES if n not in ("a volume", "strides along one window", "added to what is given")]


@pytest.mark.parametrize("name", MANY)
def test_blocks_of_images_whose_tiles_are_one_index_are_the_same_and_proved(name):
    image = {"H": 5, "W": 3}
    o, new = rewritten(op(FOUND[name]), results=4, block=2, image=image)
    check(new)
    proof = same_sums(o, new)
    assert proof.holds, proof
    for n in (1, 2, 3):
        agree(o, new, SIZES | WINDOW | image | {"N": n, "C": 2, "K": 3}, n)


def test_images_with_few_tiles_go_together_where_there_are_several():
    deep = {"C": 512, "K": 512, "H": 7, "W": 7}
    assert not chosen(deep, frozen="F")
    way, = chosen(deep | {"N": 8}, frozen="F")
    assert way.images and way.block == 8
    sizes = CALL | deep | {"N": 8}
    found = find_filters(op(FOUND["channels last"]))
    assert known_sizes(found, (way,), sizes) == {"R": 3, "S": 3, "H": 7, "W": 7}
    two, = ways(found, sizes, V4, frozenset("F"), 2) or (None,)
    assert two is None or not two.images  # one block would be one thread's
    way, = chosen({"N": 8})
    assert not way.images and set(known_sizes(found, (way,), CALL)) == {"R", "S"}


@pytest.mark.parametrize("n", [4, 8, 12])
def test_whole_tiles_may_be_said(n):
    o, new = rewritten(op(FOUND["bias"]), results=4, block=1, whole=True)
    assert len(new.facts) == len(o.facts) + 2 and same_sums(o, new).holds
    check(new)
    agree(o, new, SIZES | WINDOW | {"H": n, "W": 4, "N": 1})


# --- which calls
CALL = {"N": 1, "H": 56, "W": 56, "C": 64, "K": 64, "R": 3, "S": 3}


def chosen(sizes, name="channels last", frozen=(), t=V4):
    return ways(find_filters(op(FOUND[name])), CALL | sizes, t, frozenset(frozen))


def test_it_pays_with_many_channels_and_a_window_of_more_than_one_element():
    assert chosen({})
    assert not chosen({"R": 1, "S": 1})
    for few in ({"C": 1}, {"C": 15}, {"K": 3}, {"K": 15}):
        assert not chosen(few)
    for long in ({"R": 6}, {"R": 7, "S": 7}, {"S": 11}):
        assert not chosen(long)


def test_it_does_not_pay_where_weights_are_larger_than_work():
    large = {"C": 512, "K": 512, "H": 2, "W": 2}
    assert not chosen(large)
    assert not chosen({"H": 1, "W": 1, "N": 1})


def test_given_weights_cost_less():
    for c, h in product((32, 128, 512), (4, 7, 14, 28)):
        sizes = {"C": c, "K": c, "H": h, "W": h}
        assert bool(chosen(sizes)) <= bool(chosen(sizes, frozen="F"))
    assert not chosen({"C": 512, "K": 512, "H": 7, "W": 7}) or chosen({"C": 512, "K": 512, "H": 7, "W": 7}, frozen="F")


@pytest.mark.parametrize("frozen", ["", "F"])
def test_more_channels_or_images_do_not_make_it_pay_less_as_long_as_weights_fit(frozen):
    paid = [bool(chosen({"C": c, "K": c}, frozen=frozen)) for c in (8, 16, 24, 32, 48, 64, 96)]
    assert paid == sorted(paid)
    paid = [bool(chosen({"N": n, "H": 14, "W": 14}, frozen=frozen)) for n in (1, 2, 4, 8, 16)]
    assert paid == sorted(paid)


def test_what_is_chosen_has_few_points_and_says_truly_whether_tiles_are_whole():
    for h, w, r, s in product((5, 28, 30, 56, 57), (14, 31, 56), (1, 2, 3, 5), (3, 4)):
        for way in chosen({"H": h, "W": w, "R": r, "S": s}):
            real = [(n, x) for n, x in ((h, r), (w, s)) if x > 1]
            assert len(way.results) == len(real) and way.block >= 1
            assert all(m + x - 1 <= 6 for m, (_, x) in zip(way.results, real, strict=True))
            assert way.whole == tuple(n % m == 0 for m, (n, _) in zip(way.results, real, strict=True))


@pytest.mark.parametrize("h", [0, 1, 2])
def test_no_results_are_no_reason(h):
    o = op(FOUND["no border"])
    for sizes in ({"H": h}, {"W": h}, {"H": h, "W": h}):
        assert not ways(find_filters(o), CALL | sizes, V4, frozenset())


def test_windows_of_no_single_size_are_not_known():
    o = op(line(LINE + "  where r in 0:2*R", result="O: f64[L, K]").replace("F: f64[R,", "u: f64[R], F: f64[2*R,"))
    assert find_filters(o)
    assert not ways(find_filters(o), {"L": 500, "C": 128, "K": 128, "R": 2}, V4, frozenset("F"))


# --- compiled
NHWC = """op f(X: f32[N, H, W, C], F: f32[R, S, C, K]) -> (O: f32[N, H, W, K]) {
    O[n, p, q, k] += (X[n, p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""
NCHW = """op f(X: f32[N, C, H, W], F: f32[K, C, R, S], b: f32[K], Z: f32[N, K, H, W]) -> (O: f32[N, K, H, W]) {
    t[n, k, p, q] += (X[n, c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]  where p in 0:H, q in 0:W
    O[n, k, p, q] = relu(t[n, k, p, q] + b[k] + Z[n, k, p, q]) }"""


@pytest.fixture
def always(monkeypatch):
    """Has all sums over windows computed so that it is asked about, with these results and tiles in a block."""
    def set_(results, block):
        def chosen(found, sizes, target, frozen, threads):
            return tuple(Way(f.number, results[-len(f.windows):], block, (False,) * len(f.windows)) for f in found
                         if all(number(w.extent, sizes) > 1 and number(w.results, sizes) > 0 for w in f.windows))
        monkeypatch.setattr(filtering, "ways", chosen)
    return set_


def images(n, h, w, c, k, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    x, f = rng.standard_normal((n, h, w, c)).astype(dtype), rng.standard_normal((3, 3, c, k)).astype(dtype)
    wide = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    return x, f, sum(wide[:, r:r + h, s:s + w] @ f[r, s].astype(np.float64) for r in range(3) for s in range(3))


EDGES = [(1, 1, 1, 1, 1), (2, 2, 3, 5, 15), (1, 3, 2, 16, 16), (2, 7, 9, 17, 31), (1, 8, 8, 2, 33), (3, 17, 5, 33, 17)]


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-4), ("f64", 1e-12)])
def test_compiled_sums_are_close_at_all_sizes(always, dtype, tolerance):
    always((4, 2), 2)
    f = polyop.op(NHWC.replace("f32", dtype), options=WINOGRAD)
    for k, sizes in enumerate(EDGES):
        x, w, want = images(*sizes, np.float32 if dtype == "f32" else np.float64, k)
        np.testing.assert_allclose(f(x, w), want, rtol=0, atol=tolerance * max(1, np.abs(want).max()))


@pytest.mark.parametrize("count", [1, 2])
def test_compiled_sums_that_are_turned_and_taken_on_are_close(always, count):
    always((4, 4), 2)
    f = polyop.op(NCHW, options=WINOGRAD)
    before = polyop.get_num_threads()
    polyop.set_num_threads(count)
    try:
        for k, sizes in enumerate([*EDGES[1:], (1, 24, 24, 48, 40)]):
            x, w, want = images(*sizes, seed=k)
            x, w, want = x.transpose(0, 3, 1, 2).copy(), w.transpose(3, 2, 0, 1).copy(), want.transpose(0, 3, 1, 2)
            rng = np.random.default_rng(k)
            b, z = (rng.standard_normal(s).astype(np.float32) for s in (len(w), want.shape))
            want = np.maximum(want + b[:, None, None] + z, 0)
            np.testing.assert_allclose(f(x, w, b, z), want, rtol=0, atol=1e-4 * max(1, np.abs(want).max()))
    finally:
        polyop.set_num_threads(before)


def test_arrays_may_lie_anyhow_and_results_go_where_they_are_asked_to(always):
    always((2, 2), 4)
    f = polyop.op(NHWC, options=WINOGRAD)
    x, w, want = images(2, 9, 11, 24, 20)
    wide, room = np.full((2, 18, 11, 48), np.nan, np.float32), np.full((2, 9, 11, 40), 7, np.float32)
    wide[:, ::2, :, ::2] = x
    assert np.shares_memory(f(wide[:, ::2, :, ::2], w, out=room[..., ::2]), room)
    np.testing.assert_allclose(room[..., ::2], want, atol=1e-3)
    assert (room[..., 1::2] == 7).all()
    turned = w.transpose(0, 1, 3, 2).copy().transpose(0, 1, 3, 2)
    for image, weights in ((x, turned), (np.asfortranarray(x), w), (x[:, :, ::-1], w[:, ::-1])):
        got = f(image, weights)
        np.testing.assert_allclose(got[:, :, ::-1] if image.strides[2] < 0 else got, want, atol=1e-3)


def test_what_is_made_of_frozen_weights_is_kept_and_nothing_else(always):
    always((4, 4), 2)
    x, w, want = images(2, 9, 11, 24, 20)
    layer = polyop.op(NHWC, options=WINOGRAD).freeze(F=w)
    np.testing.assert_allclose(layer(x), want, atol=1e-3)
    kept = layer.kept_bytes
    panel = 4 * cpu.host().lanes(4)
    assert 36 * 24 * 20 * 4 <= kept < 2 * 36 * 24 * panel * 4  # those of all points, in whole vectors, not what they are made of
    w[:] = 0  # nobody may do that; it shows that the copy is read
    np.testing.assert_allclose(layer(x), want, atol=1e-3)
    np.testing.assert_allclose(layer(x[:1, :5])[:, :4], want[:1, :4], atol=1e-3)
    assert layer.kept_bytes == kept


def test_an_infinity_stays_in_its_image(always):
    always((4, 4), 2)
    x, w, want = images(2, 9, 11, 24, 20)
    x[0, 4, 4, 3], x[0, 0, 0, 0] = np.inf, np.nan
    got = polyop.op(NHWC, options=WINOGRAD)(x, w)
    assert not np.isfinite(got[0, 4, 4]).any()
    np.testing.assert_allclose(got[1], want[1], atol=1e-3)


def test_calls_choose_whatever_calls_came_before():
    f, g = (polyop.op(NHWC, options=WINOGRAD) for _ in range(2))
    for h in range(2, 36):
        x, w, want = images(1, h, 3, 4 + h % 3, 5)
        np.testing.assert_allclose(f(x, w), want, atol=1e-4)
    found, host, threads = find_filters(f._op(f.choice())), cpu.host(), polyop.get_num_threads()
    size = next(h for h in (28, 40, 56, 112) if ways(found, dict(zip("NHWCKRS", (1, h, h, 64, 64, 3, 3), strict=True)), host,
                                                     frozenset(), threads))
    x, w, want = images(1, size, size, 64, 64)
    assert np.array_equal(f(x, w), g(x, w))
    assert not np.array_equal(g(x, w), polyop.op(NHWC)(x, w))


def test_sums_that_are_not_proved_are_those_of_the_text(always, monkeypatch, caplog):
    always((2, 2), 4)
    monkeypatch.setattr(bilinear, "same_sums", lambda before, after: Proof(CLAIM, False, "a witness", 0.0))
    x, w, _ = images(1, 5, 6, 7, 9)
    f = polyop.op(NHWC.replace("f(", "unproved("), options=WINOGRAD)
    assert np.array_equal(f(x, w), polyop.op(NHWC)(x, w)) and "a witness" in caplog.text
    assert f.compile(sizes=dict(zip("NHWCKRS", (1, 5, 6, 7, 9, 3, 3), strict=True))).proofs[0].claim != CLAIM


def test_steps_that_make_no_sense_are_those_of_the_text(always, monkeypatch, caplog):
    always((2, 2), 4)
    made = filtering.filtered

    def torn(o, chosen):
        new = made(o, chosen)
        return replace(new, steps=new.steps[:-1])

    monkeypatch.setattr(filtering, "filtered", torn)
    monkeypatch.setattr(bilinear, "same_sums", lambda before, after: Proof(CLAIM, True, "", 0.0))
    x, w, _ = images(1, 5, 6, 7, 9)
    f = polyop.op(NHWC.replace("f(", "torn("), options=WINOGRAD)
    assert np.array_equal(f(x, w), polyop.op(NHWC)(x, w)) and "polyop bug" in caplog.text


# --- options
SIZES_OF_CALL = dict(zip("NHWCKRS", (1, 56, 56, 64, 64, 3, 3), strict=True))


def test_a_kernel_for_given_sizes_has_the_claim_among_its_proofs():
    f = polyop.op(NHWC, options=WINOGRAD)
    made = f.compile(sizes=SIZES_OF_CALL)
    assert made.proofs[0].claim == CLAIM and all(p.holds for p in made.proofs)
    for numerics, sizes in (("winograd", SIZES_OF_CALL | {"C": 3}), ("fast", SIZES_OF_CALL)):
        assert all(p.claim != CLAIM for p in f.compile(options=polyop.Options(numerics=numerics), sizes=sizes).proofs)


def test_sizes_may_all_be_in_the_text():
    f = polyop.op("""op f(X: f32[56, 56, 64], F: f32[3, 3, 64, 64]) -> (O: f32[56, 56, 64]) {
        O[p, q, k] += (X[p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }""", options=WINOGRAD)
    assert f.compile(sizes={}).proofs[0].claim == CLAIM


def test_gpus_have_the_sums_of_the_text():
    fast, other = (polyop.op(NHWC, options=polyop.Options(numerics=n)).compile(target="cuda:sm_80", sizes=SIZES_OF_CALL)
                   for n in ("fast", "winograd"))
    assert fast.source == other.source


def test_kernels_that_are_for_no_special_sizes_have_the_sums_of_the_text():
    x, w, _ = images(1, 28, 28, 64, 64)
    plain = replace(WINOGRAD, special=False)
    assert np.array_equal(polyop.op(NHWC, options=plain)(x, w), polyop.op(NHWC, options=replace(plain, numerics="fast"))(x, w))


def test_no_elements_are_no_trouble():
    f = polyop.op(NHWC, options=WINOGRAD)
    for sizes in ((0, 5, 5, 64, 64), (1, 0, 5, 64, 64), (1, 5, 5, 0, 64), (1, 5, 5, 64, 0)):
        n, h, w, c, k = sizes
        got = f(np.ones((n, h, w, c), np.float32), np.ones((3, 3, c, k), np.float32))
        assert got.shape == (n, h, w, k) and not got.any()
    g = polyop.op("""op f(X: f32[H, C], F: f32[3, C, K]) -> (O: f32[H - 2, K]) { O[p, k] += X[p + r, c] * F[r, c, k] }""",
                  options=WINOGRAD)
    assert g(np.ones((2, 64), np.float32), np.ones((3, 64, 64), np.float32)).shape == (0, 64)
