"""The hand-written Triton kernels that `bench/gpu.py` measures, carried out by Triton's interpreter on the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch is not installed")
os.environ.setdefault("TRITON_INTERPRET", "1")  # read when Triton's kernels are defined
peers: Any = pytest.importorskip("bench.device.triton_peers", reason="triton is not installed", exc_type=ImportError)

from bench.device import cases  # noqa: E402

F = torch.nn.functional


def _each(op: str, args: tuple[Any, ...], want: Any, room: float = 1e-4, **also: Any) -> None:
    """Every way to run `op` finds `want`, which is of float64."""
    assert peers.ways(op, args)
    for way in peers.ways(op, args):
        got = way(*args, **also)
        for g, w in zip(got, want, strict=True) if isinstance(got, tuple) else ((got, want),):
            assert g.shape == w.shape and g.dtype == args[0].dtype
            assert float((g.double() - w).norm() / w.norm()) < room, (op, way)


def _random(*shape: int, t: Any = None) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32).to(t or torch.float32)


@pytest.mark.parametrize(("t", "room"), [("float32", 1e-5), ("float16", 2e-3)])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 70, 50), (130, 257, 65)])
def test_products_have_any_size(m: int, n: int, k: int, t: str, room: float) -> None:
    a, b = _random(m, k, t=getattr(torch, t)), _random(k, n, t=getattr(torch, t))
    _each("matmul", (a, b), a.double() @ b.double(), room)


def test_grouped_blocks_compute_each_tile_once() -> None:
    a, b = _random(64 * 11, 32), _random(32, 64 * 3)
    _each("matmul", (a, b), a.double() @ b.double(), 1e-5)


def test_products_come_in_numbers_and_with_what_follows_them() -> None:
    a, b = _random(3, 33, 40), _random(3, 40, 65)
    _each("bmm", (a, b), a.double() @ b.double())
    x, w, c = _random(70, 40), _random(90, 40), _random(90)
    _each("linear_gelu", (x, w, c), F.gelu(F.linear(x.double(), w.double(), c.double())))


@pytest.mark.parametrize("d", [16, 64])
@pytest.mark.parametrize(("op", "s", "t"), [("attention", 70, 150), ("attention", 1, 128), ("attention_causal", 150, 150),
                                            ("attention_causal", 256, 256)])
def test_attention_is_that_of_all_keys_a_row_sees(op: str, s: int, t: int, d: int) -> None:
    q, k, v = _random(1, 2, s, d), _random(1, 2, t, d), _random(1, 2, t, d)
    exact = (x.double() for x in (q, k, v))
    want = F.scaled_dot_product_attention(*exact, is_causal=op == "attention_causal", scale=1 / sqrt(d))
    _each(op, (q, k, v), want, 1e-5, scale=1 / sqrt(d))


@pytest.mark.parametrize("n", [1, 100, 1024])
def test_rows_have_any_length(n: int) -> None:
    x, r, g, b = _random(5, n) + 1, _random(5, n), _random(n), _random(n)
    y = x.double()
    _each("softmax", (x,), torch.softmax(y, -1))
    if n > 1:
        _each("layernorm", (x, g, b), F.layer_norm(y, (n,), g.double(), b.double(), 1e-5))
        z = y + r
        _each("add_layernorm", (x, r, g, b), (F.layer_norm(z, (n,), g.double(), b.double(), 1e-5), z))
    _each("rmsnorm", (x, g), F.rms_norm(y, (n,), g.double(), 1e-6))
    _each("sum_rows", (x,), y.sum(-1))
    _each("max_rows", (x,), y.amax(-1))


def test_rows_that_no_program_can_keep_are_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_WHOLE", 64)
    x = 30 * _random(3, 9000)
    _each("softmax", (x,), torch.softmax(x.double(), -1))


@pytest.mark.parametrize(("op", "f"), [("add", lambda x, y: x + y), ("gelu", lambda x: F.gelu(x)), ("silu", lambda x: F.silu(x))])
def test_elements_are_computed_alone(op: str, f: Callable[..., Any]) -> None:
    args = tuple(_random(37, 61 + i)[:, :61].contiguous() for i in range(2 if op == "add" else 1))
    _each(op, args, f(*(x.double() for x in args)))


def test_columns_and_transposes_have_any_size() -> None:
    x = _random(300, 131)
    _each("sum_columns", (x,), x.double().sum(0))
    _each("transpose", (x,), x.double().T)


def test_there_is_a_peer_for_everything_but_convolutions_and_scans() -> None:
    left = {c.group for c in cases.cases(small=True)
            if not peers.ways(c.op, tuple(torch.empty(s, dtype=getattr(torch, t), device="meta") for s, t in c.inputs))}
    assert left == {"conv", "scans"}
