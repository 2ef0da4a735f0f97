"""A kernel is compiled for what comes again or adds up; until then another that is right for it serves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import polyop
from polyop.ir.options import Layout, Options
from polyop.rewrite.regimes.regimes import REGIMES
from polyop.rewrite.regimes.tile_regimes import Tiles
from polyop.runtime.loans import MOST, Loans, everyday, lender, price_of

MATMUL = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
ROWS = Layout((("A", 1), ("B", 1), ("C", 1)))
COLUMNS = Layout((("A", 0), ("B", 1), ("C", 1)))
USUAL = Options()


def counted(text: str = MATMUL, **options):
    """An operator, and the options of what it compiles."""
    f, seen = polyop.op(text, options=Options(**options)), []
    real = f._compile

    def compile_(op, layout, target, asked):
        seen.append(asked)
        return real(op, layout, target, asked)
    f._compile = compile_
    return f, seen


def product(f, m: int, k: int, n: int, dtype=np.float32) -> np.ndarray:
    rng = np.random.default_rng(m + k + n)
    a, b = rng.standard_normal((m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    c = f(a, b)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b, rtol=1e-4, atol=1e-4)
    return c


def test_sizes_seen_once_take_the_kernel_that_is_there():
    f, seen = counted()
    product(f, 96, 64, 192)  # whole tiles, of 16 lanes as of 8
    for n in range(1, 40):
        product(f, 3, n + 2, 100 + n)
        product(f, 50 + n, n, 1)
    assert [everyday(o, f.options) for o in seen] == seen and len(seen) == 1


def test_sizes_that_come_twice_in_a_row_get_a_kernel_of_their_own():
    f, seen = counted()
    product(f, 96, 64, 128)
    product(f, 4, 64, 128)
    assert len(seen) == 1
    product(f, 4, 64, 128)
    assert [o.rows for o in seen] == [0, 4]
    product(f, 4, 65, 129)  # it is there now
    product(f, 4, 65, 129)
    assert len(seen) == 2


def test_sizes_that_come_again_and_again_get_a_kernel_of_their_own():
    f, seen = counted()
    product(f, 96, 64, 128)
    for _ in range(3):
        product(f, 4, 64, 128)
        product(f, 5, 64, 1)
    assert len(seen) == 1
    product(f, 4, 64, 128)
    product(f, 5, 64, 1)
    assert [o.rows for o in seen] == [0, 4, 0] and seen[-1].ones == ("N",)


def test_what_comes_first_gets_the_kernel_that_it_asks_for():
    f, seen = counted()
    product(f, 4, 64, 128)
    product(f, 96, 64, 128)
    assert [o.rows for o in seen] == [4, 0]


def test_an_empty_size_and_another_layout_have_kernels_of_their_own():
    f, seen = counted()
    product(f, 96, 64, 128)
    assert f(np.ones((3, 0), np.float32), np.ones((0, 5), np.float32)).sum() == 0
    assert [o.regime for o in seen] == ["positive", "any"]
    a = np.ones((64, 3), np.float32).T
    np.testing.assert_allclose(f(a, np.ones((64, 128), np.float32)), 64)
    assert len(seen) == 3


def test_strict_results_are_the_same_whoever_computes_them():
    f, _ = counted(numerics="strict")
    product(f, 96, 64, 128)
    lent, own = product(f, 3, 64, 128), product(f, 3, 64, 128)
    assert np.array_equal(lent, own)


def test_sizes_that_add_up_get_a_kernel_of_their_own(monkeypatch):
    monkeypatch.setattr("polyop.runtime.loans.MOST", 4e4)
    f, seen = counted()
    product(f, 96, 64, 128)
    for n in range(100, 110):
        product(f, 4, 100, n)
    assert [o.rows for o in seen] == [0, 4]


def test_a_kernel_that_is_like_the_one_that_serves_must_be_wanted_longer(monkeypatch):
    monkeypatch.setattr("polyop.runtime.loans.MOST", 4e5)
    f, seen = counted("op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y = softmax(X) }")
    f(np.ones((40, 50), np.float32))
    for calls, made in ((range(1, 8), [False]), (range(8, 16), [False, True])):
        for n in calls:
            f(np.ones((20 + n, 2000 + 64 * n), np.float32))
        assert [o.lent for o in seen] == made


def test_whatever_sizes_alone_decide_about_another_kernel_serves_for():
    own = Options(near=True, threads=True)
    values = {bool: True, int: 8, tuple: (("N", 8),)}
    options = {*Tiles._fields, *(r.option for r in REGIMES)} - {"cascade"}
    for name in options:
        asked = replace(own, **{name: values[type(getattr(own, name))]})
        assert asked != own and everyday(asked, Options()) == own, name
    assert everyday(replace(own, cascade=True, regime="any"), Options()) == replace(own, cascade=True, regime="any")


def test_products_over_a_batch_that_comes_last_wait_for_a_kernel_of_their_own():
    f, seen = counted("op f(X: f32[M, K, B], Y: f32[B, K, N]) -> (Z: f32[M, N, B]) { Z[m, n, b] += X[m, k, b] * Y[b, k, n] }")
    rng = np.random.default_rng(0)
    for k, outward in ((1, False), (20, False), (20, True)):
        x, y = rng.integers(-3, 4, (33, k, 5)).astype(np.float32), rng.integers(-3, 4, (5, k, 40)).astype(np.float32)
        np.testing.assert_array_equal(f(x, y), np.einsum("mkb,bkn->mnb", x.astype(np.float64), y))
        assert seen[-1].outward is outward


def test_what_is_lent_depends_on_earlier_calls_alone():
    one, two = Loans(), Loans()
    asked = [(ROWS, replace(USUAL, rows=r)) for r in (1, 4, 8)]
    calls = [(asked[k % 3], k % 7, k * 1e6) for k in range(60)]
    assert [one.lends(*c) for c in calls] == [two.lends(*c) for c in calls]


def test_nothing_is_lent_beyond_the_price_of_compiling():
    loans, asked = Loans(), (ROWS, replace(USUAL, rows=4))
    assert not loans.lends(asked, "large", MOST * 1.01)
    assert not loans.lends(asked, "small", 1.0)


def test_the_sorts_of_calls_are_counted_apart():
    loans = Loans()
    assert loans.lends((ROWS, replace(USUAL, rows=4)), 1, MOST * 0.9)
    assert loans.lends((ROWS, replace(USUAL, rows=8)), 2, MOST * 0.9)


def test_who_lends_is_the_usual_kernel_or_one_of_other_tiles():
    usual = ROWS, USUAL
    tall = ROWS, replace(USUAL, height=8)
    assert lender(usual, [tall, usual], USUAL) == usual
    assert lender(usual, [tall], USUAL) == tall
    assert lender(usual, [], USUAL) is None


def test_a_kernel_that_copies_nothing_serves_for_no_other_call():
    """Many rows take up to three times as long with it."""
    usual = (ROWS, USUAL)
    for bare in ((ROWS, replace(USUAL, bare=steps)) for steps in (8, 512, 1024)):
        assert lender(usual, [bare], USUAL) == usual == lender(usual, [(ROWS, replace(USUAL, height=8)), usual, bare], USUAL)


def test_where_kernels_are_of_another_sort_the_usual_one_is_made_to_serve_for_all():
    usual, few = (ROWS, USUAL), (ROWS, replace(USUAL, rows=4))
    assert lender(usual, [(COLUMNS, USUAL), few, (ROWS, replace(USUAL, strip=True))], USUAL) == usual
    assert lender(usual, [(COLUMNS, USUAL), (ROWS, replace(USUAL, regime="any"))], USUAL) is None
    assert lender(usual, [few, (ROWS, replace(USUAL, height=8))], USUAL) == (ROWS, replace(USUAL, height=8))


def test_lanes_along_another_dimension_serve_and_count_as_more():
    usual, few, turned = (ROWS, USUAL), (ROWS, replace(USUAL, rows=4)), (ROWS, replace(USUAL, short=2, height=5))
    assert lender(usual, [few, turned], USUAL) == turned
    assert lender(usual, [turned, usual], USUAL) == usual
    assert [price_of(100, 6400, k, turned) for k in (turned, usual, few)] == [50, 400, 1600]
    assert price_of(100, 6400, turned, usual) == 200


def test_a_second_convolution_waits_for_the_kernel_of_all_sizes():
    f, seen = counted("op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, H - 2, W - 2]) "
                      "{ Y[k, p, q] += X[c, p + r, q + s] * F[k, c, r, s] }")
    rng = np.random.default_rng(0)
    for width, k in ((9, 20), (33, 20), (35, 3), (34, 20)):
        x, w = rng.integers(-3, 4, (5, 8, width)).astype(np.float32), rng.integers(-3, 4, (k, 5, 3, 3)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (1, 2))
        np.testing.assert_array_equal(f(x, w), np.einsum("cpqrs,kcrs->kpq", windows, w))
    assert [o.short > 0 for o in seen] == [True]


def test_of_many_sorts_of_calls_the_first_one_and_the_usual_kernel_are_compiled():
    f, seen = counted()
    product(f, 4, 64, 128)
    for n in range(2, 20):
        product(f, 7, 64, n)
        product(f, 5, n, 1)
        product(f, 50, 64, 16 * n)
    assert [o.rows for o in seen] == [4, 0] and everyday(seen[1], f.options) == seen[1]


def test_calls_of_one_look_follow_each_other_only_if_no_other_new_one_comes_between():
    f, seen = counted()
    product(f, 96, 64, 128)
    product(f, 3, 64, 128)
    product(f, 97, 64, 128)
    product(f, 3, 64, 128)
    assert len(seen) == 1


def test_what_a_kernel_counts_on_is_kept():
    asked = Options(regime="any", rows=4, short=2, strip=True, ones=("N",), threads=True, numerics="strict", height=8)
    assert everyday(asked, Options(numerics="strict")) == Options(regime="any", threads=True, numerics="strict")


def test_a_point_costs_less_than_an_element_of_memory():
    other = ROWS, replace(USUAL, rows=4)
    assert price_of(200 + 600 + 300, 6400, other, (ROWS, USUAL)) == 100 + 200 + 600 + 300
    assert price_of(1100, 6400, (ROWS, replace(USUAL, height=7)), (ROWS, USUAL)) == 300


def test_without_special_kernels_one_serves_every_size_and_gives_the_same_bits():
    f, seen = counted(special=False)
    for m, k, n in ((96, 64, 128), (1, 64, 128), (3, 7, 1), (7, 5, 17), (1, 1, 1)):
        results = {product(f, m, k, n).tobytes() for _ in range(6)}
        assert len(results) == 1
    assert len(seen) == 1 and not seen[0].special
