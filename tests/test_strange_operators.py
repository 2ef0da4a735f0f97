"""Operators that nobody put into the library, at sizes from 0 on and in every layout, against plain NumPy in float64."""

import numpy as np
import pytest

import polyop
from polyop.ir.options import Options

SIZES = (0, 1, 2, 17, 65)
LAYOUTS = ("plain", "Fortran", "sliced", "reversed", "repeated")
CASES = {}


def operator(text, inputs, sizes=SIZES, tolerance=1e-5):
    """A case: the operator `text`, its arguments for a size and a generator, and, decorated, what it computes."""
    def keep(want):
        CASES[want.__name__] = (text, inputs, want, sizes, tolerance)
        return want
    return keep


def laid_out(a, how):
    """`a` in another layout; "repeated" gives its first row everywhere, with stride 0."""
    if not isinstance(a, np.ndarray) or a.ndim == 0:
        return a
    match how:
        case "Fortran":
            return np.asfortranarray(a)
        case "sliced":
            room = np.zeros(tuple(2 * n + 3 for n in a.shape), a.dtype)
            out = room[tuple(slice(1, 1 + 2 * n, 2) for n in a.shape)]
            out[...] = a
            return out
        case "reversed":
            back = (slice(None, None, -1),) * a.ndim
            return np.ascontiguousarray(a[back])[back]
        case "repeated":
            return np.broadcast_to(a[:1], a.shape) if a.size else a
    return a


def agree(got, want, tolerance):
    got = got if isinstance(got, tuple) else (got,)
    want = want if isinstance(want, tuple) else (want,)
    for g, w in zip(got, want, strict=True):
        if g.dtype.kind == "f":
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance * max(1.0, np.abs(w).max(initial=0)))
        else:
            np.testing.assert_array_equal(g, w)


