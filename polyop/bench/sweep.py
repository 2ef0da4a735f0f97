"""A sweep -> a row: hundreds of shapes, each met for the first time, and everything that has to be compiled for them."""

from __future__ import annotations

import importlib
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyop.bench import process
from polyop.bench.book import OURS, Row
from polyop.bench.case import Sweep, text
from polyop.bench.clock import timing
from polyop.bench.peers import Peer, from_tensor, reason, tensor
from polyop.ir.options import Options
from polyop.outcome import difference
from polyop.program import maker, op, operator
from polyop.runtime import store
from polyop.trial import trial

Array = Any

_ROOM = 256 << 20  # bytes, of a process that keeps what is freed: more than the largest result of a sweep


def swept(sweep: Sweep, peers: tuple[Peer, ...]) -> Row:
    """The time of all calls together, from text to the last result, beside PyTorch's as it is and compiled for any shape.

    Notes   Kernels go to an empty cache, or come from one that has them. An operator that this process has compiled before is not
            compiled again. Results are given up at once, as a server does: two hundred large ones would be a measurement of
            fresh memory.
    """
    inputs = _inputs(sweep)
    tensors = [tuple(tensor(x) for x in arrays) for arrays in inputs] if any(p.name == "torch" for p in peers) else []
    with process.empty_cache():
        op("op warm(X: f32[M, N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] }")(np.zeros((9, 9), np.float32))  # imports, thread pool
        if sweep.kept:
            _through(lambda: op(sweep.definition), inputs)
            store.forget()
        ms, ours = _through(lambda: op(sweep.definition), inputs)
    row = Row(sweep.group, sweep.label, "alone", times={OURS: timing([ms])})
    if not tensors:
        return row
    torch = importlib.import_module("torch")

    def same(*given: Any) -> Any:
        return sweep.torch(torch, *given)
    eager, _ = _through(lambda: same, tensors)
    error = max(difference(np.asarray(ours(*x)), from_tensor(same(*t))) for x, t in zip(inputs, tensors, strict=True))
    if error > sweep.tolerance:
        return Row(sweep.group, sweep.label, "WRONG", error, "differs from torch")
    times, skipped = {OURS: timing([ms]), "torch": timing([eager])}, {}
    if any(p.name == "compile" for p in peers):
        try:
            times["compile"] = timing([_compiled(torch, same, tensors)])
        except Exception as problem:  # whatever stops a peer is the peer's, and is written down
            skipped["compile"] = reason(problem)
    return Row(sweep.group, sweep.label, "right", error, times=times, skipped=skipped)


def _inputs(sweep: Sweep) -> list[tuple[Array, ...]]:
    program, name = text(sweep.definition)
    run, make = operator(program, name, Options()), maker(program, name)
    calls = [trial(run.interface, make, sizes, seed=k) for k, sizes in enumerate(sweep.sizes)]
    return [tuple(call.arguments[p.name] for p in run.interface.tensors) for call in calls]


def _through(make: Callable[[], Callable[..., Any]], inputs: list[tuple[Any, ...]]) -> tuple[float, Callable[..., Any]]:
    """Milliseconds of making a function and calling it on all inputs; and the function.

    Memory for results has been used before.
    """
    np.ones(_ROOM, np.uint8)
    start = time.perf_counter()
    function = make()
    for x in inputs:
        function(*x)
    return 1e3 * (time.perf_counter() - start), function


def _compiled(torch: Any, same: Callable[..., Any], tensors: list[tuple[Any, ...]]) -> float:
    """The time of torch.compile with nothing cached, like ours; a first compile of something else pays for its imports."""
    config: Mapping[str, Any] = {"force_disable_caches": True}
    with warnings.catch_warnings(), importlib.import_module("torch._inductor.config").patch(config):
        warnings.simplefilter("ignore")  # of torch: that nothing is cached
        torch.compiler.reset()
        torch.compile(lambda x: x + 1)(torch.zeros(3))
        ms, _ = _through(lambda: torch.compile(same, dynamic=True), tensors)
    return ms
