"""LoopNest -> LoopNest for kernels with matrix units: what registers hold meanwhile, pass by pass, each of which may be left out.

    begun     registers begin with what the first update, or turn, makes of them
    mended    atoms that a condition cuts are the unit's too
    inplace   a sum that is added to a register is added up in that register
    emptied   what some elements of a tile lack is asked once
    scaled    the greatest of what one number scales is the greatest, scaled

Each is followed by the checker, which knows none of them (`poly/verify/keeps.py`): what it does not follow is not printed.
"""

from __future__ import annotations

from collections.abc import Container

from polyop.codegen.gpu.begun import begun
from polyop.codegen.gpu.emptied import emptied
from polyop.codegen.gpu.held import Tiles
from polyop.codegen.gpu.inplace import inplace
from polyop.codegen.gpu.mended import mended
from polyop.codegen.gpu.scaled import scaled
from polyop.codegen.stepped import Follow, Step, stepped
from polyop.ir.loops import LoopNest


def refined(nest: LoopNest, proved: LoopNest, tiles: Tiles, without: Container[str] = ()) -> tuple[LoopNest, tuple[Step, ...]]:
    """`nest` behind all passes but those left out, and what each of them changed; `proved`: before registers lost dimensions."""
    products, results = tiles.products, {result for result, _, _ in tiles.products.values()}
    return stepped(nest, without, (
        ("begun", Follow.VALUES, begun),
        ("mended", Follow.VALUES, lambda n: mended(n, proved, products)),
        ("inplace", Follow.VALUES, lambda n: inplace(n, products, tiles.rows)),
        ("emptied", Follow.VALUES, emptied),
        ("scaled", Follow.VALUES, lambda n: scaled(n, results)),
    ))
