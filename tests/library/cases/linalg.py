"""Linear algebra, against numpy.einsum and SciPy."""

import numpy as np
from scipy import linalg, special

from tests.library.case import ALSO_HALF, F32, case

MKN = "M K N: 1 1 1; 15 16 17; 65 33 64; 4 0 5; 0 3 4; 7 129 2"
LARGE = "M K N: 6 512 256; 7 513 257; 4801 2 65; 97 1025 31"
ZMKN = "Z M K N: - 5 3 2; 3 15 16 17; 2x2 8 5 9; 2 4 0 5"
ZKN = "Z K N: - 1 1; 3 16 17; 2x3 31 8; 5 0 4; 1 65 64"
MN = "M N: 1 1; 15 17; 64 65; 0 3; 3 0"
NK = "N K: 1 1; 5 3; 17 16; 33 65; 4 0"
SQUARE = "N: 1; 2; 5; 16; 17; 0"


def es(spec):
    return lambda *a: np.einsum(spec, *a)


def linear(x, w, b):
    return x @ w.T + b


def mm(name, inputs, spec, sizes=MKN, dtypes=("f32", "f64"), terms="K"):
    return case(name, inputs, es(spec), sizes, terms=terms, dtypes=dtypes)


def fused(name, f):
    return case(name, "*Z,K | N,K | N", lambda x, w, b: f(linear(x, w, b)), ZKN, terms="K")


