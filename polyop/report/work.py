"""How much an operator computes and moves, as formulas of its sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.expr import Affine, Apply, Expr, affine, evaluate, names, substitute, walk
from polyop.ir.op import Op, Step, Tensor

_FREE = ("select", "cast", "and", "or", "not", "lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf", "isfinite")
_ARITHMETIC = ("add", "sub", "mul", "div", "mod", "max", "min", "neg", "abs", "relu", "bitand", "bitor", "bitxor", "invert",
               "shl", "shr", "sign", "floor", "ceil", "round", "trunc")


@dataclass(frozen=True, slots=True)
class Product:
    """`factor` times extents, each of which is a sum over sizes."""

    factor: int
    extents: tuple[Affine, ...]

    def value(self, sizes: Mapping[str, int]) -> int:
        return self.factor * prod(max(0, evaluate(e, sizes)) for e in self.extents)

    def __str__(self) -> str:
        parts = [_factor(e) for e in self.extents if e != Affine(const=1)]
        return "*".join([str(self.factor), *parts] if self.factor != 1 or not parts else parts)


@dataclass(frozen=True, slots=True)
class Count:
    """A sum of products; `exact` is false where conditions or ranges that depend on indices make it an upper bound."""

    terms: tuple[Product, ...] = ()
    exact: bool = True

    def __add__(self, other: Count) -> Count:
        total: dict[tuple[Affine, ...], int] = {}
        for t in (*self.terms, *other.terms):
            total[t.extents] = total.get(t.extents, 0) + t.factor
        return Count(tuple(Product(f, e) for e, f in total.items() if f), self.exact and other.exact)

    def __mul__(self, factor: int) -> Count:
        return replace(self, terms=tuple(Product(t.factor * factor, t.extents) for t in self.terms if factor))

    def value(self, sizes: Mapping[str, int]) -> int:
        return sum(t.value(sizes) for t in self.terms)

    def __str__(self) -> str:
        text = " + ".join(map(str, self.terms)) or "0"
        return text if self.exact else f"at most {text}"


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does at least to memory, and at most to numbers.

    operations   additions, multiplications and their like; a function call is not among them
    functions    (name, calls) of exp, tanh and their like
    reads        bytes of all inputs, each element once; writes: bytes of all results
    temporaries  bytes of each temporary, if it were stored in full
    """

    operations: Count
    functions: tuple[tuple[str, Count], ...]
    reads: Count
    writes: Count
    temporaries: tuple[tuple[str, Count], ...]


def work(op: Op) -> Work:
    """The work of `op`, counted on its steps as they stand."""
    operations = Count()
    functions: dict[str, Count] = {}
    for step in op.steps:
        n = points(step)
        operations += n * _operations(step)
        for fn in _calls(step.expr):
            functions[fn] = functions.get(fn, Count()) + n
    return Work(operations, tuple(functions.items()), _bytes(op.inputs), _bytes(op.outputs),
                tuple((t.name, _bytes((t,))) for t in op.temporaries))


def points(step: Step) -> Count:
    """How many points a step has: { [i..] : ranges and where }, or a box around them."""
    exact = not step.where
    highest: dict[str, Affine] = {}
    lowest: dict[str, Affine] = {}
    extents: list[Affine] = []
    for r in step.ranges:
        if (names(r.lower) | names(r.upper)) & set(highest):
            exact = False
        upper, lower = _extreme(r.upper, highest, lowest), _extreme(r.lower, lowest, highest)
        highest[r.index], lowest[r.index] = upper - 1, lower
        extents.append(upper - lower)
    return Count((product(1, extents),), exact)


def product(factor: int, extents: Iterable[Affine]) -> Product:
    """`factor` times all of `extents`, with the numbers among them multiplied out."""
    rest: list[Affine] = []
    for e in extents:
        if e.is_constant or (len(e.terms) == 1 and not e.const):
            factor *= e.const if e.is_constant else e.terms[0][1]
            rest += [affine(e.terms[0][0])] if e.terms else []
        else:
            rest.append(e)
    return Product(factor, tuple(sorted(rest, key=str)))


def _extreme(x: Affine, up: Mapping[str, Affine], down: Mapping[str, Affine]) -> Affine:
    """`x` where the indices in it take the values that make it greatest (with `up` their greatest, `down` their least)."""
    total = Affine(const=x.const)
    for atom, factor in x.terms:
        if isinstance(atom, str):
            total = total + (up if factor > 0 else down).get(atom, affine(atom)) * factor
        else:
            total = total + substitute(affine(atom), up if factor > 0 else down) * factor
    return total


def _operations(step: Step) -> int:
    """Arithmetic for one point, the reduction's own included."""
    inside = sum({"fma": 2}.get(e.fn, e.fn in _ARITHMETIC) for e in walk(step.expr) if isinstance(e, Apply))
    return inside + (step.reduce is not None)


def _calls(e: Expr) -> tuple[str, ...]:
    return tuple(x.fn for x in walk(e) if isinstance(x, Apply) and x.fn not in (*_FREE, *_ARITHMETIC, "fma"))


def _bytes(tensors: tuple[Tensor, ...]) -> Count:
    total = Count()
    for t in tensors:
        total += Count((product(t.dtype.bytes_, t.shape),))
    return total


def _factor(e: Affine) -> str:
    return str(e) if len(e.terms) <= 1 and not e.const else f"({e})"
