"""polyop: Einstein notation to fast, proven kernels.

    >>> matmul = polyop.op("op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
    >>> C = matmul(A, B)

What a name needs is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from polyop.ir.errors import CallError, InternalError, LegalityError, PolyopError, UnsupportedError, UserError
from polyop.ir.options import Options
from polyop.runtime import forks

if TYPE_CHECKING:
    from polyop import graph
    from polyop.equation import einsum
    from polyop.frozen import Frozen
    from polyop.operator import Operator
    from polyop.program import library, load, op
    from polyop.runtime.gpu.status import synchronize
    from polyop.runtime.threads import get_num_threads, set_num_threads

__version__ = "0.1.0"

_HOMES = {
    "op": "program", "load": "program", "library": "program", "einsum": "equation", "Operator": "operator", "Frozen": "frozen",
    "get_num_threads": "runtime.threads", "set_num_threads": "runtime.threads", "synchronize": "runtime.gpu.status",
}

__all__ = [
    "CallError", "Frozen", "InternalError", "LegalityError", "Operator", "Options", "PolyopError", "UnsupportedError",
    "UserError", "einsum", "get_num_threads", "graph", "library", "load", "op", "set_num_threads", "synchronize",
]


def __getattr__(name: str) -> Any:
    if name != "graph" and name not in _HOMES:
        raise AttributeError(f"module 'polyop' has no attribute {name!r}")
    with forks.IMPORTS:
        value = import_module("polyop.graph") if name == "graph" else getattr(import_module(f"polyop.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
