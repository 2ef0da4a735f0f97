"""polyop: Einstein notation to fast, proven kernels.

    >>> matmul = polyop.op("op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
    >>> C = matmul(A, B)
"""

from polyop.einsum import einsum
from polyop.ir.errors import CallError, InternalError, LegalityError, PolyopError, UnsupportedError, UserError
from polyop.ir.options import Options
from polyop.operator import Operator
from polyop.program import library, load, op
from polyop.runtime.threads import get_num_threads, set_num_threads

__version__ = "0.1.0"
__all__ = [
    "CallError", "InternalError", "LegalityError", "Operator", "Options", "PolyopError", "UnsupportedError", "UserError",
    "einsum", "get_num_threads", "library", "load", "op", "set_num_threads",
]
