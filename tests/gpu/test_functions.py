"""Every `pop_*` function against `ir/scalars.py`, on every dtype, at ordinary and at awkward values."""

from __future__ import annotations

import math
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gpu_functions import DTYPES, all_functions, casts, functions

import polyop
from polyop.codegen import cuda
from polyop.codegen.c import expr
from polyop.compiler import compile_op
from polyop.ir import scalars
from polyop.ir.dtypes import BF16, F16, F32, F64, DType
from polyop.ir.dtypes import DTYPES as BY_NAME
from polyop.ir.errors import UnsupportedError
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated
from polyop.runtime.layout import contiguous

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

AWKWARD = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1e-3, 65504.0, 65520.0, 3e38, 1e-7, 6e-8, float("inf"), -float("inf"),
           float("nan"))


def arguments(t: DType) -> list[np.ndarray]:
    """Three arguments: all pairs of awkward values, then random ones."""
    g = np.random.default_rng(1)
    if t.is_float:
        few, more = np.array(AWKWARD), [g.standard_normal(400) * g.choice([0.1, 1, 30], 400) for _ in range(3)]
    else:
        few = np.array([0, 1, 2, 3, 7, 8, 31, 63, t.highest, t.lowest, t.highest - 1, t.lowest + 1], t.numpy)
        more = [g.integers(t.lowest, t.highest, 200, dtype=t.numpy, endpoint=True) for _ in range(3)]
    a, b = (x.ravel() for x in np.meshgrid(few, few))
    with np.errstate(all="ignore"):
        return [np.concatenate([x, y]).astype(t.numpy) for x, y in zip((a, b, a[::-1]), more, strict=True)]


def computed(t: DType, own: bool = False, given: list[np.ndarray] | None = None) -> dict[str, np.ndarray]:
    """What the emulator gives for each output of `all_functions(t)`, and the arguments; `own`: with our own mathematics."""
    made = all_functions(t)
    arrays = dict(zip("ABC", given or arguments(t), strict=True))
    n = len(arrays["A"])
    arrays |= {b.name: np.zeros(n, b.dtype.numpy) for b in made.buffers if b.name not in arrays}
    module = cuda.emit(made, target("cuda:sm_80"), Options())
    if own:
        module = replace(module, text=module.text.replace("#include", "#define POP_OWN_MATH 1\n#include"))
    report = emulated.run(module, {"N": n}, {}, arrays, watched=False)
    assert report.site is None
    return arrays


