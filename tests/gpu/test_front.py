"""The native front of calls with tensors on a GPU: what it does itself, and what it leaves to the way through Python."""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import fake_gpu
import numpy as np
import pytest
from fake_gpu import FakeGpu
from test_boxes import TEXTS, placed

import polyop
from polyop.ir.errors import CallError, InternalError
from polyop.ir.options import Options
from polyop.runtime.gpu import maps
from tests.runtime.calling import python_calls, warm

SAXPY = "op saxpy(X: f32[N], Y: f32[N]; a: f32) -> (Z: f32[N]) { Z[i] = a * X[i] + Y[i] }"
BOTH = "op both(X: f64[M, N]; n: i32 = 3) -> (S: f64[M], Y: f64[M, N]) { S[m] += X[m, k]; Y[m, k] = f64(n) * X[m, k] }"
STEPS = "op steps(X: f32[T, N]) -> (Y: f32[T, N]) { Y[t, i] = (Y[t-1, i-1] else 0) + (Y[t-1, i+1] else 0) + X[t, i] }"
GATHER = "op gather(E: f32[V, D], ids: i32[N]) -> (Y: f32[N, D]) { Y[i, d] = E[ids[i], d] }"
ADD = "op add_to(inout Y: f32[N], X: f32[N]) { Y[i] += X[i] }"


