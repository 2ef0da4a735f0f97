"""Feed-forward blocks and experts."""

import numpy as np
from scipy import special

from tests.library.case import case

SIZES = "Z D F: - 1 1; 3 16 17; 2x3 9 33; 5 33 64; 4 0 3"
GLU = "*Z,D | D,F | D,F | F,D"


def gelu(x):
    return x * special.ndtr(x)


def silu(x):
    return x * special.expit(x)


def squeeze_excite(x, w1, w2):
    s = np.maximum(x.mean((2, 3)) @ w1.T, 0) @ w2.T
    return x * special.expit(s)[:, :, None, None]


def route(x, w):
    p = special.softmax(x @ w.T, -1)
    return p.argmax(-1), p.max(-1)


CASES = [
    case("mlp", "*Z,D | D,F | F | F,D | D", lambda x, a, b, c, d: gelu(x @ a + b) @ c + d, SIZES, terms="D * F + 8"),
    case("mlp_relu", "*Z,D | D,F | F | F,D | D", lambda x, a, b, c, d: np.maximum(x @ a + b, 0) @ c + d, SIZES,
         terms="D * F + 8"),
    case("swiglu", GLU, lambda x, a, b, c: (silu(x @ a) * (x @ b)) @ c, SIZES, terms="D * F + 8"),
    case("geglu", GLU, lambda x, a, b, c: (gelu(x @ a) * (x @ b)) @ c, SIZES, terms="D * F + 8"),
    case("squeeze_excite", "B,C,H,W | R,C | C,R", squeeze_excite, "B C H W R: 1 1 1 1 1; 2 5 3 4 2; 1 17 8 8 4",
         terms="H * W + C * R"),
    case("route_top1", "N,D | E,D", route, "N D E: 1 1 1; 5 16 3; 33 17 8", terms="8 * D + E"),
    case("expert_linear", "N,D | ids<E: N | E,D,F", lambda x, e, w: np.einsum("nd,ndf->nf", x, w[e]),
         "N D E F: 1 1 1 1; 5 16 3 17; 33 17 8 4",
         terms="D"),
]
