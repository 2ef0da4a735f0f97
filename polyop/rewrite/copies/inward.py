"""An operand that lies along the rows of a product's tiles is taken from a copy that lies along what is added up.

    Y[b, k, p, q] += X[b, c, p + r, q + s] * F[k, c, r, s]                                             lanes along k, rows along q

    Xt[b, i, j, c] = X[b, c, i, j];   Y[b, k, p, q] += Xt[b, p + r, q + s, c] * F[k, c, r, s]

Each step of a register tile reads an element for every row of it. Along the sum these come in runs, which stay in the first cache
and which hardware fetches ahead; where they lie along the rows, each step is on a line, or even a page, of its own. The copy goes
by squares that are turned in registers. Where all of it leaves L2 it is made for one image after the other (`overlap.py`), or,
where that leaves L2 with the other operand, for some rows of an image after the other.
Of an image that is read in steps without a window, `X[b, c, 2*p, 2*q]`, it has what is read: `Xt[b, p, q, c]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, Position, affine, evaluate, expr_names, loads, map_loads, names, substitute, volume
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.ir.target import NEAR, Target
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.instead import Instead, with_steps
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.windows.traffic import LEAST, MOST

AGAIN, FAR = 256, 2
"""Multiply-adds with each element that make its copy worth it, and how many times as many where one thread copies beyond L2.

