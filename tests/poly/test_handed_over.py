"""What one contraction hands over to the next: batches, tiles of rows, memory."""

from __future__ import annotations

import numpy as np
import pytest

import polyop
from polyop.ir.loops import stores, structure
from polyop.ir.options import Options

from .middles import middle, proved, run

ATTENTION = """op f(Q: f32[B, H, M, D], K: f32[B, H, N, D], V: f32[B, H, N, E]) -> (O: f32[B, H, M, E]) {
    s[b, h, i, j]  += Q[b, h, i, d] * K[b, h, j, d]
    top[b, h, i] max= s[b, h, i, j]
    e[b, h, i, j]   = s[b, h, i, j] - top[b, h, i]
    O[b, h, i, v]  += e[b, h, i, j] * V[b, h, j, v]
}"""


def attention(a):
    s = a["Q"] @ a["K"].swapaxes(-1, -2)
    return (s - s.max(-1, keepdims=True)) @ a["V"]


@pytest.mark.parametrize("threads", [False, True])
def test_what_batches_hand_over_from_one_contraction_to_the_next_is_kept_for_one_of_them(threads):
    m = middle(ATTENTION, "tuned", Options(threads=threads))
    assert proved(m) and ("b:parallel(h:parallel(i_o:parallel(" if threads else "b(h:parallel(") in structure(m.nest.body)
    assert str(m.schedule).startswith("b h, 192 of i at a time around")
    buffer = m.nest.buffer("s")
    assert [str(e) for e, _ in buffer.dims] == ["1", "1", "min(M, 192)", "N"] and buffer.private
    assert "e takes the memory of s" in m.notes and all(b.name != "e" for b in m.nest.buffers)
    for sizes in ({"B": 2, "H": 2, "M": 7, "N": 17, "D": 5, "E": 9}, dict.fromkeys("BHMNDE", 1),
                  {"B": 1, "H": 2, "M": 193, "N": 3, "D": 2, "E": 1}, {"B": 1, "H": 1, "M": 383, "N": 2, "D": 1, "E": 2}):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, attention(arrays), rtol=1e-4, atol=1e-3)


def test_a_temporary_does_not_take_the_memory_of_one_that_is_read_beside_its_place_too():
    m = middle("""op f(X: f32[N, M]) -> (Y: f32[N, M]) {
    A[i, j] = X[i, j] + (X[i-1, j] else 0)
    B[i, j] = A[i, j] + (A[i-1, j] else 0)
    Y[i, j] = B[i, j] + (B[i-1, j] else 0) }""", "tuned")
    assert not any("takes the memory" in n for n in m.notes)


def test_what_all_tiles_of_rows_read_is_packed_before_them():
    m = middle(ATTENTION, "tuned")
    assert sum("packs right, ahead of all tiles" in c for c in m.chosen) == 2
    h = m.nest.body[0].body[0]
    *packs, tiles = h.body
    assert tiles.index == "i_o" and tiles.step == 192
    assert {s.target.source for p in packs for s in stores((p,))} == {"s_S0_right", "O_S3_right"}
    assert all(s.target.source not in ("s_S0_right", "O_S3_right") for s in stores((tiles,)))


@pytest.mark.parametrize("threads", [False, True])
def test_tiles_of_rows_are_shared_out_where_there_are_no_batches(threads):
    m = middle("""op f(Q: f32[M, D], K: f32[N, D], V: f32[N, E]) -> (O: f32[M, E]) {
        s[i, j]  += Q[i, d] * K[j, d]
        top[i] max= s[i, j]
        e[i, j]   = s[i, j] - top[i]
        O[i, v]  += e[i, j] * V[j, v]
    }""", "tuned", Options(threads=threads))
    assert proved(m) and "i_o:parallel(" in structure(m.nest.body)
    assert str(m.schedule).startswith("192 of i at a time around")
    assert m.nest.buffer("s").private and not m.nest.buffer("s_S0_right").private
    for sizes in ({"M": 200, "N": 17, "D": 5, "E": 9}, dict.fromkeys("MNDE", 1)):
        arrays, got = run(m, sizes)
        np.testing.assert_allclose(got, attention(arrays), rtol=1e-4, atol=1e-3)


