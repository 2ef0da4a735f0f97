"""Expr and Affine -> C text that CUDA, HIP and the emulator's C++ all understand.

Index arithmetic is i64. A value of a 16-bit float type is held as a `float` that the type can represent: every operation
is carried out in f32 and rounded back, as `ir/scalars.py` says. Whatever C leaves undefined or does otherwise (signed
overflow, division, NaN in max, shifts, casts) is a `pop_*` call; `device/pop_device.h` defines those.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from polyop.ir.atoms import Atom, Fragment
from polyop.ir.dtypes import BF16, F16, I32, DType
from polyop.ir.errors import assert_never
from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Number,
    Quasi,
    Scalar,
    Test,
    affine,
    bounds,
    children,
    is_computed,
    quasi,
)
from polyop.ir.loops import Buffer, For, Space
from polyop.ir.op import Monoid

STORED = {"f16": "pop_f16", "bf16": "pop_bf16", "f32": "float", "f64": "double", "i8": "pop_i8", "i16": "pop_i16",
          "i32": "pop_i32", "i64": "pop_i64", "u8": "pop_u8", "u16": "pop_u16", "u32": "pop_u32", "u64": "pop_u64",
          "bool": "bool"}
"""The C type of an element in memory."""

NARROW = (F16, BF16)

INFIX = {"add": ("+", 12), "sub": ("-", 12), "mul": ("*", 13), "div": ("/", 13), "lt": ("<", 10), "le": ("<=", 10),
         "gt": (">", 10), "ge": (">=", 10), "eq": ("==", 9), "ne": ("!=", 9), "and": ("&&", 5), "or": ("||", 4)}
"""Functions that are C operators for floats (and bools), with C's precedence; comparisons are for every type."""