As many times fewer where parts of such a copy stay in L2, since what they spare are lines from beyond it.
"""
BAND = 0.75
"""The part of L2 that some rows of an image may fill with the other operand: their results, of as many rows, lie there, too."""
EACH = 4
"""Images for each thread that make it worth it to share them."""
BYTES = 4
"""Of an element: others were not measured."""


@dataclass(frozen=True, slots=True)
class Lying:
    """An input that the only sum of products of its operator reads along the last index of the result.

    depth    the dimension of it along which a copy should lie
    shape    of it, and of the `other` operand; `images`: of these extents those that only the result has, too
    loops    the extents of all loops of the sum; `windows`: of those that are added to others
    rows     that of the rows of an image along which such a window goes, if it does
    classes  how many sums of as many terms read it
    """

    source: str
    depth: int
    shape: tuple[Affine, ...]
    other: tuple[Affine, ...]
    images: tuple[Affine, ...]
    loops: tuple[Affine, ...]
    windows: tuple[Affine, ...]
    rows: Affine | None
    classes: int = 1


def find_inward(op: Op, narrow: bool = False) -> tuple[Lying, ...]:
    """That input of `op`, if there is one; of a sum that is cut into classes of residues, if it is the same for all of them.

    narrow   whether its elements are to be narrower than the sum, as matrix instructions take them
    """
    added = [s for s in op.steps if s.reduce is not None and len({*loads(s.expr)}) > 1]
    found = [_lying(op, s, narrow) for s in added]
    first = found[0] if found else None
    if first is None or any(x is None or (x.source, x.depth) != (first.source, first.depth) for x in found):
        return ()
    return (replace(first, classes=len(found)),)


def _lying(op: Op, s: Step, narrow: bool) -> Lying | None:
    kept, reads = plain_indices(s.target, s.indices), tuple(dict.fromkeys(loads(s.expr)))
    having = [x for x in reads if kept and kept[-1] in expr_names(x)]
    if not kept or len(reads) != 2 or len(having) != 1:
        return None
    x, other = having[0], reads[reads[0] == having[0]]
    t, extents = op.tensor(x.source), {r.index: r.upper - r.lower for r in s.ranges}
    fits = x.dtype.bytes_ < BYTES if narrow else x.dtype == s.target.dtype and x.dtype.bytes_ == BYTES
    if t.role != "in" or not fits or not all(names(e) <= set(op.sizes) for e in (*extents.values(), *t.shape)):
        return None
    index = [p for p in x.index if isinstance(p, Affine)]
    if len(index) < len(x.index) or index[-1].factor(kept[-1]) not in range(1, NEAR + 1):
        return None
    alone = {p.name: d for d, p in enumerate(index) if p.name in extents}
    deep = [d for i, d in alone.items() if i not in kept and i in expr_names(other)]
    if not deep:
        return None
    images = tuple(extents[i] for i in alone if i in kept and i not in expr_names(other))
    windows = tuple(e for i, e in extents.items() if i not in kept and any(i in names(p) and len(names(p)) > 1 for p in index))
    high = [extents[i] for p in index if len(names(p)) > 1 for i in kept[:-1] if i in names(p)]
    return Lying(x.source, deep[-1], t.shape, op.tensor(other.source).shape, images, tuple(extents.values()), windows,
                 high[0] if high else None)


def to_turn_inward(found: Sequence[Lying], sizes: Mapping[str, int], target: Target, threads: int) -> tuple[tuple[str, int], ...]:
    """(input, dimension) of those that are worth it in a call of these sizes whose lanes run along rows of the other operand.

    A window reads each element again and again. Without one each block of rows is copied anyway, which several threads, who all
    have blocks of columns, would do once for each.
    """
    out = []
    for x in found:
        elements = volume(x.shape, sizes)
        is_windowed = volume(x.windows, sizes) > 1
        is_far = elements * BYTES > target.l2
        is_near = threads == 1 and is_far and _rows_that_stay(x, sizes, target) > 0
        again = AGAIN // FAR if is_near else AGAIN * (FAR if (threads == 1 or is_windowed) and is_far else 1)
        is_copied_often = threads > 1 or is_windowed
        is_deep = evaluate(x.shape[x.depth], sizes) >= target.lanes(BYTES)
        is_known = x.classes == 1 or not target.masks  # with wide vectors classes of residues were not measured
        if is_known and is_copied_often and is_deep and x.classes * volume(x.loops, sizes) >= again * elements:
            out.append((x.source, x.depth))
    return tuple(out)


def rows_of_images(found: Sequence[Lying], sizes: Mapping[str, int], target: Target, threads: int) -> int:
    """How many rows of the result have a copy of their own, if all of it leaves L2 and so much of it does not; or 0.

    Threads share whole images.
    """
    for x in found:
        images, whole = (volume(y, sizes) for y in (x.images, x.shape))
        rows = _rows_that_stay(x, sizes, target) if whole * BYTES > target.l2 and images >= EACH * (threads - 1) else 0
        if rows == MOST or (threads == 1 and rows):
            return rows
    return 0


def _rows_that_stay(x: Lying, sizes: Mapping[str, int], target: Target) -> int:
    """`MOST` where an image's copy stays in L2 with the other operand, else rows of its result for which a copy does, or 0."""
    image, other = volume(x.shape, sizes) // volume(x.images, sizes), volume(x.other, sizes)
    if (image + other) * BYTES <= target.l2:
        return MOST
    height, rows = evaluate(x.rows, sizes) if x.rows else 0, MOST // 2
    while rows >= LEAST and (image * min(rows, height) // max(height, 1) + other) * BYTES > BAND * target.l2:
        rows //= 2
    return rows if height > rows >= LEAST else 0


def turned_inward(op: Op, inputs: Mapping[str, int], known: Mapping[str, int] | None = None) -> Op:
    """`op`, whose sum reads copies of these inputs in which that dimension is the last; `known`: sizes that are numbers."""
    taken = all_names(op)
    sizes = {n: affine(v) for n, v in (known or {}).items()}

    def instead(s: Step) -> Instead | None:
        found = tuple(dict.fromkeys(x for x in loads(s.expr) if x.source in inputs)) if s.reduce is not None else ()
        if not found or len({x.source for x in found}) < len(found):
            return None
        copies = {x: _copied(op, s, x, inputs[x.source], sizes, taken) for x in found}
        update = replace(s, expr=map_loads(s.expr, lambda y: copies[y][2] if y in copies else y))
        return tuple(t for t, _, _ in copies.values()), (*(w for _, w, _ in copies.values()), update)

    return with_steps(op, instead) if inputs else op


def _copied(op: Op, s: Step, x: Load, deep: int, sizes: Mapping[str, Affine], taken: set[str]) -> tuple[Tensor, Step, Load]:
    """A copy of what `x` in `s` reads, whose last dimension is that one, the step that makes it, and what `s` reads of it."""
    t = op.tensor(x.source)
    order = (*(d for d in range(len(t.shape)) if d != deep), deep)
    steps = {d: y for d, p in enumerate(x.index) if not x.guard and d != deep and (y := _in_steps(s, p, sizes))}
    shape = tuple(steps[d][0].upper if d in steps else e for d, e in enumerate(t.shape))
    copy = Tensor(fresh(f"{t.name}_inward", taken), t.dtype, tuple(shape[d] for d in order), "temp")
    at = tuple(fresh(f"{t.name}_{d}", taken) for d in range(len(t.shape)))
    ranges = tuple(Range(at[d], Affine(), shape[d]) for d in order)
    target = Load(copy.name, tuple(affine(at[d]) for d in order), t.dtype)
    values = {r.index: affine(at[d]) for d, (r, _) in steps.items()}
    places = tuple(substitute(steps[d][1], values) if d in steps else affine(i) for d, i in enumerate(at))
    write = Step(target, None, Load(t.name, places, t.dtype), ranges, (), s.span)
    index = tuple(affine(steps[d][0].index) if d in steps else p for d, p in enumerate(x.index))
    return copy, write, replace(x, source=copy.name, index=tuple(index[d] for d in order))


def _in_steps(s: Step, p: Position, sizes: Mapping[str, Affine]) -> tuple[Range, Affine] | None:
    """The range that the position `p` goes through in steps, as 2*p of `2*p + r` where r is 0 alone, and `p` without that."""
    one = {r.index: r.lower for r in s.ranges if substitute(r.upper - r.lower, sizes) == affine(1)}
    if not isinstance(p, Affine):
        return None
    place = substitute(p, one)
    found = [r for r in s.ranges if r.index in names(place)]
    if len(found) != 1 or found[0].lower != Affine() or place.factor(found[0].index) < 2 or names(place) != {found[0].index}:
        return None
    return found[0], place
