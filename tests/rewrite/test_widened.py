"""Narrow operands are widened before a product that uses them often: to f32, or to a type that an instruction takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyop
from polyop.ir.dtypes import F16, F32
from polyop.ir.expr import evaluate as value
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.target import target
from polyop.poly.wellformed import check
from polyop.rewrite.copies.widened import COLUMNS, IN_PLACE, LEAST, PAIRED, ROWS, SHARED, find_wide, widened
from polyop.rewrite.regimes.regimes import regime, regimes_of
from polyop.rewrite.sums.zeros import multiplied_out
from polyop.runtime.loans import everyday
from tests.rewrite.ops import assert_same, op

V4, V3, V2 = (target(f"x86:x86-64-{v}") for v in ("v4", "v3", "v2"))
VNNI = replace(V4, name="vnni", features="+avx512vnni")
BRAIN = replace(V4, name="brain", features="+avx512bf16")
SLOW = replace(BRAIN, name="slow", slow=frozenset({"vdpbf16ps"}))
PRODUCT = "op f(A: f16[M, K], B: f16[K, N]) -> (C: f16[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
TEXTS = {
    "product": PRODUCT,
    "turned": "op f(A: f16[K, M], B: f16[N, K]) -> (C: f32[M, N]) { C[m, n] += f32(B[n, k]) * f32(A[k, m]) }",
    "two sorts": "op f(A: bf16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * f32(B[k, n]) }",
    "itself": "op f(A: f16[M, K]) -> (C: f32[M, M]) { C[m, n] += f32(A[m, k]) * f32(A[n, k]) }",
    "batches": "op f(A: f16[B, M, K], W: f16[K, N]) -> (C: f16[B, M, N]) { C[b, m, n] += A[b, m, k] * W[k, n] }",
    "border": """op f(X: f16[H, Q], W: f16[3, Q, N]) -> (C: f32[H, N]) {
        C[p, n] += f32((X[p + r - 1, q] else 0)) * f32(W[r, q, n])  where p in 0:H }""",
    "border of any type": """op f(X: bf16[H, Q], W: bf16[3, Q, N]) -> (C: bf16[H, N]) {
        C[p, n] += (X[p + r - 1, q] else 0) * W[r, q, n]  where p in 0:H }""",
    "bytes": "op f(A: u8[M, K], B: i8[N, K]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * f32(B[n, k]) }",
    "weights": "op f(A: bf16[M, K], B: i8[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "scaled": """op f(A: bf16[M, K], B: i8[N, K], s: f32[N]) -> (C: f32[M, N]) {
        C[m, n] += f32(A[m, k]) * (f32(B[n, k]) * s[n]) }""",
    "two layers": """op f(A: bf16[M, K], B: i8[K, L], D: i8[L, N]) -> (E: f32[M, N]) {
        C[m, l] += f32(A[m, k]) * f32(B[k, l]); c[m, l] = bf16(C[m, l]); E[m, n] += f32(c[m, l]) * f32(D[l, n]) }""",
    "used again": """op f(A: f16[M, K], B: f16[K, N], s: f32[N]) -> (Y: f32[M, N]) {
        C[m, n] += f32(A[m, k]) * f32(B[k, n])
        Y[m, n] = C[m, n] * s[n] }""",
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_sum_is_that_of_the_text(name):
    o = op(TEXTS[name])
    given = [t.name for t in o.inputs]
    both = tuple(y.source for x in find_wide(o) for y in (x.left, x.right) if y.source in given)
    to = "f32" if any(t.dtype == F16 for t in o.inputs) or name == "border of any type" else "bf16"
    for operands in (both[:1], both[1:2], tuple(dict.fromkeys(both))):
        made = widened(o, tuple((n, to) for n in operands if o.tensor(n).dtype.name != to))
        check(made)
        for sizes in (dict.fromkeys(o.sizes, 3), {n: 1 + k for k, n in enumerate(o.sizes)}, dict.fromkeys(o.sizes, 0)):
            rng = np.random.default_rng(len(operands))
            arrays = {t.name: rng.integers(-9, 9, [value(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
            want, got = (evaluate(y, sizes, {}, arrays) for y in (o, made))
            for n, y in want.items():
                np.testing.assert_array_equal(got[n], y)


def test_widened_operands_stand_before_the_sum():
    assert [str(s).split("  where")[0] for s in widened(op(PRODUCT), (("A", "f32"),)).steps][:2] == [
        "A_wide[A_0, A_1] = f32(A[A_0, A_1])", "C_sum[m, n] += (A_wide[m, k] * f32(B[k, n]))"]
    assert [str(s).split("  where")[0] for s in widened(op(TEXTS["scaled"]), (("B", "bf16"),)).steps] == [
        "B_wide[B_0, B_1] = bf16(B[B_0, B_1])", "C_sum[m, n] += (f32(A[m, k]) * f32(B_wide[n, k]))",
        "C[m, n] = (C_sum[m, n] * s[n])"]
    assert widened(op(PRODUCT), ()) == op(PRODUCT)


@pytest.mark.parametrize("text", [
    "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",           # wide
    "op f(A: f16[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * B[k, n] }",
    "op f(A: bf16[M, K], B: i32[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * f32(B[k, n]) }",  # more numbers than f32 has
    "op f(A: i8[M, K], B: i8[K, N]) -> (C: i64[M, N]) { C[m, n] += i64(A[m, k]) * i64(B[k, n]) }",  # nothing adds up to i64
    "op f(A: i8[M, K], B: u16[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }",  # more numbers than i16 has
    "op f(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m, n] max= f32(A[m, k]) * f32(B[k, n]) }",  # no sum
    "op f(A: f16[M, N], B: f16[M, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, n]) * f32(B[m, n]) }",  # nothing is used again
])
def test_other_sums_stay(text):
    assert find_wide(op(text)) == ()


def options(text: str, t=V4, numerics: str = "fast", **sizes: int) -> Options:
    o = op(text)
    return regime(regimes_of(o), sizes, Options(numerics=numerics), t)


def test_which_calls_widen():
    assert options(PRODUCT, M=ROWS, N=LEAST, K=10).widened == (("A", "f32"), ("B", "f32"))
    assert options(PRODUCT, M=ROWS - 1, N=LEAST, K=10).widened == (("A", "f32"),)
    assert options(PRODUCT, M=2, N=LEAST, K=10).widened == (("A", "f32"),)
    assert options(PRODUCT, M=1, N=1000, K=10).widened == () == options(PRODUCT, M=1000, N=LEAST - 1, K=10).widened
    brain = PRODUCT.replace("f16", "bf16")
    assert options(brain, BRAIN, M=500, N=500, K=500).widened == ()
    assert options(brain, V4, M=500, N=500, K=500).widened == (("A", "f32"), ("B", "f32"))
    assert options(brain, SLOW, M=500, N=500, K=500).widened == (("A", "f32"), ("B", "f32"))
    two = """op f(A: f16[M, K], B: f16[K, L], D: f16[L, N]) -> (E: f32[M, N]) {
        C[m, l] += f32(A[m, k]) * f32(B[k, l]); E[m, n] += C[m, l] * f32(D[l, n]) }"""
    assert options(two, V4, M=500, N=500, K=500, L=500).widened == ()
    asked = replace(Options(), widened=(("A", "f32"),))
    assert everyday(asked, Options()).widened == ()


def test_bytes_become_what_an_instruction_takes():
    many = {"M": SHARED, "N": SHARED, "K": 10, "L": SHARED}
    for name in ("weights", "scaled"):
        assert options(TEXTS[name], BRAIN, **many).widened == (("B", "bf16"),)
        assert options(TEXTS[name], BRAIN, **many | {"M": SHARED - 1}).widened == ()
    assert options(TEXTS["weights"], V4, **many).widened == (("A", "f32"),) and options(TEXTS["scaled"], V4, **many).widened == ()
    assert options(TEXTS["bytes"], BRAIN, **many).widened == (("A", "bf16"), ("B", "bf16"))
    assert options(TEXTS["two layers"], BRAIN, **many).widened == (("B", "bf16"), ("D", "bf16"))
    assert options(TEXTS["scaled"], BRAIN, "strict", **many).widened == ()
    assert options(TEXTS["weights"].replace("i8", "i16"), BRAIN, **many).widened == ()  # bf16 has not all of them


HEAD = "op f(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) "
BYTES = {
    "bytes": HEAD + "{ C[m, n] += i32(A[m, k]) * i32(B[k, n]) }",
    "lies across": "op f(A: i8[K, M], B: i8[N, K]) -> (C: i32[M, N]) { C[m, n] += i32(A[k, m]) * i32(B[n, k]) }",
    "bytes and words": "op f(A: i16[M, K], B: u8[K, N]) -> (C: u32[M, N]) { C[m, n] += u32(A[m, k]) * u32(B[k, n]) }",
    "zero points": HEAD[:-1].replace("]) ->", "]; a: i32, b: i32) ->")
                   + "{ C[m, n] += (i32(A[m, k]) - a) * (i32(B[k, n]) - b) }",
    "rounded": """op f(X: f32[M, K], B: i8[K, N], s: f32[N]) -> (Y: f32[M, N]) {
        A[m, k] = i8(round(X[m, k])); C[m, n] += i32(A[m, k]) * i32(B[k, n]); Y[m, n] = f32(C[m, n]) * s[n] }""",
    "windows": """op f(X: u8[B, L, C], F: i8[K, 3, C]) -> (Y: i32[B, L - 2, K]) where L >= 2 {
        Y[b, p, k] += i32(X[b, p + r, c]) * i32(F[k, r, c]) }""",
    "images": """op f(X: i8[B, H, C], F: i8[3, C, K]) -> (Y: i8[B, H, K]) {
        T[b, p, k] += i32((X[b, p + r - 1, c] else 0)) * i32(F[r, c, k])  where p in 0:H
        Y[b, p, k] = i8(max(-128, min(127, T[b, p, k] >> 5))) }""",
}
OPERANDS = {"bytes": ("A", "B"), "lies across": ("A", "B"), "bytes and words": ("B",), "zero points": ("A", "B"),
            "rounded": ("A", "B"), "windows": ("X", "F"), "images": ("X", "F")}


@pytest.mark.parametrize("name", BYTES)
def test_bytes_become_words_where_the_target_multiplies_pairs_of_these(name):
    o, found = op(BYTES[name]), tuple((x, "i16") for x in OPERANDS[name])
    sizes = dict.fromkeys(o.sizes, SHARED)
    got = {t.name: sorted(regime(regimes_of(o), sizes, Options(), t).widened) for t in (V4, V3, V2, VNNI)}
    assert got == {V4.name: sorted(found), V3.name: sorted(found), V2.name: [],
                   VNNI.name: sorted(found) if name == "bytes and words" else []}
    made = widened(multiplied_out(o), found)
    check(made)
    assert sum("_wide" in str(s.expr) for s in made.steps) == 1
    for sizes in (dict.fromkeys(o.sizes, 3), {n: 1 + k for k, n in enumerate(o.sizes)}, dict.fromkeys(o.sizes, 2)):
        assert_same(o, made, sizes)


def test_a_few_rows_stay_bytes_where_little_would_be_used_again():
    def asked(name: str, **sizes: int) -> bool:
        return bool(options(BYTES[name], V3, **({"M": SHARED, "N": SHARED, "K": SHARED} | sizes)).widened)

    assert asked("bytes", M=PAIRED) and asked("bytes", N=COLUMNS)
    assert not asked("bytes", M=PAIRED - 1) and not asked("bytes", N=COLUMNS - 1)
    assert asked("lies across", M=IN_PLACE) and not asked("lies across", M=IN_PLACE - 1)  # these are dot products in place


def test_bytes_that_a_recurrence_makes_stay():
    text = """op f(W: i8[K, K]; T: int) -> (Z: i32[T, K]) {
        q[t, k] = i8((Z[t - 1, k] else 1) >> 4)
        Z[t, n] += i32(q[t, k]) * i32(W[k, n])  where t in 0:T }"""
    assert [(x.left.source, x.right.source) for x in find_wide(op(text))] == []


@pytest.mark.parametrize("name", BYTES)
def test_calls_with_bytes_alone_get_it_right(name):
    o, f, rng = op(BYTES[name]), polyop.op(BYTES[name]), np.random.default_rng(4)
    for sizes in ({"M": 17, "K": 33, "N": 19, "B": 2, "L": 11, "H": 9, "C": 17},
                  {"M": 9, "K": 7, "N": 70, "B": 1, "L": 30, "H": 21, "C": 5}):
        shapes = {t.name: [value(e, sizes) for e in t.shape] for t in o.inputs}
        arrays = {t.name: rng.integers(max(-128, t.dtype.lowest), min(127, t.dtype.highest), shapes[t.name], endpoint=True)
                  .astype(t.dtype.numpy) for t in o.inputs}
        scalars = {p.name: 3 + k for k, p in enumerate(o.params)}
        want = evaluate(o, {n: sizes[n] for n in o.sizes}, scalars, arrays)
        for _ in range(3):  # the second one may have a kernel of its own
            got = f(*arrays.values(), **scalars)
            np.testing.assert_array_equal(got, *want.values())


@pytest.mark.parametrize("name,m,k,n", [("weights", 16, 33, 17), ("scaled", 17, 1, 33), ("bytes", 31, 65, 16)])
def test_calls_with_bytes_get_it_right(name, m, k, n):
    o, f = op(TEXTS[name]), polyop.op(TEXTS[name])
    rng, sizes = np.random.default_rng(m), {"M": m, "K": k, "N": n}
    arrays = [rng.integers(0, 200, [value(e, sizes) for e in t.shape]).astype(np.uint8).view(np.int8).astype(t.dtype.numpy)
              if t.dtype != F32 else rng.integers(-3, 4, n).astype(np.float32) for t in o.inputs]
    a, b, *scales = (x.astype(np.float64) for x in arrays)
    want = (a @ (b if name == "weights" else b.T)) * (scales[0] if scales else 1)
    for _ in range(4):  # the second one may have a kernel of its own
        np.testing.assert_array_equal(f(*arrays).astype(np.float64), want)


@pytest.mark.parametrize("m,k,n", [(ROWS, 33, LEAST), (200, 64, 100), (65, 17, 70), (193, 1, 65)])
@pytest.mark.parametrize("name", ["product", "turned", "two sorts", "itself"])
def test_calls_get_it_right(name, m, k, n):
    o, f = op(TEXTS[name]), polyop.op(TEXTS[name])
    rng = np.random.default_rng(m)
    sizes = {"M": m, "K": k, "N": n}
    arrays = {t.name: rng.integers(-4, 5, [value(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in o.inputs}
    a, b = (x.astype(np.float64) for x in (arrays["A"], arrays.get("B", arrays["A"].T)))
    want = (a.T @ b.T) if name == "turned" else a @ b
    np.testing.assert_array_equal(f(*arrays.values()).astype(np.float64), want)
