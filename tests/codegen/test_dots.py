"""Sums of narrow products through dot-product instructions: exact at every boundary, and only where the target has them."""

import ctypes
import mmap
import re
from dataclasses import replace
from functools import cache

import ml_dtypes
import numpy as np
import pytest

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dots import dot
from polyop.ir.dtypes import BF16, DTYPES, F32, I8, I16, I32, I64, U8, U32
from polyop.ir.options import Options
from polyop.ir.registers import register_tile
from polyop.ir.span import Source
from polyop.ir.target import Target
from polyop.runtime import cpu
from polyop.runtime.layout import contiguous
from tests.codegen.harness import FEATURES, V2, V3, V4, load, parsed

VNNI = replace(V4, name="vnni", features="+avx512vnni,+avx512bf16")
SHORT = replace(V3, name="avxvnni", features="+avxvnni")
FORMS = {"NN": ("M, K", "K, N"), "NT": ("M, K", "N, K"), "TN": ("K, M", "K, N"), "TT": ("K, M", "N, K")}
PAIRS = [("i8", "i8"), ("u8", "i8"), ("i8", "u8"), ("u8", "u8"), ("i16", "i16")]
NEEDS = {"vnni": ("avx512vl", "avx512vnni", "avx512bf16"), "avxvnni": ("avx2", "avxvnni"), V4.name: ("avx512vl", "avx512bw"),
         V3.name: ("avx2",)}


def runs(t: Target) -> bool:
    return all(FEATURES.get(f) for f in NEEDS[t.name])


def only_where_it_runs(t: Target) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not runs(t), reason=f"this machine runs no code for {t.name}")


on_vnni, on_pairs = only_where_it_runs(VNNI), only_where_it_runs(V3)
CASES = [(VNNI, "i8", "i8", f) for f in FORMS] + [(VNNI, *p, f) for p, f in zip(PAIRS[1:], ("NN", "NT", "TT", "TN"), strict=True)]
CASES += [(SHORT, "i8", "i8", "NN"), (SHORT, "u8", "i8", "NT"), *((V3, "i16", "i16", f) for f in FORMS), (V4, "i16", "i16", "NN")]
PLAIN = [(V4, "i8", "i8", "NN"), (V3, "u8", "i8", "NT")]
RUN = [pytest.param(*c, id=f"{c[0].name}-{'-'.join(c[1:])}", marks=only_where_it_runs(c[0])) for c in (*CASES, *PLAIN)]


@cache
def product(t: Target, left: str, right: str, form: str = "NN", total: str = "i32", options: Options | None = None) -> Compiled:
    a, b = FORMS[form]
    text = (f"op f(A: {left}[{a}], B: {right}[{b}]) -> (C: {total}[M, N]) "
            f"{{ C[m, n] += {total}(A[{a.lower()}]) * {total}(B[{b.lower()}]) }}")
    op = instantiate(parse(Source("<test>", text)), "f")
    made = compile_op(op, contiguous(op), t, options or Options())
    assert all(p.holds for p in made.proofs) and made.rung == "tuned"
    return made


def test_few_rows_go_through_instructions_where_these_take_many_steps_for_all_of_them():
    few = {(left, rows): "vpdp" in product(VNNI, left, left, "NN", options=Options(rows=rows)).module.text
           for left in ("i8", "i16") for rows in (1, 4, 8)}
    assert few == {("i8", 1): False, ("i8", 4): True, ("i8", 8): True, ("i16", 1): False, ("i16", 4): False, ("i16", 8): True}


@cache
def kernel(t: Target, *which: str):
    return load(product(t, *which).module, t)


def extremes(rng: np.random.Generator, dtype: str, shape: tuple[int, int], only: bool) -> np.ndarray:
    t = DTYPES[dtype]
    ends = int(t.lowest), int(t.highest)
    return (rng.choice(ends, shape) if only else rng.integers(*ends, shape, endpoint=True)).astype(t.numpy)


def called(t: Target, a: np.ndarray, b: np.ndarray, left: str, right: str, form: str, total: str = "i32") -> np.ndarray:
    (m, k), n = a.shape, b.shape[1]
    c = np.full((m, n), 77, DTYPES[total].numpy)
    a, b = (x if f == "N" else np.ascontiguousarray(x.T) for x, f in zip((a, b), form, strict=True))
    arrays = {"A": a, "B": b, "C": c}
    kernel(t, left, right, form, total)({"M": m, "N": n, "K": k}, {}, arrays)
    return c


