"""Which reductions need the result of another one over the same elements, and could be done in the same pass.

    first[k]    op= a(k, j)
    second[k, v] += f(a(k, j), first[k], ..)         over the same j

The text alone decides, by the monoid of the first and the function in which its result stands:

    max, a           g * exp(a - first), or exp2     a maximum is taken off before a sum of powers
    min, a           g * exp(first - a), or exp2
    max or min, a    a == first ? g : none           not added up: the least or greatest g; as of an extreme's place
    add, a           (a - r) * (c - s)               r is the sum of a, divided by a count; s that of c

`g` is anything without `first`, and may choose between such a term and 0. Where the text rounds a power to a narrower type, the
power of a block is rounded so: to as many digits, of a number that differs by a factor. `cascade.py` says what is made of them,
and why.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.expr import Apply, Const, Expr, Load, Number, expr_names, loads, substitute_expr
from polyop.ir.op import Op
from polyop.rewrite.folds import Fold, fold_of, plain_indices, reads, renaming, resolved
from polyop.rewrite.measure import is_deep


@dataclass(frozen=True, slots=True)
class Powers:
    """`fold` adds up `g * fn(a - first)`, with the sign -1 `g * fn(first - a)`, where `mask` holds.

    shift   the read of the first fold's result, in the indices of `fold`
    """

    fold: Fold
    fn: str
    sign: int
    shift: Load
    mask: Expr | None


@dataclass(frozen=True, slots=True)
class Products:
    """`fold` adds up `(a - r) * (c - s)`; `centres`: (a, its sum, r) and (c, its sum, s), in the indices of `fold`."""

    fold: Fold
    centres: tuple[tuple[Expr, str, Expr], ...]


@dataclass(frozen=True, slots=True)
class Picks:
    """`fold` takes the least or greatest of what it computes where `same`, in which `element` stands, else of no consequence.

    same    element == shift, or both of them are NaN; `shift`: the read of the first fold's result, in the indices of `fold`
    """

    fold: Fold
    same: Expr
    element: Expr
    shift: Load


Member = Powers | Products | Picks


@dataclass(frozen=True, slots=True)
class Chain:
    """`firsts`, and the `members` that need their results, all over the same elements along one index."""

    firsts: tuple[Fold, ...]
    members: tuple[Member, ...]

    @property
    def folds(self) -> tuple[Fold, ...]:
        return (*self.firsts, *(m.fold for m in self.members))

    @property
    def is_rolled(self) -> bool:
        """Whether some reduction of the chain keeps more than the first one."""
        return any(len(f.kept) > len(self.firsts[0].kept) for f in self.folds)


def find_chain(op: Op, done: frozenset[str] = frozenset()) -> Chain | None:
    """The first chain of `op`, in text order, of none of the results `done`; None, if there is none."""
    folds = [f for f in (fold_of(op, s) for s in op.steps) if f and f.result not in done]
    for first in folds:
        monoid = first.step.reduce
        assert monoid is not None
        if monoid.fn in ("max", "min"):
            powers = tuple(m for m in (_powers(op, first, f) for f in folds) if m)
            picks = tuple(m for m in (_picks(op, first, f) for f in folds) if m)
            if powers or picks:
                rolled = any(len(m.fold.kept) > len(first.kept) for m in powers)
                return Chain((first,), powers if rolled else (*powers, *picks))
        if monoid.fn == "add" and first.step.target.dtype.is_float:
            sums = [f for f in folds if f.step.reduce == monoid and renaming(first, f, first.kept)]
            products = tuple(m for m in (_products(op, sums, f) for f in folds) if m)
            used = {name for m in products for _, name, _ in m.centres}
            if products and first.result in used:
                return Chain(tuple(f for f in sums if f.result in used), products)
    return None


def chains_of(op: Op) -> tuple[Chain, ...]:
    """All chains of `op`; a reduction is in one of them only."""
    found: list[Chain] = []
    while not is_deep(op) and (chain := find_chain(op, frozenset(f.result for c in found for f in c.folds))):
        found.append(chain)
    return tuple(found)


# --- what is added up --------------------------------------------------------------------------------------------------


def _powers(op: Op, first: Fold, f: Fold) -> Powers | None:
    monoid = first.step.reduce
    if f.step.reduce is None or f.step.reduce.fn != "add" or not f.step.target.dtype.is_float or f is first or monoid is None:
        return None
    if not first.step.target.dtype.is_float:
        return None
    expr = resolved(op, f.step.expr)
    found = _shifted(expr, first.result)
    if found is None:
        return None
    fn, x, y, mask = found
    sign, a, shift = (1, x, y) if isinstance(y, Load) and y.source == first.result else (-1, y, x)
    if not isinstance(shift, Load) or shift.source != first.result or sign != (1 if monoid.fn == "max" else -1):
        return None
    at = plain_indices(shift)
    env = renaming(first, f, at) if at is not None else None
    if env is None:
        return None
    of_first = substitute_expr(resolved(op, first.step.expr), env)
    match of_first:  # what the first fold leaves out must be left out here too
        case Apply(fn="select", args=(c, part, Const(value=v))) if v == monoid.identity and c == mask:
            of_first = part
    return Powers(f, fn, sign, shift, mask) if a == of_first else None


def _shifted(e: Expr, tensor: str) -> tuple[str, Expr, Expr, Expr | None] | None:
    """(fn, x, y, mask) of the only factor `fn(x - y)` of `e` that reads `tensor`."""
    match e:
        case Apply(fn="exp" | "exp2" as fn, args=(Apply(fn="sub", args=(x, y)),)) if reads(x, tensor) != reads(y, tensor):
            return fn, x, y, None
        case Apply(fn="mul", args=(x, y)) if reads(x, tensor) != reads(y, tensor):
            return _shifted(x if reads(x, tensor) else y, tensor)
        case Apply(fn="div", args=(x, y)) if not reads(y, tensor):
            return _shifted(x, tensor)
        case Apply(fn="cast", args=(x,), dtype=t) if t.is_float and x.dtype.is_float:
            return _shifted(x, tensor)
        case Apply(fn="select", args=(c, x, Const(value=0))) if not reads(c, tensor):
            found = _shifted(x, tensor)
            if found and (found[3] is None or found[3] == c):
                return (*found[:3], c)
    return None


def _picks(op: Op, first: Fold, f: Fold) -> Picks | None:
    monoid = f.step.reduce
    if monoid is None or monoid.fn not in ("max", "min") or f is first:
        return None
    match resolved(op, f.step.expr):
        case Apply(fn="select", args=(same, what, Const(value=v))) if v == monoid.identity and not reads(what, first.result):
            shift = next((x for x in loads(same) if x.source == first.result), None)
            at = plain_indices(shift) if shift else None
            env = renaming(first, f, at) if at is not None and set(at) == set(f.kept) else None
            if shift is None or env is None:
                return None
            element = substitute_expr(resolved(op, first.step.expr), env)
            return Picks(f, same, element, shift) if _is_equality(same, element, shift) else None
    return None


def _is_equality(e: Expr, a: Expr, b: Expr) -> bool:
    """Whether `e` is a == b, or that or both are NaN."""
    match e:
        case Apply(fn="or", args=(equal, Apply(fn="and", args=(Apply(fn="isnan", args=(x,)), Apply(fn="isnan", args=(y,)))))):
            return _is_equality(equal, a, b) and {x, y} == {a, b}
        case Apply(fn="eq", args=(x, y)):
            return {x, y} == {a, b}
    return False


def _products(op: Op, sums: list[Fold], f: Fold) -> Products | None:
    if f.step.reduce is None or f.step.reduce.fn != "add" or not f.step.target.dtype.is_float:
        return None
    keep = frozenset(s.result for s in sums)
    match resolved(op, f.step.expr):
        case Apply(fn="mul", args=(Apply(fn="sub", args=(a, b)), Apply(fn="sub", args=(c, d)))):
            found = tuple(_centre(op, sums, f, x, y, keep) for x, y in ((a, b), (c, d)))
            known = tuple(x for x in found if x)
            return Products(f, known) if len(known) == 2 else None
    return None


def _centre(op: Op, sums: list[Fold], f: Fold, x: Expr, y: Expr, keep: frozenset[str]) -> tuple[Expr, str, Expr] | None:
    """(a, the fold that sums `a` up, r) of `a - r` or `r - a`."""
    a, r = (x, y) if f.over in expr_names(x) else (y, x)
    match r:
        case Apply(fn="div", args=(Load(source=name) as total, count)) if _is_count(count):
            at = plain_indices(total)
            s = next((s for s in sums if s.result == name), None)
            env = renaming(s, f, at) if s is not None and at is not None and set(at) == set(f.kept) else None
            if s is not None and env is not None and substitute_expr(resolved(op, s.step.expr), env) == a:
                return a, name, r
    return None


def _is_count(e: Expr) -> bool:
    """Whether `e` follows from sizes and is nowhere negative: then an infinite sum divided by it is the same infinity."""
    match e:
        case Number(value=v):
            return v.const >= 0 and all(isinstance(a, str) and k > 0 for a, k in v.terms)
        case Const(value=v):
            return v > 0
        case Apply(fn="mul" | "cast" | "add", args=args):
            return all(map(_is_count, args))
    return False
