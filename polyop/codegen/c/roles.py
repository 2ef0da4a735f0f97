"""Warps that copy beside warps that multiply, as C text, in blocks that stay for several tiles of results.

Where all barriers of a kernel are handed ones (ir/loops.py), an engine can do all its copies, and a multiprocessor has room
for one block, a group of four warps more than the nest has threads is there for the copies alone. The nest is printed twice:
with its copies, and with all else. Loops and tests around barriers are in both, so that both come to the same barriers, in the
same order:

    if (pop_n >= 256) { for points { k_f ( barrier  first )  k_c ( barrier  next ) }  return; }        the producer
                        for points { k_f ( barrier )  k_c ( barrier  update )  release  finish }       the consumers

At a barrier the producer closes a group of copies and waits until the consumers have come, and these wait for the copies of
`pending` groups before. They have come as soon as nothing of a block's text touches shared memory any more: so the tiles of the
next results are on their way while these are stored. That no more than this is needed is what the proof of handed barriers
says. The consumers take registers that the producer gives back.

Source: NVIDIA, "Efficient GEMM in CUDA" (CUTLASS), on warp specialisation; PTX ISA, mbarrier and setmaxnreg
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.codegen.c.scope import Box
from polyop.codegen.gpu.split import Part, used
from polyop.ir.loops import Barrier, Buffer, For, If, Node, Space, rebuild, stores, walk
from polyop.ir.target import Target

COPYING = 128
"""Threads of the producer: what gives back registers is a group of four warps."""

FEW = 32
"""Registers of a thread that copies."""

_MOST, _GRAIN = 240, 8  # registers of a thread; what all their numbers are multiples of
_OTHERS = 32            # of a thread that computes, beside its results


@dataclass(frozen=True, slots=True)
class Roles:
    """How a kernel is shared between warps.

    consumers  threads that compute
    registers  of each of them
    """

    consumers: int
    registers: int

    @property
    def threads(self) -> int:
        return self.consumers + COPYING


def of(k: Part, consumers: int, boxes: Mapping[str, Box], shared: int, results: int, target: Target) -> Roles | None:
    """The roles in a kernel of `consumers` threads; None if it has no such roles.

    Units   shared: bytes of a block's memory; results: registers of a thread for them
    """
    assert target.multi
    barriers = [n for n in walk(k.body) if isinstance(n, Barrier)]
    later = [s for s in stores(k.body) if s.later]
    if not barriers or not all(n.handed for n in barriers) or not later or not all(s.stmt in boxes for s in later):
        return None
    if not k.axes or not k.axes[-1].loop.persistent or consumers % COPYING:
        return None
    if shared <= target.multi.room(2):
        return None  # of two blocks, one multiplies while the other waits
    threads = consumers + COPYING
    each = target.multi.parts * target.multi.registers * target.warp // threads // _GRAIN * _GRAIN
    if each < results + _OTHERS:
        return None  # the compiler asks for as many from the start
    return Roles(consumers, min(_MOST, (each * threads - COPYING * FEW) // consumers // _GRAIN * _GRAIN))


def producer(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """The copies of a body, with barriers and what stands around both."""
    return _only(body, copies=True)


def consumer(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """All else, with the same barriers."""
    return _only(body, copies=False)


def released(body: tuple[Node, ...], buffers: Mapping[str, Buffer]) -> int:
    """From where on a body neither has barriers nor touches shared memory."""
    def shares(n: Node) -> bool:
        return any(isinstance(x, Barrier) for x in walk((n,))) or any(buffers[b].space == Space.SHARED for b in used((n,)))
    return max((i + 1 for i, n in enumerate(body) if shares(n)), default=0)


def _only(body: tuple[Node, ...], copies: bool) -> tuple[Node, ...]:
    out: list[Node] = []
    for n in body:
        if isinstance(n, Barrier):
            out.append(n)
        elif any(isinstance(x, Barrier) for x in walk((n,))):
            out.append(rebuild(n, lambda inner: _only(inner, copies)))
        else:
            out += _part(n, copies)
    return tuple(out)


def _part(n: Node, copies: bool) -> tuple[Node, ...]:
    """What of a node without barriers is a copy, or is none."""
    mine = [s.later for s in stores((n,))]
    if all(mine) or not any(mine):
        return (n,) if any(mine) == copies else ()
    assert isinstance(n, For | If)
    return (rebuild(n, lambda inner: tuple(x for y in inner for x in _part(y, copies))),)
