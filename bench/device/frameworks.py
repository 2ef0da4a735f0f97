"""What users do with a device: arrays of frameworks, streams, captured graphs, faults that are told, and the cost of a call."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import polyop
from polyop.ir.errors import PolyopError
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.memory import put

Check = Callable[[Device], str]
"""Says what it saw; raises if that is wrong, and ImportError without its framework."""


def right(got: Any, want: np.ndarray) -> None:
    """Raises AssertionError where `got` is not `want`, but for rounding."""
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=1e-4, atol=1e-4)


def matrices(n: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """Two that are not square, of f32."""
    g = np.random.default_rng(n)
    return g.standard_normal((n, n + 7)).astype(np.float32), g.standard_normal((n + 7, n - 5)).astype(np.float32)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """In float64."""
    return a.astype(np.float64) @ b.astype(np.float64)


def own_arrays(device: Device) -> str:
    """Memory from the driver's pool."""
    a, b = matrices()
    c = polyop.library("matmul")(put(a, device), put(b, device))
    right(c.numpy(), product(a, b))
    return type(c).__name__


def faults(device: Device) -> str:
    """A position outside is told with the next wait, and the device goes on."""
    rows, table = np.array([0, 3, 99]), np.arange(20, dtype=np.float32).reshape(5, 4)
    polyop.library("embedding")(put(rows, device), put(table, device))
    try:
        polyop.synchronize()
    except PolyopError as error:
        said = str(error).split("\n")[0]
    else:
        raise AssertionError("nobody said that row 99 of 5 was asked for")
    assert "E610" in said, said
    right(polyop.library("embedding")(put(rows[:2], device), put(table, device)).numpy(), table[[0, 3]].astype(np.float64))
    return said


def two_places(device: Device) -> str:
    """Arrays of the host and of a device are one error."""
    a, b = matrices()
    try:
        polyop.library("matmul")(put(a, device), b)
    except PolyopError as error:
        assert "E608" in str(error), error
        return str(error).split("\n")[0]
    raise AssertionError("a product of two places was taken")


def torch_streams(device: Device) -> str:
    """Work goes on the current stream, behind what is there."""
    import torch

    a, b = (torch.tensor(x, device=f"cuda:{device.index}") for x in matrices())
    matmul, want = polyop.library("matmul"), product(*matrices())
    right(matmul(a, b).cpu(), want)
    matmul(a * 2, b)  # what other addresses ask for is there by now
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)  # a second
        late = a * 2
        c = matmul(late, b)
    assert not side.query(), "the call waited for the device"
    side.synchronize()
    right(c.cpu(), 2 * want)
    return f"torch {torch.__version__}"


def torch_graph(device: Device) -> str:
    """A captured call, the first one of its operator, is carried out again with what lies there then."""
    import torch

    a, b = (torch.tensor(x, device=f"cuda:{device.index}") for x in matrices())
    gelu, matmul = polyop.library("gelu"), polyop.library("matmul")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = gelu(matmul(a, b))
    for factor in (1.0, 0.125):
        a.copy_(torch.tensor(matrices()[0] * factor))
        graph.replay()
        torch.cuda.synchronize()
        right(c.cpu(), torch.nn.functional.gelu(torch.tensor(product(*matrices()) * factor)).numpy())
    return "two replays"


def cupy_arrays(device: Device) -> str:
    """In and out."""
    import cupy

    with cupy.cuda.Device(device.index):
        a, b = (cupy.asarray(x) for x in matrices())
        c = polyop.library("matmul")(a, b)
        assert isinstance(c, cupy.ndarray), type(c)
        right(c.get(), product(*matrices()))
    return f"CuPy {cupy.__version__}"


def jax_arrays(device: Device) -> str:
    """In and out, by capsules."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else it takes three quarters of the memory
    import jax

    on = [d for d in jax.devices() if d.platform == "gpu"]
    if not on:
        raise ImportError("this jax sees no GPU")
    a, b = (jax.device_put(x, on[device.index]) for x in matrices())
    right(np.asarray(polyop.library("matmul")(a, b)), product(*matrices()))
    return f"jax {jax.__version__}"


def cost(device: Device) -> str:
    """Microseconds of the host for a call, beside torch's own."""
    import torch

    x = torch.ones(256, device=f"cuda:{device.index}")
    y, add = torch.empty_like(x), polyop.library("add")

    def least(call: Callable[[], Any]) -> float:
        found = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(500):
                call()
            found.append((time.perf_counter() - start) / 500 * 1e6)
        return min(found)

    ours, theirs = least(lambda: add(x, x, out=y)), least(lambda: torch.add(x, x, out=y))
    right(y.cpu(), np.full(256, 2.0))
    return f"{ours:.1f} us of the host, torch.add {theirs:.1f}"


CHECKS: tuple[Check, ...] = (own_arrays, faults, two_places, torch_streams, torch_graph, cost, cupy_arrays, jax_arrays)


def tried(k: int, device: Device) -> tuple[str, str]:
    """What the `k`-th check saw, or why it could not be made; and what was wrong."""
    try:
        return CHECKS[k](device), ""
    except ImportError as error:
        return f"not tried: {error}", ""
    except Exception as error:  # the rest is to be tried in any case
        return "", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
