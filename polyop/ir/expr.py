"""Index and scalar expressions: the words that Op, Scop, tile program and LoopNest share.

An index is an `Affine`: a sum of atoms with integer factors; an atom is a name (iterator or size) or a `Quasi`, which is
a floor division or remainder by a constant, or a minimum or maximum. A scalar `Expr` carries its dtype everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.dtypes import BOOL, DType
from polyop.ir.errors import InternalError, assert_never
from polyop.ir.span import Span

# --- integers ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quasi:
    """`op` of `args`: "min", "max", "div" (floor) or "mod" (sign of the divisor); div and mod by a constant > 0."""

    op: str
    args: tuple[Affine, ...]

    def __post_init__(self) -> None:
        if self.op not in ("min", "max", "div", "mod"):
            raise InternalError(f"no quasi-affine operator {self.op}")
        if self.op in ("div", "mod") and (self.args[1].terms or self.args[1].const < 1):
            raise InternalError(f"{self.op} by {self.args[1]}; expected a positive constant")

    def __str__(self) -> str:
        """In isl's notation, which is also polyop's apart from floor and mod."""
        a = [str(x) for x in self.args]
        match self.op:
            case "div":
                return f"floor(({a[0]})/{a[1]})"
            case "mod":
                return f"(({a[0]}) mod {a[1]})"
        return f"{self.op}({', '.join(a)})"


Atom = str | Quasi


@dataclass(frozen=True, slots=True)
class Affine:
    """`const + sum(factor * atom)`; terms are sorted and have no zero factor, so equal sums are equal values."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.const + other)
        if not self.terms or not other.terms:
            return Affine(self.terms or other.terms, self.const + other.const)
        total = dict(self.terms)
        for atom, factor in other.terms:
            total[atom] = total.get(atom, 0) + factor
        terms = sorted(((a, f) for a, f in total.items() if f), key=lambda t: str(t[0]))
        return Affine(tuple(terms), self.const + other.const)

    def __mul__(self, factor: int) -> Affine:
        if factor == 1:
            return self
        return Affine(tuple((a, f * factor) for a, f in self.terms), self.const * factor) if factor else Affine()

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other if isinstance(other, int) else other * -1)

    def __str__(self) -> str:
        parts = [f"{'' if f == 1 else '-' if f == -1 else f'{f}*'}{a}" for a, f in self.terms]
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts).replace("+ -", "- ")

    @property
    def is_constant(self) -> bool:
        return not self.terms

    @property
    def name(self) -> str | None:
        """The name, if the whole is one name alone."""
        if len(self.terms) == 1 and not self.const and self.terms[0][1] == 1 and isinstance(self.terms[0][0], str):
            return self.terms[0][0]
        return None

    def factor(self, name: str) -> int:
        """The factor of `name` outside any Quasi."""
        return dict(self.terms).get(name, 0)


def affine(x: Affine | Atom | int) -> Affine:
    return x if isinstance(x, Affine) else Affine(const=x) if isinstance(x, int) else Affine(((x, 1),))


