"""Sums over small windows with fewer multiplications, as Toom, Cook and Winograd do them: which ones, and in which calls it pays.

    Y[b, p, q, k] += X[b, p + r - 1, q + s - 1, c] * F[r, s, c, k]                     with r and s in 0:3

Of a window of R elements, m results that lie side by side are bilinear in the n = m + R - 1 elements of x which they need, and
take n products, not m R (`toom.py`): along two windows n n / m m for each result, 4 where R R are 9 with m = 2, 2.25 with m = 4.
`filtered.py` writes the steps. The identity holds for numbers without rounding, and `poly/verify/bilinear.py` proves it of these.
In floats, elements that a result does not depend on cancel in it only as far as they were rounded alike: an error is measured by
the greatest of a tile, and an infinity or NaN in it reaches all its results. So users ask for it, by `numerics="winograd"`.

Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from polyop.ir.expr import Affine, Apply, Expr, Load, affine, evaluate, expr_names, loads, names
from polyop.ir.op import Op, Step
from polyop.ir.target import Target
from polyop.rewrite.folds import is_box, plain_indices
from polyop.rewrite.sums.terms import factors_of
from polyop.rewrite.windows.toom import POINTS

RESULTS = (2, 4)
"""How many results of a window are computed together: with more, the numbers in the matrices grow, and errors with them."""


@dataclass(frozen=True, slots=True)
class Window:
    """The kept index `along` and the reduced one `over`, whose sum is a position of the image; results: the extent of `along`."""

    along: str
    over: str
    extent: Affine
    results: Affine


@dataclass(frozen=True, eq=False, slots=True)
class Filter:
    """A sum of products over windows, the step `number` of its operator.

    image    the factor that windows go over; weights: the other one
    windows  outermost first
    groups   indices of the result that both factors have; rows: those of the image alone; columns: those of the weights alone
    added    the other indices that are added up, in the order in which the image has them
    """

    number: int
    image: Expr
    weights: Expr
    windows: tuple[Window, ...]
    groups: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    added: tuple[str, ...]
    extents: Mapping[str, Affine]


def find_filters(op: Op) -> tuple[Filter, ...]:
    """The sums of `op` that may be computed so, whatever their sizes are."""
    return tuple(f for n, s in enumerate(op.steps) if (f := _filter(op, n, s)))


def _filter(op: Op, n: int, s: Step) -> Filter | None:
    kept, t = plain_indices(s.target), op.tensor(s.target.source)
    if s.reduce is None or s.reduce.name != "add" or not t.dtype.is_float or s.where or not kept or not is_box(op, s):
        return None
    extents = {r.index: r.upper for r in s.ranges}
    factors = factors_of(s.expr)
    whole = t.shape == tuple(extents[i] for i in kept) and all(o != t.name for _, o in op.updates)
    if s.expr.dtype != t.dtype or len(factors) != 2 or not whole:
        return None
    if not all(_adds_once(op, x) for x in op.steps_of(t.name) if x is not s):
        return None
    for image, weights in (factors, factors[::-1]):
        x, f = _read(image), _read(weights)
        at = plain_indices(_varying(f), s.indices) if f else None
        if x is None or at is None or x.dtype.bytes_ > t.dtype.bytes_ or not all(isinstance(p, Affine) for p in x.index):
            continue
        windows = tuple(_windows(x, s, kept, at, extents))
        ends = {i for w in windows for i in (w.along, w.over)}
        has = expr_names(x) & {*s.indices}
        rest = [i for p in x.index for i in s.indices if isinstance(p, Affine) and i in names(p) and i not in ends]
        added = tuple(dict.fromkeys(i for i in rest if i not in kept))
        columns = tuple(i for i in kept if i not in has)
        shared = {*s.indices} - {*kept} <= has & {*at}
        if windows and added and columns and shared and has | {*at} == {*s.indices}:
            return Filter(n, image, weights, windows, tuple(i for i in kept if i in has and i in at),
                          tuple(i for i in kept if i in has and i not in at and i not in ends), columns, added, extents)
    return None


def _adds_once(op: Op, s: Step) -> bool:
    """Whether `s` adds one term to each element of its target."""
    kept, shape = plain_indices(s.target), op.tensor(s.target.source).shape
    whole = is_box(op, s) and not s.where and kept == s.indices
    return whole and s.reduce is not None and s.reduce.name == "add" and tuple(r.upper for r in s.ranges) == shape


def _read(e: Expr) -> Load | None:
    """What `e` reads, if it is that alone, of another dtype perhaps."""
    match e:
        case Load():
            return e
        case Apply(fn="cast", args=(Load() as x,)):
            return x
    return None


def _varying(x: Load) -> Load:
    """`x` without its positions that are numbers, as that in a window of one element is."""
    return replace(x, index=tuple(p for p in x.index if not isinstance(p, Affine) or not p.is_constant))


def _windows(x: Load, s: Step, kept: Sequence[str], at: Sequence[str], extents: Mapping[str, Affine]) -> Iterator[Window]:
    """The windows { x[.., p + r, ..] * f[.., r, ..] } of `x`, where nothing else of it has p or r, but both alike; none of one
    element.
    """
    for p in x.index:
        own = sorted(names(p) & {*s.indices}) if isinstance(p, Affine) else []
        pairs = [(i, r) for i in own for r in own if i in kept and r not in kept]
        if len(own) != 2 or len(pairs) != 1 or not isinstance(p, Affine):
            continue
        (i, r), = pairs
        others = [q for q in (*x.index, *x.guard) if isinstance(q, Affine) and q is not p]
        alone = all(q.factor(i) == q.factor(r) and not _inside(q) & {i, r} for q in (p, *others)) and all(
            not names(q) & {i, r} for q in x.index if isinstance(q, Affine) and q is not p)
        if alone and p.factor(i) == 1 and i not in at and r in at and extents[r] != affine(1):
            yield Window(i, r, extents[r], extents[i])


def _inside(q: Affine) -> frozenset[str]:
    """The names in divisions and remainders of `q`."""
    return frozenset[str]().union(*(names(y) for a, _ in q.terms if not isinstance(a, str) for y in a.args))


# --- which calls it pays for ------------------------------------------------------------------------------------------

CHANNELS = 16
"""Terms of each sum, and columns, from which products of matrices are worth their making."""
WINDOW = range(2, 6)
"""Elements of windows that are computed so: longer ones take too many points."""
MADE, MORE = 15.0, 7.5
"""Multiply-adds in whose time an element of the image or of products is made with four points in a window, and more for each
other one: its terms are added up along each window, and it is written and read, nearly always in L2.
"""
GIVEN, TURNED = 50, 110
"""The same for an element of the weights, which are packed, too; and where they do not lie along columns."""
NEAR, FAR = 3, 16
"""The same for an element of the weights, which each block of the image reads: from the last cache, and from memory."""
LEFT, LOST = 6, 24
"""What is added for an element of the image or of products where a block of them leaves L2, or half of the last cache."""
TOGETHER = 64
"""Points of all windows at most, for each of which there is a product of matrices."""
IMAGES, FEW = 8, 64
"""Images of a block, if these have no more tiles."""
BYTES = 4
"""Of an element: of f64 half as many are computed in the same time, and take twice the room."""
GAIN = 0.9
"""The part of the time that must be left."""
LEAST, MOST = 8, 16
"""Rows of results of a block, from which on loops are shared (`poly/schedule/batches.py`), and tiles that it has at most."""


@dataclass(frozen=True, slots=True)
class Way:
    """How the filter of the step `number` is computed.

    results  how many results of each window together
    block    how many tiles along the outermost window are computed together, or images
    whole    for each window, whether its results are whole tiles
    images   whether blocks are of images, whose results are so few that their numbers are known
    """

    number: int
    results: tuple[int, ...]
    block: int
    whole: tuple[bool, ...]
    images: bool = False


def ways(found: Sequence[Filter], sizes: Mapping[str, int], target: Target, frozen: frozenset[str],
         threads: int = 1) -> tuple[Way, ...]:
    """How those of `found` are computed that are faster so in a call of these sizes, all at least 1.

    frozen   inputs that calls always give the same: what is made of these alone is made once
    """
    return tuple(w for f in found if (w := _way(f, sizes, target, frozen, threads)))


def known_sizes(found: Sequence[Filter], chosen: Sequence[Way], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that must be numbers for these."""
    images = {w.number: w.images for w in chosen}
    return {n: sizes[n] for f in found if f.number in images for w in f.windows
            for n in sorted(names(w.extent) | (names(w.results) if images[f.number] else frozenset()))}


