"""A nest that applies every scalar function a dtype has, each to its own output row."""

from __future__ import annotations

from gpu_nests import at, buffer, call, nest, parallel, store

from polyop.ir import scalars
from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U8, U16, U32, U64, DType
from polyop.ir.expr import Expr
from polyop.ir.loops import LoopNest

DTYPES = (F16, BF16, F32, F64, I8, I32, I64, U8, U16, U32, U64)


def functions(t: DType) -> dict[str, tuple[DType, int]]:
    """The functions of `t`: the dtype of the result, and how many arguments."""
    names = ["neg", "abs", "sign", "relu", "add", "sub", "mul", "div", "mod", "max", "min", "fma", *scalars.COMPARE]
    if t.is_float:
        names += [*scalars.UNARY_FLOAT, "pow", "atan2", "floor", "ceil", "round", "trunc", *scalars.PREDICATES]
        names += ["nextafter"] if t.bits > 16 else []
    else:
        names += ["invert", "bitand", "bitor", "bitxor", "shl", "shr"]
    truth = (*scalars.COMPARE, *scalars.PREDICATES)
    return {n: (BOOL if n in truth else t, scalars.ARITY[n]) for n in names}


def casts(t: DType) -> tuple[DType, ...]:
    return tuple(x for x in (*DTYPES, BOOL) if x != t)


def all_functions(t: DType) -> LoopNest:
    """Y_fn[i] = fn(A[i], B[i], C[i]) for every function, and to_u[i] = u(A[i]) for every other dtype u."""
    args: tuple[Expr, ...] = tuple(at(x, "i", dtype=t) for x in "ABC")
    rows = [(f"y_{n}", out, call(n, *args[:arity], dtype=out)) for n, (out, arity) in functions(t).items()]
    rows += [(f"to_{u}", u, call("cast", args[0], dtype=u)) for u in casts(t)]
    buffers = [buffer(x, "N", dtype=t, unit=0) for x in "ABC"] + [buffer(n, "N", dtype=u, unit=0) for n, u, _ in rows]
    cells = [store(n, at(n, "i", dtype=u), e) for n, u, e in rows]
    return nest(f"functions_{t}", "N", tuple(buffers), parallel("i", "N", *cells))
