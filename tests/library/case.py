"""A case: how to call one operator of the library, and what NumPy says in float64 that it must return."""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

FLOATS = ("f32", "f64")
ALSO_HALF = ("f32", "f64", "f16", "bf16")
F32 = ("f32",)
NUMPY: dict[str, Any] = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64, "bool": np.bool_,
    "i8": np.int8, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u32": np.uint32,
}
EPS = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
Sizes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One way to call operator `op`.

    inputs   one for each tensor, as in `"M,K | ids<V: B,L | *Z,D"`: a kind (none: the case's dtype) and dimensions, which
             are expressions in the sizes; see `_make` for the kinds
    want     the reference: takes the inputs (floats as float64) and `kw`, returns the results
    sizes    what to try: each a value for every name; a name in capitals Z is a tuple of leading dimensions
    tiny     the same, small enough for an evaluator that takes one element at a time
    kw       scalars, ints and consts; a text is an expression in the sizes
    terms    how many rounding errors may add up in one element, as an expression in the sizes
    """

    op: str
    inputs: tuple[str, ...]
    want: Callable[..., Any]
    sizes: tuple[Sizes, ...]
    tiny: tuple[Sizes, ...]
    dtypes: tuple[str, ...] = FLOATS
    kw: Mapping[str, Any] = field(default_factory=dict)
    terms: str = "1"

    def __str__(self) -> str:
        return self.op + "".join(f",{k}={v}" for k, v in self.kw.items())

    def keywords(self, sizes: Sizes) -> dict[str, Any]:
        """`kw` with its texts evaluated."""
        return {k: eval(v, dict(sizes)) if isinstance(v, str) else v for k, v in self.kw.items()}

    def arguments(self, dtype: str, sizes: Sizes) -> list[np.ndarray]:
        """Inputs of a dtype; the same for the same sizes on every run."""
        rng = np.random.default_rng(zlib.crc32(f"{self.op}{sorted(sizes.items())}".encode()))
        return [_make(rng, text, dtype, sizes) for text in self.inputs]

    def expected(self, arguments: list[np.ndarray], sizes: Sizes) -> tuple[np.ndarray, ...]:
        """What the operator must return, floats in float64."""
        wide = [a.astype(np.float64) if a.dtype.kind in "fV" else a.copy() for a in arguments]
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mean of nothing is NaN, on purpose
            out = self.want(*wide, **self.keywords(sizes))
        return tuple(np.asarray(x) for x in (out if isinstance(out, tuple) else (out,)))

    def tolerance(self, dtype: str, sizes: Sizes, want: np.ndarray) -> float:
        """How far a result may be off: some roundings to `dtype`, and `terms` of the accumulator's."""
        finite = np.abs(want[np.isfinite(want)])
        scale = max(1.0, float(finite.max())) if finite.size else 1.0
        wide = min(EPS[dtype], EPS["f32"])
        return scale * (16 * EPS[dtype] + 4 * wide * float(eval(self.terms, {"prod": np.prod}, dict(sizes))))


def check(case: Case, dtype: str, sizes: Sizes, got: Any, want: tuple[np.ndarray, ...]) -> None:
    """Assert that what an operator returned is what NumPy says: shapes, integers exactly, floats to the tolerance."""
    results = got if isinstance(got, tuple) else (got,)
    assert len(results) == len(want)
    for x, w in zip(map(np.asarray, results), want, strict=True):
        assert x.shape == w.shape, f"{case}: shape {x.shape}, expected {w.shape}"
        if w.dtype.kind in "iub":
            assert x.dtype.kind in "iub"
            np.testing.assert_array_equal(x, w, err_msg=f"{case} {dtype} {dict(sizes)}")
        else:
            np.testing.assert_allclose(x.astype(np.float64), w, rtol=0, atol=case.tolerance(dtype, sizes, w),
                                       err_msg=f"{case} {dtype} {dict(sizes)}")


def case(op: str, inputs: str, want: Callable[..., Any], sizes: str, *, tiny: str = "", dtypes: tuple[str, ...] = FLOATS,
         terms: str = "1", **kw: Any) -> Case:
    """A case from short texts: sizes are `"M N: 1 1; 15 17"`, tuples `2x3` and `-` (empty) for names that start with Z."""
    rows = _rows(sizes)
    return Case(op, tuple(t.strip() for t in inputs.split("|") if t.strip()), want, rows, _rows(tiny) if tiny else _shrink(rows),
                dtypes, kw, terms)


def _rows(text: str) -> tuple[Sizes, ...]:
    head, _, body = text.partition(":")
    return tuple(dict(zip(head.split(), map(_value, head.split(), row.split()), strict=True)) for row in body.split(";"))


def _value(name: str, token: str) -> Any:
    if not name.startswith("Z"):
        return int(token)
    return () if token == "-" else tuple(map(int, token.split("x")))


def _shrink(rows: tuple[Sizes, ...]) -> tuple[Sizes, ...]:
    """Different small sizes in place of large ones: at most four rows, no two the same."""
    caps = (3, 4, 2, 5, 3, 2)
    small = [{k: tuple(min(n, 3 - i) for i, n in enumerate(v)) if isinstance(v, tuple) else min(v, caps[i % 6])
              for i, (k, v) in enumerate(r.items())} for r in rows]
    return tuple(r for i, r in enumerate(small) if r not in small[:i])[:4]


def _make(rng: np.random.Generator, text: str, dtype: str, sizes: Sizes) -> np.ndarray:
    """An input. Kinds: a dtype; `ids<V`, whole numbers below V; and of the case's dtype: none, -1 .. 1; `pos`, 0.5 .. 1.5;
    `unit`, 0 .. 1; `ties`, few different values; `prob`, rows that sum to 1; `logp`, their logarithms; `spd`, positive
    definite; `lower`, a triangle that is easy to solve; `small`, -1/8 .. 1/8; `sign`, -1 or 1; `wide`, -8 .. 8.
    """
    match = re.fullmatch(r"(?:([a-z]\w*)(?:<([^:]+))?:)?\s*(.*)", text)
    assert match, text
    kind, below, dims = match.groups()
    scope = dict(sizes)
    shape: tuple[int, ...] = eval(f"({dims},)", scope) if dims else ()
    if kind == "ids":
        return np.asarray(rng.integers(0, max(eval(below, scope), 1), shape), np.int64)
    if kind == "bool":
        return np.asarray(rng.random(shape) < 0.6)
    if kind in ("u8", "i8", "u32", "i32", "i64"):
        limits = np.iinfo(NUMPY[kind])
        low, high = (int(x) for x in below.split(",")) if below else (limits.min, limits.max)
        return np.asarray(rng.integers(low, high, shape)).astype(NUMPY[kind])
    if NUMPY[dtype] in (np.int32, np.int64, np.uint8, np.int8, np.uint32, np.bool_):
        return np.asarray(rng.integers(0, 2 if dtype == "bool" else 4, shape)).astype(NUMPY[dtype])
    target = NUMPY[kind if kind in EPS else dtype]
    u = rng.random(shape)
    match kind:
        case "pos":
            x = u + 0.5
        case "unit":
            x = u
        case "ties":
            x = np.floor(u * 4)
        case "prob":
            x = u / np.maximum(u.sum(-1, keepdims=True), 1e-9)
        case "logp":
            x = np.log((u + 0.1) / np.maximum((u + 0.1).sum(-1, keepdims=True), 1e-9))
        case "spd":
            x = (u - 0.5) @ (u - 0.5).T / max(shape[0], 1) + np.eye(shape[0])
        case "lower":
            x = np.where(np.eye(shape[0]) > 0, u + 1, (u - 0.5) / max(shape[0], 1))
        case "small":
            x = (u - 0.5) / 4
        case "sign":
            x = np.where(u < 0.5, -1.0, 1.0)
        case "wide":
            x = u * 16 - 8
        case _:
            x = 2 * u - 1
    return np.asarray(x).astype(target)


def f32(x: float) -> float:
    """`x` as an f32 parameter holds it."""
    return float(np.float32(x))
