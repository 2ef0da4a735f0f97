"""Warps that copy beside warps that multiply, in blocks that stay for several tiles: right in every order, all of it needed."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import polyop
from polyop.codegen.c import roles as croles
from polyop.codegen.c.scope import Box
from polyop.codegen.gpu.split import Axis, Part
from polyop.compiler import compile_op
from polyop.ir.dtypes import BF16, F16
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Load, affine
from polyop.ir.loops import Barrier, Buffer, For, If, Kind, Node, Space, Store, structure
from polyop.ir.module import Module, launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.layout import contiguous
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXTS = {
    "product": "op mm(A: bf16[M, K], B: bf16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }",
    "linear": "op mm(A: bf16[M, K], B: bf16[N, K], b: f32[N]) -> (C: f32[M, N]) { t[m,n] += f32(A[m,k]) * f32(B[n,k])\n"
              "  C[m,n] = relu(t[m,n] + b[n]) }",
    "batches": "op mm(A: bf16[H, M, K], B: bf16[H, K, N]) -> (C: f32[H, M, N]) { C[h,m,n] += f32(A[h,m,k]) * f32(B[h,k,n]) }",
    "window": "op mm(A: bf16[M, K], B: bf16[3, K, N]) -> (C: f32[M - 2, N]) { C[m,n] += f32(A[m+r,k]) * f32(B[r,k,n]) }",
}
WAYS = [("forward", "late"), ("backward", "late"), ("shuffled", "late"), ("shuffled", "early")]  # forward: copied by threads


@cache
def module(name: str) -> Module:
    operator = polyop.op(TEXTS[name])
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options())
    assert c.rung == "tuned" and c.module is not None
    return c.module


def right(m: Module, name: str, sizes: dict[str, int], order: str, completion: str = "late") -> tuple[str, bool]:
    g, (M, K, N) = np.random.default_rng(1), (sizes[s] for s in "MKN")
    H = sizes.get("H", 1)
    shapes = {"product": ((M, K), (K, N)), "linear": ((M, K), (N, K)), "batches": ((H, M, K), (H, K, N)),
              "window": ((M, K), (3, K, N))}[name]
    a, b = (g.integers(-3, 4, s).astype(BF16.numpy) for s in shapes)
    x, y = a.astype(np.float64), b.astype(np.float64)
    arrays = {"A": a, "B": b, "b": g.integers(-9, 9, N).astype(np.float32)}
    want = {"product": lambda: x @ y, "batches": lambda: x @ y, "linear": lambda: np.maximum(x @ y.T + arrays["b"], 0),
            "window": lambda: sum(x[r:M - 2 + r] @ y[r] for r in range(3))}[name]()
    arrays["C"] = np.full(want.shape, np.nan, np.float32)
    needed = {t.name for t in m.signature.tensors}
    report = emulated.run(m, sizes, {}, {n: v for n, v in arrays.items() if n in needed}, order=order, completion=completion)
    return str(report), bool(np.array_equal(arrays["C"], want))


@pytest.mark.parametrize("name", TEXTS)
def test_one_group_of_warps_copies_and_the_others_multiply(name: str) -> None:
    (launch,) = launches(module(name).launch)
    assert launch.block == 256 + croles.COPYING and launch.persistent
    head, _, consumers = module(name).text.partition("pop_registers_more")
    producer = head[head.index("pop_registers_less"):]
    assert "wgmma" not in producer and "pop_ring_load" in producer and "pop_copy_run" in producer
    assert "wgmma" in consumers and "pop_ring_load" not in consumers and "pop_copy" not in consumers
    assert re.findall(r"for \(int (k_.|r) ", producer) == re.findall(r"for \(int (k_.|r) ", consumers)


@pytest.mark.parametrize(("order", "completion"), WAYS)
@pytest.mark.parametrize(("name", "sizes"), [  # the emulated device has three multiprocessors: up to three tiles a block
    ("product", {"M": 400, "K": 264, "N": 520}), ("product", {"M": 640, "K": 72, "N": 264}),
    ("product", {"M": 1, "K": 1, "N": 1}),
    ("product", {"M": 600, "K": 64, "N": 264}), ("linear", {"M": 640, "K": 136, "N": 40}),
    ("batches", {"H": 5, "M": 130, "K": 200, "N": 24}), ("window", {"M": 600, "K": 70, "N": 24}),
])
def test_blocks_that_stay_have_all_tiles_right_and_nobody_finds_a_fault(name: str, sizes: dict[str, int], order: str,
                                                                       completion: str) -> None:
    assert right(module(name), name, sizes, order, completion) == ("no fault found", True)


def test_sums_without_terms_and_tiles_without_rows_are_results_too() -> None:
    assert right(module("product"), "product", {"M": 640, "K": 0, "N": 300}, "backward") == ("no fault found", True)
    assert right(module("product"), "product", {"M": 0, "K": 5, "N": 300}, "backward") == ("no fault found", True)


FAULTS = [
    ("consumers take a tile before it is there", "pop_consumer_barrier<1>", "pop_consumer_barrier<2>"),
    ("consumers let go of tiles that they still read", "pop_wgmma_wait<1>();", "pop_wgmma_wait<2>();"),
    ("of the last tiles too", "pop_wgmma_wait<0>();", ""),
    ("the next tile is let go of too early", "pop_wgmma_wait<1>();", "pop_wgmma_wait<1>(); pop_consumer_release(pop_arriving);"),
    ("a tile comes to another slot", "/ 64) + 2) % 4) + pop_sw", "/ 64) + 1) % 4) + pop_sw"),
    ("one warp too few is waited for", "pop_boxed ? 1 : 128, 8)", "pop_boxed ? 1 : 128, 7)"),
]


@pytest.mark.emulators
@pytest.mark.parametrize(("what", "old", "new"), FAULTS, ids=[w for w, _, _ in FAULTS])
def test_what_the_roles_tell_each_other_is_needed(what: str, old: str, new: str) -> None:
    m = module("product")
    assert old in m.text
    wrong = replace(m, text=m.text.replace(old, new))
    found = [right(wrong, "product", {"M": 640, "K": 330, "N": 264}, order) for order in ("backward", "shuffled")]
    assert any(x != ("no fault found", True) for x in found), what


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize("name", TEXTS)
def test_nothing_is_spilled_and_all_registers_of_a_multiprocessor_are_given_out(name: str) -> None:
    (taken,) = usage(nvrtc.assemble(module(name)))
    more, less = (int(x) for x in re.findall(r"pop_registers_\w+<(\d+)>", module(name).text)[::-1])
    assert taken.local == 0 and 256 * more + 128 * less <= 384 * taken.registers <= 65536


# --- which kernels have roles, and how they are cut -------------------------------------------------------------------------

TILE = Load("A_s", (affine("s"), affine("y"), affine("x")), F16)
COPY = Store("copy", (), None, (), TILE, None, Load("A", (affine("y"), affine("x")), F16), later=True)
USE = Store("use", (), None, (), Load("acc", (affine("y"),), F16), None, TILE)
FINISH = Store("finish", (), None, (), Load("C", (affine("y"),), F16), None, Load("acc", (affine("y"),), F16))
BUFFERS = {name: Buffer(name, F16, ((affine(2), 1),) * rank, space) for name, rank, space in (
    ("A_s", 3, Space.SHARED), ("A", 2, Space.TENSOR), ("acc", 1, Space.REG), ("C", 1, Space.TENSOR))}
BODY: tuple[Node, ...] = (
    For("f", affine(0), affine(2), (Barrier("first", handed=True), COPY)),
    For("k", affine(0), affine("K"), (Barrier("next", handed=True), USE, If((affine("K") - affine("k"),), (COPY, USE)))),
    FINISH)


def kernel(body: tuple[Node, ...] = BODY, persistent: bool = True) -> Part:
    loop = For("m", affine(0), affine("M"), body, kind=Kind.PARALLEL, persistent=persistent)
    return Part((Axis(loop, affine("M"), True),), body)


def test_both_roles_have_the_barriers_and_each_has_its_own_stores() -> None:
    assert structure(croles.producer(BODY)) == "f(barrier copy) k(barrier if(copy))"
    assert structure(croles.consumer(BODY)) == "f(barrier) k(barrier use if(use)) finish"
    assert croles.released(croles.consumer(BODY), BUFFERS) == 2


def roles(k: Part, boxes: tuple[str, ...] = ("copy",), threads: int = 256, shared: int = 190 << 10,
          results: int = 128) -> croles.Roles | None:
    return croles.of(k, threads, {b: Box(0, (), (), 0) for b in boxes}, shared, results, target("cuda:sm_90a"))


def test_a_kernel_has_roles_where_it_fills_a_multiprocessor_and_an_engine_does_all_its_copies() -> None:
    strong = tuple(n if not isinstance(n, For) else replace(n, body=(Barrier("a"), *n.body[1:])) for n in BODY)
    assert roles(kernel()) == croles.Roles(256, 232)
    assert roles(kernel(), boxes=()) is None
    assert roles(kernel(strong)) is None
    assert roles(kernel(persistent=False)) is None
    assert roles(kernel(), shared=96 << 10) is None  # two blocks on a multiprocessor
    assert roles(kernel(), threads=192) is None      # registers are given back by groups of four warps
    assert roles(kernel(), results=192) is None
