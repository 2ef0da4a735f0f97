"""Losses, from their textbook formulas."""

import numpy as np
from scipy import special

from tests.library.case import case, f32

ZD = "Z D: - 1; 3 16; 2x3 17; 5 65; 4 0"


def loss(name, f, inputs="*Z,D | *Z,D", terms="4 * D", **kw):
    return case(name, inputs, lambda *a, **k: f(*a, **k).mean(-1), ZD, terms=terms, **kw)


def bce(p, t):
    return -(special.xlogy(t, p) + special.xlog1py(1 - t, -p))


def focal(x, t, gamma=2.0):
    p = special.expit(x)
    hit = t * p + (1 - t) * (1 - p)
    return (1 - hit) ** gamma * bce(p, t)


def triplet(a, p, q, margin=1.0):
    return np.maximum(((a - p) ** 2).sum(-1) - ((a - q) ** 2).sum(-1) + margin, 0)


def dice(p, t, eps=1e-6):
    eps = f32(eps)
    return 1 - (2 * (p * t).sum(-1) + eps) / (p.sum(-1) + t.sum(-1) + eps)


CASES = [
    loss("mse", lambda x, t: (x - t) ** 2),
    loss("mae", lambda x, t: np.abs(x - t)),
    loss("huber", lambda x, t, delta=1.0: special.huber(delta, x - t)),
    loss("huber", lambda x, t, delta: special.huber(delta, x - t), delta=0.25),
    loss("bce", bce, "unit: *Z,D | unit: *Z,D", "16 * D"),
    loss("bce_logits", lambda x, t: bce(special.expit(x), t), "wide: *Z,D | unit: *Z,D", "16 * D"),
    loss("hinge", lambda x, y: np.maximum(1 - x * y, 0), "wide: *Z,D | sign: *Z,D"),
    loss("log_cosh", lambda x, t: np.log(np.cosh(x - t)), "wide: *Z,D | *Z,D", "16 * D"),
    case("triplet", "N,D | N,D | N,D", triplet, "N D: 1 1; 5 17; 16 64; 3 0", terms="8 * D"),
    loss("focal", focal, "wide: *Z,D | unit: *Z,D", "64 * D"),
    case("dice", "unit: *Z,D | unit: *Z,D", dice, ZD, terms="4 * D"),
]
