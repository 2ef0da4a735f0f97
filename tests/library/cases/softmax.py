"""Softmax and its kin, against SciPy."""

import numpy as np
from scipy import special

from tests.library.case import ALSO_HALF, case

ZC = "Z C: - 1; 3 16; 2x3 17; 5 65; 2 127; 4 0; 0 4"
NC = "N C: 1 1; 5 17; 16 64; 7 127; 0 4"


def row(x, label):
    return np.take_along_axis(x, label[:, None], 1)[:, 0] if len(x) else x[:, 0]


def masked(x, keep):
    return np.nan_to_num(special.softmax(np.where(keep, x, -np.inf), -1))


def causal(x):
    return masked(x, np.tril(np.ones(x.shape[-2:], bool)))


def entropy(p):
    return special.entr(p).sum(-1)


def loss(x, label):
    return special.logsumexp(x, -1) - row(x, label)


def hot(x, label):
    return np.arange(x.shape[1]) == label[:, None]


CASES = [
    case("softmax", "wide: *Z,C", lambda x: special.softmax(x, -1) if x.size else x, ZC, dtypes=ALSO_HALF, terms="C"),
    case("softmax_first", "wide: C,*Z", lambda x: special.softmax(x, 0) if x.size else x, ZC, terms="C"),
    case("softmax_channels", "wide: B,C,H,W", lambda x: special.softmax(x, 1), "B C H W: 1 1 1 1; 2 5 3 17; 1 21 4 4", terms="C"),
    case("softmax_temperature", "wide: *Z,C", lambda x, temperature: special.softmax(x / temperature, -1) if x.size else x, ZC,
         terms="C", temperature=2.0),
    case("softmax_masked", "wide: *Z,C | bool: *Z,C", masked, "Z C: - 16; 3 16; 2x3 17; 5 65", terms="C", tiny="Z C: - 8; 2 9"),
    case("softmax_causal", "wide: *Z,S,S", causal, "Z S: - 1; 3 16; 2x3 5; 1 33", terms="S"),
    case("softmax_grad", "prob: *Z,C | *Z,C", lambda y, g: y * (g - (y * g).sum(-1, keepdims=True)), ZC, terms="C"),
    case("log_softmax", "wide: *Z,C", lambda x: special.log_softmax(x, -1) if x.size else x, ZC, terms="C"),
    case("logsumexp", "wide: *Z,C", lambda x: special.logsumexp(x, -1), "Z C: - 1; 3 16; 2x3 17; 5 65; 0 4", terms="C"),
    case("logsumexp_online", "wide: *Z,C", lambda x: special.logsumexp(x, -1), "Z C: - 1; 3 16; 2x3 17; 5 65; 0 4",
         terms="4 * C"),
    case("cross_entropy", "wide: N,C | ids<C: N", loss, NC, terms="C"),
    case("cross_entropy_mean", "wide: N,C | ids<C: N", lambda x, y: loss(x, y).mean(), "N C: 1 1; 5 17; 16 64; 7 127",
         terms="N + C"),
    case("cross_entropy_grad", "wide: N,C | ids<C: N", lambda x, y: special.softmax(x, -1) - hot(x, y) if x.size else x, NC,
         terms="C"),
    case("cross_entropy_soft", "wide: N,C | prob: N,C", lambda x, p: -(p * special.log_softmax(x, -1)).sum(-1),
         "N C: 1 1; 5 17; 16 64",
         terms="C"),
    case("nll", "logp: N,C | ids<C: N", lambda x, y: -row(x, y), NC),
    case("kl_div", "logp: *Z,C | prob: *Z,C", lambda q, p: special.rel_entr(p, np.exp(q)).sum(-1),
         "Z C: - 1; 3 16; 2x3 17; 4 0", terms="4 * C"),
    case("entropy", "prob: *Z,C", entropy, ZC, terms="C"),
]
