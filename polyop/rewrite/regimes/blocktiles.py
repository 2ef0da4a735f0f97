"""The tile of a product's results that a block of a GPU's threads has in calls of some sizes, and the shares of long sums.

There are blocks for all multiprocessors where the sizes allow it. Rows, and columns, may run over several indices, which are not
one in memory: of an image, lines and pixels. A tile has then as many values of each as leave little of it empty:

    32 images of 14 x 14     1 x 1 x 128  one line, 11 % full     4 x 2 x 16  two lines of four images, 88 % full
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from polyop.ir.atoms import ROWS as ATOMS
from polyop.ir.atoms import atoms_for
from polyop.ir.expr import evaluate, volume
from polyop.ir.integers import power_of_two
from polyop.ir.target import Target
from polyop.rewrite.regimes.questions import Questions
from polyop.rewrite.sums.shares import Sum

TILES = (128, 64, 32, 16)  # sides of the tile that a block of a GPU's threads takes; the last one for results that are no longer
WIDEST = 256
BLOCKS = 128  # as many as an H100 has multiprocessors, about
AT_ONCE = 4  # blocks on a multiprocessor that keep memory busy, where each has a row to add up, or a tile as narrow as the last
SHARE, SHARE_OF_ROW = 512, 4096  # iterations of a share at least: of a sum with a tile or a line of results, and of a row
MOST = 3  # indices of a side of which a tile has several values
NEARLY = 9 / 8  # as few tiles
LEAST, NEIGHBOURS = 8, 16  # of the last index; and where an operand runs along it in memory: 32 bytes of two each
ROWS = 2  # of the last index of rows that nothing in memory runs along


@dataclass(frozen=True, slots=True)
class Tiles:
    """What a block has: `sides` and `lines` as the options `tile` and `lines`, () for the usual; and how many `blocks` there are,
    and whether each is `alone`, as the option is.

    Of an operator without one contraction, nothing and 0.
    """

    sides: tuple[int, ...] = ()
    lines: tuple[tuple[int, ...], ...] = ()
    blocks: int = 0
    alone: bool = False


def block_tiles(q: Questions, sizes: Mapping[str, int], target: Target, turned: bool = False) -> Tiles:
    """What a block of threads has of the one contraction, so that there are blocks enough for the multiprocessors.

    The larger side is halved until there are `BLOCKS` of them: less reuse of what is staged, and no processor without work. Tiles
    of 64 are kept where the sum is so long that it can be cut instead (`block_shares`).
    Units that read shared memory themselves have `WIDEST` columns at once, if nothing is said. These wait for what a
    multiprocessor reads, so tiles are halved for them only as long as that ends sooner: 112 of 128 x 128 take as long as 224 of
    64 x 128, of which half the multiprocessors have two, and read two thirds as much.

    turned   whether what has the columns is read from a copy that does not lie along them
    """
    if q.tile is None or q.sides is None:
        return Tiles()
    extents = [tuple(evaluate(e, sizes) for e in side) for side in (q.sides.rows, q.sides.columns)]
    least = [NEIGHBOURS if q.sides.is_near else ROWS, LEAST if turned else NEIGHBOURS]
    sides = [next((t for t in TILES if prod(e) > t // 2), TILES[-1]) for e in extents]
    mine = next((x for x in q.sums if x.tiled == q.tile[:2]), None)
    shares = _most_shares(mine, sizes) if mine else 1
    beside = volume(mine.results, sizes) // max(1, prod(map(prod, extents))) if mine else 1

    def cut() -> list[tuple[int, ...]]:
        return [split(*x) for x in zip(extents, sides, least, strict=True)]

    def count() -> int:
        return prod(_tiles(e, n) for e, n in zip(extents, cut(), strict=True)) * beside

    smallest = [TILES[2] if len(e) == 1 else TILES[3] for e in extents]
    most = BLOCKS // 2 + 1 if _is_for_wide(q, target) else BLOCKS
    while count() < most and any(x > n for x, n in zip(sides, smallest, strict=True)):
        if max(sides) <= TILES[1] and count() * shares >= BLOCKS:
            break
        sides[max((0, 1), key=lambda k: (sides[k] > smallest[k], sides[k]))] //= 2
    blocks = count()
    if sides == [TILES[0]] * 2 and _takes_wide(target):
        sides[1] = WIDEST
        if prod(extents[1]) <= TILES[0] or count() // beside < BLOCKS:
            sides[1] = TILES[0]
    lines = tuple(n if any(x > 1 for x in n[:-1]) else () for n in cut())
    usual = [TILES[0], WIDEST if _takes_wide(target) else TILES[0]]
    # the usual one has a multiprocessor to itself in any case
    alone = _is_for_wide(q, target) and min(sides) >= TILES[1] and sides != usual and count() <= BLOCKS
    return Tiles(() if sides == usual and not any(lines) else tuple(sides), lines if any(lines) else (), blocks, alone)


@lru_cache(1024)
def split(extents: tuple[int, ...], side: int, least: int) -> tuple[int, ...]:
    """How many values of each index a `side` of a tile has, powers of 2, so that few tiles have all of them.

    Of ways that need about as few, `NEARLY`, the one with most of the last index, so that calls of many sizes share kernels.

    least   how many of the last one at least, if there are as many
    """
    ways = [n for n in _products(side, len(extents)) if n[-1] >= min(least, side, power_of_two(extents[-1]))
            and all(k <= power_of_two(e) for k, e in zip(n[:-1], extents, strict=False))]
    most = min(_tiles(extents, n) for n in ways) * NEARLY
    return max((n for n in ways if _tiles(extents, n) <= most), key=lambda n: n[::-1])


def _products(side: int, count: int) -> Iterator[tuple[int, ...]]:
    """All that `count` powers of 2 whose product is `side` may be; of more than `MOST`, the first ones are 1."""
    if count > MOST:
        yield from ((1, *n) for n in _products(side, count - 1))
    elif count == 1:
        yield (side,)
    else:
        for k in range(side.bit_length()):
            yield from ((1 << k, *n) for n in _products(side >> k, count - 1))


def _tiles(extents: Sequence[int], sides: Sequence[int]) -> int:
    return prod(-(-e // t) for e, t in zip(extents, sides, strict=True))


def _takes_wide(target: Target) -> bool:
    return any(target.arch in a.targets and a.b_map is None for a in ATOMS)


def _is_for_wide(q: Questions, target: Target) -> bool:
    """Whether units that read shared memory themselves multiply the operands of the one contraction."""
    return any(a.exact and a.b_map is None for x in q.strewn for a in atoms_for(target, *x.dtypes))


def _most_shares(x: Sum, sizes: Mapping[str, int]) -> int:
    """Into how many shares a reduction may be cut so that each is worth a block of threads; 1, if not even into four."""
    shares = evaluate(x.deep, sizes) // (SHARE if x.tiled or x.in_line else SHARE_OF_ROW)
    return shares if shares >= 4 else 1


def block_shares(what: tuple[Sum, ...], sizes: Mapping[str, int], tiles: Tiles) -> tuple[tuple[str, int], ...]:
    """The reductions to cut because they have too few results for the multiprocessors of a GPU; iterations of a share of each.

    A block has one of the `tiles` of the results of a product, 32 in a line of other sums, or a row that is summed up. What
    is added up at computed places has a thread for each element anyway. A block of few rows, or of one, waits for memory most of
    the time, so there are several for each multiprocessor; lines of results have as many threads as a block may have.
    """
    found = []
    for x in (x for x in what if not x.places):
        results = volume(x.results, sizes)
        if x.tiled:
            sides = [evaluate(e, sizes) for e in x.tiled]
            blocks = tiles.blocks or results // max(1, prod(sides)) * _tiles(sides, (TILES[0], TILES[0]))
            waits = min(tiles.sides or TILES[:1]) <= TILES[-1]
        else:
            blocks = -(-results // 32) if x.in_line else results
            waits = not x.in_line
        most = min(_most_shares(x, sizes), BLOCKS * (AT_ONCE if waits else 1) // max(1, blocks))
        if most > 1:
            found.append((x.target, power_of_two(-(-evaluate(x.deep, sizes) // most))))
    return tuple(found)
