"""Padding, against numpy.pad."""

import numpy as np

from tests.library.case import case

ANY = ("f32", "u8")
LONG = "Z N: - 3; 3 16; 2x3 17; 5 65"
ZN = "Z N: - 1; 3 16; 2x3 17; 5 65; 4 0"


def pad(mode, x, before, after, axes=1, **kw):
    return np.pad(x, [(0, 0)] * (x.ndim - axes) + [(before, after)] * axes, mode=mode, **kw)


def line(mode):
    return lambda x, before=1, after=1: pad(mode, x, before, after)


def both(name, mode, sizes, **kw):
    return [case(name, "*Z,N", line(mode), sizes, tiny="Z N: - 3; 2 4", dtypes=ANY, **kw, **k) for k in ({},
         dict(before=2, after=0))]


IMAGES = "Z H W: - 3 3; 3 5 17; 2x3 8 4"
TINY = "Z H W: - 3 3; 2 3 4"

CASES = [
    case("pad_constant", "*Z,N", lambda x, value, before=1, after=1: pad("constant", x, before, after, constant_values=value), ZN,
         dtypes=ANY, value=7),
    case("pad_constant", "*Z,N", lambda x, value, before, after: pad("constant", x, before, after, constant_values=value), ZN,
         value=-0.5,
         before=0, after=3),
    *both("pad_reflect", "reflect", LONG),
    *both("pad_replicate", "edge", LONG),
    *both("pad_circular", "wrap", LONG),
    *[case("pad2d_constant", "*Z,H,W", lambda x, value,
           pad=1: np.pad(x, [(0, 0)] * (x.ndim - 2) + [(pad, pad)] * 2, constant_values=value),
           "Z H W: - 1 1; 3 5 17; 2x3 8 4; 2 0 3", value=0.5, **kw) for kw in ({}, dict(pad=2))],
    *[case(f"pad2d_{name}", "*Z,H,W", lambda x, pad=1,
           mode=mode: np.pad(x, [(0, 0)] * (x.ndim - 2) + [(pad, pad)] * 2, mode=mode), IMAGES,
           tiny=TINY, **kw) for name, mode in (("reflect", "reflect"), ("replicate", "edge")) for kw in ({}, dict(pad=2))],
]
