"""Whether the rows of a tile lie apart, so that each has a pointer of its own, be all of them there or not.

    acc[p, v] += A[m + p, k] * B[k, v]      rows of A are a stride apart that is known when it runs: six pointers
    acc[p, v] += A[k, m + p] * B[k, v]      the distance is 1, or another number: one pointer and constants, if no row is missing

Where rows may be missing, the last one that is there is read in their place, which takes a pointer for each. So a tile that is
written for any number of rows costs nothing more in the first case, and up to an eighth in the second.

    acc[p, v] += X[m + p + r, v] * F[r]     r of 0 .. 2: the rows share what they read, which is then known by its offset alone

If rows may be missing, each reads for itself: a depthwise convolution of 7 x 7 took 1.7 times as long so.
"""

from __future__ import annotations

from polyop.ir.expr import Affine, Load, loads, names
from polyop.ir.loops import LOCKSTEP, Buffer, For, Kind, LoopNest, Space, stores, walk
from polyop.ir.registers import WINDOW


def rows_lie_apart(nest: LoopNest, n: For) -> bool:
    """Whether serial loops inside the tile `n` read nothing that has rows side by side in memory, or that rows share."""
    inside = [f for f in (n, *walk(n.body)) if isinstance(f, For)]
    rows = {f.index for f in inside if f.kind == Kind.ROWS}
    serial = [f for f in inside if f.kind not in LOCKSTEP]
    read = {x for f in serial for s in stores(f.body) for x in loads(s.expr)}
    lanes = {f.index for f in inside if f.kind == Kind.LANES}
    windows = {f.index for f in serial if f.lower.is_constant and f.upper.is_constant and f.upper.const - f.lower.const <= WINDOW}
    return bool(serial) and not any(_side_by_side(nest.buffer(x.source), d, p, rows) or _is_shared(x, p, rows, windows, lanes)
                                    for x in read for d, p in enumerate(x.index))


def _side_by_side(b: Buffer, d: int, position: object, rows: set[str]) -> bool:
    """Whether the distance of neighbours along the dimension `d` of `b` is a number, and `position` has a row there."""
    near = d == b.unit if b.space == Space.TENSOR else all(e.is_constant for e, _ in b.dims[d + 1:])
    return b.space != Space.REG and near and isinstance(position, Affine) and bool(names(position) & rows)


def _is_shared(x: Load, position: object, rows: set[str], windows: set[str], lanes: set[str]) -> bool:
    """Whether `position` of the vectors `x` adds up a row and a window that is written out: see `llvm/windows.py`."""
    found = names(position) if isinstance(position, Affine) else frozenset[str]()
    return bool(found & rows and found & windows) and any(isinstance(p, Affine) and names(p) & lanes for p in x.index)
