"""What a repeated call on a GPU costs the host beside the driver: microseconds of one thread, on the fake driver of the tests.

    python bench/launches.py

The fake driver writes launches down and runs nothing; torch, CuPy and their allocators are stand-ins that cost next to nothing.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

import fake_gpu  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import polyop  # noqa: E402

SAXPY = "op saxpy(X: f32[N], Y: f32[N]; a: f32) -> (Z: f32[N]) { Z[i] = a * X[i] + Y[i] }"
STEPS = "op steps(X: f32[T, N]) -> (Y: f32[T, N]) { Y[t, i] = (Y[t-1, i-1] else 0) + (Y[t-1, i+1] else 0) + X[t, i] }"
STREAM, CALLS, ROUNDS = 55, 2000, 9


def least(call: Callable[[], Any]) -> float:
    """Microseconds of a call: the best of some rounds, by the thread's own time."""
    times = []
    for _ in range(3):
        call()  # the first leaves a plan behind
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time() - start) / CALLS * 1e6)
    return min(times)


def main() -> int:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder, fake_gpu.found("cuda") as gpu:
        os.environ["POLYOP_CACHE_DIR"] = folder
        torch, cupy = fake_gpu.torch(), fake_gpu.cupy()
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "cupy", cupy)
        torch.stream[0] = cupy.stream[0] = STREAM
        x = np.ones(256, np.float32)
        saxpy, steps = polyop.op(SAXPY), polyop.op(STEPS)
        t, c, i = torch.on_gpu(x), fake_gpu.CupyArray(x), fake_gpu.Interface(x, stream=STREAM)
        to, co, io = torch.on_gpu(x.copy()), fake_gpu.CupyArray(x.copy()), fake_gpu.Interface(x.copy(), stream=STREAM)
        many, result = torch.on_gpu(np.ones((100, 8), np.float32)), torch.on_gpu(np.ones((100, 8), np.float32))
        gpu.fake.fake_capture(STREAM)  # launches are only written down
        torch.empty = lambda *args, **keywords: to
        for what, call in {
            "torch, a new result": lambda: saxpy(t, t, a=2.0), "torch, out=": lambda: saxpy(t, t, a=2.0, out=to),
            "CuPy, out=": lambda: saxpy(c, c, a=2.0, out=co),
            "__cuda_array_interface__, out=": lambda: saxpy(i, i, a=2.0, out=io),
            "100 launches, out=": lambda: steps(many, out=result),
        }.items():
            print(f"{what:32} {least(call):6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
