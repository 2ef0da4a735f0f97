"""Attention whose rows see some of the keys: a block of threads goes through the keys that its rows see, and no others."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from gpu_assembly import count, instructions
from test_instructions import amd

import polyop
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import loads
from polyop.ir.loops import For, Kind, placed, stores, walk
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import amdgcn, cxx, emulated
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXT = """op attention(Q: T[B, S, D], K: T[B, N, D], V: T[B, N, E]; w: int) -> (O: T[B, S, E]) where w >= 0 {
    s[b, i, j]  += f32(Q[b, i, d]) * f32(K[b, j, d])   where SEEN
    m[b, i]    max= s[b, i, j]                         where SEEN
    p[b, i, j]   = exp(s[b, i, j] - m[b, i])           where SEEN
    z[b, i]     += p[b, i, j]                          where SEEN
    o[b, i, v]  += f32(T(p[b, i, j])) * f32(V[b, j, v]) where SEEN
    O[b, i, v]   = T(o[b, i, v] / z[b, i])
}"""
CAUSAL = "j <= i"
SEEN = {  # condition: (first and last block of keys of the rows from i_o on, whether row i of S sees key j of N)
    CAUSAL: ("0", "floor((i_o)/64) + 1", lambda i, j, rows, keys, w: j <= i),
    "j < i": ("0", "floor((i_o)/64) + 1", lambda i, j, rows, keys, w: j < i),
    "j <= i + N - S": ("0", "floor((N - S + 63)/64) + floor((i_o)/64) + 1", lambda i, j, rows, keys, w: j <= i + keys - rows),
    "i - w < j <= i": ("floor((i_o)/64) - floor((w + 62)/64)", "floor((i_o)/64) + 1", lambda i, j, rows, keys, w: i - w < j <= i),
    "i - w < j < i + w": ("floor((i_o)/64) - floor((w + 62)/64)", "floor((i_o)/64) + floor((w + 62)/64) + 1",
                          lambda i, j, rows, keys, w: i - w < j < i + w),
    "j >= i": ("floor((i_o)/64)", "floor((N + 63)/64)", lambda i, j, rows, keys, w: j >= i),
    "j <= 2*i": ("0", "floor((i_o)/32) + 2", lambda i, j, rows, keys, w: j <= 2 * i),
    "j < w": ("0", "floor((w + 63)/64)", lambda i, j, rows, keys, w: j < w),
    "j <= i, j < w": ("0", "floor((w + 63)/64)", lambda i, j, rows, keys, w: j <= i and j < w),
}
UNITS = {"cuda:sm_80": "pop_mma_m16n8k16_f16(", "cuda:sm_90a": "pop_wgmma_m64n64k16_f16",
         "hip:gfx942": "pop_mfma_f32_16x16x32_f16(", "hip:gfx1100": "pop_wmma_f32_16x16x16_f16("}
SIZES = ((1, 1, 1), (63, 64, 1), (64, 65, 64), (65, 63, 2), (130, 129, 65), (70, 200, 3))  # rows, keys, w


@cache
def attention(seen: str, where: str, dtype: str, channels: int, regime: str = "positive") -> Compiled:
    text = TEXT.replace("SEEN", seen).replace("T[", f"{dtype}[").replace("T(", f"{dtype}(").replace("E]", f"{channels}]")
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(where), Options(regime=regime))


def arrays(dtype: str, channels: int, sizes: tuple[int, int, int], strange: bool) -> dict[str, np.ndarray]:
    rows, keys, _ = sizes
    g = np.random.default_rng(rows + keys)
    given = {n: g.standard_normal(s).astype(DTYPES[dtype].numpy)
             for n, s in {"Q": (2, rows, 3), "K": (2, keys, 3), "V": (2, keys, channels)}.items()}
    if strange:
        for n in "KV":
            given[n][0, g.random(keys) < 0.1] = np.inf
            given[n][1, keys // 2:][:2] = np.nan
            given[n][1, keys // 3, :1] = -np.inf
    return given


def expected(seen: str, given: dict[str, np.ndarray], sizes: tuple[int, int, int]) -> np.ndarray:
    """Row by row what the text says, with no key that it does not name."""
    rows, keys, w = sizes
    q, k, v = (given[n].astype(np.float64) for n in "QKV")
    out = np.full((2, rows, v.shape[-1]), np.nan)
    with np.errstate(all="ignore"):
        for b in range(2):
            for i in range(rows):
                js = [j for j in range(keys) if SEEN[seen][2](i, j, rows, keys, w)]
                if js:
                    s = (q[b, i] * k[b, js]).sum(-1)
                    p = np.exp(s - s.max())
                    out[b, i] = (p[:, None] * v[b, js]).sum(0) / p.sum()
    return out


def run(made: Compiled, seen: str, dtype: str, channels: int, sizes: tuple[int, int, int], strange: bool = False,
        **how) -> emulated.Report:
    rows, keys, w = sizes
    given = arrays(dtype, channels, sizes, strange)
    want = expected(seen, given, sizes)
    named = {"B": 2, "S": rows, "N": keys, "D": 3, "w": w}
    result = np.zeros((2, rows, channels), DTYPES[dtype].numpy)
    report = emulated.run(made.module, {n: named[n] for n in made.op.sizes}, {}, given | {"O": result}, **how)
    near = 4e-3 if dtype == "f16" else 2e-5
    np.testing.assert_allclose(result.astype(np.float64), want, rtol=near, atol=near, err_msg=f"{seen} {sizes}")
    return report


@pytest.mark.parametrize("seen", SEEN)
def test_blocks_of_keys_that_no_row_of_a_tile_sees_are_left_out(seen):
    made = attention(seen, "cuda:sm_80", "f32", 32)
    assert made.rung == "tuned" and len(launches(made.module.launch)) == 1 and all(p.holds for p in made.proofs)
    (turns,) = {n for n in walk(made.nest.body) if isinstance(n, For) and n.index == "j_b"}
    first, last, _ = SEEN[seen]
    assert first in str(turns.lower) and last in str(turns.upper), (turns.lower, turns.upper)


@pytest.mark.parametrize("strange", [False, True])
@pytest.mark.parametrize("seen", SEEN)
def test_each_row_has_the_keys_of_the_text_and_what_lies_beside_them_is_not_met(seen, strange):
    made = attention(seen, "cuda:sm_80", "f32", 32)
    for sizes in SIZES:
        report = run(made, seen, "f32", 32, sizes, strange, order=("forward", "backward", "shuffled")[sum(sizes) % 3])
        assert not report.findings, report


@pytest.mark.parametrize("seen", [x for x in SEEN if "w" in x])
def test_windows_of_no_keys_are_those_of_the_kernel_for_any_sizes(seen):
    made = attention(seen, "cuda:sm_80", "f32", 32, "any")
    for sizes in ((65, 63, 0), (63, 64, 0), (1, 1, 0)):
        assert not run(made, seen, "f32", 32, sizes).findings


@pytest.mark.parametrize("seen, where", [
    (CAUSAL, "cuda:sm_80"), ("i - w < j <= i", "cuda:sm_80"), ("j <= i + N - S", "cuda:sm_80"), ("j <= 2*i", "cuda:sm_80"),
    ("i - w < j < i + w", "cuda:sm_80"), ("j <= i, j < w", "cuda:sm_80"),
    (CAUSAL, "cuda:sm_90a"), ("i - w < j <= i", "cuda:sm_90a"), ("i - w < j < i + w", "cuda:sm_90a"), ("j <= 2*i", "cuda:sm_90a"),
    ("j <= i, j < w", "cuda:sm_90a"), (CAUSAL, "hip:gfx942"), ("i - w < j < i + w", "hip:gfx942"), (CAUSAL, "hip:gfx1100")])
def test_units_multiply_the_atoms_that_no_condition_cuts(seen, where):
    made = attention(seen, where, "f16", 64)
    assert made.rung == "tuned" and len(launches(made.module.launch)) == 1 and all(p.holds for p in made.proofs)
    assert made.module.text.count(UNITS[where]) >= 2
    for n, sizes in enumerate(SIZES):
        for strange in (False, True):
            report = run(made, seen, "f16", 64, sizes, strange, order=("forward", "backward", "shuffled")[(n + strange) % 3])
            assert not report.findings, report


def test_rows_in_shared_memory_begin_with_their_block_and_get_their_zeros_in_one_loop():
    seen = "i - w < j <= i"
    made = attention(seen, "cuda:sm_80", "f16", 256)
    assert made.rung == "tuned" and len(launches(made.module.launch)) == 1 and all(p.holds for p in made.proofs)
    inside = [s for s in stores(made.nest.body) if any(x.source == "s" for x in (s.target, *loads(s.expr)))]
    assert inside and not any("max(" in str(x) for s in inside for x in (s.target, *loads(s.expr)))  # of 16 bytes each
    assert sum("_zero" in s.stmt for s in stores(made.nest.body)) == 1
    for n, sizes in enumerate(((1, 1, 1), (63, 64, 1), (65, 63, 2), (130, 129, 65))):
        report = run(made, seen, "f16", 256, sizes, n > 0, order=("forward", "backward", "shuffled")[n % 3])
        assert not report.findings, report


@pytest.mark.parametrize(("where", "channels"), [("cuda:sm_80", 256), ("hip:gfx942", 64)])
def test_terms_of_an_atom_that_is_cut_are_one_loop_for_all_its_columns(where, channels):
    """Where operands lie along the sum, lanes of each column still take 16 bytes at once."""
    made = attention(CAUSAL, where, "f16", channels)
    ((_, loops),) = [x for x in placed(made.nest.body, Kind.SERIAL, Kind.ROWS) if x[0].stmt == "S9_cut"]
    order = [f.index for f in loops]
    assert order.index("i3_q") < order.index("j_p4_s") < order.index("v_q")
    before, _ = made.module.text.split("// S9_cut")
    assert before[before.index("int j_p4_s"):].count("pop_wide<8>") == (2 if where.startswith("hip") else 0)


def test_products_of_scores_that_go_to_memory_are_not_asked_which_rows_there_are():
    text = attention(CAUSAL, "cuda:sm_80", "f16", 256).module.text
    product = text[text.index("for (int d_o = "):text.index("// S0_finish")]
    assert UNITS["cuda:sm_80"] in product and "if (" not in product.partition(UNITS["cuda:sm_80"])[0]
    assert "if (" in product.partition(UNITS["cuda:sm_80"])[2]  # what goes to memory is


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx1100"])
def test_triangular_products_meet_nothing_beside_the_triangle(where):
    text = "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) where k <= m }"
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where))
    assert UNITS[where] in made.module.text
    g = np.random.default_rng(0)
    for m, k, n in ((1, 3, 1), (70, 100, 9), (65, 33, 130)):
        a, b = (g.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
        a[:, m // 2:][np.triu_indices_from(a[:, m // 2:], 1 - m // 2)] = np.nan
        b[k // 2:, :1] = np.inf
        with np.errstate(invalid="ignore"):
            want = np.array([(a[i, :i + 1, None].astype(float) * b[:i + 1]).sum(0) for i in range(m)])
        given = {"A": a, "B": b, "C": np.zeros((m, n), np.float32)}
        report = emulated.run(made.module, {"M": m, "K": k, "N": n}, {}, given)
        assert not report.findings, report
        np.testing.assert_allclose(given["C"], want, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
@pytest.mark.parametrize(("where", "channels"), [("hip:gfx942", "D"), ("hip:gfx1100", "128"), ("hip:gfx90a", "D")])
def test_atoms_that_are_cut_leave_registers_enough(where, channels):
    seen = "window(Q, K, V, window=100," if where == "hip:gfx1100" else "causal(Q, K, V,"
    text = f"op a(Q: T, K: T, V: T) -> (O: T) {{ O = attention_{seen} scale=0.125) }}"
    operator = polyop.op(text.replace(" T", f" f16[B, H, S, {channels}]"))
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target(where), Options(held=(("D", 128),) if channels == "D" else ()))
    assert made.rung == "tuned" and made.module is not None
    (kernel,) = usage(amdgcn.assemble(made.module))
    assert kernel.local == 0, kernel


def test_turns_of_many_steps_ask_anew_where_answers_take_scalars():
    assert "pop_anew(" not in attention(CAUSAL, "cuda:sm_80", "f16", 64).module.text
    text = attention(CAUSAL, "hip:gfx942", "f16", 64).module.text
    turn = text[text.index("for (int j_b = "):].splitlines()
    assert turn[1].strip() == "pop_anew(D, N, S, i_o);" and text.count("pop_anew(") == 1  # not in the turns along D
    assert "const int b =" in text and "\n    int i_o =" in text and "const pop_u32 pop_n =" in text
    text = attention(CAUSAL, "hip:gfx1100", "f16", 64).module.text  # a thread has no registers but those for addresses
    assert "pop_n = pop_again(pop_n);" in text and "const pop_u32 pop_n =" not in text


@pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())
def test_what_is_asked_anew_is_a_scalar_whatever_the_compiler_makes_of_it(tmp_path):
    """With channels that the text says, clang had a block's coordinate in a vector register, and "illegal VGPR to SGPR copy"."""
    text = TEXT.replace("SEEN", CAUSAL).replace("T[", "f16[").replace("T(", "f16(").replace("D]", "32]").replace("E]", "32]")
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    made = compile_op(op, contiguous(op), target("hip:gfx1100"), Options())
    assert "pop_anew(" in made.module.text and "pop_again(" in made.module.text and "pop_exp(" in made.module.text
    lines = instructions(amd(made.module.text, "gfx1100", tmp_path))
    assert count(lines, "v_wmma_") and not count(lines, r"\w+_f64")  # nor do powers go through doubles


def test_rows_below_the_diagonal_are_moved_by_16_bytes_in_shared_memory():
    made = attention(CAUSAL, "hip:gfx942", "f16", 64)
    given = arrays("f16", 64, (128, 128, 0), False) | {"O": np.zeros((2, 128, 64), np.float16)}
    sizes = {"B": 2, "S": 128, "N": 128, "D": 3, "w": 0}
    traffic = emulated.run(made.module, {n: sizes[n] for n in made.op.sizes}, {}, given, banks=True).traffic
    wide = [t for t in traffic if "pop_wide" in t.code and "s[pop_folded" in t.code]
    assert len([t for t in wide if not t.write]) == 7 and not any(t.conflicts for t in wide)
