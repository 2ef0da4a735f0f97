"""Index and scalar expressions: the words that Op, Scop, tile program and LoopNest share.

An index is an `Affine` (`ir/affine.py`, whose words are found here, too). A scalar `Expr` carries its dtype everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.affine import Affine, Atom, Quasi, add_names, affine, bounds, evaluate, is_count, names, quasi, substitute, volume
from polyop.ir.dtypes import BOOL, DType
from polyop.ir.errors import assert_never
from polyop.ir.span import Span

__all__ = [
    "Affine", "Apply", "Atom", "Const", "Expr", "Load", "Number", "Position", "Quasi", "SIGNS", "Scalar", "Test", "affine",
    "affines", "bounds", "children", "evaluate", "expr_names", "is_affine_condition", "is_computed", "is_count", "loads",
    "map_affine", "map_loads", "names", "place", "quasi", "rebuild", "substitute", "substitute_expr", "volume", "walk",
]


@dataclass(frozen=True, slots=True)
class Const:
    """A number (or truth value) of a dtype; inf and nan are written as Python floats."""

    value: float | int | bool
    dtype: DType

    def __str__(self) -> str:
        if self.dtype == BOOL:
            return "true" if self.value else "false"
        text = f"{self.value!r}"
        return f"{self.dtype}({text})"


@dataclass(frozen=True, slots=True)
class Number:
    """An index expression as a number: `value` converted to `dtype`."""

    value: Affine
    dtype: DType

    def __str__(self) -> str:
        return f"{self.dtype}({self.value})"


@dataclass(frozen=True, slots=True)
class Scalar:
    """A run-time scalar parameter, or an argument of a monoid's body."""

    name: str
    dtype: DType

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Test:
    """Whether every one of `tests` is >= 0. Part of the polyhedral domain, so isl sees it."""

    tests: tuple[Affine, ...]

    @property
    def dtype(self) -> DType:
        return BOOL

    def __str__(self) -> str:
        return "(" + " and ".join(f"{t} >= 0" for t in self.tests) + ")" if self.tests else "true"


@dataclass(frozen=True, slots=True)
class Load:
    """`source[index]`; where one of `guard` is negative nothing is read and the value is 0 (false).

    A position that is an `Expr` is computed from data: it may lie anywhere in its dimension; a value outside is not
    read, and makes the call fail if the expression around it needs it. As a store's target the same words name a place.
    """

    source: str
    index: tuple[Position, ...]
    dtype: DType
    guard: tuple[Affine, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        text = f"{self.source}[{', '.join(map(str, self.index))}]" if self.index else self.source
        return f"({text} if {' and '.join(f'{g} >= 0' for g in self.guard)})" if self.guard else text


@dataclass(frozen=True, slots=True)
class Apply:
    """`fn(args)`; see `ir/scalars.py` for the functions and what each means. `dtype` is the result's.

    "select" has arguments (condition, yes, no) and evaluates only what it needs; so do "and" and "or".
    "cast" converts its one argument to `dtype`.
    """

    fn: str
    args: tuple[Expr, ...]
    dtype: DType

    def __str__(self) -> str:
        a = [str(x) for x in self.args]
        if self.fn in SIGNS and len(a) == 2:
            return f"({a[0]} {SIGNS[self.fn]} {a[1]})"
        if self.fn == "select":
            return f"({a[0]} ? {a[1]} : {a[2]})"
        if self.fn == "cast":
            return f"{self.dtype}({a[0]})"
        return f"{self.fn}({', '.join(a)})"


SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "mod": "%", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
    "ne": "!=", "and": "and", "or": "or", "bitand": "&", "bitor": "|", "bitxor": "^", "shl": "<<", "shr": ">>",
}

Expr = Const | Number | Scalar | Test | Load | Apply
Position = Affine | Const | Number | Scalar | Test | Load | Apply


_INNER = (Apply, Load)
"""Those with expressions in them; a union would be made anew each time that it is asked for."""


def is_computed(p: Position) -> bool:
    """Whether a position comes from data rather than from iterators and sizes."""
    return not isinstance(p, Affine)


