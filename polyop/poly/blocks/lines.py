"""How the lines of a block's temporaries lie in shared memory, so that lanes meet in few of its 32 banks of 4 bytes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from operator import add

from polyop.ir.atoms import Atom
from polyop.ir.banks import CROSSED, Digit, cycles, number, phases, places
from polyop.ir.expr import Load, affine, loads
from polyop.ir.loops import Buffer, For, Kind, LoopNest, Space, Turn, placed
from polyop.ir.target import Target
from polyop.poly.blocks import blocktile
from polyop.poly.schedule.fold import Tile

PADDED, PAD = 32, 16
"""Rows of so many elements get so many bytes more: those of 16 bytes each in eight rows lie in different banks then."""

_AT_ONCE = 16  # bytes


def in_block(b: Buffer, kept: Mapping[int, int | Tile], by_unit: bool, made_by: Atom | None, target: Target) -> Buffer:
    """`b`, of which so much is kept, in shared memory: of a tile all of it, also where a tensor has fewer rows.

    Of a dimension of which there is one nothing is left. Rows are longer than they must be, so that neighbours in a column lie in
    different banks; whole lines are swizzled of what a matrix unit may read (`by_unit`), and where warps have 64 lanes: those
    that read together there are no eight neighbours (runtime/emulator/pop_emu_banks.h). Eight rows of what a unit's lanes write
    change places where these meet less so.
    """
    left = [(d, dim) for d, dim in enumerate(b.dims) if kept.get(d) != 1]
    dims = tuple((affine(k.step), 1) if isinstance(k := kept.get(d), Tile) else dim for d, dim in left)
    new = replace(b, dims=dims, space=Space.SHARED, private=False)
    lines = len(dims) > 1 and dims[-1][0].const * b.dtype.bytes_ % blocktile.SWIZZLE == 0 and dims[-2][0].const % 8 == 0
    if lines and (by_unit or target.warp == CROSSED):
        return replace(new, swizzle=blocktile.SWIZZLE, folded=not by_unit)
    if len(dims) > 1 and dims[-1][0].const >= PADDED:
        new = replace(new, dims=(*dims[:-1], (dims[-1][0] + PAD // b.dtype.bytes_, 1)))
        eights = dims[-2][0].is_constant and dims[-2][0].const % 8 == 0
        if eights and made_by and _cycles(made_by, new, Turn.EIGHTS) < _cycles(made_by, new, Turn.NONE):
            return replace(new, turned=Turn.EIGHTS)
    return new


def _cycles(atom: Atom, b: Buffer, turn: Turn) -> int:
    """How long the lanes of a warp write a tile of `atom`'s results to `b`, a register of each at a time."""
    new = replace(b, turned=turn, dims=b.dims[-2:])
    return sum(cycles([number(new, atom.c_map.at(lane, reg)) * b.dtype.bytes_ for lane in range(atom.warp)], b.dtype.bytes_,
                      phases(atom.warp, b.dtype.bytes_, True)) for reg in range(atom.c_map.regs))


def settled(nest: LoopNest, inside: Container[str], warp: int) -> LoopNest:
    """`nest`, whose temporaries `inside` a block lie so that lanes meet least: those that are swizzled by two digits with these
    doubled or not, others with eight lines in other places or not.

    What counts is what the lanes of a warp move at once: neighbours along loops over rows.
    """
    ways = {b.name: w for b in nest.buffers if b.name in inside and (w := _ways(b))}
    taken = {name: [0] * len(w) for name, w in ways.items()}
    for s, loops in placed(nest.body, Kind.THREADS, Kind.ROWS) if ways else ():
        rows = loops[-1] if loops and loops[-1].kind == Kind.ROWS else None
        for x in (s.target, *loads(s.expr)) if rows else ():
            if rows is None or x.source not in ways or (rows.extent or 1) * ways[x.source][0].dtype.bytes_ % _AT_ONCE:
                continue
            each = (_taken(x, y, loops, warp, x is s.target) for y in ways[x.source])
            taken[x.source] = list(map(add, taken[x.source], each))
    best = {name: w[min(range(len(w)), key=taken[name].__getitem__)] for name, w in ways.items()}
    return replace(nest, buffers=tuple(best.get(b.name, b) for b in nest.buffers))


def _ways(b: Buffer) -> tuple[Buffer, ...]:
    """How `b` may lie, as it does first."""
    if b.folded:
        return b, replace(b, doubled=True)
    has_eights = not b.swizzle and not b.turned and len(b.dims) > 1 and b.dims[-2][0].is_constant and not b.dims[-2][0].const % 8
    return (b, *(replace(b, turned=t) for t in (Turn.FOURS, Turn.EIGHTS))) if has_eights and b.space == Space.SHARED else ()


def _taken(x: Load, b: Buffer, loops: Sequence[For], warp: int, write: bool) -> int:
    """Cycles of an access whose lanes are in the turns of `loops` that each thread has; those around are in their first one."""
    digits = tuple(Digit(f.index, f.weight, f.extent or 1, f.step) for f in loops if f.kind == Kind.THREADS)
    found = places(x, b, digits, warp)
    return cycles([first for first, in found], _AT_ONCE, phases(warp, _AT_ONCE, write)) if found else 0
