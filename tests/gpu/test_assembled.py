"""Every case, and every scalar function, goes through the vendors' compilers; no GPU is needed for that."""

from __future__ import annotations

import pytest
from gpu_cases import CASES
from gpu_functions import DTYPES, all_functions

from polyop.codegen import cuda, hip
from polyop.ir.errors import InternalError
from polyop.ir.loops import LoopNest
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import amdgcn, nvrtc

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
needs_amdgcn = pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())

NESTS = {**{n: c.nest for n, c in CASES.items()}, **{f"functions_{t}": all_functions(t) for t in DTYPES}}


def is_elf(code: bytes) -> bool:
    return code.startswith(b"\x7fELF")


@needs_nvrtc
@pytest.mark.parametrize("name", NESTS)
def test_nvrtc_accepts_the_text_for_sm_80_without_a_word(name: str) -> None:
    code, said = nvrtc.compiled(cuda.emit(NESTS[name], target("cuda:sm_80"), Options()))
    assert is_elf(code) and not said


@needs_nvrtc
@pytest.mark.parametrize("name", ["matmul", "heat", "gather", "dot_bf16", "functions_f32"])
def test_nvrtc_accepts_the_text_for_sm_90a(name: str) -> None:
    assert is_elf(nvrtc.assemble(cuda.emit(NESTS[name], target("cuda:sm_90a"), Options()), "strict").code)


@needs_nvrtc
def test_nvrtc_writes_an_empty_log_into_no_byte_that_all_of_python_has() -> None:
    before = [bytes([i]) for i in range(256)]
    nvrtc.compiled(cuda.emit(NESTS["heat"], target("cuda:sm_80"), Options()))
    assert [int.from_bytes(b, "big") for b in before] == list(range(256))


@needs_amdgcn
@pytest.mark.parametrize("name", NESTS)
def test_amdgcn_accepts_the_text_for_gfx942_without_a_word(name: str) -> None:
    code, said = amdgcn.compiled(hip.emit(NESTS[name], target("hip:gfx942"), Options()))
    assert is_elf(code) and not said


@needs_amdgcn
def test_amdgcn_makes_the_same_code_of_the_same_text() -> None:
    module = hip.emit(NESTS["heat"], target("hip:gfx942"), Options())
    assert amdgcn.compiled(module)[0] == amdgcn.compiled(module)[0]


@needs_amdgcn
@pytest.mark.parametrize("arch", ["gfx90a", "gfx1100"])
@pytest.mark.parametrize("name", ["matmul", "gather", "dot_bf16", "functions_f32"])
def test_amdgcn_accepts_the_text_for_other_machines(name: str, arch: str) -> None:
    assert is_elf(amdgcn.assemble(hip.emit(NESTS[name], target(f"hip:{arch}"), Options()), "strict").code)


@needs_nvrtc
def test_text_that_nvrtc_refuses_comes_back_with_its_log() -> None:
    from dataclasses import replace
    wrong = replace(cuda.emit(CASES["matmul"].nest, target("cuda:sm_80"), Options()), text="this is no CUDA")
    with pytest.raises(InternalError, match="nvrtc refuses matmul for cuda:sm_80"):
        nvrtc.assemble(wrong)


def deep(terms: int) -> LoopNest:
    """A sum of that many terms, nested to the left."""
    from gpu_nests import at, buffer, call, nest, parallel, store
    total = at("X", "i")
    for _ in range(terms - 1):
        total = call("add", total, at("X", "i"))
    return nest("deep", "N", (buffer("X", "N"), buffer("Y", "N")), parallel("i", "N", store("S0", at("Y", "i"), total)))


@needs_amdgcn
def test_a_sum_of_900_terms_is_printed_and_compiled() -> None:
    assert is_elf(amdgcn.assemble(hip.emit(deep(900), target("hip:gfx942"), Options())).code)
