"""Reductions over each axis, with what NumPy has of the same name."""

import numpy as np

from tests.library.case import ALSO_HALF, case

ZN = "Z N: - 1; 3 16; 2x3 17; 5 65; 4 0; 2 127; 0 3"
FULL = "Z N: - 1; 3 16; 2x3 17; 5 65; 2 127"
ANB = "A N B: 1 1 1; 3 5 17; 2 64 16; 2 0 3"
Z = "Z: -; 1; 15; 64; 3x17; 2x3x5; 0"
NUMBERS = ("f32", "f64", "i32", "i64")
SIGNED = ("f32", "f64")


def rows(name, f, *, sizes=ZN, dtypes=SIGNED, kind="", terms="N", **kw):
    return case(name, f"{kind}*Z,N", f, sizes, dtypes=dtypes, terms=terms, **kw)


def columns(name, f, *, sizes=ZN, dtypes=SIGNED, kind="", terms="N", **kw):
    return case(name, f"{kind}N,*Z", f, sizes, dtypes=dtypes, terms=terms, **kw)


def middle(name, f, dtypes=SIGNED):
    return case(name, "A,N,B", f, ANB, dtypes=dtypes, terms="N")


def along(f, axis, **kw):
    return lambda x: f(x, axis=axis, **kw)


def low(f, axis):
    return along(f, axis, initial=np.inf)


def high(f, axis):
    return along(f, axis, initial=-np.inf)


def arg(f, axis):
    return lambda x: f(x, axis) if x.shape[axis] else np.full(np.delete(x.shape, axis), -1)


CASES = [
    rows("sum_rows", along(np.sum, -1), dtypes=(*ALSO_HALF, "i32", "i64")),
    columns("sum_columns", along(np.sum, 0), dtypes=NUMBERS),
    middle("sum_middle", along(np.sum, 1), NUMBERS),
    case("sum_all", "*Z", np.sum, Z, dtypes=NUMBERS, terms="prod(Z)"),
    rows("mean_rows", along(np.mean, -1), dtypes=ALSO_HALF),
    columns("mean_columns", along(np.mean, 0)),
    middle("mean_middle", along(np.mean, 1)),
    case("mean_all", "M,N", np.mean, "M N: 1 1; 15 17; 64 65; 0 3", terms="M * N"),
    rows("prod_rows", along(np.prod, -1), kind="pos: "),
    rows("prod_rows", along(np.prod, -1), sizes="Z N: - 1; 2x3 7; 4 0", dtypes=("i32", "i64")),
    rows("max_rows", high(np.max, -1), dtypes=ALSO_HALF),
    rows("max_rows", along(np.max, -1), sizes=FULL, dtypes=("i32", "u8")),
    columns("max_columns", high(np.max, 0)),
    middle("max_middle", high(np.max, 1)),
    case("max_all", "*Z", high(np.max, None), Z),
    rows("min_rows", low(np.min, -1)),
    columns("min_columns", low(np.min, 0)),
    case("min_all", "*Z", low(np.min, None), Z),
    rows("minmax_rows", lambda x: (x.min(-1, initial=np.inf), x.max(-1, initial=-np.inf))),
    rows("argmax_rows", arg(np.argmax, -1), dtypes=NUMBERS),
    rows("argmax_rows", arg(np.argmax, -1), kind="ties: "),
    columns("argmax_columns", arg(np.argmax, 0), kind="ties: "),
    rows("argmin_rows", arg(np.argmin, -1), kind="ties: "),
    rows("any_rows", along(np.any, -1), kind="bool: ", dtypes=("f32",)),
    rows("all_rows", along(np.all, -1), kind="bool: ", dtypes=("f32",)),
    rows("count_nonzero", along(np.count_nonzero, -1), kind="ties: "),
    rows("xor_rows", lambda x: np.bitwise_xor.reduce(x, -1), kind="u32: ", dtypes=("f32",)),
    rows("var_rows", along(np.var, -1)),
    rows("var_rows", lambda x, ddof: x.var(-1, ddof=ddof), sizes="Z N: 3 16; 2x3 17; 5 65", ddof=1),
    rows("std_rows", along(np.std, -1), sizes="Z N: 3 16; 2x3 17; 5 65"),
    columns("var_columns", along(np.var, 0)),
    case("covariance", "N,D", lambda x: np.cov(x, rowvar=False).reshape(x.shape[1], x.shape[1]), "N D: 2 1; 17 5; 64 16",
         terms="N"),
    rows("norm1_rows", along(np.linalg.norm, -1, ord=1), sizes=FULL),
    rows("norm2_rows", along(np.linalg.norm, -1)),
    rows("norminf_rows", lambda x: np.abs(x).max(-1, initial=0)),
]
