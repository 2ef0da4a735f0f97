"""Cutting a reduction with a condition on a remainder into one reduction for each residue class of what it keeps.

    Y[p] += X[(p - r) / 2] * F[r]  where (p - r) mod 2 = 0

has a term only where p and r are both even or both odd. With { p = 2 p' + f, r = 2 r' + g } the condition says which g goes
with each f; it is gone then, and every position is plain:

    Y_0[p'] += X[p' - r'] * F[2 r']          Y[2 p']     = Y_0[p']
    Y_1[p'] += X[p' - r'] * F[2 r' + 1]      Y[2 p' + 1] = Y_1[p']

So a strided transposed convolution is a few dense ones, and nothing that the condition forbids is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import gcd, lcm, prod

from polyop.ir.deep import with_room
from polyop.ir.expr import (
    Affine,
    Const,
    Expr,
    Load,
    Quasi,
    Test,
    affine,
    evaluate,
    expr_names,
    loads,
    place,
    quasi,
    substitute,
    substitute_expr,
)
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.bounds import never_negative
from polyop.rewrite.measure import is_deep
from polyop.rewrite.names import all_names, fresh

LARGEST = 4
"""The largest divisor of a condition that is cut along."""

MOST = 16
"""Classes of one step; beyond that it is left whole."""

COMBINATIONS = 4096
"""Residues of all its indices together that are looked at for one step."""


def cut_into_residues(op: Op, in_order: bool = False) -> Op:
    """`op` with every reduction cut whose conditions tie a kept and a reduced index by a remainder.

    in_order   whether terms must be added up in the order of the text: only the first step of a tensor is cut then, whose
               sum is complete before the others begin
    """
    if not any(True for s in op.steps if s.reduce is not None for _ in _remainders(s)):
        return op
    return with_room(lambda: _cut_up(op, in_order)) if is_deep(op) else _cut_up(op, in_order)


def _cut_up(op: Op, in_order: bool) -> Op:
    tensors, steps = list(op.tensors), list[Step]()
    taken = all_names(op)
    for s in op.steps:
        cut = _cut(op, _one_by_one(s)) if not in_order or s is op.steps_of(s.target.source)[0] else None
        if cut is None:
            steps.append(s)
            continue
        for c in cut.classes:
            added, new = _class_of(op, cut, c, taken)
            tensors += added
            steps += new
    return replace(op, tensors=tuple(tensors), steps=tuple(steps)) if len(tensors) > len(op.tensors) else op


# --- which steps, and how --------------------------------------------------------------------------------------------


Residues = Mapping[str, int]
"""index -> its remainder."""


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a step is cut.

    moduli    index -> what it is divided by
    along     those of them that are kept, in the order of the target
    classes   for each choice of residues of those `along`, the residues of all of `moduli` for which there are terms
    """

    step: Step
    moduli: Mapping[str, int]
    along: tuple[str, ...]
    classes: tuple[tuple[Residues, Residues | None], ...]


