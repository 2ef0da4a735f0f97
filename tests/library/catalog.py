"""The library's files, their cases, and the Op and sizes that the arguments of a case ask for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np

from polyop.dsl import syntax as s
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dtypes import DTYPES
from polyop.ir.op import Op
from polyop.ir.span import Source
from polyop.runtime.bind import Bound, bind
from tests.library.case import Case, Sizes

LIBRARY = files("polyop") / "library"
FILES = sorted(p.name.removesuffix(".pop") for p in LIBRARY.iterdir() if p.name.endswith(".pop"))
CASES: list[tuple[str, Case]] = [(name, c) for name in FILES for c in import_module(f"tests.library.cases.{name}").CASES]
IDS = [f"{name}-{c}" for name, c in CASES]


@cache
def program(name: str) -> s.Program:
    return parse(Source(f"{name}.pop", (LIBRARY / f"{name}.pop").read_text()))


def instance(name: str, case: Case, dtype: str, arrays: list[np.ndarray], keywords: Mapping[str, Any]) -> Op:
    """The Op of a case for arrays of these dtypes and ranks."""
    definition = program(name).op(case.op)
    assert definition is not None, case.op
    consts = {p.name: keywords[p.name] for p in definition.params if p.mode == "const" and p.name in keywords}
    rank = None
    tensors = [p for p in definition.params if p.mode == "inout" or p.type.brackets]
    for p, a in zip(tensors, arrays, strict=True):
        if any(isinstance(d, s.Rest) for d in p.type.dims):
            rank = a.ndim - len(p.type.dims) + 1
    dtypes = {g.name: DTYPES[dtype] for g in definition.generics}
    return instantiate(program(name), case.op, consts=consts, dtypes=dtypes, rank=rank)


def bound(op: Op, arrays: list[np.ndarray], keywords: Mapping[str, Any]) -> Bound:
    """Sizes and scalars of a call; refuses what a call would refuse."""
    values: dict[str, Any] = {t.name: a for t, a in zip(op.inputs, arrays, strict=True)}
    return bind(op, values | {p.name: keywords.get(p.name, p.default) for p in op.params})


def accuracy(dtype: str) -> str:
    """The float dtype whose rounding errors a case of `dtype` may have."""
    return dtype if dtype in ("f16", "bf16", "f32", "f64") else "f32"


__all__ = ["CASES", "FILES", "IDS", "Sizes", "accuracy", "bound", "instance", "program"]
