"""Scans, against NumPy's accumulate and loops over time."""

import numpy as np
from scipy import signal

from tests.library.case import case

ZN = "Z N: - 1; 3 16; 2x3 17; 5 65; 4 0; 2 127"
NUMBERS = ("f32", "f64", "i32", "i64")


def rows(name, f, *, dtypes=("f32", "f64"), kind="", terms="N", sizes=ZN, **kw):
    return case(name, f"{kind}*Z,N", f, sizes, dtypes=dtypes, terms=terms, **kw)


def shifted(x):
    return np.concatenate([np.zeros_like(x[..., :1]), x[..., :-1]], -1).cumsum(-1) if x.size else x


def recurrence(a, x, h):
    out = np.empty_like(x)
    for t in range(len(x)):
        out[t] = h = a[t] * h + x[t]
    return out


def ema(x, alpha):
    if not x.size:
        return x
    start = (1 - alpha) * x[..., :1]
    return signal.lfilter([alpha], [1, alpha - 1], x, zi=start)[0]


def biquad(x, b0, b1, b2, a1, a2):
    return signal.lfilter([b0, b1, b2], [1, a1, a2], x) if x.size else x


CASES = [
    rows("cumsum", lambda x: x.cumsum(-1), dtypes=NUMBERS),
    rows("cumsum_exclusive", shifted, dtypes=NUMBERS),
    rows("cumsum_reverse", lambda x: x[..., ::-1].cumsum(-1)[..., ::-1]),
    case("cumsum_columns", "N,*Z", lambda x: x.cumsum(0), ZN, terms="N"),
    rows("cumprod", lambda x: x.cumprod(-1), kind="pos: "),
    rows("cummax", lambda x: np.maximum.accumulate(x, -1), dtypes=NUMBERS),
    rows("cummin", lambda x: np.minimum.accumulate(x, -1)),
    rows("logcumsumexp", lambda x: np.logaddexp.accumulate(x, -1), kind="wide: ", terms="4 * N"),
    case("linear_recurrence", "L,D | L,D | D", recurrence, "L D: 1 1; 5 17; 64 16; 0 3", terms="L"),
    rows("ema", ema, alpha=0.25),
    case("discounted_returns", "L,B", lambda r, discount: recurrence(np.full_like(r, discount), r[::-1], 0 * r[:1].sum(0))[::-1],
         "L B: 1 1; 5 17; 64 16; 0 3", terms="L", discount=0.875),
    rows("biquad", biquad, terms="8 * N", b0=0.25, b1=0.5, b2=0.25, a1=-0.5, a2=0.25),
]
