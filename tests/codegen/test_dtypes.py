import re
from dataclasses import replace

import numpy as np
import pytest

from polyop.codegen.cpu.weight import vector_width
from polyop.codegen.x86 import emit
from polyop.ir import scalars
from polyop.ir.dtypes import BF16, BOOL, DTYPES, F16, I16, I32, I64, U8, DType
from polyop.ir.expr import Apply
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, WITH_BRAIN, check, compiled, random_array
from tests.codegen.nests import A, ap, ld, loop, nest, st, strip, tensor

I = A("i_c", "i_v")
INTEGER = (
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "max",
    "min",
    "neg",
    "abs",
    "sign",
    "relu",
    "floor",
    "ceil",
    "round",
    "trunc",
    "invert",
    "bitand",
    "bitor",
    "bitxor",
    "shl",
    "shr",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "not",
    "and",
    "or",
    "isnan",
    "isfinite",
    "fma",
)
FLOATING = (
    "add",
    "sub",
    "mul",
    "div",
    "mod",
    "max",
    "min",
    "neg",
    "abs",
    "sign",
    "relu",
    "floor",
    "ceil",
    "round",
    "trunc",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "isnan",
    "isinf",
    "isfinite",
    "fma",
    "sqrt",
    "not",
    "and",
    "or",
)
BOOLEAN = (
    "max",
    "min",
    "and",
    "or",
    "not",
    "invert",
    "bitand",
    "bitor",
    "bitxor",
    "lt",
    "le",
    "gt",
    "ge",
    "eq",
    "ne",
    "add",
    "mul",
)
TO_BOOL = {"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite", "not", "and", "or"}


def edges(t: DType, count: int, seed: int) -> np.ndarray:
    """Random values, and the ones where rules change."""
    rng = np.random.default_rng(seed)
    a = random_array(rng, t, (count,))
    with np.errstate(all="ignore"):
        if t.is_float:
            special = np.array(
                [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-8, 3e4, 7e4, -1e30, 6e-8, 1e-40]
            ).astype(t.numpy)
        elif t.is_integer:
            special = np.array([t.lowest, t.highest, 0, 1, 2, 3, 5, 7, 8, 31, 33, 64 % (t.highest + 1)]).astype(t.numpy)
            special = np.concatenate([special, np.array([-1, -2, -7, -8] if t.kind == "int" else [9]).astype(t.numpy)])
        else:
            special = np.array([True, False])
    a[: len(special)] = rng.permutation(special) if seed % 2 else special
    return a


def functions_of(t: DType):
    return FLOATING if t.is_float else INTEGER if t.is_integer else BOOLEAN


def all_functions(t: DType, vectors: bool):
    i = A("i_c", "i_v") if vectors else A("i")
    buffers = [tensor(x, "N", t=t) for x in "abc"]
    stores = []
    for fn in functions_of(t):
        out = BOOL if fn in TO_BOOL else t
        buffers.append(tensor(f"y_{fn}", "N", t=out))
        args = tuple(ld(x, i, t=t) for x in "abc")[: scalars.ARITY[fn]]
        stores.append(st(ld(f"y_{fn}", i, t=out), Apply(fn, args, out)))
    body = strip("i", 16, "N", *stores) if vectors else loop("i", "N", *stores)
    return nest(buffers, [body])


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("vectors", (True, False), ids=("vectors", "scalars"))
@pytest.mark.parametrize("t", DTYPES.values(), ids=str)
def test_every_simple_function_means_what_its_definition_says(t, vectors, target):
    n = all_functions(t, vectors)
    size = 53
    arrays = {b.name: np.zeros(size, b.dtype.numpy) for b in n.buffers}
    for k, x in enumerate("abc"):
        arrays[x] = edges(t, size, k + 1)
    if t.is_float:  # a * b + c may be rounded once or twice
        arrays["c"] = random_array(np.random.default_rng(9), t, (size,))
    tolerance = {"f16": 2e-3, "bf16": 1e-2, "f32": 1e-6, "f64": 1e-14}.get(t.name)
    check(n, {"N": size}, kernel=compiled(n, target), arrays=arrays, rtol=tolerance, atol=1e-6)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", DTYPES.values(), ids=str)
