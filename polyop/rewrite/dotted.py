"""Products of few rows whose operands both lie along what is added up: dot products of a few rows and columns at a time.

    Z[m, n] += X[m, k] * W[n, k]      as for a layer with up to 24 inputs

Lanes run along k, both operands are read where they lie, W as a stream, and 4 x 4 sums are folded at the end. For more rows W is
copied by squares, which pays if many use the copy. `Options.dots` says how many rows go together, of a call's sizes; how its
arrays lie in memory is asked afterwards, as an einsum of `mk,kn->mn` may have W.T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.ir.expr import Affine, evaluate, expr_names, loads, names, volume
from polyop.ir.options import Layout
from polyop.ir.target import Target
from polyop.rewrite.contracted import find_contractions
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.questions import Questions

ROWS = 4
"""Of a tile, and columns: more are more streams, and take longer even of eight rows."""

TERMS = 16
"""For each row there is, from which folds take no longer than a copy."""


@dataclass(frozen=True, slots=True)
class Dots:
    """The one contraction of an operator, if it could be such.

    operands  the names of both, and the indices of each
    added     what is added up: index and extent
    rows      the extents of its rows
    """

    operands: tuple[tuple[str, tuple[str, ...]], ...]
    added: tuple[tuple[str, Affine], ...]
    rows: tuple[Affine, ...]

    def along(self, units: Layout) -> str | None:
        """The index along which both lie, of those that are added up."""
        ends = {of[unit] if (unit := units.unit(name)) is not None else None for name, of in self.operands}
        return next((i for i, _ in self.added if ends == {i}), None)


def find_dots(q: Questions) -> tuple[Dots, ...]:
    """The one contraction, if it is of two whole operands as wide as its sums, of which one has the columns."""
    if q.sides is None or q.windows:
        return ()
    s, last = find_contractions(q.op)[0]
    kept, found = plain_indices(s.target) or (), tuple(dict.fromkeys(loads(s.expr)))
    if len(found) != 2 or s.where or sum(last in expr_names(x) for x in found) != 1:
        return ()
    indices = [plain_indices(x) for x in found]
    added = tuple((r.index, r.upper - r.lower) for r in s.ranges if r.index not in kept)
    if not all(indices) or not added or any(x.dtype != s.target.dtype or not x.dtype.is_float for x in found):
        return ()
    if any(not names(e) <= set(q.op.sizes) for _, e in added):
        return ()
    return (Dots(tuple((x.source, i or ()) for x, i in zip(found, indices, strict=True)), added, q.sides.rows),)


def rows_of_dots(found: tuple[Dots, ...], sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...]) -> int:
    """How many rows go together in a call, if both operands lie along the sum: `ROWS`; or 0: one tile has all, or there are many.

    Not of an operand that is copied once for all calls.
    """
    x, = found
    rows, terms = volume(x.rows, sizes), min(evaluate(e, sizes) for _, e in x.added)
    few = ROWS < rows <= target.hints.dots and terms >= TERMS * rows
    return ROWS if few and not any(name in frozen for name, _ in x.operands) else 0


def left_of(found: tuple[Dots, ...], units: Layout, rows: int) -> int:
    """What is left of that where arrays lie as `units` say."""
    return rows if all(x.along(units) for x in found) else 0
