"""What the turns of a loop ask anew, where answers would take a thread's scalars.

    for j_b { pop_anew(i_o, S);  .. if (S > i_o + i_p) ..  .. if (S > i_o + i_x + 32) .. }

What such questions ask does not change from turn to turn, so compilers ask all of them before the loop. Where an answer has a bit
for each lane and lies in scalar registers (`Target.answers`), these are too few for attention's: 130 answers lay in lanes of
vector registers, where reading one takes longer than asking again. If a block's coordinates, and the sizes that they are compared
with, may be others at the beginning of each turn, nobody asks about them ahead of it.

So it is with addresses, which have vector registers: where a thread has no others to move them to (`Target.spare`), its number is
taken for a new one as well.

Loops whose turns fill tiles and use them once are left alone: they ask little, and run most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polyop.ir.expr import Affine, names
from polyop.ir.loops import Barrier, For, If, Kind, Node, walk

_ONCE = 2  # barriers of a turn in which tiles are filled and used


def anew(n: For, block: frozenset[str]) -> tuple[str, ...]:
    """The coordinates and sizes, of those that a `block` has, about which each turn of `n` asks; none, if it keeps answers."""
    if n.kind != Kind.SERIAL or not _has_phases(n):
        return ()
    asked = {x for a in _asked(n.body) for x in names(a)}
    return tuple(sorted(asked & block))


def all_anew(body: Iterable[Node], block: frozenset[str]) -> frozenset[str]:
    """Those about which the turns of some loop ask."""
    return frozenset(x for n in walk(tuple(body)) if isinstance(n, For) for x in anew(n, block))


def _has_phases(n: For) -> bool:
    """Whether a turn is more than tiles that are filled and used once."""
    fills = any(isinstance(x, For) and x.kind == Kind.SERIAL and _barriers(x.body) for x in walk(n.body))
    return fills or _barriers(n.body) > _ONCE


def _barriers(body: tuple[Node, ...]) -> int:
    return sum(isinstance(x, Barrier) for x in walk(body))


def _asked(body: tuple[Node, ...]) -> Iterator[Affine]:
    for x in walk(body):
        if isinstance(x, For):
            yield x.upper
        elif isinstance(x, If):
            yield from x.tests
