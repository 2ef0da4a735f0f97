"""Pooling, against NumPy's sliding windows."""

import numpy as np

from tests.library.case import case


def windows(x, first, rank, window=2, stride=2, pad=0, outside=0.0):
    """x with `rank` more dimensions at its end: the window at each place."""
    axes = tuple(range(first, first + rank))
    x = np.pad(x, [(pad, pad) if i in axes else (0, 0) for i in range(x.ndim)], constant_values=outside)
    v = np.lib.stride_tricks.sliding_window_view(x, (window,) * rank, axes)
    return v[tuple(slice(None, None, stride) if i in axes else slice(None) for i in range(x.ndim))]


def top(first, rank):
    return lambda x, **kw: windows(x, first, rank, outside=-np.inf, **kw).max(tuple(range(-rank, 0)))


def mean(first, rank):
    return lambda x, **kw: windows(x, first, rank, **kw).mean(tuple(range(-rank, 0)))


LINE, IMAGE, VOLUME = "B,C,L", "B,C,H,W", "B,C,D,H,W"
SIZES = {
    LINE: "B C L: 1 1 3; 2 3 17; 1 5 64; 2 0 7",
    IMAGE: "B C H W: 1 1 3 3; 2 3 8 9; 1 17 5 4; 1 2 16 33",
    VOLUME: "B C D H W: 1 1 3 3 3; 2 3 4 5 7",
}
TINY = {LINE: "B C L: 1 1 3; 2 2 6", IMAGE: "B C H W: 1 1 3 3; 1 2 4 5", VOLUME: "B C D H W: 1 1 3 3 4"}
PADDED = dict(window=3, stride=2, pad=1)
THREE = dict(window=3, stride=1)


def pool(name, inputs, want, variants):
    shape = {"B,H,W,C": IMAGE}.get(inputs, inputs)
    return [case(name, inputs, want, SIZES[shape], tiny=TINY[shape], terms="27", **kw) for kw in variants]


PLAIN = "B C H W: 1 1 1 1; 2 3 8 9; 1 17 5 4; 1 2 16 33; 2 3 0 4"

CASES = [
    *pool("max_pool1d", LINE, top(2, 1), ({}, PADDED)),
    *pool("max_pool2d", IMAGE, top(2, 2), ({}, PADDED, THREE)),
    *pool("max_pool3d", VOLUME, top(2, 3), ({}, THREE)),
    *pool("max_pool2d_nhwc", "B,H,W,C", top(1, 2), ({}, PADDED)),
    *pool("avg_pool1d", LINE, mean(2, 1), ({}, PADDED)),
    *pool("avg_pool2d", IMAGE, mean(2, 2), ({}, PADDED, THREE)),
    *pool("avg_pool3d", VOLUME, mean(2, 3), ({}, THREE)),
    *pool("avg_pool2d_nhwc", "B,H,W,C", mean(1, 2), ({}, THREE)),
    *pool("l2_pool2d", IMAGE, lambda x, **kw: np.sqrt((windows(x, 2, 2, **kw) ** 2).sum((-2, -1))), ({}, THREE)),
    case("global_max_pool", "B,C,H,W", lambda x: x.max((2, 3), initial=-np.inf), PLAIN),
    case("global_avg_pool", "B,C,H,W", lambda x: x.mean((2, 3)), PLAIN, terms="H * W"),
    case("global_avg_pool_nhwc", "B,H,W,C", lambda x: x.mean((1, 2)), PLAIN, terms="H * W"),
    case("masked_mean_pool", "B,S,D | bool: B,S", lambda x, k: (x * k[:, :, None]).sum(1) / k.sum(1)[:, None],
         "B S D: 1 1 1; 2 9 17; 3 64 5; 2 0 3", terms="S"),
]
