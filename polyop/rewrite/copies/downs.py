"""Along which index of its result the tiles of a contraction have their rows: the last one, but where that is short.

    { Y[n, p, q, k] += X[n, p + r, q + s, c] * F[r, s, c, k] }      rows q; or p of images of 40 x 1, or n of many small ones

Loops around a tile leave out what a window has beyond a border, which along the tile's own rows is within it. How far before the
last one the chosen index stands is `Options.down`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from polyop.ir.expr import Affine, evaluate, expr_names, loads, names, volume
from polyop.ir.integers import filled
from polyop.ir.op import Op, Step
from polyop.rewrite.copies.contracted import Contractions, row_indices

ENOUGH = 7  # rows of a tile for which no other index is looked for: with 6 another one takes 0.92 to 0.98 of the time
FEW_ROWS = (3.0, 1.5, 1.2, 1.12, 1.06, 1.03)  # how much longer each of one to six rows of a tile takes: 192 -> 100, 3 x 3
WORTH_ASIDE = 0.98  # of the time: 56 x 56 of 8 images, which should have gained 1.2 percent, lost as much
WORTH_INWARD = 0.96  # the same of images that are copied: larger ones are copied one by one, 28 x 28 lost a tenth
ENOUGH_OF_PRODUCTS = 3  # the same where there are no windows: see `_enough`
ENOUGH_AT_BORDERS, ENOUGH_TURNED, ENOUGH_SPACED = 5, 4, 3  # the same where they are turned
HEIGHTS = range(5, 9)  # rows of tiles that are counted as full ones


@dataclass(frozen=True, eq=False, slots=True)
class Down:
    """An index of a result along which tiles may have their rows: its extent, and those of the windows that are added to it.

    spaced      whether neighbours along it read what lies apart, as windows in steps of two do
    is_guarded  whether something else is taken for what they would read beyond a border
    is_bound    whether conditions leave out some of what is added up
    """

    extent: Affine
    windows: tuple[Affine, ...]
    spaced: bool
    is_guarded: bool
    is_bound: bool


def downs(op: Op, contractions: Contractions) -> tuple[tuple[Down, ...], tuple[Down, ...]]:
    """Those of the one contraction, in the order in which its target is written: with lanes along its columns, and turned.

    None unless all are known from sizes.
    """
    if len(contractions) != 1:
        return (), ()
    (s, last), = contractions
    rows = row_indices(s, last)
    return _downs(op, s, rows), _downs(op, s, row_indices(s, rows[-1]) if rows else ())


def _downs(op: Op, s: Step, indices: tuple[str, ...]) -> tuple[Down, ...]:
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    positions = [p for x in loads(s.expr) for p in x.index if isinstance(p, Affine)]
    guards = [g for x in loads(s.expr) for g in x.guard]
    depth = [i for i in extents if i not in expr_names(s.target)]
    found = tuple(Down(extents[i], tuple(extents[j] for j in depth if any({i, j} <= names(p) for p in positions)),
                       any(abs(p.factor(i)) > 1 for p in positions), any(i in names(g) for g in guards),
                       any(i in expr_names(w) for w in s.where)) for i in indices)
    return found if all(names(e) <= set(op.sizes) for x in found for e in (x.extent, *x.windows)) else ()


def row_of_tiles(found: tuple[Down, ...], sizes: Mapping[str, int], turned: bool, inward: bool = False) -> int:
    """How far before the last one of `found` that one stands along which tiles have their rows.

    turned   whether lanes run along what is a row otherwise
    inward   whether what has the rows then is copied to lie as it does where nothing is turned
    """
    if len(found) < 2:
        return 0
    extents, turned = [evaluate(x.extent, sizes) for x in found], turned and not inward
    if not turned and any(x.is_guarded for x in found):
        return _away_from_borders(found, extents, sizes, WORTH_INWARD if inward else WORTH_ASIDE)
    last, *others = reversed(extents)
    best = next((e for e in others if e >= ENOUGH), max(others))
    return 1 + others.index(best) if last < min(best, _enough(found[-1], turned, sizes)) else 0


def _away_from_borders(found: tuple[Down, ...], extents: list[int], sizes: Mapping[str, int], worth: float) -> int:
    """The same where windows are cut off at borders, which a tile leaves out but along its rows: { r + p - 1 >= 0 }.

    Of R steps each along e places some (R^2 - 1) / 4 are beyond, half of them where windows go in steps. Pixels side by side have
    that border within their tiles; the same pixel of several images has none.
    """
    def inside(x: Down, extent: int) -> float:
        window = max(1, volume(x.windows, sizes)) if x.is_guarded else 1
        return max(1 / window, 1 - (window * window - 1) / (4 * window * max(1, extent) * (2 if x.spaced else 1)))

    left = [inside(x, e) for x, e in zip(found, extents, strict=True)]
    costs = [_emptiness(e) * prod(left[:i] + left[i + 1 :]) for i, e in enumerate(extents)]
    best = min(reversed(range(len(costs))), key=lambda i: costs[i])
    return len(costs) - 1 - best if costs[best] < worth * costs[-1] else 0


def _emptiness(rows: int) -> float:
    """How much longer each of so many rows takes than of full tiles: half as much as is missing, since the last one is lower."""
    if rows < ENOUGH:
        return FEW_ROWS[max(0, rows - 1)]
    return 0.5 + 0.5 / max(filled(rows, h) for h in HEIGHTS)


def _enough(x: Down, turned: bool, sizes: Mapping[str, int]) -> int:
    """How many rows of a tile there must be for no other index to be looked for.

    Of products two rows share too little, three enough. Of windows rows of another index lie on lines of their own. If they are
    turned, each has such a line for each of many channels, of which L1 holds all for few rows alone, and the fewer the further
    they lie apart. Where windows are cut off at a border along `x`, no tile has that border within it then, which gains the more,
    the longer these are, and the more it costs: it is read around, or branched around.
    """
    if not x.windows:
        return 0 if turned else ENOUGH_OF_PRODUCTS
    if not turned:
        return ENOUGH
    cut = 2 * volume(x.windows, sizes) - 1 if x.is_bound or x.is_guarded else 0
    if x.spaced:
        return ENOUGH_AT_BORDERS if cut else ENOUGH_SPACED
    return max(ENOUGH if x.is_bound else ENOUGH_TURNED, cut)
