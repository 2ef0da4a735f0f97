"""Hints for the next block of what lasts: where they lead, and what they are left out of."""

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.prefetch_blocks import prefetch_blocks
from polyop.ir.affine import evaluate
from polyop.ir.loops import Prefetch, walk
from polyop.ir.module import dense
from polyop.ir.options import Options

PRODUCT = polyop.op("op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
BYTES = polyop.op("op f(A: u8[M, K], B: i8[K, N]) -> (C: i32[M, N]) { C[m, n] += i32(A[m, k]) * i32(B[k, n]) }")


def emitted(op, target="x86:x86-64-v3", frozen=("B",), **consts):
    made, nest = op.compile(target=target, options=Options(frozen=frozen), consts=consts), final(op, target, frozen, consts)
    lasting = {b.name for b in nest.buffers if b.lasting}
    return made, [n for n in walk(nest.body) if isinstance(n, Prefetch) and n.cache == 2 and n.place.source in lasting]


def final(op, target, frozen, consts):
    from polyop.compiler import compile_op
    from polyop.runtime import cpu
    from polyop.runtime.layout import contiguous

    o = op._op(op.choice(consts=consts))
    return compile_op(o, contiguous(o, ()), cpu.resolve(target), Options(frozen=frozen)).final


def test_four_tiles_of_rows_ask_for_all_of_the_next_block():
    made, hints = emitted(PRODUCT)
    kept, = (b for b in made.binary.signature.work if b.lasting)
    where, = dict.fromkeys(h.place for h in hints)
    sizes, line = {"K": 1024, "M": 16, "N": 480}, 16
    strides = dense(kept, sizes)

    def element(index, **at):
        known = {**sizes, "n_v": 0, **at}
        return sum(evaluate(p, known) // u * s for p, (_, u), s in zip(index, kept.dims, strides, strict=True))

    block = 48
    asked = {element(where.index, m_c=0, k_c=512, n_c=96, m_r=m, n_r=n, k_p=k) // line
             for m in range(0, 16, 4) for n in range(0, block, 24) for k in range(512)}
    panels = [(96 + block + n) // 24 for n in range(0, block, 24)]
    wanted = {(p * strides[0] + k * 24 + v) // line for p in panels for k in range(512, 1024) for v in range(24)}
    assert asked == wanted


@pytest.mark.parametrize("target", ["x86:x86-64-v3", "x86:x86-64-v4"])
@pytest.mark.parametrize("op, consts", [(PRODUCT, {}), (BYTES, {}), (polyop.library("conv2d_nhwc"), {"pad": 1})])
def test_there_are_hints_for_what_lasts_alone(target, op, consts):
    frozen = "F" if consts else "B"
    assert emitted(op, target, (frozen,), **consts)[1]
    nest = final(op, target, (), consts)
    assert not any(b.lasting for b in nest.buffers) and prefetch_blocks(nest) is nest


def test_results_are_the_same_at_the_end_of_blocks():
    rng = np.random.default_rng(0)
    for n, k in ((47, 511), (48, 512), (49, 513), (97, 1025)):
        b = rng.integers(-4, 5, (k, n)).astype(np.float32)
        layer = PRODUCT.freeze(B=b)
        for m in (9, 16, 17, 40):
            a = rng.integers(-4, 5, (m, k)).astype(np.float32)
            assert (layer(a) == a @ b).all()