@pytest.mark.parametrize(("target", "left", "right", "form"), RUN)
def test_sums_of_integers_are_exact_at_every_boundary(target, left, right, form):
    rng = np.random.default_rng(3)
    edges = [1, 2, 7, 12, 13, 14, 15, 16, 17, 31, 33, 64]
    shapes = [(m, n, k) for k in (*range(1, 10), 63, 64, 67) for m, n in rng.choice(edges, (4, 2))]
    for at, (m, n, k) in enumerate([*shapes, (13, 33, 1030), (29, 530, 2051)]):
        a, b = (extremes(rng, x, s, at % 2 == 0) for x, s in ((left, (m, k)), (right, (k, n))))
        want = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
        np.testing.assert_array_equal(called(target, a, b, left, right, form), want, f"{m} x {n} x {k}")


@on_vnni
@pytest.mark.parametrize(("low", "high"), [(-128, -128), (-128, 127), (127, 127)])
def test_sums_do_not_saturate(low, high):
    a, b = np.full((3, 4099), low, np.int8), np.full((4099, 40), high, np.int8)
    want = np.full((3, 40), 4099 * low * high, np.int32)
    np.testing.assert_array_equal(called(VNNI, a, b, "i8", "i8", "NN"), want)


@on_vnni
def test_sums_wrap_around_as_those_of_i32_do():
    a, b = np.full((2, 140_000), 255, np.uint8), np.full((140_000, 17), 127, np.int8)
    want = np.full((2, 17), 140_000 * 255 * 127, np.int64).astype(np.int32)
    np.testing.assert_array_equal(called(VNNI, a, b, "u8", "i8", "NN"), want)


