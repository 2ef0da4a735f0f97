"""How the lines of a block's temporaries lie in shared memory, so that lanes meet in few of its 32 banks of 4 bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from polyop.ir.atoms import Atom
from polyop.ir.expr import affine
from polyop.ir.loops import Buffer, Space, turned
from polyop.ir.target import Target
from polyop.poly import blocktile
from polyop.poly.fold import Tile

CROSSED = 64  # lanes of warps in which four lanes read 16 bytes each together with four that are further on
PADDED, PAD = 32, 16
"""Rows of so many elements get so many bytes more: those of 16 bytes each in eight rows lie in different banks then."""

_BANKS, _BANK = 32, 4  # and bytes of each


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
        if eights and made_by and _cycles(made_by, new, True) < _cycles(made_by, new, False):
            return replace(new, turned=True)
    return new


def _cycles(atom: Atom, b: Buffer, turn: bool) -> int:
    """How long the lanes of a warp write a tile of `atom`'s results to `b`, a register of each at a time."""
    row, bytes_ = b.dims[-1][0].const, b.dtype.bytes_
    most = 0
    for reg in range(atom.c_map.regs):
        for first in range(0, atom.warp, _BANKS * _BANK // bytes_):
            lanes = range(first, min(atom.warp, first + _BANKS * _BANK // bytes_))
            places = [(turned(y) if turn else y) * row + x for y, x in (atom.c_map.at(lane, reg) for lane in lanes)]
            words = {p * bytes_ // _BANK for p in places}
            most += max(Counter(w % _BANKS for w in words).values())
    return most