ATOM, UNARY, CHOICE = 100, 15, 3


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of C with the precedence of its outermost operator."""

    c: str
    level: int = ATOM

    def at(self, level: int) -> str:
        """The text as an operand that must bind at least as strongly as `level`."""
        return self.c if self.level >= level else f"({self.c})"


@dataclass(frozen=True, slots=True)
class Held:
    """A tile that the lanes of a warp hold together: as which operand of which atom, and the loops over its sides."""

    atom: Atom
    fragment: Fragment
    row: str
    column: str


@dataclass(frozen=True, slots=True)
class Scope:
    """What an expression needs to know.

    names    the C name of each iterator, size, scalar and buffer
    sites    the number of each Load with a computed position
    values   scalars whose C variable is a value already, not an element: the arguments of a monoid
    block    threads of a block that work together, outside of loops over them; else 0
    folds    the statements that combine what threads have, with the loops over these threads
    held     the registers that hold tiles of a matrix unit; `products`: the statements that multiply them, as (c, a, b)
    warp     lanes that hold a tile together; `family` of the target
    copies   whether barriers wait for copies
    reads    whether a matrix unit reads shared memory itself
    steps    what the index of each loop is a multiple of
    """

    names: Mapping[str, str]
    buffers: Mapping[str, Buffer]
    sites: Mapping[Load, int]
    values: frozenset[str] = frozenset()
    block: int = 0
    folds: Mapping[str, tuple[For, ...]] = field(default_factory=dict)
    held: Mapping[str, Held] = field(default_factory=dict)
    products: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    warp: int = 1
    family: str = ""
    copies: bool = False
    reads: bool = False
    steps: Mapping[str, int] = field(default_factory=dict)


def value_type(t: DType) -> str:
    """The C type of a value in an expression."""
    return "float" if t in NARROW else STORED[t.name]


# --- integers ------------------------------------------------------------------------------------------------------


def index(x: Affine, names: Mapping[str, str]) -> Text:
    """An index expression, positive terms first."""
    terms = sorted(((_atom(a, names), f) for a, f in x.terms), key=lambda t: t[1] < 0)
    if not terms:
        return Text(str(x.const), ATOM if x.const >= 0 else UNARY)
    text = ""
    for atom, f in terms:
        piece = atom if abs(f) == 1 else f"{abs(f)} * {atom}"
        text += (" - " if text else "-") + piece if f < 0 else (" + " if text else "") + piece
    if x.const:
        text += f" {'+' if x.const > 0 else '-'} {abs(x.const)}"
    if len(terms) == 1 and not x.const:
        f = terms[0][1]
        return Text(text, ATOM if f == 1 else UNARY if f == -1 else 13)
    return Text(text, 12)


class Names(dict[str, str]):
    """The C name of each name of a nest; `counts`: those that are never negative, sizes and loops from 0 on."""

    counts: frozenset[str] = frozenset()


def _is_count(x: Affine, names: Mapping[str, str]) -> bool:
    """Whether `x` is never negative, as far as its terms show."""
    counts = names.counts if isinstance(names, Names) else frozenset()
    return x.const >= 0 and all(f > 0 and (a in counts if isinstance(a, str) else a.op in ("div", "mod") and
                                           _is_count(a.args[0], names)) for a, f in x.terms)


def _atom(a: str | Quasi, names: Mapping[str, str]) -> str:
    if isinstance(a, str):
        return names[a]
    if a.op in ("div", "mod") and _is_count(a.args[0], names):  # C divides such numbers as it should
        return f"({index(a.args[0], names).at(13)} {'/' if a.op == 'div' else '%'} {a.args[1].const})"
    args = [index(x, names).c for x in a.args]
    out = args[0]
    for x in args[1:]:
        out = f"pop_index_{a.op}({out}, {x})"
    return out


def condition(x: Affine, names: Mapping[str, str]) -> str:
    """`x >= 0` with every term on the side where it is positive: M - m - 1 >= 0 is `M > m`."""
    left = Affine(tuple((a, f) for a, f in x.terms if f > 0))
    right = left - x
    if x.const == -1 and x.terms:
        return f"{index(left, names).c} > {index(right - 1, names).c}"
    if x.const > 0:
        left, right = left + x.const, right + x.const
    return f"{index(left, names).c} >= {index(right, names).c}"


def conditions(xs: Sequence[Affine], names: Mapping[str, str]) -> Text:
    if not xs:
        return Text("true")
    return Text(" && ".join(condition(x, names) for x in xs), 5 if len(xs) > 1 else 10)


def natural(x: Affine, names: Mapping[str, str]) -> str:
    """An index expression whose parts are never negative, so that C divides as it should."""
    parts = []
    for a, f in x.terms:
        if isinstance(a, str):
            atom = names[a]
        else:
            first, second = (natural(y, names) for y in a.args)
            first = f"({first})" if " " in first else first
            atom = f"{first} {'/' if a.op == 'div' else '%'} {second}"
        parts.append(atom if f == 1 else f"{atom} * {f}")
    if x.const or not parts:
        parts.append(str(x.const))
    return " + ".join(parts)


def multiple(x: Affine, steps: Mapping[str, int]) -> int:
    """What `x` is known to be a multiple of; 0 is a multiple of all numbers."""
    return math.gcd(x.const, *(f * (steps.get(a, 1) if isinstance(a, str) else 1) for a, f in x.terms))


def bounded(f: For, scope: Scope) -> list[str]:
    """The tests that an iteration of `f` is below the bound, for a loop that runs to its constant end."""
    return [condition(below(f, b), scope.names) for b in bounds(f.upper) if b != affine(f.end)]


def below(f: For, bound: Affine) -> Affine:
    """What is at least 0 where the index of `f` is below `bound`: x - d (i + 1), if that is x div d."""
    match bound:
        case Affine(terms=((Quasi(op="div", args=(x, Affine(terms=(), const=d))), 1),), const=c):
            return x - (affine(f.index) + (1 - c)) * d
    return bound - affine(f.index) - 1


# --- memory --------------------------------------------------------------------------------------------------------


def slot_counts(b: Buffer) -> tuple[Affine, ...]:
    """How many slots each dimension of a work or register buffer has, padding included."""
    counts = [quasi("div", e + (u - 1), affine(u)) for e, u in b.dims]
    if counts and b.pad > 1:
        counts[-1] = quasi("div", counts[-1] + (b.pad - 1), affine(b.pad)) * b.pad
    return tuple(counts)


def strides(b: Buffer, c_name: str) -> tuple[int | str, ...]:
    """The distance in elements between neighbours in each dimension: a number, or the C variable that holds it."""
    rank = len(b.dims)
    if b.space == Space.TENSOR:
        return tuple(1 if d == b.unit else f"{c_name}_s{d}" for d in range(rank))
    out: list[int | str] = []
    for d in range(rank):
        inner = slot_counts(b)[d + 1:]
        out.append(math.prod(n.const for n in inner) if all(n.is_constant for n in inner) else f"{c_name}_s{d}")
    return tuple(out)


def offset(load: Load, values: Mapping[int, Text], scope: Scope) -> Text:
    """The distance of the place from the buffer's start; `values` holds the text of each computed position."""
    b = scope.buffers[load.source]
    if b.swizzle:
        return _swizzled(load, b, scope)
    plain = Affine()     # the part with constant strides, as one sum
    parts: list[str] = []
    for d, (position, stride) in enumerate(zip(load.index, strides(b, scope.names[b.name]), strict=True)):
        if not isinstance(position, Affine):
            extent, site = index(b.dims[d][0], scope.names).c, scope.sites[load]
            parts.append(f"pop_position({values[d].c}, {extent}, {stride}, pop_status, {site})")
            continue
        slot = quasi("div", position, affine(b.dims[d][1]))
        if isinstance(stride, int):
            plain = plain + slot * stride
        elif slot != Affine():
            parts.append(stride if slot == Affine(const=1) else f"{index(slot, scope.names).at(13)} * {stride}")
    if plain != Affine() or not parts:
        text = index(plain, scope.names).c
        return Text(" + ".join([*parts, text]).replace("+ -", "- "), 12) if parts else Text(text, 12)
    return Text(" + ".join(parts), 12)


