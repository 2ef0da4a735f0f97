"""What outer loops repeat for data of their own is proved of one of them, and refused where they share anything."""

from __future__ import annotations

from random import Random

import pytest

from polyop.ir.loops import LoopNest
from polyop.ir.op import Op
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.claims import Claims
from polyop.poly.verify.slices import one_slice
from polyop.poly.verify.verdict import decided

from .mutants import mutant
from .texts import nest, operator

BATCHED = operator("Y[b, m] += X[b, k] * A[m, k]", inputs="X[B, K], A[M, K]", outputs="Y[B, M]", ranges="b:B m:M k:K")
ROWS = operator("""a[b, i] = exp(X[b, i])
                   Y[b, i] = a[b, i] * a[b, N - 1 - i]""", inputs="X[B, N]", outputs="Y[B, N]", temps="a[B, N]", ranges="b:B i:N")
FIVE = operator("""a[b, i] = exp(X[b, i])
                   Y[b, i] = a[b, i] * a[b, 4 - i]""", inputs="X[B, 5]", outputs="Y[B, 5]", temps="a[B, 5]", ranges="b:B i:5")
COLUMNS = operator("Y[i, b] = X[b] * X[b]", inputs="X[B]", outputs="Y[N, B]", ranges="i:N b:B")
NEIGHBOURS = operator("Y[b, i] = X[b, i] + (X[b - 1, i] if b >= 1 else 0.0)", inputs="X[B, N]", outputs="Y[B, N]",
                      ranges="b:B i:N")
FEWER = operator("Y[b, i] += X[b, i] | b in 0:B - 1", inputs="X[B, N]", outputs="Y[B, N]", ranges="b:B i:N", where="B >= 1")
SUMMED = operator("Y[i] += X[b, i]", inputs="X[B, N]", outputs="Y[N]", ranges="b:B i:N")
SQUARE = operator("Y[b, i] = X[b, i] * X[i, b]", inputs="X[B, B]", outputs="Y[B, B]", ranges="b:B i:B")
COUNTED = operator("Y[b, i] = X[b, i] | i in b:N", inputs="X[B, N]", outputs="Y[B, N]", ranges="b:B i:N", where="B <= 0")
GATHERED = operator("Y[b, d] = E[ids[b], d]", inputs="ids: i64[B], E[V, D]", outputs="Y[B, D]", ranges="b:B d:D")
UPDATED = operator("Y[b, i] = X[b, i] * X[b, i]", inputs="X[B, N]", outputs="Y[B, N]", ranges="b:B i:N", updates=(("X", "Y"),))

LOOPS = """
    for b in 0, B: parallel
        for m in 0, M: parallel
            Y_init(b, m): Y[b, m] = 0.0
            for k in 0, K:
                S0(b, m, k): Y[b, m] += X[b, k] * A[m, k]"""
KEPT = """
    buffer t[B, N] work
    for b in 0, B: parallel
        for i in 0, N: parallel
            S0(b, i): t[b, i] = exp(X[b, i])
    for b in 0, B: parallel
        for i in 0, N: parallel
            S1(b, i): Y[b, i] = t[b, i] * t[b, N - 1 - i]"""
OWN = """
    buffer t[N] work private
    for b in 0, B: parallel
        for i in 0, N:
            S0(b, i): t[i] = exp(X[b, i])
        for i in 0, N:
            S1(b, i): Y[b, i] = t[i] * t[N - 1 - i]"""

SLICED = {
    "all loops of a product but that of its sum": (BATCHED, LOOPS, ("K",)),
    "two nests": (ROWS, KEPT, ("N",)),
    "memory of each thread": (ROWS, OWN, ("N",)),
    "one after the other": (ROWS, KEPT.replace("B: parallel", "B:"), ("N",)),
    "threads in each": (ROWS, """
    buffer t[N] work private
    for b in 0, B:
        for h in 0, 1: parallel
            for i in 0, N:
                S0(b, i): t[i] = exp(X[b, i])
            for i in 0, N:
                S1(b, i): Y[b, i] = t[i] * t[N - 1 - i]""", ("N",)),
    "another dimension in each tensor": (COLUMNS, """
    for b in 0, B: parallel
        for i in 0, N:
            S0(i, b): Y[i, b] = X[b] * X[b]""", ()),
    "computed positions": (GATHERED, """
    for b in 0, B: parallel
        for d in 0, D:
            S0(b, d): Y[b, d] = E[ids[b], d]""", ("V",)),
    "in place": (UPDATED, """
    for b in 0, B: parallel
        for i in 0, N:
            S0(b, i): Y[b, i] = X[b, i] * X[b, i]""", ()),
}


@pytest.mark.parametrize("name", SLICED)
def test_sizes_that_only_count_slices_are_gone(name):
    op, text, left = SLICED[name]
    scop, given = extract(op), nest(op, text)
    found = one_slice(scop, given, scop.context)
    assert found is not None and found.scop.op.sizes == found.nest.sizes == left
    assert first_failure(prove(scop, given)) is None


