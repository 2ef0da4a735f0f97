"""Lanes over two columns of a contraction, where one leaves vectors half empty: the same results, in fewer vectors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.lower import kept, rewritten
from polyop.codegen.cpu.pairs import paired
from polyop.codegen.cpu.verify import pressure
from polyop.codegen.x86 import emit
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, Kind, stores, walk
from polyop.ir.options import Options
from tests.codegen.harness import V4, compiled, load, wide
from tests.codegen.nests import lanes, ld, nest, reg, rows, st, tensor
from tests.poly.middles import middle, proved

FIRST, BETWEEN = "Y[j, a, k]", "Y[j, k, a]"  # copied by squares, and fused: then the copy reads vectors in pieces


def product(right=FIRST, columns=24, depth="K", height=4, pair=2):
    """Z[i, j, b, a], whose rows b are neighbours, and its nest in tiles with `pair` values of j."""
    shape = right[2:-1].upper().replace("A", str(columns)).replace("K", str(depth))
    text = f"op f(X: f32[B, {depth}, I], Y: f32[{shape}]) -> (Z: f32[I, J, B, {columns}])"
    m = middle(f"{text} {{ Z[i, j, b, a] += X[b, k, i] * {right} }}", "tuned", Options(height=height, pair=pair))
    assert f"rows b x {height}, j x {pair}, lanes a x {columns}" in m.chosen[0]
    return m, rewritten(kept(m.nest, V4), V4)


def arrays_of(m, right, i, j, b, k, columns=24):
    rng = np.random.default_rng(i + j + b + k)
    x = rng.integers(-3, 4, (b, k, i)).astype(np.float32)
    y = rng.integers(-3, 4, {"k": (j, columns, k), "a": (j, k, columns)}[right[-2]]).astype(np.float32)
    z = np.einsum("bki,jak->ijba", x.astype(np.float64), y if right[-2] == "k" else y.transpose(0, 2, 1))
    return {"X": x, "Y": y}, z


def called(kernel, given, z, out):
    sizes = {"B": z.shape[2], "I": z.shape[0], "J": z.shape[1], "K": given["X"].shape[1]}
    assert kernel(sizes, {}, given | {"Z": out}) == 0
    np.testing.assert_array_equal(out, z, err_msg=str(sizes))


@pytest.mark.parametrize("right", [FIRST, BETWEEN])
def test_a_pair_means_the_same_loops(right):
    m, final = product(right)
    new = paired(final, 16)
    found = {n.extent for n in walk(new.body) if isinstance(n, For) and n.kind == Kind.LANES} - {16}
    assert proved(m) and found == {48} and [str(e) for e, _ in new.buffer("Z_S0_acc").dims] == ["4", "48"]
    for j, b, k in ((1, 1, 1), (2, 4, 3), (3, 5, 2)):
        given, z = arrays_of(m, right, 2, j, b, k)
        out = np.full(z.shape, np.nan, np.float32)
        interpret(new, {"B": b, "I": 2, "J": j, "K": k}, {}, given | {"Z": out})
        np.testing.assert_array_equal(out, z)


@wide
@pytest.mark.parametrize(("right", "columns", "pair"), [(FIRST, 24, 2), (BETWEEN, 24, 2), (BETWEEN, 21, 3), (FIRST, 9, 4),
                                                        (FIRST, 17, 2), (BETWEEN, 33, 2)])
def test_a_pair_computes_what_numpy_does_at_every_edge(right, columns, pair):
    m, final = product(right, columns, pair=pair)
    kernel = compiled(final)
    for j, b, k in ((1, 1, 1), (pair - 1, 3, 2), (pair, 4, 17), (pair + 1, 5, 513), (2 * pair, 8, 1030)):
        given, z = arrays_of(m, right, 2, j, b, k, columns)
        called(kernel, given, z, np.full(z.shape, np.nan, np.float32))


@wide
def test_rows_that_fill_lines_together_go_past_the_caches_wherever_they_lie():
    m, final = product(depth=24, height=4)
    everything = replace(V4, stream_bytes=1)
    module = emit(final, everything, Options())
    assert module.text.count("!nontemporal") >= 12 and "scatter" not in module.text
    kernel = load(module, everything)
    for j, b in ((2, 4), (3, 5), (4, 9)):
        given, z = arrays_of(m, FIRST, 3, j, b, 24)
        for beside in (0, 1, 8):  # elements between rows, and before the first
            room = np.full(3 * j * (b + beside) * (24 + beside) + 64, np.nan, np.float32)
            start = -(room.ctypes.data // 4) % 16 + beside
            whole = room[start : start + 3 * j * (b + beside) * (24 + beside)].reshape(3, j, b + beside, 24 + beside)
            called(kernel, given, z, whole[:, :, :b, :24])
            assert np.isnan(whole[:, :, b:]).all() and np.isnan(whole[:, :, :, 24:]).all()


@wide
@pytest.mark.parametrize(("width", "height", "pair"), [(55, 3, 4), (48, 8, 2), (39, 4, 4), (3, 9, 2)])
def test_a_pair_of_rows_of_an_image_in_steps_of_two_is_right_at_every_edge(width, height, pair):
    columns = (width + 1) // 2
    text = f"op f(X: f32[B, C, H, {width}], F: f32[K, C]) -> (Y: f32[B, K, (H + 1) / 2, {columns}])"
    m = middle(f"{text} {{ Y[b, k, p, q] += X[b, c, 2*p, 2*q] * F[k, c] }}", "tuned", Options(height=height, pair=pair))
    assert f"rows k x {height}, p x {pair}, lanes q x {columns}" in m.chosen[0] and proved(m)
    kernel, rng = compiled(rewritten(kept(m.nest, V4), V4)), np.random.default_rng(width)
    for b, c, p, k in ((1, 1, 1, 1), (2, 3, pair - 1, height), (1, 17, pair, height + 1), (2, 2, pair + 1, height - 1),
                       (1, 1030, 2 * pair + 1, 2)):
        x, f = rng.integers(-3, 4, (b, c, 2 * p - 1, width)), rng.integers(-3, 4, (k, c))
        given, out = {"X": x.astype(np.float32), "F": f.astype(np.float32)}, np.full((b, k, p, columns), np.nan, np.float32)
        assert kernel({"B": b, "C": c, "H": 2 * p - 1, "K": k}, {}, given | {"Y": out}) == 0
        np.testing.assert_array_equal(out, np.einsum("bcpq,kc->bkpq", x[:, :, ::2, ::2], f))


def test_a_tile_that_needs_all_registers_has_them_only_with_lanes_over_both():
    def tile(n):
        return max(pressure(n, x, 16) for x in walk(n.body) if isinstance(x, For) and x.kind == Kind.LANES)

    _, final = product(height=4, pair=4)
    assert tile(final) > V4.registers >= tile(paired(final, 16))


def test_registers_that_are_used_elsewhere_stay_as_they_are():
    _, final = product()
    acc = next(s.target for s in stores(final.body) if s.target.source == "Z_S0_acc")
    same = ld(acc.source, "p", "q", "a_v")
    beside = lanes("a_v", 24, None, rows("p", 4, None, rows("q", 2, None, st(same, same))))
    assert paired(replace(final, body=(*final.body, beside)), 16).buffers == final.buffers


def test_lanes_that_fill_their_vectors_have_no_pair():
    one = lanes("v", 32, None, rows("q", 2, None, st(ld("Y", "q", "v"), ld("X", "q", "v"))))
    n = nest([tensor("X", 2, 32), tensor("Y", 2, 32), reg("acc", 2, 32)], [one], ())
    assert paired(n, 16) is n
    _, final = product()
    assert paired(final, 8) is final and paired(final, 24) is final


@wide
def test_calls_of_other_sizes_get_kernels_for_these():
    f = polyop.op("""op f(X: f32[B, K, L, I], Y: f32[J, A, K, L]) -> (Z: f32[I, J, B, A]) {
        Z[i, j, b, a] += X[b, k, l, i] * Y[j, a, k, l] }""")
    rng = np.random.default_rng(0)
    for turn in range(12):
        for a, k in ((24, 3), (20, 3), (21, 2), (32, 2)):
            x, y = (rng.integers(-3, 4, s).astype(np.float32) for s in ((21, k, 5, 17), (19, a, k, 5)))
            expected = np.einsum("bkli,jakl->ijba", x.astype(np.float64), y, optimize=True)
            np.testing.assert_array_equal(f(x, y), expected, err_msg=f"turn {turn}, {a} columns")
