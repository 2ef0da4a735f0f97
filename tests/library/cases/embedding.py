"""Gather and scatter, against NumPy's fancy indexing and ufunc.at."""

import numpy as np

from tests.library.case import case

ANY = ("f32", "f64", "i32", "u8", "bool")
BAG = "B L V D: 1 1 1 1; 3 5 7 16; 9 4 50 17; 2 0 3 4; 0 2 3 4"
ROWS = "M N D: 1 1 1; 5 7 16; 33 4 17; 0 3 4; 3 5 0"


def scatter(ufunc, start):
    def want(x, at, N):
        out = np.full((N, x.shape[1]), start)
        ufunc.at(out, at, x)
        return out
    return want


def segment_mean(x, at, N):
    return scatter(np.add, 0.0)(x, at, N) / np.bincount(at, minlength=N)[:, None]


def graph_sum(x, source, target):
    out = np.zeros_like(x)
    np.add.at(out, target, x[source])
    return out


def spmm(value, row, column, b, M):
    out = np.zeros((M, b.shape[1]))
    np.add.at(out, row, value[:, None] * b[column])
    return out


CASES = [
    case("embedding", "ids<V: *Z | V,D", lambda i, e: e[i], "Z V D: - 1 1; 3 7 16; 2x3 50 17; 0 3 4",
         dtypes=("f32", "f64", "f16", "bf16")),
    case("embedding_positions", "ids<V: B,S | V,D | N,D", lambda i, e, p: e[i] + p[: i.shape[1]],
         "B S V N D: 1 1 1 1 1; 2 5 7 9 17; 3 4 9 4 64",
         tiny="B S V N D: 1 1 1 1 1; 2 2 3 4 2"),
    case("embedding_bag", "ids<V: B,L | V,D", lambda i, e: e[i].sum(1), BAG, terms="L"),
    case("embedding_bag_mean", "ids<V: B,L | V,D", lambda i, e: e[i].mean(1), BAG, terms="L"),
    case("embedding_bag_weighted", "ids<V: B,L | B,L | V,D", lambda i, w, e: np.einsum("bl,bld->bd", w, e[i]), BAG, terms="L"),
    case("take", "N | ids<N: *Z", lambda x, i: x[i], "N Z: 1 -; 7 5; 65 3x17; 4 0", dtypes=ANY),
    case("index_rows", "N,D | ids<N: M", lambda x, i: x[i], ROWS, dtypes=ANY),
    case("index_columns", "N,D | ids<D: M", lambda x, i: x[:, i], "M N D: 1 1 1; 5 7 16; 33 4 17; 0 3 4", dtypes=ANY),
    case("gather", "*Z,N | ids<N: *Z,M", lambda x, i: np.take_along_axis(x, i, -1), "Z N M: - 1 1; 3 17 5; 2x3 4 16; 2 3 0",
         dtypes=ANY),
    case("scatter_add", "M,D | ids<N: M", scatter(np.add, 0.0), ROWS, terms="M", N="N"),
    case("scatter_max", "M,D | ids<N: M", scatter(np.maximum, -np.inf), ROWS, N="N"),
    case("segment_mean", "M,D | ids<N: M", segment_mean, "M N D: 1 1 1; 5 7 16; 33 4 17; 3 5 0", terms="M", N="N"),
    case("graph_sum", "N,D | ids<N: E | ids<N: E", graph_sum, "N D E: 1 1 1; 5 7 16; 17 4 65; 3 4 0", terms="E"),
    case("spmm_coo", "E | ids<M: E | ids<K: E | K,N", spmm, "E M K N: 1 1 1 1; 9 4 5 17; 65 16 15 8; 0 3 4 5", terms="E", M="M"),
    case("bincount", "ids<N: M", lambda x, N: np.bincount(x, minlength=N), "M N: 1 1; 17 5; 100 16; 0 3", dtypes=("f32",), N="N"),
    case("one_hot", "ids<C: *Z", lambda x, C: (np.arange(C) == x[..., None]) * 1.0, "Z C: - 1; 5 4; 2x3 17; 0 3",
         dtypes=("f32",), C="C"),
]
