import ctypes

import mpmath as mp
import numpy as np
import pytest

from polyop.codegen.cpu.weight import INSTRUCTIONS
from polyop.codegen.llvm.types import constant, known
from polyop.codegen.vecmath.table import FLOAT
from polyop.codegen.x86 import emit
from polyop.ir import scalars
from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, DType
from polyop.ir.expr import Const
from polyop.ir.options import Options
from tests.codegen.harness import BRAIN, RUNNABLE, V3, V4, WITH_BRAIN, assembly, compiled
from tests.codegen.nests import A, ap, ld, nest, st, strip, tensor

BOUNDS = {
    "exp": 1.5,
    "exp2": 1.5,
    "expm1": 2.5,
    "sinh": 2.5,
    "cosh": 2.0,
    "tanh": 2.5,
    "sigmoid": 2.5,
    "silu": 2.5,
    "log": 1.0,
    "log2": 1.0,
    "log1p": 1.5,
    "softplus": 3.0,
    "sin": 2.5,
    "cos": 2.5,
    "tan": 4.0,
    "asin": 2.5,
    "acos": 2.0,
    "atan": 2.0,
    "erf": 2.5,
    "gelu": 4.5,
    "rsqrt": 1.5,
    "pow": 1.5,
    "atan2": 3.0,
    "mod": 0.0,
    "nextafter": 0.0,
}
UNDERFLOW = 0x10  # FE_UNDERFLOW of <fenv.h> on x86
WITHOUT_FMA = {("gelu", "f64"): 5.5}
SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    1e-30,
    -1e-30,
    1e-45,
    5e-324,
    88.7,
    -87.4,
    -100.0,
    709.7,
    -740.0,
    1e30,
    -1e30,
    3e38,
    1e300,
    -1e300,
    1048575.9,
    1048576.1,
    1e-310,
    -1e-40,
]
RANGE = {"exp": 90, "exp2": 130, "expm1": 60, "sin": 1e4, "cos": 1e4, "tan": 1e4, "asin": 1, "acos": 1}


def inputs(fn: str, t: DType, count: int = 20000) -> np.ndarray:
    rng = np.random.default_rng(3)
    scale = RANGE.get(fn, 10) * (8 if t == F64 and fn in ("exp", "exp2") else 1)
    spread = 10.0 ** rng.uniform(-30, 38 if fn not in ("asin", "acos") else 0, count) * rng.choice([-1, 1], count)
    x = np.concatenate([rng.uniform(-scale, scale, count), rng.standard_normal(count), spread, SPECIAL])
    with np.errstate(all="ignore"):
        return x.astype(t.numpy)


def unary(fn: str, t: DType):
    e = ap(fn, ld("x", A("i_c", "i_v"), t=t), t=t)
    return nest([tensor("x", "N", t=t), tensor("y", "N", t=t)], [strip("i", 16, "N", st(ld("y", A("i_c", "i_v"), t=t), e))])


def ulps(got: np.ndarray, want: np.ndarray, t: DType) -> np.ndarray:
    """Distance in units of the last place of the wanted value, both rounded as `t` is."""
    with np.errstate(all="ignore"):
        unit = np.spacing(np.abs(want.astype(t.numpy))).astype(np.longdouble)
        d = np.abs(got.astype(np.longdouble) - want) / unit
        rounded = want.astype(t.numpy)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    return np.where(same, 0, d)


def worst(got: np.ndarray, want: np.ndarray, t: DType) -> tuple[int, float]:
    off = ulps(got, want, t)
    off = np.where(np.isnan(off), np.inf, off)
    at = int(np.argmax(off))
    return at, float(off[at])


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
@pytest.mark.parametrize("fn", [n for n in sorted(FLOAT) if scalars.ARITY[n] == 1])
def test_a_function_keeps_its_stated_bound(fn, t, target):
    x = inputs(fn, t, 700 if fn in EXACT else 20000)
    y = np.zeros_like(x)
    compiled(unary(fn, t), target)({"N": len(x)}, {}, {"x": x, "y": y})
    want = reference(fn, x)
    at, off = worst(y, want, t)
    bound = BOUNDS[fn] if target.vector_bytes >= 32 else WITHOUT_FMA.get((fn, t.name), BOUNDS[fn])
    assert off <= bound, f"{fn}({x[at]!r}) = {y[at]!r}, wanted {want[at]!r}: {off} ulp"


