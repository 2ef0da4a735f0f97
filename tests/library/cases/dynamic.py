"""Dynamic programs, as the loops of a textbook."""

import numpy as np
from scipy.sparse.csgraph import floyd_warshall
from scipy.special import logsumexp

from tests.library.case import F32, case

TWO = "M N: 0 0; 1 1; 5 7; 17 16; 3 0"
LETTERS = "u8<0,4: M | u8<0,4: N"


def table(f, edge):
    """The table whose entry [i, j] is f(upper, left, diagonal, a, b), and edge(i, j) in row and column 0."""
    def want(a, b, **kw):
        d = np.zeros((len(a) + 1, len(b) + 1), np.int32)
        for i, j in np.ndindex(d.shape):
            d[i, j] = f(d[i - 1, j], d[i, j - 1], d[i - 1, j - 1], a[i - 1], b[j - 1], **kw) if i and j else edge(i, j)
        return d
    return want


def align(up, left, corner, a, b, match=2, mismatch=-1, gap=-1):
    return max(0, corner + (match if a == b else mismatch), up + gap, left + gap)


def dtw(a, b):
    d = np.full((len(a) + 1, len(b) + 1), np.inf)
    d[0, 0] = 0
    for i, j in np.ndindex(len(a), len(b)):
        d[i + 1, j + 1] = abs(a[i] - b[j]) + min(d[i, j + 1], d[i + 1, j], d[i, j])
    return d[1:, 1:]


def shortest(w):
    """SciPy's paths, except that the way from a node to itself is the shortest loop that W allows."""
    d = floyd_warshall(w * (1 - np.eye(len(w))))
    loop = np.minimum(np.diag(w),
         [min([d[i, j] + d[j, i] for j in range(len(w)) if j != i], default=np.inf) for i in range(len(w))])
    return d + np.diag(loop)


def viterbi(first, move, emit):
    score, back = np.empty_like(emit), np.full(emit.shape, -1)
    for t in range(len(emit)):
        paths = score[t - 1][:, None] + move if t else None
        score[t] = emit[t] + (paths.max(0) if t else first)
        back[t] = paths.argmax(0) if t else -1
    return score, back


def forward(first, move, emit):
    a = np.empty_like(emit)
    for t in range(len(emit)):
        a[t] = emit[t] + (logsumexp(a[t - 1][:, None] + move, axis=0) if t else first)
    return a


CASES = [
    case("levenshtein", LETTERS, table(lambda u, s, c, a, b: min(u + 1, s + 1, c + (a != b)), lambda i, j: i + j), TWO,
         dtypes=F32),
    case("lcs", LETTERS, table(lambda u, s, c, a, b: c + 1 if a == b else max(u, s), lambda i, j: 0), TWO, dtypes=F32),
    case("smith_waterman", LETTERS, table(align, lambda i, j: 0), TWO, dtypes=F32),
    case("smith_waterman", LETTERS, table(align, lambda i, j: 0), TWO, dtypes=F32, match=3, mismatch=-2, gap=-2),
    case("dtw", "M | N", dtw, "M N: 1 1; 5 7; 17 16", terms="M + N"),
    case("floyd_warshall", "pos: N,N", shortest, "N: 1; 2; 5; 17", terms="N"),
    case("viterbi", "S | S,S | L,S", viterbi, "L S: 1 1; 5 3; 17 8", terms="L"),
    case("hmm_forward", "S | S,S | L,S", forward, "L S: 1 1; 5 3; 17 8", terms="8 * L"),
]