def _way(f: Filter, sizes: Mapping[str, int], target: Target, frozen: frozenset[str], threads: int) -> Way | None:
    """The fastest way for `f`, if it is faster than the sum itself; windows of one element are none."""
    real = [w for w in f.windows if evaluate(w.extent, sizes) > 1]
    lengths = tuple(evaluate(w.extent, sizes) for w in real)
    known = all(w.extent.is_constant or w.extent.name for w in f.windows)
    if not real or not known or not all(r in WINDOW for r in lengths):
        return None
    rows = (*f.groups, *f.rows, *(w.along for w in f.windows if w not in real))
    images, added, columns = (prod(evaluate(f.extents[i], sizes) for i in part) for part in (rows, f.added, f.columns))
    results = tuple(evaluate(w.results, sizes) for w in real)
    if min(added, columns) < CHANNELS or min(results) < 1:
        return None
    (read,) = loads(f.weights)
    given = 0 if read.source in frozen else GIVEN if read.index[-1] == affine(f.columns[-1]) else TURNED
    work = _Work(images, results, lengths, added, columns, given, target, threads)
    best, least = None, GAIN * work.plain
    for ms, together in product(product(RESULTS, repeat=len(real)), (False, True)):
        if max(work.points(ms)) > len(POINTS) + 1 or prod(work.points(ms)) > TOGETHER or (
                together and not _are_few(f, real, work.tiles(ms))):
            continue
        time = work.time(ms, together)
        if time < least:
            whole = tuple(p % m == 0 for p, m in zip(results, ms, strict=True))
            best, least = Way(f.number, ms, work.block(ms, together), whole, together), time
    return best