def units(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The distance of `a` from `b` in units of b's last place; 0 for two NaN."""
    with np.errstate(all="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        eps = {2: 2.0**-10, 4: 2.0**-23, 8: 2.0**-52}[a.dtype.itemsize]
        eps = 2.0**-7 if a.dtype.name == "bfloat16" else eps
        tiny = {2: 2.0**-24, 4: 2.0**-149, 8: 2.0**-1074}[a.dtype.itemsize]  # a step where there is no smaller one
        out = np.abs(x - y) / np.maximum(np.abs(y) * eps, tiny)
    return np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0, out)


INEXACT = ("sigmoid", "silu", "gelu", "softplus", "tan", "rsqrt")


@pytest.mark.parametrize("t", DTYPES, ids=str)
def test_every_function_gives_what_its_definition_gives(t: DType) -> None:
    assert far_off(t, computed(t), {}) == []


@pytest.mark.emulators  # as C++; CUDA has functions of its own, and is not asked for these
@pytest.mark.parametrize("t", [F32, F64], ids=str)
def test_our_own_mathematics_gives_the_same_to_a_few_more_places(t: DType) -> None:
    """That is what HIP kernels use where there are no device libraries."""
    allowed = {"pow": 1000, "erf": 16, "gelu": 400, "tanh": 8, "log1p": 8, "softplus": 24} if t == F64 else {}
    assert far_off(t, computed(t, own=True), allowed) == []


ON_NUMPY = {"exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "log": np.log,
            "log2": np.log2, "log1p": np.log1p, "sigmoid": lambda x: np.exp(-np.logaddexp(0, -x)),
            "silu": lambda x: x * np.exp(-np.logaddexp(0, -x)), "softplus": lambda x: np.logaddexp(0, x),
            "erf": np.vectorize(math.erf, otypes="d"),
            "gelu": np.vectorize(lambda x: 0.5 * x * math.erfc(-x * 0.5**0.5), otypes="d")}


@pytest.mark.emulators
def test_our_own_functions_of_floats_are_right_all_along_the_line() -> None:
    """Among the arguments are those where a result overflows, is denormal, or changes its formula."""
    x = np.concatenate([sign * np.geomspace(1e-40, 110, 3000) for sign in (1, -1)]).astype(np.float32)
    x = np.concatenate([x, *(np.float32(c + s * d) for c in (0.3466, 1, 6, 14.8, 20, 88.72, 104) for s in (1, -1)
                             for d in np.geomspace(1e-7, 0.3, 60)[None])])
    got = computed(F32, own=True, given=[x, x, x])
    with np.errstate(all="ignore"):
        wide = {n: f(x.astype(np.float64)).astype(np.float32) for n, f in ON_NUMPY.items()}
        off = {n: units(got[f"y_{n}"], want) for n, want in wide.items()}
    off["silu"] = np.where(np.abs(x) < 87, off["silu"], 0)  # beyond, its factor has not all its digits
    assert not {n: (x[u.argmax()], got[f"y_{n}"][u.argmax()], wide[n][u.argmax()]) for n, u in off.items() if not u.max() <= 3}
    assert len(x) > 6000 and np.isinf(got["y_exp"]).any() and (got["y_exp"] == 0).any()


@pytest.mark.parametrize("t", [F16, BF16], ids=str)
def test_functions_of_16_bits_are_right_to_little_more_than_half_a_place(t: DType) -> None:
    """Of all values there are; but for the least, which may be 0."""
    x = np.arange(1 << 16, dtype=np.uint16).view(t.numpy)
    got, wide = computed(t, given=[x, x, x]), x.astype(np.float64)
    for n in expr.NEAR:
        with np.errstate(all="ignore"):
            want, y = ON_NUMPY[n](wide), got[f"y_{n}"].astype(np.float64)
            place = 2.0 ** (np.floor(np.log2(np.abs(want))) - (10 if t == F16 else 7))
            off = np.abs(y - want) / np.fmax(place, 2.0 ** (-24 if t == F16 else -133))
        plain = np.isfinite(want) & (np.abs(want) >= 2.0**-119) & (np.abs(want) <= float(ml_dtypes.finfo(t.numpy).max))
        assert np.nanmax(np.where(plain, off, 0)) <= 0.56, n
        assert (np.abs(y - want)[~plain & np.isfinite(want) & (np.abs(want) < 1)] <= 2.0**-119).all()
        assert np.isnan(y[np.isnan(wide)]).all() and not np.isnan(y[np.isfinite(wide)]).any(), n
        assert y[wide == np.inf] == want[wide == np.inf], n


@pytest.mark.parametrize("t", [F16, BF16], ids=str)
@pytest.mark.parametrize("name", expr.NEAR)
def test_one_factor_of_what_is_rounded_to_16_bits_is_of_the_shorter_kind(name: str, t: DType) -> None:
    """Of f32, at all values that have 16 bits; products of two functions have one that is short."""
    op = polyop.op(f"op f(X: f32[N], U: f32[N]) -> (Y: {t}[N], Z: {t}[N]) {{ "
                   f"Y[i] = {t}(U[i] * {name}(X[i])); Z[i] = {t}({name}(X[i]) * {name}(U[i])) }}")
    made = op._op(op.choice())
    module = compile_op(made, contiguous(made), target("cuda:sm_80"), Options()).module
    assert module is not None and module.text.count(f"pop_near_{name}(") == 2 * module.text.count(f"pop_{name}(") > 0
    x = np.arange(1 << 16, dtype=np.uint16).view(t.numpy).astype(np.float32)
    x = x[np.isfinite(x)]
    u = np.random.default_rng(3).permutation(np.float32([-2, -1.25, 0.1, 0.7, 3]).repeat(len(x) // 5 + 1))[:len(x)]
    arrays = {"X": x, "U": u, **{n: np.zeros(len(x), t.numpy) for n in "YZ"}}
    assert str(emulated.run(module, {"N": len(x)}, {}, arrays)) == "no fault found"
    f = ON_NUMPY[name]
    for n, want in (("Y", f(x.astype(np.float64)) * u), ("Z", f(x.astype(np.float64)) * f(u.astype(np.float64)))):
        with np.errstate(divide="ignore"):
            digits = np.floor(np.log2(np.abs(want))) - (10 if t == F16 else 7)
        place = np.fmax(2.0**digits, 2.0 ** (-24 if t == F16 else -133))
        plain = (np.abs(want) >= 2.0**-117) & (np.abs(want) <= float(ml_dtypes.finfo(t.numpy).max))
        off = np.abs(arrays[n].astype(np.float64) - want) / place
        assert np.max(off[plain], initial=0) <= 0.57 and plain.sum() > len(x) // 4, n


def far_off(t: DType, arrays: dict[str, np.ndarray], allowed: dict[str, int]) -> list[object]:
    """The functions that miss their definition by more than they may, each with its worst arguments."""
    wrong: list[object] = []
    with np.errstate(all="ignore"):
        for n, (out, arity) in functions(t).items():
            rows = zip(*(arrays[x] for x in "ABC"[:arity]), strict=True)
            expected = np.array([scalars.apply(n, row, out) for row in rows], out.numpy)
            off = units(arrays[f"y_{n}"], expected) if out.is_float else arrays[f"y_{n}"] != expected
            if n == "fma" and t.is_float:  # fused: right to the last place of the product
                a, b, c = (arrays[x].astype(np.float64) for x in "ABC")
                off = np.where(off == 0, 0, off * np.abs(expected.astype(np.float64)) / np.fmax(np.abs(a * b), np.abs(c)))
            if n == "pow":  # NumPy takes square roots there, which gives NaN where C gives inf
                off = np.where((arrays["A"] == -np.inf) & (arrays["B"] == 0.5), 0, off)
            if n == "gelu":  # a product whose factor erfc is too small to have all its digits
                off = np.where(np.abs(expected.astype(np.float64)) < 16 * float(np.finfo(np.float32).tiny), 0, off)
                if t == F64:  # the definition itself rounds x / sqrt(2)
                    off = off / (1 + np.where(off > 0, arrays["A"], 0) ** 2)
            most = 12 if n in INEXACT else 4 if n in scalars.UNARY_FLOAT or n in ("pow", "atan2") else 2 if n == "fma" else 0
            most = allowed.get(n, most)
            worst = int(np.argmax(np.nan_to_num(off, nan=np.inf)))
            if not off[worst] <= most:
                wrong.append((n, [arrays[x][worst] for x in "ABC"[:arity]], arrays[f"y_{n}"][worst], expected[worst]))
    return wrong


@pytest.mark.parametrize("t", DTYPES, ids=str)
def test_every_cast_gives_what_its_definition_gives(t: DType) -> None:
    arrays = computed(t)
    for u in casts(t):
        expected = np.array([scalars.convert(x, u) for x in arrays["A"]], u.numpy)
        wide = np.float64 if u.is_float else u.numpy  # NumPy compares no NaN of bf16
        np.testing.assert_array_equal(arrays[f"to_{u}"].astype(wide), expected.astype(wide), err_msg=str(u))
    assert set(map(str, casts(t))) <= set(BY_NAME)
