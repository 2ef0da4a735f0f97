"""How the lines of a staged tile lie, so that the lanes that copy it, and those that read it, meet in few banks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from polyop.ir.atoms import Atom
from polyop.ir.banks import cycles, phases
from polyop.ir.expr import Affine, Load, affine, substitute
from polyop.ir.loops import Turn
from polyop.ir.loops import turned as lies_at
from polyop.poly.blocks.cuts import LANES, Cut
from polyop.poly.blocks.sides import along
from polyop.poly.blocks.staging import CHUNK, Staging, Tile
from polyop.poly.tiles import Coord


def turned(s: Staging, n: int, load: Load, t: Tile, mine: Cut) -> Turn:
    """Which lines of the tile of operand `n`, `load`, must change places so that lanes meet in fewest banks."""
    if not s.terms or not t.pad or t.inner != s.depth or t.shape[0] % LANES:
        return _of_lines(load, t)
    atom, bytes_, warp = s.terms, load.dtype.bytes_, s.plan.target.warp

    def taken(of: Turn) -> int:
        return _read_cycles(atom, n, t, bytes_, of) + write_cycles(mine, t, bytes_, warp, of)

    return min((Turn.NONE, Turn.FOURS, Turn.EIGHTS, Turn.PAIRS), key=taken)  # the first of several


def _of_lines(load: Load, t: Tile) -> Turn:
    """What must change places for lanes that copy 16 bytes each of several lines.

    Lines of 80 bytes, of which four lanes have 64, meet if they are neighbours, and four lines apart they do not; those of 96
    bytes, two lines apart.
    """
    line = t.shape[-1] * load.dtype.bytes_
    near = (t.shape[-1] - t.pad) * load.dtype.bytes_ // CHUNK  # lanes of one line
    if not t.pad or t.inner != t.fast or t.shape[0] % LANES or line % CHUNK or not 0 < near < LANES or LANES % near:
        return Turn.NONE

    def meet(at: Callable[[int], int]) -> bool:
        return len({(line // CHUNK * at(y) + e) % LANES for y in range(LANES // near) for e in range(near)}) < LANES

    ways = (of for of in (Turn.FOURS, Turn.EIGHTS) if not meet(partial(lies_at, of=of)))
    return next(ways, Turn.NONE) if meet(int) else Turn.NONE


def _read_cycles(atom: Atom, n: int, t: Tile, bytes_: int, of: Turn) -> int:
    """How long the lanes of a warp read 16 bytes along the sum of each line of operand `n`, which are turned so: for the
    unit an element of each register, and 16 bytes at once for the terms of each of its results.
    """
    of_unit, side = (atom.a_map, 0) if n == 0 else (atom.b_map, 1)
    if of_unit is None:
        return 0
    for_unit = [[of_unit.at(lane, r) for lane in range(atom.warp)] for r in range(of_unit.regs)]
    for_terms = [[atom.c_map.at(lane, r)[side] for lane in range(atom.warp)] for r in range(atom.c_map.regs)]

    def first(line: int, place: int = 0) -> int:
        return (lies_at(line, of) if of else line) * t.shape[-1] * bytes_ + place * bytes_

    each, both = phases(atom.warp, bytes_, False), phases(atom.warp, CHUNK, False)
    once = sum(cycles([first(x[side], x[1 - side]) for x in lanes], bytes_, each) for lanes in for_unit)
    times = max(1, CHUNK // bytes_ // atom.k)
    return once * times + sum(cycles([first(line) for line in lines], CHUNK, both) for lines in for_terms)


def write_cycles(c: Cut, t: Tile, bytes_: int, warp: int, of: Turn = Turn.NONE) -> int:
    """How long the lanes of a warp write the first elements that they copy, to a tile that is not swizzled.

    Each writes those that lie beside each other in the tile at once. Its lines are turned so.
    """
    first, last = [], c.inside[t.inner][-1]
    wide = bytes_ * (last.cap or 1) if last.step == 1 and last not in c.loops else bytes_
    for lane in range(warp):
        at, left = dict.fromkeys((x.name for i in c.inside.values() for x in i), affine(0)), lane
        for x in reversed(c.loops):
            count = (x.cap or 1) // x.step
            at[x.name], left = affine(left % count * x.step), left // count
        line, *beside = (substitute(p, at).const for p in places(t, c.inside))
        first.append(((lies_at(line, of) if of else line) * t.shape[-1] + sum(beside)) * bytes_)
    return cycles(first, wide, phases(warp, wide, True))


def places(t: Tile, coords: Mapping[str, tuple[Coord, ...]]) -> tuple[Affine, ...]:
    """Where in a slot the iterators have such values."""
    values = {i: sum((affine(c.name) for c in coords[i]), Affine()) for i in t.sizes}
    return tuple(along(side, values) for side in t.order)
