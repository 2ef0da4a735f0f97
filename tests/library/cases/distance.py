"""Distances, against scipy.spatial, and products over semirings by broadcasting."""

import numpy as np
from scipy.spatial.distance import cdist

from tests.library.case import F32, case

MND = "M N D: 1 1 1; 5 3 17; 16 15 8; 33 64 3; 0 3 4"
MKN = "M K N: 1 1 1; 5 3 17; 16 15 33; 64 7 8"
EMPTY = MND + "; 3 2 0"
AB = "M,D | N,D"


def euclid(a, b):
    return np.sqrt(((a[:, None] - b[None]) ** 2).sum(-1))


def cosine(a, b):
    return a @ b.T / np.maximum(np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)), 1e-8)


def nearest(a, b):
    d = cdist(a, b, "sqeuclidean")
    return d.argmin(1), d.min(1)


def semiring(reduce, combine):
    return lambda a, b: reduce(combine(a[:, :, None], b[None]), axis=1)


CASES = [
    case("distance_squared", AB, lambda a, b: euclid(a, b) ** 2, EMPTY, terms="4 * D"),
    case("distance_l2", AB, euclid, EMPTY, terms="4 * D"),
    # cancellation: the square root doubles the error's digits where two rows lie close together
    case("distance_l2_gemm", "M,D | pos: N,D", euclid, "M N D: 1 1 1; 5 3 17; 16 15 8; 33 64 8", terms="512 * D"),
    case("distance_l1", AB, lambda a, b: np.abs(a[:, None] - b[None]).sum(-1), EMPTY, terms="2 * D"),
    case("distance_chebyshev", AB, lambda a, b: np.abs(a[:, None] - b[None]).max(-1, initial=0), EMPTY),
    case("distance_hamming", "u8<0,4: M,D | u8<0,4: N,D", lambda a, b: (a[:, None] != b[None]).sum(-1), EMPTY, dtypes=F32),
    case("cosine_similarity", AB, cosine, EMPTY, terms="8 * D"),
    case("rbf_kernel", AB, lambda a, b, gamma: np.exp(-gamma * euclid(a, b) ** 2), EMPTY, terms="4 * D", gamma=0.5),
    case("nearest", AB, nearest, "M N D: 1 1 1; 5 3 17; 16 15 8; 33 64 3", terms="4 * D"),
    case("min_plus", "M,K | K,N", semiring(np.min, np.add), MKN, dtypes=("f32", "f64", "i32")),
    case("max_plus", "M,K | K,N", semiring(np.max, np.add), MKN, dtypes=("f32", "f64", "i32")),
    case("max_min", "M,K | K,N", semiring(np.max, np.minimum), MKN),
    case("or_and", "bool: M,K | bool: K,N", semiring(np.any, np.logical_and), MKN + "; 3 0 4", dtypes=F32),
]
