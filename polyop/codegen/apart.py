"""Whether the rows of a tile lie apart, so that each has a pointer of its own, be all of them there or not.

    acc[p, v] += A[m + p, k] * B[k, v]      rows of A are a stride apart that is known when it runs: six pointers
    acc[p, v] += A[k, m + p] * B[k, v]      the distance is 1: one pointer and constants, as long as no row is missing

Where rows may be missing, the last one that is there is read in their place, which takes a pointer for each. So a tile that is
written for any number of rows costs nothing more in the first case, and up to an eighth in the second.
"""

from __future__ import annotations

from polyop.ir.expr import Affine, loads, names
from polyop.ir.loops import LOCKSTEP, Buffer, For, Kind, LoopNest, Space, stores, walk


def rows_lie_apart(nest: LoopNest, n: For) -> bool:
    """Whether nothing that serial loops inside the tile `n` read has rows side by side in memory; there is such a loop."""
    inside = [f for f in (n, *walk(n.body)) if isinstance(f, For)]
    rows = {f.index for f in inside if f.kind == Kind.ROWS}
    serial = [f for f in inside if f.kind not in LOCKSTEP]
    read = {x for f in serial for s in stores(f.body) for x in loads(s.expr)}
    return bool(serial) and not any(_side_by_side(nest.buffer(x.source), d, p, rows)
                                    for x in read for d, p in enumerate(x.index))


def _side_by_side(b: Buffer, d: int, position: object, rows: set[str]) -> bool:
    unit = b.unit if b.space == Space.TENSOR else len(b.dims) - 1
    return b.space != Space.REG and d == unit and isinstance(position, Affine) and bool(names(position) & rows)
