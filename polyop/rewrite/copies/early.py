"""Operands of sums of products that are computed are made before.

    C[m, n] += gelu(A[m, k]) * B[k, n]                    g[m, k] = gelu(A[m, k]);        C[m, n] += g[m, k] * B[k, n]

A function of an operand is computed for each tile of columns, or of rows, that uses it: one that takes long always is before, and
one that does not, as `max(A[m, k], 0)`, where a call has enough results that share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from polyop.ir.expr import Affine, Apply, Expr, Load, Quasi, affine, expr_names, is_computed, loads, names, volume
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.options import Options
from polyop.rewrite.copies.contracted import is_window
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.instead import Instead, made_of, with_steps
from polyop.rewrite.measure import cost
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.terms import factors_of, is_contraction, product_of, single_products

DEAR = 10
"""The cost of an operand that is computed once and not for each tile: see `measure.py`."""
LEAST = 4
"""Results that share an operand which make that worth it: fewer run in lock step anyway."""

COLUMNS, ROWS = 128, 192
"""The same of an operand that takes little: of one with rows and, on vectors of columns, of one with these."""
FAR = 2
"""How many times as many if it leaves the cache."""
APART = 9
"""The same of one made of what lies in several orders, or of several rows along the sum, however large: no tile copies that."""

BENT = 64
"""The same of one of which several terms are made of one element, so that each tile computes it again for each of them; where
that lies across the columns besides, as many as of one that is apart: it is gathered for each term else, and bytes one by one."""


def plain_products(op: Op, options: Options) -> Op:
    """`op`, whose sizes are at least 1, with such sums; not for sums in the order of the text."""
    if options.numerics == "strict" or options.regime != "positive":
        return op
    most = {**options.known, **dict(options.few)}
    op = single_products(op)
    taken = all_names(op)
    return with_steps(op, lambda s: _made_before(op, s, most, bool(options.rows), options.early, taken))


@dataclass(frozen=True, slots=True)
class Early:
    """An operand of a sum of products, found by the `source` that it reads first, which is computed with little.

    elements  the extents of its indices; uses: of those of the result that it does without; bytes_: of one of it
    least     results that share one of it which make it worth it to be computed before; far: how many times as many if it
              leaves the cache
    """

    source: str
    elements: tuple[Affine, ...]
    uses: tuple[Affine, ...]
    bytes_: int
    least: int
    far: int


def find_early(op: Op) -> tuple[Early, ...]:
    """The operands of `op` that are such."""
    op, found = single_products(op), list[Early]()
    for s in op.steps:
        kept, factors = plain_indices(s.target) or (), factors_of(s.expr)
        extents, later = {r.index: r.upper - r.lower for r in s.ranges}, op.follow_from((s.target.source,))
        if not is_contraction(s, factors) or not all(names(e) <= set(op.sizes) for e in extents.values()):
            continue
        gone = list[Expr]()
        for x in (x for x in factors if x not in gone):
            core, at, beside = _unwidened(x), expr_names(x) & set(s.indices), _beside(s, factors, x)
            reads = loads(core)
            if later & {y.source for y in reads}:
                continue  # in each turn of a recurrence
            if not reads or not at & {*kept} or at >= {*kept} or not _is_made(core, beside) or cost(core) >= DEAR:
                continue
            if not core.dtype.is_float or not _is_shared(op, s, core, at, {}):
                continue
            own = [y for z in beside or [core] for y in loads(z)]
            is_apart, is_bent = _is_apart(own, kept[-1]), _is_bent(own, at - {*kept})
            least = APART if is_apart else ROWS if kept[-1] in at else COLUMNS
            if is_bent:
                least = min(least, APART if any(_is_across(y, kept[-1]) for y in own) else BENT)
            found.append(Early(reads[0].source, tuple(extents[i] for i in extents if i in at),
                               tuple(extents[i] for i in kept if i not in at), core.dtype.bytes_, least,
                               1 if is_apart or is_bent else FAR))
            gone += beside
    return tuple(found)


def to_make_early(found: Sequence[Early], sizes: Mapping[str, int], room: int) -> tuple[str, ...]:
    """Those that are worth it in a call of these sizes; room: bytes of a cache."""
    worth = [x.source for x in found if volume(x.uses, sizes) >=
             x.least * (x.far if volume(x.elements, sizes) * x.bytes_ > room else 1)]
    return tuple(dict.fromkeys(worth))


def _is_apart(reads: Sequence[Load], lane: str) -> bool:
    """Whether these lie in several orders, as the two halves of a symmetric matrix, or what has the lanes lies another way."""
    distinct = {*reads}
    across = any(_is_across(y, lane) for y in distinct)
    return len(distinct) > 1 and (across or len({y.source for y in distinct}) < len(distinct))


def _is_across(y: Load, lane: str) -> bool:
    """Whether what has the lanes lies another way."""
    return lane in expr_names(y) and len(y.index) > 1 and y.index[-1] != affine(lane)


def _is_bent(reads: Sequence[Load], added: frozenset[str]) -> bool:
    """Whether several terms of the sum over `added` are made of one element, as those that are digits of a word."""
    return any(isinstance(a, Quasi) and names(affine(a)) & added
               for y in reads for p in y.index if isinstance(p, Affine) for a, _ in p.terms)


def _is_made(core: Expr, beside: Sequence[Expr]) -> bool:
    """Whether there is anything to compute of an operand, of which `beside` are all its factors."""
    return cost(core) > 0 or len(beside) > 1


def _beside(s: Step, factors: Sequence[Expr], x: Expr) -> list[Expr]:
    """The factors of `s` that go into the operand `x`: it, and what has no other indices; nothing if it is to be widened."""
    at = expr_names(x) & set(s.indices)
    if _unwidened(x) is not x:
        return []
    return [y for y in factors if y is x or (expr_names(y) & set(s.indices) <= at and y.dtype == x.dtype)]


def _made_before(op: Op, s: Step, most: Mapping[str, int], few: bool, early: Sequence[str], taken: set[str]) -> Instead | None:
    """A sum of products with those operands that take long made before, where results share them.

    most   what some sizes are at most; few: whether the rows of all contractions are few
    early  what the operands that take little and are made before, too, read first
    """
    kept, factors = plain_indices(s.target) or (), factors_of(s.expr)
    if s.reduce is None or s.reduce.name != "add" or not kept or len(factors) < 2:
        return None
    tensors, steps = list[Tensor](), list[Step]()
    for x in factors:
        core = _unwidened(x)
        at = expr_names(core) & set(s.indices)
        if x not in factors:
            continue  # it went into another one
        beside = _beside(s, factors, x)
        asked = bool(at & {*kept}) and {y.source for y in loads(core)[:1]} <= {*early} and _is_made(core, beside)
        if not (cost(core) >= DEAR or asked) or not core.dtype.is_float or (few and kept[-1] in at):
            continue
        if not _is_shared(op, s, core, at, most):
            continue
        core = product_of(beside) if beside else core
        t, step, place = made_of(s, core, fresh(f"{s.target.source}_factor", taken))
        tensors.append(t)
        steps.append(step)
        made: Expr = Apply("cast", (place,), x.dtype) if x.dtype != t.dtype else place
        factors = tuple(made if y is x else y for y in factors if y is x or y not in beside)
    return (tuple(tensors), (*steps, replace(s, expr=product_of(factors)))) if steps else None


def _unwidened(e: Expr) -> Expr:
    """`e` before it is widened: instructions for products of narrow numbers take it as it is."""
    match e:
        case Apply(fn="cast", args=(x,)) if x.dtype.is_float and x.dtype.bits < e.dtype.bits:
            return x
    return e


def _is_shared(op: Op, s: Step, x: Expr, at: frozenset[str], most: Mapping[str, int]) -> bool:
    """Whether several results use one value of `x`, which has the indices `at`, and each value is made of elements of its own."""
    kept, sizes = plain_indices(s.target) or (), set(op.sizes)
    without = [most.get(e.name or "", 0) or (e.const if e.is_constant else LEAST)
               for e in (r.upper - r.lower for r in s.ranges if r.index in kept and r.index not in at)]
    is_apart = all(names(r.upper) <= sizes and names(r.lower) <= sizes for r in s.ranges if r.index in at)
    asks = [expr_names(w) & set(s.indices) for w in s.where]
    own = replace(s, expr=x)
    return (bool(at) and bool(without) and prod(without) >= LEAST and is_apart and all(a <= at or not a & at for a in asks)
            and not any(is_window(own, i) for i in at)
            and not any(is_computed(p) for y in loads(x) for p in y.index))
