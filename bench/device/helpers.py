"""Work in processes that may die of it: after a fault, or a call that never ends, the rest goes on in a new one.

A device takes no more work from a process that made it fault, so whoever finds something wrong is replaced as well.
"""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any


@dataclass(frozen=True, slots=True)
class Done:
    """What became of the job `index`: its result, or why there is none."""

    index: int
    result: Any = None
    lost: str = ""


def _serve(pipe: Connection, f: Callable[..., Any]) -> None:
    pipe.send("ready")
    while (arguments := pipe.recv()) is not None:
        try:
            pipe.send((f(*arguments), ""))
        except Exception as error:  # it is told, and the others are to be tried in any case
            pipe.send((None, f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"))


class _Helper:
    """One process, which is started when it is needed."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.process: Any = None
        self.pipe: Any = None

    def ask(self, index: int, arguments: Sequence[Any], longest: float, stop: float) -> Done:
        """One job, for which it has `longest` seconds once it runs, and until `stop` at most; if it does not answer, it ends."""
        try:
            if self.process is None:
                self.start()
                if self.pipe.poll(max(0.0, stop - time.monotonic())):
                    self.pipe.recv()
            seconds = max(0.0, min(longest, stop - time.monotonic()))
            self.pipe.send(tuple(arguments))
            if not self.pipe.poll(seconds):
                self.stop()
                return Done(index, lost=f"no answer after {seconds:.0f} s")
            result, lost = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(1)
            code = self.process.exitcode
            self.stop()
            return Done(index, lost=f"its process ended with {code}")
        if lost:
            self.stop()
        return Done(index, result, lost)

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(other, self.f), daemon=True)
        self.process.start()
        other.close()

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def each(f: Callable[..., Any], jobs: Sequence[Sequence[Any]], seconds: float, workers: int = 1, longest: float = 60.0,
         is_wrong: Callable[[Any], bool] = lambda result: False) -> Iterator[Done]:
    """`f(*job)` of as many `jobs` as fit into `seconds`, each as soon as it is done; the others are left without a word.

    longest    seconds that one job may take
    is_wrong   whether a result says that something went wrong, so that its process is not to be trusted any more
    """
    stop, todo, found = time.monotonic() + seconds, queue.SimpleQueue[int](), queue.SimpleQueue[Done | None]()
    for k in range(len(jobs)):
        todo.put(k)

    def work() -> None:
        helper = _Helper(f)
        try:
            while time.monotonic() < stop:
                done = helper.ask(k := todo.get_nowait(), jobs[k], longest, stop)
                if done.lost and time.monotonic() >= stop:
                    break  # it was cut short
                found.put(done)
                if not done.lost and is_wrong(done.result):
                    helper.stop()
        except queue.Empty:
            pass
        finally:
            helper.stop()
            found.put(None)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(workers, len(jobs))))]
    for t in threads:
        t.start()
    running = len(threads)
    while running:
        done = found.get()
        if done is None:
            running -= 1
        else:
            yield done