def _swizzled(load: Load, b: Buffer, scope: Scope) -> Text:
    """The place in a swizzled buffer: see `ir.loops.Buffer`."""
    positions = [p for p in load.index if isinstance(p, Affine)]
    counts = [n.const for n in slot_counts(b)]
    outer = sum((p * math.prod(counts[d + 1:]) for d, p in enumerate(positions[:-2])), Affine())
    y, x = (index(p, scope.names).c for p in positions[-2:])
    inner = f"pop_swizzled<{counts[-2]}, {b.swizzle // b.dtype.bytes_}>({y}, {x})"
    return Text(f"{index(outer, scope.names).c} + {inner}", 12) if outer != Affine() else Text(inner)


def element(load: Load, values: Mapping[int, Text], scope: Scope) -> str:
    """The place as something C can read and write; not for computed positions, which may lie outside."""
    b, name = scope.buffers[load.source], scope.names[load.source]
    if load.source in scope.held:
        return f"{name}[{offset(load, values, scope).c}][pop_r]"
    return name if b.space == Space.REG and not b.dims else f"{name}[{offset(load, values, scope).c}]"


def computed(load: Load, args: Sequence[Text]) -> dict[int, Text]:
    """The texts of `children(load)` by the dimension each stands in."""
    dims = [d for d, p in enumerate(load.index) if is_computed(p)]
    return dict(zip(dims, args, strict=True))


def read(load: Load, args: Sequence[Text], scope: Scope) -> Text:
    values = computed(load, args)
    if values:
        out = f"pop_read({scope.names[load.source]}, {offset(load, values, scope).c})"
    else:
        out = element(load, values, scope)
    out = widened(out, load.dtype)
    if not load.guard:
        return Text(out)
    return Text(f"{conditions(load.guard, scope.names).at(CHOICE + 1)} ? {out} : {literal(0, load.dtype)}", CHOICE)


def moved(load: Load, scope: Scope) -> Text:
    """An element as it lies in memory, or 0 where its guard fails."""
    out = element(load, {}, scope)
    if not load.guard:
        return Text(out)
    return Text(f"{conditions(load.guard, scope.names).at(CHOICE + 1)} ? {out} : ({STORED[load.dtype.name]})0", CHOICE)


def widened(element_: str, t: DType) -> str:
    """An element as a value."""
    return f"pop_from_{t}({element_})" if t in NARROW else element_


def narrowed(value: str, t: DType) -> str:
    """A value as an element."""
    return f"pop_to_{t}({value})" if t in NARROW else value


# --- scalars -------------------------------------------------------------------------------------------------------


def literal(value: float | int | bool, t: DType) -> str:
    """A constant of `t` that C reads back exactly."""
    if t.kind == "bool":
        return "true" if value else "false"
    if t.is_float:
        x = float(t.numpy.type(value))
        single = t.bits < 64
        if math.isnan(x):
            return "pop_nan_f()" if single else "pop_nan()"
        if math.isinf(x):
            return ("-" if x < 0 else "") + ("pop_inf_f()" if single else "pop_inf()")
        return repr(float(np.float32(x))) + "f" if single else repr(x)
    n = int(value)
    if t == I32 and n > t.lowest:
        return str(n)
    if t.bits == 64 and t.kind == "int":
        return f"{n}ll" if n > t.lowest else f"({n + 1}ll - 1)"
    if t.kind == "uint" and t.bits >= 32:
        return f"{n}u" if t.bits == 32 else f"{n}ull"
    return f"({STORED[t.name]})({n})" if t.bits < 32 else f"({n + 1} - 1)"


