import numpy as np
import pytest

from polyop.codegen.vecmath.table import FLOAT
from polyop.ir.dtypes import F32, F64, DType
from tests.codegen.harness import RUNNABLE, compiled
from tests.codegen.nests import A, ap, ld, nest, st, strip, tensor

BOUNDS = {"exp": 1.5, "exp2": 1.5, "expm1": 2.5, "sinh": 2.5, "cosh": 2.0, "tanh": 3.0, "sigmoid": 3.0, "silu": 3.5}
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, 1e-30, -1e-30, 1e-45, 5e-324, 88.7, -87.4, -100.0, 709.7, -740.0,
           1e30, -1e30, 3e38, 1e300]


def inputs(fn: str, t: DType) -> np.ndarray:
    rng = np.random.default_rng(3)
    n = 20000
    scale = {"exp": 90, "exp2": 130, "expm1": 60}.get(fn, 10) * (8 if t == F64 and fn in ("exp", "exp2") else 1)
    x = np.concatenate([rng.uniform(-scale, scale, n), rng.standard_normal(n), 10.0 ** rng.uniform(-30, 3, n) * rng.choice([-1, 1], n), SPECIAL])
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


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("t", (F32, F64), ids=str)
@pytest.mark.parametrize("fn", sorted(FLOAT))
def test_a_function_keeps_its_stated_bound(fn, t, target):
    x = inputs(fn, t)
    y = np.zeros_like(x)
    compiled(unary(fn, t), target)({"N": len(x)}, {}, {"x": x, "y": y})
    with np.errstate(all="ignore"):
        want = REFERENCE[fn](x.astype(np.longdouble))
    off = ulps(y, want, t)
    worst = int(np.nanargmax(np.where(np.isnan(off), np.inf, off)))
    assert off[worst] <= BOUNDS[fn], f"{fn}({x[worst]!r}) = {y[worst]!r}, wanted {want[worst]!r}: {off[worst]} ulp"


def _sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x)))


REFERENCE = {
    **{n: getattr(np, n) for n in ("exp", "exp2", "expm1", "sinh", "cosh", "tanh")},
    "sigmoid": _sigmoid, "silu": lambda x: x * _sigmoid(x),
}
