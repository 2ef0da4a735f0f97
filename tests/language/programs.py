"""Programs as the tests write them: text -> operator -> arrays, in both kinds of numerics."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyop
from polyop.ir.errors import UserError
from polyop.ir.options import Options
from polyop.operator import Operator

STRICT = Options(numerics="strict")


def make(text: str, name: str | None = None, options: Options | None = None) -> Operator:
    """The operator of `text`; if there are several, `name` says which, or else it is `f`."""
    if name is None and text.count("op ") > 1:
        name = "f"
    return polyop.op(text, name, options=options)


def run(text: str, *arrays: Any, options: Options | None = None, **named: Any) -> Any:
    return make(text, options=options)(*arrays, **named)


def strict(text: str, *arrays: Any, **named: Any) -> Any:
    return run(text, *arrays, options=STRICT, **named)


def body(text: str, header: str = "X: f32[N]", result: str = "Y: f32[N]") -> str:
    """An operator f with this body."""
    return f"op f({header}) -> ({result}) {{\n{text}\n}}"


def report(text: str, *arrays: Any, name: str | None = None, **named: Any) -> str:
    """What a wrong program, or a wrong call of a right one, is told."""
    try:
        made = make(text, name)
        result = made(*arrays, **named) if arrays or named else made.compile()
    except UserError as error:
        return str(error)
    return f"no error: {str(result)[:80]}"


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def i64(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)
