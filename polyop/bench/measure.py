"""A case -> a row: compared first, then timed by turns with everybody who computes the same."""

from __future__ import annotations

import itertools
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

import polyop
from polyop.bench import clock, process
from polyop.bench.book import OURS, Book, Row
from polyop.bench.case import Case, Random, Sweep
from polyop.bench.machine import Machine, machine
from polyop.bench.peers import Peer, chosen, reason
from polyop.bench.sweep import swept
from polyop.ir.errors import PolyopError
from polyop.ir.expr import is_computed, loads, volume
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.outcome import difference
from polyop.program import maker, operator
from polyop.report.work import points, work
from polyop.runtime import threads
from polyop.trial import Trial, trial

Array = Any
COLD = 1 << 26    # bytes of copies at least that cold inputs go round in: more than one core's part of any last cache
SLOW = 1.0        # seconds of a call; a peer that takes more is left out, where all others would wait for it


@dataclass(frozen=True, eq=False, slots=True)
class Settings:
    """limits: of the machine, for as many threads as are used; budget: seconds for each thing that is timed."""

    limits: Machine
    peers: tuple[Peer, ...]
    budget: float


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """A case with inputs: `turns[k]` are the inputs of the k-th copy, `run[k]` polyop's call on them.

    turn    the number of the copy that the next call takes, whoever makes it
    """

    case: Case
    call: Trial
    turns: tuple[tuple[Array, ...], ...]
    run: tuple[Callable[[], Any], ...]
    turn: Iterator[int]


def settings(count: int, names: Sequence[str], budget: float, patient: bool = True) -> tuple[Settings, dict[str, str]]:
    """This process made ready to measure on `count` threads, and why peers are missing."""
    threads.set_num_threads(count)
    peers, missing = chosen(names, patient)
    for peer in peers:
        peer.ready(count)
    process.blas_threads(count)
    process.keep_memory()
    return Settings(machine(count), peers, budget), missing


def book(cases: Iterable[Case | Sweep], given: Settings, size: str, missing: dict[str, str], known: Sequence[Row] = (),
         seen: Callable[[Row], None] = lambda row: None) -> Book:
    """All `cases` measured, behind the rows that are `known`; `seen` is told of each row as it comes."""
    rows = [*known]
    for case in cases:
        rows.append(measure(case, given) if isinstance(case, Case) else swept(case, given.peers))
        seen(rows[-1])
    return Book(given.limits, size, versions({p.name: p.version for p in given.peers}), missing, tuple(rows))


def versions(others: Mapping[str, str]) -> dict[str, str]:
    """Of polyop and what it runs on, and of the `others` beside it."""
    return {OURS: polyop.__version__, "Python": platform.python_version(), "numpy": np.__version__, **others}


def measure(case: Case, given: Settings) -> Row:
    """One row. A result that differs from the first peer's is not timed; peers that differ from it are left out."""
    try:
        bound = bind(case)
        got = results(bound.run[0](), np.asarray)
    except (PolyopError, MemoryError) as error:
        return Row(case.group, case.label, "failed", reason=str(error).splitlines()[0])
    return measured(bound, got, given)


def measured(bound: Bound, got: tuple[Array, ...], given: Settings) -> Row:
    """The row of a case whose own results are `got`."""
    case = bound.case
    row = sized(Row(case.group, case.label, "alone"), bound, given.limits)
    things: list[tuple[str, Callable[[], Any]]] = [(OURS, _by_turns(bound, bound.run))]
    for peer in (p for p in given.peers if p.offers(case)):
        try:
            calls, want = theirs(peer, bound, given.limits.threads)
        except Exception as error:  # whatever stops a peer is the peer's, and is written down
            row = replace(row, skipped={**row.skipped, peer.name: reason(error)})
            continue
        row = compared(row, got, peer.name, want, case.tolerance)
        if row.verdict == "WRONG":
            return row
        if peer.name not in row.skipped:
            things.append((peer.name, _by_turns(bound, calls)))
    times = clock.interleaved([thing for _, thing in things], given.budget, process.rest)
    return replace(row, times=dict(zip((n for n, _ in things), times, strict=True)))


def compared(row: Row, got: tuple[Array, ...], peer: str, want: tuple[Array, ...], tolerance: float) -> Row:
    """The row when another peer's results are there: by the first one's ours are right or WRONG, later ones may be left out."""
    error = _error(got, want)
    if row.verdict != "alone":
        return replace(row, skipped={**row.skipped, peer: f"its result is off by {error:.0e}"}) if error > tolerance else row
    if not error <= tolerance:
        return replace(row, verdict="WRONG", error=error, reason=f"differs from {peer}")
    return replace(row, verdict="right", error=error)


