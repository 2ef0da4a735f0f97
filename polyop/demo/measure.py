"""Compile once, run at every size, compare with float64, time beside the peers."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from polyop.bench import process
from polyop.bench.clock import interleaved
from polyop.demo.subjects import SUBJECTS, Sizes, Subject
from polyop.ir.module import Proof
from polyop.ir.options import Options
from polyop.operator import Operator
from polyop.outcome import difference
from polyop.program import library, op
from polyop.runtime import store, threads

BUDGET = 0.03    # seconds for one thing at one size
ALLOWED = 2e-5   # of the greatest element: single precision, sums of up to some thousand terms


@dataclass(frozen=True, slots=True)
class Run:
    """One size: milliseconds of each, the median of several calls; `error` as a part of the greatest element."""

    sizes: Sizes
    ms: float
    numpy_ms: float
    torch_ms: float | None
    error: float

    @property
    def right(self) -> bool:
        return self.error <= ALLOWED


@dataclass(frozen=True, slots=True)
class Result:
    """One operator.

    compile_ms   from text to machine code with all proofs, nothing cached; the first run is in it
    kernels      how many were compiled for all the sizes together; 0 if calls are interpreted
    """

    subject: Subject
    compile_ms: float
    kernels: int
    proofs: tuple[Proof, ...]
    runs: tuple[Run, ...]

    @property
    def proved(self) -> bool:
        return bool(self.proofs) and all(p.holds for p in self.proofs)


def results(peer: bool = True, subjects: tuple[Subject, ...] = SUBJECTS) -> Iterator[Result]:
    """The subjects one after the other, on one thread; `peer`: whether PyTorch is timed too, where it is installed.

    Notes   An operator that this process has compiled before is not compiled again, and then there is nothing to measure.
    """
    peer = peer and importlib.util.find_spec("torch") is not None
    for subject in subjects:
        with _alone(peer) as folder:
            yield _result(subject, folder, peer)


@contextmanager
def _alone(peer: bool) -> Iterator[Path]:
    """One thread, and an empty kernel cache, for as long as this lasts."""
    count = threads.get_num_threads()
    with process.empty_cache() as folder:
        threads.set_num_threads(1)
        if peer:
            importlib.import_module("torch").set_num_threads(1)
        try:
            yield folder
        finally:
            threads.set_num_threads(count)


ONCE = Options(special=False)
"""One kernel for all sizes: what the demo is about. Repeated calls of few rows, say, would get one that is faster still."""


def _result(subject: Subject, folder: Path, peer: bool) -> Result:
    rng = np.random.default_rng(0)
    _warm()
    before = set(folder.glob("*.pok"))
    first = subject.arguments(rng, subject.sizes[0])
    start = time.perf_counter()
    operator = op(subject.text, options=ONCE) if subject.text else library(subject.name, options=ONCE)
    operator(**first, **subject.keywords(subject.sizes[0]))
    compile_ms = 1e3 * (time.perf_counter() - start)
    runs = tuple(_run(subject, operator, sizes, rng, peer) for sizes in subject.sizes)
    made = [k for k in (store.read(p.stem) for p in set(folder.glob("*.pok")) - before) if k is not None]
    return Result(subject, compile_ms, len(made), tuple(p for k in made for p in k.proofs), runs)


def _warm() -> None:
    """What a process does once, and no operator should be charged for: imports, thread pool, parser tables."""
    x = np.zeros((200, 200), np.float32)
    op("op warm(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] }")(x)


def _run(subject: Subject, operator: Operator, sizes: Sizes, rng: np.random.Generator, peer: bool) -> Run:
    arguments, keywords = subject.arguments(rng, sizes), subject.keywords(sizes)
    got = operator(**arguments, **keywords)
    wide = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in arguments.items()}
    want = subject.numpy(**wide, **keywords)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    error = max(difference(np.asarray(g), w) for g, w in pairs)
    things: list[Callable[[], Any]] = [lambda: operator(**arguments, **keywords),
                                       lambda: subject.numpy(**arguments, **keywords)]
    if peer and subject.torch is not None:
        torch = importlib.import_module("torch")
        tensors = {n: torch.from_numpy(a) for n, a in arguments.items()}
        theirs = subject.torch
        things.append(lambda: theirs(**tensors, **keywords))
    times = [t.median for t in interleaved(things, BUDGET)]
    return Run(sizes, times[0], times[1], times[2] if len(times) > 2 else None, error)
