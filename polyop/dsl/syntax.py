"""The syntax tree: what the user wrote, nothing resolved. Every node knows its place in the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from polyop.ir.errors import assert_never
from polyop.ir.span import Source, Span

# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    value: int | float | bool
    span: Span


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Rest:
    """`...`: the leading dimensions, however many."""

    span: Span


@dataclass(frozen=True, slots=True)
class Access:
    """`name[index]`."""

    name: str
    index: tuple[Syntax, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """`name(args, key=value)`: a function, a cast, or an operator."""

    name: str
    args: tuple[Syntax, ...]
    keywords: tuple[tuple[str, Syntax], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Reduction:
    """`name[index](body)`, such as `sum[k](X[i, k])`."""

    name: str
    index: tuple[Syntax, ...]
    body: Syntax
    span: Span


@dataclass(frozen=True, slots=True)
class Binary:
    """`left sign right`; a chain such as `a + b + c` leans to the left, thousands deep if the user wrote so."""

    sign: str
    left: Syntax
    right: Syntax
    span: Span


@dataclass(frozen=True, slots=True)
class Unary:
    """`sign value`, where sign is "-", "+", "~" or "not"."""

    sign: str
    value: Syntax
    span: Span


@dataclass(frozen=True, slots=True)
class Compare:
    """`values[0] signs[0] values[1] signs[1] ...`: a chain holds where all its links do."""

    signs: tuple[str, ...]
    values: tuple[Syntax, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Inside:
    """`value in lower:upper`."""

    value: Syntax
    lower: Syntax
    upper: Syntax
    span: Span


@dataclass(frozen=True, slots=True)
class Choice:
    """`condition ? yes : no`."""

    condition: Syntax
    yes: Syntax
    no: Syntax
    span: Span


@dataclass(frozen=True, slots=True)
class Else:
    """`read else other`."""

    read: Syntax
    other: Syntax
    span: Span


Syntax = Number | Name | Rest | Access | Call | Reduction | Binary | Unary | Compare | Inside | Choice | Else


def children(e: Syntax) -> tuple[Syntax, ...]:
    """The direct sub-expressions, in reading order."""
    match e:
        case Number() | Name() | Rest():
            return ()
        case Access(index=index):
            return index
        case Call(args=args, keywords=keywords):
            return (*args, *(v for _, v in keywords))
        case Reduction(index=index, body=body):
            return (*index, body)
        case Binary(left=a, right=b) | Else(read=a, other=b):
            return (a, b)
        case Unary(value=a):
            return (a,)
        case Compare(values=values):
            return values
        case Inside(value=a, lower=b, upper=c) | Choice(condition=a, yes=b, no=c):
            return (a, b, c)
    assert_never(e)


def walk(*roots: Syntax) -> Iterator[Syntax]:
    """Every node, in reading order; survives very deep trees."""
    stack = list(reversed(roots))
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


def spine(e: Binary) -> tuple[Syntax, list[Binary]]:
    """The first operand of a left-leaning chain, and its links from the innermost outwards."""
    links: list[Binary] = []
    first: Syntax = e
    while isinstance(first, Binary):
        links.append(first)
        first = first.left
    return first, links[::-1]


def depth(*roots: Syntax) -> int:
    """How many levels a recursive walk goes down, links of chains included."""
    deepest, stack = 0, [(root, 1) for root in roots]
    while stack:
        node, level = stack.pop()
        deepest = max(deepest, level)
        stack += [(child, level + 1) for child in children(node)]
    return deepest


# --- statements and definitions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Declaration:
    """`name: dtype[shape]` on its own line."""

    name: str
    dtype: str
    shape: tuple[Syntax, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Assignment:
    """`name: dtype[shape][index] reduce= value where conditions`; index is None where the name stands without brackets.

    reduce   "" for `=`, else what stands before the `=`: "+", "max", "lse", ...
    """

    name: str
    dtype: str | None
    shape: tuple[Syntax, ...] | None
    index: tuple[Syntax, ...] | None
    reduce: str
    value: Syntax
    where: tuple[Syntax, ...]
    left: Span
    span: Span


@dataclass(frozen=True, slots=True)
class Multi:
    """`a, b = op(x)`."""

    names: tuple[str, ...]
    value: Syntax
    span: Span


Statement = Declaration | Assignment | Multi


@dataclass(frozen=True, slots=True)
class Type:
    """A dtype's or dtype variable's name, and dimensions; without brackets a parameter is a scalar."""

    dtype: str
    dims: tuple[Syntax, ...]
    span: Span
    brackets: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """`mode name: type = default`; mode is "", "const" or "inout"."""

    mode: str
    name: str
    type: Type
    default: Syntax | None
    by_name: bool
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Output:
    name: str
    type: Type
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class Generic:
    """`T: float` or `T: f16 | f32`."""

    name: str
    classes: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class OpDef:
    name: str
    generics: tuple[Generic, ...]
    params: tuple[Parameter, ...]
    outputs: tuple[Output, ...]
    facts: tuple[Syntax, ...]
    body: tuple[Statement, ...]
    doc: str
    span: Span


@dataclass(frozen=True, slots=True)
class FnDef:
    name: str
    params: tuple[str, ...]
    body: Syntax
    span: Span


@dataclass(frozen=True, slots=True)
class MonoidDef:
    name: str
    identity: Syntax
    combine: str
    span: Span


Definition = OpDef | FnDef | MonoidDef


class Definitions(Protocol):
    """Where names are looked up: a Program, or a library, which may parse a text only when a name leads to it."""

    @property
    def source(self) -> Source: ...
    @property
    def ops(self) -> tuple[OpDef, ...]: ...
    @property
    def fns(self) -> tuple[FnDef, ...]: ...
    @property
    def monoids(self) -> tuple[MonoidDef, ...]: ...
    @property
    def depth(self) -> int: ...
    def op(self, name: str) -> OpDef | None: ...
    def fn(self, name: str) -> FnDef | None: ...
    def monoid(self, name: str) -> MonoidDef | None: ...


@dataclass(frozen=True, slots=True)
class Program:
    """The definitions of one text, in text order.

    depth   levels of its deepest expression with every function written out; at most this much recursion is needed
    """

    source: Source
    ops: tuple[OpDef, ...]
    fns: tuple[FnDef, ...]
    monoids: tuple[MonoidDef, ...]
    depth: int = 0

    def op(self, name: str) -> OpDef | None:
        return next((o for o in self.ops if o.name == name), None)

    def fn(self, name: str) -> FnDef | None:
        return next((f for f in self.fns if f.name == name), None)

    def monoid(self, name: str) -> MonoidDef | None:
        return next((m for m in self.monoids if m.name == name), None)


def declared(op: OpDef) -> tuple[Parameter | Output, ...]:
    """The parameters, then the outputs."""
    out: list[Parameter | Output] = [*op.params, *op.outputs]
    return tuple(out)


def expressions(op: OpDef) -> Iterator[Syntax]:
    """Every expression of `op`, in text order."""
    for p in op.params:
        yield from p.type.dims
        if p.default is not None:
            yield p.default
    for o in op.outputs:
        yield from o.type.dims
    yield from op.facts
    for s in op.body:
        yield from statement_expressions(s)


def statement_expressions(s: Statement) -> Iterator[Syntax]:
    """Every expression of one statement, in text order."""
    match s:
        case Declaration(shape=shape):
            yield from shape
        case Assignment(shape=shape, index=index, value=value, where=where):
            yield from shape or ()
            yield from index or ()
            yield value
            yield from where
        case Multi(value=value):
            yield value
        case _:
            assert_never(s)
