"""Elementwise operators and optimizer steps."""

import numpy as np

from tests.library.case import ALSO_HALF, F32, case

Z = "Z: -; 1; 15; 64; 3x17; 2x3x5; 0"
ZD = "Z D: - 1; 3 16; 2x3 17; 5 65; 4 0"
NUMBERS = ("f32", "f64", "i32", "i64")


def two(name, want, dtypes=NUMBERS, **kw):
    return case(name, "*Z | *Z", want, Z, dtypes=dtypes, **kw)


def adam(p, m, v, g, rate, beta1, beta2, eps, correct1, correct2):
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    return p - rate * (m / correct1) / (np.sqrt(v / correct2) + eps), m, v


def sgd(p, m, g, rate, momentum):
    m = momentum * m + g
    return p - rate * m, m


CASES = [
    two("add", np.add, ALSO_HALF),
    two("add", np.add, ("i32", "u8")),
    two("sub", np.subtract),
    two("mul", np.multiply),
    case("div", "*Z | pos: *Z", np.divide, Z),
    two("maximum", np.maximum),
    two("minimum", np.minimum),
    case("clamp", "*Z", lambda x, lo, hi: np.clip(x, lo, hi), Z, lo=-0.25, hi=0.5),
    case("clamp", "*Z", lambda x, lo, hi: np.clip(x, lo, hi), Z, lo=1, hi=2, dtypes=("i32",)),
    case("bias_add", "*Z,D | D", np.add, ZD, dtypes=NUMBERS),
    case("bias_add_nchw", "B,C,H,W | C", lambda x, b: x + b[:, None, None], "B C H W: 1 1 1 1; 2 3 5 17; 1 16 4 8; 2 0 3 3"),
    case("scale_shift", "*Z,D | D | D", lambda x, a, b: x * a + b, ZD),
    case("modulate", "B,S,D | B,D | B,D", lambda x, a, b: x * (1 + a[:, None]) + b[:, None],
         "B S D: 1 1 1; 2 3 17; 2 5 64; 2 0 4"),
    two("add_relu", lambda a, b: np.maximum(a + b, 0), ALSO_HALF),
    two("lerp", lambda a, b, weight: a + weight * (b - a), ("f32", "f64"), weight=0.25),
    case("select", "bool: *Z | *Z | *Z", np.where, Z, dtypes=(*NUMBERS, "bool", "u8", "f16")),
    case("masked_fill", "*Z | bool: *Z", lambda x, m, value: np.where(m, value, x), Z, value=-7.0),
    case("dropout", "*Z | bool: *Z", lambda x, k, p: np.where(k, x / (1 - p), 0), Z, p=0.25),
    case("adam", "*Z | *Z | unit: *Z | *Z", adam, Z, rate=0.125, beta1=0.875, beta2=0.75, eps=0.0078125, correct1=0.5,
         correct2=0.5),
    case("sgd", "*Z | *Z | *Z", sgd, Z, rate=0.125, momentum=0.75),
    case("quantize_u8", "*Z", lambda x, scale, zero: np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8), Z, dtypes=F32,
         scale=0.0078125, zero=100.0),
    case("dequantize_u8", "u8: *Z", lambda x, scale, zero: (x.astype(float) - zero) * scale, Z, dtypes=F32, scale=0.0078125,
         zero=100.0),
]