WHOLE = {
    "the neighbour is read": (NEIGHBOURS, """
    for b in 0, B: parallel
        for i in 0, N:
            S0(b, i): Y[b, i] = X[b, i] + (X[b - 1, i] if b >= 1 else 0.0)"""),
    "one element of all": (SUMMED, """
    for i in 0, N: parallel
        Y_init(i): Y[i] = 0.0
    for b in 0, B:
        for i in 0, N: parallel
            S0(i, b): Y[i] += X[b, i]"""),
    "one input in two ways": (SQUARE, """
    for b in 0, B: parallel
        for i in 0, B:
            S0(b, i): Y[b, i] = X[b, i] * X[i, b]"""),
    "a length that differs": (COUNTED, """
    for b in 0, B: parallel
        for i in b, N:
            S0(b, i): Y[b, i] = X[b, i]"""),
    "memory of all, one after the other": (ROWS, OWN.replace("B: parallel", "B:").replace(" private", "")),
    "in steps": (BATCHED, """
    for b_t in 0, B, 2: parallel
        for b_p in 0, min(2, B - b_t):
            for m in 0, M:
                Y_init(b_t + b_p, m): Y[b_t + b_p, m] = 0.0
                for k in 0, K:
                    S0(b_t + b_p, m, k): Y[b_t + b_p, m] += X[b_t + b_p, k] * A[m, k]"""),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_shared_is_proved_as_a_whole(name):
    op, text = WHOLE[name]
    scop, given = extract(op), nest(op, text)
    assert one_slice(scop, given, scop.context) is None
    assert first_failure(prove(scop, given)) is None


WRONG = {
    "memory of all threads": (ROWS, OWN.replace(" private", "")),
    "a slice too few": (BATCHED, LOOPS.replace("0, B", "0, B - 1")),
    "the first slice alone": (BATCHED, LOOPS.replace("X[b, k]", "X[0, k]")),
    "a slice too many": (FEWER, """
    for b in 0, B: parallel
        for i in 0, N: parallel
            Y_init(b, i): Y[b, i] = 0.0
    for b in 0, B: parallel
        for i in 0, N: parallel
            S0(b, i): Y[b, i] += X[b, i]"""),
    "another one's result": (BATCHED, LOOPS.replace("Y[b, m] +=", "Y[B - 1 - b, m] +=")),
    "for another one": (BATCHED, LOOPS.replace("S0(b, m, k)", "S0(0, m, k)")),
    "another one's temporary": (ROWS, KEPT.replace("t[b, i] *", "t[B - 1 - b, i] *")),
    "a temporary for all": (ROWS, KEPT.replace("t[B, N]", "t[N]").replace("t[b, ", "t[")),
    "a register from one nest to another": (ROWS, KEPT.replace("buffer t[B, N] work", "buffer t[] reg").replace("t[b, i]", "t")
                                            .replace("t[b, N - 1 - i]", "t")),
    "threads' memory from one nest to another": (ROWS, KEPT.replace("buffer t[B, N] work", "buffer t[N] work private")
                                                 .replace("t[b, ", "t[")),
    "rows beyond those that there are, where columns are padded": (FIVE, """
    buffer t[5, B] work pad 16
    for b in 0, B: parallel
        for i in 0, 6:
            - t[i, b] = X[b, 0]
        for i in 0, 5:
            S0(b, i): t[i, b] = exp(X[b, i])
        for i in 0, 5:
            S1(b, i): Y[b, i] = t[i, b] * t[4 - i, b]"""),
    "the input of another one in place": (UPDATED, """
    for b in 0, B: parallel
        for i in 0, N:
            S0(b, i): Y[b, i] = X[b, i] * X[0, i]"""),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_slices_do_to_each_other_is_refused(name):
    op, text = WRONG[name]
    failed = first_failure(prove(extract(op), nest(op, text)))
    assert failed is not None and failed.witness


def in_full(op: Op, given: LoopNest) -> bool:
    """Whether all claims of the whole hold."""
    scop = extract(op)
    whole = Accesses(scop, given, scop.context)
    return all(decided(claim, check).holds for claim, check in Claims(whole, whole).all())


@pytest.mark.parametrize("name", SLICED)
def test_damaged_nests_are_proved_if_the_whole_is(name):
    op, text, _ = SLICED[name]
    given, random, refused = nest(op, text), Random(name), 0
    for _ in range(25):
        damaged = mutant(given, random)
        failed = first_failure(prove(extract(op), damaged))
        if failed is not None and failed.claim.startswith("the nest makes sense"):
            continue
        assert (failed is None) == in_full(op, damaged), damaged
        refused += failed is not None
    assert refused > 5
