"""Normalisations."""

import numpy as np

from tests.library.case import ALSO_HALF, case, f32

ZD = "Z D: - 1; 3 16; 2x3 17; 5 65; 4 0; 2 127"
NCHW = "B C H W: 1 1 1 1; 2 3 5 7; 1 16 4 4; 2 5 1 33"


def standardize(x, axes, eps):
    d = x - x.mean(axes, keepdims=True)
    return d / np.sqrt((d * d).mean(axes, keepdims=True) + eps)


def layernorm(x, g, b, eps=1e-5):
    return standardize(x, -1, f32(eps)) * g + b


def rmsnorm(x, g, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + f32(eps)) * g


def column(v):
    return v[:, None, None]


def batchnorm_train(x, g, b, eps=1e-5):
    return standardize(x, 0, f32(eps)) * g + b, x.mean(0), x.var(0)


def groupnorm(x, g, bias, channels, eps=1e-5):
    b, c, h, w = x.shape
    y = standardize(x.reshape(b, c // channels, channels, h, w), (2, 3, 4), f32(eps)).reshape(x.shape)
    return y * column(g) + column(bias)


def lrn(x, window=5, alpha=1e-4, beta=0.75, k=1.0):
    half = window // 2
    q = np.pad(x * x, [(0, 0), (half, window - 1 - half), (0, 0), (0, 0)])
    q = np.lib.stride_tricks.sliding_window_view(q, window, 1).sum(-1)
    return x / (k + f32(alpha) * q / window) ** beta


def both(f):
    return lambda x, r, *p: (f(x + r, *p), x + r)


CASES = [
    case("layernorm", "*Z,D | D | D", layernorm, ZD, terms="64 * D", dtypes=ALSO_HALF, tiny="Z D: - 2; 2 3; 2x1 5; 2 0"),
    case("layernorm", "*Z,D | D | D", layernorm, ZD, terms="D", eps=0.25),
    case("add_layernorm", "*Z,D | *Z,D | D | D", both(layernorm), "Z D: 3 16; 2x3 17; 5 65; 4 0", terms="64 * D"),
    case("rmsnorm", "*Z,D | D", rmsnorm, ZD, terms="D", dtypes=ALSO_HALF),
    case("rmsnorm", "*Z,D | D", rmsnorm, ZD, terms="D", eps=0.25),
    case("add_rmsnorm", "*Z,D | *Z,D | D", both(rmsnorm), ZD, terms="D"),
    case("batchnorm", "B,C,H,W | C | pos: C | C | C",
         lambda x, m, v, g, b: (x - column(m)) / np.sqrt(column(v) + f32(1e-5)) * column(g) + column(b), NCHW),
    case("batchnorm_nhwc", "B,H,W,C | C | pos: C | C | C", lambda x, m, v, g, b: (x - m) / np.sqrt(v + f32(1e-5)) * g + b, NCHW),
    case("batchnorm_train", "N,C | C | C", batchnorm_train, "N C: 5 1; 17 16; 64 33; 7 0", terms="64 * N"),
    case("instancenorm", "B,C,H,W | C | C", lambda x, g, b: standardize(x, (2, 3), f32(1e-5)) * column(g) + column(b),
         "B C H W: 1 1 2 3; 2 3 5 7; 1 16 4 4; 2 5 1 33", terms="64 * H * W"),
    case("groupnorm", "B,C,H,W | C | C", groupnorm, "B C H W: 1 2 2 2; 2 6 5 7; 1 16 4 4; 2 0 3 3", terms="64 * H * W",
         tiny="B C H W: 1 2 2 2; 2 4 2 3", channels=2),
    case("groupnorm", "B,C,H,W | C | C", groupnorm, "B C H W: 1 5 2 2; 2 10 5 7; 1 35 4 4", terms="64 * H * W",
         tiny="B C H W: 1 5 1 2",
         channels=5),
    case("l2norm", "*Z,D", lambda x: x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), f32(1e-12)), ZD, terms="D"),
    case("standardize", "*Z,D", lambda x: standardize(x, -1, f32(1e-5)), "Z D: 3 16; 2x3 17; 5 65; 4 0", terms="64 * D"),
    case("lrn", "B,C,H,W", lrn, NCHW, tiny="B C H W: 1 1 1 1; 1 6 1 2"),
    case("lrn", "B,C,H,W", lrn, NCHW, window=3, alpha=0.5, beta=0.5, k=2.0),
]
