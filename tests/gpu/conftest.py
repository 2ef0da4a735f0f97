"""The GPU tests keep what they compile for as long as they run, all processes in one place, apart from the user's own cache."""

from __future__ import annotations

import os
from collections.abc import Iterator

import fake_gpu
import pytest
from fake_gpu import FakeGpu

from polyop.ir.errors import UnsupportedError
from polyop.runtime import call, device, store
from polyop.runtime.gpu import driver, status


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
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A fake device of each family, which every call of the test finds."""
    yield from _faked(request.param, monkeypatch)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """A fake CUDA device."""
    yield from _faked("cuda", monkeypatch)


def _faked(family: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    try:
        path = fake_gpu.library()
    except UnsupportedError as e:
        pytest.skip(str(e))
    made = FakeGpu(family)
    monkeypatch.setattr(driver, "LIBRARIES", {"cuda": (path,), "hip": (path,)})
    monkeypatch.setattr(device, "assembled", fake_gpu.assembled)
    monkeypatch.setattr(device, "unavailable", lambda family: "")
    monkeypatch.setattr(store, "kernels", store.Memo())
    monkeypatch.setattr(call, "_torch", ())
    monkeypatch.setattr(call, "_looks", {})
    monkeypatch.setattr(status, "_words", [])
    monkeypatch.setattr(status, "_rooms", {})
    monkeypatch.setattr(status, "_loaded", {})
    fake_gpu.forget()
    yield made
    made.reset()
