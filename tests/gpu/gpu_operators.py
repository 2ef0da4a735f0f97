"""Operators of the library, compiled for a GPU, with arguments and what NumPy says of them."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from polyop.compiler import compile_op
from polyop.ir.expr import evaluate
from polyop.ir.module import Module
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.known import blocks
from polyop.rewrite.regimes.questions import questions
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
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")
OWN = tuple({(file, case.op): name for name, (file, case) in reversed(list(zip(IDS, CASES, strict=True)))}.values())[::-1]
"""A case for each operator of the library, in its order."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a compiled operator: `arrays` holds inputs and, to be filled, outputs; `rung` is where the ladder ended.

    op, options   what was compiled; seconds: of processor time that generating its text took, proofs included
    """

    case: Case
    dtype: str
    given: Sizes
    rung: str
    module: Module
    sizes: dict[str, int]
    scalars: dict[str, Any]
    arrays: dict[str, np.ndarray]
    want: tuple[np.ndarray, ...]
    outputs: tuple[str, ...]
    op: Op
    options: Options
    seconds: float

    def check(self) -> None:
        """Assert that the outputs are what NumPy says."""
        check(self.case, accuracy(self.dtype), self.given, tuple(self.arrays[n] for n in self.outputs), self.want)


def together(file: str, target_name: str) -> list[Call]:
    """A call of every operator of a file of the library, whose modules have one text: a compiler starts once for all of them."""
    return with_one_text([in_turn(k, target_name) for k, name in enumerate(OWN) if CASES[IDS.index(name)][0] == file])


def by_turns(target_name: str, part: int, parts: int) -> list[Call]:
    """Calls of those operators of the library whose turn it is on a target, in so many parts, with one text."""
    mine = [k for k in range(len(OWN)) if TARGETS[k % len(TARGETS)] == target_name]
    return with_one_text([in_turn(k, target_name) for k in mine[part::parts]])


def with_one_text(found: list[Call]) -> list[Call]:
    """The same calls, whose modules have the texts of all."""
    text = "\n".join(dict.fromkeys(c.module.text for c in found))
    return [replace(c, module=replace(c.module, text=text)) for c in found]


def typed(case: Case) -> tuple[str, ...]:
    """f32 and f16, as far as the case has them; its first type, if it has neither."""
    return tuple(t for t in ("f32", "f16") if t in case.dtypes) or case.dtypes[:1]


def in_turn(k: int, target_name: str) -> Call:
    """A call of operator `k`, by the kernel that it gets: from one to the next f32 and f16 take turns, if it has both, and so do
    small sizes."""
    dtypes = CASES[IDS.index(OWN[k])][1].dtypes
    wanted = ("f32", "f16")[k % 2]
    return calls(OWN[k], wanted if wanted in dtypes else dtypes[0], target_name, turn=k, own=True)[0]


def calls(name: str, dtype: str, target_name: str, small: bool = True, turn: int | None = None, own: bool = False) -> list[Call]:
    """A call for each of the case's small (or ordinary) sizes; or for one of them, whose `turn` it is.

    own   each by the kernel that such a call gets, and not by the one for all sizes
    """
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
        options = Options(regime="positive" if all(n > 0 for n in call.sizes.values()) else "any")
        options = blocks(op, questions(op), call.sizes, Options(), target(target_name)) if own else options
        rung, module, seconds = made(op, target_name, options)
        outputs = tuple(t.name for t in op.outputs)
        out.append(Call(case, dtype, given, rung, module, dict(call.sizes), dict(call.scalars), arrays, want, outputs, op,
                        options, seconds))
    return out


@cache
def made(op: Any, target_name: str, options: Options) -> tuple[str, Module, float]:
    """The rung on which `op` was compiled, its module, and the seconds that took."""
    start = time.thread_time()
    found = compile_op(op, contiguous(op), target(target_name), options)
    assert found.module is not None, f"{op.name} has no text for {target_name}"
    return found.rung, found.module, time.thread_time() - start
