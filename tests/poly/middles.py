"""Operators that go through the middle of the compiler, by rungs, and what NumPy says of them."""

from __future__ import annotations

import numpy as np

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.expr import evaluate
from polyop.ir.interpret import interpret
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options
from polyop.ir.span import Source
from polyop.ir.target import Target, target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.verify import first_failure, prove

V4 = target("x86:x86-64-v4")



RUNGS = ("tuned", "default", "distributed")

MATMUL = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
BIAS = """op f(A: f32[M, K], B: f32[N, K], b: f32[N]) -> (D: f32[M, N]) {
    C[m, n] += A[m, k] * B[n, k]; D[m, n] = relu(C[m, n] + b[n]) }"""
SOFTMAX = "op f(X: f32[R, C]) -> (Y: f32[R, C]) { e[r, c] = exp(X[r, c] - max[k](X[r, k])); Y[r, c] = e[r, c] / sum[k](e[r, k]) }"
CONV = """op f(X: f32[H, W, C], F: f32[3, 3, C, K]) -> (Y: f32[H, W, K]) {
    Y[p, q, k] += (X[p + r - 1, q + s - 1, c] else 0) * F[r, s, c, k] }"""
NCHW = """op f(X: f32[C, H, W], F: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
    Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s] }"""
TWICE_NCHW = """op f(X: f32[C, H, W], F: f32[K, C, 3, 3], Z: f32[C, H, W], G: f32[K, C, 3, 3]) -> (Y: f32[K, H, W]) {
    Y[k, p, q] += (X[c, p + r - 1, q + s - 1] else 0) * F[k, c, r, s]
    Y[k, p, q] += (Z[c, p + r - 1, q + s - 1] else 0) * G[k, c, r, s] }"""
SCAN = "op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y[r, c] = (Y[r, c-1] else 0) + X[r, c] }"
BACKWARDS = "op f(X: f32[R, C]) -> (Y: f32[R, C]) { Y[r, c] = (Y[r, c+1] else 0) + X[r, c] }"
ELMAN = """op f(X: f32[T, B, D], U: f32[D, D]) -> (H: f32[T, B, D]) {
    Z[t, b, j] += (H[t-1, b, k] else 0) * U[k, j]; H[t, b, j] = X[t, b, j] - Z[t, b, j] }"""
LEAPFROG = """op f(A: f32[T, N]) -> (Y: f32[T, N]) {
    P: f32[T, N]; Q: f32[T, N]
    P[t, i] = (Q[t-1, i-1] else 2) + A[t, i]
    Q[t, i] = 0.5 * P[t, i]
    Y[t, i] = P[t, i] }"""
UNREAD = """op f(A: f32[T, N]) -> (Y: f32[T, N]) {
    P: f32[T, N]
    P[t, i] = (P[t-2, i-1] else 2) + A[t, i]
    Y[t, i] = A[t, i] }"""
APART = "op f(A: f32[K], B: f32[N]) -> (y: f32) { y max= sum[k](A[k] * B[n]) where n in 0:N, n != 1 }"
APART_INSIDE = "op f(A: f32[4, N], B: f32[N, N]) -> (C: f32[4, N]) { C[k, j] += A[k, i] * B[i, j] where i != j, 2*i <= k }"
HEAT = """op f(X: f32[N]; steps: int) -> (Y: f32[N]) {
    A: f32[steps + 1, N]
    A[0, i] = X[i]
    A[t, i] = ((A[t-1, i-1] else 0) + A[t-1, i] + (A[t-1, i+1] else 0)) * 0.25  where t >= 1
    Y[i] = A[steps, i] }"""
