"""Kernels by key: in memory, on disk, or made; each key is made once, however many threads ask for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakSet

from polyop.ir.codec import CodecError, decode, encode
from polyop.ir.errors import PolyopError
from polyop.ir.module import Binary, HostIf, HostLoop, HostStep, Launch, Proof, Signature
from polyop.runtime import cache, forks
from polyop.runtime.kernel import Kernel, kernel

if TYPE_CHECKING:
    from polyop.runtime.gpu.kernel import GpuKernel

log = logging.getLogger("polyop")
V = TypeVar("V")


class Memo(Generic[V]):
    """Values by key, each made by the first thread that asks; the others wait for that key only."""

    def __init__(self) -> None:
        self._values: dict[Any, V] = {}
        self._guard = threading.Lock()
        self._locks: dict[Any, threading.Lock] = {}
        _memos.add(self)

    def get(self, key: Any, make: Callable[[], V]) -> V:
        """The value of `key`; if `make` raises, nothing is kept and the next one tries again."""
        if key in self._values:
            return self._values[key]
        with self._guard:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._values:
                self._values[key] = make()
            with self._guard:
                self._locks.pop(key, None)
            return self._values[key]

    def known(self, key: Any) -> V | None:
        """The value of `key`, if it has been made."""
        return self._values.get(key)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Any) -> bool:
        return key in self._values

    def keys(self) -> tuple[Any, ...]:
        """What there are values for, in the order in which they were made."""
        return tuple(self._values)

    def clear(self) -> None:
        """Forget all values, which live on for whoever has them."""
        self._values.clear()

    def forget_locks(self) -> None:
        self._guard = threading.Lock()
        self._locks = {}


def _after_fork() -> None:
    """In the child nobody is left who could release a lock."""
    for memo in list(_memos):
        memo.forget_locks()


_memos: WeakSet[Memo[Any]] = WeakSet()
os.register_at_fork(after_in_child=_after_fork)
kernels: Memo[Kernel | GpuKernel] = Memo()


def loaded(binary: Binary, proofs: tuple[Proof, ...], notes: tuple[str, ...]) -> Kernel | GpuKernel:
    """What runs `binary`: code for this machine is linked now, code for a GPU when a call brings a device.

    Raises UnsupportedError, if this machine cannot run it.
    """
    if not binary.target.startswith(("cuda:", "hip:")):
        return kernel(binary, proofs, notes)
    with forks.IMPORTS:
        from polyop.runtime.gpu.kernel import GpuKernel
    return GpuKernel(binary, proofs, notes)


def find(key: str, make: Callable[[], Kernel | GpuKernel]) -> Kernel | GpuKernel:
    """The kernel of `key`: from memory, from disk, or from `make`, which is then stored."""
    def produce() -> Kernel | GpuKernel:
        found = read(key)
        if found is not None:
            return found
        with cache.making(key):
            found = read(key)  # another process may just have made it
            if found is None:
                found = make()
                write(key, found)
            return found
    return kernels.get(key, produce)


def forget() -> None:
    """Forget the kernels of this process: new operators read them from disk, as another process would."""
    kernels.clear()


def write(key: str, k: Kernel | GpuKernel) -> None:
    """Put `k` on disk."""
    header = {
        "name": k.binary.name, "target": k.binary.target, "signature": encode(k.binary.signature), "proofs": encode(k.proofs),
        "notes": encode(k.notes), "launch": encode(k.binary.launch),
    }
    cache.write(key, header, k.binary.code)


def read(key: str) -> Kernel | GpuKernel | None:
    """The kernel of `key` from disk; None if there is none, or none that is right in every part."""
    found = cache.read(key)
    if found is None:
        return None
    header, code = found
    try:
        name, target = _text(header.get("name")), _text(header.get("target"))
        notes = tuple(map(_text, _list(header.get("notes"))))
        signature = decode(Signature, header.get("signature"))
        proofs = tuple(decode(Proof, p) for p in _list(header.get("proofs")))
        launch = tuple(map(_step, _list(header.get("launch"))))
        return loaded(Binary(name, target, code, signature, launch), proofs, notes)
    except PolyopError as e:
        log.warning("ignoring the cached kernel %s: %s", key, e)
        return None


_STEPS: dict[str, type[HostStep]] = {"Launch": Launch, "HostLoop": HostLoop, "HostIf": HostIf}


def _step(data: Any) -> HostStep:
    found = _STEPS.get(next(iter(data))) if isinstance(data, dict) and len(data) == 1 else None
    if found is None:
        raise CodecError("codec: expected a step of a host")
    return decode(found, data)


def _text(data: Any) -> str:
    if not isinstance(data, str):
        raise CodecError("codec: expected a text")
    return data


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise CodecError("codec: expected a list")
    return data
