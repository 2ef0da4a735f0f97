"""Rows too short for lanes along them: lanes go through rows that lie beside each other. Narrow sums of columns are several."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import HINTS, target
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.runtime import cpu
from tests.rewrite.ops import arguments

from .middles import V4, middle, op_of, proved

SUM = "Y[n] += X[n, c]"
SOFTMAX = "t[n] max= X[n, c]; e[n, c] = exp(X[n, c] - t[n]); z[n] += e[n, c]; Y[n, c] = e[n, c] / z[n]"
COLUMNS = "Y[c] += X[n, c] * X[n, 0]"


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


ROWS = {
    "sum": (f"(Y: f32[N]) {{ {SUM} }}", lambda x: x.sum(-1)),
    "most": ("(Y: f32[N]) { Y[n] max= X[n, c] }", lambda x: x.max(-1)),
    "where": ("(Y: i64[N]) { Y[n] argmax= X[n, c] }", lambda x: x.argmax(-1)),
    "norm": ("(Y: f32[N]) { q[n] += X[n, c] * X[n, c]; Y[n] = sqrt(q[n]) }", lambda x: np.sqrt((x * x).sum(-1))),
    "softmax": (f"(Y: f32[N, C]) {{ {SOFTMAX} }}", softmax),
    "inside": ("(Y: f32[N]) { Y[n] += X[n, c] where c in 1:C - 1 }", lambda x: x[:, 1:-1].sum(-1)),
    "turned": ("(Y: f32[C, N]) { q[n] += X[n, c]; Y[c, n] = X[n, c] - q[n] }", lambda x: (x - x.sum(-1, keepdims=True)).T),
}


def text(body: str, c: int | str) -> str:
    return f"op f(X: f32[N, C]) -> {body}".replace("[N, C]", f"[N, {c}]").replace("[C, N]", f"[{c}, N]").replace(":C", f":{c}")


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("c", [5, 8, 16, 17, 24])
def test_rows_of_a_known_length_are_turned_and_that_is_proved(name, c):
    m = middle(text(ROWS[name][0], c), "tuned")
    assert proved(m) and f"c x {c - 2 if name == 'inside' else c} turned" in "".join(m.chosen)


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3"])
@pytest.mark.parametrize("c", [2, 5, 7, 8, 9, 16, 17, 23, 25])
def test_short_rows_come_out_as_numpy_has_them(name, arch, c, monkeypatch):
    on = target(f"x86:{arch}")
    if not cpu.runs_here(on):
        pytest.skip("this processor has no such instructions")
    monkeypatch.setattr(cpu, "resolve", lambda *_: on)
    body, expected = ROWS[name]
    f = polyop.op(text(body, c))
    for n in (1, 7, 8, 9, 15, 16, 17, 33, 0):
        x = np.random.default_rng(n).standard_normal((n, c + 1)).astype(np.float32)
        for rows in (np.ascontiguousarray(x[:, 1:]), x[:, 1:], np.ascontiguousarray(x[:, 1:])[::-1]):
            np.testing.assert_allclose(f(rows), expected(rows.astype(np.float64)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", ["f64", "f16", "i8", "u8", "i16", "i32", "i64"])
@pytest.mark.parametrize("c", [5, 8, 11, 16, 19])
def test_elements_of_all_sizes_are_turned(dtype, c):
    f = polyop.op(f"op f(X: {dtype}[N, {c}]) -> (Y: {dtype}[N], Z: {dtype}[N]) {{ Y[n] max= X[n, c]; Z[n] min= X[n, c] }}")
    for n in (1, 31, 32, 33, 65):
        x = np.random.default_rng(n).integers(0, 100, (n, c)).astype(f"{dtype[0]}{int(dtype[1:]) // 8}")
        np.testing.assert_array_equal(f(x), (x.max(1), x.min(1)))


def test_in_strict_order_each_row_is_added_up_as_it_stands():
    x = np.random.default_rng(3).standard_normal((77, 13)).astype(np.float32)
    want = np.zeros(77, np.float32)
    for c in range(13):
        want = want + x[:, c]
    for n in ("N, 13", "N, C"):
        f = polyop.op(f"op f(X: f32[{n}]) -> (Y: f32[N]) {{ Y[n] += X[n, c] }}", options=Options(numerics="strict"))
        for _ in range(3):
            np.testing.assert_array_equal(f(x), want)


@pytest.mark.parametrize("body", [
    "op f(X: f32[N, 5], b: f32[5]) -> (Y: f32[N, 5]) { Y[n, c] = X[n, c] + b[c] }",          # nothing is added up
    "op f(X: f32[N, 25]) -> (Y: f32[N]) { Y[n] += X[n, c] }",                                # vectors have elements enough
    "op f(X: f32[N, 16], Z: f32[N, 16]) -> (Y: f32[N]) { Y[n] += X[n, c] * Z[n, c] }",       # too much at a time
    "op f(X: f32[N, M, 5]) -> (Y: f32[N, 5]) { Y[n, c] += X[n, m, c] }",                     # across rows
    "op f(X: f32[5, N]) -> (Y: f32[N]) { Y[n] += X[c, n] }",                                 # they lie along the lanes
    "op f(X: f32[M, 5], i: i64[N]) -> (Y: f32[N]) { Y[n] += X[i[n], c] }",                   # looked up
])
def test_what_is_not_turned(body):
    assert "turned" not in "".join(middle(body, "tuned").chosen)


AROUND = {
    "sums of columns": ("(X: f32[N, 5, {c}]) -> (Y: f32[N]) {{ q[n, c] += exp(X[n, j, c]); Y[n] += exp(-q[n, c]) }}",
                        lambda X: np.exp(-np.exp(X).sum(1)).sum(-1)),
    "used in turns": ("(X: f32[N, 5, {c}], Z: f32[N, 3, {c}]) -> (Y: f32[N, 3]) "
                      "{{ q[n, c] += exp(X[n, j, c]); Y[n, i] += exp(Z[n, i, c]) * q[n, c] }}",
                      lambda X, Z: np.einsum("nic,nc->ni", np.exp(Z), np.exp(X).sum(1))),
    "of two": ("(X: f32[N, 5, 2, {c}]) -> (Y: f32[N]) {{ q[n, b, c] += X[n, j, b, c]; Y[n] max= exp(q[n, b, c]) }}",
               lambda X: np.exp(X.sum(1)).max((1, 2))),
}


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("c", [2, 4, 7])
@pytest.mark.parametrize("name", AROUND)
def test_each_row_around_a_sum_has_a_sum_of_its_own(name, c, numerics, caplog):
    body, expected = AROUND[name]
    text = f"op f{body.format(c=c)}"
    f, o = polyop.op(text, options=Options(numerics=numerics)), op_of(text)
    for n in (0, 1, 7, 15, 16, 17, 40):
        _, given = arguments(o, {"N": n}, seed=n)
        want = expected(**{k: x.astype(np.float64) for k, x in given.items()})
        np.testing.assert_allclose(f(**given), want, rtol=1e-5)
    assert not caplog.records, "no rung of the ladder broke"


@pytest.mark.parametrize("text", [
    "op f(X: f32[N, 0]) -> (Y: f32[0]) { Y[c] += X[n, c] }",
    "op f(X: f32[0, N]) -> (Y: f32[0]) { q[n, c] = X[c, n] + 0.5; Y[c] min= q[n, c] }",
    "op f(X: f32[N, 0]) -> (Y: f32[N]) { Y[n] += X[n, c] }",
    "op f(X: f32[0, N]) -> (Y: f32[0]) { q[n, c] = X[c, n] + 0.5; Y[c] += q[n, c] }",  # of which no loop is left
])
def test_rows_of_no_elements_have_a_kernel(text, caplog):
    o, f = op_of(text), polyop.op(text)
    _, given = arguments(o, {"N": 5})
    for _ in range(3):
        np.testing.assert_array_equal(f(**given), evaluate(o, {"N": 5}, {}, given)["Y"])
    assert not caplog.records, "no rung of the ladder broke"


def test_calls_show_how_long_rows_are():
    seen, f = [], polyop.op(f"op f(X: f32[N, C]) -> {ROWS['softmax'][0]}")
    real = f._find

    def found(o, *rest):
        seen.append(str(o))
        return real(o, *rest)

    f._find = found
    for n in (40, 40, 40, 41, 42):
        x = np.random.default_rng(n).standard_normal((n, 10)).astype(np.float32)
        np.testing.assert_allclose(f(x), softmax(x.astype(np.float64)), rtol=1e-4, atol=1e-6)
    assert len(seen) == 2 and "f32[N, C]" in seen[0] and "f32[N, 10]" in seen[1]


@pytest.mark.parametrize(("arch", "c", "chosen"), [
    ("x86-64-v4", "8", "1 x 8, 4 sums along n"), ("x86-64-v4", "64", "4 x 16, 4 sums along n"), ("x86-64-v4", "C", "4 x 16"),
    ("x86-64-v4", "40", "3 x 16, 4 sums along n"), ("x86-64-v3", "8", "1 x 8, 4 sums along n"),
    ("x86-64-v3", "24", "3 x 8, 2 sums along n"), ("x86-64-v3", "64", "8 x 8"), ("x86-64-v2", "4", "1 x 4, 4 sums along n")])
def test_narrow_sums_are_several_so_that_none_waits(arch, c, chosen):
    def made(numerics):
        o = polyop.op(f"op f(X: f32[N, {c}]) -> (Y: f32[{c}]) {{ {COLUMNS} }}")
        return o.compile(target=f"x86:{arch}", options=Options(strip=True, numerics=numerics))

    assert made("fast").notes[0].endswith(chosen) and all(p.holds for p in made("fast").proofs)
    assert "sums along" not in made("strict").notes[0]


def test_so_are_sums_that_something_is_made_of():
    f = polyop.op("op f(X: f32[N, 20]) -> (Y: f32[20]) { t[c] += X[n, c]; Y[c] = t[c] / f32(N) + 1 }")
    made = f.compile(target="x86:x86-64-v4", options=Options(strip=True))
    assert "2 x 16, 4 sums along n" in made.notes[0] and all(p.holds for p in made.proofs)
    for n in (1, 4, 7, 100):
        x = np.random.default_rng(n).standard_normal((n, 20)).astype(np.float32)
        np.testing.assert_allclose(f(x), x.astype(np.float64).mean(0) + 1, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("c", [8, 40, 64])
def test_two_sums_of_the_same_rows_are_several_each(c):
    f = polyop.op(f"op f(X: f32[N, {c}]) -> (Y: f32[{c}], Z: f32[{c}]) {{ Y[c] += X[n, c]; Z[c] max= X[n, c] * X[n, c] }}")
    made = f.compile(target="x86:x86-64-v4", options=Options(strip=True))
    assert all(p.holds for p in made.proofs) and "4 sums along n" in made.notes[0]
    for n in (1, 5, 50):
        x = np.random.default_rng(n).standard_normal((n, c)).astype(np.float32)
        np.testing.assert_allclose(f(x), (x.astype(np.float64).sum(0), (x * x).max(0)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("c", "width"), [(5, 8), (8, 8), (9, 16), (17, 16)])
def test_vectors_are_no_wider_than_what_they_go_through(c, width):
    for body in (f"(Y: f32[N, {c}]) {{ Y[n, c] = X[n, c] * b[c] }}", f"(Y: f32[{c}]) {{ Y[c] += X[n, c] }}"):
        m = polyop.op(f"op f(X: f32[N, {c}], b: f32[{c}]) -> {body}").compile(target="x86:x86-64-v4", options=Options(strip=True))
        assert f"<{width} x float>" in m.source and all(p.holds for p in m.proofs)
        assert width == 16 or f"<{2 * width} x float>" not in m.source


@pytest.mark.parametrize("c", [1, 5, 15, 16, 17, 33, 63, 64])
def test_several_sums_come_out_as_one(c):
    f = polyop.op(f"op f(X: f32[N, C]) -> (Y: f32[C]) {{ {COLUMNS} }}")
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 101, 0):
        x = np.random.default_rng(n).standard_normal((n, c)).astype(np.float32)
        for _ in range(2):
            np.testing.assert_allclose(f(x), x.astype(np.float64)[:, 0] @ x if n else np.zeros(c), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f32", "f64", "i32", "u8", "f16"])
@pytest.mark.parametrize(("by", "of"), [("+=", np.sum), ("max=", np.max), ("min=", np.min), ("*=", np.prod)])
@pytest.mark.parametrize("lockstep", [0, 1, 2, 8])
def test_rows_in_lock_step_are_folded_together(dtype, by, of, lockstep):
    text = f"op f(X: {dtype}[N, C], m: {dtype}[C]) -> (Y: {dtype}[N]) {{ Y[n] {by} X[n, c] - m[c] }}"
    f, t = polyop.op(text, options=Options(lockstep=lockstep)), f"{dtype[0]}{int(dtype[1:]) // 8}"
    for n, c in ((1, 70), (3, 17), (4, 64), (5, 65), (8, 130), (9, 33), (31, 1)):
        rng = np.random.default_rng(n)
        m = rng.integers(0, 2, c)
        x, m = (m + rng.choice([1, 1, 1, 2], (n, c), p=[.3, .3, .35, .05])).astype(t), m.astype(t)
        if by in ("max=", "min=") and dtype[0] == "f":
            x[n // 2, c // 2] = np.nan
        for xs in (x, x[::-1]):
            want = of((xs - m).astype(np.float64 if dtype[0] == "f" else t), axis=1).astype(t)
            got, tolerance = f(xs, m).astype(np.float64), 2e-3 if dtype == "f16" else 1e-5
            np.testing.assert_allclose(got, want.astype(np.float64), rtol=tolerance)


def test_rows_that_share_a_vector_come_one_by_one_where_caches_ask_for_it():
    o = op_of("op f(X: f32[N, C], m: f32[C]) -> (Y: f32[N]) { Y[n] += X[n, c] * m[c] }")
    here = replace(V4, name="x86:here", hints=HINTS["znver4"])

    def lockstep(n, c, on):
        return regime(regimes_of(o), {"N": n, "C": c}, Options(), on).lockstep

    assert [lockstep(n, c, V4) for n, c in ((4000, 1000), (400, 1000), (400, 10000))] == [0, 0, 0]
    assert [lockstep(n, c, here) for n, c in ((4000, 1000), (200, 1000), (400, 10000))] == [1, 0, 8]
    for n, rows in ((1, "lanes -, c, 4 x 16"), (0, "rows n x 4"), (8, "rows n x 8")):
        assert rows in middle("op f(X: f32[N, C], m: f32[C]) -> (Y: f32[N]) { Y[n] += X[n, c] * m[c] }", "tuned",
                              Options(lockstep=n)).chosen[0]
