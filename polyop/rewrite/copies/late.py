"""A contraction in the order in which its large operand lies, whose smaller result is turned afterwards.

    Z[j, b, a] += X[a, k, b] * W[j, k]     becomes     t[a, j, b] += X[a, k, b] * W[j, k];  Z[j, b, a] = t[a, j, b]

Lanes run along what has unit stride in the result. If X has unit stride along another index that the result keeps, all of X would
be copied in turned squares, which take a line here and a line there; as it lies, it is streamed. t is as large as the result;
or, where X has another index before two that it ends in, as d of X[a, k, d, b, c], as large as what one value of that makes of it
(`piecewise`, of `polyop/poly/schedule/batches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from polyop.ir.expr import Affine, Load, affine, expr_names, loads, names, volume
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.options import Layout
from polyop.ir.target import Target
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh

ROW = 2
"""Dimensions of a piece of a row of it."""

LONG = 512
"""Bytes of such a piece that memory streams: of 256 some products take 1.15 of the time so, others 0.64."""

SHARE = 4
"""Pieces for each thread, of which all get some."""

TIMES = 2
"""How many times as large as the result an operand is at least that is not turned."""


@dataclass(frozen=True, slots=True)
class Late:
    """A sum of products with such an operand: the extents of that and of the result, and the bytes of an element.

    tensors   the names of both, which lie so if neighbours in their last dimensions are neighbours in memory
    pieces    the extents of dimensions that the result keeps, too, before the operand's last two, if it keeps these; else none
    rows      the extents of what the operand does without, if its rows are not side by side in the other one; else none
    columns   the extents of what the result has of the operand; `summed`: of what it has not
    """

    tensors: tuple[str, str]
    operand: tuple[Affine, ...]
    result: tuple[Affine, ...]
    bytes_: int
    pieces: tuple[Affine, ...] = ()
    rows: tuple[Affine, ...] = ()
    columns: tuple[Affine, ...] = ()
    summed: tuple[Affine, ...] = ()


def find_late(op: Op) -> tuple[Late, ...]:
    """The sums of `op` that are such."""
    return tuple(_late(op, s, found[0]) for s in op.steps if (found := _order(op, s)))


def _late(op: Op, s: Step, x: Load) -> Late:
    """What is found of the sum `s`, across whose result `x` lies."""
    kept, own, extents = plain_indices(s.target) or (), plain_indices(x) or (), {r.index: r.upper - r.lower for r in s.ranges}
    other = next((plain_indices(y) for y in loads(s.expr) if y != x), None)
    rows = tuple(i for i in kept if i not in own)
    return Late((x.source, s.target.source), op.tensor(x.source).shape, op.tensor(s.target.source).shape, x.dtype.bytes_,
                _pieces(op, s, x), tuple(extents[i] for i in rows) if other and other[-1] not in rows else (),
                tuple(extents[i] for i in own if i in kept), tuple(e for i, e in extents.items() if i not in kept))


def _pieces(op: Op, s: Step, x: Load) -> tuple[Affine, ...]:
    kept = plain_indices(s.target) or ()
    last = tuple(takewhile(kept.__contains__, reversed(plain_indices(x) or ())))
    return op.tensor(x.source).shape[-len(last):-ROW] if len(last) > ROW else ()


def find_pieces(found: Sequence[Late]) -> tuple[Late, ...]:
    """Sums whose operand has such pieces: all that there are, or none."""
    return tuple(found) if all(x.pieces for x in found) else ()


def in_pieces(found: Sequence[Late], sizes: Mapping[str, int], target: Target, threads: int) -> bool:
    """Whether their pieces are long, and enough for all threads, and their results large."""
    return all(volume(x.pieces, sizes) >= SHARE * threads and volume(x.operand[-ROW:], sizes) * x.bytes_ >= LONG
               and volume(x.result, sizes) * x.bytes_ >= target.stream_bytes for x in found)


def lie_so(found: Sequence[Late], units: Layout) -> bool:
    """Whether in memory, too, each such operand lies across its result."""
    return all(units.unit(x.tensors[0]) == len(x.operand) - 1 and units.unit(x.tensors[1]) == len(x.result) - 1 for x in found)


def turned_late(op: Op) -> Op:
    """`op` with those sums in the order of their operand, in temporaries that become the results."""
    taken = all_names(op)

    def instead(s: Step) -> Instead | None:
        found = _order(op, s)
        if found is None:
            return None
        order, kept, whole = found[1], plain_indices(s.target) or (), op.tensor(s.target.source)
        name = fresh(f"{s.target.source}_lying", taken)
        t = Tensor(name, whole.dtype, tuple(whole.shape[kept.index(i)] for i in order), "temp")
        lying = replace(s.target, source=name, index=tuple(map(affine, order)))
        ranges = {r.index: r for r in s.ranges}
        added = tuple(r for r in s.ranges if r.index not in kept)
        update = replace(s, target=lying, ranges=(*(ranges[i] for i in order), *added))
        return (t,), (update, Step(s.target, None, lying, tuple(ranges[i] for i in kept), (), s.span))

    return with_steps(op, instead)


def _order(op: Op, s: Step) -> tuple[Load, tuple[str, ...]] | None:
    """The operand that lies across, and the indices of the result in its order: rows stand where it is added up along."""
    kept = plain_indices(s.target)
    if not kept or s.reduce is None or s.where or len(loads(s.expr)) != 2 or op.updates:
        return None
    if len(op.steps_of(s.target.source)) != 1 or op.tensor(s.target.source).role != "out":
        return None
    having = [x for x in loads(s.expr) if kept[-1] in expr_names(x)]
    found = plain_indices(having[0]) if len(having) == 1 else None
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    if not found or found[-1] == kept[-1] or found[-1] not in kept or op.tensor(having[0].source).role != "in":
        return None
    if any(not names(e) <= set(op.sizes) for e in extents.values()):
        return None
    rows, added = tuple(i for i in kept if i not in found), [i for i in found if i not in kept]
    if not rows or not added:
        return None
    at = found.index(added[0])
    return having[0], tuple(i for i in (*found[:at], *rows, *found[at:]) if i in kept)
