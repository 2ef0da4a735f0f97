"""Images, against scipy.ndimage."""

import numpy as np
from scipy import ndimage

from tests.library.case import F32, case

HW = "H W: 5 5; 8 17; 16 15; 33 64"
ALL = "H W: 1 1; 5 5; 8 17; 33 64; 0 3; 3 0"
INNER = "H W: 2 2; 3 3; 8 17; 33 64; 2 5"
NUMBERS = ("f32", "f64", "u8")


def cut(x, n=1):
    return x[n : x.shape[0] - n, n : x.shape[1] - n]


def sobels(x):
    smooth, slope = np.array([1, 2, 1.0]), np.array([-1, 0, 1.0])
    return (ndimage.correlate(x, np.outer(smooth, slope)), ndimage.correlate(x, np.outer(slope, smooth)))


def sobel(x):
    return cut(np.hypot(*sobels(x)))


def harris(x, k=0.04):
    dx, dy = (s / 12 for s in sobels(x))
    xx, xy, yy = (ndimage.correlate(p, np.ones((3, 3))) for p in (dx * dx, dx * dy, dy * dy))
    return cut(xx * yy - xy * xy - k * (xx + yy) ** 2, 2)


def box(x, radius=1):
    return ndimage.uniform_filter(x, 2 * radius + 1, mode="constant") if x.size else x


def gaussian5(x):
    weights = np.array([1, 4, 6, 4, 1]) / 16
    return ndimage.correlate1d(ndimage.correlate1d(x, weights, 1, mode="nearest"), weights, 0, mode="nearest")


def sample(x, y, u):
    return np.stack([ndimage.map_coordinates(np.pad(c, 1), [y + 1, u + 1], order=1, mode="constant") for c in x])


def histogram(x, bins, lo, hi):
    return np.histogram(x, bins, (lo, hi))[0]


CASES = [
    case("blur3", "H,W", lambda x: cut(ndimage.uniform_filter(x, 3)), INNER, terms="9"),
    *[case("box", "H,W", box, ALL, terms="25", **kw) for kw in ({}, dict(radius=2))],
    case("gaussian5", "H,W", gaussian5, "H W: 1 1; 5 5; 8 17; 33 64; 2 3", terms="25"),
    case("sobel", "H,W", sobel, INNER, terms="25"),
    case("harris", "H,W", harris, "H W: 5 5; 8 17; 33 64", tiny="H W: 5 6", terms="25"),
    case("unsharp", "H,W", lambda x, amount=1: x + amount * (x - box(x)), ALL, terms="25"),
    case("unsharp", "H,W", lambda x, amount=1: x + amount * (x - box(x)), ALL, terms="25", amount=0.5),
    case("dilate3", "H,W", lambda x: cut(ndimage.grey_dilation(x, (3, 3))), INNER, dtypes=NUMBERS),
    case("erode3", "H,W", lambda x: cut(ndimage.grey_erosion(x, (3, 3))), INNER, dtypes=NUMBERS),
    case("median3", "H,W", lambda x: ndimage.median_filter(x, (1, 3))[:, 1 : x.shape[1] - 1], "H W: 1 3; 8 17; 33 64; 2 3",
         tiny="H W: 3 5",
         dtypes=NUMBERS),
    case("rgb_to_gray", "H,W,3", lambda x: x @ [0.299, 0.587, 0.114], ALL),
    case("rgb_to_gray_u8", "u8: H,W,3", lambda x: ((x.astype(int) @ [77, 150, 29] + 128) >> 8).astype(np.uint8), ALL, dtypes=F32),
    case("normalize_image", "u8: B,H,W,3 | 3 | pos: 3", lambda x, m, d: ((x / 255 - m) / d).transpose(0, 3, 1, 2),
         "B H W: 1 1 1; 2 5 17; 1 8 16",
         dtypes=F32),
    case("histogram_u8", "u8: H,W", lambda x: np.bincount(x.ravel(), minlength=256), ALL, dtypes=F32),
    case("histogram", "N", histogram, "N: 0; 1; 17; 1000", bins=8, lo=-0.5, hi=0.5),
    case("integral_image", "H,W", lambda x: x.cumsum(0).cumsum(1), ALL, terms="H * W"),
    case("threshold", "H,W", lambda x, level: (x > level).astype(np.uint8), ALL, level=0.25),
    case("sample_bilinear", "C,H,W | wide: N | wide: N", sample, "C H W N: 1 3 3 5; 3 8 7 65; 2 5 6 17", tiny="C H W N: 2 5 4 9"),
]