def bind(case: Case) -> Bound:
    """Random inputs for a case, and copies of them if they are to be cold."""
    make = maker(case.program, case.name)
    run = operator(case.program, case.name, Options(numerics=case.numerics))
    call = trial(run.interface, make, {n: v.array() if isinstance(v, Random) else v for n, v in case.given.items()}, case.rank)
    tensors = [p.name for p in run.interface.tensors]
    inputs = tuple(np.asarray(call.arguments[n]) for n in tensors)
    count = COLD // max(1, sum(x.nbytes for x in inputs)) + 2 if case.cold else 1
    turns = (inputs, *(tuple(x.copy() for x in inputs) for _ in range(count - 1)))
    scalars = [p.name for p in run.interface.parameters if p.kind != "tensor" and p.name in call.arguments]
    rest = {sys.intern(n): call.arguments[n] for n in scalars}  # as names in the text of a call are
    first = [p.name for p in run.interface.parameters[: len(tensors)]] == tensors

    def ours(arrays: tuple[Array, ...]) -> Callable[[], Any]:
        if case.frozen:
            held = run.freeze(**{tensors[k]: arrays[k] for k in case.frozen})
            return partial(held, **{n: x for n, x in zip(tensors, arrays, strict=True) if n not in held.given}, **rest)
        return partial(run, *arrays, **rest) if first else partial(run, **dict(zip(tensors, arrays, strict=True)), **rest)
    return Bound(case, call, turns, tuple(ours(x) for x in turns), itertools.cycle(range(count)))


def results(value: Any, array: Callable[[Any], Array]) -> tuple[Array, ...]:
    """One result or several, as arrays of NumPy."""
    return tuple(array(x) for x in value) if isinstance(value, tuple | list) else (array(value),)


def theirs(peer: Peer, bound: Bound, count: int) -> tuple[tuple[Callable[[], Any], ...], tuple[Array, ...]]:
    """A peer's calls on each copy of the inputs, and its results.

    Raises TimeoutError, if a call takes so long that the others would wait for it all the time.
    """
    function = peer.function(bound.case, bound.turns[0], count)
    calls = tuple(partial(function, *(peer.own(x) for x in inputs)) for inputs in bound.turns)
    if peer.compiles:
        calls[0]()
    for _ in range(2):  # a call that was only interrupted gets another chance
        start = time.perf_counter()
        want = results(calls[0](), peer.array)
        taken = time.perf_counter() - start
        if taken <= SLOW:
            return calls, want
    raise TimeoutError(f"a call takes {taken:.1f} s")


def _by_turns(bound: Bound, calls: tuple[Callable[[], Any], ...]) -> Callable[[], Any]:
    """A call on the copy whose turn it is."""
    return calls[0] if len(calls) == 1 else lambda: calls[next(bound.turn)]()


def _error(got: tuple[Array, ...], want: tuple[Array, ...]) -> float:
    """The greatest difference of those results that both have."""
    return max(difference(_plain(g), _plain(w)) for g, w in zip(got, want, strict=False))


def _plain(x: Array) -> Array:
    return x.astype(np.float32) if x.dtype.kind == "V" or x.dtype.name == "bfloat16" else x


def sized(row: Row, bound: Bound, limits: Machine) -> Row:
    """What a call computes and moves, by the formulas of `polyop explain`."""
    w, sizes = work(bound.call.op), bound.call.sizes
    reads, writes = _reads(bound.call.op, sizes), w.writes.value(sizes)
    flops = w.operations.value(sizes) if bound.case.flops is None else bound.case.flops
    wide = any(t.dtype.name == "f64" for t in bound.call.op.inputs)
    return replace(row, flops=float(flops), exact=w.operations.exact or bound.case.flops is not None, bytes_=reads + writes,
                   least_ms=limits.least_ms(float(flops), reads, writes, wide))


def _reads(op: Op, sizes: Mapping[str, int]) -> int:
    """Bytes of all inputs, each element once; of a tensor that is only read at computed places, no more than its reads."""
    total = 0
    for t in op.inputs:
        whole = t.dtype.bytes_ * volume(t.shape, sizes)
        found = [(s, x) for s in op.steps for x in loads(s.expr) if x.source == t.name]
        if found and all(any(is_computed(i) for i in x.index) for _, x in found):
            whole = min(whole, t.dtype.bytes_ * sum(points(s).value(sizes) for s, _ in found))
        total += whole
    return total
