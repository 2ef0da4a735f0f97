"""A process of its own for polyop or for one peer: asked for one case at a time, it answers with results, or with a time.

    python -c TEXT polyop     in the folder whose polyop is to be imported; TEXT is this file, which other checkouts do not have

So it takes from polyop what old checkouts have as well, and both sides speak in tuples of plain values, pickled:

    ("results", group, label, own)        a call's results; own: (text, operator, given values, rank) of what is in no group
    ("time", group, label, seconds)       ms of a call, the least of those seconds
    ("forget",)                           the inputs of all cases may go
"""

from __future__ import annotations

import itertools
import math
import os
import pickle
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

import polyop
from polyop.bench import GROUPS, Case, bind, process, results
from polyop.bench.case import text
from polyop.bench.peers import PEERS, Peer
from polyop.runtime import threads

SAMPLE = 2e-4  # seconds: what is shorter is called several times; asking for processor time takes a microsecond

Call = Callable[[], Any]
Own = tuple[str, str, dict[str, Any], int | None]


def found(group: str, label: str, own: Own | None) -> Case:
    """The case that is called so here. Raises LookupError, if there is none: another checkout may have other cases."""
    if own is not None:
        definition, name, given, rank = own
        return Case(group, label, text(definition)[0], name, given, rank)
    for case in GROUPS[group]() if group in GROUPS else ():
        if case.label == label and isinstance(case, Case):
            return case
    raise LookupError("there is no such case")


def called(peer: Peer | None, case: Case) -> tuple[Call, tuple[Any, ...]]:
    """A call of `case`, on another copy of its inputs each time where there are several; and its results."""
    bound = bind(case)
    if peer is None:
        calls, got = bound.run, results(bound.run[0](), np.asarray)
    else:
        from polyop.bench.measure import theirs  # which other checkouts need not have: peers are measured by this one

        calls, got = theirs(peer, bound, 1)
    turns = itertools.cycle(calls)
    return (calls[0] if len(calls) == 1 else lambda: next(turns)()), got


def least(call: Call, seconds: float) -> float:
    """Milliseconds of processor time that a call takes, the least of as many as fit into so many seconds.

    Notes   All threads of the process count, since JAX computes in one of its own; with one thread each, none of them spins.
    """
    call()
    begin = time.perf_counter()
    call()
    repeats = max(1, math.ceil(SAMPLE / max(1e-8, time.perf_counter() - begin)))
    best, stop = math.inf, time.perf_counter() + seconds
    while best == math.inf or time.perf_counter() < stop:
        before = time.process_time()
        for _ in range(repeats):
            call()
        best = min(best, time.process_time() - before)
    return 1e3 * best / repeats


def ready(peer: Peer | None) -> tuple[str, str]:
    """This process made ready to measure on one thread: the version of what it measures, and where its polyop is from."""
    threads.set_num_threads(1)
    if peer is not None:
        peer.ready(1)
    process.blas_threads(1)
    process.keep_memory()
    return polyop.__version__ if peer is None else peer.version, str(Path(polyop.__file__).parents[1])


def answers(peer: Peer | None, asked: BinaryIO, said: BinaryIO) -> None:
    """Answer until nobody asks any more: ("done", value), or ("failed", reason) whatever happened."""
    calls: dict[tuple[str, str], Call] = {}

    def answer(request: tuple[Any, ...]) -> Any:
        match request:
            case ("results", group, label, own):
                calls[group, label], got = called(peer, found(group, label, own))
                return got
            case ("time", group, label, seconds):
                return least(calls[group, label], seconds)
            case _:
                return calls.clear()

    def say(of: Callable[[], Any]) -> None:
        try:
            out = "done", of()
        except Exception as error:  # whatever stops a case is its own, and is written down
            out = "failed", ": ".join([type(error).__name__, *str(error).strip().splitlines()[:1]])
        pickle.dump(out, said, protocol=5)
        said.flush()
    say(partial(ready, peer))
    while True:
        try:
            request = pickle.load(asked)
        except EOFError:
            return
        say(partial(answer, request))


def main(who: str) -> None:
    said = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    answers(next((p for p in PEERS if p.name == who), None), sys.stdin.buffer, said)


if __name__ == "__main__":
    main(sys.argv[1])
