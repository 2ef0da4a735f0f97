"""How fast operators are on a device, beside torch as it is, torch.compile, and what the device can do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import polyop
from bench.device.cases import SIZES, Case
from bench.device.clock import Call, Clock, timed

_SETS = 64                                                      # of arrays, at most
_WRONG = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 4e-3}   # of the norm of what float64 says


@dataclass(frozen=True, slots=True)
class Stage:
    """Where cases are measured.

    device   what torch calls it; clock: what tells its time
    l2       bytes of its last cache
    copy     bytes a second that copying moves, read and written; peak: bf16 operations a second of a large product
    """

    torch: Any
    device: str
    clock: Clock
    l2: int
    copy: float = 0.0
    peak: float = 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One case. Units: ms of a call of each who took part; error: of the norm; `wrong`: why there is nothing."""

    group: str
    name: str
    ms: dict[str, float]
    gbs: float
    tflops: float
    of_copy: float
    of_peak: float
    error: float
    wrong: str = ""

    @property
    def ratio(self) -> float:
        """How many times as fast as the fastest peer."""
        peers = [t for n, t in self.ms.items() if n != "polyop"]
        return min(peers) / self.ms["polyop"] if peers and "polyop" in self.ms else 0.0


def limits(stage: Stage, budget_ms: float, small: bool = False) -> Stage:
    """`stage` with what its device was measured to do."""
    torch, n = stage.torch, 8192 // (32 if small else 1)
    source = torch.ones(n * n * 4 // (4 if small else 1), device=stage.device)
    target = torch.empty_like(source)
    (copied,) = timed([lambda k: target.copy_(source)], 1, stage.clock, budget_ms)
    a, b = (torch.randn(n, n, device=stage.device, dtype=torch.bfloat16) for _ in range(2))
    (product,) = timed([lambda k: a @ b], 1, stage.clock, budget_ms)
    return Stage(torch, stage.device, stage.clock, stage.l2, 2e3 * source.numel() * 4 / copied, 2e3 * n**3 / product)


def measured(case: Case, stage: Stage, budget_ms: float, compiled: bool) -> Row:
    """One case; what goes wrong with it is said in its row."""
    try:
        return _measured(case, stage, budget_ms, compiled)
    except Exception as error:  # the rest is to be measured in any case
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return Row(case.group, case.name, {}, 0, 0, 0, 0, 0, said)


def _measured(case: Case, stage: Stage, budget_ms: float, compiled: bool) -> Row:
    torch, operator = stage.torch, polyop.library(case.op)
    sets = arrays(case, stage)
    ours: Callable[..., Any] = partial(operator, **case.also)
    error = _error(ours(*sets[0]), case.peer(torch, *(x.double() for x in sets[0])))
    calls: dict[str, Call] = {"polyop": lambda k: ours(*sets[k]), "torch": lambda k: case.peer(torch, *sets[k])}
    if compiled and case.fused:
        inductor = torch.compile(lambda *a: case.peer(torch, *a), dynamic=False)
        calls["torch.compile"] = lambda k: inductor(*sets[k])
    times = timed(list(calls.values()), len(sets), stage.clock, budget_ms)
    ms = dict(zip(calls, times, strict=True))
    seconds = ms["polyop"] / 1e3
    row = Row(case.group, case.name, ms, case.bytes_ / seconds / 1e9, case.flops / seconds / 1e12,
              case.bytes_ / seconds / stage.copy, case.flops / seconds / stage.peak, error)
    most = _WRONG[case.inputs[0][1]]
    return row if error <= most else Row(*(getattr(row, n) for n in Row.__slots__[:-1]), f"off by {error:.1e} of the norm")


def arrays(case: Case, stage: Stage) -> list[list[Any]]:
    """Random arrays for a case, so many sets that no call finds its own in the cache."""
    torch = stage.torch
    bytes_ = sum(prod(shape) * SIZES[t] for shape, t in case.inputs)
    count = min(_SETS, 1 + -(-2 * stage.l2 // max(1, bytes_)))
    return [[torch.randn(shape, device=stage.device, dtype=getattr(torch, t)) for shape, t in case.inputs] for _ in range(count)]


def _error(got: Any, want: Any) -> float:
    """The greatest distance of a result from what it should be, of its norm; NaN is infinitely far."""
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    found = [float((g.double() - w).norm() / w.norm().clamp(min=1e-30)) for g, w in pairs]
    return max(x if x == x else float("inf") for x in found)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """A short table."""
    yield f"{'':12} {'':34} {'ms':>9} {'GB/s':>6} {'copy':>5} {'TF/s':>6} {'peak':>5}  {'torch':>6} {'compile':>7}"
    for r in rows:
        if not r.ms:
            yield f"{r.group:12} {r.name:34} {r.wrong}"
            continue
        ratios = [f"{r.ms[n] / r.ms['polyop']:.2f}x" if n in r.ms else "-" for n in ("torch", "torch.compile")]
        yield (f"{r.group:12} {r.name:34} {r.ms['polyop']:9.4f} {r.gbs:6.0f} {r.of_copy:5.0%} {r.tflops:6.1f} {r.of_peak:5.0%}  "
               f"{ratios[0]:>6} {ratios[1]:>7}  {r.wrong}".rstrip())


def all_of(cases: Sequence[Case], stage: Stage, seconds: float, budget_ms: float, compiled: bool,
           seen: Callable[[Row], None] = lambda row: None) -> list[Row]:
    """As many cases as fit into `seconds`."""
    stop, out = time.monotonic() + seconds, []
    for case in cases:
        if time.monotonic() > stop:
            out.append(Row(case.group, case.name, {}, 0, 0, 0, 0, 0, "no time was left"))
            continue
        out.append(measured(case, stage, budget_ms, compiled and time.monotonic() < stop - seconds / 4))
        seen(out[-1])
    return out
