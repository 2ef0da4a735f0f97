"""Edges of rows that the emitter writes vector by vector: each vector stands once, behind a test whether it has lanes.

    for v in [0, min(64, C - c)) (lanes 64) { S T }      is      if C - c > 0 { S T of lanes 0 to 15, under a mask
                                                                   if C - c > 16 { S T of lanes 16 to 31, .. } }

Lanes do not meet each other in memory, so this is one of the orders that lock step stands for, and no other nest. Otherwise an
edge is written for one, two, three and four vectors (`passes.split_full_tiles`): ten vectors, where these are four.
"""

from __future__ import annotations

from polyop.ir.expr import expr_names
from polyop.ir.loops import For, Kind, stores, walk
from polyop.ir.scalars import computes


def is_in_pieces(n: For, width: int) -> bool:
    """Whether the lanes `n` of which some are missing are written vector by vector, in a place without rows around.

    Not where lanes meet in one element: they are folded together. Nor where results may bypass the caches, vectors of a row
    together; nor where it is known how many lanes there are.
    """
    is_flat = n.kind == Kind.LANES and not any(isinstance(x, For) for x in walk(n.body)) and not n.upper.is_constant
    return (is_flat and (n.extent or 0) > width
            and all(n.index in expr_names(s.target) and not s.stream for s in stores(n.body)))


def is_in_turn(n: For, width: int) -> bool:
    """Whether full lanes `n` with functions are written vector by vector where registers are few.

    What a statement computes is then used by the next one while it is in a register, and does not wait for other vectors. Not
    where results may bypass the caches, as above.
    """
    found = tuple(stores(n.body))
    is_flat = n.kind == Kind.LANES and n.is_full and not any(isinstance(x, For) for x in walk(n.body))
    return (is_flat and (n.extent or 0) > width and len(found) > 1 and any(computes(s.expr) for s in found)
            and all(n.index in expr_names(s.target) and not s.stream for s in found))
