"""A block of a transformer as a graph: five operators, two kernels.

    python examples/graph_mlp.py

The operators are called on symbolic inputs, so nothing is computed at first. `compile` decides which of them share a kernel,
and prints why the others do not; the result is a function of arrays of any size.
"""

from __future__ import annotations

import numpy as np
from scipy.special import erf

import polyop
from polyop import graph
from polyop.graph import f32

linear = polyop.op("op linear(X: f32[..., D], W: f32[D, F]) -> (Y: f32[..., F]) { Y[..., f] += X[..., d] * W[d, f] }")
bias_add, gelu, add, layernorm = map(polyop.library, ("bias_add", "gelu", "add", "layernorm"))


def block() -> graph.Built:
    """layernorm(x + gelu(x W + b))"""
    x, w, b = graph.input("x", f32["B", "S", "D"]), graph.input("w", f32["D", "D"]), graph.input("b", f32["D"])
    g, shift = graph.input("g", f32["D"]), graph.input("shift", f32["D"])
    h = gelu(bias_add(linear(x, w), b))
    return graph.build(layernorm(add(x, h), g, shift))


def numpy_block(x, w, b, g, shift):
    """The same in float64."""
    x, w, b, g, shift = (a.astype(np.float64) for a in (x, w, b, g, shift))
    h = x @ w + b
    r = x + h * 0.5 * (1 + erf(h / np.sqrt(2)))
    d = r - r.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * g + shift


def main() -> None:
    built = block()
    print(built, end="\n\n")
    run = built.compile()
    print(run, end="\n\n")
    rng = np.random.default_rng(0)
    for batch, steps, width in ((1, 7, 48), (4, 32, 256), (2, 100, 384)):
        shapes = {"x": (batch, steps, width), "w": (width, width), "b": (width,), "g": (width,), "shift": (width,)}
        inputs = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
        inputs["w"] /= np.float32(width**0.5)
        error = np.abs(run(inputs) - numpy_block(**inputs)).max()
        print(f"x {shapes['x']}: largest difference from NumPy in float64 {error:.1e}")
        assert error < 1e-4


if __name__ == "__main__":
    main()
