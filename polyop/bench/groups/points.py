"""Arrays that end in a few elements: pixels of colours, points of coordinates, real and imaginary parts, a few features."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from polyop.bench.case import Case, text


def points() -> Iterator[Case]:
    """What is usually done with such arrays."""
    yield from _pixels()
    yield from _coordinates()
    yield from _pairs()
    yield from _features()
    yield from _found()
    yield from _sums()


def _case(label: str, definition: str, sizes: dict[str, Any], **more: Any) -> Case:
    return Case("points", label, *text(f"op f{definition}"), sizes, **more)


def _pixels() -> Iterator[Case]:
    sizes = {"H": 480, "W": 640, "C": 3}
    for dtype in ("f32", "u8"):
        given, label = f"(X: {dtype}[H, W, C], m: f32[C], s: f32[C])", f"{dtype} 480x640x3"
        scaled = "(f32(X[h, w, c]) - m[c]) * s[c]"
        yield _case(f"normalise {label}", f"{given} -> (Y: f32[H, W, C]) {{ Y[h, w, c] = {scaled} }}", sizes,
                    torch=lambda t, x, m, s: (x.float() - m) * s, array=lambda xp, x, m, s: (x.astype("f4") - m) * s,
                    quick=dtype == "u8")
        yield _case(f"normalise {label} into planes", f"{given} -> (Y: f32[C, H, W]) {{ Y[c, h, w] = {scaled} }}", sizes,
                    torch=lambda t, x, m, s: ((x.float() - m) * s).permute(2, 0, 1).contiguous(),
                    array=lambda xp, x, m, s: xp.ascontiguousarray(((x.astype("f4") - m) * s).transpose(2, 0, 1)))
    yield _case("grey 480x640x3", "(X: f32[H, W, C], m: f32[C]) -> (Y: f32[H, W]) { Y[h, w] += X[h, w, c] * m[c] }", sizes,
                torch=lambda t, x, m: x @ m, array=lambda xp, x, m: x @ m, quick=True)
    yield _case("grey by colours 480x640x3",
                "(X: f32[H, W, C]) -> (Y: f32[H, W]) { Y[h, w] = 0.3 * X[h, w, 0] + 0.6 * X[h, w, 1] + 0.1 * X[h, w, 2] }", sizes,
                torch=lambda t, x: 0.3 * x[..., 0] + 0.6 * x[..., 1] + 0.1 * x[..., 2],
                array=lambda xp, x: 0.3 * x[..., 0] + 0.6 * x[..., 1] + 0.1 * x[..., 2])
    yield _case("sum of colours 480x640x3", "(X: f32[H, W, C]) -> (Y: f32[C]) { Y[c] += X[h, w, c] }", sizes,
                torch=lambda t, x: x.sum((0, 1)), array=lambda xp, x: x.sum((0, 1)))
    yield _case("greatest colour 480x640x3", "(X: f32[H, W, C]) -> (Y: i64[H, W]) { Y[h, w] argmax= X[h, w, c] }", sizes,
                torch=lambda t, x: x.argmax(2), array=lambda xp, x: x.argmax(2))
    yield _case("table of bytes 480x640x3", "(X: u8[H, W, C], t: f32[T]) -> (Y: f32[H, W, C]) { Y[h, w, c] = t[X[h, w, c]] }",
                {**sizes, "T": 256}, torch=lambda t, x, u: u[x.int()], array=lambda xp, x, u: u[x])


def _coordinates() -> Iterator[Case]:
    sizes = {"N": 100_000, "C": 3}
    rows = "(X: f32[N, C]) -> (Y: f32[N, C])"
    yield _case("100000x3 times 3x3", "(X: f32[N, C], W: f32[D, C]) -> (Y: f32[N, D]) { Y[n, d] += X[n, c] * W[d, c] }",
                {**sizes, "D": 3}, torch=lambda t, x, w: x @ w.T, array=lambda xp, x, w: x @ w.T, quick=True)
    yield _case("norms 100000x3", "(X: f32[N, C]) -> (Y: f32[N]) { q[n] += X[n, c] * X[n, c]; Y[n] = sqrt(q[n]) }", sizes,
                torch=lambda t, x: t.linalg.norm(x, dim=1), array=lambda xp, x: xp.linalg.norm(x, axis=1))
    yield _case("softmax 100000x3", f"{rows} {{ e[n, c] = exp(X[n, c] - max[k](X[n, k])); Y[n, c] = e[n, c] / sum[k](e[n, k]) }}",
                sizes, torch=lambda t, x: t.softmax(x, 1))
    yield _case("running sums 100000x3", f"{rows} {{ Y[n, c] = (Y[n, c - 1] else 0) + X[n, c] }}", sizes,
                torch=lambda t, x: t.cumsum(x, 1), array=lambda xp, x: xp.cumsum(x, 1))
    yield _case("cross products 100000x3", """(X: f32[N, 3], Y: f32[N, 3]) -> (Z: f32[N, 3]) {
        Z[n, c] = X[n, (c + 1) % 3] * Y[n, (c + 2) % 3] - X[n, (c + 2) % 3] * Y[n, (c + 1) % 3] }""", {"N": 100_000},
                torch=lambda t, x, y: t.linalg.cross(x, y), array=lambda xp, x, y: xp.cross(x, y))
    yield _case("what 1000 boxes have in common", """(A: f32[N, 4], B: f32[M, 4]) -> (Y: f32[N, M]) {
        w[n, m] = max(min(A[n, 2], B[m, 2]) - max(A[n, 0], B[m, 0]), 0.0)
        h[n, m] = max(min(A[n, 3], B[m, 3]) - max(A[n, 1], B[m, 1]), 0.0)
        Y[n, m] = w[n, m] * h[n, m] }""", {"N": 1000, "M": 1000}, torch=_in_common)


def _in_common(t: Any, a: Any, b: Any) -> Any:
    low, high = t.maximum(a[:, None, :2], b[None, :, :2]), t.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clamp(min=0).prod(2)


def _pairs() -> Iterator[Case]:
    def turned(t: Any, x: Any, c: Any, s: Any) -> Any:
        return t.view_as_real(t.view_as_complex(x) * t.complex(c, s)[:, None])

    yield _case("complex products 200000", """(X: f32[N, 2], Y: f32[N, 2]) -> (Z: f32[N, 2]) {
        Z[n, c] = X[n, 0] * Y[n, c] + X[n, 1] * (c == 0 ? -Y[n, 1] : Y[n, 0]) }""", {"N": 200_000},
                torch=lambda t, x, y: t.view_as_real(t.view_as_complex(x) * t.view_as_complex(y)),
                numpy=lambda np, x, y: (x.view("c8") * y.view("c8")).view("f4"))
    yield _case("rotated pairs 8x512x12x64", """(X: f32[B, S, H, D, 2], c: f32[S, D], s: f32[S, D]) -> (Y: f32[B, S, H, D, 2]) {
        Y[b, t, h, d, p] = X[b, t, h, d, p] * c[t, d] + (p == 0 ? -X[b, t, h, d, 1] : X[b, t, h, d, 0]) * s[t, d] }""",
                {"B": 8, "S": 512, "H": 12, "D": 32}, torch=turned)
    yield _case("halves of pairs 4096x128", """(X: f32[R, 2*N], C: f32[R, N], S: f32[R, N]) -> (Y: f32[R, 2*N]) {
        Y[r, 2*i] = X[r, 2*i] * C[r, i] - X[r, 2*i + 1] * S[r, i]
        Y[r, 2*i + 1] = X[r, 2*i] * S[r, i] + X[r, 2*i + 1] * C[r, i] }""", {"R": 4096, "N": 64},
                torch=lambda t, x, c, s: t.view_as_real(t.view_as_complex(x.view(*c.shape, 2)) * t.complex(c, s)).view(x.shape))


def _features() -> Iterator[Case]:
    for c in (8, 16, 32):
        sizes, shape = {"N": 50_000, "C": c}, f"50000x{c}"
        yield _case(f"{shape} times {c}", "(X: f32[N, C], w: f32[C]) -> (Y: f32[N]) { Y[n] += X[n, c] * w[c] }", sizes,
                    torch=lambda t, x, w: x @ w, array=lambda xp, x, w: x @ w)
        yield _case(f"sum of rows {shape}", "(X: f32[N, C]) -> (Y: f32[C]) { Y[c] += X[n, c] }", sizes,
                    torch=lambda t, x: x.sum(0), array=lambda xp, x: x.sum(0))
        yield _case(f"a number for each row {shape}", "(X: f32[N, C], s: f32[N]) -> (Y: f32[N, C]) { Y[n, c] = X[n, c] * s[n] }",
                    sizes, torch=lambda t, x, s: x * s[:, None], array=lambda xp, x, s: x * s[:, None])
        yield _rows_by_index(c)


def _rows_by_index(c: int) -> Case:
    return _case(f"rows by index 50000x{c}", "(X: f32[N, C], i: i64[P]) -> (Y: f32[P, C]) { Y[p, c] = X[i[p], c] }",
                 {"N": 50_000, "C": c, "P": 50_000}, torch=lambda t, x, i: x.index_select(0, i),
                 array=lambda xp, x, i: xp.take(x, i, 0))


def _found() -> Iterator[Case]:
    for c in (2, 4):
        yield _rows_by_index(c)
    yield _case("from 8 others 20000x3",
                "(X: f32[N, C], i: i64[N, K]) -> (Y: f32[N, K, C]) { Y[n, k, c] = X[i[n, k], c] - X[n, c] }",
                {"N": 20_000, "K": 8, "C": 3}, torch=lambda t, x, i: x[i] - x[:, None], array=lambda xp, x, i: x[i] - x[:, None])


def _sums() -> Iterator[Case]:
    """A few sums for each row, of which something is added up."""
    for c, k in ((4, 16), (8, 8)):
        yield _case(f"sums of sums 4000x{k}x{c}",
                    "(X: f32[N, K, C]) -> (Y: f32[N]) { q[n, c] += exp(X[n, k, c]); Y[n] += exp(-q[n, c]) }",
                    {"N": 4000, "K": k, "C": c}, torch=lambda t, x: (-x.exp().sum(1)).exp().sum(1),
                    array=lambda xp, x: xp.exp(-xp.exp(x).sum(1)).sum(1))
