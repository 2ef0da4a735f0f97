"""Where lanes and rows run: by strides, by what is added to another index, by what neighbours share."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.interpret import interpret
from polyop.ir.loops import structure
from polyop.ir.options import Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.verify import first_failure, prove
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.runtime.layout import contiguous

WINDOW = "op f(X: f32[B, H, W], F: f32[B, R, S]) -> (Y: f32[B, (H - R) / 2 + 1, (W - S) / {step} + 1]) "
WINDOW += "{{ Y[b, p, q] += X[b, 2*p + r, {step}*q + s] * F[b, r, s] }}"
PAIRS = "op f(A: f32[B, N], X: f32[B, M, N]) -> (Y: f32[B, M]) { Y[b, m] += A[b, n] * X[b, m, n] }"
SUMS = "op f(X: f32[N, K, M]) -> (Y: f32[N, M]) { Y[n, m] += X[n, k, m] }"


def middle(text: str, arch: str = "x86-64-v4", options: Options | None = None, apart: str = "") -> Middle:
    """`text` with the tensors `apart` without unit stride."""
    op = instantiate(parse(Source("t.pop", text)), "f")
    units = Layout(tuple((n, None if n in apart else d) for n, d in contiguous(op).units))
    return lower(scop_of(op), units, target(f"x86:{arch}"), options or Options(regime="positive"), "default")


@pytest.mark.parametrize("step", [1, 2, 4])
def test_lanes_run_along_the_result_and_not_along_the_window_beside_it(step):
    assert "lanes q (shell)" in middle(WINDOW.format(step=step)).chosen[0]


def test_lanes_far_apart_in_what_is_read_are_worse_than_those_of_the_window():
    assert "lanes q" not in middle(WINDOW.format(step=5)).chosen[0]


def test_rows_are_neighbours_that_share_a_read():
    assert "rows p x 4" in middle(WINDOW.format(step=1)).chosen[0]


def test_fewer_rows_where_there_are_fewer_registers():
    assert "rows p x 2" in middle(WINDOW.format(step=1), "x86-64-v3").chosen[0]


def test_what_is_read_forwards_and_back_has_one_vector_at_a_time():
    text = "op f(X: f32[M, N]) -> (Y: f32[M, N]) where N >= 2 {{ Y[i, j] = X[i, {}] }}"
    for place, found in (("max(j - 1, 1 - j)", 1), ("min(max(j - 1, 1 - j), 2*N - 2 - j)", 1), ("max(j - 1, 0)", 4), ("j", 4)):
        assert f"lanes j (shell), {found} x 16" in middle(text.format(place)).chosen[0]


LOOKED = "op f(X: f32[A, B], ids: i64[P]) -> (Y: f32[A, P]) { Y[a, p] = X[a, ids[p]] }"


@pytest.mark.parametrize(("reads", "rows"), [
    ("X[a, ids[p]]", "rows a x 4"), ("W[a, p] * X[a, ids[p]]", "rows a x 4"), ("(X[a, ids[p]] else 0)", "rows a x 4"),
    ("W[a, p]", ""), ("X[a, at[a, p]]", ""), ("V[few[a], p]", "")])
def test_rows_that_read_at_the_same_places_look_them_up_together(reads, rows):
    made = middle("op f(X: f32[A, B], W: f32[A, P], V: f32[B, P], ids: i64[P], few: i64[A], at: i64[A, P]) -> (Y: f32[A, P]) "
                  f"{{ Y[a, p] = {reads} }}").chosen[0]
    assert rows in made and (rows or ", rows a" not in made)


@pytest.mark.parametrize("a", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("p", [0, 1, 7, 8, 9, 33])
def test_what_is_looked_up_together_is_right_and_a_place_outside_is_named(a, p):
    f, g = polyop.op(LOOKED), np.random.default_rng(a + p)
    x, ids = g.random((a, 11)).astype(np.float32), g.integers(0, 11, p)
    np.testing.assert_array_equal(f(x, ids), x[:, ids])
    if a and p:
        ids[-1] = 11
        with pytest.raises(polyop.CallError, match=rf"ids\[{p - 1}\] = 11 reads outside"):
            f(x, ids)


TURNED = "op f(X: f32[I, J]) -> (Y: f32[J, I]) { Y[j, i] = X[i, j] }"
ACROSS = "op f(X: f32[B, I, J, K]) -> (Y: f32[B, J, I, K]) { Y[b, j, i, k] = X[b, i, j, k] + 1 }"


def test_rows_that_are_copied_in_another_order_are_so_block_by_block():
    made = middle(ACROSS, "x86-64-v3")
    assert made.chosen[0].endswith("blocks of 32 j and 4 i") and first_failure(prove(made.scop, made.nest, made.context)) is None
    assert structure(made.nest.body) == "b(j_b:parallel(i_b(j(i(k_t(k_v:lanes(S0)))))))"
    for sizes in ((1, 1, 1, 1), (2, 33, 5, 9), (1, 4, 32, 8), (3, 7, 70, 3)):
        x = np.random.default_rng(0).integers(-9, 9, sizes).astype(np.float32)
        y = np.full((sizes[0], sizes[2], sizes[1], sizes[3]), np.nan, np.float32)
        interpret(made.nest, dict(zip("BIJK", sizes, strict=True)), {}, {"X": x, "Y": y})
        np.testing.assert_array_equal(y, x.transpose(0, 2, 1, 3) + 1)
        np.testing.assert_array_equal(polyop.op(ACROSS)(x), y)


@pytest.mark.parametrize("text", [
    "op f(X: f32[I, J, K]) -> (Y: f32[I, J, K]) { Y[i, j, k] = X[i, j, k] }",          # in the same order
    "op f(X: f32[J, K], I: int) -> (Y: f32[J, I, K]) { Y[j, i, k] = X[j, k] }",        # read again
    "op f(X: f32[I, K, J]) -> (Y: f32[J, I, K]) { Y[j, i, k] = X[i, k, j] }",          # no rows
    "op f(X: f32[I, J, K]) -> (Y: f32[J, K]) { Y[j, k] += X[i, j, k] }",               # added up
])
def test_rows_that_follow_each_other_on_both_sides_are_in_no_blocks(text):
    assert "blocks" not in middle(text, "x86-64-v3").chosen[0]
    assert "blocks" not in middle(ACROSS).chosen[0]


def test_columns_that_are_too_much_for_l2_are_read_block_by_block():
    made = middle(TURNED, "x86-64-v3", Options(regime="positive", tall=True))
    assert made.chosen[0].endswith("blocks of 64 j and 64 i") and first_failure(prove(made.scop, made.nest, made.context)) is None
    assert structure(made.nest.body) == "j_b:parallel(i_b(j_s(i_t(i_v:lanes(j_p:rows(S0))))))"
    for sizes in ((1, 1), (70, 9), (8, 64), (65, 130)):
        x = np.arange(sizes[0] * sizes[1], dtype=np.float32).reshape(sizes)
        y = np.full(sizes[::-1], np.nan, np.float32)
        interpret(made.nest, dict(zip("IJ", sizes, strict=True)), {}, {"X": x, "Y": y})
        np.testing.assert_array_equal(y, x.T)
        np.testing.assert_array_equal(polyop.op(TURNED, options=Options(tall=True))(x), y)
    assert "blocks" not in middle(TURNED, "x86-64-v3").chosen[0]
    wide = middle(TURNED, "x86-64-v4", Options(regime="positive", tall=True))
    assert wide.chosen[0].endswith("blocks of 128 j and 64 i")


@pytest.mark.parametrize(("arch", "rows", "columns", "tall"), [
    ("x86-64-v3", 4096, 4096, True), ("x86-64-v3", 3000, 5000, True), ("x86-64-v3", 1000, 3001, False),
    ("x86-64-v3", 300, 1024, True), ("x86-64-v3", 300, 1040, False), ("x86-64-v4", 4096, 4096, False)])
def test_so_they_are_where_rows_are_many_or_fall_on_each_other(arch, rows, columns, tall):
    found = regimes_of(instantiate(parse(Source("t.pop", TURNED)), "f"))
    assert regime(found, {"I": rows, "J": columns}, Options(), target(f"x86:{arch}")).tall is tall


@pytest.mark.parametrize(("result", "body", "lanes", "want"), [
    ("[N]", "Z[n] += X[m, n] * Y[m, n]", "lanes n (shell)", lambda x, y: (x * y).sum(0)),
    ("[M]", "Z[m] += X[m, n] * Y[m, n]", "lanes -, n", lambda x, y: (x * y).sum(1)),
    ("[M]", "Z[m] += X[m, n]", "lanes m (shell)", lambda x, y: x.sum(1)),  # many short rows beside each other
    ("", "Z += X[m, n]", "lanes -, n", lambda x, y: x.sum()),
    ("[M, N]", "Z[m, n] = X[m, n] + Y[m, n]", "lanes n (shell)", lambda x, y: x + y),
])
def test_without_any_unit_stride_lanes_run_along_the_last_dimension(result, body, lanes, want):
    text = f"op f(X: f32[M, N], Y: f32[M, N]) -> (Z: f32{result}) {{ {body} }}"
    assert lanes in middle(text, apart="XY").chosen[0]
    f, rng = polyop.op(text), np.random.default_rng(0)
    for m, n in ((1, 1), (3, 70), (70, 3), (65, 65)):
        x, y = (rng.standard_normal((2 * m, 3 * n)).astype(np.float32)[::2, ::-3] for _ in "xy")
        np.testing.assert_allclose(f(x, y), want(x.astype(np.float64), y.astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_there_are_no_rows_where_neighbours_share_nothing():
    chosen = middle(SUMS).chosen[0]
    assert "lanes m" in chosen and "rows n" not in chosen


def test_an_index_that_stands_alone_everywhere_has_lanes_though_it_is_added_up():
    assert "lanes -, n" in middle(PAIRS).chosen[0]


def test_lanes_are_as_wide_as_what_runs_along_them():
    sums = "op f(X: f32[R, N]) -> (Y: f64[R]) { s[r] += X[r, n]; Y[r] = f64(s[r]) }"
    assert "lanes -, n" in middle(sums).chosen[0] and "4 x 16" in middle(sums).chosen[0]
    assert "4 x 8" in middle(sums.replace("X: f32", "X: f64")).chosen[0]


@pytest.mark.parametrize(("arch", "width", "few"), [("x86-64-v4", 16, 4), ("x86-64-v3", 8, 2), ("x86-64-v2", 4, 2)])
def test_functions_are_added_up_in_fewer_vectors_where_registers_are_few(arch, width, few):
    text = "op f(X: f32[R, N]) -> (Y: f32[R, N], s: f32[R]) {{ Y[r, n] = {}; s[r] += Y[r, n] }}"
    assert f"{few} x {width}" in middle(text.format("exp(X[r, n])"), arch).chosen[0]
    for plain in ("X[r, n] * X[r, n]", "sqrt(X[r, n])"):
        assert f"4 x {width}" in middle(text.format(plain), arch).chosen[0]
    alone = "op f(X: f32[R, N], c: f32[R]) -> (Y: f32[R, N]) { Y[r, n] = exp(X[r, n] * c[r]) }"
    assert f"4 x {width}" in middle(alone, arch).chosen[0]


@pytest.mark.parametrize("arch", ["x86-64-v4", "x86-64-v3", "x86-64-v2"])
def test_rows_that_share_a_read_are_proved(arch):
    made = middle(WINDOW.format(step=2), arch)
    assert first_failure(prove(made.scop, made.nest, made.context)) is None


def test_where_a_result_begins_late_rows_are_copied_one_after_the_other():
    made = middle("op f(A: f32[K, N], B: f32[L, N]) -> (Y: f32[K + L, N]) { Y[i, n] = A[i, n]; Y[K + i, n] = B[i, n] }")
    assert [x for x in made.chosen if "lanes n" in x] == list(made.chosen) and len(made.chosen) == 2
    assert str(made.nest).index("for i2") < str(made.nest).index("for n2_t")


@pytest.mark.parametrize(("text", "around"), [
    ("(X: f32[H, W, C], F: f32[3, 3, C]) -> (Y: f32[H, W, C]) { Y[p, q, c] += (X[p + r, q + s, c] else 0) * F[r, s, c] }", True),
    ("(X: f32[W, C], F: f32[3, C]) -> (Y: f32[W, C]) { Y[q, c] += (X[q + s - 1, c] else 0) * F[s, c] }", False),  # long
    ("(X: f32[C, H, W], F: f32[C, 3, 3]) -> (Y: f32[C, H, W]) { Y[c, p, q] += (X[c, p+r, q+s] else 0) * F[c, r, s] }", False)])
def test_blocks_of_channels_go_along_one_line_of_an_image_after_another(text, around):
    made = middle(f"op f{text}")
    (chosen,) = made.chosen
    lane, rows = ("c", "q") if "lanes c" in chosen else ("q", "p")
    assert f"rows {rows} x 4" in chosen and first_failure(prove(made.scop, made.nest, made.context)) is None
    assert (str(made.nest).index(f"for {lane}_t") < str(made.nest).index(f"for {rows}_s")) == around


@pytest.mark.parametrize(("value", "lanes"), [
    ("X[b, a] * Y[b, a]", "a (shell), 1 x 8, rows b"), ("X[b, a] + Y[b, a] + X[b, a]*m[b]", "a (shell), 1 x 8, rows b"),
    ("X[b, a]", "b (shell), 1 x 8, rows a"), ("X[b, a] * Z[a, b]", "b (shell), 1 x 8, rows a"),
    ("X[b, a] + Y[b, a] + W[2*b, a]", "a (shell), 1 x 8, rows b"), ("X[b, a] * V[2*a, b, 2]", "-")])
def test_a_value_is_turned_where_most_of_what_it_is_made_of_lies_across_the_result(value, lanes):
    text = "op f(X: f32[B, A], Y: f32[B, A], Z: f32[A, B], m: f32[B], W: f32[2*B, A], V: f32[2*A, B, 3]) -> (R: f32[A, B]) "
    m = middle(text + "{ R[a, b] = " + value + " }", "x86-64-v3")
    assert f"lanes {lanes}" in m.chosen[0] and first_failure(prove(m.scop, m.nest, m.context, contiguous(m.scop.op))) is None


@pytest.mark.parametrize("dtype", ["f32", "f64", "i8", "i16"])
def test_such_values_are_those_of_numpy(dtype):
    f = polyop.op(f"op f(X: {dtype}[B, A], Y: {dtype}[B, A]) -> (R: {dtype}[A, B]) {{ R[a, b] = X[b, a] * Y[b, a] + X[b, a] }}")
    for a, b in ((1, 1), (7, 9), (8, 16), (17, 5), (33, 64), (70, 31)):
        x = np.arange(a * b).reshape(b, a).astype(dtype.replace("f", "float").replace("i", "int"))
        np.testing.assert_array_equal(f(x, x[::-1]), (x * x[::-1] + x).T)
