"""No damaged nest that is still proved computes anything else, in any order that its loops allow."""

from __future__ import annotations

from random import Random

import islpy as isl
import numpy as np
import pytest

from polyop.ir.expr import evaluate
from polyop.ir.interpret import interpret
from polyop.ir.loops import LoopNest
from polyop.ir.op import Op
from polyop.ir.updates import in_place
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove

from . import nests as n
from .mutants import mutant, reordered
from .orders import orders
from .texts import nest, operator

SHIFT = operator("Y[i] = X[i - 1] | i in 1:N", inputs="X[N]", outputs="Y[N]", ranges="i:N", updates=(("X", "Y"),))
SCALE = operator("Y[i] = X[i] * X[i] | i in 1:N", inputs="X[N]", outputs="Y[N]", ranges="i:N", updates=(("X", "Y"),))
TWICE = operator("""a[i] = exp(X[i])
                    Y[i] = a[i] * a[i]""", inputs="X[N]", outputs="Y[N]", temps="a[N]", ranges="i:N")

CASES = {
    "matmul": (n.MATMUL, nest(n.MATMUL, n.small(n.MATMUL_PACKED_TEXT))),
    "matmul_dots": (n.MATMUL, nest(n.MATMUL, n.MATMUL_DOTS_TEXT)),
    "matmul_loops": (n.MATMUL, n.MATMUL_LOOPS),
    "bias_relu": (n.BIAS_RELU, nest(n.BIAS_RELU, n.small(n.BIAS_RELU_PACKED_TEXT))),
    "softmax": (n.SOFTMAX, nest(n.SOFTMAX, n.small(n.SOFTMAX_ROWS_TEXT))),
    "conv1": (n.CONV1, n.CONV1_PADDED),
    "shift": (SHIFT, nest(SHIFT, """
        for i in 1, N:
            S0(N - i): Y[N - i] = X[N - i - 1]""")),
    "scale": (SCALE, nest(SCALE, """
        buffer t[2] reg
        for i in 1, N, 2: parallel
            for v in 0, min(2, N - i): lanes 2
                - t[v] = X[i + v]
                S0(i + v): Y[i + v] = t[v] * X[i + v]""")),
    "lower": (n.LOWER, n.LOWER_TRIANGLE),
    "twice": (TWICE, nest(TWICE, """
        buffer t[2] reg
        for i_t in 0, N, 2: parallel
            for v in 0, min(2, N - i_t): lanes 2
                S0(i_t + v): t[v] = exp(X[i_t + v])
                S1(i_t + v): Y[i_t + v] = t[v] * t[v]""")),
}
MUTANTS = 30


def results(op: Op, given: LoopNest, sizes: dict[str, int]) -> list[np.ndarray]:
    """What `given` makes of the same random inputs."""
    random = np.random.default_rng(7)
    shapes = {t.name: [max(0, evaluate(e, sizes)) for e in t.shape] for t in op.tensors}
    arrays = {t.name: (random.random(shapes[t.name]) + 0.5).astype(t.dtype.numpy) for t in op.inputs}
    old = {o: arrays[i] if i in in_place(op) else arrays[i].copy() for i, o in op.updates}
    for t in op.outputs:
        arrays[t.name] = old[t.name] if t.name in old else np.full(shapes[t.name], np.nan, t.dtype.numpy)
    interpret(given, sizes, {}, arrays)
    return [arrays[t.name] for t in op.outputs]


def some_sizes(op: Op) -> list[dict[str, int]]:
    """A few sizes that the operator allows, from none to several tiles."""
    random, context = Random(5), extract(op).context
    found = [dict.fromkeys(op.sizes, 5)]
    while len(found) < 4:
        sizes = {s: random.randrange(7) for s in op.sizes}
        here = context
        for i, v in enumerate(sizes.values()):
            here = here.fix_val(isl.dim_type.param, i, isl.Val(v))
        if not here.is_empty():
            found.append(sizes)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_nest_that_is_proved_computes_the_same(name):
    op, given = CASES[name]
    scop, sizes = extract(op), some_sizes(op)
    failed = first_failure(prove(scop, given))
    assert failed is None, failed
    keeps_order = first_failure(prove(scop, given, strict=True)) is None
    want = [results(op, given, s) for s in sizes]
    random = Random(name)
    refused = 0
    for _ in range(MUTANTS):
        damaged = mutant(given, random)
        if first_failure(prove(scop, damaged)) is not None:
            refused += 1
            continue
        exact = keeps_order and first_failure(prove(scop, damaged, strict=True)) is None
        for variant in orders(damaged):
            for s, expected in zip(sizes, want, strict=True):
                for got, right in zip(results(op, variant, s), expected, strict=True):
                    np.testing.assert_allclose(got, right, rtol=0 if exact else 1e-5, err_msg=f"{s}\n{variant}")
    assert refused > MUTANTS // 2


def test_a_nest_in_another_order_that_is_proved_for_strict_numerics_computes_the_same_bits():
    outcomes = set()
    for op, given in CASES.values():
        scop, sizes = extract(op), some_sizes(op)
        if first_failure(prove(scop, given, strict=True)) is not None:
            continue
        want = [results(op, given, s) for s in sizes]
        for other in reordered(given):
            if first_failure(prove(scop, other)) is not None:
                continue
            exact = first_failure(prove(scop, other, strict=True)) is None
            same = all(np.array_equal(got, right) for variant in orders(other) for s, expected in zip(sizes, want, strict=True)
                       for got, right in zip(results(op, variant, s), expected, strict=True))
            outcomes.add((exact, same))
            assert same or not exact, other
    assert {(True, True), (False, False)} <= outcomes, "some keep the order, some do not, and that shows"
