"""Where a tile takes more registers than there are, smaller ones follow, and then memory: never plainer loops for that alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop import making
from polyop.codegen.cpu.verify import verify
from polyop.compiler import Compiled, compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import RegistersError, UnsupportedError
from polyop.ir.options import SHORT, TURNED, Options
from polyop.ir.registers import register_tile
from polyop.ir.span import Source
from polyop.ir.target import Target
from polyop.making import Way
from polyop.poly.middle import lower, scop_of
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.codegen.harness import RUNNABLE, V2, V3, V4

D = "(A[m, k] - B[k, n])"
HUBER = f"abs({D}) < 0.5 ? 0.5 * {D} * {D} : 0.5 * abs({D}) - 0.125"
NUMBERS = " + ".join(f"min(A[m, k] * {i / 10} + {0.3 + i}, B[k, n] * {i * 0.7:.1f})" for i in range(1, 8))
TREE = (f"((A[m, k] + B[k, n]) * {D} + (A[m, k] * 2 + B[k, n]) * (A[m, k] - B[k, n] * 3))"
        f" * ((A[m, k] + B[k, n] * 5) * (A[m, k] - B[k, n] * 7) + (A[m, k] * 11 + B[k, n]) * (A[m, k] - B[k, n] * 13))")
TEXTS = {"huber": HUBER, "numbers": NUMBERS, "tree": TREE, "square": f"{D} * {D}"}
INT = "(A[m, k] ^ B[k, n]) * 3 + (A[m, k] & B[k, n]) * 5 + (A[m, k] | B[k, n]) * 7 + 11"
EPILOGUE = """op f(A: f32[M, K], B: f32[K, N], b: f32[N], G: f32[M, N]) -> (Y: f32[M, N]) {
    c[m, n] += abs(A[m, k] - B[k, n]); y[m, n] = c[m, n] + b[n]; z[m, n] = y[m, n] * c[m, n]
    w[m, n] = z[m, n] - y[m, n] * G[m, n]; Y[m, n] = w[m, n] * z[m, n] + y[m, n] * c[m, n] }"""
COMPLEX = """op f(a: f32[M, K], b: f32[M, K], c: f32[K, N], d: f32[K, N]) -> (R: f32[M, N], I: f32[M, N]) {
    R[m, n] += a[m, k] * c[k, n] - b[m, k] * d[k, n]
    I[m, n] += a[m, k] * d[k, n] + b[m, k] * c[k, n] }"""
ODD = "fn odd(a, b) = (a * a * a + b * b * b) / (a * a + b * b + 0.01) + (a < b ? a * 0.5 : b * 0.5)\nmonoid strange(0, odd)\n"


def product(body: str, reduce: str = "+", kind: str = "f32", result: str = "") -> str:
    return f"op f(A: {kind}[M, K], B: {kind}[K, N]) -> (Y: {result or kind}[M, N]) {{ Y[m, n] {reduce}= {body} }}"


def made(text: str, t: Target, options: Options | None = None) -> Compiled:
    op = instantiate(parse(Source("<test>", text)), "f")
    return compile_op(op, contiguous(op), t, options or Options(check=False))


def roomier(c: Compiled) -> list[str]:
    return [n for n in c.notes if n.startswith("on rung")]


@pytest.fixture
def runs_with(monkeypatch, tmp_path):
    """Says that this machine has so few registers of the vectors of `t`."""
    def say(t: Target, registers: int) -> None:
        monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
        monkeypatch.setattr(cpu, "host", lambda: replace(t, name="x86:host", registers=registers))
    return say


def wide(m: int, k: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(m * n + k)
    return {"A": rng.standard_normal((m, k)).astype(np.float32), "B": rng.standard_normal((k, n)).astype(np.float32)}


def terms(body: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What `body` is for each m, n, k, in float64."""
    text = body.replace("A[m, k]", "A").replace("B[k, n]", "B").replace("min(", "np.minimum(").replace("abs(", "np.abs(")
    if " ? " in text:
        test, _, rest = text.partition(" ? ")
        text = "np.where({}, {}, {})".format(test, *rest.split(" : "))
    return eval(text, {"np": np, "A": a.astype(float)[:, None, :], "B": b.astype(float).T[None]})


@pytest.mark.parametrize(("reduce", "t", "registers"), [("+", RUNNABLE[0], 16), ("max", RUNNABLE[-1], 12)], ids=["sum", "most"])
@pytest.mark.parametrize("name", TEXTS)
def test_long_updates_stay_on_the_tuned_rung_and_are_right(name, reduce, t, registers, runs_with):
    runs_with(t, registers)
    f = polyop.op(product(TEXTS[name], reduce))
    assert not any("not on rung" in n for n in f.compile().notes)
    for m, k, n in ((1, 1, 1), (7, 40, 65)):
        x = wide(m, k, n)
        each = terms(TEXTS[name], *x.values())
        want = each.sum(2) if reduce == "+" else each.max(2)
        np.testing.assert_allclose(f(**x), want, rtol=1e-5, atol=1e-6 * np.abs(each).sum(2).max())