def _cut(op: Op, s: Step) -> _Cut | None:
    """How `s` is cut; None if nothing ties its indices by remainders, or several residues go with one."""
    if s.reduce is None:
        return None
    kept = tuple(p.name for p in s.target.index if isinstance(p, Affine) and p.name in s.indices)
    ties = [a for a in _remainders(s) if _tie(a, s, frozenset(n for n in kept if n))]
    if not ties or not _fills_plainly(op, s) or _feeds_itself(op, s):
        return None
    moduli: dict[str, int] = {}
    for a in ties:
        d = a.args[1].const
        for n, factor in a.args[0].terms:
            assert isinstance(n, str)
            moduli[n] = lcm(moduli.get(n, 1), d // gcd(factor, d))
    along = tuple(n for n in kept if n in moduli)
    others = tuple(n for n in moduli if n not in kept)
    if prod(moduli[n] for n in along) > MOST or prod(moduli.values()) > COMBINATIONS:
        return None
    classes = list[tuple[Residues, Residues | None]]()
    for f in product(*(range(moduli[n]) for n in along)):
        fixed = dict(zip(along, f, strict=True))
        found = [fixed | dict(zip(others, g, strict=True)) for g in product(*(range(moduli[n]) for n in others))]
        found = [x for x in found if _may_hold(s, ties, x)]
        if len(found) > 1:
            return None
        left = _conditions(s, moduli, found[0]) if found else s.where
        if _says_where(s, left):
            return None
        classes.append((fixed, found[0] if found and not any(map(_is_false, left)) else None))
    return _Cut(s, moduli, along, tuple(classes))


def _one_by_one(s: Step) -> Step:
    """`s` with each test a condition of its own, so that those on kept indices stand alone."""
    parts = (([Test((t,)) for t in w.tests] if isinstance(w, Test) else [w]) for w in s.where)
    return replace(s, where=tuple(w for part in parts for w in part))


def _remainders(s: Step) -> Iterator[Quasi]:
    """The remainders that stand in the tests of `s`."""
    for w in s.where:
        for t in w.tests if isinstance(w, Test) else ():
            yield from (a for a, _ in t.terms if isinstance(a, Quasi) and a.op == "mod")


def _tie(a: Quasi, s: Step, kept: frozenset[str]) -> bool:
    """Whether { (i + .. + j + .. + c) mod d } stands over indices of `s` alone, some kept and some reduced, with a small d."""
    used = {n for n, _ in a.args[0].terms}
    return a.args[1].const <= LARGEST and used <= set(s.indices) and bool(used & kept) and bool(used - kept)


def _may_hold(s: Step, ties: list[Quasi], residues: Residues) -> bool:
    """Whether no test of `s` that these remainders decide is false for `residues`."""
    values = {affine(a): evaluate(affine(a), residues) for a in ties}
    for w in s.where:
        for t in w.tests if isinstance(w, Test) else ():
            known = sum(values[affine(a)] * f for a, f in t.terms if affine(a) in values)
            if all(affine(a) in values for a, _ in t.terms) and known + t.const < 0:
                return False
    return True


def _conditions(s: Step, moduli: Mapping[str, int], residues: Residues) -> tuple[Expr, ...]:
    """The conditions of `s` at the points with `residues`, in the same order."""
    env = _points(moduli, residues)
    return tuple(substitute_expr(w, env) for w in s.where)


def _says_where(s: Step, left: tuple[Expr, ...]) -> bool:
    """Whether `left` has a condition without reduced indices that had some: such a one says where a temporary has elements.

        Y[p] += X[p, r]  where (p + r) mod 2 = 0, (r + N) mod 2 = 0       with { r = 2 r' + g }: (g + N) mod 2 = 0
    """
    reduced = frozenset(s.indices) - expr_names(s.target)
    return any(expr_names(old) & reduced and expr_names(new) and not expr_names(new) & reduced
               for old, new in zip(s.where, left, strict=True))


def _is_false(w: Expr) -> bool:
    return isinstance(w, Test) and any(not t.terms and t.const < 0 for t in w.tests)


def _fills_plainly(op: Op, s: Step) -> bool:
    """Whether the target is `Y[i, j, ..]`, each position another index whose range lies inside the tensor; or 0 of one."""
    shape = op.tensor(s.target.source).shape
    long = [(p, e) for p, e in zip(s.target.index, shape, strict=True) if p != Affine() or e != affine(1)]
    names = [p.name for p, _ in long if isinstance(p, Affine) and p.name in s.indices]
    if not len(set(names)) == len(names) == len(long):
        return False
    for n, (_, extent) in zip(names, long, strict=True):
        k = s.indices.index(n or "")
        r, outer = s.ranges[k], s.ranges[:k]
        if not (never_negative(r.lower, op.sizes, outer) and never_negative(extent - r.upper, op.sizes, outer)):
            return False
    return True


def _feeds_itself(op: Op, s: Step) -> bool:
    """Whether what `s` writes is needed for what it reads: a recurrence, whose order a cut would hide."""
    seen, frontier = set[str](), [x.source for x in loads(s.expr)]
    while frontier:
        name = frontier.pop()
        if name not in seen:
            seen.add(name)
            frontier += [x.source for w in op.steps_of(name) for x in (*loads(w.expr), *loads(w.target))]
    return s.target.source in seen


# --- one class -------------------------------------------------------------------------------------------------------


def _class_of(op: Op, cut: _Cut, c: tuple[Residues, Residues | None], taken: set[str]) -> tuple[list[Tensor], list[Step]]:
    """The temporary of a class, and the steps that add it up and put it into its places.

    A class without terms is the identity. What other steps add to as well is not assigned but added to.
    """
    (along, residues), s, kept = c, cut.step, _kept(cut.step)
    t = op.tensor(s.target.source)
    assert s.reduce is not None
    of_kept = tuple(w for w in s.where if expr_names(w) <= {*kept, *op.sizes})
    extents = {p.name: e for p, e in zip(s.target.index, t.shape, strict=True) if isinstance(p, Affine) and p.name}
    alone = len(op.steps_of(t.name)) == 1 and not of_kept and all(
        r.lower == Affine() and r.upper == extents[r.index] for r in s.ranges if r.index in kept)
    put = _within(cut, along, Step(s.target, None if alone else s.reduce, Const(s.reduce.identity, t.dtype),
                                   tuple(r for r in s.ranges if r.index in kept), of_kept, s.span))
    if residues is None:
        return [], [put] if alone else []
    counted = {affine(i): _count(e, cut.moduli[i], along[i]) for i, e in extents.items() if i in along}
    shape = tuple(counted.get(p, e) if isinstance(p, Affine) else e for p, e in zip(s.target.index, t.shape, strict=True))
    whole = Tensor(fresh("_".join([t.name, "class", *map(str, along.values())]), taken), t.dtype, shape, "temp")
    here = Load(whole.name, s.target.index, t.dtype)
    return [whole], [replace(_within(cut, residues, s), target=here), replace(put, expr=here)]


def _within(cut: _Cut, residues: Residues, s: Step) -> Step:
    """`s` at the points with `residues`, each index standing for how many of its class lie before it."""
    env = _points(cut.moduli, residues)
    ranges = list[Range]()
    for r in s.ranges:
        lower, upper = substitute(r.lower, env), substitute(r.upper, env)
        if r.index in env:  # { i' : lower <= m i' + f < upper }
            lower, upper = (_count(x, cut.moduli[r.index], residues[r.index]) for x in (lower, upper))
        ranges.append(Range(r.index, lower, upper))
    return replace(s, target=place(s.target, env), expr=substitute_expr(s.expr, env), ranges=tuple(ranges),
                   where=_undecided(substitute_expr(w, env) for w in s.where))


def _points(moduli: Mapping[str, int], residues: Residues) -> Mapping[str, Affine]:
    """{ i = m i' + f } for the indices with `residues`."""
    return {n: affine(n) * moduli[n] + f for n, f in residues.items()}


def _kept(s: Step) -> tuple[str, ...]:
    """The index in each position of the target."""
    return tuple(p.name for p in s.target.index if isinstance(p, Affine) and p.name)


def _count(end: Affine, modulus: int, residue: int) -> Affine:
    """The first i' with { modulus i' + residue >= end }, which is how many of these lie in 0:end."""
    return quasi("div", end + (modulus - 1 - residue), affine(modulus))


def _undecided(where: Iterable[Expr]) -> tuple[Expr, ...]:
    """`where` without the tests that hold since nothing is left in them but numbers."""
    out: list[Expr] = []
    for w in where:
        rest = Test(tuple(t for t in w.tests if t.terms or t.const < 0)) if isinstance(w, Test) else w
        if rest != Test(()):
            out.append(rest)
    return tuple(out)
