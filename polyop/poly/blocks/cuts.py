"""How the threads of a block share the copy of a tile: which elements each of them moves, in which order.

Neighbours in the tensor are a thread's own, 16 bytes of them, and threads beside each other go on where it ends. Where they are
neighbours in the copy too, they are written as they were read. Where the copy lies the other way and goes through registers,
a thread has a square: it reads rows of it, and writes columns.

    read    fast: y x v     slow: z x u        for z, u { for v { register[u, v] = tensor[slow, fast] } }
    write                                      for z, v { for u { tile[fast, slow] = register[u, v] } }

The lanes that write together (128 bytes of them) are eight along the fast way, and as many along the slow one as fill 16 bytes:
in a tile whose lines are swizzled by both digits of their number no two of them meet in a bank. A tile with room for fewer along
the fast way has lanes further along its lines instead (`_strewn`), at such a distance that the swizzle takes them elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod

from polyop.poly.tiles import Coord

LANES = 8  # of 16 bytes each: what shared memory takes at once
PLACE = 16  # bytes of such a lane
LEAST = 8  # bytes of a column of a square
WORD = 4  # bytes of the least copy that goes on by itself


@dataclass(frozen=True, slots=True)
class Cut:
    """inside: iterator -> its coordinates in the tile; loops: over threads, the fastest one last; rows: of a thread, as it reads;
    late: the same, as it writes.
    """

    inside: dict[str, tuple[Coord, ...]]
    loops: tuple[Coord, ...]
    rows: tuple[Coord, ...]
    late: tuple[Coord, ...]


def cut(own: Mapping[str, str], n: int, tile: Mapping[str, int], ways: tuple[str, ...], beside: int, threads: int,
        near: int = 0) -> Cut:
    """Copy number `n` of a tile, whose iterators are named by `own`.

    tile    the extents; ways: the iterator that is fast, of which a thread has `beside` neighbours, and the slow ones
    near    threads that go along the fast one, at most; 0: as many as there are
    """
    inside: dict[str, tuple[Coord, ...]] = {}
    loops: list[Coord] = []
    rows: list[Coord] = []
    left = threads
    for i in ways:
        q, size = own[i], tile[i]
        each = gcd(size, beside) if i == ways[0] else 1
        here = gcd(size // each, left, near if i == ways[0] else 0)  # each goes on as often as the others
        left //= here
        x = Coord(f"{q}_x{n}", each, here * each)
        z = (Coord(f"{q}_z{n}", here * each, size),) if size > here * each else ()
        v = (Coord(f"{q}_v{n}", 1, each),) if each > 1 else ()
        inside[i] = (*z, x, *v)
        loops.insert(0, x)
        rows = [*z, *rows, *v]
    return Cut(inside, tuple(loops), tuple(rows), tuple(rows))


def squares(own: Mapping[str, str], n: int, tile: Mapping[str, int], ways: tuple[str, str], bytes_: int, beside: int,
            threads: int, near: int = 0) -> Cut:
    """The same by squares, as high as a thread's share of the tile allows, but at least so that 8 bytes are written at once.

    ways    the iterators that are fast in the tensor and in the copy; the others go outside
    bytes_  of an element
    near    lanes beside each other that go along the fast one, of a tile that is not swizzled; 0: as many as write together
    """
    fast, slow = ways
    q, p = own[fast], own[slow]
    across = gcd(tile[fast], beside)
    share = prod(tile.values()) // threads // across
    high = gcd(tile[slow], max(min(share, beside), LEAST // bytes_, 1))
    here = gcd(tile[fast] // across, threads)
    apart, down = 0 if near else _apart(across, gcd(here, LANES)), gcd(tile[slow] // high, threads // here)
    near = gcd(here, near or LANES)
    v, x = Coord(f"{q}_v{n}", 1, across), Coord(f"{q}_x{n}", across, near * across)
    u = Coord(f"{p}_u{n}", 1, high)
    steps = _strewn(f"{p}_x{n}", high, down * high, PLACE // bytes_, apart)
    far = _rest(Coord(f"{q}_y{n}", near * across, here * across))
    right, below = _rest(Coord(f"{q}_z{n}", here * across, tile[fast])), _rest(Coord(f"{p}_z{n}", down * high, tile[slow]))
    inside = {fast: (*right, *far, x, v), slow: (*below, *sorted(steps, key=lambda c: -c.step), u)}
    loops: tuple[Coord, ...] = (*far, *steps, x)
    left = threads // here // down
    for i in reversed([i for i in tile if i not in ways]):
        each, left = gcd(tile[i], left), left // gcd(tile[i], left)
        mine, outside = Coord(f"{own[i]}_x{n}", 1, each), _rest(Coord(f"{own[i]}_z{n}", each, tile[i]))
        inside[i], loops, right = (*outside, mine), (mine, *loops), (*outside, *right)
    return Cut(inside, loops, (*right, *below, u, v), (*right, *below, v, u))


def lines(own: Mapping[str, str], n: int, tile: Mapping[str, int], ways: tuple[str, str], bytes_: int, threads: int) -> Cut:
    """The same by squares of a tile whose lines are longer than they must be: a word is read of each of several lines, and
    columns of 16 bytes are written, or of less, so that each thread has some, if there are so many words.

    As many lanes go along a line of the copy as it has room for, and the next ones read what is beside that in the tensor, a word
    further: so those that write together meet in no bank where lines have 64 bytes and 16 more, or 128 and more.

    ways    the iterators that are fast in the tensor and in the copy, which are all there are
    """
    fast, slow = ways
    q, p = own[fast], own[slow]
    across = gcd(tile[fast], WORD // bytes_)
    for places in (PLACE, LEAST, WORD):
        high = gcd(tile[slow], places // bytes_)
        down = gcd(tile[slow] // high, threads)
        here = gcd(tile[fast] // across, threads // down)
        if here * down == threads:
            break
    v, x = Coord(f"{q}_v{n}", 1, across), Coord(f"{q}_x{n}", across, here * across)
    u, y = Coord(f"{p}_u{n}", 1, high), Coord(f"{p}_x{n}", high, down * high)
    right, below = _rest(Coord(f"{q}_z{n}", here * across, tile[fast])), _rest(Coord(f"{p}_z{n}", down * high, tile[slow]))
    return Cut({fast: (*right, x, v), slow: (*below, y, u)}, (x, y), (*right, *below, u, v), (*right, *below, v, u))


def _apart(across: int, near: int) -> int:
    """How many places along a line are between lanes, so that with `near` lanes, each `across` lines further, they fill one.

    Lane x writes to place e xor (y mod 8) xor floor(y / 8), with y = across x, where it means place e; 0 if no distance does.
    """
    taken = {(across * x % LANES) ^ (across * x // LANES % LANES) for x in range(near)}
    return next((d for d in (1, 2, 4) if len({p ^ d * k % LANES for p in taken for k in range(LANES // near)}) == LANES), 0) \
        if near < LANES else 0


def _strewn(name: str, high: int, end: int, place: int, apart: int) -> tuple[Coord, ...]:
    """Steps of `high` to `end` by threads, the fastest ones last: those in a place first, then those `apart` places further.

    place  elements of one
    """
    line = LANES * place
    if not apart or end % line or place % high:
        return (Coord(name, high, end),)
    near, far = Coord(name, high, place), Coord(f"{name}s", apart * place, line)
    return tuple(x for c in (Coord(f"{name}l", line, end), Coord(f"{name}m", place, apart * place), far, near) for x in _rest(c))


def _rest(c: Coord) -> tuple[Coord, ...]:
    return (c,) if (c.cap or 0) > c.step else ()