@pytest.fixture
def torch(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made = fake_gpu.torch()
    monkeypatch.setitem(sys.modules, "torch", made)
    with fake_gpu.fronted(made):
        yield made


def f32(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def is_known(call: Any) -> bool:
    """Whether a call goes straight to its launches, without the way through Python."""
    return "_general" not in python_calls(call)


def test_a_known_call_takes_the_short_way_with_new_results_and_with_out(torch: Any, cuda: FakeGpu) -> None:
    saxpy, x, y = polyop.op(SAXPY), f32(300), f32(300, seed=1)
    a, b, out = torch.on_gpu(x), torch.on_gpu(y), torch.on_gpu(np.zeros(300, np.float32))
    torch.stream[0] = 5
    warm(saxpy, a, b, a=2.0)
    warm(saxpy, a, Y=b, a=2.0, out=out)
    assert is_known(lambda: saxpy(a, b, a=2.0)) and is_known(lambda: saxpy(a, Y=b, a=2.0, out=out))
    for k, scale in enumerate((3.0, -0.5, 7)):
        torch.stream[0] = 70 + k
        z = saxpy(a, b, a=scale)
        assert type(z) is fake_gpu.Tensor and str(z.device) == "cuda:0" and cuda.launches[-1].stream == 70 + k
        np.testing.assert_allclose(z.array, scale * x + y, rtol=1e-5, atol=1e-6)
        assert saxpy(a, b, a=scale, out=out) is out
        np.testing.assert_array_equal(out.array, z.array)


def test_results_that_are_several_work_memory_and_defaults(torch: Any) -> None:
    both, x = polyop.op(BOTH), np.random.default_rng(3).standard_normal((7, 40))
    a, given = torch.on_gpu(x), torch.on_gpu(np.zeros(7))
    for extra in ({}, {"n": 5}, {"out": (given, torch.on_gpu(np.zeros_like(x)))}):
        warm(both, a, **extra)
        s, y = both(a, **extra)
        assert is_known(lambda extra=extra: both(a, **extra))
        np.testing.assert_allclose(s.array, x.sum(1))
        np.testing.assert_allclose(y.array, extra.get("n", 3) * x)
    long = polyop.op("op total(X: f32[N]) -> (S: f32) { S += X[i] }")  # in shares, which a second kernel joins
    v = f32(200_000)
    total = warm(long, t := torch.on_gpu(v))
    assert is_known(lambda: long(t))
    np.testing.assert_allclose(float(total.array), v.sum(dtype=np.float64), rtol=1e-5)


def test_a_hundred_launches_are_one_call(torch: Any, cuda: FakeGpu) -> None:
    steps, x = polyop.op(STEPS), f32(20, 8)
    a = torch.on_gpu(x)
    want = np.asarray(warm(steps, a).array)
    before = len(cuda.launches)
    assert is_known(lambda: np.testing.assert_array_equal(steps(a).array, want))
    assert len(cuda.launches) - before == 20


def test_devices_and_streams_are_told_apart(torch: Any, cuda: FakeGpu) -> None:
    cuda.reset(devices=2)
    saxpy, x = polyop.op(SAXPY), f32(64)
    torch.stream.update({0: 11, 1: 22})
    tensors = [torch.on_gpu(x.copy(), k) for k in (0, 1)]
    for t in tensors:
        cuda.fake.fake_place(t.at, t.index)
    for _ in range(3):
        for k, t in enumerate(tensors):
            z = saxpy(t, t, a=1.0)
            assert z.device.index == k and cuda.launches[-1].stream == (11, 22)[k]
            np.testing.assert_allclose(z.array, 2 * x)
    assert all(is_known(lambda t=t: saxpy(t, t, a=1.0)) for t in tensors)
    with pytest.raises(CallError, match="E608"):
        saxpy(tensors[0], tensors[1], a=1.0)


def test_what_a_look_does_not_show_is_asked_again(torch: Any, cuda: FakeGpu) -> None:
    saxpy, room = polyop.op(SAXPY), f32(400)
    a, b = torch.on_gpu(room[:300]), torch.on_gpu(f32(300, seed=1))
    out = torch.on_gpu(np.zeros(300, np.float32))
    warm(saxpy, a, b, a=2.0, out=out)
    with pytest.raises(CallError, match="E607"):
        saxpy(a, b, a=2.0, out=torch.on_gpu(room[7:307]))
    odd = torch.on_gpu(np.zeros(300, np.float32))
    odd.at += 2
    with pytest.raises(CallError, match="aligned"):
        saxpy(odd, b, a=2.0, out=out)
    tracked = torch.on_gpu(f32(300))
    tracked.requires_grad = True
    with pytest.raises(CallError):
        saxpy(tracked, b, a=2.0, out=out)
    with pytest.raises(CallError):
        saxpy(a, b, a="2", out=out)


def test_a_position_outside_is_told_by_the_next_call(torch: Any, cuda: FakeGpu) -> None:
    gather, e = polyop.op(GATHER), torch.on_gpu(f32(10, 4))
    good, bad = (torch.on_gpu(np.array(i, np.int32)) for i in ([3, 9, 0], [3, 10, 0]))
    warm(gather, e, good)
    assert is_known(lambda: gather(e, good))
    gather(e, bad)
    with pytest.raises(CallError, match="E610"):
        gather(e, good)
    np.testing.assert_array_equal(gather(e, good).array, e.array[[3, 9, 0]])


def test_a_launch_that_is_refused_is_told_and_one_in_place_is_not_made_twice(torch: Any, cuda: FakeGpu) -> None:
    add, x = polyop.op(ADD), torch.on_gpu(np.ones(50, np.float32))
    y = torch.on_gpu(np.zeros(50, np.float32))
    warm(add, y, x)
    cuda.fail("cuLaunchKernel", 700)
    with pytest.raises(InternalError, match="700"):
        add(y, x)
    cuda.fail("cuLaunchKernel", 0)
    add(y, x)
    np.testing.assert_array_equal(y.array, np.full(50, 4, np.float32))


@pytest.mark.parametrize("most", [None, 20])
def test_tensors_at_many_places_and_at_more_than_are_remembered(most: int | None, torch: Any, cuda: FakeGpu,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    if most:
        monkeypatch.setattr(maps, "_KNOWN", most)
    g = np.random.default_rng(2)
    mm = polyop.op(TEXTS["rows"], options=Options(special=False))
    b = torch.on_gpu(placed(g.integers(-3, 4, (72, 160)).astype(np.float16)))
    some = [torch.on_gpu(placed(g.integers(-3, 4, (40, 72)).astype(np.float16))) for _ in range(2 * maps._NEAR + 3)]
    for _ in range(2):
        for a in some:
            want = a.array.astype(np.float32) @ b.array.astype(np.float32)
            for _ in range(2):
                np.testing.assert_array_equal(mm(a, b).array, want)
            assert is_known(lambda a=a: mm(a, b))
    assert cuda.calls("cuTensorMapEncodeTiled") == len(some) + 1 or most


def test_threads_that_bring_new_addresses_at_once_leave_each_with_its_own_values(monkeypatch: pytest.MonkeyPatch) -> None:
    def encoded(_: Any, address: int) -> bytes:
        time.sleep(0)  # as the driver's call does, it lets other threads run
        return struct.pack(f"<{maps.MAP}Q", *[address] * maps.MAP)

    monkeypatch.setattr(maps, "_encoded", encoded)
    monkeypatch.setattr(maps, "view_of", lambda boxes, element, address, shape, strides: address)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            m = maps.Map(None, None, 4, (1,), (1,), 0)  # type: ignore[arg-type]
            m.nearby()
            threads = [threading.Thread(target=lambda k=k, m=m: [m.at(1 + 8 * i + k) for i in range(50)]) for k in range(6)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            many, addresses, values = m.near[0].head
            assert many == len(m.known)
            for i in range(many):
                (address,) = struct.unpack("<Q", ctypes.string_at(addresses + 8 * i, 8))
                assert ctypes.string_at(values + 8 * maps.MAP * i, 8 * maps.MAP) == encoded(None, address)
    finally:
        sys.setswitchinterval(before)


def test_references_balance(torch: Any) -> None:
    saxpy, both = polyop.op(SAXPY), polyop.op(BOTH)
    a, x = torch.on_gpu(f32(30)), torch.on_gpu(np.ones((3, 4)))
    warm(saxpy, a, a, a=1.0), warm(both, x)
    before = sys.getrefcount(a), sys.getrefcount(x), sys.getrefcount(fake_gpu.Tensor)
    for _ in range(50):
        saxpy(a, a, a=1.0), both(x)
    assert (sys.getrefcount(a), sys.getrefcount(x), sys.getrefcount(fake_gpu.Tensor)) == before
