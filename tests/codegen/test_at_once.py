"""Steps of a wide tile's loop that stand in the text one after the other."""

import re

import pytest

import polyop
from polyop.codegen.cpu.lower import lower
from polyop.codegen.llvm.nodes import AT_ONCE, MANY
from polyop.codegen.x86 import emit
from polyop.ir.options import Options
from polyop.runtime.cpu_passes import quick
from tests.codegen.harness import RUNNABLE, V3, V4, check, compiled, parsed
from tests.codegen.test_x86 import matmul
from tests.poly.middles import middle

WIDE = pytest.mark.parametrize("target,mr,nr", [(V3, 4, 24), (V4, 8, 48)], ids=("v3", "v4"))


def products(text):
    """How many vectors each block of `text` multiplies, the most first."""
    blocks = re.split(r"\n\w+:", text)
    return sorted((len(re.findall(r"= fmul contract +<", b)) for b in blocks), reverse=True)


@WIDE
def test_several_steps_of_a_wide_tile_go_round_together(target, mr, nr):
    wide, narrow = (products(emit(lower(matmul(mr, n), target, Options()), target, Options()).text) for n in (nr, nr // 3))
    of_a_step = mr * nr // (target.vector_bytes // 4)
    several = AT_ONCE if target == V3 else 1  # of 24 multiply-adds of V4's nothing is gained
    assert wide[:3] == [several * of_a_step, of_a_step, of_a_step]  # neither where it copies, nor for what is left
    assert narrow[0] == of_a_step // 3


def test_sums_of_wide_tiles_stay_in_registers_however_their_filters_lie():
    """The filter's stride is not known: with four steps of it at once, 24 sums went to memory in each."""
    text = """op f(X: f32[B, C, L], F: f32[K, C, R]) -> (Y: f32[B, K, (L - R)/2 + 2]) where R >= 1 {
        Y[b, k, p] += (X[b, c, 2*p + r - 1] else 0) * F[k, c, r] }"""
    for target in (V3, V4):
        module = emit(lower(middle(text, "tuned", t=target).nest, target, Options(threads=True)), target, Options(threads=True))
        ref, machine = parsed(module, target)
        with quick(module.text.count("\n"), module.is_full):
            code = machine.emit_assembly(ref)
        loops = [b for b in re.split(r"\n\.L\w+:", code) if len(re.findall(r"\tvfm", b)) >= 12 and "prefetch" in b]
        assert loops and not any(re.search(r"vmov[au]ps.*%[yz]mm\d+, .*%rsp", b) for b in loops)


@WIDE
def test_whatever_is_left_of_the_depth_is_added_up(target, mr, nr):
    if target not in RUNNABLE:
        pytest.skip(f"this machine cannot run code for {target.name}")
    n = matmul(mr, nr)
    kernel = compiled(lower(n, target, Options()), target)
    for depth in (0, 1, 3, 4, 5, 8, 127, 128, 129, 131, 134):
        check(n, {"M": 2 * mr + 1, "N": nr + 1, "K": depth}, kernel=kernel)


def test_loops_of_which_it_is_not_known_that_they_are_long_are_as_they_were():
    text = "op f(A: f32[M, {0}], B: f32[{0}, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] }}"
    short, long = (products(polyop.op(text.format(k)).compile(V3.name).source)[0] for k in (MANY // 2, "K"))
    assert long == AT_ONCE * short
