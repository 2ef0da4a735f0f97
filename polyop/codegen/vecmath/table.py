"""Which function computes what."""

from __future__ import annotations

from polyop.codegen.vecmath import exponential as e
from polyop.codegen.vecmath.ops import Function

FLOAT: dict[str, Function] = {
    "exp": e.exp, "exp2": e.exp2, "expm1": e.expm1, "sinh": e.sinh, "cosh": e.cosh, "tanh": e.tanh, "sigmoid": e.sigmoid,
    "silu": e.silu,
}

INSTRUCTIONS: dict[str, int] = {"exp": 20, "exp2": 20, "expm1": 30, "sinh": 40, "cosh": 30, "tanh": 35, "sigmoid": 30, "silu": 30}
"""About how long each is; at 1500 and more it is never inlined."""