def test_a_batch_of_one_contraction_alone_stays_inside_the_tiles():
    m = middle("""op f(Q: f32[M, G, D], K: f32[G, N, D], V: f32[N, E]) -> (O: f32[M, E]) {
        s[i, g, j]  += Q[i, g, d] * K[g, j, d]
        e[i, j]    max= s[i, g, j]
        O[i, v]  += e[i, j] * V[j, v]
    }""", "tuned")
    assert proved(m) and str(m.schedule).startswith("192 of i at a time around")
    arrays, got = run(m, {"M": 195, "N": 5, "D": 3, "E": 9, "G": 2})
    want = np.einsum("igd,gjd->igj", arrays["Q"], arrays["K"]).max(1) @ arrays["V"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-3)


def test_rows_whose_results_the_next_contraction_adds_up_are_not_taken_in_tiles():
    m = middle("""op f(Q: f32[M, D], K: f32[N, D], V: f32[M, E]) -> (O: f32[N, E]) {
        s[i, j]  += Q[i, d] * K[j, d]
        top[i] max= s[i, j]
        e[i, j]   = s[i, j] - top[i]
        O[j, v]  += e[i, j] * V[i, v]
    }""", "tuned")
    assert proved(m) and "around" not in str(m.schedule)


@pytest.mark.parametrize("text", [
    "op f(X: f32[S, I], W: f32[I, J], U: f32[J, O]) -> (Y: f32[S, O]) {"
    "h[s, j] += X[s, i] * W[i, j]; Y[s, o] += h[s, j] * U[j, o] }",
    "op f(X: f32[B, S, I], W: f32[I, J], U: f32[J, O]) -> (Y: f32[B, S, O]) {"
    "h[b, s, j] += X[b, s, i] * W[i, j]; Y[b, s, o] += h[b, s, j] * U[j, o] }",
])
def test_a_loop_that_is_no_batch_of_every_contraction_stays_where_it_was(text):
    m = middle(text, "tuned")
    assert proved(m) and "around" not in str(m.schedule)


@pytest.mark.parametrize(("read", "again", "reused"),
                         [("t[i, j]", "A[k, j]", True), ("t[j, i]", "A[k, j]", False), ("t[i, j]", "t[k, j]", False)])
def test_a_temporary_takes_the_memory_of_one_that_nothing_reads_any_more(read, again, reused):
    text = f"""op f(A: f32[N, N]) -> (Y: f32[N, N]) {{
        t[i, j] += A[i, k] * A[k, j]
        m[i]  max= t[i, j]
        e[i, j]  = {read} - m[i]
        Y[i, j] += e[i, k] * {again} }}"""
    m = middle(text, "tuned")
    assert proved(m) and any("takes the memory" in n for n in m.notes) == reused

    def expected(x):
        a = x.astype(np.float64)
        t = a @ a
        e = (t.T if read == "t[j, i]" else t) - t.max(1, keepdims=True)
        return e @ (t if again == "t[k, j]" else a)
    for size in (1, 7, 20):
        arrays, got = run(m, {"N": size})
        np.testing.assert_allclose(got, expected(arrays["A"]), rtol=1e-4)
    for size in (70, 200):  # more tiles than one are the machine code's business: an interpreter would take half a minute
        x = np.random.default_rng(size).integers(-1, 2, (size, size)).astype(np.float32)
        np.testing.assert_allclose(polyop.op(text)(x), expected(x), rtol=1e-4)


def test_what_follows_a_contraction_keeps_memory_of_its_own_for_partial_sums():
    m = middle("""op f(X: f32[S, D], A: f32[D, F], B: f32[D, F], C: f32[F, D]) -> (Y: f32[S, D]) {
        gate[s, f] += X[s, d] * A[d, f]
        up[s, f]   += X[s, d] * B[d, f]
        h[s, f]     = relu(gate[s, f]) * up[s, f]
        Y[s, d]    += h[s, f] * C[f, d] }""", "tuned")
    assert proved(m) and not any("takes the memory" in n for n in m.notes)