@pytest.mark.parametrize("target", WITH_BRAIN, ids=lambda t: t.name)
@pytest.mark.parametrize("t", (F16, BF16), ids=str)
@pytest.mark.parametrize("fn", [n for n in sorted(FLOAT) if scalars.ARITY[n] == 1])
def test_a_function_of_16_bits_is_right_to_two_thirds_of_the_last_place_for_all_numbers(fn, t, target):
    x = np.arange(0, 65536, 5 if fn in EXACT else 1, dtype=np.uint16).view(t.numpy)
    y = np.zeros_like(x)
    compiled(unary(fn, t), target)({"N": len(x)}, {}, {"x": x, "y": y})
    with np.errstate(all="ignore"):
        want = reference(fn, x.astype(np.float64))
        digits, least = (8, -133) if t == BF16 else (11, -24)
        unit = np.maximum(2.0 ** (np.floor(np.log2(np.abs(want))) - digits + 1), np.longdouble(2.0) ** least)
        rounded = want.astype(t.numpy)
        off = np.abs(y.astype(np.longdouble) - want) / unit
        same = (y == rounded) | (np.isnan(y) & np.isnan(rounded))
    off = np.where(same, 0, np.where(np.isnan(off), np.inf, off))
    at = int(np.argmax(off))
    assert off[at] <= 2 / 3, f"{fn}({x[at]!r}) = {y[at]!r}, wanted {want[at]!r}: {off[at]} of the last place"


@pytest.mark.parametrize("t", (F16, BF16), ids=str)
def test_16_bits_are_found_without_division_unless_numerics_are_strict(t):
    n = unary("sigmoid", t)
    assert "vrcp14ps" in assembly(n, V4) and "vdivps" not in assembly(n, V4)
    assert "vdivps" in assembly(n, V4, "strict") and "vrcp14ps" not in assembly(n, V4, "strict")


def test_what_follows_a_function_of_16_bits_has_all_digits_again():
    x = ap("cast", ap("exp", ld("x", A("i_c", "i_v"), t=BF16), t=BF16))
    n = nest([tensor("x", "N", t=BF16), tensor("y", "N")], [strip("i", 16, "N", st(ld("y", A("i_c", "i_v")), ap("sigmoid", x)))])
    assert "vdivps" in assembly(n, V4)


def test_bf16_is_rounded_to_by_an_instruction_where_there_is_one():
    assert "vcvtneps2bf16" in assembly(unary("exp", BF16), BRAIN)
    assert "vcvtneps2bf16" not in assembly(unary("exp", BF16), V4)


@pytest.mark.parametrize("fn", ("exp", "sigmoid", "gelu"))
def test_a_power_of_two_is_put_on_in_one_instruction_where_there_is_one(fn):
    assert "vscalef" in assembly(unary(fn, F32), V4)
    assert "vscalef" not in assembly(unary(fn, F32), V3)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("fn", ("sigmoid", "silu", "gelu", "exp"))
