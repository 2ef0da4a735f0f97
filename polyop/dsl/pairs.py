"""The order in which the operands of an `einsum` are contracted, two at a time.

Up to `_EXACT` operands the order is the best there is, found over all ways to split each subset in two; for more, the pair
that takes most out of memory goes first. Costs are products, counted with the extents of the call: an order is part of the
operator, so a call with other proportions may get another one.

Source: Smith and Gray, "opt_einsum - A Python package for optimizing contraction order", 2018, for both searches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations
from math import prod

_EXACT = 7


def order(labels: Sequence[frozenset[str]], result: frozenset[str], extents: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    """The pairs to contract. Operands are numbers; the pair at position p of the answer makes operand `len(labels) + p`."""
    return _best(labels, result, extents) if len(labels) <= _EXACT else _greedy(labels, result, extents)


def _size(labels: frozenset[str], extents: Mapping[str, int]) -> int:
    return prod(max(1, extents[x]) for x in labels)


def _best(labels: Sequence[frozenset[str]], result: frozenset[str], extents: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    every = (1 << len(labels)) - 1

    def of(subset: int) -> frozenset[str]:
        return frozenset[str]().union(*(x for n, x in enumerate(labels) if subset >> n & 1))

    @cache
    def kept(subset: int) -> frozenset[str]:
        return of(subset) & (result | of(every & ~subset))

    @cache
    def cheapest(subset: int) -> tuple[int, int, int]:
        """(products, elements of temporaries, one half of the last pair; 0 for a single operand)"""
        if subset & subset - 1 == 0:
            return 0, 0, 0
        options = []
        half = subset - 1 & subset
        while half:
            other = subset & ~half
            if half > other:  # each split once
                a, b = cheapest(half), cheapest(other)
                left, right = (of(s) if s & s - 1 == 0 else kept(s) for s in (half, other))
                options.append((a[0] + b[0] + _size(left | right, extents), a[1] + b[1] + _size(kept(subset), extents), half))
            half = half - 1 & subset
        return min(options)

    pairs: list[tuple[int, int]] = []

    def walk(subset: int) -> int:
        half = cheapest(subset)[2]
        if not half:
            return subset.bit_length() - 1
        a, b = walk(half), walk(subset & ~half)
        pairs.append((min(a, b), max(a, b)))
        return len(labels) + len(pairs) - 1

    if len(labels) > 1:
        walk(every)
    return tuple(pairs)


def _greedy(labels: Sequence[frozenset[str]], result: frozenset[str],
            extents: Mapping[str, int]) -> tuple[tuple[int, int], ...]:
    alive = dict(enumerate(labels))
    pairs: list[tuple[int, int]] = []

    def kept(a: int, b: int) -> frozenset[str]:
        return (alive[a] | alive[b]) & result.union(*(x for n, x in alive.items() if n not in (a, b)))

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        a, b = (alive[n] for n in pair)
        return _size(kept(*pair), extents) - _size(a, extents) - _size(b, extents), _size(a | b, extents)

    while len(alive) > 1:
        a, b = min(combinations(alive, 2), key=cost)
        made = kept(a, b)
        del alive[a], alive[b]
        pairs.append((a, b))
        alive[len(labels) + len(pairs) - 1] = made
    return tuple(pairs)
