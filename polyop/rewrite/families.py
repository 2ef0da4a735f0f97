"""Steps that differ in numbers alone, as one operator with these numbers as sizes.

    Y_class_0[p] += X[p - r] * F[2*r + 1]          where p in 0:floor((P + 1)/2)
    Y_class_1[p] += X[p - r + 1] * F[2*r]          where p in 0:floor(P/2)

are the members n = 1 and n = 2 of

    Y_class_0[p] += X[p - r + n - 1] * F[2*r - n + 2]   where p in 0:floor((P - n + 2)/2)

which is scheduled, proved and compiled once. What it may rely on of n is what holds for every member: each number that it
stands for lies between the least and the greatest of the members'. So a proof about the family is one about each member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Quasi, Test, affine, is_computed, loads, map_affine, quasi, substitute
from polyop.ir.op import Op, Step, Tensor, map_step
from polyop.rewrite.names import fresh

Vector = tuple[int, ...]
"""A value for each member."""


@dataclass(frozen=True, slots=True)
class Member:
    """The step that writes tensor `result` of the whole: `values` of the family's numbers."""

    result: str
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Family:
    """`op` has one step, which writes `result`; `numbers` are those of its sizes that the members say."""

    op: Op
    result: str
    numbers: tuple[str, ...]
    members: tuple[Member, ...]


def families(op: Op, among: frozenset[str]) -> tuple[Family, ...]:
    """Steps of `op` that differ in numbers alone. Each is the only one of a tensor of `among`, and reads nothing but arguments.

    So they may run before all other steps.
    """
    alike: dict[object, list[Step]] = {}
    for s in op.steps:
        if s.target.source in among and _stands_alone(op, s):
            alike.setdefault(_form(op, s), []).append(s)
    found = (_family(op, tuple(steps)) for steps in alike.values() if len(steps) > 1)
    return tuple(f for f in found if f is not None)


def rest_of(op: Op, apart: tuple[Family, ...]) -> Op:
    """`op` without the members of the families `apart`, whose results are arguments of it."""
    done = {m.result for f in apart for m in f.members}
    return replace(op, tensors=tuple(replace(t, role="in") if t.name in done else t for t in op.tensors),
                   steps=tuple(s for s in op.steps if s.target.source not in done))


def _stands_alone(op: Op, s: Step) -> bool:
    inputs = {t.name for t in op.inputs}
    positions = [p for x in (s.target, *loads(s.expr)) for p in x.index]
    return len(op.steps_of(s.target.source)) == 1 and not any(map(is_computed, positions)) and all(
        x.source in inputs for e in (s.expr, *s.where) for x in loads(e))


# --- a step as its form and the numbers in it ------------------------------------------------------------------------------


def _mapped(t: Tensor, s: Step, f: Callable[[Affine], Affine]) -> tuple[Tensor, Step]:
    """`f` applied to every index expression, in one order."""
    t = replace(t, shape=tuple(map(f, t.shape)))
    ranges = tuple(replace(r, lower=f(r.lower), upper=f(r.upper)) for r in s.ranges)
    return t, replace(map_step(s, lambda e: map_affine(e, f)), ranges=ranges)


def _affines(t: Tensor, s: Step) -> list[Affine]:
    found: list[Affine] = []

    def seen(x: Affine) -> Affine:
        found.append(x)
        return x
    _mapped(t, s, seen)
    return found


def _form(op: Op, s: Step) -> object:
    """What two steps that differ in numbers alone have in common."""
    t = op.tensor(s.target.source)
    bare, step = _mapped(t, s, lambda x: Affine())
    return (replace(bare, name=""), replace(step, target=replace(step.target, source="")), tuple(map(_terms, _affines(t, s))))


def _terms(x: Affine) -> object:
    """`x` without its constants; what a remainder divides by is none."""
    return tuple((a if isinstance(a, str) else (a.op, tuple(map(_terms, _operands(a))), _divisor(a)), f) for a, f in x.terms)


def _operands(a: Quasi) -> tuple[Affine, ...]:
    return a.args[:1] if a.op in ("div", "mod") else a.args


def _divisor(a: Quasi) -> int:
    return a.args[1].const if a.op in ("div", "mod") else 0


def _constants(x: Affine) -> Iterator[int]:
    for a, _ in x.terms:
        if isinstance(a, Quasi):
            for arg in _operands(a):
                yield from _constants(arg)
    yield x.const