@on_vnni
@pytest.mark.parametrize("form", ["NN", "TT"])
def test_bf16_sums_are_within_the_rounding_of_f32(form):
    rng = np.random.default_rng(0)
    for m, n, k in ((1, 1, 1), (2, 17, 3), (15, 33, 64), (16, 70, 131), (29, 40, 1031)):
        a, b = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
        wide = a.astype(np.float64), b.astype(np.float64)
        bound = k * 2.0**-23 * (np.abs(wide[0]) @ np.abs(wide[1])) + 1e-30
        assert (np.abs(called(VNNI, a, b, "bf16", "bf16", form, "f32") - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.parametrize(("target", "type_"), [pytest.param(VNNI, "i8", marks=on_vnni), pytest.param(V3, "i16", marks=on_pairs)])
@pytest.mark.parametrize("form", ["NN", "NT"])
@pytest.mark.parametrize("k", [3, 5, 63, 66])
def test_nothing_behind_the_last_row_is_read(target, type_, form, k):
    m, n = 13, 35
    rng = np.random.default_rng(1)
    a, b = (at_the_end_of_a_page(extremes(rng, type_, s, False)) for s in ((m, k), (k, n) if form == "NN" else (n, k)))
    c = np.zeros((m, n), np.int32)
    kernel(target, type_, type_, form, "i32")({"M": m, "N": n, "K": k}, {}, {"A": a, "B": b, "C": c})
    np.testing.assert_array_equal(c, a.astype(np.int32) @ (b if form == "NN" else b.T).astype(np.int32))


def at_the_end_of_a_page(x: np.ndarray) -> np.ndarray:
    """`x` in memory behind which nothing may be read."""
    pages = -(-x.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, pages + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + pages), mmap.PAGESIZE, 0) == 0
    there = np.frombuffer(memory, x.dtype, x.size, pages - x.nbytes).reshape(x.shape)
    there[...] = x
    return there


@on_pairs
@pytest.mark.parametrize("k", [1, 2, 3, 7, 140_001])
def test_pairs_of_the_least_word_wrap_around_as_sums_do(k):
    a, b = np.full((7, k), -(1 << 15), np.int16), np.full((k, 17), -(1 << 15), np.int16)
    want = np.full((7, 17), k << 30, np.int64).astype(np.int32)
    np.testing.assert_array_equal(called(V3, a, b, "i16", "i16", "NN"), want)


@pytest.mark.parametrize(("target", "left", "right", "form"), CASES)
def test_the_text_has_the_instruction_where_the_target_has_it(target, left, right, form):
    pairs = {V3.name: "avx2.pmadd.wd", V4.name: "avx512.pmaddw.d.512"}
    found = pairs.get(target.name, f"avx512.{'vpdpwssd' if left == 'i16' else 'vpdpbusd'}.{target.vector_bytes * 8}")
    assert f"@llvm.x86.{found}(" in product(target, left, right, form).module.text


@pytest.mark.parametrize(("target", "left", "called"), [
    (SHORT, "u8", "vpdpbusd"), (V3, "i16", "vpmaddwd"), (V4, "i16", "vpmaddwd")], ids=["avxvnni", "avx2", "avx512bw"])
def test_the_machine_code_has_it_on_whole_vectors_which_are_sums_of_their_own(target, left, called):
    made = product(target, left, left.replace("u", "i"))
    code = parsed(made.module, target)[1].emit_assembly(parsed(made.module, target)[0])
    found = re.findall(rf"\t{called}\t.*, (%[yz]mm\d+)", code)
    assert {x[1] for x in found} == {"y" if target.vector_bytes == 32 else "z"} and "vpmulld" not in code.split(f"\t{called}")[1]


def test_a_tile_of_pairs_leaves_a_register_for_what_is_added():
    pairs = dot(V3, 32, I32, I16, I16, False)
    assert register_tile(V3, 8, d=pairs) == (6, 2)
    assert register_tile(V3, 8, rows=8, d=pairs) == (4, 2)  # no sum waits for itself: twice four rows are no fewer at a time


@pytest.mark.parametrize(("target", "left"), [(V4, "i8"), (V3, "i8"), (V2, "i16")], ids=lambda x: getattr(x, "name", x))
def test_a_target_without_it_multiplies_in_32_bits(target, left):
    made = product(target, left, left)
    assert "vpdp" not in made.module.text and "pmadd" not in made.module.text and "k_f" not in str(made.nest)


def test_brains_are_rounded_by_the_instruction_only_where_numerics_are_fast():
    assert "dpbf16ps.512" in product(VNNI, "bf16", "bf16", "NN", "f32").module.text
    assert "dpbf16ps" not in product(VNNI, "bf16", "bf16", "NN", "f32", Options(numerics="strict")).module.text


def test_what_an_instruction_adds_up_and_in_which_order():
    def of(left, right, total=I32, t=VNNI, strict=False):
        found = dot(t, t.vector_bytes, total, left, right, strict)
        return found and (found.instruction.name, found.swapped, found.flipped)

    assert of(U8, I8) == ("vpdpbusd", False, "") and of(I8, U8) == ("vpdpbusd", True, "")
    assert of(I8, I8) == ("vpdpbusd", False, "left") and of(U8, U8, U32) == ("vpdpbusd", True, "left")
    assert of(I16, I16) == ("vpdpwssd", False, "") and of(BF16, BF16, F32) == ("vdpbf16ps", False, "")
    assert of(I8, I8, I64) is None and of(I8, I16) is None and of(F32, F32, F32) is None
    assert of(I16, I16, t=V3) == of(I16, I16, t=V4) == ("vpmaddwd", False, "") and of(I16, I16, t=V2) is None
    both = replace(V4, name="both", features="+avx512bw,+avx512vnni")
    assert of(I16, I16, t=both) == ("vpdpwssd", False, "") and of(I8, I8, t=V3) is None
    assert of(I8, I8, t=V4) is None and of(BF16, BF16, F32, strict=True) is None and of(BF16, BF16, F32, t=SHORT) is None


@on_vnni
@pytest.mark.parametrize(("byte", "text", "form"), [
    ("i8", "(i32(A[m, k]) + 128) * i32(B[k, n])", "left"), ("i8", "i32(A[m, k]) * (i32(B[k, n]) + 128)", "right"),
    ("u8", "(i32(A[m, k]) - 128) * i32(B[k, n])", "left"), ("u8", "i32(A[m, k]) * (i32(B[k, n]) - 128)", "right")])
def test_a_byte_that_the_text_raises_has_its_top_bit_flipped_and_nothing_is_taken_off(byte, text, form):
    whole = f"op f(A: {byte}[M, K], B: {byte}[K, N]) -> (C: i32[M, N]) {{ C[m, n] += {text} }}"
    op = instantiate(parse(Source("<test>", whole)), "f")
    made = compile_op(op, contiguous(op), VNNI, Options())
    assert all(p.holds for p in made.proofs) and "vpdpbusd" in made.module.text
    rng, up = np.random.default_rng(5), 128 if byte == "i8" else -128
    for m, n, k in ((13, 33, 67), (29, 65, 1031), (1, 16, 3)):
        a, b = extremes(rng, byte, (m, k), False), extremes(rng, byte, (k, n), False)
        c = np.full((m, n), 77, np.int32)
        load(made.module, VNNI)({"M": m, "N": n, "K": k}, {}, {"A": a, "B": b, "C": c})
        wide = a.astype(np.int32) + up * (form == "left"), b.astype(np.int32) + up * (form == "right")
        np.testing.assert_array_equal(c, wide[0] @ wide[1])


def test_a_condition_on_some_steps_of_a_lane_keeps_the_plain_products():
    text = "op f(A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) where k <= m }"
    op = instantiate(parse(Source("<test>", text)), "f")
    made = compile_op(op, contiguous(op), VNNI, Options())
    assert all(p.holds for p in made.proofs) and "vpdp" not in made.module.text


def test_a_few_steps_known_beforehand_are_no_dot_product():
    text = "op f(A: i8[M, 3], B: i8[3, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }"
    op = instantiate(parse(Source("<test>", text)), "f")
    assert "vpdp" not in compile_op(op, contiguous(op), VNNI, Options()).module.text


@pytest.mark.parametrize("k", (0, 1, 4, 7, 9))
def test_few_steps_or_none_are_summed_by_an_operator_too(k):
    f = polyop.op("op f(A: i8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }")
    rng = np.random.default_rng(k)
    for m, n in ((1, 16), (3, 17), (5, 33), (7, 64), (13, 5)):
        a, b = extremes(rng, "i8", (m, k), False), extremes(rng, "i8", (k, n), False)
        np.testing.assert_array_equal(f(a, b), a.astype(np.int32) @ b.astype(np.int32))


def test_this_machine_uses_the_instruction_that_it_has():
    host = cpu.resolve("x86")
    has = host.has("avx512vnni") if host.vector_bytes == 64 else host.has("avxvnni")
    text = product(host, "u8", "i8").module.text
    assert "tdpbusd" in text if host.has("amx-int8") else ("vpdpbusd" in text) == has
    if not has and host.has("avx2"):
        assert "pmadd" in product(host, "i16", "i16").module.text


@pytest.mark.parametrize(("left", "right", "form"), [
    ("u8", "i8", "NN"), ("i8", "i8", "NT"), ("u8", "u8", "TT"), ("i16", "i8", "NN"), ("u8", "i16", "TN")])
def test_an_operator_is_exact_at_every_boundary(left, right, form):
    a, b = FORMS[form]
    f = polyop.op(f"op f(A: {left}[{a}], B: {right}[{b}]) -> (C: i32[M, N]) "
                  f"{{ C[m, n] += i32(A[{a.lower()}]) * i32(B[{b.lower()}]) }}")
    rng = np.random.default_rng(7)
    sides = [1, 5, 7, 8, 9, 15, 16, 17, 33]
    for at, k in enumerate((1, 2, 3, 4, 15, 33, 64, 301)):
        for m, n in rng.choice(sides, (3, 2)):
            x, y = (extremes(rng, t, s, at % 2 == 0) for t, s in ((left, (m, k)), (right, (k, n))))
            want = (x.astype(np.int64) @ y.astype(np.int64)).astype(np.int32)
            stored = [np.ascontiguousarray(z.T) if c == "T" else z for z, c in zip((x, y), form, strict=True)]
            for _ in range(2):  # the second one has a kernel of its own
                np.testing.assert_array_equal(f(*stored), want, f"{m} x {n} x {k}")


@pytest.mark.parametrize("sizes", [(1, 1, 32), (4, 4, 64), (5, 3, 32), (9, 7, 4096), (33, 18, 96)])
def test_lanes_along_the_sum_take_pairs_of_both_operands(sizes):
    """{ C[m, n] += A[m, k] B[n, k] } with lanes along k; sums of small integers are exact."""
    text = "op f(A: bf16[M, K], B: bf16[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }"
    o = instantiate(parse(Source("<test>", text)), "f")
    made = compile_op(o, contiguous(o), VNNI, Options(dots=4, multiples=(("K", 32),)))
    products = re.findall(r"call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512", made.module.text)
    assert len(products) >= 16 and "fmul" not in made.module.text
    if not runs(VNNI):
        pytest.skip(f"this machine runs no code for {VNNI.name}")
    m, n, k = sizes
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-8, 8, shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    f = polyop.op(text, options=Options(special=False, dots=4, multiples=(("K", 32),)))
    np.testing.assert_array_equal(f(a, b), a.astype(np.float64) @ b.astype(np.float64).T)
