"""The GPU tests keep what they compile for as long as they run, all processes in one place, apart from the user's own cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import fake_gpu
import pytest
from fake_gpu import FakeGpu


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "emulators: what no device is asked for (bench/gpu.py): how the emulator lays out memory, "
                                       "and kernels that are wrong on purpose, though not in each order")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        mine = tmp_path_factory.getbasetemp()  # of a worker of xdist: below that of all
        patch.setenv("POLYOP_CACHE_DIR", str((mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine) / "gpu-cache"))
        yield


@pytest.fixture(params=["cuda", "hip"])
def gpu(request: pytest.FixtureRequest) -> Iterator[FakeGpu]:
    """A fake device of each family, which every call of the test finds."""
    with fake_gpu.found(request.param) as made:
        yield made


@pytest.fixture
def cuda() -> Iterator[FakeGpu]:
    """A fake CUDA device."""
    with fake_gpu.found("cuda") as made:
        yield made


@pytest.fixture(params=["python", "front"])
def torch(cuda: FakeGpu, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A torch that tells machine code of its tensors, and one that does not."""
    made = fake_gpu.torch()
    monkeypatch.setitem(sys.modules, "torch", made)
    with fake_gpu.fronted(made) if request.param == "front" else nullcontext():
        yield made
