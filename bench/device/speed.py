"""How fast operators are on a device, beside torch as it is, torch.compile, Triton, and what the device can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import exp, log, prod
from typing import Any

import polyop
from bench.device.cases import SIZES, Case
from bench.device.clock import Call, Clock, timed
from polyop import program, standard
from polyop.ir.options import Options
from polyop.operator import Operator

Ways = Sequence[Callable[..., Any]] | str
"""To run a case, each of its tensors; or why nobody can."""

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
    """One case. Units: ms of a call of each who took part; error: of the norm.

    wrong    why there is nothing, or nothing right; said: why a peer did not take part
    """

    group: str
    name: str
    ms: dict[str, float]
    gbs: float
    tflops: float
    of_copy: float
    of_peak: float
    error: float
    wrong: str = ""
    said: str = ""

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
    """One case; what goes wrong with it is said in its row. `compiled`: beside those peers too that compile first."""
    try:
        return _measured(case, stage, budget_ms, compiled)
    except Exception as error:  # the rest is to be measured in any case
        return missing(case, _brief(error))


def missing(case: Case, reason: str) -> Row:
    """The row of a case without times."""
    return Row(case.group, case.name, {}, 0, 0, 0, 0, 0, reason)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _measured(case: Case, stage: Stage, budget_ms: float, compiled: bool) -> Row:
    torch, operator = stage.torch, _operator(case)
    sets = arrays(case, stage)
    ours: Callable[..., Any] = partial(operator, **case.also)
    want, most = case.peer(torch, *(x.double() for x in sets[0])), _WRONG[case.inputs[0][1]]
    error = _error(ours(*sets[0]), want)
    calls: dict[str, Call] = {"polyop": lambda k: ours(*sets[k])}
    reasons = []
    for name, ways in _peers(case, stage, sets[0], compiled):
        found, reason = _fastest(ways, stage, sets, want, most)
        calls |= {name: found} if found else {}
        reasons += [f"{name}: {reason}"] if reason else []
    del want  # of twice or four times the bytes
    times = timed(list(calls.values()), len(sets), stage.clock, budget_ms)
    ms = dict(zip(calls, times, strict=True))
    seconds = ms["polyop"] / 1e3
    row = Row(case.group, case.name, ms, case.bytes_ / seconds / 1e9, case.flops / seconds / 1e12,
              case.bytes_ / seconds / stage.copy, case.flops / seconds / stage.peak, error)
    return replace(row, said="; ".join(reasons), wrong="" if error <= most else f"off by {error:.1e} of the norm")


def _operator(case: Case) -> Operator:
    if not case.target:
        return polyop.library(case.op)
    return program.operator(standard.program(standard.index()[case.op]), case.op, Options(), case.target)


def _peers(case: Case, stage: Stage, given: list[Any], compiled: bool) -> Iterator[tuple[str, Ways]]:
    """Who runs `case` too, and in which ways; instead of ways, why there are none."""
    torch = stage.torch
    yield "torch", [partial(way, torch) for way in (case.peer, *case.others)]
    if compiled and case.fused:
        torch.compiler.reset()  # it takes all cases for one function, and leaves one be that was compiled eight times
        yield "torch.compile", [torch.compile(lambda *a: case.peer(torch, *a), dynamic=False)]
    if compiled:
        yield "triton", _triton(case, stage, given)


def _triton(case: Case, stage: Stage, given: list[Any]) -> Ways:
    if stage.device == "cpu":
        return "it has no code for a CPU"
    try:
        from bench.device import triton_peers
    except ImportError as error:
        return f"it is not installed: {error}"
    return [partial(way, **case.also) for way in triton_peers.ways(case.op, tuple(given))] or "it has no kernel for it"


def _fastest(ways: Ways, stage: Stage, sets: list[list[Any]], want: Any, most: float) -> tuple[Call | None, str]:
    """The fastest of those that are right; without one, why."""
    if isinstance(ways, str):
        return None, ways
    reason, found = "", list[tuple[float, Call]]()
    for run in ways:
        def call(k: int, run: Callable[..., Any] = run) -> Any:
            return run(*sets[k])

        try:
            error = _error(call(0), want)
            if error <= most:
                found.append((min(stage.clock.ms(call, 3, len(sets)) for _ in range(3)) if len(ways) > 1 else 0.0, call))
            else:
                reason = f"off by {error:.1e} of the norm"
        except Exception as refused:  # too many resources, no compiler: another way may do
            reason = _brief(refused)
    return (min(found, key=lambda x: x[0])[1], "") if found else (None, reason)


def arrays(case: Case, stage: Stage) -> list[list[Any]]:
    """Random arrays for a case, so many sets that no call finds its own in the cache."""
    torch = stage.torch
    bytes_ = sum(prod(shape) * SIZES[t] for shape, t in case.inputs)
    count = min(_SETS, 1 + -(-2 * stage.l2 // max(1, bytes_)))
    return [[torch.randn(shape, device=stage.device, dtype=getattr(torch, t)) for shape, t in case.inputs] for _ in range(count)]


def _error(got: Any, want: Any) -> float:
    """The greatest distance of a result from what it should be, of its norm; NaN is infinitely far."""
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    found = [float((g.double() - w).norm() / w.double().norm().clamp(min=1e-30)) for g, w in pairs]
    return max(x if x == x else float("inf") for x in found)


PEERS = ("torch", "torch.compile", "triton")
TITLE = (f"{'':12} {'':34} {'ms':>9} {'GB/s':>6} {'copy':>5} {'TF/s':>6} {'peak':>5}  {'torch':>6} {'compile':>7} {'triton':>7}")


def line(r: Row) -> str:
    """A row of a short table, whose columns TITLE names; of peers, how many times as long they take."""
    if not r.ms:
        return f"{r.group:12} {r.name:34} {r.wrong}"
    ratios = [f"{r.ms[n] / r.ms['polyop']:.2f}x" if n in r.ms else "-" for n in PEERS]
    return (f"{r.group:12} {r.name:34} {r.ms['polyop']:9.4f} {r.gbs:6.0f} {r.of_copy:5.0%} {r.tflops:6.1f} {r.of_peak:5.0%}  "
            f"{ratios[0]:>6} {ratios[1]:>7} {ratios[2]:>7}  {r.wrong}".rstrip())


def page(results: Mapping[str, Any]) -> str:
    """What was measured as Markdown: a table of cases, and for each group the mean of ratios to the fastest peer."""
    rows = [Row(**r) for r in results["rows"]]
    means = {}
    for g in dict.fromkeys(r.group for r in rows):
        found = [r.ratio for r in rows if r.group == g and r.ratio]
        means[g] = f"{g} {exp(sum(map(log, found)) / len(found)):.2f}" if found else ""
    head = [f"{results['device']}, torch {results['torch']}; copies {results['copy'] / 1e9:.0f} GB/s, bf16 products "
            f"{results['peak'] / 1e12:.0f} TF/s. Of a peer, how many times as long it takes.", "",
            f"Mean over the fastest peer: {', '.join(x for x in means.values() if x)}.", "",
            "| group | case | us | GB/s | of copying | TF/s | of the peak | torch | torch.compile | Triton |",
            "|---|---|---|---|---|---|---|---|---|---|"]
    return "\n".join([*head, *map(_cells, rows)]) + "\n"


def _cells(r: Row) -> str:
    if not r.ms:
        return f"| {r.group} | {r.name} | {r.wrong} ||||||||"
    peers = [f"{r.ms[n] / r.ms['polyop']:.2f}" if n in r.ms else "" for n in PEERS]
    name = r.name + (f" ({r.wrong})" if r.wrong else "")
    cells = (r.group, name, f"{1e3 * r.ms['polyop']:.1f}", f"{r.gbs:.0f}", f"{r.of_copy:.0%}", f"{r.tflops:.1f}",
             f"{r.of_peak:.0%}", *peers)
    return f"| {' | '.join(cells)} |"