def test_steps_that_read_what_is_summed_go_to_memory_at_last_and_are_right(runs_with):
    runs_with(RUNNABLE[-1], 16)
    f = polyop.op(EPILOGUE)
    notes = f.compile().notes
    assert any("on rung tuned with some vectors in memory, since the tile at n_v keeps" in n for n in notes)
    assert not any("not on rung" in n for n in notes)
    x = wide(19, 33, 37)
    b, g = np.float32(0.1) * np.arange(37, dtype=np.float32), wide(19, 1, 37)["A"] + np.ones((1, 37), np.float32)
    c = np.abs(x["A"].astype(float)[:, None, :] - x["B"].astype(float).T[None]).sum(2)
    y = c + b
    z = y * c
    np.testing.assert_allclose(f(**x, b=b, G=g), (z - y * g) * z + y * c, rtol=2e-5)


def test_sums_of_complex_numbers_are_right_with_few_registers(runs_with):
    runs_with(RUNNABLE[-1], 12)
    f = polyop.op(COMPLEX)
    assert not any("not on rung" in n for n in f.compile().notes)
    a, b, c, d = (np.random.default_rng(i).standard_normal((13, 17) if i < 2 else (17, 21)).astype(np.float32) for i in range(4))
    real, imaginary = f(a, b, c, d)
    want = (a + 1j * b.astype(float)) @ (c + 1j * d.astype(float))
    np.testing.assert_allclose(real + 1j * imaginary, want, atol=1e-4)


@pytest.mark.parametrize("t", [V4, V3, V2], ids=lambda t: t.arch)
@pytest.mark.parametrize("text", [
    product(HUBER, kind="f64"), product(HUBER, "argmax", result="i64"), product(NUMBERS, "min"), product(INT, kind="i32"),
    product(INT, "max", "i16"), product(INT.replace("A[m, k]", "i32(A[m, k])").replace("B[k, n]", "i32(B[k, n])"), kind="i8",
                                        result="i32"),
    product(TREE, kind="bf16"), ODD + product(TREE, "strange"), EPILOGUE,
    "op f(X: f32[B, H, W, C], F: f32[R, S, C]) -> (Y: f32[B, H + 1 - R, W + 1 - S, C]) { Y[b, p, q, c] += "
    + HUBER.replace("A[m, k]", "X[b, p + r, q + s, c]").replace("B[k, n]", "F[r, s, c]") + " }",
    "op f(A: f32[M, K], x: f32[K]) -> (y: f32[M]) { y[m] max= " + TREE.replace("B[k, n]", "x[k]") + " }"])
def test_no_want_of_registers_leaves_the_tuned_rung(text, t):
    for registers in (t.registers, 12) if t is V3 else (t.registers,):
        assert made(text, replace(t, registers=registers)).rung == "tuned"


@pytest.mark.parametrize("options", [
    {"rows": 4}, {"rows": 8}, {"height": 14}, {"short": SHORT}, {"short": TURNED}, {"threads": True}, {"numerics": "strict"},
    {"bare": 8}, {"bare": 1024}, {"strip": True}], ids=str)
def test_nor_does_it_whatever_the_kernel_is_for(options):
    assert made(product(TREE, "max"), V3, Options(check=False, **options)).rung == "tuned"


def test_what_has_a_tile_at_once_says_nothing_of_registers():
    assert not roomier(made(product("A[m, k] * B[k, n]"), V3)) and not roomier(made(product(HUBER), V3))


def test_each_way_is_roomier_and_the_last_one_goes_to_memory():
    for missing in (1, 3, 40):
        way, seen = Way(skew=False), []
        while not way.spills:
            seen.append(way.spare)
            way = way.roomier(missing, V3)
        assert seen == sorted(set(seen)) and seen[-1] < V3.registers // 2 and len(seen) <= 5
        assert way == Way(skew=False, spills=True)


def test_registers_that_are_spare_make_a_tile_smaller():
    op = instantiate(parse(Source("<test>", product("A[m, k] * B[k, n]"))), "f")
    for spare in range(9):
        nest = lower(scop_of(op), contiguous(op), V3, Options(), "tuned", spare=spare).nest
        assert verify(nest, replace(V3, registers=V3.registers - spare)) is nest
    assert register_tile(V3, 8) == (4, 3) and register_tile(V3, 8, spare=1) == (6, 2) and register_tile(V3, 8, spare=8) == (6, 1)
    with pytest.raises(UnsupportedError, match="no register tile"):
        register_tile(V3, 8, spare=14)


def test_who_lacks_registers_says_how_many():
    op = instantiate(parse(Source("<test>", product("A[m, k] * B[k, n]"))), "f")
    nest = lower(scop_of(op), contiguous(op), V3, Options(), "tuned").nest
    few = replace(V3, registers=12)
    with pytest.raises(RegistersError) as error:
        verify(nest, few)
    assert error.value.missing == 4 and verify(nest, few, spills=True) is nest


def test_a_proof_that_fails_leaves_registers_as_spare_as_they_were(monkeypatch):
    class Folded:
        has_skews, has_folds = False, True

    assert making.NotProvedError("a claim", Folded, Way(spare=2)).plainer == Way(False, False, spare=2)