CASES = [
    mm("matmul", "M,K | K,N", "mk,kn->mn", dtypes=ALSO_HALF),
    mm("matmul", "M,K | K,N", "mk,kn->mn", LARGE),
    mm("matmul_nt", "M,K | N,K", "mk,nk->mn", dtypes=ALSO_HALF),
    mm("matmul_nt", "M,K | N,K", "mk,nk->mn", LARGE),
    mm("matmul_tn", "K,M | K,N", "km,kn->mn"),
    mm("matmul_tt", "K,M | N,K", "km,nk->mn"),
    case("matmul_i8", "i8: M,K | i8: K,N", lambda a, b: a.astype(np.int32) @ b.astype(np.int32), MKN, dtypes=F32),
    mm("bmm", "*Z,M,K | *Z,K,N", "...mk,...kn->...mn", ZMKN),
    mm("bmm_nt", "*Z,M,K | *Z,N,K", "...mk,...nk->...mn", ZMKN),
    mm("bmm_tn", "*Z,K,M | *Z,K,N", "...km,...kn->...mn", ZMKN),
    case("gemm", "M,K | K,N | M,N", lambda a, b, c, alpha=1, beta=1: alpha * a @ b + beta * c, MKN, terms="K"),
    case("gemm", "M,K | K,N | M,N", lambda a, b, c, alpha, beta: alpha * (a @ b) + beta * c, MKN, terms="K", alpha=0.5,
         beta=-2.0),
    case("gemm_update", "M,N | M,K | K,N", lambda c, a, b, alpha, beta: alpha * (a @ b) + beta * c, MKN, terms="K",
         alpha=0.5, beta=2.0),
    mm("matvec", "M,K | K", "mk,k->m", "M K: 1 1; 15 17; 64 65; 5 0; 0 4"),
    mm("vecmat", "K | K,N", "k,kn->n", "K N: 1 1; 15 17; 64 65; 5 0; 0 4"),
    mm("dot", "N | N", "i,i->", "N: 0; 1; 15; 16; 17; 127; 1000", terms="N"),
    mm("dot_rows", "*Z,D | *Z,D", "...d,...d->...", "Z D: - 1; 3 16; 2x3 17; 5 65; 4 0", terms="D"),
    mm("outer", "M | N", "m,n->mn", MN, terms="1"),
    case("ger", "M,N | M | N", lambda a, x, y, alpha: a + alpha * np.outer(x, y), MN, alpha=0.5),
    case("axpy", "N | N", lambda y, x, alpha: y + alpha * x, "N: 0; 1; 15; 16; 17; 127; 1000", alpha=-0.75),
    mm("bilinear_form", "M | M,N | N", "m,mn,n->", MN, terms="M * N"),
    case("gram", "N,K", lambda a: a @ a.T, NK, terms="K"),
    case("syrk", "N,K", lambda a: np.tril(a @ a.T), NK, terms="K"),
    case("syr2k", "N,K | N,K", lambda a, b: np.tril(a @ b.T + b @ a.T), NK, terms="2 * K"),
    case("trmm", "M,M | M,N", lambda a, b: np.tril(a) @ b, MN, terms="M"),
    case("symm", "M,M | M,N", lambda s, b: (np.tril(s) + np.tril(s, -1).T) @ b, MN, terms="M"),
    case("trsv", "lower: N,N | N", lambda a, b: linalg.solve_triangular(a, b, lower=True) if len(b) else b, SQUARE,
         terms="4 * N"),
    case("trsm", "lower: M,M | M,N", lambda a, b: linalg.solve_triangular(a, b, lower=True) if b.size else b,
         "M N: 1 1; 5 3; 16 17; 0 3; 3 0",
         terms="4 * M"),
    case("cholesky", "spd: N,N", lambda a: np.linalg.cholesky(a), SQUARE, terms="4 * N"),
    mm("kron", "M,N | P,Q", "mn,pq->mpnq", "M N P Q: 1 1 1 1; 2 3 5 4; 7 2 3 17; 2 0 3 1", terms="1"),
    mm("khatri_rao", "I,R | J,R", "ir,jr->ijr", "I J R: 1 1 1; 5 4 17; 3 0 2", terms="1"),
    mm("mttkrp", "I,J,K | J,R | K,R", "ijk,jr,kr->ir", "I J K R: 1 1 1 1; 5 4 3 17; 8 7 9 16; 3 0 2 4", terms="J * K"),
    mm("ttm", "I,J,K | K,R", "ijk,kr->ijr", "I J K R: 1 1 1 1; 5 4 3 17; 8 7 19 16; 3 2 0 4"),
    mm("ttm_middle", "I,J,K | J,R", "ijk,jr->irk", "I J K R: 1 1 1 1; 5 4 3 17; 8 19 7 16; 3 0 2 4", terms="J"),
    mm("ao2mo", "P,A | P,Q,R,S", "pa,pqrs->aqrs", "P A Q R S: 1 1 1 1 1; 5 4 3 2 17; 16 15 2 3 4", terms="P"),
    mm("ccsd", "I,K,L | L,J,K", "ikl,ljk->ij", "I J K L: 1 1 1 1; 5 4 3 17; 16 15 9 4; 2 3 0 4", terms="K * L"),
    case("chain3", "M,K | K,L | L,N", lambda a, b, c: a @ b @ c, "M K L N: 1 1 1 1; 5 4 3 17; 16 33 15 20; 3 2 0 4",
         terms="K * L"),
    case("atax", "M,N | N", lambda a, x: a.T @ (a @ x), MN, terms="M * N"),
    case("trace", "N,N", np.trace, SQUARE, terms="N"),
    case("frobenius", "M,N", lambda a: np.sqrt((a * a).sum()), MN, terms="M * N"),
    mm("inner", "M,N | M,N", "mn,mn->", MN, terms="M * N"),
    case("linear", "*Z,K | N,K | N", linear, ZKN, terms="K", dtypes=ALSO_HALF),
    case("dense", "*Z,K | K,N | N", lambda x, w, b: x @ w + b, ZKN, terms="K"),
    fused("linear_relu", lambda s: np.maximum(s, 0)),
    fused("linear_gelu", lambda s: s * special.ndtr(s)),
    fused("linear_silu", lambda s: s * special.expit(s)),
    case("linear_residual", "*Z,K | N,K | N | *Z,N", lambda x, w, b, r: linear(x, w, b) + r, ZKN, terms="K"),
    case("linear_w8", "*Z,K | i8: N,K | pos: N", lambda x, w, s: (x @ w.T) * s, ZKN, terms="128 * K", dtypes=F32),
    case("bilinear", "B,I | B,J | O,I,J | O", lambda x, y, w, b: np.einsum("bi,bj,oij->bo", x, y, w) + b,
         "B I J O: 1 1 1 1; 3 5 4 7; 4 16 17 3; 2 0 3 2", terms="I * J"),
    case("lora", "M,N | M,K | R,K | N,R", lambda y, x, a, b, scale: y + scale * (x @ a.T @ b.T),
         "M K R N: 1 1 1 1; 5 17 4 9; 16 64 8 33; 3 4 0 2", terms="K * R", scale=0.5),
]