TRIANGLE = "op f(L: f32[N, N], B: f32[N, M]) -> (C: f32[N, M]) { C[i, m] += L[i, k] * B[k, m]  where k <= i }"
LOWER = """op f(A: f32[N, K]) -> (C: f32[N, N]) {
    t[i, j] += A[i, k] * A[j, k] where j <= i
    C[i, j]  = j <= i ? t[i, j] : 0
}"""
BAND = "op f(A: f32[N, N], B: f32[N, M]) -> (C: f32[N, M]) { C[i, j] += A[i, k] * B[k, j] where i - 3 < k <= i + 1 }"
BESIDE = "op f(A: f32[I, K, B], M: f32[J, K]) -> (C: f32[J, B, I]) { C[j, b, a] += A[a, k, b] * M[j, k] }"
TRANSPOSE = "op f(X: f32[R, C]) -> (Y: f32[C, R]) { Y[c, r] = X[r, c] }"
ELSEWHERE = """op f(A: f32[M, K], B: f32[N, N]) -> (C: f32[M, N]) {
    C[m, n] max= (m != k ? A[m, k] : (B[n - k, n] else 2)) where k in 0:K, n in 0:N }"""
MAXPLUS = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] max= A[m, k] + B[k, n] }"


def op_of(text: str) -> Op:
    return instantiate(parse(Source("<test>", text)), "f")


def middle(text: str, rung: str, options: Options | None = None, units: dict[str, int | None] | None = None,
           fold: bool = True, t: Target = V4) -> Middle:
    return middle_of(op_of(text), rung, options, units, fold, t)


def middle_of(op: Op, rung: str, options: Options | None = None, units: dict[str, int | None] | None = None,
              fold: bool = True, t: Target = V4) -> Middle:
    layout = Layout(tuple((t.name, (units or {}).get(t.name, len(t.shape) - 1 if t.shape else None))
                          for t in op.tensors if t.role != "temp"))
    return lower(scop_of(op), layout, t, options or Options(), rung, fold)


