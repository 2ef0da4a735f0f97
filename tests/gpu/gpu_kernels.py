"""Kernels written by hand, run on the emulator: what no nest asks for yet, and faults that no nest would make."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyop.ir.dtypes import BY_NUMPY
from polyop.ir.expr import affine
from polyop.ir.loops import Buffer, Space
from polyop.ir.module import Boxes, Launch, Module, Signature
from polyop.runtime import emulated
from polyop.runtime.findings import Report


def module(body: str, arrays: Mapping[str, np.ndarray], *, block: int = 32, blocks: int = 1, shared: int = 0,
           writes: tuple[str, ...] = ("Y",), target: str = "cuda:sm_80", boxes: tuple[Boxes, ...] = ()) -> Module:
    """A kernel `k` with `arrays` as pointers, which `body` calls by name, after POP_SHARED if there are `shared` bytes.

    What the copy engine is told of a tensor X, of which there are `boxes`, is X_map.
    """
    tensors = tuple(Buffer(n, BY_NUMPY[a.dtype], tuple((affine(k), 1) for k in a.shape), Space.TENSOR, a.ndim - 1)
                    for n, a in arrays.items())
    stored = {"f16": "pop_u16", "bf16": "pop_u16", "f32": "float", "f64": "double"}
    types = {b.name: ("" if b.name in writes else "const ") + stored.get(b.dtype.name, f"pop_{b.dtype}") for b in tensors}
    parameters = ", ".join([", ".join([f"{t}* {n}", *["pop_i64"] * arrays[n].ndim]) for n, t in types.items()]
                           + [f"const __grid_constant__ pop_tensor_map {b.tensor}_map, pop_u32" for b in boxes])
    head = f"    POP_SHARED({shared});\n" if shared else ""
    text = (f'#include "pop_device.h"\nextern "C" __global__ void __launch_bounds__({block}) k({parameters}) {{\n'
            f"    const pop_u32 t = pop_thread();\n    (void)t;\n{head}{body}\n}}\n")
    launch = Launch("k", (affine(block * blocks),), block, tuple(arrays), writes, shared, boxes=boxes)
    return Module("k", target, text, Signature("k", (), (), tensors, ()), (launch,))


def ran(body: str, arrays: Mapping[str, np.ndarray], *, order: str = "forward", completion: str = "late", watched: bool = True,
        block: int = 32, blocks: int = 1, shared: int = 0, writes: tuple[str, ...] = ("Y",),
        target: str = "cuda:sm_80", banks: bool = False, boxes: tuple[Boxes, ...] = ()) -> Report:
    """What the emulator finds; the arrays of `writes` are changed."""
    m = module(body, arrays, block=block, blocks=blocks, shared=shared, writes=writes, target=target, boxes=boxes)
    # tensors of which there are boxes lie as the engine needs them
    return emulated.run(m, {}, {}, arrays, watched=watched, order=order, completion=completion, banks=banks, aligned=bool(boxes))


def kinds(report: Report) -> set[str]:
    """The kinds of faults found."""
    return {f.what for f in report.findings}
