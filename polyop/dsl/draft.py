"""A statement whose names and dtypes are settled, and whose indices have no ranges yet."""

from __future__ import annotations

from dataclasses import dataclass

from polyop.dsl import syntax as s
from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, Expr, Load, Number, Position, Test, names, walk
from polyop.ir.op import Monoid
from polyop.ir.span import Span


@dataclass(frozen=True, slots=True)
class Holder:
    """A tensor as the text knows it; `shape` is None where it must be inferred, `dtype` likewise.

    role      "in", "out", "inout" (what is read; `result` is what is written) or "temp"
    summed    the accumulator's dtype that the user chose for an output
    """

    name: str
    dtype: DType | None
    rank: int
    shape: tuple[Affine, ...] | None
    role: str
    doc: str = ""
    span: Span | None = None
    result: str = ""
    summed: DType | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """`index in lower:upper`, as the user wrote it."""

    index: str
    lower: Affine
    upper: Affine


@dataclass(frozen=True, slots=True)
class Draft:
    """`target[at] reduce= expr where given, conditions`, and the reductions that stood inside `expr`.

    In `expr`, "otherwise" is a function of a Load and of the value where it lies outside; guards come later. An index
    bound by an inner reduction is called `k@1`, so that it is one of its own.

    reduce   None for `=`
    filters  conditions on data: they choose terms of a reduction
    hidden   inner reductions: each a Draft over some of the indices here and its own bound ones
    bound    the indices that only this (hidden) draft has
    is_argument   whether this is argmax or argmin: the least position that has the best value, HIGHEST where there is none
    """

    target: str
    at: tuple[Position, ...]
    reduce: Monoid | None
    expr: Expr
    given: tuple[Given, ...] = ()
    conditions: tuple[Expr, ...] = ()
    filters: tuple[Expr, ...] = ()
    hidden: tuple[Draft, ...] = ()
    bound: tuple[str, ...] = ()
    span: Span | None = None
    left: Span | None = None
    is_argument: bool = False

    @property
    def left_names(self) -> tuple[str, ...]:
        """Names on the left side, in text order."""
        found: dict[str, None] = {}
        for p in self.at:
            found |= dict.fromkeys(ordered_names(p) if isinstance(p, Affine) else reading_order(p))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """`targets = name(args)`: whole tensors by name, scalars and sizes as values."""

    targets: tuple[str, ...]
    name: str
    call: s.Call
    span: Span


def ordered_names(x: Affine) -> tuple[str, ...]:
    return tuple(sorted(names(x)))


def reading_order(e: Expr) -> tuple[str, ...]:
    """The iterators and sizes of `e`, in the order in which they are read."""
    found: dict[str, None] = {}
    for x in walk(e):
        match x:
            case Number(value=value):
                found |= dict.fromkeys(ordered_names(value))
            case Test(tests=tests):
                for t in tests:
                    found |= dict.fromkeys(ordered_names(t))
            case Load(index=index):
                for p in index:
                    if isinstance(p, Affine):
                        found |= dict.fromkeys(ordered_names(p))
            case _:
                pass
    return tuple(found)