def test_a_cast_saturates_wraps_and_rounds_as_defined(t, target):
    for vectors in (True, False):
        i = A("i_c", "i_v") if vectors else A("i")
        others = [u for u in DTYPES.values() if u != t]
        stores = [st(ld(f"y_{u}", i, t=u), Apply("cast", (ld("a", i, t=t),), u)) for u in others]
        n = nest(
            [tensor("a", "N", t=t), *(tensor(f"y_{u}", "N", t=u) for u in others)],
            [strip("i", 16, "N", *stores) if vectors else loop("i", "N", *stores)],
        )
        size = 70
        arrays = {b.name: np.zeros(size, b.dtype.numpy) for b in n.buffers}
        a = edges(t, size, 2)
        with np.errstate(all="ignore"):
            if t.is_float:
                a[20:60] = (np.random.default_rng(1).standard_normal(40) * 10.0 ** np.linspace(-9, 25, 40)).astype(t.numpy)
        arrays["a"] = a
        check(n, {"N": size}, kernel=compiled(n, target), arrays=arrays, rtol=1e-12, atol=1e-300)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_beside_the_ends_of_integers_become_what_python_says(source, target):
    t = DTYPES[source]
    integers = [u for u in DTYPES.values() if u.is_integer]
    ends = np.array([e for u in integers for e in (u.lowest, u.highest, u.highest + 1)], t.numpy)
    steps = [x for d in (0.0, -1.5, -0.5, 0.5, 1.5) for x in ends + t.numpy.type(d)]
    given = np.array([*steps, *np.nextafter(ends, t.numpy.type(-np.inf)), *np.nextafter(ends, t.numpy.type(np.inf)),
                      np.inf, -np.inf, np.nan, -0.0], t.numpy)
    i = A("i_c", "i_v")
    n = nest([tensor("a", "N", t=t), *(tensor(f"y_{u}", "N", t=u) for u in integers)],
             [strip("i", 16, "N", *(st(ld(f"y_{u}", i, t=u), Apply("cast", (ld("a", i, t=t),), u)) for u in integers))])
    arrays = {b.name: np.zeros(given.size, b.dtype.numpy) for b in n.buffers}
    arrays["a"] = given
    assert compiled(n, target)({"N": given.size}, {}, arrays, 0, 1) == 0
    for u in integers:
        whole = [0 if np.isnan(x) else int(x) if np.isfinite(x) else 2**70 * int(np.sign(x)) for x in given]
        want = [max(u.lowest, min(u.highest, x)) for x in whole]
        assert arrays[f"y_{u}"].tolist() == want, u


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_vectors_become_integers_whole(target):
    i = A("i_c", "i_v")
    n = nest([tensor("a", "N"), tensor("y", "N", t=DTYPES["i32"])],
             [strip("i", 16, "N", st(ld("y", i, t=DTYPES["i32"]), Apply("cast", (ld("a", i),), DTYPES["i32"])))])
    text = emit(n, target, Options()).text
    assert re.search(r"cvtt\.?ps2dq", text) and "fptosi <" not in text and ".sat." not in text


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_vectors_of_any_width_become_integers_whole(source, target):
    t = DTYPES[source]
    given = np.array([0, 0.9, -0.9, 127.5, -128.5, 255.5, 256, 32768, -32769, 2.0**31 - 128, 2.0**31, -(2.0**31),
                      2.0**33, -(2.0**33), 1e30, -1e30, np.inf, -np.inf, np.nan, -np.nan], t.numpy)
    i = A("i_c", "i_v")
    for name in ("i8", "u8", "i16", "u16", "i32"):  # alone, so that vectors are as wide as both of its dtypes let them be
        u = DTYPES[name]
        n = nest([tensor("a", "N", t=t), tensor("y", "N", t=u)],
                 [strip("i", 16, "N", st(ld("y", i, t=u), Apply("cast", (ld("a", i, t=t),), u)))])
        kernel = compiled(n, target)
        for size in (1, 3, 4, 5, 8, 9, 15, 16, 17, 33):
            arrays = {"a": np.resize(given, size), "y": np.zeros(size, u.numpy)}
            assert kernel({"N": size}, {}, arrays, 0, 1) == 0
            whole = np.nan_to_num(arrays["a"].astype(np.float64), nan=0.0)
            np.testing.assert_array_equal(arrays["y"], np.trunc(np.clip(whole, u.lowest, u.highest)).astype(u.numpy))


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_every_16_bit_float_goes_through_registers_unchanged(target):
    for name in ("f16", "bf16"):
        t = DTYPES[name]
        n = nest(
            [tensor("a", "N", t=t), tensor("y", "N", t=t), tensor("z", "N")],
            [
                strip(
                    "i",
                    16,
                    "N",
                    st(ld("y", A("i_c", "i_v"), t=t), ld("a", A("i_c", "i_v"), t=t)),
                    st(ld("z", A("i_c", "i_v")), Apply("cast", (ld("a", A("i_c", "i_v"), t=t),), DTYPES["f32"])),
                )
            ],
        )
        a = np.arange(65536, dtype=np.uint16).view(t.numpy)
        y, z = np.zeros_like(a), np.zeros(65536, np.float32)
        compiled(n, target)({"N": 65536}, {}, {"a": a, "y": y, "z": z})
        np.testing.assert_array_equal(y.astype(np.float32), a.astype(np.float32))
        np.testing.assert_array_equal(z, a.astype(np.float32))


