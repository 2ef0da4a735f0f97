"""Only stores that nobody reads again may bypass the caches."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from polyop.codegen.cpu.lower import lower as rewritten
from polyop.codegen.cpu.stream import stream_outputs, written_as_read
from polyop.codegen.x86 import emit
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.loops import LoopNest, stores
from polyop.ir.options import Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import Target
from polyop.poly.middle import lower, scop_of
from tests.codegen.harness import HERE, V4, load


def nest(text: str, t: Target = V4) -> LoopNest:
    op = instantiate(parse(Source("<test>", text)), "f")
    layout = Layout(tuple((t.name, len(t.shape) - 1 if t.shape else None) for t in op.tensors if t.role != "temp"))
    return lower(scop_of(op), layout, t, Options(), "tuned").nest


def streamed(text: str) -> set[str]:
    return {s.target.source for s in stores(stream_outputs(nest(text)).body) if s.stream}


def test_a_plain_output_is_streamed():
    assert streamed("op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] * 2 }") == {"Y"}


def test_an_output_that_is_read_again_is_not():
    assert streamed("op f(X: f32[N]) -> (Y: f32[N], Z: f32[N]) { Y[n] = X[n] * 2; Z[n] = Y[n] + X[n] }") == {"Z"}
    assert streamed("op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }") == set()


def test_a_scalar_store_is_not():
    assert streamed("op f(X: f32[M, N]) -> (S: f32[M]) { S[m] += X[m, n] }") == set()


def test_rows_that_are_known_to_be_shorter_than_a_line_are_not():
    text = "op f(X: f32[M, {n}]) -> (Y: f32[M, {n}]) {{ Y[m, n] = X[m, n] * 2 }}"
    assert [streamed(text.format(n=n)) for n in (15, 16)] == [set(), {"Y"}]


@pytest.mark.parametrize("meet", [False, True])
def test_rows_of_a_tile_that_lie_whole_pages_apart_go_through_the_caches_where_they_meet_and_are_asked_for(meet):
    t = replace(HERE, stream_bytes=1, pages_meet=meet)
    final = nest("op f(A: f32[M, 8], B: f32[8, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }", t)
    module = emit(rewritten(final, t, Options()), t, Options())
    assert "!nontemporal" in module.text
    assert (", 1023" in module.text) == meet  # 1,024 elements are a page
    hinted = [x for x in module.text.split("\n") if "select i1" in x and "ptr %args" in x]  # the arguments, where it bypasses
    assert bool(hinted) == meet
    kernel, rng = load(module, t), np.random.default_rng(7)
    for m, n in ((1, 1024), (5, 1023), (12, 1024), (13, 1025), (9, 4096)):
        a, b = rng.integers(-9, 9, (m, 8)).astype("f"), rng.integers(-9, 9, (8, n)).astype("f")
        room = np.full(m * n + 32, np.nan, np.float32)
        aligned = -room.ctypes.data // 4 % 16
        for first in (aligned, aligned + 1):
            c = room[first : first + m * n].reshape(m, n)
            assert kernel({"M": m, "N": n}, {}, {"A": a, "B": b, "C": c}) == 0
            np.testing.assert_array_equal(c, a @ b)


def test_short_rows_that_are_no_whole_vectors_go_through_the_caches():
    t = replace(HERE, stream_bytes=1, pages_meet=False)
    final = nest("op f(X: f32[N, M]) -> (Y: f32[M, N]) { Y[m, n] = X[n, m] }", t)
    module = emit(rewritten(final, t, Options()), t, Options())
    width = t.vector_bytes // 4
    found = re.search(r"(%\w+) = icmp sge i64 (%\w+), 1024\n", module.text)  # 4 KiB: ends are few then
    assert found and "!nontemporal" in module.text and f"and i64 {found[2]}, {width - 1}" in module.text
    assert re.search(rf"or i1 %\w+, {found[1]}\n", module.text)
    kernel = load(module, t)
    for m, n in ((5, width), (7, width + 1), (11, 4 * width - 1), (3, 1023), (3, 1024), (2, 1025)):
        x = np.arange(n * m, dtype="f").reshape(n, m)
        y = np.full((m, n), np.nan, "f")
        assert kernel({"M": m, "N": n}, {}, {"X": x, "Y": y}) == 0
        np.testing.assert_array_equal(y, x.T)


def as_read(text: str) -> set[str]:
    n = nest(text)
    return set(written_as_read(n.body, n))


@pytest.mark.parametrize(("text", "found"), [
    ("(X: f32[M, N], b: f32[N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] + b[n] }", {"Y"}),
    ("(X: f32[M], Z: f32[N]) -> (Y: f32[M, N]) { Y[m, n] = X[m] * Z[n] }", {"Y"}),
    ("(X: f32[M, N], i: i64[P]) -> (Y: f32[P, N]) { Y[p, n] = X[i[p], n] }", {"Y"}),
    ("(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, N - 1 - n] }", set()),                # the other way round
    ("(X: f32[M, N]) -> (Y: f32[N, M]) { Y[n, m] = X[m, n] }", set()),                        # turned
    ("(X: f32[A, B, C]) -> (Y: f32[B, A, C]) { Y[b, a, c] = X[a, b, c] }", set()),            # rows in another order
    ("(X: f32[M, N], i: i64[P]) -> (Y: f32[M, P]) { Y[m, p] = X[m, i[p]] }", set()),          # elements that lie anywhere
    ("(X: f32[M, N]) -> (Y: f32[M, N], Z: f32[M, N]) { Y[m, n] = X[m, N - 1 - n]; Z[m, n] = X[m, n] }", {"Z"})])
def test_what_is_written_as_it_is_read(text, found):
    assert as_read(f"op f{text}") == found


@pytest.mark.parametrize(("text", "stays"), [
    ("op f(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] * 2 }", True),
    ("op f(X: f32[M, N]) -> (Y: f32[N, M]) { Y[n, m] = X[m, n] }", False)])
def test_what_stays_in_the_last_cache_is_asked_of_the_whole_call(text, stays):
    """All tensors together, and the result alone."""
    bytes_ = 12345 << 2
    text = emit(rewritten(nest(text), V4, Options()), t := replace(V4, stays=bytes_), Options()).text
    assert "!nontemporal" in text and (f", {bytes_}" in text) == stays and f", {t.stream_bytes // 4}" in text