def quasi(op: str, *args: Affine) -> Affine:
    """`op(args)`, simplified where that needs no knowledge of the names."""
    if all(a.is_constant for a in args):
        return Affine(const=_FOLD[op]([a.const for a in args]))
    if op in ("min", "max"):
        flat = [b for a in args for b in _operands(op, a)]
        unique = tuple(dict.fromkeys(flat))
        best: dict[tuple[tuple[Atom, int], ...], int] = {}
        for a in unique:  # of two that differ by a constant one never counts
            best[a.terms] = (min if op == "min" else max)(a.const, best.get(a.terms, a.const))
        unique = tuple(Affine(t, c) for t, c in best.items())
        return unique[0] if len(unique) == 1 else affine(Quasi(op, unique))
    x, d = args[0], args[1].const
    if d == 1:
        return x if op == "div" else Affine()
    whole = Affine(tuple((a, f) for a, f in x.terms if f % d == 0), x.const // d * d)
    rest = x - whole
    if op == "div":
        out = Affine(tuple((a, f // d) for a, f in whole.terms), whole.const // d)
        return out if not rest.terms else out + affine(Quasi("div", (rest, args[1])))
    return rest if not rest.terms else affine(Quasi("mod", (rest, args[1])))


_FOLD: dict[str, Callable[[list[int]], int]] = {
    "min": min, "max": max, "div": lambda a: a[0] // a[1], "mod": lambda a: a[0] % a[1],
}


def _operands(op: str, x: Affine) -> tuple[Affine, ...]:
    if len(x.terms) == 1 and x.terms[0][1] == 1:
        atom = x.terms[0][0]
        if isinstance(atom, Quasi) and atom.op == op:
            return tuple(a + x.const for a in atom.args)
    return (x,)


def bounds(upper: Affine, op: str = "min") -> tuple[Affine, ...]:
    """The expressions of which `upper` is the smallest (`op` "min") or greatest ("max")."""
    return _operands(op, upper)


def substitute(x: Affine, env: Mapping[str, Affine]) -> Affine:
    """`x` with names replaced."""
    total = Affine(const=x.const)
    for atom, factor in x.terms:
        if isinstance(atom, Quasi):
            new = quasi(atom.op, *(substitute(a, env) for a in atom.args))
        else:
            new = env[atom] if atom in env else affine(atom)
        total = total + new * factor
    return total


def names(x: Affine) -> frozenset[str]:
    """The iterators and sizes that occur in `x`."""
    found: set[str] = set()
    for atom, _ in x.terms:
        found |= {atom} if isinstance(atom, str) else frozenset().union(*(names(a) for a in atom.args))
    return frozenset(found)


def is_count(x: Affine) -> bool:
    """Whether `x` is clearly never negative, since none of its names is."""
    return x.const >= 0 and all(f > 0 and (isinstance(a, str) or all(map(is_count, a.args))) for a, f in x.terms)


def evaluate(x: Affine, env: Mapping[str, int]) -> int:
    """The value of `x` where every name has a value."""
    total = x.const
    for atom, factor in x.terms:
        if isinstance(atom, str):
            total += env[atom] * factor
            continue
        a = [evaluate(arg, env) for arg in atom.args]
        value = a[0] // a[1] if atom.op == "div" else a[0] % a[1] if atom.op == "mod" else min(a) if atom.op == "min" else max(a)
        total += value * factor
    return total


# --- scalars -------------------------------------------------------------------------------------------------------


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
            return e if all(a is b for a, b in zip(args, new, strict=True)) else replace(e, args=new)
        case Load(index=index) if any(is_computed(p) for p in index):
            return replace(e, index=tuple(p if isinstance(p, Affine) else f(p) for p in index))
    return e


def walk(e: Expr) -> Iterator[Expr]:
    """`e` and all below it, in reading order; survives very deep trees."""
    stack = [e]
    while stack:
        top = stack.pop()
        yield top
        stack.extend(reversed(children(top)))


def loads(e: Expr) -> tuple[Load, ...]:
    """Every Load of `e` in reading order, also those inside computed positions (an outer one before its inner ones)."""
    return tuple(x for x in walk(e) if isinstance(x, Load))


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
            return replace(e, index=at, guard=tuple(map(f, guard)))
        case Apply(args=args):
            return replace(e, args=tuple(map_affine(a, f) for a in args))
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


def expr_names(e: Expr) -> frozenset[str]:
    """The iterators and sizes that occur anywhere in `e`."""
    found: frozenset[str] = frozenset()
    for x in walk(e):
        match x:
            case Number(value=v):
                found |= names(v)
            case Test(tests=tests):
                found |= frozenset().union(*map(names, tests)) if tests else frozenset()
            case Load(index=index, guard=guard):
                found |= frozenset().union(*(names(p) for p in (*index, *guard) if isinstance(p, Affine)))
            case _:
                pass
    return found


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
