"""That floats are added up term by term in the order of the text: what `numerics="strict"` says.

(a + b) + c is not a + (b + c) of floats. So a partial sum may be handed on (`reductions.py`), but not added to another one. Then
each element has one start, to which all of its terms are added one after the other; and they come in order if of no two of

    { S[i] -> S'[j] : both add to one element; S stands before S', or they are one statement and i << j }

the second may run first. Parallel loops, and those over threads or lanes, have no order; rows come to one statement one after the
other, but go through loops around it together. Which element a computed position names is not known: it may be any. What is
greatest or least is the same in any order, and so are sums of whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import islpy as isl

from polyop.ir.loops import LOCKSTEP, Kind
from polyop.poly.scop import Stmt
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.flow import shared_loops
from polyop.poly.verify.frame import IN, OUT
from polyop.poly.verify.sites import Site

ANY_ORDER = frozenset({"max", "min"})


@dataclass(frozen=True, eq=False)
class Disorder:
    """pairs { S[i] -> S'[j] }: the text adds the first before the second, and the nest may not."""

    first: Stmt
    second: Stmt
    pairs: isl.Map


def folded(a: Accesses) -> Site | None:
    """The first site that adds a partial sum to another one."""
    return next((s for s in _sums(a) if s.store.origin is None), None)


def disorder(a: Accesses) -> Disorder | None:
    """The first two terms of a sum that may be added in another order than the text's."""
    own = [s for s in _sums(a) if s.store.origin is not None]
    for first in own:
        for second in own:
            one, two = a.stmt(first), a.stmt(second)
            if one.target.source != two.target.source or one.step > two.step:
                continue
            ways = [s.frame.function(t.name, [s.at(x) for x in s.store.lift]).intersect_domain(s.domain)
                    for s, t in ((first, one), (second, two))]
            pairs = ways[0].apply_range(_before(one, two)).apply_range(ways[1].reverse())
            for bad in _unordered(first, second, pairs):
                if not bad.is_empty():
                    return Disorder(one, two, bad.apply_domain(ways[0]).apply_range(ways[1]))
    return None


def _sums(a: Accesses) -> Iterator[Site]:
    """The sites whose order matters."""
    return (s for s in a.sites
            if s.store.reduce is not None and s.store.target.dtype.is_float and s.store.reduce.fn not in ANY_ORDER)


def _before(one: Stmt, two: Stmt) -> isl.Map:
    """{ S[i] -> S'[j] }: what adds to one element, in the order of the text."""
    both = one.access(one.target).apply_range(two.access(two.target).reverse())
    return both.intersect(isl.Map.lex_lt(one.domain.get_space())) if one is two else both


def _unordered(first: Site, second: Site, pairs: isl.Map) -> Iterator[isl.Map]:
    """The parts of `pairs` in which the second may run before the first: outermost first, the loops around both decide."""
    for i in range(shared_loops(first, second)):
        kind, *inside = (x.loop.kind for x in first.around[i:])
        alone = first is second and all(k in LOCKSTEP for k in inside)
        one_by_one = kind == Kind.SERIAL or (kind == Kind.ROWS and alone)
        yield pairs.order_gt(IN, i, OUT, i)
        if not one_by_one:
            yield pairs.order_lt(IN, i, OUT, i)
        pairs = pairs.equate(IN, i, OUT, i)
    if first.number >= second.number:
        yield pairs
