"""Kernels of each pipeline of each target, with calls at the edges of their tiles, for mutants to be made of."""

from __future__ import annotations

from functools import cache

import numpy as np
from gpu_mutants import Kernel
from gpu_texts import compiled

from polyop.compiler import Compiled
from polyop.ir.expr import evaluate
from polyop.ir.module import launches
from polyop.ir.options import Options

Sizes = tuple[dict[str, int], ...]


def sized(names: str, *rows: tuple[int, ...]) -> Sizes:
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


PRODUCT = "op mm(A: f16[M, K], B: f16[N, K]) -> (C: f16[M, N]) { p[m,n] += f32(A[m,k]) * f32(B[n,k])\n  C[m,n] = f16(p[m,n]) }"
ACROSS = "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }"
WINDOW = ("op conv(X: f16[B, H, W, C], F: f16[3, 3, C, K]) -> (Y: f16[B, H, W, K]) {\n"
          "  y[b,p,q,k] += f32((X[b,p+r-1,q+s-1,c] else 0)) * f32(F[r,s,c,k])\n  Y[b,p,q,k] = f16(y[b,p,q,k]) }")
ATTENTION = """op attention(Q: f16[S, 64], K: f16[N, 64], V: f16[N, 64]) -> (O: f16[S, 64]) {
    s[i, j]  += f32(Q[i, d]) * f32(K[j, d]) CUT
    m[i]    max= s[i, j] CUT
    p[i, j]   = exp(s[i, j] - m[i]) CUT
    z[i]     += p[i, j] CUT
    o[i, v]  += f32(f16(p[i, j])) * f32(V[j, v]) CUT
    O[i, v]   = f16(o[i, v] / z[i])
}"""
EDGES = sized("M N K", (33, 41, 104), (47, 47, 20), (64, 64, 203))
BOXES = sized("M N K", (65, 41, 328), (47, 79, 40), (64, 64, 195))
STAYED = sized("M N K", (191, 264, 448), (256, 513, 51), (65, 40, 195))
HALOS = sized("B H W C K", (1, 3, 17, 72, 33), (2, 4, 8, 33, 32))
ROWS = sized("S N", (65, 129), (48, 63), (15, 192))
# by name: text, options, sizes, on which targets
TEXTS: dict[str, tuple[str, Options, Sizes, tuple[str, ...]]] = {
    "product": (PRODUCT, Options(tile=(32, 32)), EDGES, ("cuda:sm_80", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")),
    "across": (ACROSS, Options(tile=(32, 32)), EDGES, ("cuda:sm_80", "hip:gfx942", "hip:gfx1100")),
    "warpgroups": (PRODUCT, Options(tile=(64, 64)), BOXES, ("cuda:sm_90a",)),
    "roles": (PRODUCT, Options(), STAYED, ("cuda:sm_90a",)),
    "window": (WINDOW, Options(tile=(32, 32), lines=((1, 2, 16), ())), HALOS,
               ("cuda:sm_80", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")),
    "boxes of windows": (WINDOW, Options(tile=(64, 64), lines=((1, 4, 16), ())), HALOS, ("cuda:sm_90a",)),
    "attention": (ATTENTION.replace(" CUT", ""), Options(), ROWS,
                  ("cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")),
    "causal": (ATTENTION.replace("CUT", "where j <= i"), Options(), ROWS[:2], ("cuda:sm_80", "hip:gfx942")),
    "softmax": ("op softmax(X: f16[M, N]) -> (Y: f16[M, N]) { t[i] max= f32(X[i,j])\n  e[i,j] = exp(f32(X[i,j]) - t[i])\n"
                "  z[i] += e[i,j]\n  Y[i,j] = f16(e[i,j] / z[i]) }", Options(), sized("M N", (2, 257), (1, 2056), (3, 31)),
                ("cuda:sm_80", "hip:gfx942", "hip:gfx1100")),
    "columns": ("op columns(X: f32[M, N]) -> (Y: f32[N]) { Y[j] += X[i,j] }", Options(), sized("M N", (9, 33), (64, 32), (1, 65)),
                ("cuda:sm_80", "hip:gfx942")),
    "turned": ("op turned(X: f32[M, N]) -> (Y: f32[N, M]) { Y[j,i] = X[i,j] }", Options(), sized("M N", (40, 31), (64, 65)),
               ("cuda:sm_80", "hip:gfx942")),
    "scan": ("op scan(X: f32[M, N]) -> (Y: f32[M, N]) { Y[i, j] = (Y[i, j-1] else 0) + X[i, j] }", Options(),
             sized("M N", (2, 1042), (1, 77)), ("cuda:sm_80", "hip:gfx942")),
    "scattered": ("op scattered(X: f32[M, D], at: i32[M]) -> (Y: f32[4, D]) { Y[at[m], d] += X[m, d] }", Options(),
                  sized("M D", (9, 33), (40, 5)), ("cuda:sm_80", "hip:gfx942")),
}
SPREAD = {"attention": 0.3, "causal": 0.3}
"""Of inputs: weights of several keys are to count; elsewhere a wrong maximum is to show in exponentials."""
NAMES = tuple((name, where) for name, row in TEXTS.items() for where in row[3])


@cache
def kernel(name: str, where: str) -> Kernel:
    """The kernel of a name of TEXTS for a target."""
    text, options, sizes, _ = TEXTS[name]
    made = compiled(text, options, where)
    assert made.rung == "tuned" and made.module is not None, made.notes
    assert name in ("softmax", "scattered") or len(launches(made.module.launch)) == 1
    return Kernel(f"{name} on {where}", made.module, tuple(_call(made, s, SPREAD.get(name, 4.0)) for s in sizes))


def _call(made: Compiled, sizes: dict[str, int], spread: float) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    """Numbers of any size; or integers, whose sums are exact in each order, some of them positions outside."""
    g, exact = np.random.default_rng(1), any(t.dtype.name == "i32" for t in made.op.tensors)
    arrays = {}
    for t in made.op.tensors:
        if t.role == "temp":
            continue
        shape = [evaluate(e, sizes) for e in t.shape]
        given = g.integers(-3, 5, shape) if exact else spread * g.standard_normal(shape)
        arrays[t.name] = (given if t.role == "in" else np.zeros(shape)).astype(t.dtype.numpy)
    return sizes, arrays
