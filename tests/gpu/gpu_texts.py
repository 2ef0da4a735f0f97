"""Operators from a text, compiled for a GPU, and called on random numbers on the emulator."""

from __future__ import annotations

import numpy as np

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.expr import evaluate
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import emulated
from polyop.runtime.layout import contiguous

Array = np.ndarray


def compiled(text: str, options: Options | None = None, on: str = "cuda:sm_80") -> Compiled:
    o = polyop.op(text)
    op = o._op(o.choice())
    return compile_op(op, contiguous(op), target(on), options or Options())


def values(c: Compiled, sizes: dict[str, int], order: str = "forward") -> dict[str, Array]:
    """All tensors of a call on random numbers, after it, in which the emulator found no fault."""
    rng = np.random.default_rng(1)
    shapes = {t.name: [evaluate(e, sizes) for e in t.shape] for t in c.op.tensors if t.role != "temp"}
    arrays = {t.name: rng.standard_normal(shapes[t.name]).astype(t.dtype.numpy) for t in c.op.inputs}
    arrays |= {t.name: np.zeros(shapes[t.name], t.dtype.numpy) for t in c.op.outputs}
    assert c.module is not None
    assert str(emulated.run(c.module, sizes, {}, arrays, order=order)) == "no fault found"
    return arrays
