"""Whether it pays to do reductions that need each other's results in one pass: memory traffic, by the sizes of a call.

As they stand in the text, each reads its row again. That costs next to nothing while the row is in L2, and one more stream from
beyond it where it is not; blocks (`cascade.py`) read it once, for as many powers as before and some work for each block. What
follows the reductions, as softmax's result does, takes its own powers then instead of reading them: an exponential an element,
which takes less time than to write one to memory and read it again.

Of a rolled chain, which is attention, what the first contraction makes and the second one takes is kept for a tile of rows, over
all elements, and is written and read twice. Blocks keep one block of it, and fetch, repair and write the second contraction's
result for each block. That pays where the tile has no room in this core's half of L3, beside the operands.

A search for the place of an extreme is so short that L3 hands over a row as fast as blocks of it begin and end: these pay where
all rows come from memory.

On a GPU a row is one block's of threads, and a few rows leave multiprocessors without work. Then blocks of a row are shares that
run at the same time, and whose results are joined: of attention with a single query, for one, with its many keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.ir.expr import Affine, evaluate, expr_names, loads, names, volume
from polyop.ir.op import Op
from polyop.ir.target import Target
from polyop.rewrite.folds import resolved
from polyop.rewrite.sums.dependent import Chain, Picks, Powers, Products, chains_of

FAR = 2 << 20  # bytes of an L2 so far that to read a row again takes longer than means of blocks do, which need no powers
TILE = 192  # rows that contractions which follow each other take at a time, see `poly/around.py`


@dataclass(frozen=True, slots=True)
class Rolled:
    """What a chain has whose elements are made for it and not read, as attention's are.

    kept     the sizes that its reductions keep and the first one does not, and those that its elements are sums over: channels
             of values, and of keys
    alone    the sizes that are its rows: with one of each it has none
    results  what its reductions write
    """

    kept: tuple[str, ...]
    alone: tuple[str, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """A chain of reductions.

    extent    the elements along it; bytes_: of one of them in all that is read
    rows      the extents of what its first reduction keeps
    search    whether it only looks for places
    products  whether it only adds up products of distances from the mean of what one argument has
    """

    extent: Affine
    bytes_: int
    rows: tuple[Affine, ...]
    search: bool = False
    products: bool = False
    rolled: Rolled | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """A chain of reductions whose blocks may be shares of their own.

    results  what its reductions write
    rows     the extents of its rows; `extent`: the elements of one
    bytes_   of what is read for an element, of each of the channels `beside`, whose extents they are
    """

    results: tuple[str, ...]
    rows: tuple[Affine, ...]
    extent: Affine
    bytes_: int
    beside: tuple[str, ...]


def find_both(op: Op) -> tuple[tuple[Pass, ...], tuple[Split, ...]]:
    """The chains of `op` that may be done in one pass, and those that may be cut into shares: of a single row."""
    chains = [(c, _pass(op, c)) for c in chains_of(op)]
    return tuple(p for _, p in chains if p), tuple(_split(op, c) for c, p in chains if not c.is_rolled or p is None)


def _split(op: Op, chain: Chain) -> Split:
    first, sizes = chain.firsts[0], set(op.sizes)
    rows = op.tensor(first.result).shape
    read = {x.source: x for f in chain.folds for x in loads(resolved(op, f.step.expr)) if f.over in expr_names(x)}
    beside = (*_channels(chain), *(n for x in read.values() for n in _depths(op, x.source))) if chain.is_rolled else ()
    bytes_ = max(x.dtype.bytes_ for x in read.values()) if beside else sum(x.dtype.bytes_ for x in read.values())
    beside = tuple(n for n in dict.fromkeys(beside) if n in sizes)
    return Split(tuple(f.result for f in chain.folds), rows, first.extent, bytes_, beside)


def find_passes(op: Op) -> tuple[Pass, ...]:
    """The chains of `op` that may be done in one pass."""
    return find_both(op)[0]


def one_pass_pays(passes: tuple[Pass, ...], sizes: Mapping[str, int], target: Target, threads: int = 1) -> bool:
    """Whether one of `passes` goes over more than its cache holds in a call of these sizes."""
    def pays(p: Pass) -> bool:
        row, rows = evaluate(p.extent, sizes) * p.bytes_, volume(p.rows, sizes)
        if p.search and row * rows <= target.l3 // 2:
            return False
        if p.products and target.l2 >= FAR and rows >= threads:
            return row > target.l2 // 32
        return row * TILE > target.l3 // 2 if p.rolled else row > target.l2

    return any(map(pays, passes))


def _pass(op: Op, chain: Chain) -> Pass | None:
    """None for a rolled chain that has no rows, as attention of a single query: what it hands over is a row then."""
    first = chain.firsts[0]
    rows = op.tensor(first.result).shape
    elements = {x.source: x for x in loads(resolved(op, first.step.expr)) if first.over in expr_names(x)}
    if chain.is_rolled:
        made = [x for x in elements.values() if any(s.reduce for s in op.steps_of(x.source))]
        others = [expr_names(x) for m in chain.members for x in loads(m.fold.step.expr) if m.fold.over in expr_names(x)]
        if not made or all(set(first.kept) <= x for x in others):
            return None
        kept = dict.fromkeys((*_channels(chain), *(n for x in made for n in _depths(op, x.source))))
        alone = [first.range(i).upper.name or "" for i in first.kept if any(i not in x for x in others)]
        rolled = Rolled(tuple(kept), tuple(alone) if all(alone) else (), tuple(f.result for f in chain.folds))
        return Pass(first.extent, max(x.dtype.bytes_ for x in made), rows, rolled=rolled)
    search = all(isinstance(m, Picks) for m in chain.members)
    given = len(elements) == 1 and all(op.tensor(n).role == "in" for n in elements)
    products = given and all(isinstance(m, Products) for m in chain.members)
    return Pass(first.extent, sum(x.dtype.bytes_ for x in elements.values()), rows, search, products)


def _depths(op: Op, tensor: str) -> tuple[str, ...]:
    """The sizes that are the extents of the sums in `tensor`."""
    found = [r.upper.name for s in op.steps_of(tensor) if s.reduce for r in s.ranges
             if not any(r.index in names(p) for p in s.target.index if isinstance(p, Affine)) and r.lower == Affine()]
    return tuple(n for n in found if n)


def _channels(chain: Chain) -> tuple[str, ...]:
    powers = [m for m in chain.members if isinstance(m, Powers)]
    found = [m.fold.range(i).upper.name for m in powers for i in m.fold.kept if i not in expr_names(m.shift)]
    return tuple(dict.fromkeys(n for n in found if n))
