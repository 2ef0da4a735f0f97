"""Graphs evaluated without the compiler: by the reference evaluator, merged or call by call."""

from __future__ import annotations

import numpy as np

import polyop
from polyop.graph import f32
from polyop.graph.build import build
from polyop.graph.network import network
from polyop.graph.symbolic import input
from polyop.ir.expr import evaluate as value
from polyop.ir.reference import evaluate

LINEAR = polyop.op("op linear<T: float>(X: T[..., D], W: T[D, F]) -> (Y: T[..., F]) { Y[..., f] += X[..., d] * W[d, f] }")
SQUARE = polyop.op("op square(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = X[i, j] * X[i, j] }")
DOUBLE = polyop.op("op double(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = X[i, j] * 2 }")
ADD = polyop.op("op add(A: f32[N, N], B: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = A[i, j] + B[i, j] }")
FLIP = polyop.op("op flip(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = X[j, i] }")
BLUR = polyop.op("op blur(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = (X[i - 1, j] else 0) + X[i, j] + (X[i + 1, j] else 0) }")
MATMUL = polyop.op("op matmul(A: f32[N, N], B: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] += A[i, k] * B[k, j] }")
TOTAL = polyop.op("op total(X: f32[N, N]) -> (Y: f32[N]) { Y[i] += X[i, j] }")
SPREAD = polyop.op("op spread(X: f32[N, N], s: f32[N]) -> (Y: f32[N, N]) { Y[i, j] = X[i, j] - s[i] }")
SCAN = polyop.op("op scan(X: f32[N, N]) -> (Y: f32[N, N]) { Y[i, j] = (Y[i - 1, j] else 0) + X[i, j] }")
BOTH = polyop.op("op both(X: f32[N, N]) -> (Y: f32[N, N], Z: f32[N, N]) { Y[i, j] = X[i, j] + 1\n Z[i, j] = Y[i, j] * X[i, j] }")


def square(name, size="N"):
    return input(name, f32[size, size])


def by_reference(op):
    """Runs a merged Op element by element."""
    def run(*args, out):
        arrays = dict(zip((t.name for t in op.inputs), args, strict=False))
        sizes = dict(zip((p.name for p in op.params), args[len(op.inputs):], strict=True))
        for t in op.inputs:
            sizes.update({e.name: n for e, n in zip(t.shape, arrays[t.name].shape, strict=True) if e.name})
        for memory, t in zip(out, op.outputs, strict=True):
            memory[...] = evaluate(op, sizes, {}, arrays)[t.name]
    return run


def call_by_call(graph, inputs):
    """Every tensor of a graph, each operator on its own."""
    memory = {g: inputs[n] for n, g in graph.inputs} | dict(graph.constants)
    sizes = {e.name: n for _, g in graph.inputs for e, n in zip(graph.tensor(g).shape, memory[g].shape, strict=True) if e.name}
    for c in graph.calls:
        results = evaluate(c.op, {n: value(e, sizes) for n, e in c.sizes}, {n: k.value for n, k in c.scalars},
                           {i: memory[g] for i, g in c.reads})
        memory |= {g: results[o] for o, g in c.writes}
    return memory


def random_inputs(graph, size=3, seed=0):
    rng = np.random.default_rng(seed)
    sizes = dict.fromkeys(graph.sizes, size)
    shapes = {n: tuple(value(e, sizes) for e in graph.tensor(g).shape) for n, g in graph.inputs}
    return {n: rng.uniform(-1, 1, shape).astype(np.float32) for n, shape in shapes.items()}


def assert_merging_keeps_values(outputs, size=3):
    """The network by reference and the calls one by one give the same bits; the network."""
    built = build(outputs)
    inputs = random_inputs(built.graph, size)
    made = network(built.clusters(), runner=by_reference)
    memory = call_by_call(built.graph, inputs)
    for (_, g), got in zip(built.graph.outputs, made(inputs), strict=True):
        assert memory[g].tobytes() == got.tobytes(), f"{g} differs\n{made}"
    return made


def kernels(made):
    """The network in one line: `matmul+add | softmax`."""
    calls = made.graph.calls
    return " | ".join("+".join(calls[k].name for k in c.calls) for c in made.clustering.clusters)
