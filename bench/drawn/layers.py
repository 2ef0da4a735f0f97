"""What networks are made of: layers, norms, attention, convolutions, pooling."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyop
from bench.drawn.draw import Case, Draw


def _cut(text: str) -> str:
    """`text` in one line."""
    return " ".join(text.split())


def linear(d: Draw, torch: Any) -> Case:
    """A layer of few or many rows, with a bias, and with an activation or without."""
    m, n, k = (d.size(1, 1500) for _ in range(3))
    if not 1e4 < m * n * k < 2e8:
        return linear(d, torch)
    act, w_at = d.one("", "relu", "sigmoid", "tanh", "silu", "gelu"), d.one("n, k", "k, n")
    x, w, b = d.array((m, k)), d.array((n, k) if w_at == "n, k" else (k, n)), d.array((n,))
    tx, tw, tb = (torch.from_numpy(a) for a in (x, w if w_at == "n, k" else w.T, b))
    f = polyop.op(f"op f(X: f32[M, K], W: f32[{w_at.upper()}], b: f32[N]) -> (Y: f32[M, N]) "
                  f"{{ t[m, n] += X[m, k] * W[{w_at}]; Y[m, n] = {act}(t[m, n] + b[n]) }}")
    own = torch.nn.functional if act in ("silu", "gelu") else torch
    by = getattr(own, act) if act else lambda t: t
    return Case(f"linear {m}x{n}x{k} W[{w_at}] {act}", lambda: f(x, w, b), {
        "torch": lambda: by(torch.nn.functional.linear(tx, tw, tb))})


def normal(d: Draw, torch: Any) -> Case:
    """Rows, groups or channels brought to the same mean, variance or length."""
    return d.one(_rows, _rows, _rows, _batch, _group)(d, torch)


_ROWS = {
    "layer": "m[r] += X[r, c]; u[r] = m[r] / C; q[r] += (X[r, c] - u[r]) * (X[r, c] - u[r]); "
             "Y[r, c] = (X[r, c] - u[r]) / sqrt(q[r] / C + 1e-5) * s[c]",
    "rms": "q[r] += X[r, c] * X[r, c]; Y[r, c] = X[r, c] / sqrt(q[r] / C + 1e-5) * s[c]",
    "l2": "q[r] += X[r, c] * X[r, c]; Y[r, c] = X[r, c] / max(sqrt(q[r]), 1e-12) * s[c]"}


def _rows(d: Draw, torch: Any) -> Case:
    shape, kind = d.shape((2, 2), high=4e6), d.one(*_ROWS)
    x, s, own = d.array(shape), d.array(shape[-1:]), torch.nn.functional
    t, ts = torch.from_numpy(x), torch.from_numpy(s)
    f = polyop.op(f"op f(X: f32[R, C], s: f32[C]) -> (Y: f32[R, C]) {{ {_ROWS[kind]} }}")
    by = {"layer": lambda: own.layer_norm(t, shape[-1:], ts), "rms": lambda: own.rms_norm(t, shape[-1:], ts, 1e-5),
          "l2": lambda: own.normalize(t, dim=1) * ts}
    return Case(f"{kind} norm {shape}", lambda: f(x, s), {"torch": by[kind]})


def _image(d: Draw) -> np.ndarray:
    return d.array((d.one(1, 2, 8), d.size(2, 256), d.size(2, 64), d.size(2, 64)))


def _batch(d: Draw, torch: Any) -> Case:
    x = _image(d)
    s, b, m, v = (d.array(x.shape[1:2]) for _ in range(4))
    v = np.abs(v) + 1
    f = polyop.op(_cut("""op f(X: f32[N, C, H, W], s: f32[C], b: f32[C], m: f32[C], v: f32[C]) -> (Y: f32[N, C, H, W])
        { Y[n, c, h, w] = (X[n, c, h, w] - m[c]) / sqrt(v[c] + 1e-5) * s[c] + b[c] }"""))
    t = [torch.from_numpy(a) for a in (x, m, v, s, b)]
    return Case(f"batch norm {x.shape}", lambda: f(x, s, b, m, v), {"torch": lambda: torch.nn.functional.batch_norm(*t)})


def _group(d: Draw, torch: Any) -> Case:
    x = _image(d)
    n, c, h, w = x.shape
    s, b, g = d.array((c,)), d.array((c,)), _divisor(c, 32)
    f = polyop.op(_cut("""op f(X: f32[N, G, D, H, W], s: f32[G, D], b: f32[G, D]) -> (Y: f32[N, G, D, H, W]) {
        m[n, g] += X[n, g, d, h, w]; u[n, g] = m[n, g] / (D * H * W); c[n, g, d, h, w] = X[n, g, d, h, w] - u[n, g];
        q[n, g] += c[n, g, d, h, w] * c[n, g, d, h, w];
        Y[n, g, d, h, w] = c[n, g, d, h, w] / sqrt(q[n, g] / (D * H * W) + 1e-5) * s[g, d] + b[g, d] }"""))
    given = x.reshape(n, g, c // g, h, w), s.reshape(g, -1), b.reshape(g, -1)
    t = [torch.from_numpy(a) for a in (x, s, b)]
    return Case(f"group norm {x.shape} in {g}", lambda: f(*given).reshape(x.shape), {
        "torch": lambda: torch.nn.functional.group_norm(t[0], g, t[1], t[2])})


def _divisor(n: int, most: int) -> int:
    """The largest divisor of `n` that is at most `most`."""
    return max(i for i in range(1, min(n, most) + 1) if n % i == 0)


def pool(d: Draw, torch: Any) -> Case:
    """The greatest or the mean of windows."""
    shape, r = (d.one(1, 1, 4), d.size(1, 128), d.size(7, 160), d.size(7, 160)), d.one(2, 3, 3, 5)
    step, by = d.one(1, 2, r), d.one("max", "avg")
    if not 1e4 < np.prod(shape) < 2e6:
        return pool(d, torch)
    x = d.array(shape)
    t, window = torch.from_numpy(x), f"X[n, c, {step}*p + r, {step}*q + s] where r in 0:{r}, s in 0:{r}"
    what = {"max": f"Y[n, c, p, q] max= {window}", "avg": f"t[n, c, p, q] += {window}; Y[n, c, p, q] = t[n, c, p, q] / {r} / {r}"}
    f = polyop.op(f"op f(X: f32[N, C, H, W]) -> (Y: f32[N, C, (H - {r})/{step} + 1, (W - {r})/{step} + 1]) "
                  f"where H >= {r}, W >= {r} {{ {what[by]} }}")
    peer = getattr(torch.nn.functional, f"{by}_pool2d")
    return Case(f"{by} pool {shape} {r} /{step}", lambda: f(x), {"torch": lambda: peer(t, r, step)})


def attention(d: Draw, torch: Any) -> Case:
    """Some heads, all of the keys or those before."""
    h, m, n, k = d.size(1, 32), d.size(1, 700), d.size(2, 700), d.one(16, 32, 64, 64, 80, 128)
    if not 1e5 < h * m * n * k < 4e8:
        return attention(d, torch)
    causal = d.g.random() < 0.3
    m = n if causal else m
    q, key, v = d.array((h, m, k)), d.array((h, n, k)), d.array((h, n, k))
    t = [torch.from_numpy(a)[None] for a in (q, key, v)]
    scaled = f"t[h, i, j] * {k ** -0.5}"
    f = polyop.op(_cut(f"""op f(Q: f32[H, M, D], K: f32[H, N, D], V: f32[H, N, D]) -> (Y: f32[H, M, D]) {{
        t[h, i, j] += Q[h, i, d] * K[h, j, d];
        s[h, i, j] = {f"j <= i ? {scaled} : -inf" if causal else scaled} where i in 0:M, j in 0:N;
        e[h, i, j] = exp(s[h, i, j] - max[k](s[h, i, k])); p[h, i, j] = e[h, i, j] / sum[k](e[h, i, k]);
        Y[h, i, d] += p[h, i, j] * V[h, j, d] }}"""))
    return Case(f"attention {h}x{m}x{n}x{k}{' causal' * causal}", lambda: f(q, key, v), {
        "torch": lambda: torch.nn.functional.scaled_dot_product_attention(*t, is_causal=causal)[0]})


def convolution(d: Draw, torch: Any) -> Case:
    """Of images, in steps, dilated."""
    while True:
        n, c, k, h, w = d.one(1, 1, 2, 8), d.size(1, 256), d.size(1, 256), d.size(6, 120), d.size(6, 120)
        r, step, apart = d.one(1, 2, 3, 3, 3, 5, 7), d.one(1, 1, 2, 3), d.one(1, 1, 1, 2)
        reach = (r - 1) * apart + 1
        p, q = ((x - reach) // step + 1 for x in (h, w))
        if min(h, w) >= reach and 5e5 < n * k * p * q * c * r * r < 2e8:
            break
    x, filters = d.array((n, c, h, w)), d.array((k, c, r, r))
    tensors = [torch.from_numpy(a) for a in (x, filters)]
    f = polyop.op(f"op f(X: f32[N, C, H, W], F: f32[K, C, R, R]) -> (Y: f32[N, K, (H - (R - 1)*{apart} - 1)/{step} + 1, "
                  f"(W - (R - 1)*{apart} - 1)/{step} + 1]) where H >= (R - 1)*{apart} + 1, W >= (R - 1)*{apart} + 1 "
                  f"{{ Y[n, k, p, q] += X[n, c, {step}*p + {apart}*r, {step}*q + {apart}*s] * F[k, c, r, s] }}")
    return Case(f"conv {n}x{c}x{h}x{w} {k} filters {r}x{r} /{step} dilated {apart}", lambda: f(x, filters), {
        "torch": lambda: torch.nn.functional.conv2d(*tensors, None, step, 0, apart)})


def other_convolution(d: Draw, torch: Any) -> Case:
    """One filter for each channel, in groups, of one dimension, transposed."""
    return d.one(_depthwise, _grouped, _of_rows, _transposed)(d, torch)


def _sizes(d: Draw, k: int = 1) -> tuple[int, int, int, int, int, int]:
    """Images, channels, rows, columns, window, step."""
    while True:
        n, c, h, w, r = d.one(1, 1, 4), d.size(2, 128), d.size(8, 100), d.size(8, 100), d.one(2, 3, 3, 5, 7)
        if 2e4 < n * c * h * w < 1e6 and n * c * k * h * w * r * r < 2e8:
            return n, c, h, w, r, d.one(1, 1, 2)


def _depthwise(d: Draw, torch: Any) -> Case:
    n, c, h, w, r, step = _sizes(d)
    x, fs = d.array((n, c, h, w)), d.array((c, r, r))
    f = polyop.op(f"op f(X: f32[N, C, H, W], F: f32[C, R, R]) -> (Y: f32[N, C, (H - R)/{step} + 1, (W - R)/{step} + 1]) "
                  f"where H >= R, W >= R {{ Y[n, c, p, q] += X[n, c, {step}*p + r, {step}*q + s] * F[c, r, s] }}")
    t = [torch.from_numpy(a) for a in (x, fs[:, None])]
    return Case(f"depthwise {x.shape} {r}x{r} /{step}", lambda: f(x, fs), {
        "torch": lambda: torch.nn.functional.conv2d(*t, None, step, 0, 1, c)})


def _grouped(d: Draw, torch: Any) -> Case:
    k = d.size(1, 16)
    n, c, h, w, r, step = _sizes(d, k)
    e, p, q = _divisor(c, 16), (h - r) // step + 1, (w - r) // step + 1
    x, fs = d.array((n, c // e, e, h, w)), d.array((c // e, k, e, r, r))
    f = polyop.op("op f(X: f32[N, G, C, H, W], F: f32[G, K, C, R, R]) "
                  f"-> (Y: f32[N, G, K, (H - R)/{step} + 1, (W - R)/{step} + 1]) "
                  f"where H >= R, W >= R {{ Y[n, g, k, p, q] += X[n, g, c, {step}*p + r, {step}*q + s] * F[g, k, c, r, s] }}")
    t = [torch.from_numpy(a) for a in (x.reshape(n, c, h, w), fs.reshape(-1, e, r, r))]
    return Case(f"grouped {(n, c, h, w)} {c // e} groups of {k} filters {r}x{r} /{step}", lambda: f(x, fs).reshape(n, -1, p, q), {
        "torch": lambda: torch.nn.functional.conv2d(*t, None, step, 0, 1, c // e)})


def _of_rows(d: Draw, torch: Any) -> Case:
    while True:
        n, c, k, h, r, step = d.one(1, 1, 4), d.size(2, 128), d.size(1, 128), d.size(20, 4000), d.one(2, 3, 5, 7), d.one(1, 1, 2)
        if 5e5 < n * c * h * k * r < 2e8:
            break
    x, fs = d.array((n, c, h)), d.array((k, c, r))
    f = polyop.op(f"op f(X: f32[N, C, H], F: f32[K, C, R]) -> (Y: f32[N, K, (H - R)/{step} + 1]) where H >= R "
                  f"{{ Y[n, k, p] += X[n, c, {step}*p + r] * F[k, c, r] }}")
    t = [torch.from_numpy(a) for a in (x, fs)]
    return Case(f"conv1d {x.shape} {k} filters {r} /{step}", lambda: f(x, fs), {
        "torch": lambda: torch.nn.functional.conv1d(*t, None, step)})


def _transposed(d: Draw, torch: Any) -> Case:
    k = d.size(1, 16)
    n, c, h, w, r, step = _sizes(d, k)
    x, fs = d.array((n, c, h, w)), d.array((c, k, r, r))
    f = polyop.op(f"op f(X: f32[N, C, H, W], F: f32[C, K, R, R]) -> (Y: f32[N, K, {step}*H + R - {step}, {step}*W + R - {step}]) "
                  f"where R >= {step} {{ Y[n, k, {step}*p + r, {step}*q + s] += X[n, c, p, q] * F[c, k, r, s] }}")
    t = [torch.from_numpy(a) for a in (x, fs)]
    return Case(f"transposed {x.shape} {k} filters {r}x{r} /{step}", lambda: f(x, fs), {
        "torch": lambda: torch.nn.functional.conv_transpose2d(*t, None, step)})


KINDS = (linear, normal, pool, attention, convolution, other_convolution)