def _with(x: Affine, constants: Iterator[Affine]) -> Affine:
    """`x` with others in the place of its constants."""
    total = Affine()
    for a, f in x.terms:
        if isinstance(a, Quasi):
            args = tuple(_with(arg, constants) for arg in _operands(a))
            total = total + quasi(a.op, *args, *a.args[len(args):]) * f
        else:
            total = total + affine(a) * f
    return total + next(constants)


# --- the family of some steps -----------------------------------------------------------------------------------------------


def _family(op: Op, steps: tuple[Step, ...]) -> Family | None:
    """The family of `steps`, which have one form; None if one of them is not what the family says."""
    tensors = [op.tensor(s.target.source) for s in steps]
    each = [[c for x in _affines(t, s) for c in _constants(x)] for t, s in zip(tensors, steps, strict=True)]
    positions = [tuple(row) for row in zip(*each, strict=True)]
    basis = _basis([_beyond_first(p) for p in positions])
    taken = {*op.sizes, *(t.name for t in op.tensors), *(p.name for p in op.params), *(r.index for s in steps for r in s.ranges)}
    numbers = tuple(fresh(f"n{k}", taken) for k in range(len(basis)))
    least = [min(b) - 1 for b in basis]  # sizes of a kernel are at least 1
    expressions = [_expression(p, basis, numbers, least) for p in positions]
    constants = iter(expressions)
    tensor, step = _mapped(tensors[0], steps[0], lambda x: _with(x, constants))
    members = tuple(Member(t.name, tuple(b[k] - low for b, low in zip(basis, least, strict=True))) for k, t in enumerate(tensors))
    used = {x.source for x in loads(step.expr)}
    known = dict.fromkeys(test for e, p in zip(expressions, positions, strict=True) if e.terms
                          for test in (e - min(p), e * -1 + max(p)))
    facts = (*op.facts, *((Test(tuple(known)),) if known else ()))
    whole = Op(op.name, (*(t for t in op.inputs if t.name in used), replace(tensor, role="out")), op.params,
               (*op.sizes, *numbers), (step,), facts)
    found = Family(whole, tensor.name, numbers, members)
    return found if all(member_of(found, m) == (t, s) for m, t, s in zip(members, tensors, steps, strict=True)) else None


def member_of(f: Family, m: Member) -> tuple[Tensor, Step]:
    """The tensor and the step that member `m` is."""
    env = dict(zip(f.numbers, map(affine, m.values), strict=True))
    t, s = _mapped(f.op.tensor(f.result), f.op.steps[0], lambda x: substitute(x, env))
    return replace(t, name=m.result, role="temp"), replace(s, target=replace(s.target, source=m.result))


def _beyond_first(p: Vector) -> Vector:
    return tuple(x - p[0] for x in p)


def _expression(p: Vector, basis: list[Vector], numbers: tuple[str, ...], least: list[int]) -> Affine:
    """The values `p` over the numbers:  p = p_0 + sum of q_k b_k,  b_k = n_k + least_k."""
    factors = _combination(_beyond_first(p), basis)
    if factors is None:
        raise InternalError(f"families: {p} is no sum of {basis}")
    total = affine(p[0])
    for q, n, low in zip(factors, numbers, least, strict=True):
        total = total + (affine(n) + low) * q
    return total


def _basis(vectors: list[Vector]) -> list[Vector]:
    """Independent vectors of which all of `vectors` are sums with whole factors: some of them, or else one for each member.

    The second is for (0, 2) and (0, 3): neither is a multiple of the other.
    """
    out: list[Vector] = []
    for v in sorted(set(vectors), key=lambda v: (sum(map(abs, v)), v)):
        if _combination(v, out) is None:
            out.append(v)
    if all(_combination(v, out) is not None for v in vectors):
        return out
    members = range(len(vectors[0]))
    return [tuple(int(k == member) for k in members) for member in members[1:]]


def _combination(v: Vector, basis: list[Vector]) -> Vector | None:
    """Whole factors with which `basis` sums up to `v`; None if there are none, or if its vectors are not independent."""
    rows = [[Fraction(b[k]) for b in basis] + [Fraction(x)] for k, x in enumerate(v)]
    for col in range(len(basis)):
        pivot = next((r for r in range(col, len(rows)) if rows[r][col]), None)
        if pivot is None:
            return None
        rows[col], rows[pivot] = rows[pivot], rows[col]
        rows[col] = [x / rows[col][col] for x in rows[col]]
        for r, row in enumerate(rows):
            if r != col and row[col]:
                rows[r] = [x - row[col] * y for x, y in zip(row, rows[col], strict=True)]
    found = [row[-1] for row in rows]
    if any(found[len(basis):]) or any(x.denominator != 1 for x in found):
        return None
    return tuple(int(x) for x in found[: len(basis)])
