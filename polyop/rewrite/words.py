"""Expressions that rewrites of reductions write, in a word each."""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.dtypes import BOOL, DType
from polyop.ir.expr import Apply, Const, Expr, Scalar, rebuild


def equal(a: Expr, b: Expr) -> Expr:
    return Apply("eq", (a, b), BOOL)


def is_nan(e: Expr) -> Expr:
    return Apply("ne", (e, e), BOOL)


def select(c: Expr, yes: Expr, no: Expr) -> Expr:
    return Apply("select", (c, yes, no), yes.dtype)


def cast(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype == dtype else Apply("cast", (e,), dtype)


def called(body: Expr, arguments: Mapping[str, Expr]) -> Expr:
    """A monoid's `body` with its two scalars put in."""
    if isinstance(body, Scalar):
        return arguments[body.name]
    return body if isinstance(body, Const) else rebuild(body, lambda x: called(x, arguments))
