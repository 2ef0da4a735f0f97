"""Taking times: several things by turns in one process, so that whatever slows the machine down slows all of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

SHORTEST = 5e-5  # seconds of a sample: reading the clock takes a thousandth of that
ROUNDS = 5       # at least, so that two bad samples do not matter; but no more are begun after
LONG = 1.0       # seconds
WARM = 2e-3      # seconds of calls after a rest, before the clock runs and then while it does: caches fill, threads wake up


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds of a call: the median of `samples`, the quartiles around it, and the least where it is known."""

    median: float
    low: float
    high: float
    samples: int
    least: float | None = None

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles, as a part of the median."""
        return (self.high - self.low) / 2 / self.median


def timing(samples: Sequence[float]) -> Timing:
    """The summary of `samples`, in milliseconds."""
    ordered = sorted(samples)
    low, median, high = (ordered[round((len(ordered) - 1) * q)] for q in (0.25, 0.5, 0.75))
    return Timing(median, low, high, len(ordered), ordered[0])


def interleaved(things: Sequence[Callable[[], Any]], budget: float, rest: Callable[[], Any] | None = None) -> list[Timing]:
    """The times of `things`, each called in turn for about `budget` seconds on average; who is first changes.

    Notes   A sample of something short is the mean of as many calls in a row as take SHORTEST. All have been called once
            before the first sample is taken, so that nothing is compiled or imported while the clock runs. A `rest` before
            each turn lets the threads of whoever was there before fall asleep; then the next is called for WARM seconds,
            and sampled for as long: the time is that of one call among others of its kind, as it is without a rest.
    """
    repeats = [max(1, math.ceil(SHORTEST / _second_call(thing))) for thing in things]
    samples: list[list[float]] = [[] for _ in things]
    start, rounds, warm = time.perf_counter(), 0, WARM if rest else 0.0
    stop = start + budget * len(things)
    while rounds < (ROUNDS if time.perf_counter() < start + LONG else 1) or time.perf_counter() < stop:
        first = rounds % len(things)  # nobody always follows the same one, and finds what that one left in the caches
        for k in (*range(first, len(things)), *range(first)):
            if rest:
                rest()
                list(_calls(things[k], 1, warm))
            samples[k] += [1e3 * seconds / repeats[k] for seconds in _calls(things[k], repeats[k], warm)]
        rounds += 1
    return [timing(t) for t in samples]


def _calls(thing: Callable[[], Any], times: int, duration: float) -> Iterator[float]:
    """Seconds of so many calls in a row, once at least, and again until they have gone on for `duration` seconds."""
    start = end = time.perf_counter()
    while end == start or end < start + duration:
        begin = time.perf_counter()
        for _ in range(times):
            thing()
        end = time.perf_counter()
        yield end - begin


def _second_call(thing: Callable[[], Any]) -> float:
    """Seconds of a call that is not the first one."""
    thing()
    begin = time.perf_counter()
    thing()
    return max(1e-8, time.perf_counter() - begin)
