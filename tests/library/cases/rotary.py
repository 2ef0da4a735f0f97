"""Rotary embeddings, as rotations of complex numbers."""

import numpy as np

from tests.library.case import F32, case

SIZES = "B S H D: 1 1 1 2; 2 5 3 16; 1 17 2 34; 1 3 2 0"
TINY = "B S H D: 1 1 1 2; 2 2 1 4"
TABLES = "B,S,H,D | S,D//2 | S,D//2"


def half(x, c, s):
    h = x.shape[-1] // 2
    z = (x[..., :h] + 1j * x[..., h:]) * (c + 1j * s)[:, None, :]
    return np.concatenate([z.real, z.imag], -1)


def interleaved(x, c, s):
    z = (x[..., ::2] + 1j * x[..., 1::2]) * (c + 1j * s)[:, None, :]
    return np.stack([z.real, z.imag], -1).reshape(x.shape)


def tables(position, D, base=10000.0):
    angle = np.outer(position, base ** (-2 * np.arange(D // 2) / max(D, 1)))
    return np.cos(angle), np.sin(angle)


def sinusoids(S, D):
    c, s = tables(np.arange(S), D)
    return np.stack([s, c], -1).reshape(S, D)


CASES = [
    case("rotary", TABLES, half, SIZES, tiny=TINY),
    case("rotary_interleaved", TABLES, interleaved, SIZES, tiny=TINY),
    # an angle of up to 64 radians is rounded before its cosine is taken
    case("rotary_tables", "ids<65: S", tables, "S D: 1 2; 5 16; 17 64", dtypes=F32, terms="64", D="D"),
    case("sinusoids", "", sinusoids, "S D: 1 2; 5 16; 17 64; 3 0", tiny="S D: 1 2; 3 4", dtypes=F32, terms="17", S="S", D="D"),
]
