"""The same as plain loops: what numba compiles. Some of it NumPy can run as it stands, a row at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any


def chain(x: Array, y: Array) -> Array:
    z = np.empty_like(x)
    for i in range(x.shape[0]):
        z[i] = max(x[i] * np.float32(2) + y[i], np.float32(0)) * x[i] - y[i]
    return z


def recurrence(a: Array, x: Array, h: Array) -> Array:
    out = np.empty_like(x)
    last = h.copy()
    for t in range(x.shape[0]):
        last = a[t] * last + x[t]
        out[t] = last
    return out


def min_plus(a: Array, b: Array) -> Array:
    out = np.full((a.shape[0], b.shape[1]), np.inf, a.dtype)
    for i in range(a.shape[0]):
        for k in range(a.shape[1]):
            for j in range(b.shape[1]):
                out[i, j] = min(out[i, j], a[i, k] + b[k, j])
    return out


def distance_l1(a: Array, b: Array) -> Array:
    out = np.empty((a.shape[0], b.shape[0]), a.dtype)
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            total = np.float32(0)
            for k in range(a.shape[1]):
                total += abs(a[i, k] - b[j, k])
            out[i, j] = total
    return out


def laplacian(x: Array) -> Array:
    m, n = x.shape
    out = np.empty_like(x)
    for i in range(m):
        for j in range(n):
            total = np.float32(-4) * x[i, j]
            if i > 0:
                total += x[i - 1, j]
            if i < m - 1:
                total += x[i + 1, j]
            if j > 0:
                total += x[i, j - 1]
            if j < n - 1:
                total += x[i, j + 1]
            out[i, j] = total
    return out


def levenshtein(a: Array, b: Array) -> Array:
    table = np.zeros((a.shape[0] + 1, b.shape[0] + 1), np.int32)
    table[0] = np.arange(b.shape[0] + 1)
    table[:, 0] = np.arange(a.shape[0] + 1)
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            table[i + 1, j + 1] = min(min(table[i, j + 1], table[i + 1, j]) + 1, table[i, j] + (1 if a[i] != b[j] else 0))
    return table