def fold(e: Expr, f: Callable[[Expr, Sequence[Text]], Text]) -> Text:
    """`f` of every sub-expression and the results of its children, from the leaves up; depth costs no Python stack."""
    todo: list[tuple[Expr, bool]] = [(e, False)]
    done: list[Text] = []
    while todo:
        x, ready = todo.pop()
        below = children(x)
        if ready or not below:
            first = len(done) - len(below)
            result = f(x, done[first:])
            del done[first:]
            done.append(result)
        else:
            todo.append((x, True))
            todo.extend((c, False) for c in reversed(below))
    return done[0]


def expression(e: Expr, scope: Scope) -> Text:
    """The value of `e`."""
    def one(x: Expr, args: Sequence[Text]) -> Text:
        match x:
            case Const(value=v, dtype=t):
                text = literal(v, t)
                return Text(text, UNARY if text[0] in "-(" else ATOM)
            case Number(value=v, dtype=t):
                return converted(Text(f"(pop_i64){index(v, scope.names).at(UNARY)}", UNARY), "pop_i64", t)
            case Scalar(name=n, dtype=t):
                return Text(scope.names[n] if n in scope.values else widened(scope.names[n], t))
            case Test(tests=ts):
                return conditions(ts, scope.names)
            case Load():
                return read(x, args, scope)
            case Apply():
                return apply(x, args)
        assert_never(x)
    return fold(e, one)


def converted(x: Text, source: str, t: DType) -> Text:
    """A value of the C type `source` cast to `t`: see `ir.scalars.convert`."""
    if t in NARROW:
        return Text(f"pop_round_{t}({x.c if source in ('float', 'double') else f'(float){x.at(UNARY + 1)}'})")
    if t.kind == "bool":
        return Text(f"{x.at(10)} != 0", 9)
    if t.is_integer and source in ("float", "double"):
        return Text(f"pop_to_{t}({x.c})")
    return Text(f"({STORED[t.name]}){x.at(UNARY + 1)}", UNARY)


def of_dtype(x: Text, source: DType, t: DType) -> Text:
    """A value of `source` as one of `t`."""
    return x if source == t else converted(x, value_type(source), t)


def combined(m: Monoid, t: DType, a: Text, b: Text, scope: Scope) -> Text:
    """`a` and `b`, of dtype `t`, joined by a monoid. They are named more than once, so they had better be names."""
    if m.fn not in (None, "and", "or"):  # C's own `&&` and `||` would skip what may fail
        one = Const(m.identity, t)
        return apply(Apply(m.fn, (one, one), t), (a, b))
    inner = replace(scope, names={"a": a.c, "b": b.c}, values=frozenset("ab"))
    return of_dtype(expression(m.body, inner), m.body.dtype, t)


def apply(e: Apply, args: Sequence[Text]) -> Text:
    """One function of values."""
    t, of = e.dtype, e.args[0].dtype
    if e.fn == "select":
        yes, no = ((a if x.dtype == t else converted(a, value_type(x.dtype), t)).at(CHOICE)
                   for a, x in zip(args[1:], e.args[1:], strict=True))
        return Text(f"{args[0].at(CHOICE + 1)} ? {yes} : {no}", CHOICE)
    if e.fn == "cast":
        return args[0] if of == t else converted(args[0], value_type(of), t)
    if e.fn in INFIX and (of.is_float or of.kind == "bool" or e.fn not in ("add", "sub", "mul", "div")):
        sign, level = INFIX[e.fn]
        out = Text(f"{args[0].at(level)} {sign} {args[1].at(level + 1)}", level)
    elif e.fn == "neg" and of.is_float:
        out = Text(f"-{args[0].at(UNARY + 1)}", UNARY)
    elif e.fn == "not":
        out = Text(f"!{args[0].at(UNARY + 1)}", UNARY)
    else:
        out = Text(f"pop_{e.fn}({', '.join(a.c for a in args)})")
    return Text(f"pop_round_{t}({out.c})") if t in NARROW else out
