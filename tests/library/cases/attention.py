"""Attention, written out with softmax over masked scores."""

import numpy as np
from scipy import special

from tests.library.case import ALSO_HALF, case

SIZES = "B H M N D E: 1 1 1 1 1 1; 2 3 17 15 16 5; 1 2 33 64 8 8; 2 2 4 7 3 0; 1 2 0 3 4 4"
SELF = "B H S D E: 1 1 1 1 1; 2 3 17 16 5; 1 2 65 8 8; 2 2 5 3 4; 1 2 0 4 4"
SCALE = 0.25
QKV = "B,H,M,D | B,H,N,D | B,H,N,E"
SELF_QKV = "B,H,S,D | B,H,S,D | B,H,S,E"


def scores(q, k, scale):
    return scale * np.einsum("bhid,bhjd->bhij", q, k)


def attend(q, k, v, scale, bias=0.0):
    return softmax(scores(q, k, scale) + bias) @ v


def softmax(s):
    return special.softmax(s, -1) if s.size else s


def band(n, window):
    i, j = np.indices((n, n))
    return np.where((j <= i) & (j > i - window), 0, -np.inf)


def alibi(q, k, v, slope, scale):
    i, j = np.indices((q.shape[2],) * 2)
    return attend(q, k, v, scale, band(q.shape[2], 10**9) - slope[:, None, None] * (i - j))


def padded(q, k, v, keep, scale):
    return attend(q, k, v, scale, np.where(keep, 0, -np.inf)[:, None, None, :])


def grouped(q, k, v, scale, group):
    return attend(q, np.repeat(k, group, 1), np.repeat(v, group, 1), scale)


def decode(q, k, v, scale, used):
    return attend(q[:, :, None], k[:, :, :used], v[:, :, :used], scale)[:, :, 0]


def feature(x):
    return np.where(x > 0, x + 1, np.exp(x))


def linear(q, k, v):
    weights = np.einsum("bhid,bhjd->bhij", feature(q), feature(k))
    return weights @ v / weights.sum(-1, keepdims=True)


def retention(q, k, v, decay):
    i, j = np.indices((q.shape[2],) * 2)
    d = decay[:, None, None] ** np.maximum(i - j, 0) * (j <= i)
    return scores(q, k, 1) * d @ v


CASES = [
    case("attention", QKV, attend, SIZES, terms="99", dtypes=ALSO_HALF, scale=SCALE),
    case("attention_weights", "B,H,M,D | B,H,N,D", lambda q, k, scale: softmax(scores(q, k, scale)), SIZES, terms="99",
         scale=SCALE),
    case("attention_scores", "B,H,M,D | B,H,N,D", scores, SIZES, terms="D", scale=SCALE),
    case("attention_causal", SELF_QKV, lambda q, k, v, scale: attend(q, k, v, scale, band(q.shape[2], 10**9)), SELF, terms="99",
         dtypes=ALSO_HALF, scale=SCALE),
    *[case("attention_window", SELF_QKV, lambda q, k, v, scale, window: attend(q, k, v, scale, band(q.shape[2], window)), SELF,
           terms="99",
           scale=SCALE, window=w) for w in (1, 3, 100)],
    case("attention_masked", QKV + " | M,N", lambda q, k, v, mask, scale: attend(q, k, v, scale, mask), SIZES, terms="99",
         scale=SCALE),
    case("attention_padded", QKV + " | bool: B,N", padded, "B H M N D E: 2 3 17 15 16 5; 1 2 33 64 8 8", terms="99",
         tiny="B H M N D E: 2 1 2 6 2 3", scale=SCALE),
    case("attention_alibi", SELF_QKV + " | unit: H", alibi, SELF, terms="99", scale=SCALE),
    case("attention_gqa", "B,H,M,D | B,H//2,N,D | B,H//2,N,E", grouped, "B H M N D E: 1 2 1 1 1 1; 2 4 17 15 16 5; 1 6 5 64 8 8",
         terms="99", tiny="B H M N D E: 1 4 2 3 2 3", scale=SCALE, group=2),
    case("attention_gqa", "B,H,M,D | B,H//3,N,D | B,H//3,N,E", grouped, "B H M N D E: 1 3 1 1 1 1; 2 6 17 15 16 5",
         terms="99", tiny="B H M N D E: 1 6 2 3 2 3", scale=SCALE, group=3),
    case("attention_mqa", "B,H,M,D | B,N,D | B,N,E", lambda q, k, v, scale: attend(q, k[:, None], v[:, None], scale), SIZES,
         terms="99",
         scale=SCALE),
    case("attention_decode", "B,H,D | B,H,N,D | B,H,N,E", decode, "B H N D E: 1 1 1 1 1; 2 3 64 16 5; 1 2 129 8 8", terms="99",
         scale=SCALE, used="(N + 1) // 2"),
    case("attention_linear", QKV, linear, "B H M N D E: 1 1 1 1 1 1; 2 3 17 15 16 5; 1 2 33 64 8 8", terms="8 * D + 8 * N"),
    case("retention", SELF_QKV + " | unit: H", retention, SELF, terms="8 * D + 8 * S"),
]
