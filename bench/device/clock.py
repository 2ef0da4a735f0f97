"""How long calls take on a device: between two events, in several rounds, with arrays that are never the last ones used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any, Protocol

Call = Callable[[int], Any]
"""Does the work with the k-th set of arrays."""


class Clock(Protocol):
    """What tells milliseconds of device time."""

    def ms(self, call: Call, times: int, sets: int) -> float:
        """Of one of `times` calls that follow each other, which take the `sets` of arrays in turn."""
        ...


@dataclass(frozen=True, slots=True)
class Events:
    """torch's events on the current stream."""

    torch: Any

    def ms(self, call: Call, times: int, sets: int) -> float:
        start, stop = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for k in range(times):
            call(k % sets)
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / times


@dataclass(frozen=True, slots=True)
class Walls:
    """The host's, for what is done when a call returns."""

    def ms(self, call: Call, times: int, sets: int) -> float:
        start = perf_counter()
        for k in range(times):
            call(k % sets)
        return 1e3 * (perf_counter() - start) / times


def timed(calls: Sequence[Call], sets: int, clock: Clock, budget_ms: float, rounds: int = 5) -> list[float]:
    """Milliseconds of each of `calls`: the median of rounds in which they take turns, so that all see the same clocks.

    budget_ms   of device time for each, warming up aside; what takes longer than a round is called once in each
    """
    times = []
    for call in calls:
        for _ in range(2):
            once = clock.ms(call, 1, sets)
        times.append(max(1, min(1000, int(budget_ms / rounds / max(once, 1e-3)))))
    seen = [[clock.ms(c, n, sets) for c, n in zip(calls, times, strict=True)] for _ in range(rounds)]
    return [median(row[k] for row in seen) for k in range(len(calls))]