def run(m: Middle, sizes: dict[str, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Inputs at random, and the first output."""
    rng, op = np.random.default_rng(0), m.scop.op
    arrays = {t.name: rng.integers(-3, 4, [evaluate(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in op.inputs}
    outputs = {t.name: np.full([evaluate(e, sizes) for e in t.shape], np.nan, t.dtype.numpy) for t in op.outputs}
    interpret(m.nest, sizes, {}, arrays | outputs)
    return arrays, outputs[op.outputs[0].name]


def proved(m: Middle) -> bool:
    failed = first_failure(prove(m.scop, m.nest, m.context))
    assert failed is None, failed
    return True


def elman(a):
    h, out = 0, []
    for x in a["X"]:
        h = x - h @ a["U"] if len(out) else x
        out.append(h)
    return np.array(out)


def leapfrog(a):
    out = a["A"].copy()
    for t in range(len(out)):
        out[t, 0] += 2
        out[t, 1:] += 0.5 * out[t - 1, :-1] if t else 2
    return out


def elsewhere(a):
    m, n = np.indices((len(a["A"]), len(a["B"])))
    return np.maximum(np.where(n >= m, a["B"][n - m, n], 2), np.where(np.eye(*a["A"].shape), -9, a["A"]).max(1)[:, None])


def heat(a, steps):
    x = a["X"]
    for _ in range(steps):
        p = np.pad(x, 1)
        x = (p[:-2] + p[1:-1] + p[2:]) * 0.25
    return x


def conv(a):
    p = np.pad(a["X"], ((1, 1), (1, 1), (0, 0)))
    h, w, _ = a["X"].shape
    return sum(p[r:r + h, s:s + w] @ a["F"][r, s] for r in range(3) for s in range(3))


def nchw(a):
    x = {"X": a["X"].transpose(1, 2, 0), "F": a["F"].transpose(2, 3, 1, 0)}
    return conv(x).transpose(2, 0, 1)


def softmax(a):
    e = np.exp(a["X"] - a["X"].max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


CASES = {
    "matmul": (MATMUL, lambda a, s: a["A"] @ a["B"],
               ({"M": 13, "N": 70, "K": 9}, {"M": 1, "N": 1, "K": 1}, {"M": 5, "N": 17, "K": 513})),
    "bias": (BIAS, lambda a, s: np.maximum(a["A"] @ a["B"].T + a["b"], 0),
             ({"M": 7, "N": 17, "K": 5}, {"M": 5, "N": 3, "K": 515})),
    "softmax": (SOFTMAX, lambda a, s: softmax(a), ({"R": 3, "C": 70}, {"R": 2, "C": 64}, {"R": 1, "C": 1})),
    "conv": (CONV, lambda a, s: conv(a), ({"H": 3, "W": 8, "C": 2, "K": 5}, {"H": 1, "W": 1, "C": 1, "K": 1})),
    "nchw": (NCHW, lambda a, s: nchw(a), ({"C": 2, "H": 3, "W": 18, "K": 5},)),
    "scan": (SCAN, lambda a, s: np.cumsum(a["X"], 1), ({"R": 3, "C": 17},)),
    "backwards": (BACKWARDS, lambda a, s: np.cumsum(a["X"][:, ::-1], 1)[:, ::-1], ({"R": 3, "C": 17},)),
    "elman": (ELMAN, lambda a, s: elman(a), ({"T": 4, "B": 7, "D": 5}, {"T": 1, "B": 1, "D": 1})),
    "leapfrog": (LEAPFROG, lambda a, s: leapfrog(a), ({"T": 5, "N": 19},)),
    "unread": (UNREAD, lambda a, s: a["A"], ({"T": 5, "N": 19},)),
    "apart": (APART, lambda a, s: np.delete(a["A"].sum() * a["B"], 1).max(), ({"N": 5, "K": 19},)),
    "apart inside": (APART_INSIDE, lambda a, s: (a["A"] * (2 * np.arange(s["N"]) <= np.c_[:4])) @ (a["B"] * (1 - np.eye(s["N"]))),
                     ({"N": 5}, {"N": 1})),
    "heat": (HEAT, lambda a, s: heat(a, s["steps"]), ({"N": 70, "steps": 4}, {"N": 1, "steps": 1}, {"N": 2, "steps": 3})),
    "triangle": (TRIANGLE, lambda a, s: np.tril(a["L"]) @ a["B"], ({"N": 9, "M": 20},)),
    "triangle t": (TRIANGLE.replace("L[i, k]", "L[k, i]"), lambda a, s: np.tril(a["L"].T) @ a["B"], ({"N": 9, "M": 20},)),
    "lower": (LOWER, lambda a, s: np.tril(a["A"] @ a["A"].T), ({"N": 70, "K": 3}, {"N": 7, "K": 20}, {"N": 1, "K": 1})),
    "band": (BAND, lambda a, s: np.triu(np.tril(a["A"], 1), -2) @ a["B"], ({"N": 21, "M": 17}, {"N": 2, "M": 1})),
    "beside": (BESIDE, lambda a, s: np.einsum("akb,jk->jba", a["A"], a["M"]), ({"I": 17, "K": 3, "B": 18, "J": 7},)),
    "transpose": (TRANSPOSE, lambda a, s: a["X"].T, ({"R": 17, "C": 35}, {"R": 1, "C": 1})),
    "elsewhere": (ELSEWHERE, lambda a, s: elsewhere(a), ({"M": 7, "N": 70, "K": 9},)),
    "maxplus": (MAXPLUS, lambda a, s: (a["A"][:, :, None] + a["B"]).max(1), ({"M": 7, "N": 17, "K": 3},)),
}


TIED = {
    "below": ("y[i] += A[k, i] * x[k] where k >= i", lambda a, x: np.tril(a).T @ x),
    "far below": ("y[i] += A[k, i] * x[k] where k >= i + 5", lambda a, x: np.tril(a, -5).T @ x),
    "band": ("y[i] += A[k, i] * x[k] where i - 3 <= k <= i + 70", lambda a, x: np.triu(np.tril(a.T, 70), -3) @ x),
    "maximum": ("y[i] max= A[k, i] where k >= i", lambda a, x: np.array([a[i:, i].max() for i in range(len(x))])),
    "beside": ("t[i] += A[k, i] * x[k] where k >= i; y[i] = t[i] * 2 + x[i]", lambda a, x: np.tril(a).T @ x * 2 + x),
}