@pytest.mark.parametrize("target", WITH_BRAIN, ids=lambda t: t.name)
def test_rounding_to_16_bits_is_to_the_nearest_even(target):
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [
            rng.integers(0, 2**32, 60000, dtype=np.uint64).astype(np.uint32).view(np.float32),
            (rng.standard_normal(20000) * 10.0 ** rng.uniform(-9, 5, 20000)).astype(np.float32),
            np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32) * np.float32(1 + 2.0**-11),
        ]
    )
    f32, f64 = DTYPES["f32"], DTYPES["f64"]
    for name in ("f16", "bf16"):
        t = DTYPES[name]
        i = A("i_c", "i_v")
        n = nest(
            [tensor("x", "N"), tensor("w", "N", t=f64), tensor("y", "N", t=t), tensor("z", "N", t=t)],
            [
                strip(
                    "i",
                    16,
                    "N",
                    st(ld("y", i, t=t), Apply("cast", (ld("x", i, t=f32),), t)),
                    st(ld("z", i, t=t), Apply("cast", (ld("w", i, t=f64),), t)),
                )
            ],
        )
        w = x.astype(np.float64) * (1 + 1e-12)
        y, z = np.zeros(len(x), t.numpy), np.zeros(len(x), t.numpy)
        compiled(n, target)({"N": len(x)}, {}, {"x": x, "w": w, "y": y, "z": z})
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(y.astype(np.float32), x.astype(t.numpy).astype(np.float32))
            if name == "f16":
                np.testing.assert_array_equal(z.astype(np.float32), w.astype(np.float16).astype(np.float32))


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", [F16, BF16], ids=str)
def test_a_double_is_rounded_to_16_bits_once(t, target):
    """Half-way between neighbours, denormal ones and the last one among them, and a little to both sides."""
    bits = np.arange(0x7C00 if t == F16 else 0x7F80, dtype=np.uint16)
    low = bits.view(t.numpy).astype(np.float64)
    step = np.append(np.diff(low), low[-1] - low[-2])
    half = low + step / 2  # exact
    x = np.concatenate([half, half * (1 - 2.0**-52), half * (1 + 2.0**-51), low, low + step * 2.0**-40])
    odd = bits & 1
    want = np.concatenate([bits + odd, bits, bits + 1, bits, bits])
    i = A("i_c", "i_v")
    n = nest([tensor("x", "N", t=DTYPES["f64"]), tensor("y", "N", t=t)],
             [strip("i", 16, "N", st(ld("y", i, t=t), Apply("cast", (ld("x", i, t=DTYPES["f64"]),), t)))])
    kernel = compiled(n, target)
    for sign in (1, -1):
        y = np.zeros(len(x), t.numpy)
        assert kernel({"N": len(x)}, {}, {"x": sign * x, "y": y}) == 0
        np.testing.assert_array_equal(y.view(np.uint16) & 0x7FFF, want)
        np.testing.assert_array_equal(y.view(np.uint16) >> 15, sign < 0)


@pytest.mark.parametrize(("t", "bytes_"), [(U8, 1), (I16, 2), (I32, 4), (I64, 8), (F16, 4), (BF16, 4)], ids=str)
def test_vectors_are_as_wide_as_the_widest_thing_that_lanes_meet(t, bytes_):
    e = ap("add", ld("x", I, t=t), ld("x", I, t=t), t=t)
    n = nest([tensor("x", "N", t=t), tensor("y", "N", t=t)], [strip("i", 64, "N", st(ld("y", I, t=t), e))])
    assert vector_width(n, V4) == V4.lanes(bytes_)
    guarded = replace(n, body=(strip("i", 64, "N", st(ld("y", I, t=t), ld("x", I, t=t, guard=(A(I, -1),)))),))
    assert vector_width(guarded, V4) == V4.lanes(max(4, bytes_))
