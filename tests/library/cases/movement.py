"""Data movement; every result is exact."""

import ml_dtypes
import numpy as np

from tests.library.case import F32, case

ANY = ("f32", "f64", "u8")
ABC = "A B C: 1 1 1; 3 5 17; 16 15 8; 33 2 64; 2 0 3"
ABCD = "A B C D: 1 1 1 1; 2 3 5 17; 3 8 4 16; 2 0 3 4"
ZN = "Z N: - 1; 3 16; 2x3 17; 5 65; 4 0"
ZMN = "Z M N: - 1 1; 3 16 17; 2x3 5 4; 1 64 65; 2 0 3"


def permute(name, axes):
    inputs = "A,B,C" if len(axes) == 3 else "A,B,C,D"
    return case(name, inputs, lambda x: x.transpose(*axes), ABC if len(axes) == 3 else ABCD, dtypes=ANY)


def rows(name, want, sizes=ZN, dtypes=ANY, **kw):
    return case(name, "*Z,N", want, sizes, dtypes=dtypes, **kw)


def interleave(a, b):
    return np.stack([a, b], -1).reshape(*a.shape[:-1], -1)


def slice_update(x, u, start):
    x = x.copy()
    x[..., start : start + u.shape[-1]] = u
    return x


def pack(a, block=8):
    a = np.pad(a, [(0, -len(a) % block), (0, 0)])
    return a.reshape(-1, block, a.shape[1]).transpose(0, 2, 1)


def cache_update(cache, new, start):
    cache = cache.copy()
    cache[:, :, start : start + new.shape[2]] = new
    return cache


CASES = [
    case("transpose", "*Z,M,N", lambda x: x.swapaxes(-1, -2), ZMN, dtypes=(*ANY, "f16", "bool")),
    *[permute(f"permute_{a}{b}{c}", (a, b, c)) for a, b, c in ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))],
    permute("swap_heads", (0, 2, 1, 3)),
    permute("permute_3210", (3, 2, 1, 0)),
    permute("nchw_to_nhwc", (0, 2, 3, 1)),
    permute("nhwc_to_nchw", (0, 3, 1, 2)),
    case("copy", "*Z", np.copy, "Z: -; 1; 17; 2x3x5; 0", dtypes=(*ANY, "f16", "bf16", "i64", "bool")),
    case("concat", "*Z,M | *Z,N", lambda a, b: np.concatenate([a, b], -1), ZMN, dtypes=ANY),
    case("concat_first", "M,*Z | N,*Z", lambda a, b: np.concatenate([a, b], 0), ZMN, dtypes=ANY),
    case("concat_channels", "B,K,H,W | B,L,H,W | B,M,H,W", lambda *a: np.concatenate(a, 1),
         "B K L M H W: 1 1 1 1 1 1; 2 3 5 4 2 17; 1 0 2 3 4 4",
         dtypes=ANY),
    rows("split", lambda x, M: (x[..., :M], x[..., M:]), M="N // 3"),
    case("split_qkv", "*Z,3*N", lambda x: tuple(np.split(x, 3, -1)), ZN, dtypes=ANY),
    case("stack", "*Z | *Z", lambda a, b: np.stack([a, b]), "Z: -; 1; 17; 2x3x5; 0", dtypes=ANY),
    case("interleave", "*Z,N | *Z,N", interleave, ZN.replace("; 4 0", ""), dtypes=ANY),
    rows("flip", lambda x: x[..., ::-1]),
    case("flip_first", "N,*Z", lambda x: x[::-1], ZN, dtypes=ANY),
    *[rows("roll", lambda x, shift: np.roll(x, shift, -1), shift=s) for s in (0, "N // 2", "N")],
    *[rows("tile", lambda x, times=2: np.concatenate([x] * times, -1), **kw) for kw in ({}, dict(times=3))],
    *[rows("repeat", lambda x, times=2: x.repeat(times, -1), **kw) for kw in ({}, dict(times=3))],
    case("repeat_heads", "A,B,C,D", lambda x, times=2: x.repeat(times, 1), ABCD, dtypes=ANY),
    case("broadcast_rows", "N", lambda x, M: np.broadcast_to(x, (M, len(x))), "M N: 1 1; 5 17; 3 64; 0 3; 3 0", dtypes=ANY,
         M="M"),
    rows("slice", lambda x, start, stop: x[..., start:stop], start="N // 4", stop="N // 2"),
    *[rows("slice_step", lambda x, start=0, step=2: x[..., start::step], **kw) for kw in ({}, dict(step=3))],
    rows("slice_step", lambda x, start, step: x[..., start::step], "Z N: - 1; 3 16; 2x3 17; 5 65", start=1, step=4),
    case("slice_update", "*Z,N | *Z,N//2", slice_update, ZN, dtypes=ANY, start="N // 4"),
    case("diag", "N", np.diag, "N: 1; 5; 16; 17; 0", dtypes=ANY),
    case("diagonal", "N,N", np.diagonal, "N: 1; 5; 16; 17; 0", dtypes=ANY),
    case("eye", "", np.eye, "N: 1; 5; 16; 17; 0", dtypes=F32, N="N"),
    *[case("tril", "*Z,M,N", lambda x, k=0: np.tril(x, k), ZMN, dtypes=ANY, **kw) for kw in ({}, dict(k=2), dict(k=-1))],
    *[case("triu", "*Z,M,N", lambda x, k=0: np.triu(x, k), ZMN, dtypes=ANY, **kw) for kw in ({}, dict(k=2), dict(k=-1))],
    case("arange", "", lambda N: np.arange(N), "N: 0; 1; 17; 64", dtypes=F32, N="N"),
    case("full", "", lambda M, N, value: np.full((M, N), value), "M N: 1 1; 5 17; 0 3", dtypes=F32, M="M", N="N", value=2.5),
    case("to_f32", "*Z", lambda x: x.astype(np.float32), "Z: -; 17; 2x3x5; 0", dtypes=("f16", "bf16", "f64", "i32", "u8")),
    case("to_bf16", "*Z", lambda x: x.astype(ml_dtypes.bfloat16).astype(np.float64), "Z: -; 17; 2x3x5; 0", dtypes=F32),
    *[case("pack_panels", "M,K", pack, "M K: 1 1; 8 5; 17 16; 64 33; 0 3", dtypes=("f32", "f64", "f16"), **kw) for kw in ({},
           dict(block=6))],
    case("cache_update", "B,H,N,D | B,H,S,D", cache_update, "B H N D S: 1 1 1 1 1; 2 3 9 17 4; 1 2 64 8 1; 1 2 5 4 0",
         tiny="B H N D S: 1 1 1 1 1; 1 2 4 2 2", dtypes=("f32", "f16"), start="(N - S) // 2"),
]
