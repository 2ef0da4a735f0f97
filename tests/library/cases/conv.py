"""Convolutions, against one einsum for each place of the window."""

import itertools

import numpy as np

from tests.library.case import case


def correlate(x, f, spec, stride=1, pad=0, dilation=1, first=2, window=2):
    """Sum over the window of `spec`: an einsum of a shifted, strided x and one slice of f.

    In `spec` the image's dimensions are z, y and x; they start at `first` in x, the window's at `window` in f.
    """
    rank = sum(c in "xyz" for c in spec.split(",")[0])
    width = [(pad, pad) if first <= i < first + rank else (0, 0) for i in range(x.ndim)]
    x = np.pad(x, width)
    taps = f.shape[window : window + rank]
    out = [(x.shape[first + i] - dilation * (taps[i] - 1) - 1) // stride + 1 for i in range(rank)]
    total = 0
    for at in itertools.product(*map(range, taps)):
        cut = [slice(None)] * x.ndim
        for i, r in enumerate(at):
            cut[first + i] = slice(r * dilation, r * dilation + stride * (out[i] - 1) + 1, stride)
        total = total + np.einsum(spec, x[tuple(cut)], f[(slice(None),) * window + at])
    return total



def transposed(x, f, stride=1, pad=0):
    """Each input pixel spreads the filter over the output: the definition, for any number of image dimensions."""
    rank = x.ndim - 2
    taps = f.shape[2:]
    full = np.zeros((x.shape[0], f.shape[1], *[(n - 1) * stride + r for n, r in zip(x.shape[2:], taps, strict=True)]))
    for at in itertools.product(*map(range, taps)):
        cut = tuple(slice(r, r + stride * (n - 1) + 1, stride) for r, n in zip(at, x.shape[2:], strict=True))
        full[(slice(None), slice(None), *cut)] += np.einsum("bc...,ck->bk...", x, f[(slice(None), slice(None), *at)])
    return full[(slice(None), slice(None), *[slice(pad, n - pad) for n in full.shape[2:]])] if rank else full


def nchw(x, f, **kw):
    return correlate(x, f, "bcyx,kc->bkyx", **kw)


def depthwise(x, f, **kw):
    return correlate(x, f, "bcyx,c->bcyx", window=1, **kw)


def grad_filter(x, g, pad=0):
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    p, q = g.shape[2:]
    r, s = x.shape[2] - p + 1, x.shape[3] - q + 1
    out = np.zeros((g.shape[1], x.shape[1], r, s))
    for i, j in itertools.product(range(r), range(s)):
        out[:, :, i, j] = np.einsum("bcpq,bkpq->kc", x[:, :, i : i + p, j : j + q], g)
    return out


def im2col(x, window=3, stride=1, pad=0):
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    v = np.lib.stride_tricks.sliding_window_view(x, (window, window), (2, 3))[:, :, ::stride, ::stride]
    return v.transpose(0, 1, 4, 5, 2, 3)


SHAPE = ("B C K H W R S: 1 1 1 3 3 3 3; 2 3 5 8 9 3 3; 1 4 17 7 11 1 1; 2 2 3 9 8 5 3; 1 16 16 6 18 3 3; "
         "1 0 2 5 5 3 3; 0 2 2 5 5 3 3")
TINY = "B C K H W R S: 1 1 1 3 3 3 3; 2 2 3 5 4 3 2; 1 2 2 3 4 1 1"
LINE = "B C K L R: 1 1 1 3 3; 2 3 5 17 3; 1 4 17 20 5; 2 2 3 64 1; 1 0 2 7 3"
SMALL_LINE = "B C K L R: 1 1 1 3 3; 2 2 3 6 2"
SUM = "C * R * S"


def two(name, inputs, want, *, sizes=SHAPE, tiny=TINY, terms=SUM, dtypes=("f32", "f64"), **kw):
    return case(name, inputs, want, sizes, tiny=tiny, terms=terms, dtypes=dtypes, **kw)


CASES = [
    *[case("conv1d", "B,C,L | K,C,R", lambda x, f, **kw: correlate(x, f, "bcx,kc->bkx", **kw), LINE, tiny=SMALL_LINE,
           terms="C * R", **kw)
      for kw in ({}, dict(stride=2, pad=1), dict(pad=2, dilation=2))],
    *[two("conv2d", "B,C,H,W | K,C,R,S", nchw, **kw) for kw in (dict(stride=2), dict(stride=2, pad=1), dict(pad=2, dilation=2))],
    two("conv2d", "B,C,H,W | K,C,R,S", nchw, dtypes=("f32", "f64", "f16")),
    *[case("conv3d", "B,C,D,H,W | K,C,Q,R,S", lambda x, f, **kw: correlate(x, f, "bczyx,kc->bkzyx", **kw),
           "B C K D H W Q R S: 1 1 1 2 2 2 2 2 2; 2 3 5 4 5 6 2 3 3", tiny="B C K D H W Q R S: 1 2 1 3 2 3 2 1 2",
           terms="C * Q * R * S", **kw) for kw in ({}, dict(stride=2, pad=1))],
    *[two("conv2d_nhwc", "B,H,W,C | R,S,C,K", lambda x, f, **kw: correlate(x, f, "byxc,ck->byxk", first=1, window=0, **kw), **kw)
      for kw in ({}, dict(stride=2, pad=1))],
    *[case("conv1d_nlc", "B,L,C | R,C,K", lambda x, f, **kw: correlate(x, f, "bxc,ck->bxk", first=1, window=0, **kw), LINE,
           tiny=SMALL_LINE, terms="C * R", **kw) for kw in ({}, dict(stride=2, pad=1))],
    two("conv2d_bias", "B,C,H,W | K,C,R,S | K", lambda x, f, b, **kw: nchw(x, f, **kw) + b[:, None, None], pad=1),
    two("conv2d_bn_relu", "B,C,H,W | K,C,R,S | K | K",
        lambda x, f, a, b, **kw: np.maximum(nchw(x, f, **kw) * a[:, None, None] + b[:, None, None], 0), pad=1),
    two("conv2d_pointwise", "B,C,H,W | K,C", lambda x, f: np.einsum("bcyx,kc->bkyx", x, f)),
    *[two("conv2d_depthwise", "B,C,H,W | C,R,S", depthwise, terms="R * S", **kw) for kw in ({}, dict(stride=2, pad=1))],
    *[two("conv2d_depthwise_nhwc", "B,H,W,C | R,S,C",
          lambda x, f, **kw: correlate(x, f, "byxc,c->byxc", first=1, window=0, **kw), terms="R * S", **kw)
      for kw in ({}, dict(stride=2, pad=1))],
    case("conv1d_causal", "B,C,L | C,R | C",
         lambda x, f, b: correlate(np.pad(x, [(0, 0), (0, 0), (f.shape[1] - 1, 0)]), f, "bcx,c->bcx", window=1) + b[:, None],
         "B C L R: 1 1 1 1; 2 3 17 4; 1 16 65 4; 2 3 2 4", tiny="B C L R: 1 1 1 1; 2 2 5 3; 1 2 2 4", terms="R"),
    *[case("conv2d_grouped", "B,G,C,H,W | G,K,C,R,S", lambda x, f,
           **kw: correlate(x, f, "bgcyx,gkc->bgkyx", first=3, window=3, **kw),
           "B G C K H W R S: 1 1 1 1 3 3 3 3; 2 3 4 5 6 7 3 3; 1 4 2 16 8 5 1 3", tiny="B G C K H W R S: 1 2 2 3 4 4 3 2",
           terms=SUM, **kw) for kw in ({}, dict(stride=2, pad=1))],
    *[two("conv2d_separable", "B,C,H,W | C,R,S | K,C", lambda x, f, p,
          **kw: np.einsum("bcyx,kc->bkyx", depthwise(x, f, **kw), p), **kw)
      for kw in ({}, dict(stride=2, pad=1))],
    *[case("conv1d_transposed", "B,C,L | C,K,R", transposed, "B C K L R: 1 1 1 1 3; 2 3 5 8 4; 1 4 17 20 3",
           tiny="B C K L R: 1 2 2 3 3",
           terms="C * R", **kw) for kw in ({}, dict(stride=2, pad=1), dict(stride=3))],
    *[case("conv2d_transposed", "B,C,H,W | C,K,R,S", transposed, "B C K H W R S: 1 1 1 1 1 3 3; 2 3 5 4 5 4 3; 1 16 8 5 4 2 2",
           tiny="B C K H W R S: 1 2 2 2 3 3 2", terms=SUM, **kw) for kw in ({}, dict(stride=2, pad=1), dict(stride=2))],
    *[case("conv2d_grad_filter", "B,C,H,W | B,K,P,Q", grad_filter, "B C K H W P Q: 1 1 1 3 3 3 3; 2 3 5 6 7 4 5; 3 4 2 8 8 6 6",
           tiny="B C K H W P Q: 2 1 2 3 4 2 2", terms="B * P * Q", **kw) for kw in ({}, dict(pad=1))],
    *[case("im2col", "B,C,H,W", im2col, "B C H W: 1 1 3 3; 2 3 8 9; 1 4 5 17", tiny="B C H W: 1 2 4 3", **kw)
      for kw in ({}, dict(window=2, stride=2), dict(window=3, stride=2, pad=1))],
]
