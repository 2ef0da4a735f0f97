"""Tiles that an engine copies as boxes of tensors: at all edges, by threads where a tensor does not lie so, and waited for."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from fake_gpu import FakeGpu
from test_instructions import ptx

import polyop
from polyop.codegen.c import boxes as cboxes
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import F16
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine
from polyop.ir.loops import Buffer, For, Kind, Space, Store
from polyop.ir.module import Boxes, launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.runtime import cxx, emulated, nvrtc
from polyop.runtime.boxes import emulated as words
from polyop.runtime.boxes import view_of
from polyop.runtime.layout import contiguous

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

TEXTS = {
    "rows": "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }",
    "few": "op mm(A: f16[M, K], B: f16[K, 100]) -> (C: f32[M, 100]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }",
    "columns": "op mm(A: f16[K, M], B: f16[N, K]) -> (C: f32[M, N]) { C[m,n] += f32(A[k,m]) * f32(B[n,k]) }",
    "batches": "op mm(A: f16[B, M, K], X: f16[B, K, N]) -> (C: f32[B, M, N]) { C[b,m,n] += f32(A[b,m,k]) * f32(X[b,k,n]) }",
    "windows": "op mm(X: f16[B, W, C], F: f16[K, C, 3]) -> (Y: f32[B, W - 2, K]) { Y[b,p,k] += f32(X[b,p+r,c]) * f32(F[k,c,r]) }",
    "moved": "op mm(X: f16[B, C, W], F: f16[K, C, 3]) -> (Y: f32[B, K, W - 2]) { Y[b,k,p] += f32(X[b,c,p+r]) * f32(F[k,c,r]) }",
}
BOXES = {
    "rows": [Boxes("A", (1, 0), (64, 128), 128), Boxes("B", (1, 0), (64, 64), 128)],
    "few": [Boxes("A", (1, 0), (64, 128), 128), Boxes("B", (1, 0), (64, 64), 128)],
    "columns": [Boxes("A", (1, 0), (64, 64), 128), Boxes("B", (1, 0), (64, 256), 128)],
    "batches": [Boxes("A", (2, 1, 0), (64, 128, 1), 128), Boxes("X", (2, 1, 0), (64, 64, 1), 128)],
    "windows": [Boxes("X", (2, 1, 0), (64, 128, 1), 128)],  # filters lie apart by 3
    "moved": [],  # begins between multiples of 16 bytes
}


@cache
def compiled(name: str) -> Compiled:
    operator = polyop.op(TEXTS[name])
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options())
    assert c.rung == "tuned" and c.module is not None
    return c


@pytest.mark.parametrize("name", TEXTS)
def test_whole_tiles_inside_a_tensor_are_boxes(name: str) -> None:
    module = compiled(name).module
    assert module is not None
    (launch,) = launches(module.launch)
    assert sorted(launch.boxes, key=lambda b: b.tensor) == sorted(BOXES[name], key=lambda b: b.tensor)
    for k, b in enumerate(launch.boxes):
        assert f"pop_u32 pop_boxed{k}" in module.text and f"const __grid_constant__ pop_tensor_map pop_map{k}" in module.text, b


def right(module: Any, m: int, k: int, n: int, **how: str) -> tuple[str, bool]:
    g = np.random.default_rng(m + k + n)
    a, b = (g.integers(-3, 4, s).astype(np.float16) for s in ((m, k), (k, n)))
    arrays = {"A": a, "B": b, "C": np.full((m, n), np.nan, np.float32)}
    sizes = {s: x for s, x in (("M", m), ("K", k), ("N", n)) if s in module.signature.sizes}
    report = emulated.run(module, sizes, {}, arrays, **how)
    return str(report), bool(np.array_equal(arrays["C"], a.astype(np.float64) @ b.astype(np.float64)))


@pytest.mark.parametrize("order", emulated.ORDERS)  # rows lie as the engine needs them in all orders but the first
@pytest.mark.parametrize("completion", emulated.COMPLETIONS)
@pytest.mark.parametrize(("name", "n"), [("rows", 40), ("few", 100)])
def test_sums_of_any_number_of_turns_find_their_boxes(name: str, n: int, order: str, completion: str) -> None:
    for k in (1, 64, 65, 128, 192, 193, 256, 300, 330):
        assert right(compiled(name).module, 17, k, n, order=order, completion=completion) == ("no fault found", True), k


FAULTS = [
    ("nobody waits for them", r"pop_units_barrier<1>\(pop_arriving\)", "pop_units_barrier<1>()"),
    ("other bytes come than are announced", r"16384, ", "8192, "),
    ("a box is not where it should be", r"\(int\)\(k_c \+ 128\)", "(int)(k_c + 64)"),
    ("a box comes to another slot", r"(pop_ring_load\(pop_arriving, &A_S0_tile0\[.*?)\+ 2\) % 3", r"\1+ 1) % 3"),
    ("two threads ask", r"if \(pop_n == 0\) \{  // S0_next", "if (pop_n < 2) {  // S0_next"),
    ("nobody waits before the block ends", r"pop_ring_end<1>\(pop_arriving\);", ""),
]


@pytest.mark.emulators
@pytest.mark.parametrize(("what", "old", "new"), FAULTS, ids=[w for w, _, _ in FAULTS])
def test_what_goes_around_a_box_is_needed(what: str, old: str, new: str) -> None:
    module = compiled("few").module
    assert module is not None
    text, count = re.subn(old, new, module.text)
    assert count
    found = [right(replace(module, text=text), 17, k, 100, order="backward") for k in (64, 330)]
    assert any(x != ("no fault found", True) for x in found), what


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
def test_a_box_is_one_instruction() -> None:
    for name, dims in (("rows", 2), ("batches", 3)):
        module = compiled(name).module
        assert module is not None
        code = ptx(module.text, "sm_90a")
        assert f"cp.async.bulk.tensor.{dims}d.shared::cluster.global.mbarrier::complete_tx::bytes" in code
        assert "mbarrier.try_wait.parity" in code


# --- what is a box ------------------------------------------------------------------------------------------------------

Y, X = affine("y") + affine("z") * 32, affine("x") + affine("v")
TILE = Buffer("A_s", F16, ((affine(2), 1), (affine(64), 1), (affine(64), 1)), Space.SHARED, swizzle=128)
TENSOR = Buffer("A", F16, ((affine("M"), 1), (affine("K"), 1)), Space.TENSOR, 1)
ROW, COLUMN = affine("m") + Y, affine("k") + X
INSIDE = (affine("M") - 1 - affine("m") - Y, affine("K") - 1 - affine("k") - X)


def nest(row: Affine = ROW, column: Affine = COLUMN, guard: tuple[Affine, ...] = INSIDE, rows: int = 2,
         later: bool = True) -> For:
    source, to = Load("A", (row, column), F16, guard), Load("A_s", (affine("s"), Y, X), F16)
    s = Store("S", (), None, (), to, None, source, later=later)
    inner = For("v", affine(0), affine(8), (s,), kind=Kind.ROWS, extent=8)
    inner = For("z", affine(0), affine(rows), (inner,), kind=Kind.ROWS, extent=rows)
    inner = For("x", affine(0), affine(64), (inner,), 8, Kind.THREADS, 8, 1)
    return For("y", affine(0), affine(32), (inner,), kind=Kind.THREADS, extent=32, weight=8)


def boxes(n: For, tensor: Buffer = TENSOR, tile: Buffer = TILE) -> tuple[Boxes, ...]:
    return cboxes.found((n,), {"A": tensor, "A_s": tile}, {"m": 1, "k": 8})[1]


def test_a_copy_is_a_box_where_it_takes_a_whole_tile_and_zeros_outside_of_the_tensor() -> None:
    assert boxes(nest()) == (Boxes("A", (1, 0), (64, 64), 128),)
    assert boxes(nest(guard=INSIDE[:1])) == boxes(nest(guard=(*INSIDE, affine("m") + Y))) == boxes(nest())


@pytest.mark.parametrize(("why", "n"), [
    ("a condition cuts further", nest(guard=(*INSIDE, affine("k") + X - 3))),
    ("half of the tile", nest(rows=1)),
    ("every other row", nest(row=affine("m") + Y * 2)),
    ("rows and columns together", nest(row=affine("m") + Y + X)),
    ("turned", nest(row=affine("m") + X, column=affine("k") + Y)),
    ("at once", nest(later=False)),
    ("between 16 bytes", nest(column=affine("k") + 4 + X, guard=())), ("anywhere", nest(column=affine("m") + X, guard=())),
], ids=lambda x: x if isinstance(x, str) else "")
def test_what_is_no_box_is_copied_by_threads(why: str, n: For) -> None:
    assert boxes(n) == (), why


def test_what_lies_apart_or_is_not_swizzled_is_no_box() -> None:
    assert boxes(nest(), replace(TENSOR, unit=None)) == boxes(nest(), replace(TENSOR, unit=0)) == ()
    assert boxes(nest(), tile=replace(TILE, swizzle=0)) == ()


# --- what the engine is told ----------------------------------------------------------------------------------------------

PLAIN = Boxes("A", (1, 0), (64, 128), 128)


def test_a_tensor_is_told_where_addresses_and_strides_are_multiples_of_16_bytes() -> None:
    v = view_of(PLAIN, 2, 4096, (100, 70), (72, 1))
    assert v is not None and (v.shape, v.strides) == ((70, 100), (144,))
    assert words(v)[:8] == (4096, 70, 100, 144, 64, 128, 2, 128)
    assert any(words(v)) and not any(words(None))


@pytest.mark.parametrize(("why", "address", "shape", "strides"), [
    ("its address", 4098, (100, 70), (72, 1)), ("a stride", 4096, (100, 70), (70, 1)), ("backwards", 4096, (100, 70), (-72, 1)),
    ("all rows are one", 4096, (100, 70), (0, 1)), ("elements lie apart", 4096, (100, 70), (144, 2)),
    ("far apart", 4096, (2, 70), (1 << 40, 1)), ("nothing in it", 4096, (0, 70), (72, 1)),
])
def test_other_tensors_are_not(why: str, address: int, shape: tuple[int, int], strides: tuple[int, int]) -> None:
    assert view_of(PLAIN, 2, address, shape, strides) is None, why


def test_the_stride_of_a_dimension_with_one_element_says_nothing() -> None:
    v = view_of(PLAIN, 2, 4096, (1, 70), (35, 1))
    assert v is not None and v.strides == (16,)


# --- calls ------------------------------------------------------------------------------------------------------------------


def placed(x: np.ndarray, beyond: int = 0) -> np.ndarray:
    """A copy of `x`, so many elements behind an address that is a multiple of 16 bytes."""
    room = np.zeros(x.size + 16, x.dtype)
    first = -room.ctypes.data % 16 // x.itemsize + beyond
    room[first:first + x.size] = x.reshape(-1)
    return room[first:first + x.size].reshape(x.shape)


@pytest.mark.parametrize(("beyond", "told"), [(0, 2), (1, 1)])
def test_calls_tell_the_engine_of_arrays_that_lie_so_and_remember_what_they_told(torch: Any, cuda: FakeGpu, beyond: int,
                                                                                 told: int) -> None:
    g = np.random.default_rng(2)
    a, b = (g.integers(-3, 4, s).astype(np.float16) for s in ((40, 72), (72, 160)))
    mm, want = polyop.op(TEXTS["rows"], options=Options(special=False)), a.astype(np.float32) @ b.astype(np.float32)
    x, y = torch.on_gpu(placed(a, beyond)), torch.on_gpu(placed(b))
    for _ in range(4):
        np.testing.assert_array_equal(np.asarray(mm(x, y).array), want)
    assert cuda.calls("cuTensorMapEncodeTiled") == told


# --- copies in work memory, and tiles of several lines of an image ------------------------------------------------------------

IMAGE = """op conv(X: f16[B, C, H, W], F: f16[K, C, R, S]) -> (Y: f32[B, K, H, W]) where R >= 1, S >= 1 {
    Y[b,k,p,q] += f32((X[b,c,p+r-1,q+s-1] else 0)) * f32(F[k,c,r,s])  where p in 0:H, q in 0:W }"""
LINES = """op conv(X: f16[B, C, H, W], F: f16[K, C, R, S]) -> (Y: f32[B, K, H, W]) where R >= 1, S == 1 {
    Y[b,k,p,q] += f32((X[b,c,p+r-1,q] else 0)) * f32(F[k,c,r,0])  where p in 0:H, q in 0:W }"""
ALONG = Options(special=False, inward=(("F", 1), ("X", 1)), tile=(64, 64), lines=((), (1, 4, 16)))
SHAPES = tuple(dict(zip("BCHWKRS", n, strict=True))
               for n in ((2, 72, 5, 16, 70, 3, 3), (1, 130, 3, 20, 5, 1, 2), (1, 8, 1, 1, 1, 3, 3)))
OF_F = Boxes("F_inward", (3, 0, 1, 2), (64, 64, 1, 1), 128)


def image(sizes: dict[str, int]) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """An image and filters, and what their convolution is, whose windows go along lines if they have more than one column."""
    b, c, h, w, k, r, s = (sizes[n] for n in "BCHWKRS")
    g = np.random.default_rng(h + w)
    x, f = (g.integers(-3, 4, shape).astype(np.float16) for shape in ((b, c, h, w), (k, c, r, s)))
    wide, want = np.zeros((b, c, h + r, w + s)), np.zeros((b, k, h, w))
    wide[:, :, 1:h + 1, s > 1:w + (s > 1)] = x
    for i in range(r):
        for j in range(s):
            want += np.einsum("bchw,kc->bkhw", wide[:, :, i:i + h, j:j + w], f[:, :, i, j].astype(np.float64))
    return {"X": x, "F": f, "Y": np.full(want.shape, np.nan, np.float32)}, want


@pytest.mark.parametrize(("text", "options", "told"), [
    (IMAGE, ALONG, {OF_F, Boxes("X_inward", (3, 2, 1, 0), (64, 16, 4, 1), 128)}),
    (IMAGE, replace(ALONG, inward=ALONG.inward[:1]), {OF_F}),
    (LINES, replace(ALONG, inward=ALONG.inward[:1], tile=(64, 128), lines=((), (1, 2, 64))),
     {Boxes("F_inward", (3, 0, 1, 2), (64, 64, 1, 1), 128), Boxes("X", (3, 1, 2, 0), (64, 64, 1, 1), 128)}),
], ids=["copies", "a copy of filters", "lines of an image side by side"])
def test_images_are_boxes_of_copies_and_of_lines(text: str, options: Options, told: set[Boxes]) -> None:
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    module = compile_op(op, contiguous(op), target("cuda:sm_90a"), options).module
    assert module is not None
    assert {b for x in launches(module.launch) for b in x.boxes} == told
    for k, sizes in enumerate(SHAPES):
        arrays, want = image(sizes if text == IMAGE else {**sizes, "S": 1})
        report = emulated.run(module, sizes, {}, arrays, order=emulated.ORDERS[k % 3], completion=emulated.COMPLETIONS[k % 2])
        assert str(report) == "no fault found"
        np.testing.assert_array_equal(arrays["Y"], want)


def test_what_a_kernel_writes_itself_is_no_box() -> None:
    written = Store("T", (), None, (), Load("A", (affine("y"), affine("x")), F16), None, Load("B", (), F16))
    assert cboxes.found((nest(), written), {"A": TENSOR, "A_s": TILE}, {"m": 1, "k": 8})[1] == ()


def test_calls_tell_the_engine_of_work_memory(torch: Any, cuda: FakeGpu) -> None:
    arrays, want = image(SHAPES[0])
    conv, x, f = polyop.op(IMAGE, options=ALONG), torch.on_gpu(placed(arrays["X"])), torch.on_gpu(placed(arrays["F"]))
    for _ in range(3):
        np.testing.assert_array_equal(np.asarray(conv(x, f).array), want)
    assert cuda.calls("cuTensorMapEncodeTiled") >= 2


def test_pixels_of_an_image_are_one_dimension_where_windows_have_one_element(torch: Any, cuda: FakeGpu) -> None:
    conv = polyop.op("op conv(X: f16[B, C, H, W], F: f16[K, C, R, S]) -> (Y: f32[B, K, H - R + 1, W - S + 1]) "
                     "{ Y[b,k,p,q] += f32(X[b,c,p+r,q+s]) * f32(F[k,c,r,s]) }")
    g = np.random.default_rng(3)
    x, f = (g.integers(-3, 4, s).astype(np.float16) for s in ((2, 72, 4, 4), (64, 72, 1, 1)))
    got = conv(torch.on_gpu(placed(x)), torch.on_gpu(placed(f)))
    np.testing.assert_array_equal(np.asarray(got.array), np.einsum("bchw,kc->bkhw", x.astype(np.float64), f[:, :, 0, 0]))
    assert cuda.calls("cuLaunchKernel") == 1  # rows of 8 bytes would be copied first
