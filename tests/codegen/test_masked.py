"""Nothing beside a result is written, however many of its last vector's lanes there are."""

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.options import Options
from polyop.runtime.layout import contiguous
from tests.codegen.harness import V2, V3, V4, assembly
from tests.rewrite.ops import op

TURNED = {"bf16": "Q[r, {n} - 1 - i]", "i8": "i8(Q[r, i])", "i16": "i16(Q[r, i])", "i32": "i32(Q[r, i])", "u8": "u8(Q[r, i])",
          "bool": "Q[r, i] > 2", "f16": "f16(Q[r, i])"}
PAIRS = [("bf16", "bf16"), ("f32", "bf16"), ("i32", "i8"), ("i64", "i8"), ("i16", "i8"), ("f32", "i8"), ("i32", "i16"),
         ("f64", "i16"), ("i64", "i32"), ("f64", "i32"), ("i32", "u8"), ("f32", "bool"), ("f64", "bool"), ("f32", "f16")]


@pytest.mark.parametrize(("source", "kind"), PAIRS)
def test_nothing_is_written_behind_a_row_of_a_known_length(source, kind):
    t = DTYPES[kind].numpy
    for n in (1, 8, 9, 17, 33, 65):
        value = "bf16(Q[r, i])" if (source, kind) == ("f32", "bf16") else TURNED[kind].format(n=n)
        f = polyop.op(f"op f(Q: {source}[R, {n}]) -> (Y: {kind}[R, {n}]) {{ Y[r, i] = {value} }}")
        q = np.random.default_rng(n).integers(1, 5, (3, n)).astype(DTYPES[source].numpy)
        room = np.zeros(3 * (n + 3) + 64, t)
        y = room[:3 * (n + 3)].reshape(3, n + 3)
        y[...] = np.ones(1, t)
        f(q, out=y[:, :n])
        want = q > 2 if kind == "bool" else q[:, ::-1] if source == kind else q
        np.testing.assert_array_equal(y[:, :n], want.astype(t))
        np.testing.assert_array_equal(y[:, n:], np.ones((3, 3), t))


SUMS = "op f(X: f32[N, B]) -> (S: f32[B]) { S[b] += X[n, b] }"


@pytest.mark.parametrize(("target", "masked"), [(V4, 1 + 2 + 3 + 4), (V3, 8), (V2, 8)])
def test_where_masks_cost_something_only_the_last_vector_of_an_edge_has_one(target, masked):
    """There is an edge for each number of vectors."""
    text = polyop.op(SUMS).compile(target=target.name, options=Options(strip=True)).source
    added = [x for x in text.splitlines() if "call <" in x and "@llvm.masked.load" in x]
    assert len(added) == masked


def test_edges_of_any_number_of_lanes_read_and_write_what_exists():
    f = polyop.op(SUMS)
    for columns in range(1, 140):
        x = np.random.default_rng(columns).integers(-9, 9, (7, columns)).astype(np.float32)
        room = np.full(columns + 70, 7, np.float32)
        f(x, out=room[:columns])
        np.testing.assert_array_equal(room[:columns], x.sum(0))
        assert (room[columns:] == 7).all()


def test_vectors_at_the_end_of_rows_of_a_known_length_need_no_mask():
    """AVX2 has none for 2 bytes, and would take the lanes one by one: 48 are two vectors and one, 44 two and two pieces."""
    for n in (48, 64, 44):
        o = op(f"op f(X: i16[A, B, {n}]) -> (Y: i16[B, A, {n}]) {{ Y[b, a, c] = X[a, b, c] }}")
        made = compile_op(o, contiguous(o), V3, Options(check=False))
        assert "pextrw" not in assembly(made.final, V3), n


ENDS = [(2, 6, "a"), (3, 3, "b"), (1, 7, "b"), (5, 2, "a"), (7, 5, "a"), (8, 9, "a"), (2, 2, "b"), (17, 3, "a")]


@pytest.mark.parametrize("kind", ["i8", "i16", "f32", "f64"])
@pytest.mark.parametrize(("a", "d", "lanes"), ENDS)
def test_few_known_elements_at_both_ends_are_turned_without_masks(a, d, lanes, kind):
    """With AVX2 a store under a mask takes 4 ns of a Zen 3, and of bytes there is none. Of b the number is not known."""
    f = polyop.op(f"op f(X: {kind}[{a}, B, {d}]) -> (Y: {kind}[{d}, B, {a}]) {{ Y[d, b, a] = X[a, b, d] }}")
    made = f.compile(target=V3.name)
    masked = [x for x in made.source.splitlines() if "call" in x and "@llvm.masked" in x]
    assert f"lanes {lanes} (shell)" in made.notes[0]
    assert lanes == "b" or not [x for x in masked if "load" not in x or kind in ("i8", "i16")]
    for b in (0, 1, 7, 9):
        x = np.random.default_rng(b).integers(-99, 99, (a, b, d)).astype(DTYPES[kind].numpy)
        room = np.full(a * b * d + 64, 55, x.dtype)
        f(x, out=room[:a * b * d].reshape(d, b, a))
        np.testing.assert_array_equal(room[:a * b * d].reshape(d, b, a), x.transpose(2, 1, 0))
        assert (room[a * b * d:] == 55).all()
