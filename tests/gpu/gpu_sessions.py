"""Sessions on the fake driver: an operator called several times, with arrays of some framework, on some device and stream."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import fake_gpu
import gpu_data
import gpu_programs
import numpy as np
import pytest
from fake_gpu import Capsules, FakeGpu, Interface
from gpu_calls import Array, Given, NotPossible, given, laid, sizes_of
from gpu_programs import Rng, one_of

import polyop
from polyop.ir.errors import CallError, PolyopError
from polyop.ir.expr import evaluate
from polyop.ir.op import Op
from polyop.operator import Operator

ARCHS = {"cuda:sm_80": (8, 0, b""), "cuda:sm_90a": (9, 0, b""), "hip:gfx90a": (9, 0, b"gfx90a"), "hip:gfx942": (9, 0, b"gfx942"),
         "hip:gfx1100": (9, 0, b"gfx1100")}
HOW = ("torch", "torch", "captured", "interface", "capsules")
"""Tensors of torch, called or captured into a graph and replayed; and arrays of others, which have more types."""

STREAM = 12  # that is captured


@dataclass(frozen=True, eq=False)
class Session:
    """Calls of an operator, and the fault of the last one; none if that is empty."""

    text: str
    calls: tuple[str, ...]
    fault: str

    def __str__(self) -> str:
        return f"{' '.join(self.text.split())} called with {'; '.join(self.calls)}: {self.fault or 'right'}"


def session(seed: int, target: str) -> Session:
    """A few calls that follow from the seed."""
    rng = np.random.default_rng([seed, *b"session"])
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setenv("POLYOP_CACHE_DIR", folder)  # the code of a fake driver is nobody else's
        with fake_gpu.found(target.partition(":")[0]) as gpu:
            gpu.reset(devices=2, arch=ARCHS[target])
            torch = fake_gpu.torch(hip=gpu.family == "hip")
            torch.empty = keeping(torch.empty)
            patch.setitem(sys.modules, "torch", torch)
            return called(rng, gpu, torch)


def keeping(empty: Callable[..., Any]) -> Callable[..., Any]:
    """What allocates memory that stays, as torch's does for a graph that is captured."""
    kept: list[Any] = []

    def one(*given: Any, **more: Any) -> Any:
        kept.append(empty(*given, **more))
        return kept[-1]

    return one


def called(rng: Rng, gpu: FakeGpu, torch: Any) -> Session:
    text = one_of(rng, (gpu_data, gpu_programs)).text(rng)
    operator = polyop.op(text, "f")
    op = operator._op(operator.choice())
    few, said = [sizes_of(op, rng) for _ in range(rng.integers(1, 4))], list[str]()
    for _ in range(rng.integers(3, 7)):
        try:
            g = given(op, one_of(rng, few), rng)
        except (NotPossible, PolyopError):
            continue
        how = str(one_of(rng, HOW if all(t.dtype.name not in ("u16", "u32", "u64") for t in op.tensors) else HOW[3:]))
        index = int(rng.integers(0, 2)) if how in ("torch", "captured") else 0
        said.append(f"{g} as {how} on {index}")
        try:
            fault = one(operator, op, g, how, index, rng, gpu, torch)
        except CallError as error:
            if "E605" in str(error) or "negative" in str(error):  # the facts of the operator, at these sizes
                continue
            fault = f"REFUSED: {error}"
        if fault:
            return Session(text, tuple(said), fault)
    return Session(text, tuple(said), "")


def one(operator: Operator, op: Op, g: Given, how: str, index: int, rng: Rng, gpu: FakeGpu, torch: Any) -> str:
    """One call, and what is wrong with it."""
    def lent(a: Array) -> Any:
        match how:
            case "interface" if gpu.family == "cuda":
                gpu.fake.fake_place(a.ctypes.data, index)
                return Interface(a)
            case "capsules" | "interface":
                return Capsules(a, gpu.family)
        return torch.on_gpu(a, index)

    arrays = {n: laid(a, rng) for n, a in g.arrays.items()}
    names = {p.name_in_op: p.name for p in operator.interface.parameters}
    wrapped = {n: lent(a) for n, a in arrays.items()}
    values = {names[n]: x for n, x in {**wrapped, **g.scalars, **{n: v for n, v in g.sizes.items() if n in names}}.items()}
    stream, first = (STREAM if how == "captured" else int(rng.integers(0, 3))), len(gpu.launches)
    torch.stream[index] = stream
    gpu.fake.fake_capture(STREAM if how == "captured" else 0)
    if rng.random() < 0.25 and not op.updates:
        shapes = [tuple(evaluate(e, g.sizes) for e in t.shape) for t in op.outputs]
        out = tuple(lent(laid(np.zeros(s, t.dtype.numpy), rng)) for s, t in zip(shapes, op.outputs, strict=True))
        values["out"] = out if len(out) > 1 else out[0]
    try:
        got = operator(**values)
    finally:
        gpu.fake.fake_capture(0)
    if how == "captured":
        gpu.fake.fake_replay(first, len(gpu.launches))
    wild = ""
    try:
        polyop.synchronize()
    except CallError as error:
        wild = str(error)
    if bool(wild) != g.outside():
        return f"WRONG: {wild or 'a position was outside, and nobody said so'}"
    if how in ("torch", "captured") and {r.stream for r in gpu.launches[first:]} - {stream}:
        return f"WRONG: launches in {[r.stream for r in gpu.launches[first:]]}, not in {stream}"
    if wild:
        return ""
    results = tuple(map(here, got if isinstance(got, tuple) else (got,)))
    fault = g.wrong(results)
    return f"WRONG: {fault}" if fault else ""


def here(x: Any) -> Array:
    return np.asarray(x.numpy() if hasattr(x, "numpy") else x.array)
