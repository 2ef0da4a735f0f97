"""Cases -> a book, by turns: polyop, each peer and another checkout in processes of their own, asked again and again.

Each has its own threads, memory and caches, all are on one core, and one of them works at a time. What a case takes is the least
processor time of a call, in each of several rounds over all cases of a group: a slow second, or a slow minute, leaves others.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import polyop
from polyop.bench import process
from polyop.bench.book import OURS, Book, Row
from polyop.bench.case import Case, Random
from polyop.bench.clock import timing
from polyop.bench.machine import Machine
from polyop.bench.measure import bind, compared, sized, versions
from polyop.bench.peers import Peer
from polyop.ir.errors import PolyopError, UnsupportedError
from polyop.runtime import cache

AGAINST = "against"
"""The name of polyop in another checkout, and of the folder in polyop's cache where its kernels are."""


class Stopped(Exception):
    """Why a worker has no answer."""


@dataclass(frozen=True, eq=False, slots=True)
class Worker:
    """A process that measures `name`; `offers`: whether it has something for a case; `version`: of what it measures."""

    name: str
    version: str
    offers: Callable[[Case], bool]
    process: subprocess.Popen[bytes]

    def ask(self, *request: Any) -> Any:
        return _asked(self.process, request)


@dataclass(frozen=True, eq=False, slots=True)
class Turns:
    """How to measure: so many rounds, in each of which a case has so many seconds with each worker.

    against   another checkout of polyop
    own       whether the cases are in no group, so that workers must be told what they are
    """

    rounds: int
    seconds: float
    peers: tuple[Peer, ...] = ()
    against: Path | None = None
    own: bool = False

    def __post_init__(self) -> None:
        if self.against and not (self.against / "polyop" / "bench" / "measure.py").is_file():
            raise UnsupportedError(f"{self.against} is no checkout of polyop: it has no polyop/bench/measure.py")


def turned(cases: Iterable[Case], limits: Machine, how: Turns, size: str, missing: dict[str, str],
           seen: Callable[[tuple[Row, ...]], None] = lambda rows: None, now: Callable[[str], None] = lambda what: None) -> Book:
    """All `cases` measured by turns; `seen` is told of the rows of each group, and `now` of what is being done."""
    rows: list[Row] = []
    with process.on_one_core(), ExitStack() as running:
        workers, missing = [], {**missing}
        for name, offers, root in _wanted(how):
            now(f"starting {name}")
            try:
                workers.append(running.enter_context(_working(name, offers, root)))
            except Stopped as error:
                if root != _root() or name == OURS:
                    raise UnsupportedError(f"polyop in {root} cannot be measured: {error}") from None
                missing[name] = str(error)
        for _, group in groupby(cases, key=lambda c: c.group):
            rows += (done := _measured([*group], workers, limits, how, now))
            seen(done)
        found = versions({w.name: w.version for w in workers[1:]})
    return Book(limits, size, found, missing, tuple(rows), how.rounds)


def _wanted(how: Turns) -> Iterator[tuple[str, Callable[[Case], bool], Path]]:
    yield OURS, lambda case: True, _root()
    for peer in how.peers:
        yield peer.name, peer.offers, _root()
    if how.against:
        yield AGAINST, lambda case: True, how.against.resolve()


def _root() -> Path:
    return Path(polyop.__file__).resolve().parent.parent


@contextmanager
def _working(name: str, offers: Callable[[Case], bool], root: Path) -> Iterator[Worker]:
    """A worker, for as long as this lasts. Raises Stopped, if it is not ready to measure what it should."""
    text = Path(__file__).with_name("worker.py").read_text(encoding="utf-8")
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if name == AGAINST:
        env["POLYOP_CACHE_DIR"] = str(cache.folder().resolve() / AGAINST)
    command = [sys.executable, "-c", text, OURS if name == AGAINST else name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd=root,
                          start_new_session=True) as started:  # Ctrl-C is for us alone
        try:
            version, imported = _answer(started)
            if Path(imported).resolve() != root:
                raise Stopped(f"python imports the one in {imported}")
            yield Worker(name, version, offers, started)
        finally:
            started.kill()
            with suppress(BrokenPipeError):  # of a request that found it dead
                if started.stdin:
                    started.stdin.close()