@dataclass(frozen=True, slots=True)
class _Work:
    """What a filter computes in a call: `images` with so many `results` along each window, whose elements are `lengths`.

    added    terms beside those of windows; given: how long an element of the weights takes to make
    Notes    Times are multiply-adds. `ms`: how many results of each window are computed together; `together`: whether images are.
    """

    images: int
    results: tuple[int, ...]
    lengths: tuple[int, ...]
    added: int
    columns: int
    given: float
    target: Target
    threads: int

    @property
    def plain(self) -> float:
        return self.images * prod(self.results) * prod(self.lengths) * self.added * self.columns / self.threads

    def points(self, ms: Sequence[int]) -> list[int]:
        return [m + r - 1 for m, r in zip(ms, self.lengths, strict=True)]

    def tiles(self, ms: Sequence[int]) -> list[int]:
        return [-(-p // m) for p, m in zip(self.results, ms, strict=True)]

    def block(self, ms: Sequence[int], together: bool) -> int:
        """How many images make a block, or tiles along the outermost window: as many as L2 holds, and enough to share loops."""
        if together:
            return IMAGES
        tiles, block = self.tiles(ms), max(1, LEAST // ms[0])
        while 2 * block <= MOST and 2 * block * prod(tiles[1:]) * self.each(ms) * BYTES <= self.target.l2 and block < tiles[0]:
            block *= 2
        return block

    def each(self, ms: Sequence[int]) -> int:
        """Elements of the image and of products that are made for a tile."""
        return prod(self.points(ms)) * (self.added + self.columns)

    def time(self, ms: Sequence[int], together: bool) -> float:
        points, tiles, block = self.points(ms), self.tiles(ms), self.block(ms, together)
        lines = min(self.images, block) * prod(tiles) if together else tiles[-1]  # rows of each product
        held = lines if together else block * prod(tiles[1:])
        blocks = -(-self.images // block) if together else self.images * -(-tiles[0] // block)
        weights = prod(points) * self.added * self.columns
        made = MADE + MORE * (sum(points) / len(points) - 4) + self.by_cache(held * self.each(ms), LEFT, LOST)
        of_tiles = self.images * prod(tiles) * (weights * (1 + 0.5 / lines) + made * self.each(ms))
        of_blocks = (of_tiles + weights * blocks * self.by_cache(weights, NEAR, FAR)) / blocks
        return of_blocks * -(-blocks // self.threads) + weights * self.given / self.threads  # threads share out blocks

    def by_cache(self, elements: int, near: int, far: int) -> int:
        """0 if L2 holds them, `near` if half of the last cache does, else `far`."""
        return 0 if elements * BYTES <= self.target.l2 else near if elements * BYTES <= self.target.l3 // 2 else far


def _are_few(f: Filter, real: Sequence[Window], tiles: Sequence[int]) -> bool:
    """Whether an image has so few tiles that those of several make a block, in kernels for images of that size alone."""
    return prod(tiles) <= FEW and bool(f.rows) and all(w in real for w in f.windows)
