"""Which loops clusters share: those over batches, and those over blocks of rows that are read in pieces."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from polyop.ir.expr import evaluate as number
from polyop.ir.interpret import interpret
from polyop.ir.reference import evaluate
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.windows.filtered import filtered
from polyop.rewrite.windows.winograd import Way, find_filters

from .middles import Middle, Options, middle_of, op_of, proved

LAST = """op f(X: f32[N, L, C], F: f32[R, C, K]) -> (O: f32[N, L, K]) {
    O[n, p, k] += (X[n, p + r - 1, c] else 0) * F[r, c, k] }"""
FIRST = """op f(X: f32[N, C, L], F: f32[K, C, R]) -> (O: f32[N, K, L]) {
    O[n, k, p] += (X[n, c, p + r - 1] else 0) * F[k, c, r] }"""


@cache
def filters(text: str, frozen: tuple[str, ...] = (), whole: bool = False, block: int = 4) -> Middle:
    """The loops of sums over windows of 3, for two results together, so many tiles in a block."""
    op = fix_sizes(op_of(text), {"R": 3})
    assert find_filters(op)
    return middle_of(filtered(op, (Way(0, (2,), block, (whole,)),)), "tuned", Options(frozen=frozen))


@pytest.mark.parametrize("text", [LAST, FIRST])
def test_all_that_is_made_of_a_block_is_in_the_same_loops(text):
    weights, around = str(filters(text).schedule).split("\nn block around\n")
    assert "block" not in weights
    made = [line for line in around.splitlines() if line.startswith("  [")]
    assert len(made) == (6 if text == FIRST else 4) and all(not line.startswith("  [n") for line in made)


@pytest.mark.parametrize("text", [LAST, FIRST])
def test_temporaries_have_one_block(text):
    ones = {b.name: number(b.dims[1][0], {}) for b in filters(text).nest.buffers if b.name in ("O_image_p", "O_products")}
    assert ones == {"O_image_p": 1, "O_products": 1}


def test_what_is_turned_before_and_after_is_in_loops_of_its_own():
    _, around = str(filters(FIRST).schedule).split("\nn block around\n")
    made = [line for line in around.splitlines() if line.startswith("  [")]
    assert made[0].count("S") == 1 and made[-1].count("S") == 1


@pytest.mark.parametrize("frozen", [(), ("F",)])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("text", [LAST, FIRST])
def test_a_loop_that_is_named_like_one_of_a_copy_is_not_shared_out_inside(text, whole, frozen):
    """The weights are packed before the loops over blocks, point by point, as the products in these go over points."""
    m = filters(text, frozen, whole)
    assert proved(m)


@pytest.mark.parametrize("text", [LAST, FIRST])
def test_blocks_compute_what_the_text_says(text):
    m, op = filters(text), op_of(text)
    for length in (1, 7, 8, 9, 17):
        sizes = dict(zip("NLCKR", (2, length, 3, 5, 3), strict=True))
        rng = np.random.default_rng(length)
        arrays = {t.name: rng.integers(-3, 4, [number(e, sizes) for e in t.shape]).astype(np.float32) for t in op.inputs}
        out = np.full([number(e, sizes) for e in op.outputs[0].shape], np.nan, np.float32)
        interpret(m.nest, sizes, {}, arrays | {"O": out})
        np.testing.assert_allclose(out, evaluate(op, sizes, {}, arrays)["O"], atol=1e-4)
