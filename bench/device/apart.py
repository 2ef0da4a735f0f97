"""What `bench/gpu.py` has done in processes of their own (`helpers.py`): all of it is told in plain values."""

from __future__ import annotations

import time
from functools import cache

from bench.device import cases, clock, speed, twice
from polyop.ir.errors import UnsupportedError
from polyop.runtime.gpu.driver import Device


def wrappers(device: Device, test: str) -> tuple[int, int, list[str]]:
    """How many kernels of a test ran on the device too, how many of them differ, and what does."""
    made = twice.compared(device, (test,))
    return len(made.agreed), len(made.wrong), made.differ


def machine(index: int) -> tuple[str, str, float, float]:
    """The device `index`, -1 being the CPU, with torch's version: what `speed.limits` finds, bytes and operations a second."""
    stage = speed.limits(_stage(index), 100.0 if index >= 0 else 1.0, small=index < 0)
    name = stage.torch.cuda.get_device_properties(index).name if index >= 0 else "CPU"
    return name, stage.torch.__version__, stage.copy, stage.peak


def case(k: int, index: int, copy: float, peak: float, compiling_ends: float) -> speed.Row:
    """The `k`-th case; compilers take part until so late on the machine's clock. On a CPU all cases are small."""
    stage = _stage(index)
    at = speed.Stage(stage.torch, stage.device, stage.clock, stage.l2, copy, peak)
    chosen = cases.cases(small=index < 0)[k]
    return speed.measured(chosen, at, 60.0 if index >= 0 else 0.1, time.monotonic() < compiling_ends)


@cache
def _stage(index: int) -> speed.Stage:
    """Raises  ImportError without torch; UnsupportedError, if it sees no GPU."""
    import torch

    if index < 0:
        return speed.Stage(torch, "cpu", clock.Walls(), 4096)
    if not torch.cuda.is_available():
        raise UnsupportedError("this torch sees no GPU")
    torch.cuda.set_device(index)
    torch.backends.cudnn.benchmark = True  # else convolutions take the first algorithm that does
    torch.backends.cudnn.allow_tf32 = False  # as matrix products have it: f32 means f32
    l2 = int(getattr(torch.cuda.get_device_properties(index), "L2_cache_size", 64 << 20))
    return speed.Stage(torch, f"cuda:{index}", clock.Events(torch), l2)