def _asked(worker: subprocess.Popen[bytes], request: tuple[Any, ...]) -> Any:
    """The answer to a request. Raises Stopped, if there is none."""
    assert worker.stdin
    try:
        pickle.dump(request, worker.stdin, protocol=5)
        worker.stdin.flush()
    except BrokenPipeError:
        raise Stopped(f"its process ended with {worker.wait()}") from None
    return _answer(worker)


def _answer(worker: subprocess.Popen[bytes]) -> Any:
    assert worker.stdout
    try:
        outcome, value = pickle.load(worker.stdout)
    except EOFError:
        raise Stopped(f"its process ended with {worker.wait()}") from None
    if outcome == "failed":
        raise Stopped(value)
    return value


def _measured(cases: Sequence[Case], workers: Sequence[Worker], limits: Machine, how: Turns,
              now: Callable[[str], None]) -> tuple[Row, ...]:
    """The rows of a group: all results compared, and then the rounds. All inputs stay where they are until these are over."""
    rows, timed = [], []
    for case in cases:
        now(f"{case.group}: {case.label}, comparing")
        row, able = _compared(case, workers, limits, how.own)
        rows.append(row)
        timed.append({w: list[float]() for w in able})
    for number in range(how.rounds):
        for k, (case, samples) in enumerate(zip(cases, timed, strict=True)):
            now(f"{case.group}: {case.label}, round {number + 1} of {how.rounds}")
            able = [*samples]
            first = number % max(1, len(able))
            for w in (*able[first:], *able[:first]):  # nobody always follows the same one
                try:
                    samples[w].append(w.ask("time", case.group, case.label, how.seconds))
                except Stopped as error:
                    rows[k] = _without(rows[k], w, str(error))
                    del samples[w]
    for w in workers:
        try:
            w.ask("forget")
        except Stopped:  # as those of its cases say that were not timed
            continue
    return tuple(r if r.verdict in ("WRONG", "failed") else replace(r, times={w.name: timing(x) for w, x in samples.items()})
                 for r, samples in zip(rows, timed, strict=True))


def _compared(case: Case, workers: Sequence[Worker], limits: Machine, own: bool) -> tuple[Row, list[Worker]]:
    """A row without times, and who can be timed: the results of each, compared with those of polyop."""
    ours, *others = workers
    row, request = Row(case.group, case.label, "alone"), ("results", case.group, case.label, _told(case) if own else None)
    try:
        row = sized(row, bind(replace(case, cold=False)), limits)
        got, able = ours.ask(*request), [ours]
    except (PolyopError, MemoryError, Stopped) as error:
        return _without(row, ours, str(error).splitlines()[0]), []
    for w in (w for w in others if w.offers(case)):
        try:
            row = compared(row, got, w.name, w.ask(*request), case.tolerance)
        except Stopped as error:
            row = _without(row, w, str(error))
        if row.verdict == "WRONG":
            return row, []
        if w.name not in row.skipped:
            able.append(w)
    return row, able


def _without(row: Row, worker: Worker, why: str) -> Row:
    """The row of a case in which `worker` was stopped."""
    if worker.name == OURS:
        return replace(row, verdict="failed", reason=why)
    return replace(row, skipped={**row.skipped, worker.name: why})


def _told(case: Case) -> tuple[str, str, dict[str, Any], int | None]:
    """What a worker needs to know of a case that is in no group."""
    given = {n: v.array() if isinstance(v, Random) else v for n, v in case.given.items()}
    return case.program.source.text, case.name, given, case.rank
