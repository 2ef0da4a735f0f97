"""Which function computes what, and how long it is."""

from __future__ import annotations

from polyop.codegen.vecmath import error, exponential, logarithmic, remainder, trigonometric
from polyop.codegen.vecmath.ops import Function, V


def _rsqrt(x: V) -> V:
    return 1.0 / x.sqrt()


FLOAT: dict[str, Function] = {
    "exp": exponential.exp, "exp2": exponential.exp2, "expm1": exponential.expm1, "sinh": exponential.sinh,
    "cosh": exponential.cosh, "tanh": exponential.tanh, "sigmoid": exponential.sigmoid, "silu": exponential.silu,
    "log": logarithmic.log, "log2": logarithmic.log2, "log1p": logarithmic.log1p, "softplus": logarithmic.softplus,
    "pow": logarithmic.power, "sin": trigonometric.sin, "cos": trigonometric.cos, "tan": trigonometric.tan,
    "asin": trigonometric.asin, "acos": trigonometric.acos, "atan": trigonometric.atan, "atan2": trigonometric.atan2,
    "erf": error.erf, "gelu": error.gelu, "rsqrt": _rsqrt, "mod": remainder.mod, "nextafter": remainder.nextafter,
}

BOTTOM = {"exp": exponential.BOTTOM, "exp2": exponential.BOTTOM2}
"""Functions that take another one as a second argument, and where they become 0 themselves."""

ALWAYS = 1 << 20
"""The length of a function with branches: it always has a body of its own."""

INSTRUCTIONS: dict[str, int] = {
    "exp": 20, "exp2": 20, "expm1": 35, "sinh": 45, "cosh": 30, "tanh": 25, "sigmoid": 25, "silu": 30, "log": 35, "log2": 45,
    "log1p": 45, "softplus": 35, "pow": 150, "sin": ALWAYS, "cos": ALWAYS, "tan": ALWAYS, "asin": 30, "acos": 30, "atan": 30,
    "atan2": 45, "erf": 40, "gelu": 45, "mod": ALWAYS,
}
"""About how many instructions each of `COMPUTED` is for f32; f64 is half as long again."""
