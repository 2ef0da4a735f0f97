"""Activations, against SciPy's special functions and plain formulas."""

import numpy as np
from scipy import special

from tests.library.case import ALSO_HALF, case

Z = "Z: -; 1; 15; 64; 3x17; 2x3x5; 0"
ZD = "Z D: - 2; 3 16; 2x3 34; 5 64; 4 0"


def elu(x, alpha=1.0):
    return np.where(x > 0, x, alpha * np.expm1(x))


def gelu(x):
    return x * special.ndtr(x)


def silu(x):
    return x * special.expit(x)


def softplus(x):
    return np.logaddexp(x, 0)


def one(name, want, dtypes=ALSO_HALF, terms="1", **kw):
    return case(name, "wide: *Z", want, Z, dtypes=dtypes, terms=terms, **kw)


CASES = [
    one("relu", lambda x: np.maximum(x, 0)),
    one("relu6", lambda x: np.clip(x, 0, 6)),
    one("leaky_relu", lambda x, slope=0.01: np.where(x >= 0, x, slope * x)),
    one("leaky_relu", lambda x, slope: np.where(x >= 0, x, slope * x), slope=0.25),
    case("prelu", "B,C,*Z | C", lambda x, a: np.where(x >= 0, x, a.reshape(-1, *[1] * (x.ndim - 2)) * x),
         "B C Z: 1 1 -; 2 5 7; 3 16 4x5; 2 0 3"),
    one("elu", elu),
    one("elu", elu, alpha=0.5),
    one("selu", lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772)),
    one("celu", lambda x, alpha=1.0: np.where(x > 0, x, alpha * np.expm1(x / alpha)), alpha=2.0),
    one("gelu", gelu),
    one("gelu_tanh", lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    one("quick_gelu", lambda x: x * special.expit(1.702 * x)),
    one("silu", silu),
    one("mish", lambda x: x * np.tanh(softplus(x))),
    one("sigmoid", special.expit),
    one("logsigmoid", special.log_expit),
    one("hardsigmoid", lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    one("hardswish", lambda x: x * np.clip(x + 3, 0, 6) / 6),
    one("tanh", np.tanh),
    one("hardtanh", lambda x, lo=-1, hi=1: np.clip(x, lo, hi)),
    one("hardtanh", lambda x, lo, hi: np.clip(x, lo, hi), lo=-2.0, hi=0.5),
    one("softplus", softplus),
    one("softsign", lambda x: x / (1 + np.abs(x))),
    one("softshrink", lambda x, threshold=0.5: np.sign(x) * np.maximum(np.abs(x) - threshold, 0)),
    one("hardshrink", lambda x, threshold=0.5: np.where(np.abs(x) > threshold, x, 0)),
    one("tanhshrink", lambda x: x - np.tanh(x)),
    case("glu", "*Z,D", lambda x: (lambda a, b: a * special.expit(b))(*np.split(x, 2, -1)), ZD, tiny="Z D: - 2; 2 4; 2 0"),
    case("silu_mul", "wide: *Z | *Z", lambda g, u: silu(g) * u, Z),
    case("gelu_mul", "wide: *Z | *Z", lambda g, u: gelu(g) * u, Z),
    case("bias_gelu", "*Z,D | D", lambda x, b: gelu(x + b), "Z D: - 1; 3 16; 2x3 17; 5 65; 4 0"),
    one("softcap", lambda x, cap: cap * np.tanh(x / cap), cap=4.0),
]
