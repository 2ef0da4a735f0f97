"""Contractions for units that read shared memory: right on the emulator in every order, on one path, with nothing spilled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gpu_kernels import ran

import polyop
from polyop.codegen.c import threads, units
from polyop.codegen.c.index import multiple
from polyop.codegen.c.scope import Scope
from polyop.compiler import Compiled, compile_op
from polyop.ir.atoms import ROWS
from polyop.ir.dtypes import BF16, F32
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Affine, Load, affine, evaluate
from polyop.ir.loops import Barrier, Buffer, For, Kind, Space, Store, Turn, turned
from polyop.ir.module import launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

Array = np.ndarray
WAYS = [("forward", "late"), ("backward", "late"), ("shuffled", "late"), ("forward", "early"), ("shuffled", "early")]
TEXTS: dict[str, tuple[str, Callable[[dict[str, Array]], Array]]] = {
    "rows": ("op mm(A: bf16[M, K], B: bf16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }",
             lambda x: x["A"] @ x["B"]),
    "columns": ("op mm(A: f16[K, M], B: f16[N, K], b: f32[N]) -> (C: f32[M, N]) { t[m,n] += f32(A[k,m]) * f32(B[n,k])\n"
                "  C[m,n] = relu(t[m,n] + b[n]) }", lambda x: np.maximum(x["A"].T @ x["B"].T + x["b"], 0)),
    "few": ("op mm(A: f16[M, K], B: f16[K, 100]) -> (C: f32[M, 100]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }",
            lambda x: x["A"] @ x["B"]),
}
WIDE, NARROW = "n x 256, depth k x 64, 256 threads, groups of warps with 64 x 256", "n x 128, depth k x 64, 256 threads"
CHOSEN = {"rows": (WIDE, "wgmma_m64n256k16_bf16"), "columns": (WIDE, "wgmma_m64n256k16_f16"),
          "few": (NARROW, "wgmma_m64n128k16_f16")}


@cache
def compiled(name: str, on: str = "cuda:sm_90a") -> Compiled:
    operator = polyop.op(TEXTS[name][0])
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target(on), Options())
    assert c.rung == "tuned"
    return c


@pytest.mark.parametrize("name", TEXTS)
def test_a_target_with_such_units_takes_them(name: str) -> None:
    assert all(x in compiled(name).chosen[0] for x in CHOSEN[name])
    assert "wgmma" not in compiled(name, "cuda:sm_90").chosen[0]


@pytest.mark.parametrize(("tile", "unit"), [
    ((128, 128), "128 x 128 wgmma_m64n128k16_f16"), ((64, 128), "64 x 128 wgmma_m64n128k16_f16"),
    ((64, 64), "64 x 64 wgmma_m64n64k16_f16"), ((128, 32), "128 x 32 mma_m16n8k16_f16"), ((32, 64), "32 x 64 mma_m16n8k16_f16"),
])
def test_smaller_tiles_take_the_units_that_they_fit(tile: tuple[int, int], unit: str) -> None:
    operator = polyop.op(TEXTS["columns"][0])
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options(tile=tile))
    rows, columns, atom = unit.replace("x ", "").split()
    assert c.rung == "tuned" and f"rows m x {rows}, columns n x {columns}" in c.chosen[0] and c.chosen[0].endswith(f" {atom}")


@pytest.mark.parametrize(("sizes", "unit"), [("M, 20", "mma_m16n8k16_f16"), ("M, 64", "wgmma_m64n64k16_f16"), ("20, N", "mma")])
def test_few_rows_or_columns_leave_lines_that_no_unit_reads(sizes: str, unit: str) -> None:
    m, n = sizes.split(", ")
    operator = polyop.op(f"op mm(A: f16[{m}, K], B: f16[K, {n}]) -> (C: f32[{m}, {n}]) {{ C[m,n] += f32(A[m,k]) * f32(B[k,n]) }}")
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options())
    assert c.rung == "tuned" and f" by {unit}" in c.chosen[0]


@pytest.mark.parametrize(("order", "completion"), WAYS)
@pytest.mark.parametrize(("name", "sizes"), [
    ("rows", (5, 3, 7)), ("rows", (136, 200, 72)), ("rows", (65, 64, 260)), ("rows", (128, 65, 256)),
    ("columns", (65, 64, 260)), ("columns", (136, 130, 72)), ("few", (70, 100, 100)),
])
def test_products_are_right_at_boundary_sizes_and_nobody_finds_a_fault(name: str, sizes: tuple[int, int, int], order: str,
                                                                       completion: str) -> None:
    c = compiled(name)
    assert c.module is not None
    given = {s: n for s, n in zip("MKN", sizes, strict=True) if s in c.op.sizes}
    rng = np.random.default_rng(3)
    arrays = {t.name: rng.uniform(-1, 1, [evaluate(e, given) for e in t.shape]).astype(t.dtype.numpy) for t in c.op.inputs}
    want = TEXTS[name][1]({n: x.astype(np.float64) for n, x in arrays.items()})
    arrays["C"] = np.full(want.shape, np.nan, np.float32)
    report = emulated.run(c.module, given, {}, arrays, order=order, completion=completion)
    assert str(report) == "no fault found"
    np.testing.assert_allclose(arrays["C"], want, atol=2e-5)


def test_products_go_on_while_the_next_tile_is_copied_and_end_before_the_barrier() -> None:
    module = compiled("few").module
    assert module is not None
    turn = module.text[module.text.index("for (int k_c"):]
    places = [turn.index(x) for x in ("pop_units_barrier<1>(pop_arriving);", "pop_wgmma_commit();", "// S0_next0", "// S0_next1",
                                      "pop_wgmma_wait<0>();", "// S0_finish")]
    assert places == sorted(places) and module.text.count("pop_wgmma_wait<0>();") == module.text.count("pop_wgmma_hold(") == 1


def test_with_slots_enough_the_products_of_a_turn_go_on_beyond_the_next_barrier() -> None:
    module = compiled("rows").module
    assert module is not None
    turn = module.text[module.text.index("pop_registers_more"):]
    turn = turn[turn.index("for (int k_c"):]
    places = [turn.index(x) for x in ("pop_consumer_barrier<1>(pop_arriving);", "pop_wgmma_commit();", "pop_wgmma_wait<1>();",
                                      "pop_wgmma_wait<0>();", "pop_wgmma_hold(", "pop_consumer_release(", "// S0_finish")]
    assert places == sorted(places) and turn.count("pop_wgmma_wait") == 2


@pytest.mark.emulators
@pytest.mark.parametrize(("old", "new"), [("pop_wgmma_wait<1>();", ""), ("pop_wgmma_wait<1>();", "pop_wgmma_wait<2>();"),
                                          ("pop_wgmma_wait<0>();", "pop_wgmma_wait<1>();")])
@pytest.mark.parametrize("order", ["forward", "backward"])  # tiles are copied by threads, and by the engine
def test_each_wait_of_products_that_go_on_is_needed(old: str, new: str, order: str) -> None:
    module = compiled("rows").module
    assert module is not None
    arrays = {"A": np.ones((70, 450), BF16.numpy), "B": np.ones((450, 100), BF16.numpy), "C": np.zeros((70, 100), np.float32)}
    wrong = replace(module, text=module.text.replace(old, new))
    report = emulated.run(wrong, {"M": 70, "K": 450, "N": 100}, {}, arrays, order=order)
    assert {f.what for f in report.findings} & {"access in flight", "copy without a wait"}, str(report)


def test_products_are_waited_for_before_a_barrier_or_a_use_of_their_results_and_not_before() -> None:
    c = Load("c", (), F32)
    use, other = (Store(n, (), None, (), x, None, x) for n, x in (("S", c), ("T", Load("d", (), F32))))
    loop = For("i", affine(0), affine(4), (Barrier("why"),))
    assert [units.must_wait(n, frozenset({"c"})) for n in (use, other, Barrier("why"), loop)] == [True, False, True, True]


OTHERS: dict[str, tuple[str, dict[str, int], Callable[[dict[str, Array]], Array]]] = {
    "batches": ("op mm(A: f16[B, M, K], X: f16[B, K, N]) -> (C: f32[B, M, N]) { C[b,m,n] += f32(A[b,m,k]) * f32(X[b,k,n]) }",
                {"B": 3, "M": 66, "N": 270, "K": 70}, lambda x: x["A"] @ x["X"]),
    "one tensor twice": ("op mm(A: f16[M, K]) -> (C: f32[M, M]) { C[m,n] += f32(A[m,k]) * f32(A[n,k]) }",
                         {"M": 140, "K": 70}, lambda x: x["A"] @ x["A"].T),
    "a triangle": ("op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) where n <= m }",
                   {"M": 140, "N": 300, "K": 70}, lambda x: np.tril(x["A"] @ x["B"])),
    "two sums": ("op mm(A: f16[M, K, L], B: f16[K, L, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k,l]) * f32(B[k,l,n]) }",
                 {"M": 70, "K": 3, "L": 67, "N": 130}, lambda x: np.einsum("mkl,kln->mn", x["A"], x["B"])),
    "windows": ("op conv(X: f16[B, C, W], F: f16[K, C, 3]) -> (Y: f32[B, K, W - 2]) {"
                " Y[b,k,p] += f32(X[b,c,p+r]) * f32(F[k,c,r]) }",
                {"B": 2, "C": 66, "W": 72, "K": 70},
                lambda x: sum(np.einsum("bcw,kc->bkw", x["X"][:, :, r:r + 70], x["F"][:, :, r]) for r in range(3))),
    "borders": ("op conv(X: f16[B, W, C], F: f16[3, C, K]) -> (Y: f32[B, W, K]) {"
                " Y[b,p,k] += f32((X[b,p+r-1,c] else 0)) * f32(F[r,c,k]) }",
                {"B": 2, "C": 72, "W": 70, "K": 72},
                lambda x: sum(np.pad(x["X"], ((0, 0), (1, 1), (0, 0)))[:, r:r + 70] @ x["F"][r] for r in range(3))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_all_sorts_of_contractions_come_of_the_same_nest(name: str) -> None:
    text, sizes, f = OTHERS[name]
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options())
    assert c.rung == "tuned" and c.module is not None and "pop_wgmma_m64n256k16_f16" in c.module.text
    rng = np.random.default_rng(4)
    arrays = {t.name: rng.uniform(-1, 1, [evaluate(e, sizes) for e in t.shape]).astype(t.dtype.numpy) for t in op.inputs}
    want, out = f({n: x.astype(np.float64) for n, x in arrays.items()}), op.outputs[0].name
    for order, completion in WAYS[1:4:2]:
        arrays[out] = np.full(want.shape, np.nan, np.float32)
        assert str(emulated.run(c.module, sizes, {}, arrays, order=order, completion=completion)) == "no fault found"
        np.testing.assert_allclose(arrays[out], want, atol=4e-5)


def test_operands_whose_elements_lie_apart_are_staged_one_by_one() -> None:
    operator = polyop.op(TEXTS["rows"][0])
    op = operator._op(operator.choice())
    apart = replace(contiguous(op), units=(("A", None), ("B", None), ("C", 1)))
    module = compile_op(op, apart, target("cuda:sm_90a"), Options()).module
    assert module is not None and "pop_wgmma" in module.text
    rng = np.random.default_rng(5)
    a, b = (rng.uniform(-1, 1, s).astype(BF16.numpy)[::2, ::2] for s in ((140, 140), (140, 260)))
    arrays = {"A": a, "B": b, "C": np.full((70, 130), np.nan, np.float32)}
    assert str(emulated.run(module, {"M": 70, "K": 70, "N": 130}, {}, arrays)) == "no fault found"
    np.testing.assert_allclose(arrays["C"], a.astype(np.float64) @ b.astype(np.float64), atol=2e-5)


FAULTS = [
    ("the tiles are not fenced", ("pop_units_barrier<1>(pop_arriving)", "pop_copies_barrier<1>()"), {"missing fence"}),
    ("the results are not waited for", ("pop_wgmma_wait<0>();", ""), {"access in flight", "copy without a wait"}),
    ("the registers are not fenced", ("pop_wgmma_fence();", ""), {"missing fence"}),
    ("a group too many is on its way", ("pop_units_barrier<1>(pop_arriving)", "pop_units_barrier<2>()"),
     {"access in flight", "uninitialised read"}),
    ("nobody meets before the product", ("pop_units_barrier<1>(pop_arriving);", "pop_async_fence();"),
     {"race", "access in flight", "uninitialised read"}),
]


@pytest.mark.emulators
@pytest.mark.parametrize(("what", "change", "found"), FAULTS, ids=[w for w, _, _ in FAULTS])
def test_what_goes_around_a_product_is_needed(what: str, change: tuple[str, str], found: set[str]) -> None:
    module = compiled("few").module
    assert module is not None and change[0] in module.text
    arrays = {"A": np.ones((70, 330), np.float16), "B": np.ones((330, 100), np.float16), "C": np.zeros((70, 100), np.float32)}
    report = emulated.run(replace(module, text=module.text.replace(*change)), {"M": 70, "K": 330}, {}, arrays)
    assert {f.what for f in report.findings} & found, str(report)


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize("name", TEXTS)
def test_the_products_spill_nothing_and_are_not_serialised(name: str) -> None:
    module = compiled(name).module
    assert module is not None
    assert said(module.text) == (4, "")
    (taken,) = usage(nvrtc.assemble(module))
    assert taken.local == 0 and taken.shared <= 227 << 10
    assert [x.shared for x in launches(module.launch)] == [196672 if name != "few" else 98320]


def said(text: str) -> tuple[int, str]:
    """How many products the PTX of a text has, and what the compiler warns of, of its own injections and waits too."""
    library = nvrtc._library()
    headers = {p.name: p.read_bytes() for p in sorted(cxx.DEVICE.glob("*.h"))}
    names = [n.encode() for n in headers]
    program = library.nvrtcCreateProgram(text.encode(), b"k", len(names), list(headers.values()), names)[1]
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17", b"--ptxas-options=-v"]
    (code,) = library.nvrtcCompileProgram(program, len(options), options)
    log = b" " * (library.nvrtcGetProgramLogSize(program)[1] + 2)
    library.nvrtcGetProgramLog(program, log)
    ptx = b" " * library.nvrtcGetPTXSize(program)[1]
    library.nvrtcGetPTX(program, ptx)
    library.nvrtcDestroyProgram(program)
    assert not int(code), log.decode()
    return ptx.count(b"wgmma.mma_async"), "\n".join(x for x in log.decode().splitlines() if "(C" in x or "warning" in x)


# --- swizzled tiles ---------------------------------------------------------------------------------------------------


def swizzled(rows: int, line: int, y: int, x: int, folded: bool = False, doubled: bool = False) -> int:
    """{ [y, x] -> [L (Y floor(x / L) + y) + ((x mod L) xor (L / 8) (y mod 8))] }, or by y xor floor(y / 8) instead of y, or by
    twice that: 2, 4, 1 xor 4 for 1, 2, 4."""
    z = (y ^ y // 8 if folded else y) % 8
    z = [0, 2, 4, 6, 5, 7, 1, 3][z] if doubled else z
    return line * (rows * (x // line) + y) + (x % line ^ line // 8 * z)


@pytest.mark.parametrize(("function", "folded", "doubled"), [
    ("pop_swizzled", False, False), ("pop_folded", True, False), ("pop_doubled", True, True)])
@pytest.mark.parametrize(("rows", "line", "columns"), [(64, 64, 64), (16, 64, 256), (24, 32, 64)])
def test_a_swizzle_gives_each_element_a_place_of_its_own_and_keeps_eighths_of_a_line(
        rows: int, line: int, columns: int, function: str, folded: bool, doubled: bool) -> None:
    arrays = {"Y": np.full(rows * columns, -1, np.float32)}
    body = f"for (int i = t; i < {rows * columns}; i += 32) Y[i] = {function}<{rows}, {line}>(i / {columns}, i % {columns});"
    assert str(ran(body, arrays)) == "no fault found"
    places = arrays["Y"].astype(int).reshape(rows, columns)
    assert places.tolist() == [[swizzled(rows, line, y, x, folded, doubled) for x in range(columns)] for y in range(rows)]
    assert sorted(places.reshape(-1)) == list(range(rows * columns))
    eighths = places.reshape(rows, -1, line // 8)
    assert (np.diff(eighths, axis=2) == 1).all() and (eighths[..., 0] % (line // 8) == 0).all()
    banks = places[:8, :: line // 8].reshape(8, -1) % line // (line // 8)
    assert all(len(set(column)) == 8 for column in banks.T), "eight rows of a column lie in eight parts of a line"
    apart = [d for d in (2, 4, 8) if folded and 8 * d <= rows]
    assert all(len({swizzled(rows, line, d * y, 0, True, doubled) % line for y in range(8)}) == 8 for d in apart)


@pytest.mark.parametrize("of", [Turn.FOURS, Turn.EIGHTS])
def test_of_rows_that_are_turned_neighbours_are_half_of_them_apart(of: Turn) -> None:
    arrays = {"Y": np.full(64, -1, np.float32)}
    assert str(ran(f"for (int i = t; i < 64; i += 32) Y[i] = pop_turned<{of.value}>(i);", arrays)) == "no fault found"
    places = [turned(y, of) for y in range(64)]
    assert arrays["Y"].tolist() == places
    assert all(sorted(places[y: y + of]) == [*range(y, y + of)] for y in range(0, 64, of))
    assert all(abs(places[y] - places[y + 1]) == of // 2 for y in range(0, 64, 2))


def test_of_rows_whose_pairs_are_turned_neighbours_and_those_two_apart_differ_modulo_four() -> None:
    arrays = {"Y": np.full(64, -1, np.float32)}
    assert str(ran(f"for (int i = t; i < 64; i += 32) Y[i] = pop_turned<{Turn.PAIRS.value}>(i);", arrays)) == "no fault found"
    places = [turned(y, Turn.PAIRS) for y in range(64)]
    assert arrays["Y"].tolist() == places and sorted(places) == [*range(64)]
    for y in range(0, 64, 8):
        fours = (places[y: y + 4], places[y + 4: y + 8], places[y: y + 8: 2], places[y + 1: y + 8: 2])
        assert all({p % 4 for p in four} == {0, 1, 2, 3} for four in fours)


@pytest.mark.parametrize("name", ["rows", "columns"])
def test_copies_to_swizzled_tiles_meet_in_no_bank(name: str) -> None:
    module = compiled(name).module
    assert module is not None
    sizes = {"M": 128, "N": 256, "K": 320}
    arrays = {t.name: np.zeros([evaluate(e, sizes) for e in t.shape], t.dtype.numpy)
              for t in compiled(name).op.tensors if t.role != "temp"}
    by_threads = replace(module, text=module.text.replace("if (pop_boxed", "if (!pop_boxed"))
    # in this order rows of tensors are aligned
    report = emulated.run(by_threads, sizes, {}, arrays, order="backward", banks=True)
    assert [t.conflicts for t in report.traffic if t.write and "tile" in t.code] == [0, 0, 0, 0]


def tile(rows: int = 64, columns: int = 64, swizzle: int = 128) -> Buffer:
    return Buffer("A_s", BF16, ((affine(rows), 1), (affine(columns), 1)), Space.SHARED, swizzle=swizzle)


def test_only_whole_lines_of_shared_memory_are_swizzled() -> None:
    assert str(tile()) == "A_s: bf16[64, 64] shared (swizzle 128)"
    assert str(replace(tile(), folded=True)) == "A_s: bf16[64, 64] shared (swizzle 128 folded)"
    with pytest.raises(InternalError, match="no swizzle to fold"):
        replace(tile(), swizzle=0, folded=True)
    for rows, of in ((60, Turn.EIGHTS), (62, Turn.FOURS), (63, Turn.PAIRS)):
        with pytest.raises(InternalError, match="rows cannot be turned"):
            replace(tile(rows, 64, 0), turned=of)
    for wrong in (lambda: tile(60), lambda: tile(64, 72), lambda: replace(tile(), space=Space.WORK)):
        with pytest.raises(InternalError, match="no lines of 128 bytes"):
            wrong()


def test_swizzled_tiles_start_at_eight_lines() -> None:
    plain = Buffer("b", F32, ((affine(5), 1),), Space.SHARED)
    offsets, total = threads.shared_offsets([plain, tile(), plain])
    assert offsets == {"b": 9216, "A_s": 1024} and total == 9216 + 32


def test_what_a_sum_is_a_multiple_of_follows_from_steps() -> None:
    assert multiple(affine("i") * 4 + 8, {"i": 16}) == 8
    assert multiple(affine("i") * 4 + affine("j"), {"i": 16}) == 1
    assert multiple(affine(0), {}) == 0


ATOM = next(x for x in ROWS if x.name == "wgmma_m64n64k16_bf16")


M, K, I = affine("m"), affine("k"), affine("i")


@pytest.mark.parametrize(("row", "column", "swizzle", "why"), [
    (M, K, 0, "no swizzled tile"), (M, K * 2, 128, "not indexed by the sides"), (M + K, K, 128, "not indexed by the sides"),
    (M + I, K, 128, "does not start"), (M, K + I, 128, "does not start"),
])
def test_a_tile_that_does_not_lie_as_the_unit_reads_it_is_refused(row: Affine, column: Affine, swizzle: int, why: str) -> None:
    buffer = tile(64, 64, swizzle)
    x = Load("A_s", (row, column), BF16)
    k = For("k", affine(0), affine(64), (), kind=Kind.ATOM, extent=64)
    scope = Scope({n: n for n in ("A_s", "m", "k", "i")}, {"A_s": buffer}, {}, steps={"i": 4})
    with pytest.raises(UnsupportedError, match=why):
        units.product(ATOM, "c[0]", x, x, ((("m", 64),), (("n", 64),), k), scope)


# --- the order of blocks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("boxes", "rows", "columns"), [(1, 1, 1), (1, 8, 3), (1, 19, 5), (2, 3, 7), (3, 17, 1)])
def test_blocks_in_groups_are_each_block_once_and_neighbours_share_rows_and_columns(boxes: int, rows: int, columns: int) -> None:
    count = boxes * rows * columns
    arrays = {"Y": np.full(count, -1, np.float32)}
    body = f"for (int i = t; i < {count}; i += 32) Y[i] = pop_grouped<8>(i, {rows}, {columns});"
    assert str(ran(body, arrays)) == "no fault found"
    order = arrays["Y"].astype(int)
    assert sorted(order) == list(range(count))
    for box in order.reshape(boxes, -1):
        assert {i // columns % rows for i in box[:8 * columns]} == set(range(min(8, rows)))
        assert {i % columns for i in box[:min(8, rows)]} == {0}


def test_blocks_are_numbered_in_groups_where_their_two_loops_share_one_operand_each() -> None:
    texts = {"both": TEXTS["rows"][0],
             "batch": "op bmm(A: f32[B, M, K], X: f32[B, K]) -> (C: f32[B, M]) { C[b,m] += A[b,m,k] * X[b,k] }",
             "conv": "op conv(x: f16[B, C, H, W], w: f16[O, C, 3, 3]) -> (y: f32[B, O, H - 2, W - 2]) {\n"
                     "  y[b,o,h,i] += f32(x[b,c,h+r,i+s]) * f32(w[o,c,r,s]) }"}
    grouped = {}
    for name, text in texts.items():
        operator = polyop.op(text)
        op = operator._op(operator.choice())
        module = compile_op(op, contiguous(op), target("cuda:sm_80"), Options(check=False)).module
        assert module is not None
        grouped[name] = "pop_grouped<8>(blockIdx.x, (pop_u32)m_c_count, (pop_u32)n_c_count)" in module.text
    assert grouped == {"both": True, "batch": False, "conv": False}
