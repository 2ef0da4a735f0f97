"""Operators from a text, compiled for a GPU, and called on random numbers on the emulator; and the PTX of a text."""

from __future__ import annotations

import numpy as np

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.expr import evaluate
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
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


def ptx(text: str, arch: str) -> str:
    """The PTX of a text; fails if the compiler says anything but that."""
    library = nvrtc._library()
    headers = {p.name: p.read_bytes() for p in sorted(cxx.DEVICE.glob("*.h"))}
    names = [n.encode() for n in headers]
    program = library.nvrtcCreateProgram(text.encode(), b"k", len(names), list(headers.values()), names)[1]
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    (code,) = library.nvrtcCompileProgram(program, len(options), options)
    log = b" " * (library.nvrtcGetProgramLogSize(program)[1] + 2)
    library.nvrtcGetProgramLog(program, log)
    said = log.decode().strip("\0 \n")
    assert not int(code) and not said, said
    out = b" " * library.nvrtcGetPTXSize(program)[1]
    library.nvrtcGetPTX(program, out)
    library.nvrtcDestroyProgram(program)
    return out.decode()