def f32(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def f64(rng, *shape):
    return rng.standard_normal(shape)


@operator("op f(A: f32[N, K], B: f32[K, L], C: f32[L, N]) -> (o: f32) { o += A[n, k] * B[k, l] * C[l, n] }",
          lambda n, r: {"A": f32(r, n, 7), "B": f32(r, 7, 5), "C": f32(r, 5, n)})
def cycle_of_three(A, B, C):
    return np.einsum("nk,kl,ln->", A.astype(float), B, C)


@operator("op f(A: f64[N, N, N]) -> (d: f64[N], t: f64) { d[i] = A[i, i, i]; t += A[i, i, j] * A[j, i, i] }",
          lambda n, r: {"A": f64(r, n, n, n)}, (0, 1, 2, 17))
def diagonals(A):
    return np.einsum("iii->i", A), np.einsum("iij,jii->", A, A)


@operator("""op f(A: f32[P, Q, R, S, T, U], B: f32[T, Q, P]) -> (C: f32[U, S, R]) {
    C[u, s, r] += A[p, q, r, s, t, u] * B[t, q, p]
}""",
          lambda n, r: {"A": f32(r, 2, 3, n, 2, 5, 4), "B": f32(r, 5, 3, 2)})
def rank_six(A, B):
    return np.einsum("pqrstu,tqp->usr", A.astype(float), B)


@operator("""fn g(a, b) = a * b + a + b
monoid onto(0, g)
op f(X: f64[M, N]) -> (r: f64[M], c: f64[N], t: f64) {
    r[m] onto= X[m, n]
    c[n] onto= X[m, n]  where n <= m
    t    onto= X[k, k]  where k in 0:min(M, N)
}""",
          lambda n, r: {"X": 0.1 * f64(r, n, n)}, tolerance=1e-11)
def own_monoid(X):
    return np.prod(1 + X, axis=1) - 1, np.prod(1 + np.tril(X), axis=0) - 1, np.prod(1 + np.diag(X)) - 1


@operator("""op f(X: f32[N]) -> (Y: f32[2*N + 1]) {
    Y[2*i + 1] = X[i]
    Y[2*i] = i < N ? X[i] * 2 : -1 where i in 0:N + 1
}""",
          lambda n, r: {"X": f32(r, n)})
def interleaved(X):
    Y = np.full(2 * len(X) + 1, -1.0)
    Y[1::2], Y[:-1:2] = X, 2 * X
    return Y


@operator("op f(X: f32[N]; k: int) -> (Y: f32[N]) { Y[i] = X[(i + k) % N] where i in 0:N }",
          lambda n, r: {"X": f32(r, n), "k": 3 * n + 2})
def rolled(X, k):
    return np.roll(X, -k)


@operator("""op f(X: f32[N]) -> (Y: f32[N]) {
    Y[4*i + j] = X[4*i + 3 - j] where j in 0:4, i in 0:N / 4
    Y[i] = -X[i] where i in N / 4 * 4:N
}""",
          lambda n, r: {"X": f32(r, n)})
def reversed_in_fours(X):
    Y, whole = -X, len(X) // 4 * 4
    Y[:whole] = X[:whole].reshape(-1, 4)[:, ::-1].ravel()
    return Y


@operator("""op f(A: f32[N, N], x: f32[N]; w: int) -> (y: f32[N], u: f32[N], l: f32[N]) {
    y[i] += A[i, j] * x[j]  where i - w <= j <= i + w
    u[i] += A[i, j] * x[j]  where j > i
    l[i] += A[j, i] * x[j]  where 2*j <= i
}""", lambda n, r: {"A": f32(r, n, n), "x": f32(r, n), "w": n // 3})
def bands(A, x, w):
    i, j = np.mgrid[:len(x), :len(x)]
    A = A.astype(float)
    return np.where(abs(i - j) <= w, A, 0) @ x, np.where(j > i, A, 0) @ x, np.where(2 * j <= i, A.T, 0) @ x


@operator("""op f(X: f32[N, N, N]) -> (o: f32[N], s: f32[N]) {
    t[i, j] += X[i, j, k]         where k <= j, j <= i
    o[i]    += t[i, j] * t[i, j]  where j <= i, j % 2 == 0
    s[i]    += X[i, j, k]         where i + j + k < N, (j + 2*k) % 3 == i % 3
}""", lambda n, r: {"X": f32(r, n, n, n)}, (0, 1, 2, 17))
def ragged(X):
    i, j, k = np.mgrid[:len(X), :len(X), :len(X)]
    X = X.astype(float)
    t = np.where((k <= j) & (j <= i), X, 0).sum(2)
    even, some = np.arange(len(X)) % 2 == 0, (i + j + k < len(X)) & ((j + 2 * k) % 3 == i % 3)
    return np.where(even, t * t, 0).sum(1), np.where(some, X, 0).sum((1, 2))


@operator("""op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N], D: f32[M, N]) {
    C[m, n] += A[m, k] * B[k, n] where m <= k
    D[m, n] += A[m, k] * B[k, n] where k <= n
}""",
          lambda n, r: {"A": f32(r, n, n + 1), "B": f32(r, n + 1, n)})
def triangular_products(A, B):
    A, B = A.astype(float), B.astype(float)
    m, k, n = np.ogrid[:A.shape[0], :A.shape[1], :B.shape[1]]
    return np.where(m <= k, A[:, :, None], 0)[:, :, 0] @ B, A @ np.where(k <= n, B[None], 0)[0]


@operator("""op f(X: f32[V, D], ids: i32[B, S], w: f32[B, S]) -> (Y: f32[B, D], C: i64[V], G: f32[V, D]) where V >= 1 {
    Y[b, d]          += w[b, s] * X[ids[b, s], d]            where w[b, s] > 0
    C[ids[b, s]]     += 1                                    where w[b, s] > 0
    G[ids[b, s], d]  += X[(ids[b, s] + 1) % V, d] * w[b, s]
}""", lambda n, r: {"X": f32(r, n, 5), "ids": r.integers(0, n, (3, n), np.int32), "w": f32(r, 3, n)}, (1, 2, 17, 65))
def bags(X, ids, w):
    Y, C, G = np.zeros((3, 5)), np.zeros(len(X), np.int64), np.zeros((len(X), 5))
    for b, s in np.ndindex(ids.shape):
        v = ids[b, s]
        if w[b, s] > 0:
            Y[b] += w[b, s] * X[v]
            C[v] += 1
        G[v] += X[(v + 1) % len(X)] * w[b, s]
    return Y, C, G


@operator("""op f(X: f32[N], p: i64[N]) -> (Y: f32[N], Z: f32[N]) {
    Y[i] = (X[p[i]] else X[p[i] - 1] else -1)
    Z[i] = (X[2*p[i]] else 0) + (X[i - p[i]] else X[i])
}""",
          lambda n, r: {"X": f32(r, n), "p": r.integers(-3, n + 3, n)})
def gathers_with_else(X, p):
    def at(i, other):
        return float(X[i]) if 0 <= i < len(X) else other
    Y, Z = [at(q, at(q - 1, -1)) for q in p], [at(2 * q, 0) + at(i - q, float(X[i])) for i, q in enumerate(p)]
    return np.array(Y), np.array(Z)


@operator("""op f(X: f64[T, B]) -> (Y: f64[T, B]) {
    Y[t, b] = X[t, b] + 0.5 * (Y[t+1, b] else 0) * (Y[t+3, B-1-b] else X[t, b])
}""",
          lambda n, r: {"X": 0.5 * f64(r, n, 4)}, tolerance=1e-12)
def backwards(X):
    Y = np.zeros_like(X)
    for t in reversed(range(len(X))):
        Y[t] = X[t] + 0.5 * (Y[t + 1] if t + 1 < len(X) else 0) * (Y[t + 3, ::-1] if t + 3 < len(X) else X[t])
    return Y


@operator("""op f(a: u8[M], b: u8[N]) -> (d: i64) {
    D: i64[M+1, N+1]
    D[i, j] = i == 0 ? j : j == 0 ? i : min(min((D[i-1, j] else 0) + 1, (D[i, j-1] else 0) + 1),
                                            (D[i-1, j-1] else 0) + ((a[i-1] else 0) == (b[j-1] else 0) ? 0 : 1))
    d = D[M, N]
}""", lambda n, r: {"a": r.integers(0, 4, n, np.uint8), "b": r.integers(0, 4, n + 2, np.uint8)}, (0, 1, 2, 17))
def edit_distance(a, b):
    D = np.add.outer(np.arange(len(a) + 1), np.arange(len(b) + 1))
    for i in range(1, len(a) + 1):
        for j in range(1, len(b) + 1):
            D[i, j] = min(D[i - 1, j] + 1, D[i, j - 1] + 1, D[i - 1, j - 1] + int(a[i - 1] != b[j - 1]))
    return D[-1, -1]


@operator("""op f(L: f64[N, N], b: f64[N]) -> (x: f64[N]) {
    s[i] += L[i, j] * x[j] where j < i
    x[i] = (b[i] - s[i]) / (2 + L[i, i] * L[i, i])
}""",
          lambda n, r: {"L": 0.1 * f64(r, n, n), "b": f64(r, n)}, tolerance=1e-9)
def triangular_solve(L, b):
    x = np.zeros(len(b))
    for i in range(len(b)):
        x[i] = (b[i] - L[i, :i] @ x[:i]) / (2 + L[i, i] ** 2)
    return x


@operator("""op f(next: i32[T, S], e: f32[T, S]) -> (P: f32[T, S]) where S >= 1 {
    P[t, s] = e[t, s] + 0.5 * (P[t-1, next[t, s]] else 0)
}""",
          lambda n, r: {"next": r.integers(0, n, (n, n), np.int32), "e": f32(r, n, n)}, (1, 2, 17, 65))
def recurrence_that_gathers(next, e):
    P = e.astype(float)
    for t in range(1, len(P)):
        P[t] += 0.5 * P[t - 1, next[t]]
    return P


@operator("""op f(x: f64[N]) -> (d: f64[N, N]) {
    d[i, j] = i == j ? x[i] : i > j ? (d[i-1, j] else 0) * 0.5 + x[i] : (d[i, j-1] else 0) * 0.25 - x[j]
}""",
          lambda n, r: {"x": f64(r, n)}, tolerance=1e-12)
def both_ways_from_the_diagonal(x):
    d = np.diag(x)
    for s in range(1, len(x)):
        for i in range(len(x) - s):
            d[i + s, i] = d[i + s - 1, i] * 0.5 + x[i + s]
            d[i, i + s] = d[i, i + s - 1] * 0.25 - x[i + s]
    return d


@operator("""op f(X: f32[M, N]) -> (a: i64[M], b: i64[M], c: i64[N], d: i64[M]) {
    a[m] argmax= X[m, n]; b[m] argmin= X[m, n]; c[n] argmax= X[m, n]; d[m] argmax= abs(X[m, n]) where X[m, n] < 0
}""", lambda n, r: {"X": np.where(r.random((n + 1, n)) < 0.02, np.nan, np.round(f32(r, n + 1, n))).astype(np.float32)})
def first_extremes(X):
    def first(row, keep=None):
        at = [i for i in range(len(row)) if keep is None or keep[i]]
        return at[int(np.argmax([row[i] for i in at]))] if at else -1
    with np.errstate(invalid="ignore"):
        return tuple(np.array(x, np.int64) for x in (
            [first(r) for r in X], [first(-r) for r in X], [first(c) for c in X.T], [first(abs(r), r < 0) for r in X]))


@operator("""op f(a: i64[N], b: i64[N], s: i64[N], u: u64[N], c: i8[N]) -> (q: i64[N], r: i64[N], l: i64[N],
                                                                h: i64[N], w: u64[N], e: i8[N]) {
    q[i] = a[i] / b[i];  r[i] = a[i] % b[i];    l[i] = a[i] << s[i]
    h[i] = a[i] >> s[i]; w[i] = u[i] / 3 - u[i]; e[i] = abs(c[i]) / 2 - c[i] * c[i]
}""", lambda n, r: {"a": np.where(r.random(n) < 0.2, -2**63, r.integers(-2**63, 2**63 - 1, n)), "b": r.integers(-3, 4, n),
                    "s": r.integers(-3, 70, n), "u": r.integers(0, 2**64 - 1, n, np.uint64),
                    "c": r.integers(-128, 128, n, np.int8)})
def integers_at_their_ends(a, b, s, u, c):
    def wrapped(values, dtype):
        bits = 8 * dtype().itemsize
        low = 0 if dtype is np.uint64 else -(1 << bits - 1)
        return np.array([(v - low) % (1 << bits) + low for v in values], dtype)
    a, b, s, u, c = ([int(v) for v in x] for x in (a, b, s, u, c))
    return (wrapped([x // y if y else 0 for x, y in zip(a, b, strict=True)], np.int64),
            wrapped([x % y if y else 0 for x, y in zip(a, b, strict=True)], np.int64),
            wrapped([x << k if 0 <= k < 64 else 0 for x, k in zip(a, s, strict=True)], np.int64),
            wrapped([x >> (k if 0 <= k < 64 else 63) for x, k in zip(a, s, strict=True)], np.int64),
            wrapped([x // 3 - x for x in u], np.uint64),
            wrapped([wrapped([abs(x)], np.int8).tolist()[0] // 2 - x * x for x in c], np.int8))


@operator("""op f(X: f32[N], D: f64[N]) -> (a: i8[N], b: u8[N], c: i64[N], d: u64[N], e: bool[N]) {
    a[i] = i8(X[i])
    b[i] = u8(X[i])
    c[i] = i64(D[i])
    d[i] = u64(D[i])
    e[i] = bool(X[i])
}""",
          lambda n, r: {"X": np.resize(ENDS, n).astype(np.float32), "D": np.resize(ENDS[::-1], n)})
def casts_saturate(X, D):
    def cast(values, dtype):
        low, high = (int(x) for x in (np.iinfo(dtype).min, np.iinfo(dtype).max))
        return np.array([0 if np.isnan(v) else high if v > high else low if v < low else int(v) for v in values.tolist()], dtype)
    return cast(X, np.int8), cast(X, np.uint8), cast(D, np.int64), cast(D, np.uint64), X != 0


ENDS = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 0.9, -0.9, 127.9, 128, -128.9, -129, 255.5, 256, -1,
                 2.0**63, -2.0**63, 2.0**64, 1e30])


@operator("""op g<T: float>(X: T[..., D]; const p: int = 2) -> (Y: T[..., D], n: T[...]) {
    q[...]   += p == 2 ? X[..., d] * X[..., d] : abs(X[..., d])
    Y[..., d] = X[..., d] / sqrt(q[...] + 1)
    n[...]    = q[...]
}
op f(X: f32[A, B, D]) -> (Z: f32[A, B, D], s: f32[A], m: f32[A, D]) {
    u, v = g(X)
    x, y = g(X, p=1)
    Z[a, b, d] = u[a, b, d] - x[a, b, d]
    s[a] += v[a, b] * y[a, b]
    w = softmax(u)
    m[a, d] max= w[a, b, d]
}""", lambda n, r: {"X": f32(r, 3, n, n)}, (0, 1, 2, 17))
def calls_in_calls(X):
    X = X.astype(float)
    q, p = (X * X).sum(-1), abs(X).sum(-1)
    u, x = X / np.sqrt(q + 1)[..., None], X / np.sqrt(p + 1)[..., None]
    e = np.exp(u)
    return u - x, (q * p).sum(1), (e / e.sum(-1, keepdims=True)).max(1, initial=-np.inf)


@operator("""op f(X: f32[T, B, D], len: i32[B], h: f32[B, D]) -> (H: f32[T, B, D], L: f32[B, D]) {
    H[t, b, d] = t < len[b] ? 0.5 * (H[t-1, b, d] else h[b, d]) + X[t, b, d] : (H[t-1, b, d] else h[b, d])
    L[b, d]    = T > 0 ? (H[T-1, b, d] else 0) : h[b, d]
}""", lambda n, r: {"X": f32(r, n, 3, 5), "len": r.integers(0, n + 2, 3, np.int32), "h": f32(r, 3, 5)})
def lengths(X, len, h):
    h, H = h.astype(float), np.zeros(X.shape)
    for t in range(X.shape[0]):
        h = np.where((t < len)[:, None], 0.5 * h + X[t], h)
        H[t] = h
    return H, h


@operator("""op f(X: u8[N]) -> (h: i64[256], c: i64[256], q: u8[N]) {
    h[X[i]] += 1
    c[i] = (c[i-1] else 0) + h[i]
    q[i] = u8(c[X[i]] * 255 / N)
}""", lambda n, r: {"X": r.integers(0, 256, n, np.uint8)})
def equalised(X):
    h = np.bincount(X, minlength=256)
    return h, np.cumsum(h), (np.cumsum(h)[X] * 255 // max(1, len(X))).astype(np.uint8)


@operator("""op f(A: f32[M, M]) -> (Y: f32[M, M]) {
    first: f32[]
    first = (A[0, 0] else 1)
    Y[i, j] += (j <= k ? first : 2) * (A[i, k] + first)
}""", lambda n, r: {"A": f32(r, n, n)})
def number_among_factors(A):
    """The columns are asked about by a condition alone, and what has them is one number."""
    A, n = A.astype(float), len(A)
    first = A[0, 0] if n else 1
    return (A + first) @ np.where(np.arange(n) <= np.arange(n)[:, None], first, 2)


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_numpy_does(name, caplog):
    text, inputs, want, sizes, tolerance = CASES[name]
    fast, strict = (polyop.op(text, "f", options=Options(numerics=n)) for n in ("fast", "strict"))
    before = polyop.get_num_threads()
    try:
        for n in sizes:
            for k, how in enumerate(LAYOUTS if n > 1 else LAYOUTS[:1]):
                polyop.set_num_threads(1 + k % 2)
                arguments = {p: laid_out(a, how) for p, a in inputs(n, np.random.default_rng(n)).items()}
                right = want(**arguments)
                agree(fast(**arguments), right, tolerance)
                if how == "plain":
                    got = strict(**arguments)
                    agree(got, right, tolerance)
                    out = tuple(laid_out(np.ones_like(g), "sliced") for g in (got if isinstance(got, tuple) else (got,)))
                    fast(**arguments, out=out)
                    agree(out, right, tolerance)
    finally:
        polyop.set_num_threads(before)
    assert not caplog.records, "nothing is interpreted, and no rung of the ladder broke"


@pytest.mark.parametrize("text", ["Y[n, m] += A[m]", "Y[n, m] += A[m] * A[m]", "Y[n, m] += A[k]  where k <= m, n in 0:N",
                                  "Y[n, m] += A[k]  where k <= n, m in 0:M"])
def test_what_is_added_to_each_row_or_column_may_be_the_same(text):
    add = polyop.op(f"op f(A: f32[M], inout Y: f32[N, M]) {{ {text} }}")
    a, y = np.arange(5, dtype=np.float32), np.ones((5, 5), np.float32)
    add(a, y)
    added = a * a if "*" in text else np.cumsum(a) if "<=" in text else a
    np.testing.assert_array_equal(y, np.broadcast_to(1 + (added[:, None] if "<= n" in text else added), (5, 5)))
