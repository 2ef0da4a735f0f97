"""Which function computes what."""

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
