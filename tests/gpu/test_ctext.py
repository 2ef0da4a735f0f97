"""The printed text: what a reader of CUDA should see, and how nests are cut into kernels."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from gpu_cases import CASES
from gpu_nests import at, buffer, call, loop, nest, parallel, store
from gpu_texts import compiled

from polyop.codegen import cuda, hip
from polyop.codegen.c import place
from polyop.codegen.c.expr import expression, literal
from polyop.codegen.c.index import condition, conditions, index
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.split import greatest, least
from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I32, I64, U64, DType
from polyop.ir.expr import Affine, Const, Test, affine, evaluate, quasi
from polyop.ir.loops import For, If, Kind, LoopNest, Space
from polyop.ir.module import HostIf, HostLoop, Launch, Module, in_order
from polyop.ir.options import Options
from polyop.ir.target import target

M, N, i, j = (affine(x) for x in ("M", "N", "i", "j"))
NAMES = {x: x for x in "MNij"}


def printed(made: LoopNest) -> Module:
    return cuda.emit(made, target("cuda:sm_80"), Options())


def test_a_matmul_reads_like_one() -> None:
    assert printed(CASES["matmul"].nest).text == '''\
// matmul for cuda:sm_80 (CUDA)
#include "pop_device.h"

// m:parallel(n:parallel(S0 k(S1) S2))
// indices have 32 bits: M, N, M N, K + 1, M A_s0 + K + 1, N B_s1 + K + 1, M C_s0 + N < 2^31
extern "C" __global__ void __launch_bounds__(128, 1) matmul_0(
    int M, int N, int K,
    const float* A, int A_s0, int A_s1,
    const float* B, int B_s0, int B_s1,
    float* C, int C_s0, int C_s1)
{
    const int m_count = M;
    const int n_count = N;
    const int item = (int)blockIdx.x * (int)blockDim.x + (int)threadIdx.x;
    if (item >= m_count * n_count) return;
    const int m = item / n_count;
    const int n = item % n_count;
    float acc;
    // S0: acc = f32(0.0)
    acc = 0.0f;
    for (int k = 0; k < K; ++k) {
        // S1: acc += (A[m, k] * B[k, n])
        acc += A[m * A_s0 + k] * B[n * B_s1 + k];
    }
    // S2: C[m, n] = acc
    C[m * C_s0 + n] = acc;
}
'''


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_a_text_begins_with_its_statements_and_tiles(where: str) -> None:
    made = compiled("op m(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m, n] += f32(A[m, k]) * f32(B[k, n]) }", on=where)
    assert made.module is not None
    text = made.module.text
    lines = text.split("\n")
    assert lines[1] == "// S0: C[m, n] add= (f32(A[m, k]) * f32(B[k, n]))"
    (way,) = made.chosen
    assert "// " + " ".join(x.removeprefix("// ").strip() for x in lines[2:4]) == f"// {way}" and " by " in way
    # each S that a comment inside names is one of them
    assert {*re.findall(r"// (S\d+)", "\n".join(lines[2:]))} == {"S0"}
    rows = re.search(r"rows m x (\d+)", way)
    assert rows and f"  // the block's {rows[1]} of m begin here" in text


def test_hip_differs_in_its_title_and_the_size_of_a_block() -> None:
    a = printed(CASES["matmul"].nest).text
    b = hip.emit(CASES["matmul"].nest, target("hip:gfx942"), Options()).text
    assert a.replace("cuda:sm_80 (CUDA)", "hip:gfx942 (HIP)").replace("(128, 1)", "(256)") == b


def test_a_serial_loop_around_parallel_ones_becomes_the_hosts() -> None:
    plan = printed(CASES["heat"].nest).launch
    assert isinstance(plan[0], Launch)
    assert isinstance(plan[1], HostLoop)
    assert [x.kernel for x, _ in in_order(plan, {"N": 5, "T": 2})] == ["heat_0", "heat_1", "heat_2", "heat_1", "heat_2"]
    inside = plan[1].body[0]
    assert isinstance(inside, Launch)
    assert replace(inside, reach=()) == Launch("heat_1", (N - 2,), 128, ("N", "T", "a", "U", "t"), ("U",))
    assert max(r.value({"N": 1000, "T": 7}, {"U": (50, 1)}) for r in inside.reach) in range(8 * 50, 2000)


def test_a_test_around_parallel_loops_is_the_hosts_too() -> None:
    made = nest("ends", "N", (buffer("Y", "N"),), If((N - 2,), (parallel("i", "N", store("S0", at("Y", "i"), Const(0.0, F32))),)))
    (choice,) = printed(made).launch
    assert isinstance(choice, HostIf)
    assert list(in_order((choice,), {"N": 1})) == []


def test_work_space_with_symbolic_extents_gets_named_strides() -> None:
    text = printed(CASES["softmax"].nest).text
    assert "const int e_s0 = N;" in text
    assert "e[r * e_s0 + c] = pop_exp(X[r * X_s0 + c] - top);" in text


def test_full_lockstep_loops_are_unrolled() -> None:
    body = loop("v", 4, store("S0", at("Y", "v"), Const(0.0, F32)), kind=Kind.LANES, extent=4)
    assert "#pragma unroll\n    for (int v = 0; v < 4; ++v) {" in printed(nest("zero", "", (buffer("Y", 4),), body)).text


@pytest.mark.parametrize(("x", "text"), [
    (M - i - 1, "M > i"), (i, "i >= 0"), (i - 1, "i > 0"), (i * 2 - j + 3, "2 * i + 3 >= j"), (affine(-2), "0 >= 2"),
    (i * -1 + 5, "5 >= i"), (i - 4, "i >= 4"), (i * -1 - 1, "0 > i"),
])
def test_tests_are_written_without_minus_signs(x: Affine, text: str) -> None:
    written = condition(x, NAMES)
    assert eval_c(written) == eval_c(f"{index(x, NAMES).c} >= 0")
    assert text == written


def eval_c(text: str) -> list[bool]:
    """A C condition without divisions at some values of its names."""
    return [bool(eval(text, {"M": m, "N": 3, "i": a, "j": b})) for m in (0, 4) for a in range(-2, 6) for b in range(-1, 8)]


@pytest.mark.parametrize(("value", "dtype", "text"), [
    (0.1, F32, "0.10000000149011612f"), (0.1, F64, "0.1"), (1, F32, "1.0f"), (float("-inf"), F32, "-pop_inf_f()"),
    (-128, I8, "(pop_i8)(-128)"), (-(2**63), I64, "(-9223372036854775807ll - 1)"), (-(2**31), I32, "(-2147483647 - 1)"),
    (2**64 - 1, U64, "18446744073709551615ull"),
    (0.1, BF16, "0.10009765625f"),
])
def test_constants_are_written_so_that_c_reads_them_back(value: float, dtype: DType, text: str) -> None:
    assert literal(value, dtype) == text


def test_brackets_stand_only_where_c_needs_them() -> None:
    x, y, z = (at(n, dtype=F32) for n in "xyz")
    buffers = {n: buffer(n, space=Space.REG) for n in "xyz"}
    scope = Scope({n: n for n in "xyz"}, buffers, {})
    assert expression(call("mul", call("add", x, y), z), scope).c == "(x + y) * z"
    assert expression(call("add", call("mul", x, y), z), scope).c == "x * y + z"
    assert expression(call("sub", x, call("sub", y, z)), scope).c == "x - (y - z)"
    assert expression(call("neg", call("neg", x)), scope).c == "-(-x)"


def test_brackets_stand_where_compilers_would_warn_without_them() -> None:
    x, y, z = (at(n, dtype=BOOL) for n in "xyz")
    scope = Scope({n: n for n in "xyz"}, {n: buffer(n, dtype=BOOL, space=Space.REG) for n in "xyz"}, {})
    assert expression(call("or", call("and", x, y), call("or", x, z)), scope).c == "(x && y) || (x || z)"
    assert expression(call("or", call("or", x, y), z), scope).c == "x || y || z"


def test_what_has_been_asked_is_not_asked_again() -> None:
    inside = (M - i - 1,)
    x, y = replace(at("x", dtype=F32), guard=inside), at("y", dtype=F32)
    scope = Scope({n: n for n in "xyMi"}, {n: buffer(n, space=Space.REG) for n in "xy"}, {})
    assert expression(call("select", Test((*inside, i)), x, y, dtype=F32), scope).c == "M > i && i >= 0 ? x : y"
    assert expression(call("select", Test((i,)), x, y, dtype=F32), scope).c == "i >= 0 ? M > i ? x : 0.0f : y"
    assert conditions((*inside, i, *inside), NAMES).c == "M > i && i >= 0"


def test_a_launch_is_never_smaller_than_the_loops_it_stands_for() -> None:
    """The box of counts of `for i < N { for j in [i, min(i + 5, N)) by 2 }`."""
    (launch,) = printed(CASES["triangle"].nest).launch
    assert isinstance(launch, Launch)
    for n in range(9):
        outer, inner = (evaluate(e, {"N": n}) for e in launch.extents)
        assert outer == n
        assert all(len(range(a, min(a + 5, n), 2)) <= inner <= 3 for a in range(n))


def test_extremes_over_a_range_bound_what_they_are_taken_of() -> None:
    forms = (i * 3 - 2, i * -2 + N, quasi("min", i, N - i), quasi("max", i * -1, i - 3), quasi("div", i * -5, affine(3)),
             quasi("mod", i, affine(4)))
    for x in forms:
        for low, high in ((0, 3), (-4, 9)):
            ranges = {"i": (affine(low), affine(high))}
            values = [evaluate(x, {"i": a, "N": 5}) for a in range(low, high + 1)]
            assert evaluate(least(x, ranges), {"N": 5}) <= min(values)
            assert max(values) <= evaluate(greatest(x, ranges), {"N": 5})


@pytest.mark.parametrize("later", [False, True])
def test_rows_outside_of_all_loops_over_threads_are_written_by_the_first_one_alone(later: bool) -> None:
    """By all threads at once they would race, as a wide store as well as one by one."""
    space = Space.SHARED if later else Space.TENSOR
    zero = store("S0", at("Z", "i", "t"), Const(0.0, F32))
    first = For("t", Affine(), affine(64), (zero,), kind=Kind.THREADS, extent=64, weight=1)
    copied = replace(store("S1", at("Y", *(() if later else ("i",)), "v"), at("X", "i", "v")), later=later)
    rows = For("v", Affine(), affine(4), (copied,), kind=Kind.ROWS, extent=4)
    made = nest("f", "M", (buffer("X", "M", 4, unit=1), buffer("Z", "M", 64, unit=1),
                           buffer("Y", *(() if later else ("M",)), 4, space=space, unit=None if later else 1)),
                parallel("i", "M", first, rows))
    text = printed(made).text
    assert "pop_wide" not in text and "pop_copy_run" not in text and "if (pop_n == 0)" in text


@pytest.mark.parametrize(("value", "element"), [
    ("pop_round_f16(a + f(b))", "pop_to_f16(a + f(b))"),
    ("pop_round_f16(a) + pop_round_f16(b)", "pop_to_f16(pop_round_f16(a) + pop_round_f16(b))"),
    ("pop_round_bf16(a)", "pop_to_f16(pop_round_bf16(a))"), ("a", "pop_to_f16(a)")])
def test_what_is_stored_in_few_bits_is_rounded_once(value: str, element: str) -> None:
    assert place.narrowed(value, F16) == element and place.narrowed(value, F32) == value