def children(e: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions, those inside computed positions included."""
    match e:
        case Apply(args=args):
            return args
        case Load(index=index):
            return tuple(p for p in index if not isinstance(p, Affine))
        case Const() | Number() | Scalar() | Test():
            return ()
    assert_never(e)


def rebuild(e: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """`e` with `f` applied to its direct sub-expressions."""
    match e:
        case Apply(args=args):
            new = tuple(map(f, args))
            return e if all(a is b for a, b in zip(args, new, strict=True)) else Apply(e.fn, new, e.dtype)
        case Load(index=index) if any(is_computed(p) for p in index):
            return replace(e, index=tuple(p if isinstance(p, Affine) else f(p) for p in index))
    return e


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and all below it, in reading order; survives very deep trees."""
    stack = [e]
    while stack:
        top = stack.pop()
        yield top
        if isinstance(top, _INNER):
            stack.extend(reversed(children(top)))


def loads(e: Expr) -> tuple[Load, ...]:
    """Every Load of `e` in reading order, also those inside computed positions (an outer one before its inner ones)."""
    found: list[Load] = []
    stack = [e]
    while stack:  # as `walk` goes, which all stages together would ask for tens of thousands of children
        top = stack.pop()
        if isinstance(top, Apply):
            stack += top.args[::-1]
        elif isinstance(top, Load):
            found.append(top)
            stack += [p for p in top.index[::-1] if not isinstance(p, Affine)]
    return tuple(found)


def map_loads(e: Expr, f: Callable[[Load], Expr]) -> Expr:
    """`e` with `f` applied to each Load, innermost first."""
    new = rebuild(e, lambda x: map_loads(x, f))
    return f(new) if isinstance(new, Load) else new


def map_affine(e: Expr, f: Callable[[Affine], Affine]) -> Expr:
    """`e` with `f` applied to every index expression in it."""
    match e:
        case Number(value=v):
            return replace(e, value=f(v))
        case Test(tests=tests):
            return Test(tuple(map(f, tests)))
        case Load(index=index, guard=guard):
            at = tuple(f(p) if isinstance(p, Affine) else map_affine(p, f) for p in index)
            return Load(e.source, at, e.dtype, tuple(map(f, guard)), e.span)
        case Apply(args=args):
            return Apply(e.fn, tuple([map_affine(a, f) for a in args]), e.dtype)
        case Const() | Scalar():
            return e
    assert_never(e)


def substitute_expr(e: Expr, env: Mapping[str, Affine]) -> Expr:
    """`e` with iterators and sizes replaced."""
    return map_affine(e, lambda x: substitute(x, env))


def place(load: Load, env: Mapping[str, Affine]) -> Load:
    """`load` with iterators and sizes replaced."""
    out = substitute_expr(load, env)
    assert isinstance(out, Load)
    return out


def affines(e: Expr) -> Iterator[Affine]:
    """Every index expression in `e`, as `map_affine` comes to them."""
    for x in walk(e):
        match x:
            case Number(value=v):
                yield v
            case Test(tests=tests):
                yield from tests
            case Load(index=index, guard=guard):
                yield from (p for p in (*index, *guard) if isinstance(p, Affine))


def expr_names(e: Expr) -> frozenset[str]:
    """The iterators and sizes that occur anywhere in `e`."""
    found: set[str] = set()
    stack = [e]
    while stack:  # as `loads` goes
        top = stack.pop()
        if isinstance(top, Apply):
            stack += top.args
        elif isinstance(top, Load):
            for p in top.index:
                if isinstance(p, Affine):
                    add_names(p, found)
                else:
                    stack.append(p)
            for t in top.guard:
                add_names(t, found)
        elif isinstance(top, Number):
            add_names(top.value, found)
        elif isinstance(top, Test):
            for t in top.tests:
                add_names(t, found)
    return frozenset(found)


def is_affine_condition(e: Expr) -> bool:
    """Whether `e` is built of tests on iterators and sizes alone, so isl can hold it."""
    match e:
        case Test():
            return True
        case Const(dtype=t):
            return t == BOOL
        case Apply(fn="and" | "or" | "not", args=args):
            return all(map(is_affine_condition, args))
    return False
