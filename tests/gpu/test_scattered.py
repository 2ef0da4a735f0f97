"""Updates at places from data: marked to be indivisible, proved with the mark and refused without, right on the emulator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gpu_texts import compiled

from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import LoopNest, Node, Store, rebuild, stores
from polyop.ir.options import Options
from polyop.poly.middle import scop_of
from polyop.poly.verify import first_failure, prove
from polyop.runtime import amdgcn, cxx, emulated, nvrtc

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

ADD = "op add(X: {t}[M, D], at: i64[M]; N: int) -> (Y: {t}[N, D]) {{ Y[at[m], d] {op}= X[m, d] }}"


@pytest.mark.parametrize(("dtype", "operator", "ufunc"), [
    ("f32", "+", np.add), ("f64", "+", np.add), ("f32", "max", np.maximum), ("i32", "+", np.add), ("i64", "min", np.minimum),
    ("i16", "+", np.add), ("u8", "max", np.maximum), ("f64", "*", np.multiply),
])
def test_what_several_points_add_to_one_element_is_all_there(dtype: str, operator: str, ufunc: np.ufunc) -> None:
    c = compiled(ADD.format(t=dtype, op=operator))
    assert c.rung == "tuned" and c.proofs and "scattered" in c.chosen[0] and c.module is not None
    rng = np.random.default_rng(0)
    for (m, d, n), order in zip(((1, 1, 1), (33, 5, 3), (7, 33, 40)), emulated.ORDERS, strict=True):
        at = rng.integers(0, n, m)
        x = rng.integers(1, 3, (m, d)).astype(c.op.tensor("X").dtype.numpy)
        monoid = next(s.reduce for s in c.op.steps if s.reduce)
        want = np.full((n, d), monoid.identity, x.dtype)
        ufunc.at(want, at, x)
        y = np.empty_like(want)
        report = emulated.run(c.module, {"M": m, "D": d, "N": n}, {}, {"X": x, "at": at, "Y": y}, order=order)
        assert str(report) == "no fault found"
        np.testing.assert_array_equal(y, want)


def test_overlapping_windows_add_up_as_well() -> None:
    c = compiled("op back(X: f32[P, 3]) -> (Y: f32[P + 2]) { Y[p + q] += X[p, q] }")
    assert c.rung == "tuned" and c.module is not None
    x, y = np.arange(15, dtype=np.float32).reshape(5, 3), np.empty(7, np.float32)
    assert str(emulated.run(c.module, {"P": 5}, {}, {"X": x, "Y": y})) == "no fault found"
    assert y.tolist() == [sum(x[p, i - p] for p in range(5) if 0 <= i - p < 3) for i in range(7)]


def test_without_the_mark_the_checker_finds_the_two_who_meet() -> None:
    c = compiled(ADD.format(t="f32", op="+"))
    assert c.nest is not None and any(s.atomic for s in stores(c.nest.body)) and "(atomic)" in str(c.nest)
    scop = scop_of(c.op)
    assert first_failure(prove(scop, c.nest, scop.context)) is None
    failed = first_failure(prove(scop, _unmarked(c.nest), scop.context))
    assert failed is not None and failed.claim == "parallel loops do not meet themselves in memory"


def _unmarked(nest: LoopNest) -> LoopNest:
    def one(n: Node) -> Node:
        return replace(n, atomic=False) if isinstance(n, Store) else rebuild(n, lambda body: tuple(map(one, body)))
    return replace(nest, body=tuple(map(one, nest.body)))


def test_sums_in_source_order_are_not_scattered() -> None:
    c = compiled(ADD.format(t="f32", op="+"), Options(numerics="strict"))
    assert not any("scattered:" in x for x in c.chosen)


def test_sums_in_source_order_have_a_row_for_each_thread_whose_positions_are_checked() -> None:
    text = ("op f(at: i32[L], X: f32[B], g: bool[B]; V: int) -> (Y: f32[V, B]) "
            "{ S: f32[V, B]; S[at[l], b] += X[b]  where g[b]; Y[v, b] = 2 * S[v, b] }")
    c = compiled(text, Options(numerics="strict"))
    assert c.rung == "tuned" and c.module is not None
    x, g = np.arange(1, 8, dtype=np.float32), np.arange(7) % 2 == 0
    for at, fault in (([2, 0, 2], None), ([2, 3, 0], "S_row"), ([-1, 0, 0], "S_row")):
        y = np.empty((3, 7), np.float32)
        given = {"at": np.array(at, np.int32), "X": x, "g": g, "Y": y}
        report = emulated.run(c.module, {"L": 3, "B": 7, "V": 3}, {}, given)
        assert not report.findings and (report.site.source if report.site else None) == fault
        if not fault:
            np.testing.assert_array_equal(y, np.array([[2], [0], [4]], np.float32) * np.where(g, x, 0))


KINDS = (("f32", "+"), ("f64", "+"), ("i64", "+"), ("f32", "max"), ("i32", "min"), ("i16", "+"), ("f64", "*"))
TEXTS = [ADD.format(t=t, op=op) for t, op in KINDS]


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
def test_nvrtc_accepts_each_kind_of_update() -> None:
    for text in TEXTS:
        c = compiled(text)
        assert c.module is not None and nvrtc.assemble(c.module).code


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
def test_amdgcn_accepts_each_kind_of_update() -> None:
    for text in TEXTS:
        c = compiled(text, on="hip:gfx942")
        assert c.module is not None and amdgcn.assemble(c.module).code


@pytest.mark.parametrize("on", ["cuda:sm_80", "hip:gfx942"])
def test_what_a_thread_has_for_itself_is_updated_without_a_mark_and_in_the_order_of_the_text(on: str) -> None:
    c = compiled("op rows(X: f32[M, K], at: i32[M, K], Z: f32[M, V]) -> (Y: f32[M, V]) {\n"
                 "  T: f32[V, M]\n  T[at[m, k], m] += X[m, k]\n  Y[m, v] = T[v, m] + Z[m, v] }",
                 Options(numerics="strict", regime="any"), on)
    assert c.rung == "tuned" and all(p.holds for p in c.proofs)
    assert c.nest is not None and c.module is not None and "atomic" not in c.module.text
    rng = np.random.default_rng(0)
    for (m, k, v), order in zip(((1, 1, 1), (130, 9, 2), (3, 0, 4)), emulated.ORDERS, strict=True):
        x, at = rng.standard_normal((m, k)).astype(np.float32), rng.integers(0, v, (m, k)).astype(np.int32)
        z, y = np.ones((m, v), np.float32), np.empty((m, v), np.float32)
        want = np.zeros_like(y)
        for j in range(k):  # in this order
            np.add.at(want, (np.arange(m), at[:, j]), x[:, j])
        assert str(emulated.run(c.module, {"M": m, "K": k, "V": v}, {}, {"X": x, "at": at, "Z": z, "Y": y},
                                order=order)) == "no fault found"
        np.testing.assert_array_equal(y, want + z)
