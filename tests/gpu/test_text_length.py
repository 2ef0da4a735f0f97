"""How long a compiler takes goes by the instructions of a text: the longest kernels have no more than a second allows.

NVRTC takes 0.15 to 0.2 s for 1,000 PTX instructions of a kernel, its own assembler included, on one core that is not shared.
"""

from __future__ import annotations

import gpu_texts
import pytest

import polyop
from polyop.ir.target import target
from polyop.runtime import nvrtc

if nvrtc.unavailable():
    pytest.skip(nvrtc.unavailable(), allow_module_level=True)

LINEAR = "op m(A: {t}[M, K], B: {t}[K, N], b: {t}[N]) -> (C: {t}[M, N]) {{ C = linear_{f}(A, B, b) }}"
ATTENTION = "op a(Q: f16[B, H, S, 128], K: f16[B, H, T, 128], V: f16[B, H, T, 128]) -> (O: f16[B, H, S, 128]) " \
            "{ O = attention(Q, K, V, scale=0.125) }"
CAUSAL = ATTENTION.replace("T, ", "S, ").replace("attention(", "attention_causal(")
CONV = "op c(X: f16[B, C, H, W], F: f16[K, C, 3, 3]) -> (Y: f16[B, K, H, W]) { Y = conv2d(X, F, pad=1) }"
TRIANGLE = "op t(L: f32[M, M], B: f32[M, N]) -> (C: f32[M, N]) { C[i, n] += L[i, k] * B[k, n] where k <= i }"

LONGEST = [("cuda:sm_90a", TRIANGLE, 1500), ("cuda:sm_80", LINEAR.format(t="f32", f="silu"), 2500),
           ("cuda:sm_80", LINEAR.format(t="f16", f="gelu"), 3500),
           ("cuda:sm_90a", LINEAR.format(t="f16", f="gelu"), 5500), ("cuda:sm_90a", LINEAR.format(t="f16", f="silu"), 4500),
           ("cuda:sm_90a", CONV, 4500), ("cuda:sm_80", ATTENTION, 3500), ("cuda:sm_90a", CAUSAL, 4000)]


@pytest.mark.parametrize(("where", "text", "most"), LONGEST)
def test_a_kernel_has_no_more_instructions_than_compile_in_good_time(where: str, text: str, most: int) -> None:
    module = gpu_texts.compiled(text, on=where).module
    assert module is not None
    lines = [x.strip() for x in gpu_texts.ptx(module.text, target(where).arch).splitlines()]
    assert sum(x.endswith(";") and not x.startswith((".", "//")) for x in lines) <= most


def test_a_loop_around_one_of_any_length_is_not_written_out() -> None:
    source = polyop.library("groupnorm").compile(target="cuda:sm_90a", dtypes={"T": "f32"}, consts={"channels": 8}).source
    lines = [x.strip() for x in source.splitlines()]
    loops = [k for k, x in enumerate(lines) if "< 8; ++" in x and "for (int h_" in lines[k + 1]]
    assert len(loops) == 3 and {lines[k - 1] for k in loops} == {"#pragma unroll 1"}