def test_the_left_tail_is_right_to_the_last_denormal(fn, target):
    x = np.linspace(-110, -80, 2000).astype(np.float32) if fn != "gelu" else np.linspace(-14.9, -12.5, 2000).astype(np.float32)
    y = np.zeros_like(x)
    compiled(unary(fn, F32), target)({"N": len(x)}, {}, {"x": x, "y": y})
    at, off = worst(y, reference(fn, x), F32)
    assert off <= BOUNDS[fn], f"{fn}({x[at]!r}) = {y[at]!r}: {off} ulp"


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
def test_the_right_tail_is_left_out_where_it_no_longer_counts(t, target):
    x = np.linspace(4, 12, 500).astype(t.numpy)
    y = np.zeros_like(x)
    compiled(unary("gelu", t), target)({"N": len(x)}, {}, {"x": x, "y": y})
    at, off = worst(y, reference("gelu", x), t)
    assert off <= 1.0, f"gelu({x[at]!r}) = {y[at]!r}: {off} ulp"


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
@pytest.mark.parametrize("fn", ("exp", "exp2", "sigmoid", "silu", "gelu"))
def test_what_becomes_0_comes_of_no_product_that_underflows(fn, t, target):
    """Which take Intel's CPUs 200 cycles: processors note in a flag of the thread that there was one."""
    run, flags = compiled(unary(fn, t), target), ctypes.CDLL("libm.so.6")

    def underflows(value: float) -> bool:
        x, y = np.full(4096, value, t.numpy), np.zeros(4096, t.numpy)
        call = run.bind({"N": len(x)}, {}, {"x": x, "y": y})
        flags.feclearexcept(UNDERFLOW)
        call()
        return bool(flags.fetestexcept(UNDERFLOW))

    assert not underflows(-1.0)
    for value in (-2000.0, -1e30, -np.inf, 30.0):
        assert not underflows(value), f"{fn}({value})"


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
@pytest.mark.parametrize("fn", [n for n in sorted(FLOAT) if scalars.ARITY[n] == 2])
def test_a_function_of_two_keeps_its_stated_bound(fn, t, target):
    rng = np.random.default_rng(5)
    grid = np.array(np.meshgrid([*SPECIAL, 3.0, -3.0, 7.5], [*SPECIAL, 3.0, -3.0, 7.5])).reshape(2, -1)
    n = 20000
    a = 10.0 ** rng.uniform(-3, 3, n) * (rng.choice([-1, 1], n) if fn != "pow" else 1)
    b = rng.uniform(-40, 40, n)
    near = np.stack([rng.uniform(0.9, 1.1, n), rng.uniform(-900, 900, n)])
    with np.errstate(all="ignore"):
        a, b = np.concatenate([grid, np.stack([a, b]), near, np.stack([10.0 ** rng.uniform(20, 30, n), b])], axis=1).astype(
            t.numpy
        )
    y = np.zeros_like(a)
    e = ap(fn, ld("a", A("i_c", "i_v"), t=t), ld("b", A("i_c", "i_v"), t=t), t=t)
    two = nest(
        [tensor("a", "N", t=t), tensor("b", "N", t=t), tensor("y", "N", t=t)],
        [strip("i", 16, "N", st(ld("y", A("i_c", "i_v"), t=t), e))],
    )
    compiled(two, target)({"N": len(a)}, {}, {"a": a, "b": b, "y": y})
    with np.errstate(all="ignore"):
        if fn in ("pow", "atan2"):
            want = getattr(np, {"pow": "power", "atan2": "arctan2"}[fn])(a.astype(np.longdouble), b.astype(np.longdouble))
        else:
            want = getattr(np, fn)(a, b).astype(np.longdouble)
    at, off = worst(y, want, t)
    assert off <= BOUNDS[fn], f"{fn}({a[at]!r}, {b[at]!r}) = {y[at]!r}, wanted {want[at]!r}: {off} ulp"


def _sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


EXACT = {"erf": lambda x: mp.erf(x), "gelu": lambda x: x / 2 * mp.erfc(-x / mp.sqrt(2)) if abs(x) < 1000 else max(x, mp.mpf(0))}
REFERENCE = {
    **{n: getattr(np, n) for n in ("exp", "exp2", "expm1", "sinh", "cosh", "tanh", "log", "log2", "log1p", "sin", "cos", "tan")},
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
}


def reference(fn: str, x: np.ndarray) -> np.ndarray:
    """In 64 bits of mantissa or more."""
    if fn in EXACT:
        with mp.workdps(60):
            return np.array(
                [
                    np.longdouble(mp.nstr(EXACT[fn](mp.mpf(float(v))), 25))
                    if np.isfinite(v)
                    else np.longdouble(scalars.apply(fn, (v,), F64))
                    for v in x
                ]
            )
    with np.errstate(all="ignore"):
        return REFERENCE[fn](x.astype(np.longdouble))


