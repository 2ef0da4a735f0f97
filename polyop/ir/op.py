"""Op: what to compute, with nothing about how. Typed steps in single assignment over named tensors.

An Op is monomorphic: dtype variables, `const` parameters, `...` and calls were resolved when it was built. Sizes stay
symbolic. Its steps, in text order, each write one tensor; a tensor may be written by several `=` steps (disjoint pieces)
or by several steps of one reduction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from polyop.cached import cached_property
from polyop.ir.dtypes import DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Apply, Expr, Load, Scalar, loads
from polyop.ir.span import Span


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array. `role` is "in", "out" or "temp".

    An `inout X` of the text is two tensors, the input `X` and the output that `Op.updates` ties to it.
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    role: str
    doc: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}" + (f"[{', '.join(map(str, self.shape))}]" if self.shape else "")


@dataclass(frozen=True, slots=True)
class Param:
    """A run-time scalar, or (dtype i64 and `is_size`) a run-time integer that extents and conditions may use."""

    name: str
    dtype: DType
    is_size: bool = False
    default: float | int | bool | None = None
    by_name: bool = False
    doc: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Monoid:
    """How a reduction combines: an associative, commutative `body` of the scalars `a` and `b`, and its `identity`.

    `fn` names the function of `ir/scalars.py` when the body is just `fn(a, b)`; None for a user's own monoid.
    """

    name: str
    identity: float | int | bool
    fn: str | None
    body: Expr

    def __str__(self) -> str:
        return self.name


def builtin_monoid(name: str, dtype: DType) -> Monoid:
    """The reducing operator written `name=` (`+=` is "add") over `dtype`."""
    identity: dict[str, float | int | bool] = {
        "add": 0, "mul": 1, "max": dtype.lowest, "min": dtype.highest, "and": True, "or": False,
        "bitand": dtype.highest if dtype.kind == "uint" or dtype.kind == "bool" else -1, "bitor": 0, "bitxor": 0,
    }
    if name not in identity:
        raise InternalError(f"no monoid {name}")
    value = identity[name]
    value = float(value) if dtype.is_float else bool(value) if dtype.kind == "bool" else value
    body = Apply(name, (Scalar("a", dtype), Scalar("b", dtype)), dtype)
    return Monoid(name, value, name, body)


@dataclass(frozen=True, slots=True)
class Range:
    """`lower <= index < upper`; both may use sizes and the indices of ranges before it."""

    index: str
    lower: Affine
    upper: Affine

    def __str__(self) -> str:
        return f"{self.index} in {self.lower}:{self.upper}"


@dataclass(frozen=True)
class Step:
    """`target = expr`, or `target reduce= expr`, for every point of `ranges` where all of `where` hold.

    target   a Load that names the place written; its positions may be quasi-affine, or computed (scatter)
    ranges   one for each index, those of the target first; the rest are reduced over
    where    affine conditions only; a condition on data has become a `select` in `expr`
    """

    target: Load
    reduce: Monoid | None
    expr: Expr
    ranges: tuple[Range, ...]
    where: tuple[Expr, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def indices(self) -> tuple[str, ...]:
        return tuple(r.index for r in self.ranges)

    @cached_property  # all stages together ask hundreds of times
    def reads(self) -> tuple[Load, ...]:
        """What is read: in the value, and where positions of the target are computed."""
        return (*loads(self.expr), *loads(self.target)[1:])

    def __str__(self) -> str:
        sign = {None: "=", "add": "+=", "mul": "*=", "bitand": "&=", "bitor": "|=", "bitxor": "^="}
        symbol = sign.get(self.reduce.name if self.reduce else None) or f"{self.reduce}="
        conditions = [*map(str, self.ranges), *map(str, self.where)]
        return f"{self.target} {symbol} {self.expr}  where {', '.join(conditions)}"


def map_step(s: Step, f: Callable[[Expr], Expr]) -> Step:
    """`s` with `f` applied to its target, which must stay a Load, to its value and to its conditions; its ranges stay."""
    target = f(s.target)
    assert isinstance(target, Load)
    return replace(s, target=target, expr=f(s.expr), where=tuple(map(f, s.where)))


@dataclass(frozen=True, slots=True)
class Op:
    """An operator: tensors (inputs, outputs, temporaries), run-time parameters, steps, and what holds between sizes.

    sizes    every size name, sorted; each is >= 0
    facts    affine conditions on sizes, checked on every call and used by the compiler: the `where` of the signature
             and "no extent is negative"
    updates  (input, output) pairs that are one `inout` parameter: the caller gets the result in the same memory
    names    (name here, what the user calls it) where these differ
    """

    name: str
    tensors: tuple[Tensor, ...]
    params: tuple[Param, ...]
    sizes: tuple[str, ...]
    steps: tuple[Step, ...]
    facts: tuple[Expr, ...] = ()
    updates: tuple[tuple[str, str], ...] = ()
    doc: str = ""
    span: Span | None = field(default=None, compare=False, repr=False)
    names: tuple[tuple[str, str], ...] = field(default=(), compare=False, repr=False)

    def tensor(self, name: str) -> Tensor:
        for t in self.tensors:
            if t.name == name:
                return t
        raise InternalError(f"{self.name} has no tensor {name}")

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "in")

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "out")

    @property
    def temporaries(self) -> tuple[Tensor, ...]:
        return tuple(t for t in self.tensors if t.role == "temp")

    def steps_of(self, tensor: str) -> tuple[Step, ...]:
        return tuple(s for s in self.steps if s.target.source == tensor)

    def follow_from(self, tensors: Iterable[str]) -> frozenset[str]:
        """`tensors`, and those that are computed from them, directly or not."""
        found, size = set(tensors), -1
        steps = [(s.target.source, {x.source for x in s.reads}) for s in self.steps]
        while len(found) > size:
            size = len(found)
            found |= {written for written, read in steps if read & found}
        return frozenset(found)

    def __str__(self) -> str:
        ins = [*map(str, self.inputs), *(f"{p.name}: {'int' if p.is_size else p.dtype}" for p in self.params)]
        head = f"op {self.name}({', '.join(ins)}) -> ({', '.join(map(str, self.outputs))})"
        if self.facts:
            head += f"\n    where {', '.join(map(str, self.facts))}"
        lines = [f"    {t}" for t in self.temporaries] + [f"    {s}" for s in self.steps]
        return head + " {\n" + "\n".join(lines) + "\n}"


