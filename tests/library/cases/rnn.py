"""Recurrent networks, as loops over time of their cells."""

import numpy as np
from scipy.special import expit

from tests.library.case import case

SIZES = "L B D H: 1 1 1 1; 4 3 5 7; 9 2 16 8; 3 5 7 17; 0 2 3 4; 2 3 0 4"
CELL = "B D H: 1 1 1; 3 5 7; 2 16 8; 5 7 17"
SMALL = "L B D H: 1 1 1 1; 3 2 3 2"


def lstm_cell(x, h, c, w, u, b):
    i, f, g, o = np.split(x @ w.T + h @ u.T + b, 4, -1)
    c = expit(f) * c + expit(i) * np.tanh(g)
    return expit(o) * np.tanh(c), c


def gru_cell(x, h, w, u, wb, ub):
    (xr, xz, xn), (hr, hz, hn) = np.split(x @ w.T + wb, 3, -1), np.split(h @ u.T + ub, 3, -1)
    z = expit(xz + hz)
    return (1 - z) * np.tanh(xn + expit(xr + hr) * hn) + z * h


def over_time(x, width, step, h):
    """The states h[1..] of h[t] = step(x[t], h[t - 1])."""
    out = np.empty((len(x), x.shape[1], width))
    for t in range(len(x)):
        out[t] = h = step(x[t], h)
    return out


def lstm(x, w, u, b, h, c):
    n = h.shape[1]
    both = over_time(x, 2 * n, lambda v, s: np.concatenate(lstm_cell(v, s[:, :n], s[:, n:], w, u, b), -1),
         np.concatenate([h, c], -1))
    return both[..., :n], both[..., n:]


def ssm(x, a, b, c):
    h = np.zeros(len(a))
    out = np.empty((len(x), len(c)))
    for t in range(len(x)):
        h = a @ h + b @ x[t]
        out[t] = c @ h
    return out


def selective_scan(x, dt, a, b, c, skip):
    h = np.zeros_like(a)
    out = np.empty_like(x)
    for t in range(len(x)):
        h = np.exp(dt[t][:, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        out[t] = h @ c[t] + skip * x[t]
    return out


CASES = [
    case("rnn", "L,B,D | small: H,D | small: H,H | H | B,H",
         lambda x, w, u, b, h: over_time(x, h.shape[1], lambda v, s: np.tanh(v @ w.T + s @ u.T + b), h), SIZES, tiny=SMALL,
              terms="L * (D + H)"),
    case("lstm", "L,B,D | small: 4*H,D | small: 4*H,H | 4*H | B,H | B,H", lstm, SIZES, tiny=SMALL, terms="L * (D + H)"),
    case("gru", "L,B,D | small: 3*H,D | small: 3*H,H | 3*H | 3*H | B,H",
         lambda x, w, u, wb, ub, h: over_time(x, h.shape[1], lambda v, s: gru_cell(v, s, w, u, wb, ub), h), SIZES, tiny=SMALL,
         terms="L * (D + H)"),
    case("lstm_cell", "B,D | B,H | B,H | 4*H,D | 4*H,H | 4*H", lstm_cell, CELL, terms="D + H"),
    case("gru_cell", "B,D | B,H | 3*H,D | 3*H,H | 3*H | 3*H", gru_cell, CELL, terms="D + H"),
    case("ssm", "L,D | small: N,N | N,D | E,N", ssm, "L D N E: 1 1 1 1; 5 3 4 2; 17 5 8 9; 0 2 3 4", terms="L * N * D"),
    case("selective_scan", "L,D | unit: L,D | D,N | L,N | L,N | D", lambda x, dt, a, b, c, s: selective_scan(x, dt, a, b, c, s),
         "L D N: 1 1 1; 5 3 4; 17 5 8; 0 2 3", terms="8 * L * N"),
]