def test_the_exponent_of_a_tangent_is_in_place_once_it_is_rounded():
    i = A("i_c", "i_v")
    n = nest([tensor("x", "N"), tensor("y", "N")], [strip("i", 16, "N", st(ld("y", i), ap("tanh", ld("x", i))))])
    text = emit(n, V4, Options()).text
    assert "shl <16 x i32>" in text and "sub <16 x i32>" not in text and "add <16 x i32>" not in text


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
def test_a_tangent_keeps_its_bound_beside_where_its_parts_change(t, target):
    """There the rest is largest, what is added up differs most from the sum, and the result may have a smaller unit."""
    places = np.arange(1, 41) * (np.log(2) / 4)
    x = (places[:, None] * (1 + np.linspace(-0.02, 0.02, 1001))).ravel()
    x = np.concatenate([x, -x]).astype(t.numpy)
    y = np.zeros_like(x)
    compiled(unary("tanh", t), target)({"N": len(x)}, {}, {"x": x, "y": y})
    at, off = worst(y, reference("tanh", x), t)
    assert off <= BOUNDS["tanh"], f"tanh({x[at]!r}) = {y[at]!r}: {off} ulp"
    assert np.all(np.abs(y) <= 1)
    right, left = y.reshape(2, -1)
    np.testing.assert_array_equal(right, -left)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
def test_a_tangent_keeps_the_sign_of_zero_and_is_what_is_tiny(t, target):
    tiny = np.array([0.0, np.finfo(t.numpy).smallest_subnormal, np.finfo(t.numpy).tiny, 1e-30], t.numpy)
    x = np.concatenate([tiny, -tiny])
    y = np.ones_like(x)
    compiled(unary("tanh", t), target)({"N": len(x)}, {}, {"x": x, "y": y})
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(x))


def _from(fn: str, t: DType, bound: float, *told: float):
    x = ld("x", A("i_c", "i_v"), t=t)
    power = ap(fn, x, *(Const(b, t) for b in told), t=t)
    e = ap("select", ap("lt", x, Const(bound, t), t=BOOL), Const(0.0, t), power, t=t)
    return nest([tensor("x", "N", t=t), tensor("y", "N", t=t)], [strip("i", 16, "N", st(ld("y", A("i_c", "i_v"), t=t), e))])


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
@pytest.mark.parametrize("fn", ("exp", "exp2"))
def test_a_power_that_is_zero_below_a_bound_is_the_power_from_there(fn, t, target):
    run = compiled(unary(fn, t), target)
    for bound in (-70.7, -2000.0, 3.0):
        at = t.numpy.type(bound)
        with np.errstate(all="ignore"):
            beside = np.nextafter(at, -np.inf), np.nextafter(at, np.inf)
            x = np.array([at, *beside, *SPECIAL, *np.linspace(-160, 4, 400)]).astype(t.numpy)
        y, whole = np.zeros_like(x), np.zeros_like(x)
        compiled(_from(fn, t, bound), target)({"N": len(x)}, {}, {"x": x, "y": y})
        run({"N": len(x)}, {}, {"x": x, "y": whole})
        np.testing.assert_array_equal(y, np.where(x < at, t.numpy.type(0), whole))


@pytest.mark.parametrize("fn", ("exp", "exp2"))
def test_a_bound_of_a_power_takes_no_comparison_more(fn):
    nests = _from(fn, F32, -70.7), unary(fn, F32), _from(fn, F32, -70.7, 0.0), _told(fn, F32, 0.0)
    cut, whole, both, told = (emit(n, V4, Options()).text.count("fcmp ") for n in nests)
    assert cut == whole and both == told < whole


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("fn", ("exp", "exp2"))
def test_a_power_that_is_told_its_greatest_value_is_zero_below_a_bound_too(fn, target):
    x = np.array([*np.linspace(-160, 0, 4001), -0.0, -np.inf, np.nan, -70.7, -1e30], np.float32)
    y, told = np.zeros_like(x), np.zeros_like(x)
    compiled(_from(fn, F32, -70.7, 0.0), target)({"N": len(x)}, {}, {"x": x, "y": y})
    compiled(_told(fn, F32, 0.0), target)({"N": len(x)}, {}, {"x": x, "y": told})
    np.testing.assert_allclose(y, np.where(x < np.float32(-70.7), np.float32(0), told), rtol=2e-7)  # halves round either way
    assert np.all(y[x < np.float32(-70.7)] == 0)


def _told(fn: str, t: DType, *bounds: float):
    x = ld("x", A("i_c", "i_v"), t=t)
    e = ap(fn, x, *(Const(b, t) for b in bounds), t=t)
    return nest([tensor("x", "N", t=t), tensor("y", "N", t=t)], [strip("i", 16, "N", st(ld("y", A("i_c", "i_v"), t=t), e))])


