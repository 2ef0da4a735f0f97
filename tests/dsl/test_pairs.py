"""The order of contraction, against every order there is."""

from __future__ import annotations

import itertools
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.dsl.pairs import order

LABELS = "abcdef"
terms = st.lists(st.frozensets(st.sampled_from(LABELS), min_size=1, max_size=4), min_size=1, max_size=4)
sizes = st.fixed_dictionaries({x: st.integers(1, 9) for x in LABELS})


def every_order(alive, result, extents):
    """The least products over all sequences of pairs."""
    if len(alive) == 1:
        return 0
    best = None
    for i in range(len(alive)):
        for j in range(i):
            rest = [x for n, x in enumerate(alive) if n not in (i, j)]
            made = (alive[i] | alive[j]) & result.union(*rest)
            cost = prod(extents[x] for x in alive[i] | alive[j]) + every_order([*rest, made], result, extents)
            best = cost if best is None else min(best, cost)
    return best


def numbered(pairs, count):
    """The pairs again, checked: each operand and each product is used once, after it exists."""
    alive = set(range(count))
    for n, (a, b) in enumerate(pairs):
        assert {a, b} <= alive
        alive = alive - {a, b} | {count + n}
    assert len(alive) == 1


@settings(deadline=None, max_examples=150)
@given(terms, sizes, st.frozensets(st.sampled_from(LABELS)))
def test_no_other_order_of_a_few_operands_takes_fewer_products(labels, extents, result):
    result &= frozenset().union(*labels)
    pairs = order(labels, result, extents)
    numbered(pairs, len(labels))
    total, alive = 0, dict(enumerate(labels))
    for n, (a, b) in enumerate(pairs):
        both = alive.pop(a) | alive.pop(b)
        total += prod(extents[x] for x in both)
        alive[len(labels) + n] = both & result.union(*alive.values())
    assert total == every_order(labels, result, extents)


def test_an_outer_product_is_not_made_because_it_is_the_cheapest_first_step():
    labels = [frozenset("ijk"), frozenset("jl"), frozenset("km")]
    pairs = order(labels, frozenset("ilm"), dict(i=32, j=40, k=48, l=24, m=24))
    assert (1, 2) not in pairs


@pytest.mark.parametrize("count", [7, 8, 12])
def test_a_long_chain_is_right_whichever_search_orders_it(count):
    rng = np.random.default_rng(count)
    letters = "abcdefghijklm"[: count + 1]
    equation = ",".join(a + b for a, b in itertools.pairwise(letters)) + f"->{letters[0]}{letters[-1]}"
    extents = rng.integers(1, 7, count + 1)
    operands = [rng.standard_normal((a, b)) for a, b in itertools.pairwise(extents)]
    want = operands[0]
    for x in operands[1:]:
        want = want @ x
    numbered(order([frozenset(t) for t in equation.split("->")[0].split(",")], frozenset(letters[0] + letters[-1]),
                   dict(zip(letters, map(int, extents), strict=True))), count)
    np.testing.assert_allclose(polyop.einsum(equation, *operands), want, rtol=1e-10, atol=1e-10)
