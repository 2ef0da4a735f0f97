"""Several Ops as one: the outputs of some are the inputs of others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from polyop.ir.deep import with_room
from polyop.ir.dtypes import I64
from polyop.ir.errors import InternalError, UnsupportedError, UserError, fail
from polyop.ir.expr import Affine, Expr, Load, Scalar, affine, expr_names, map_affine, names, rebuild, substitute
from polyop.ir.op import Op, Param, Range, Step, Tensor, map_step
from polyop.rewrite.measure import is_deep
from polyop.rewrite.names import fresh
from polyop.rewrite.unify import Shape, unify


@dataclass(frozen=True, slots=True)
class Part:
    """One operator inside a merged one.

    tensors   each of its inputs and outputs -> the name in the merged Op; equal names are one tensor
    scalars   scalar parameter -> its value; those left out become parameters of the merged Op
    sizes     size, or `int` parameter -> its value over the merged sizes; sizes left out follow from shapes
    """

    op: Op
    tensors: Mapping[str, str]
    scalars: Mapping[str, Expr] = field(default_factory=dict)
    sizes: Mapping[str, Affine] = field(default_factory=dict)


def compose(name: str, parts: Sequence[Part], outputs: Sequence[str], shapes: Mapping[str, Shape] | None = None) -> Op:
    """One Op that does what `parts`, one after the other, do.

    outputs   which tensors are results; others that a part writes become temporaries
    shapes    of inputs, over sizes of the merged Op; those left out keep the sizes of the part that reads them

    Raises  UserError E702 (dtypes), E703 (ranks), E704 (sizes); UnsupportedError for an operator that updates in place.
    Notes   A size that stands alone in no input becomes an `int` parameter.
    """
    return _Composition(name, parts, shapes or {}).result(outputs)


class _Composition:
    """What is known halfway: shapes and dtypes of tensors, facts, names in use."""

    def __init__(self, name: str, parts: Sequence[Part], shapes: Mapping[str, Shape]) -> None:
        self.name, self.parts = name, parts
        self.shapes: dict[str, Shape] = dict(shapes)
        self.tensors: dict[str, Tensor] = {}
        self.written: set[str] = set()
        self.facts: dict[Expr, None] = {}
        self.params: list[Param] = []
        self.taken = {n for p in parts for n in p.tensors.values()} | {n for s in shapes.values() for e in s for n in names(e)}
        self.taken |= {n for p in parts for e in p.sizes.values() for n in names(e)}
        self.sizes = [self.enter(p) for p in parts]  # all names are known before a step is renamed
        self.temporaries = [self.enter_temporaries(p, sizes) for p, sizes in zip(parts, self.sizes, strict=True)]
        self.scalars = [self.enter_scalars(p) for p in parts]

    def enter(self, part: Part) -> dict[str, Affine]:
        """The sizes of `part`; its inputs and outputs are entered."""
        op = part.op
        if op.updates:
            raise UnsupportedError(f"`{op.name}` changes `{op.updates[0][0]}` in place, so it cannot be part of `{self.name}`")
        sizes = dict(part.sizes)
        for p in op.params:
            if p.is_size and p.name not in sizes:
                new = fresh(p.name, self.taken)
                sizes[p.name] = affine(new)
                self.params.append(replace(p, name=new))
        known = {t.name: self.shapes[part.tensors[t.name]] for t in op.inputs if part.tensors[t.name] in self.shapes}
        found = unify(op, known, sizes)
        sizes = {**found.sizes}
        sizes.update({n: affine(fresh(n, self.taken)) for n in op.sizes if n not in sizes})
        self.facts.update(dict.fromkeys(found.facts))
        self.facts.update(dict.fromkeys(map_affine(f, lambda x: substitute(x, sizes)) for f in op.facts))
        for t in op.inputs:
            self.tensor(op, t, part.tensors[t.name], sizes)
        for t in op.outputs:
            outer = part.tensors[t.name]
            if outer in self.written or outer in self.tensors:
                raise InternalError(f"merge: `{outer}` is written by `{op.name}`, and before")
            self.written.add(outer)
            self.tensor(op, t, outer, sizes)
        return sizes

    def tensor(self, op: Op, t: Tensor, outer: str, sizes: Mapping[str, Affine]) -> None:
        if outer not in self.tensors:
            shape = tuple(substitute(e, sizes) for e in t.shape)
            self.shapes.setdefault(outer, shape)
            self.tensors[outer] = Tensor(outer, t.dtype, self.shapes[outer], "in", t.doc, t.span)
        elif self.tensors[outer].dtype != t.dtype:
            raise wrong_dtype(op, t, self.tensors[outer])

    def enter_temporaries(self, part: Part, sizes: Mapping[str, Affine]) -> dict[str, str]:
        renames = dict(part.tensors)
        for t in part.op.temporaries:
            renames[t.name] = fresh(t.name, self.taken)
            self.tensors[renames[t.name]] = replace(t, name=renames[t.name], shape=tuple(substitute(e, sizes) for e in t.shape))
        return renames

    def enter_scalars(self, part: Part) -> dict[str, Expr]:
        values = dict(part.scalars)
        for p in part.op.params:
            if not p.is_size and p.name not in values:
                new = fresh(p.name, self.taken)
                values[p.name] = Scalar(new, p.dtype)
                self.params.append(replace(p, name=new))
        return values

    def result(self, outputs: Sequence[str]) -> Op:
        unknown = [o for o in outputs if o not in self.written]
        if unknown:
            raise InternalError(f"merge: nothing writes the output `{unknown[0]}`")
        steps = tuple(self.moved(k, s) for k, p in enumerate(self.parts) for s in p.op.steps)
        tensors = [t for n, t in self.tensors.items() if n not in outputs and n not in self.written and t.role == "in"]
        tensors += [replace(self.tensors[o], role="out") for o in dict.fromkeys(outputs)]
        tensors += [replace(t, role="temp") for n, t in self.tensors.items() if n not in {x.name for x in tensors}]
        sizes = _sizes(tensors, steps, self.facts, self.params)
        shown = {e.name for t in tensors if t.role == "in" for e in t.shape} | {p.name for p in self.params}
        params = (*self.params, *(Param(n, I64, is_size=True) for n in sizes if n not in shown))
        return Op(self.name, tuple(tensors), params, sizes, steps, tuple(self.facts))

    def moved(self, k: int, s: Step) -> Step:
        """A step of part `k` in the merged names; an iterator that would meet another name gets a number."""
        env, taken = dict(self.sizes[k]), set(self.taken)
        letters = {i: fresh(i, taken) for i in s.indices}
        env.update({i: affine(n) for i, n in letters.items()})

        def f(x: Affine) -> Affine:
            return substitute(x, env)

        def e(x: Expr) -> Expr:
            return self.renamed(k, map_affine(x, f))

        def work() -> Step:
            ranges = tuple(Range(letters[r.index], f(r.lower), f(r.upper)) for r in s.ranges)
            return replace(map_step(s, e), ranges=ranges)
        return with_room(work) if is_deep(self.parts[k].op) else work()

    def renamed(self, k: int, e: Expr) -> Expr:
        if isinstance(e, Scalar):
            return self.scalars[k][e.name]
        new = rebuild(e, lambda x: self.renamed(k, x))
        return replace(new, source=self.temporaries[k][new.source]) if isinstance(new, Load) else new


def wrong_dtype(op: Op, t: Tensor, got: Tensor) -> UserError:
    """The report for a tensor of another dtype than the operator wants."""
    return fail("E702", f"`{t.name}` of `{op.name}` is {t.dtype}, and `{got.name}` is {got.dtype}")


def _sizes(tensors: Sequence[Tensor], steps: Sequence[Step], facts: Iterable[Expr], params: Sequence[Param]) -> tuple[str, ...]:
    """Every size that occurs, sorted."""
    found = {n for t in tensors for e in t.shape for n in names(e)} | {n for f in facts for n in expr_names(f)}
    found |= {p.name for p in params if p.is_size}
    for s in steps:
        inside = {n for r in s.ranges for n in names(r.lower) | names(r.upper)}
        inside |= {n for e in (s.expr, s.target, *s.where) for n in expr_names(e)}
        found |= inside - set(s.indices)
    return tuple(sorted(found))
