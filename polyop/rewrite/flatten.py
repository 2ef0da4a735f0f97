"""Dimensions that lie one after the other in every array of a call, seen as one.

A contiguous array of [32, 512, 7, 7] is a row of 802816 numbers to an operator that treats all its elements alike. The loops
along four short dimensions become one long loop, whose vectors are full. What an operator allows follows from its text; what
a call allows, from its strides.

    A[.., i, j, ..] with i in 0:M, j in 0:N    becomes    A[.., i, ..] with i in 0:M_N
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod

from polyop.ir.expr import Affine, Expr, Load, Number, Position, Test, affine, expr_names, map_loads, names, walk
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.bounds import never_negative
from polyop.rewrite.names import all_names, fresh

Group = tuple[str, ...]
"""Sizes of neighbouring dimensions, outermost first."""


def chains(op: Op) -> tuple[Group, ...]:
    """The groups of sizes, as long as possible, whose dimensions `op` could do with as one."""
    follows: dict[str, str] = {}
    for t in op.tensors:
        for x, y in pairwise(t.shape):
            if x.name and y.name and x != y:
                follows[x.name] = y.name
    good = {a: b for a, b in follows.items() if _joined(op, a, b) is not None}
    starts = [a for a in good if a not in good.values()]
    out: list[Group] = []
    for a in starts:
        group = [a]
        while group[-1] in good:
            group.append(good[group[-1]])
        out.append(tuple(group))
    return tuple(out)


@dataclass(frozen=True, eq=False, slots=True)
class Flat:
    """An operator with dimensions as one: how those of each tensor go together, and what each new size is the product of."""

    op: Op
    dims: Mapping[str, Dims]
    sizes: Mapping[str, Group]


def products(merged: Mapping[str, Group], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that are products of others, as far as these are known."""
    return {n: prod(sizes[x] for x in group) for n, group in merged.items() if sizes.keys() >= {*group}}


def flatten(op: Op, groups: Sequence[Group]) -> Flat:
    """`op` with the dimensions of each of `groups` as one."""
    together, sizes = {t.name: dims(t, groups) for t in op.tensors}, dict[str, Group]()
    for group in groups:
        first = group[0]
        for second in group[1:]:
            joined = _joined(op, first, second)
            assert joined is not None, f"{op.name}: {first} and {second} are no chain"
            op, first = joined
        sizes[first] = group
    return Flat(op, together, sizes)


@dataclass(frozen=True, slots=True)
class Chain:
    """Sizes of dimensions that could be one, and where they begin: (array, dimension of the first of them)."""

    sizes: Group
    places: tuple[tuple[str, int], ...]


def in_arrays(op: Op) -> tuple[Chain, ...]:
    """The chains of `op`, as they stand in its arrays: each as a whole, or not at all."""
    arrays = [t for t in op.tensors if t.role != "temp"]
    return tuple(Chain(c, tuple((t.name, d) for t in arrays for d, e in enumerate(t.shape) if e.name == c[0]))
                 for c in chains(op))


def allowed(chains_: Sequence[Chain], shapes: Mapping[str, Sequence[int]],
            strides: Mapping[str, Sequence[int]]) -> tuple[Group, ...]:
    """The parts of chains, two sizes at least, that lie one after the other in all arrays of a call; none where one is empty.

    From one extent that is not 1 to the next: stride == next stride * next extent.
    """
    if any(0 in shape for shape in shapes.values()):
        return ()
    out: list[Group] = []
    for chain in chains_:
        at = [(shapes[name], strides[name], d) for name, d in chain.places]
        before: list[int | None] = [None] * len(at)
        start = 0
        for k in range(len(chain.sizes)):
            here = [(shape[d + k], steps[d + k]) for shape, steps, d in at]
            if any(n != 1 and b is not None and b != n * s for (n, s), b in zip(here, before, strict=True)):
                out.append(chain.sizes[start:k])
                start, before = k, [None] * len(at)
            before = [b if n == 1 else s for (n, s), b in zip(here, before, strict=True)]
        out.append(chain.sizes[start:])
    return tuple(g for g in out if len(g) > 1)


