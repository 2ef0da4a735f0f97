"""Tables that registers hold: places from data among few elements, of any width, edges, conditions, and places outside."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.ir.options import Options
from polyop.ir.tables import BYTE, FULL, ROWS, lookup, size_class
from polyop.ir.target import BY_NAME
from polyop.rewrite.regimes.regimes import kinds, regime, regimes_of
from polyop.rewrite.regimes.tables import LOOKED_UP, find_tables
from polyop.runtime.cpu import host

from .ops import op

V4 = BY_NAME["x86:x86-64-v4"]
LOOK = "op f(X: {at}[N], t: {of}[T]) -> (Y: {of}[N]) {{ Y[n] = t[X[n]] }}"
TYPES = {"u8": "u1", "i8": "i1", "u16": "u2", "i16": "i2", "u32": "u4", "i32": "i4", "i64": "i8",
         "f16": "f2", "f32": "f4", "f64": "f8", "bool": "?"}
COUNTS = (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 300)
LENGTHS = (LOOKED_UP - 1, LOOKED_UP, 257, 271, 319, 320, 321, 511, 517)


def table(of: str, count: int, rng: np.random.Generator) -> np.ndarray:
    return (rng.integers(0, 2, count) if of == "bool" else rng.integers(0, 120, count)).astype(TYPES[of])


def places(at: str, count: int, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    most = min(count, np.iinfo(TYPES[at]).max + 1)
    x = rng.integers(0, most, shape)
    x.flat[-1] = most - 1
    return x.astype(TYPES[at])


@pytest.fixture(scope="module")
def looking():
    made: dict[tuple[str, str], polyop.Operator] = {}

    def get(at: str, of: str) -> polyop.Operator:
        if (at, of) not in made:
            made[at, of] = polyop.op(LOOK.format(at=at, of=of))
        return made[at, of]

    return get


@pytest.mark.parametrize(("at", "of"), [
    ("u8", "f32"), ("u8", "u8"), ("i64", "f32"), ("i32", "f16"), ("u8", "f64"), ("u16", "bool"), ("i8", "i16"), ("i16", "i64"),
    ("u32", "u8")])
def test_tables_of_any_size(looking, at, of, caplog):
    rng, f = np.random.default_rng(0), looking(at, of)
    for k, count in enumerate(COUNTS):
        t, n = table(of, count, rng), LENGTHS[k % len(LENGTHS)]
        x = places(at, count, (n,), rng)
        for _ in range(3):  # the third call of some sizes has the kernel for these
            np.testing.assert_array_equal(f(x, t), t[x], err_msg=f"{count} elements, {n} places")
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(set(TYPES) - {"f16", "f32", "f64", "bool"})), st.sampled_from(sorted(TYPES)), st.integers(1, 300),
       st.integers(1, 700), st.integers(0, 9), st.sampled_from([1, 2]))
def test_any_types_and_sizes(looking, at, of, count, n, seed, step):
    rng, f = np.random.default_rng(seed), looking(at, of)
    t, x = table(of, step * count, rng)[::step], places(at, count, (step * n,), rng)[::step]
    for _ in range(3):
        np.testing.assert_array_equal(f(x, t), t[x])


TEXTS = {
    "sums": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M]) { Y[m] += t[X[m, n]] }", lambda x, t: t[x].astype("f8").sum(1)),
    "sums of columns": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[N]) { Y[n] += t[X[m, n]] }", lambda x, t: t[x].astype("f8").sum(0)),
    "two in one": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = t[X[m, n]] * t[X[m, n]] + 1 }",
                   lambda x, t: t[x] * t[x] + 1),
    "turned": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[N, M]) { Y[n, m] = t[X[m, n]] }", lambda x, t: t[x].T),
    "shifted places": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = t[T - 1 - X[m, n]] }",
                       lambda x, t: t[len(t) - 1 - x.astype(int)]),
    "a border": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = t[(X[m, n - 1] else 0)] }",
                 lambda x, t: t[np.pad(x, ((0, 0), (1, 0)))[:, :-1]]),
    "nothing beyond it": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = n > 0 ? t[X[m, n - 1]] : 5 }",
                          lambda x, t: np.pad(t[x], ((0, 0), (1, 0)), constant_values=5)[:, :-1]),
    "a value outside": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = (t[X[m, n] + 3] else 2) }",
                        lambda x, t: np.append(t, np.full(3, 2, "f4"))[x + np.uint8(3)]),  # 255 + 3 is 2
    "a condition": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] < 9 ? t[X[m, n]] : 7 }",
                    lambda x, t: np.where(x < 9, t[x], 7)),
    "a triangle": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, N]) { Y[m, n] = t[X[m, n]] where n <= m; Y[m, n] = 0 where n > m }",
                   lambda x, t: np.tril(t[x])),
    "a product": ("(X: u8[M, N], t: f32[T]) -> (Y: f32[M, M]) { w[m, n] = t[X[m, n]]; Y[m, k] += w[m, n] * w[k, n] }",
                  lambda x, t: t[x].astype("f8") @ t[x].astype("f8").T),
    "tables of tables": ("(X: u8[M, N], t: f32[T], u: u8[T]) -> (Y: f32[M, N]) { Y[m, n] = t[u[X[m, n]]] }",
                         lambda x, t, u: t[u[x]]),
}


@pytest.mark.parametrize("what", TEXTS)
def test_where_lookups_stand(what, caplog):
    text, want = TEXTS[what]
    f = polyop.op(f"op f{text}")
    before = polyop.get_num_threads()
    try:
        for threads in (1, 2):
            polyop.set_num_threads(threads)
            for count, m, n in ((256, 16, 100), (200, 37, 65), (16, 3, 333), (40, 300, 7), (100, 17, 64)):
                rng = np.random.default_rng(count)
                x, t = places("u8", count, (m, n), rng), rng.standard_normal(count).astype("f4")
                more = (places("u8", count, (count,), rng),) if "u: u8" in text else ()
                for _ in range(3):
                    np.testing.assert_allclose(f(x, t, *more), want(x, t, *more), rtol=1e-4, atol=1e-4)
    finally:
        polyop.set_num_threads(before)
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


@pytest.mark.parametrize(("at", "count", "bad"), [
    ("u8", 255, 255), ("u8", 16, 16), ("i8", 16, -1), ("i8", 100, 100), ("i16", 256, -1), ("u16", 256, 256), ("i64", 32, 1 << 40),
    ("i32", 64, -(1 << 31)), ("u32", 9, 1 << 31)])
def test_places_outside_are_told(looking, at, count, bad):
    f, t = looking(at, "f32"), np.ones(count, "f4")
    x = np.zeros(320, TYPES[at])
    f(x, t), f(x, t)
    for where in (0, 17, 63, 64, 300, 319):
        y = x.copy()
        y[where] = bad
        with pytest.raises(polyop.PolyopError, match=str(bad)):
            f(y, t)
    np.testing.assert_array_equal(f(x, t), t[x])


def test_an_empty_table():
    f = polyop.op(LOOK.format(at="u8", of="f32"))
    assert f(np.zeros(0, "u1"), np.zeros(0, "f4")).shape == (0,)
    with pytest.raises(polyop.PolyopError):
        f(np.zeros(300, "u1"), np.zeros(0, "f4"))


def test_what_holds_tables():
    byte, brief = ROWS[0], {r.bytes_: r for r in ROWS}
    assert lookup(V4, 1, 16) is None and lookup(V4, 4, 64) is brief[4] and lookup(V4, 4, 128) is None
    assert lookup(V4, 8, 32) is brief[8] and lookup(V4, 8, 64) is None and lookup(V4, 2, 128) is brief[2]
    assert all(lookup(BY_NAME[f"x86:x86-64-v{n}"], b, 16) is None for n in (2, 3) for b in (1, 2, 4, 8))
    if byte.runs_on(host()):
        assert lookup(host(), 4, BYTE) is lookup(host(), 2, FULL) is lookup(host(), 1, BYTE) is byte
        assert lookup(host(), 8, BYTE) is None
    assert [size_class(n) for n in (1, 16, 17, 128, 129, 255, 256, 257)] == [16, 16, 32, 128, FULL, FULL, BYTE, 0]


@pytest.mark.parametrize(("text", "found"), [
    ("(X: u8[N], t: f32[T]) -> (Y: f32[N]) { Y[n] = t[X[n]] }", ["t"]),
    ("(X: u8[N], t: f32[T, C]) -> (Y: f32[N, C]) { Y[n, c] = t[X[n], c] }", []),    # rows
    ("(X: f32[N], t: f32[N]) -> (Y: f32[N]) { Y[n] = t[n] * X[n] }", []),           # no place is known from data
    ("(X: u8[N], t: f32[T]) -> (Y: f32[N]) { u[i] = 2 * t[i]; Y[n] = u[X[n]] }", [])])  # u is made in the call
def test_which_inputs_are_tables(text, found):
    o = op(f"op f{text}")
    assert [x.tensor for x in find_tables(o)] == found
    assert any("looked up in a table" in k for k in kinds(o)) is bool(found)
    if found:
        calls = (LOOKED_UP, 9), (LOOKED_UP - 1, 9), (999, 65)
        said = [regime(regimes_of(o), {"N": n, "T": t}, Options(), V4).tables for n, t in calls]
        assert said == [(("t", 16),), (), ()]