def _other_nans(t: DType) -> np.ndarray:
    """NaN whose other bits are not all 0."""
    bits = np.array([0x7F800001, 0xFFC00155], np.uint32) if t == F32 else np.array([-2341], np.int64)
    return bits.view(t.numpy)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
@pytest.mark.parametrize("fn", ("exp", "exp2"))
def test_a_power_that_is_told_its_bounds_is_the_power_within_them(fn, t, target):
    run, least = compiled(unary(fn, t), target), -70.7 if t == F32 else -671.0
    points = [0.0, -0.0, -np.inf, np.nan, least, *-np.geomspace(1e-45, 1e38, 2000), *np.linspace(-1100, 0, 4000)]
    x = np.append(np.array(points).astype(t.numpy), _other_nans(t))
    y, some, whole = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    run({"N": len(x)}, {}, {"x": x, "y": whole})
    compiled(_told(fn, t, 0.0), target)({"N": len(x)}, {}, {"x": x, "y": y})
    compiled(_told(fn, t, 0.0, least), target)({"N": len(x)}, {}, {"x": x, "y": some})
    below = x < least
    np.testing.assert_array_equal(some[~below], y[~below])
    assert np.all((some[below] == y[below]) | (some[below] == 0))
    if fn == "exp2" or t == F64:
        np.testing.assert_array_equal(y, whole)
    else:
        off = ulps(y, reference(fn, x), t)
        assert np.all(off[~np.isnan(x)] <= 1.5 + np.abs(x[~np.isnan(x)]) / 20) and np.array_equal(np.isnan(y), np.isnan(x))
    assert np.all(some[x < 1.1 * least] == 0)


def test_a_power_of_bits_has_two_factors_unless_it_is_told_that_one_is_enough():
    def count(n, of: str) -> int:
        return emit(n, V3, Options()).text.count(of)

    nests = unary("exp", F32), _told("exp", F32, 0.0), _from("exp", F32, -70.7)
    two, *one = (count(n, "shl <8 x i32>") for n in nests)
    assert one == [two // 2] * 2
    told, faint = _told("exp", F32, 0.0), _told("exp", F32, 0.0, -70.7)
    assert count(told, "fmul") < count(nests[0], "fmul")
    assert count(faint, "fcmp ") == count(told, "fcmp ") < count(nests[2], "fcmp ")


def test_functions_that_count_as_computed_are_those_whose_length_is_known():
    assert set(INSTRUCTIONS) == scalars.COMPUTED


def test_the_number_in_a_constant_is_read_again():
    for x in (0.0, -104.0, 0.1):
        assert known(constant(x, "double", 4), "double") == known(constant(x, "double", 1), "double") == x
    assert known(constant(0.1, "float", 8), "float") == np.float32(0.1)
    assert known("%x1", "float") is None and known(constant(1, "i32", 8), "i32") is None


@pytest.mark.parametrize("t", (F32, BF16), ids=str)
@pytest.mark.parametrize("fn", ("exp", "sigmoid", "silu", "gelu"))
def test_a_power_of_bits_that_becomes_0_is_0_by_its_bits_and_takes_no_mask(fn, t):
    text = emit(unary(fn, t), V3, Options()).text
    assert "fcmp ugt" not in text and "fcmp uge" not in text and "roundeven" not in text


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("fn", ["sin", "cos", "tan"])
def test_remainders_by_half_pi_are_right_next_to_its_multiples_and_where_the_way_changes(fn, target):
    """f32 stays f32 below 2^15, where lanes beyond send their whole vector another way."""
    k = np.arange(1, 20861, dtype=np.float64) * (np.pi / 2)
    near = np.concatenate([np.nextafter(k.astype(np.float32), np.float32(to)) for to in (0, 1e9)] + [k.astype(np.float32)])
    edge = np.float32(2.0**15) + np.arange(-40, 40, dtype=np.float32) / 512
    mixed = np.where(np.arange(4096) % 37 == 5, np.float32(1e30), np.linspace(-9, 9, 4096, dtype=np.float32))
    x = np.concatenate([near, -near, edge, mixed]).astype(np.float32)
    y = np.zeros_like(x)
    compiled(unary(fn, F32), target)({"N": len(x)}, {}, {"x": x, "y": y})
    at, off = worst(y, reference(fn, x), F32)
    assert off <= BOUNDS[fn], f"{fn}({x[at]!r}) = {y[at]!r}: {off} ulp"
