"""Operators of the library, compiled for a GPU, with arguments and what NumPy says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from polyop.compiler import compile_op
from polyop.ir.expr import evaluate
from polyop.ir.module import Module
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime.layout import contiguous
from tests.library.case import Case, Sizes, check
from tests.library.catalog import CASES, IDS, accuracy, bound, instance

OPERATORS = (
    ("linalg-matmul", "f32"), ("linalg-matmul_i8", ""), ("linalg-matmul_nt", "f64"), ("softmax-softmax", "f32"),
    ("norm-layernorm", "f16"), ("attention-attention,scale=0.25", "f32"),
    ("attention-attention_causal,scale=0.25", ""), ("conv-conv2d,stride=2,pad=1", ""),
    ("stencil-heat1d,steps=T", ""), ("embedding-embedding", ""), ("embedding-scatter_add,N=N", ""), ("activation-gelu", "bf16"),
)
"""Names of cases of the library, with a dtype; the first of the case's own where there is none."""

FILES = tuple(dict.fromkeys(file for file, _ in CASES))


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a compiled operator: `arrays` holds inputs and, to be filled, outputs."""

    case: Case
    dtype: str
    given: Sizes
    module: Module
    sizes: dict[str, int]
    scalars: dict[str, Any]
    arrays: dict[str, np.ndarray]
    want: tuple[np.ndarray, ...]
    outputs: tuple[str, ...]

    def check(self) -> None:
        """Assert that the outputs are what NumPy says."""
        check(self.case, accuracy(self.dtype), self.given, tuple(self.arrays[n] for n in self.outputs), self.want)


def together(file: str, target_name: str) -> list[Call]:
    """A call of every operator of a file of the library, whose modules have one text: a compiler starts once for all of them.

    From one operator to the next dtypes change between f32 and f16, if an operator has both, and small sizes take turns.
    """
    own = {case.op: name for name, (f, case) in reversed(list(zip(IDS, CASES, strict=True))) if f == file}
    out = []
    for k, name in enumerate(sorted(own.values())):
        dtypes = CASES[IDS.index(name)][1].dtypes
        wanted = ("f32", "f16")[k % 2]
        found = calls(name, wanted if wanted in dtypes else dtypes[0], target_name, turn=k)
        out += found
    text = "\n".join(dict.fromkeys(c.module.text for c in out))
    return [replace(c, module=replace(c.module, text=text)) for c in out]


def calls(name: str, dtype: str, target_name: str, small: bool = True, turn: int | None = None) -> list[Call]:
    """A call for each of the case's small (or ordinary) sizes; or for one of them, whose `turn` it is."""
    file, case = CASES[IDS.index(name)]
    dtype = dtype or case.dtypes[0]
    out = []
    rows = case.tiny if small else case.sizes
    for given in rows if turn is None else (rows[turn % len(rows)],):
        inputs, keywords = case.arguments(dtype, given), case.keywords(given)
        want = case.expected(inputs, given)
        op = instance(file, case, dtype, inputs, keywords)
        call = bound(op, [a.copy() for a in inputs], keywords)
        arrays = {t.name: a for t, a in zip(op.inputs, inputs, strict=True)}
        for t in op.outputs:
            arrays[t.name] = np.zeros([evaluate(e, call.sizes) for e in t.shape], t.dtype.numpy)
        for source, result in op.updates:
            arrays[result][...] = arrays[source]
        module = _module(op, target_name, "positive" if all(n > 0 for n in call.sizes.values()) else "any")
        outputs = tuple(t.name for t in op.outputs)
        out.append(Call(case, dtype, given, module, dict(call.sizes), dict(call.scalars), arrays, want, outputs))
    return out


@cache
def _module(op: Any, target_name: str, regime: str) -> Module:
    module = compile_op(op, contiguous(op), target(target_name), Options(regime=regime)).module
    assert module is not None, f"{op.name} has no text for {target_name}"
    return module