@dataclass(frozen=True, slots=True)
class Dims:
    """How the dimensions of a tensor go together: `runs` has the first and the last + 1 of each new one."""

    runs: tuple[tuple[int, int], ...]

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(prod(shape[a:b]) for a, b in self.runs)

    def among(self, order: Sequence[int] | None) -> tuple[tuple[int, ...], ...]:
        """The dimensions of each new one, where those that go together are taken in `order` from the tensor's own."""
        return tuple(tuple(range(a, b) if order is None else order[a:b]) for a, b in self.runs)

    def again(self, runs: Sequence[tuple[int, int]]) -> Dims:
        """Those of the new dimensions that `runs` has as one, too."""
        return Dims(tuple((self.runs[a][0], self.runs[b - 1][1]) for a, b in runs))

    def strides(self, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
        """Strides of the new dimensions, in the same units; None if their elements do not lie one after the other."""
        out: list[int] = []
        for a, b in self.runs:
            step: int | None = None
            reach = 1
            for n, s in zip(reversed(shape[a:b]), reversed(strides[a:b]), strict=True):
                if n != 1:
                    if step is not None and s != step * reach:
                        return None
                    step = s if step is None else step
                    reach *= n
            out.append(strides[b - 1] if step is None else step)
        return tuple(out)


def dims(t: Tensor, groups: Sequence[Group]) -> Dims:
    """How the dimensions of `t` go together where each of `groups` is one."""
    runs, d = list[tuple[int, int]](), 0
    while d < len(t.shape):
        group = next((g for g in groups if g[0] == t.shape[d].name), ("",))
        runs.append((d, d + len(group)))
        d += len(group)
    return Dims(tuple(runs))


# --- one pair ------------------------------------------------------------------------------------------------------


def _joined(op: Op, a: str, b: str) -> tuple[Op, str] | None:
    """`op` with dimensions of sizes a, b as one, and that one's size; None if something in it tells them apart."""
    ones = dict.fromkeys(op.sizes, 1)
    facts = tuple(f for f in op.facts if not (isinstance(f, Test) and all(never_negative(t, ones) for t in f.tests)))
    if any({a, b} & expr_names(f) for f in facts) or {a, b} & {p.name for p in op.params}:
        return None
    taken = all_names(op)
    both = fresh(f"{a}_{b}", taken)
    merged: dict[str, tuple[int, ...]] = {}
    tensors = []
    for t in op.tensors:
        found = _shape(t.shape, a, b, both)
        if found is None:
            return None
        merged[t.name], shape = found
        tensors.append(replace(t, shape=shape))
    steps = []
    for s in op.steps:
        step = _step(s, merged, a, b, both)
        if step is None:
            return None
        steps.append(step)
    numbers = frozenset[str]().union(*(_numbers(e) for s in op.steps for e in (s.target, s.expr)))
    sizes = tuple(sorted({both, *(n for n in op.sizes if n not in (a, b) or n in numbers)}))
    facts = tuple(f for f in op.facts if not {a, b} & expr_names(f))  # what is left holds since neither is empty
    return replace(op, tensors=tuple(tensors), steps=tuple(steps), sizes=sizes, facts=facts), both


def _shape(shape: tuple[Affine, ...], a: str, b: str, both: str) -> tuple[tuple[int, ...], tuple[Affine, ...]] | None:
    """(the dimensions that are the first of a pair, the new shape)"""
    found, out, d = list[int](), list[Affine](), 0
    while d < len(shape):
        if shape[d].name == a and d + 1 < len(shape) and shape[d + 1].name == b:
            found.append(d)
            out.append(affine(both))
            d += 2
        elif names(shape[d]) & {a, b}:
            return None
        else:
            out.append(shape[d])
            d += 1
    return tuple(found), tuple(out)


def _step(s: Step, merged: Mapping[str, tuple[int, ...]], a: str, b: str, both: str) -> Step | None:
    ranges = {r.index: r for r in s.ranges}
    whole = {i for i, r in ranges.items() if r.lower == Affine() and r.upper.name == a}
    inner = {i for i, r in ranges.items() if r.lower == Affine() and r.upper.name == b}
    pairs: set[tuple[str, str]] = set()
    rest: list[Affine] = []

    def joined(x: Load) -> Load:
        index, d = list[Position](), 0
        while d < len(x.index):
            p = x.index[d]
            if d in merged[x.source]:
                pairs.add((_among(p, whole), _among(x.index[d + 1], inner)))
                d += 1
            elif isinstance(p, Affine):
                rest.append(p)  # of computed ones, what is read there is seen by itself
            index.append(p)
            d += 1
        rest.extend(x.guard)
        return replace(x, index=tuple(index))

    target, expr = map_loads(s.target, joined), map_loads(s.expr, joined)
    assert isinstance(target, Load)
    first, second = ({p[k] for p in pairs} for k in (0, 1))
    if "" in first | second or len(first) != len(pairs) or len(second) != len(pairs):
        return None
    order = list(ranges)
    if any(order.index(j) != order.index(i) + 1 for i, j in pairs):
        return None
    bounds = [x for r in s.ranges if r.index not in first | second for x in (r.lower, r.upper)]
    conditions = frozenset[str]().union(*map(names, (*rest, *bounds)), *map(expr_names, s.where), _tests(target), _tests(expr))
    if conditions & {a, b, *first, *second} or (_numbers(target) | _numbers(expr)) & (first | second):
        return None
    kept = tuple(Range(r.index, Affine(), affine(both)) if r.index in first else r for r in s.ranges if r.index not in second)
    return replace(s, target=target, expr=expr, ranges=kept)


def _among(p: Position, indices: Collection[str]) -> str:
    """The index that `p` is, if it is one of `indices`, else nothing."""
    return p.name if isinstance(p, Affine) and p.name in indices and p.name is not None else ""


def _tests(e: Expr) -> frozenset[str]:
    """The names in conditions on indices."""
    return frozenset[str]().union(*(names(t) for x in walk(e) if isinstance(x, Test) for t in x.tests))


def _numbers(e: Expr) -> frozenset[str]:
    """The names of indices and sizes that are used as numbers."""
    return frozenset[str]().union(*(names(x.value) for x in walk(e) if isinstance(x, Number)))
