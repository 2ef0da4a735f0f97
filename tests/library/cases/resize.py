"""Resizing and blocks, against repeat, reshape and an explicit interpolation."""

import numpy as np

from tests.library.case import case

ANY = ("f32", "u8")
SIZES = "B C H W: 1 1 1 1; 2 3 5 7; 1 17 4 8; 1 2 0 3"


def nearest(x, scale=2):
    return x.repeat(scale, 2).repeat(scale, 3)


def weights(n, scale):
    """The matrix of linear interpolation between the centres of n pixels."""
    at = np.clip((np.arange(n * scale) + 0.5) / scale - 0.5, 0, max(n - 1, 0))
    return np.maximum(1 - np.abs(at[:, None] - np.arange(n)), 0)


def bilinear(x, scale=2):
    return np.einsum("yi,bcij,xj->bcyx", weights(x.shape[2], scale), x, weights(x.shape[3], scale))


def blocks(x, n):
    b, c, h, w = x.shape
    return x.reshape(b, c, h // n, n, w // n, n)


def shuffle(x, scale=2):
    b, k, h, w = x.shape
    y = x.reshape(b, k // scale**2, scale, scale, h, w)
    return y.transpose(0, 1, 4, 2, 5, 3).reshape(b, k // scale**2, h * scale, w * scale)


def unshuffle(x, scale=2):
    b, c, h, w = x.shape
    return blocks(x, scale).transpose(0, 1, 3, 5, 2, 4).reshape(b, c * scale**2, h // scale, w // scale)


def space_to_depth(x, block=2):
    b, h, w, c = x.shape
    return x.reshape(b, h // block, block, w // block, block, c).transpose(0, 1, 3, 2, 4, 5)


def both(name, inputs, want, key, sizes, tiny="", dtypes=("f32", "f64"), **kw):
    """The operator with scale 2, its default, and with scale 3, where `n` and `m` stand for multiples."""
    return [case(name, inputs.replace("s*", f"{s}*"), want, sizes, tiny=tiny, dtypes=dtypes, **({} if s == 2 else {key: s}), **kw)
            for s in (2, 3)]


SMALL = "B C H W: 1 2 2 3"

CASES = [
    *both("upsample_nearest", "B,C,H,W", nearest, "scale", SIZES, SMALL, ANY),
    *both("upsample_nearest_nhwc", "B,H,W,C", lambda x, scale=2: x.repeat(scale, 1).repeat(scale, 2), "scale", SIZES, SMALL, ANY),
    *both("upsample_bilinear", "B,C,H,W", bilinear, "scale", SIZES, SMALL),
    *both("downsample_mean", "B,C,s*H,s*W", lambda x, scale=2: blocks(x, scale).mean((3, 5)), "scale", SIZES, SMALL),
    *both("downsample_nearest", "B,C,s*H,s*W", lambda x, scale=2: x[:, :, ::scale, ::scale], "scale", SIZES, SMALL, ANY),
    case("pixel_shuffle", "B,4*C,H,W", shuffle, SIZES, tiny=SMALL, dtypes=ANY),
    case("pixel_shuffle", "B,9*C,H,W", shuffle, SIZES, tiny=SMALL, dtypes=ANY, scale=3),
    *both("pixel_unshuffle", "B,C,s*H,s*W", unshuffle, "scale", SIZES, SMALL, ANY),
    *both("space_to_depth", "B,s*H,s*W,C", space_to_depth, "block", SIZES, SMALL, ANY),
    case("patchify", "B,C,16*H,16*W", lambda x, patch=16: blocks(x, patch).transpose(0, 2, 4, 1, 3, 5), "B C H W: 1 3 2 3",
         tiny="B C H W: 1 1 1 1"),
    case("patchify", "B,C,4*H,4*W", lambda x, patch: blocks(x, patch).transpose(0, 2, 4, 1, 3, 5), SIZES, tiny=SMALL, patch=4),
]
