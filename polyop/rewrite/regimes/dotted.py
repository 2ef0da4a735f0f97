"""Products of few rows whose operands both lie along what is added up: dot products of a few rows and columns at a time.

    Z[m, n] += X[m, k] * W[n, k]      as for a layer with up to 24 inputs

Lanes run along k, both operands are read where they lie, W as a stream, and 4 x 4 sums are folded at the end. For more rows W is
copied by squares, which pays if many use the copy. Of narrow numbers an instruction takes several terms for each lane, if these
fill its vectors: sums of `Options.multiples`. `Options.dots` says how many rows go together, of a call's sizes; how its
arrays lie in memory is asked afterwards, as an einsum of `mk,kn->mn` may have W.T.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.ir.dots import dot
from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, evaluate, expr_names, loads, names, volume
from polyop.ir.op import Op, Step
from polyop.ir.options import Layout
from polyop.ir.target import Target
from polyop.rewrite.copies.contracted import find_contractions, rows_of
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.regimes.questions import Questions
from polyop.rewrite.regimes.tile_regimes import FOLDED

ROWS = 4
"""Of a tile, and columns: more are more streams, and take longer even of eight rows."""

NARROW_ROWS, NARROW_TERMS = 32, 2048
"""Rows of narrow numbers at most, and terms at least: their copy is half as long, and to fold the sums takes as long as of wide
ones. 16 rows of 1024 terms take 1.1 times as long so, of 2048 0.83, of 4096 0.76."""

WORD = 4
"""Bytes of a lane."""


@dataclass(frozen=True, slots=True)
class Dots:
    """A contraction that could be such.

    operands  the names of both, and the indices of each
    added     what is added up: index and extent
    rows      the extents of its rows
    dtypes    of the sum, and of both operands
    """

    operands: tuple[tuple[str, tuple[str, ...]], ...]
    added: tuple[tuple[str, Affine], ...]
    rows: tuple[Affine, ...]
    dtypes: tuple[DType, DType, DType]

    def steps(self, target: Target) -> int:
        """How many terms a lane takes at once; 0 if that takes more than an instruction."""
        total, *both = self.dtypes
        if not total.is_float or all(x == total for x in both):
            return int(total.is_float)
        d = dot(target, target.vector_bytes, total, both[0], both[1], False)
        return d.steps if d and not d.flipped and len(self.added) == 1 and self.added[0][1].name else 0

    def vector(self, target: Target) -> int:
        """How many terms a vector takes at once."""
        return target.lanes(WORD) * self.steps(target)

    def lie_so(self, units: Layout) -> bool:
        """Whether both lie along one index of those that are added up."""
        found = [(units.end(name, len(of)), of) for name, of in self.operands]
        ends = {of[unit] if unit is not None else None for unit, of in found}
        return len(ends) == 1 and bool(ends & {i for i, _ in self.added})


def find_dots(q: Questions) -> tuple[Dots, ...]:
    """The contractions of an operator, if all are of two whole operands, of which one has the columns.

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
    if not added or not rows:
        return None
    if any(not names(e) <= set(op.sizes) for e in (*rows, *(e for _, e in added))):
        return None
    a, b = found
    return Dots(tuple((x.source, i or ()) for x, i in zip(found, indices, strict=True)), added, rows,
                (s.target.dtype, a.dtype, b.dtype))


def rows_of_dots(found: tuple[Dots, ...], sizes: Mapping[str, int], target: Target, frozen: tuple[str, ...]) -> int:
    """How many rows go together in a call, if operands lie along the sums: `ROWS`; or 0: one tile has all, or there are many.

    Not of an operand that is copied once for all calls.
    """
    few = target.hints.dots and all(_are_few(x, sizes, target) for x in found)
    return ROWS if few and not any(name in frozen for x in found for name, _ in x.operands) else 0


def _are_few(x: Dots, sizes: Mapping[str, int], target: Target) -> bool:
    """Whether the rows of `x` are so few that sums are folded in less time than a copy takes; narrow ones only fill vectors."""
    rows, terms, steps = volume(x.rows, sizes), min(evaluate(e, sizes) for _, e in x.added), x.steps(target)
    if steps > 1:
        return ROWS < rows <= NARROW_ROWS and terms >= NARROW_TERMS and terms % x.vector(target) == 0
    return steps == 1 and ROWS < rows <= target.hints.dots and terms >= FOLDED * rows


def whole_vectors(found: tuple[Dots, ...], target: Target) -> tuple[tuple[str, int], ...]:
    """(size, of what it is a multiple) of the sums of narrow numbers that are dot products."""
    return tuple((x.added[0][1].name or "", x.vector(target)) for x in found if x.steps(target) > 1)


def lie_so(found: tuple[Dots, ...], units: Layout) -> bool:
    """Whether arrays lie so, as `units` say."""
    return all(x.lie_so(units) for x in found)
