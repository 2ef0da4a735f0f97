"""Trace: what each stage made, as text, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

STAGES = ("op", "scop", "schedule", "tiles", "loops", "proofs", "final", "source")
"""One word per stage, used everywhere: `kernel.trace["loops"]`, `polyop show --stage loops`."""


@dataclass(frozen=True, slots=True)
class Trace(Mapping[str, str]):
    """stage -> text; `ms` has the milliseconds of each stage."""

    texts: tuple[tuple[str, str], ...] = ()
    ms: tuple[tuple[str, float], ...] = ()

    def __getitem__(self, stage: str) -> str:
        return dict(self.texts)[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self.texts))

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def total_ms(self) -> float:
        return sum(t for _, t in self.ms)


class Recorder:
    """Collects a Trace while a pipeline runs."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, tuple[object, ...]]] = {}
        self.ms: dict[str, float] = {}

    def stage(self, name: str, f: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run one stage; its time is added to what the name had already."""
        start = time.perf_counter()
        try:
            return f(*args, **kwargs)
        finally:
            self.ms[name] = self.ms.get(name, 0.0) + 1e3 * (time.perf_counter() - start)

    def text(self, name: str, *values: object, between: str = "\n") -> None:
        """What a stage has made; printed at the end, if nothing has come in its place."""
        self.made[name] = between, values

    def trace(self) -> Trace:
        return Trace(tuple((n, between.join(map(str, x))) for n, (between, x) in self.made.items()), tuple(self.ms.items()))
