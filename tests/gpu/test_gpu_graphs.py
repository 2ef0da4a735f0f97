"""Graphs, and contractions of many operands, whose arrays lie on a GPU."""

from __future__ import annotations

import sys

import fake_gpu
import numpy as np
import pytest
from fake_gpu import Capsules, FakeGpu

import polyop
from polyop.graph import f32
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.memory import GpuArray, put

MATMUL = polyop.op("op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
RELU = polyop.op("op relu(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = max(X[m, n], 0) }")


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


W1, W2 = numbers(4, 6, seed=1), numbers(6, 3, seed=2)


@pytest.fixture
def net() -> polyop.graph.Network:
    x = polyop.graph.input("x", f32["M", 4])
    return polyop.graph.build(MATMUL(RELU(MATMUL(x, W1)), W2)).compile()


def test_a_graph_runs_where_its_inputs_lie(gpu: FakeGpu, net: polyop.graph.Network) -> None:
    x = numbers(5, 4)
    want = np.maximum(x @ W1, 0) @ W2
    for _ in range(3):
        y = net({"x": put(x, Device(gpu.family, 0))})
        assert isinstance(y, GpuArray)
        np.testing.assert_allclose(y.numpy(), want, rtol=1e-4, atol=1e-5)
    z = net({"x": Capsules(x, gpu.family)})
    assert type(z) is Capsules
    np.testing.assert_allclose(z.array, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(net({"x": x}), want, rtol=1e-4, atol=1e-5)


def test_a_graph_of_tensors_of_torch_takes_memory_from_torch(cuda: FakeGpu, net: polyop.graph.Network,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_gpu.torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    x = numbers(5, 4)
    y = net({"x": torch.on_gpu(x)})
    np.testing.assert_allclose(y.array, np.maximum(x @ W1, 0) @ W2, rtol=1e-4, atol=1e-5)
    assert cuda.calls("cuMemAllocAsync") == 0 and torch.allocated >= 4


def test_constants_of_a_graph_may_come_from_a_gpu(gpu: FakeGpu) -> None:
    x = polyop.graph.input("x", f32["M", 4])
    net = polyop.graph.build(MATMUL(x, put(W1, Device(gpu.family, 0)))).compile()
    np.testing.assert_allclose(net({"x": numbers(2, 4)}), numbers(2, 4) @ W1, rtol=1e-4, atol=1e-5)


def test_einsum_runs_where_its_operands_lie(gpu: FakeGpu) -> None:
    a, b, c = numbers(3, 4), numbers(4, 5, seed=1), numbers(5, 2, seed=2)
    on = [put(x, Device(gpu.family, 0)) for x in (a, b, c)]
    np.testing.assert_allclose(polyop.einsum("ij,jk,kl->il", *on).numpy(), a @ b @ c, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(polyop.einsum("ij->ji", on[0]).numpy(), a.T)
