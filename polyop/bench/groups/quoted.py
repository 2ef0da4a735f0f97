"""What docs/design.md quotes and no other group has. It is measured only when it is named: it is no sample of anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polyop.bench.case import Case, Node, library, text
from polyop.bench.groups.convolutions import RESNET50, nchw, nhwc
from polyop.bench.groups.matrices import product
from polyop.bench.groups.numerics import jacobi, jacobi3
from polyop.bench.groups.passes import one_pass, overlapped

NARROW = text("""op matmul_i8_nt(A: i8[M, K], B: i8[N, K]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[n, k]) }""")
MIXED = text("op matmul_u8i8(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }")
BYTES = text("""op weights_of_bytes(A: bf16[M, K], W: i8[N, K], s: f32[N]) -> (C: bf16[M, N]) {
    c[m, n] += f32(A[m, k]) * f32(W[n, k])
    C[m, n] = bf16(c[m, n] * s[n]) }""")
GROUPS = text("""op weights_in_groups(A: f32[M, 32*G], W: i8[N, 32*G], S: f32[N, G]) -> (C: f32[M, N]) {
    C[m, n] += A[m, k] * f32(W[n, k]) * S[n, k / 32] }""")
PLACES = text("""op weights_of_places(A: f32[M, 32*G], W: i8[N, 32*G], S: f32[N, G]) -> (C: f32[M, N]) {
    C[m, n] += A[m, 32*g + j] * f32(W[n, 32*g + j]) * S[n, g]  where j in 0:32 }""")
PARTIAL = text("""op partial_sums(A: f32[M, 32*G], W: i8[N, 32*G], S: f32[N, G]) -> (C: f32[M, N]) {
    P[m, n, g] += A[m, 32*g + j] * f32(W[n, 32*g + j])  where j in 0:32
    C[m, n] += P[m, n, g] * S[n, g] }""")
BORDER = text("""op circular(X: f32[C, H, W]) -> (Y: f32[C, H+4, W+4]) where H >= 1, W >= 1 {
    Y[c, i, j] = X[c, (i - 2) % H, (j - 2) % W] }""")
SHIFT = text("""op fftshift(X: f32[C, H, W]) -> (Y: f32[C, H, W]) {
    Y[c, i, j] = X[c, (i + (H + 1) / 2) % H, (j + (W + 1) / 2) % W] }""")
MEAN = text("op mean_nhwc(X: f32[B, H, W, C]) -> (Y: f32[B, C]) where H >= 1, W >= 1 { Y[b, c] += X[b, h, w, c] / f32(H * W) }")
ACROSS = text("op sums_across(X: f32[M, N]) -> (Y: f32[N, M]) { Y[n, m] = (Y[n, m-1] else 0) + X[m, n] }")
WORDS = text("op matmul_i16(A: i16[M, K], B: i16[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }")


def quoted() -> Iterator[Case]:
    """The figures of the design, as they are now."""
    yield from _rewritten()
    yield from _recurrences()
    yield from _products()
    yield from _narrow()
    yield from _rows()
    yield from _written()
    yield from one_pass("quoted")
    yield from overlapped("quoted")
    for number, shape in enumerate(RESNET50):  # the group `conv` has the others
        if number % 2:
            yield nchw("quoted", 8, *shape)
            yield nhwc("quoted", 8, *shape)
    yield Case("quoted", "depthwise nhwc 3x3 144 56x56 /2", *library("conv2d_depthwise_nhwc"),
               {"B": 1, "C": 144, "H": 56, "W": 56, "R": 3, "S": 3, "stride": 2, "pad": 1}, torch=_depthwise)


def _depthwise(t: Any, x: Any, f: Any) -> Any:
    filters = f.permute(2, 0, 1)[:, None]
    return t.nn.functional.conv2d(x.permute(0, 3, 1, 2), filters, stride=2, padding=1, groups=f.shape[-1]).permute(0, 2, 3, 1)


def _rewritten() -> Iterator[Case]:
    """Remainders and rounds cut off."""
    for stride in (2, 3):
        yield Case("quoted", f"transposed 3x3 64->64 28x28 /{stride}", *library("conv2d_transposed"),
                   {"B": 1, "C": 64, "K": 64, "H": 28, "W": 28, "R": 3, "S": 3, "stride": stride, "pad": 1},
                   torch=lambda t, x, f, s=stride: t.nn.functional.conv_transpose2d(x, f, stride=s, padding=1))
    yield Case("quoted", "tile 1024x1000", *library("tile"), {"dim0": 1024, "N": 1000, "times": 2}, rank=1,
               torch=lambda t, x: x.tile(2), array=lambda xp, x: xp.tile(x, (1, 2)), quick=True)


def _recurrences() -> Iterator[Case]:
    """Sequences side by side, and grids in time tiles."""
    yield Case("quoted", "cummax rows 512x512", *library("cummax"), {"dim0": 512, "N": 512}, rank=1,
               torch=lambda t, x: t.cummax(x, -1)[0])
    yield Case("quoted", "log cumsum exp 512x512", *library("logcumsumexp"), {"dim0": 512, "N": 512}, rank=1, tolerance=1e-3,
               torch=lambda t, x: t.logcumsumexp(x, -1))
    for n, steps in ((64, 50), (1300, 50), (4000, 20)):
        yield Case("quoted", f"jacobi, {steps} steps {n}", *library("jacobi2d"), {"M": n, "N": n, "steps": steps},
                   torch=jacobi(steps))
    yield Case("quoted", "heat in space 200, 10 steps", *library("jacobi3d"), {"L": 200, "M": 200, "N": 200, "steps": 10},
               torch=jacobi3(10))


def _products() -> Iterator[Case]:
    """Few rows, few columns."""
    for kind, m, n, k in (("nt", 4, 512, 1024), ("nt", 8, 512, 768), ("nt", 8, 512, 4096), ("tn", 1024, 8, 768),
                          ("tn", 1024, 64, 768), ("nt", 1024, 2, 768)):
        yield product("quoted", kind, m, n, k, tolerance=1e-3)


def _narrow() -> Iterator[Case]:
    """Dot products of narrow numbers."""
    for m, n, k in ((256, 256, 256), (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (16, 4096, 4096),
                    *((m, 1024, 2048) for m in (4, 8, 16))):
        yield Case("quoted", f"i8 nn {m}x{n}x{k}", *library("matmul_i8"), {"M": m, "N": n, "K": k}, torch=_int8,
                   onnx=Node("MatMulInteger"))
    for m, n, k in ((16, 4096, 4096), *((m, 1024, 2048) for m in (4, 8, 16))):
        yield Case("quoted", f"i8 nt {m}x{n}x{k}", *NARROW, {"M": m, "N": n, "K": k}, torch=lambda t, a, b: _int8(t, a, b.T))
    yield Case("quoted", "u8 x i8 512", *MIXED, {"M": 512, "N": 512, "K": 512}, onnx=Node("MatMulInteger"))
    yield Case("quoted", "i16 512", *WORDS, {"M": 512, "N": 512, "K": 512})
    for kind, m, n, k in (("nn", 512, 512, 512), ("nt", 16, 4096, 4096),
                          *((kind, m, 1024, 2048) for m in (8, 16, 64) for kind in ("nt", "nn"))):
        yield product("quoted", kind, m, n, k, "bf16", tolerance=2e-2)


def _int8(t: Any, a: Any, b: Any) -> Any:
    return t._int_mm(a, b)


def _rows() -> Iterator[Case]:
    """Sums of rows and along rows, positions, runs."""
    for r, c in ((4096, 4096), (16, 1 << 20)):
        yield Case("quoted", f"sum {r}x{c} axis 0", *library("sum_columns"), {"N": r, "dim0": c}, rank=1, tolerance=1e-3,
                   torch=lambda t, x: x.sum(0), array=lambda xp, x: x.sum(0))
    for name, r, c in (("sum", 262144, 32), ("max", 262144, 32), ("sum", 4096, 32)):
        def torch(t: Any, x: Any, name: str = name) -> Any:
            return x.amax(1) if name == "max" else x.sum(1)

        def array(xp: Any, x: Any, name: str = name) -> Any:
            return getattr(x, name)(1)
        yield Case("quoted", f"{name} {r}x{c} axis 1", *library(f"{name}_rows"), {"dim0": r, "N": c}, rank=1, torch=torch,
                   array=array, tolerance=1e-3)
    for r, c in ((512, 512), (16, 1 << 20)):
        yield Case("quoted", f"argmax {r}x{c} axis 1", *library("argmax_rows"), {"dim0": r, "N": c}, rank=1,
                   torch=lambda t, x: x.argmax(1), array=lambda xp, x: x.argmax(1))
    yield Case("quoted", "kron 64x64 32x32", *library("kron"), {"M": 64, "N": 64, "P": 32, "Q": 32},
               torch=lambda t, a, b: a[:, None, :, None] * b[None, :, None, :])


def _written() -> Iterator[Case]:
    """What is the same as something faster, as people write it."""
    for m, n, k in ((16, 1024, 1024), (64, 4096, 4096), (256, 1024, 1024)):
        yield Case("quoted", f"bf16 x i8 scaled {m}x{n}x{k}", *BYTES, {"M": m, "N": n, "K": k}, tolerance=2e-2,
                   torch=lambda t, a, w, s: ((a @ w.to(t.bfloat16).T) * s).to(t.bfloat16))
    for how, of in (("groups of 32", GROUPS), ("places in 32", PLACES), ("partial sums of 32", PARTIAL)):
        yield Case("quoted", f"{how} 64x1024x2048", *of, {"M": 64, "N": 1024, "G": 64}, tolerance=1e-3,
                   torch=lambda t, a, w, s: a @ (w.reshape(*s.shape, 32) * s[..., None]).reshape(w.shape).T)
    yield Case("quoted", "circular border of 2 128x56x56", *BORDER, {"C": 128, "H": 56, "W": 56},
               torch=lambda t, x: t.nn.functional.pad(x[None], (2, 2, 2, 2), mode="circular")[0])
    yield Case("quoted", "fftshift 128x56x56", *SHIFT, {"C": 128, "H": 56, "W": 56},
               torch=lambda t, x: t.fft.fftshift(x, dim=(1, 2)), array=lambda xp, x: xp.fft.fftshift(x, (1, 2)))
    yield Case("quoted", "mean of 8x28x28x64 by terms", *MEAN, {"B": 8, "H": 28, "W": 28, "C": 64}, tolerance=1e-3,
               torch=lambda t, x: x.mean((1, 2)), array=lambda xp, x: x.mean((1, 2)))
    yield Case("quoted", "cumsum across 1024x1024", *ACROSS, {"M": 1024, "N": 1024}, tolerance=1e-3,
               torch=lambda t, x: x.cumsum(0).T.contiguous(), array=lambda xp, x: xp.ascontiguousarray(x.cumsum(0).T))
