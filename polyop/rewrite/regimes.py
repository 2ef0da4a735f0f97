"""Which calls deserve a kernel of their own, by their sizes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from polyop.ir.expr import Affine, evaluate, expr_names, loads, names
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.options import SHORT, STRIP, VERY_SHORT, Options

_LINE = 64  # bytes of the widest vector


def regime(op: Op, sizes: Mapping[str, int], options: Options) -> Options:
    """`options` for a call of these sizes, all of them at least 1."""
    ones = narrow_sizes(op, sizes)
    if ones:
        return replace(options, ones=ones)
    rows = few_rows(op, sizes)
    strip = has_strip(op, sizes, bool(rows))
    return replace(options, short=is_short(op, sizes), rows=0 if strip and rows > 1 else rows, strip=strip)


def narrow_sizes(op: Op, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """The sizes that are 1 in a call and would leave lanes with one element, where another loop could have them.

    That is the last extent of what a contraction writes, `n` of `A[m, k] * B[k, n]`, or of any reduction with rows.
    """
    last = [s.target for s, _ in _contractions(op)]
    last += [s.target for s in op.steps if s.reduce is not None and len(s.target.index) > 1]
    found = {op.tensor(t.source).shape[-1].name for t in last}
    return tuple(n for n in op.sizes if n in found and sizes[n] == 1)


def is_short(op: Op, sizes: Mapping[str, int]) -> int:
    """How few lanes a call would have, where those of another loop would be many: 0, `SHORT` or `VERY_SHORT`.

    The result of a contraction is then no longer than a vector along its last extent, and the reads that do without that
    index are used again by other loops, as the filters of a convolution of 7 x 7 images are.
    """
    for s, last in _contractions(op):
        t = op.tensor(s.target.source)
        kept = {p.name for p in s.target.index if isinstance(p, Affine) and p.name}
        others = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
        length = evaluate(t.shape[-1], sizes) * t.dtype.bytes_
        if (kept - {last}).difference(*others) and length <= _LINE:
            return VERY_SHORT if length <= _LINE // 4 else SHORT
    return 0


def few_rows(op: Op, sizes: Mapping[str, int]) -> int:
    """1, 4 or 8, if no contraction of a call has more rows than that, else 0.

    A matrix product with so few rows reads its right operand once and hardly uses it again: copies of it do not pay.
    """
    most = 0
    for s, last in _contractions(op):
        extents = _rows(op, s, last)
        if not all(names(e) <= sizes.keys() for e in extents):
            return 0
        most = max(most, prod(evaluate(e, sizes) for e in extents))
    return next((n for n in (1, 4, 8) if 0 < most <= n), 0)


def has_strip(op: Op, sizes: Mapping[str, int], also_contractions: bool) -> bool:
    """Whether a sum of rows is so short in a call that all of it stays in registers, however many rows there are."""
    return any(evaluate(t.shape[-1], sizes) * t.dtype.bytes_ <= STRIP for t in _sums_of_rows(op, also_contractions))


def kinds(op: Op) -> tuple[str, ...]:
    """The sorts of calls that get a kernel of their own, in words."""
    out = ["with an empty size"] if op.sizes else []
    last = narrow_sizes(op, dict.fromkeys(op.sizes, 1))
    out += [f"where {n} is 1" for n in last]
    if any(_rows(op, s, last) for s, last in _contractions(op)):
        out.append("in which a contraction has one row, at most 4, or at most 8")
    if is_short(op, dict.fromkeys(op.sizes, 1)):
        out.append(f"in which a row of a contraction's result has at most {_LINE} bytes, or at most {_LINE // 4}")
    if _sums_of_rows(op, True):
        out.append(f"in which the result of summing rows has at most {STRIP} bytes")
    return tuple(out)


def _rows(op: Op, s: Step, last: str) -> list[Affine]:
    """The extents of the indices of a contraction that its result shares with reads that do without `last` alone."""
    without = [expr_names(x) for x in loads(s.expr) if last not in expr_names(x)]
    beside = frozenset[str]().union(*(expr_names(x) for x in loads(s.expr) if last in expr_names(x)))
    kept = {p.name for p in s.target.index if isinstance(p, Affine)}
    return [r.upper - r.lower for r in s.ranges
            if r.index in kept and r.index not in beside and any(r.index in x for x in without)]


def _sums_of_rows(op: Op, also_contractions: bool) -> list[Tensor]:
    """What is reduced over reads that have the last index of the target last, too: `S[b] += X[n, b]`."""
    contractions = [s for s, _ in _contractions(op)]
    out = []
    for s in op.steps:
        last = s.target.index[-1] if s.target.index else None
        if s.reduce is None or not isinstance(last, Affine) or last.name not in s.indices:
            continue
        reduced = set(s.indices).difference(*({p.name} for p in s.target.index if isinstance(p, Affine)))
        rows = [x for x in loads(s.expr) if x.index and x.index[-1] == last and expr_names(x) & reduced]
        if rows and (also_contractions or s not in contractions):
            out.append(op.tensor(s.target.source))
    return out


def _contractions(op: Op) -> list[tuple[Step, str]]:
    """The reductions in which some read does without the last index of the target, with that index."""
    out = []
    for s in op.steps:
        last = s.target.index[-1] if s.target.index else None
        if s.reduce is None or not isinstance(last, Affine) or last.name not in s.indices:
            continue
        assert last.name is not None
        if any(last.name not in expr_names(x) for x in loads(s.expr)):
            out.append((s, last.name))
    return out
