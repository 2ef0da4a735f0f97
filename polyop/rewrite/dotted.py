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
from polyop.ir.op import Op, Step
from polyop.ir.options import Layout
from polyop.ir.target import Target
from polyop.rewrite.contracted import find_contractions, rows_of
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.questions import Questions
from polyop.rewrite.tile_regimes import FOLDED

ROWS = 4
"""Of a tile, and columns: more are more streams, and take longer even of eight rows."""


@dataclass(frozen=True, slots=True)
class Dots:
    """A contraction that could be such.

    operands  the names of both, and the indices of each
    added     what is added up: index and extent
    rows      the extents of its rows
    """

    operands: tuple[tuple[str, tuple[str, ...]], ...]
    added: tuple[tuple[str, Affine], ...]
    rows: tuple[Affine, ...]

    def lie_so(self, units: Layout) -> bool:
        """Whether both lie along one index of those that are added up."""
        found = [(units.end(name, len(of)), of) for name, of in self.operands]
        ends = {of[unit] if unit is not None else None for unit, of in found}
        return len(ends) == 1 and bool(ends & {i for i, _ in self.added})


def find_dots(q: Questions) -> tuple[Dots, ...]:
    """The contractions of an operator, if all are of two whole operands as wide as their sums, of which one has the columns.

    In a recurrence a copy serves all turns.
    """
    found = [_dots(q.op, s, last) for s, last in find_contractions(q.op)] if not (q.windows or q.turns) else []
    return tuple(x for x in found if x) if all(found) else ()


def _dots(op: Op, s: Step, last: str) -> Dots | None:
    kept, found = plain_indices(s.target) or (), tuple(dict.fromkeys(loads(s.expr)))
    indices = [plain_indices(x) for x in found]
    if len(found) != 2 or not all(indices) or s.where or sum(last in expr_names(x) for x in found) != 1:
        return None
    added, rows = tuple((r.index, r.upper - r.lower) for r in s.ranges if r.index not in kept), rows_of(s, last)
    if not added or not rows or any(x.dtype != s.target.dtype or not x.dtype.is_float for x in found):
        return None
    if any(not names(e) <= set(op.sizes) for e in (*rows, *(e for _, e in added))):
        return None
    return Dots(tuple((x.source, i or ()) for x, i in zip(found, indices, strict=True)), added, rows)


def rows_of_dots(found: tuple[Dots, ...], sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...]) -> int:
    """How many rows go together in a call, if operands lie along the sums: `ROWS`; or 0: one tile has all, or there are many.

    Not of an operand that is copied once for all calls.
    """
    few = all(ROWS < (rows := volume(x.rows, sizes)) <= target.hints.dots
              and min(evaluate(e, sizes) for _, e in x.added) >= FOLDED * rows for x in found)
    return ROWS if few and not any(name in frozen for x in found for name, _ in x.operands) else 0


def lie_so(found: tuple[Dots, ...], units: Layout) -> bool:
    """Whether arrays lie so, as `units` say."""
    return all(x.lie_so(units) for x in found)
