"""Tiles whose rows, or columns, run over several indices: squares of pixels, on the emulator and by the compilers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake_gpu import FakeGpu, Interface
from gpu_texts import compiled, values

import polyop
from polyop.compiler import Compiled
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Boxes, launches
from polyop.ir.options import Options
from polyop.runtime import amdgcn, cxx, nvrtc
from polyop.runtime.usage import usage

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

LAST = """
op conv(X: {t}[B, H, W, C], F: {t}[2, 3, C, K]) -> (Y: {t}[B, H, W, K]) {{
  y[b, p, q, k] += f32((X[b, p + r, q + s - 1, c] else 0)) * f32(F[r, s, c, k])
  Y[b, p, q, k] = {t}(y[b, p, q, k])
}}
"""
FIRST = """
op conv(X: {t}[B, C, H, W], F: {t}[K, C, 2, 3]) -> (Y: {t}[B, K, H, W]) {{
  y[b, k, p, q] += f32((X[b, c, p + r, q + s - 1] else 0)) * f32(F[k, c, r, s])
  Y[b, k, p, q] = {t}(y[b, k, p, q])
}}
"""
TENSORS = """
op tensors(A: {t}[I, M, J], B: {t}[K, M, L]) -> (Y: {t}[I, K, J, L]) {{
  t[i, k, j, l] += f32(A[i, m, j]) * f32(B[k, m, l])
  Y[i, k, j, l] = {t}(t[i, k, j, l])
}}
"""
WHERE = ["cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100"]
PIXELS = [((2, 4, 16), ()), ((1, 8, 16), ()), ((4, 4, 8), ()), ((32, 1, 4), ()), ((128, 1, 1), ())]


def images(v: dict[str, np.ndarray], last: bool) -> np.ndarray:
    x, f = v["X"].astype(np.float64), v["F"].astype(np.float64)
    x, f = (x, f) if last else (x.transpose(0, 2, 3, 1), f.transpose(2, 3, 1, 0))
    b, h, w, c = x.shape
    wide = np.zeros((b, h + 1, w + 2, c))
    wide[:, :h, 1:w + 1] = x
    y = sum(wide[:, r:r + h, s:s + w] @ f[r, s] for r in range(2) for s in range(3))
    return np.asarray(y if last else y.transpose(0, 3, 1, 2))


def tiles(text: str, lines: tuple[tuple[int, ...], ...], where: str, dtype: str = "f16",
          sides: tuple[int, int] = (128, 128)) -> Compiled:
    c = compiled(text.format(t=dtype), Options(tile=sides, lines=lines), where)
    assert c.rung == "tuned" and all(p.holds for p in c.proofs) and len([x for x in c.chosen if " and " in x]) == 1, c.notes
    return c


def is_right(c: Compiled, sizes: dict[str, int], order: str, want: Callable[[dict[str, np.ndarray]], np.ndarray]) -> None:
    v = values(c, sizes, order)
    found = v["Y"].astype(np.float64)
    loose = 1e-4 if v["Y"].dtype == np.float32 else 2e-2
    np.testing.assert_allclose(found, want(v), rtol=loose, atol=loose)


@pytest.mark.parametrize(("where", "k"), [(w, (n + m) % len(PIXELS)) for n, w in enumerate(WHERE) for m in (0, 2)])
def test_pixels_of_several_lines_and_images_are_rows_of_a_tile(where: str, k: int) -> None:
    c = tiles(LAST, PIXELS[k], where, "f32" if (k + WHERE.index(where)) % 3 == 0 else "f16")
    for n, sizes in enumerate(({"B": 3, "H": 3, "W": 5, "C": 33, "K": 24}, {"B": 1, "H": 5, "W": 9, "C": 8, "K": 9},
                               {"B": 2, "H": 1, "W": 1, "C": 1, "K": 1})):
        is_right(c, sizes, ("forward", "backward")[(n + k) % 2], lambda v: images(v, last=True))


@pytest.mark.parametrize("where", WHERE)
def test_columns_and_both_sides_may_be_several_indices(where: str) -> None:
    c = tiles(FIRST, ((), (2, 4, 16)), where)
    for n, sizes in enumerate(({"B": 3, "H": 3, "W": 5, "C": 33, "K": 9}, {"B": 1, "H": 2, "W": 17, "C": 64, "K": 4})):
        is_right(c, sizes, ("forward", "backward")[n], lambda v: images(v, last=False))
    c = tiles(TENSORS, ((8, 16), (4, 32)), where)
    for n, sizes in enumerate(({"I": 3, "J": 5, "M": 20, "K": 5, "L": 9}, {"I": 9, "J": 16, "M": 70, "K": 5, "L": 32})):
        is_right(c, sizes, ("forward", "backward")[n],
                 lambda v: np.einsum("imj,kml->ikjl", v["A"].astype(np.float64), v["B"].astype(np.float64)))


def test_lines_that_are_not_those_of_the_product_are_left_alone() -> None:
    for lines in (((8, 16), ()), ((1, 8, 8), ()), ((1, 1, 128), ())):
        c = compiled(LAST.format(t="f16"), Options(tile=(128, 128), lines=lines))
        assert "rows q x 128, columns k x 128" in c.chosen[0], c.chosen


def test_a_square_of_pixels_is_one_box() -> None:
    module = tiles(LAST, ((2, 4, 16), ()), "cuda:sm_90a").module
    assert module is not None
    (launch,) = launches(module.launch)
    assert Boxes("X", (3, 2, 1, 0), (64, 16, 4, 2), 128) in launch.boxes
    module = tiles(LAST, ((64, 1, 2), ()), "cuda:sm_90a").module
    assert module is not None
    (launch,) = launches(module.launch)
    assert Boxes("X", (3, 2, 0, 1), (64, 2, 64, 1), 128) in launch.boxes


def test_boxes_and_copies_by_threads_bring_the_same_squares() -> None:
    c = tiles(LAST, ((2, 4, 16), ()), "cuda:sm_90a")
    for order in ("forward", "backward", "shuffled"):  # rows lie as the engine needs them in all orders but the first
        is_right(c, {"B": 3, "H": 3, "W": 18, "C": 136, "K": 72}, order, lambda v: images(v, last=True))


@pytest.mark.parametrize(("where", "sides", "most"), [
    ("cuda:sm_80", (128, 128), 224), ("cuda:sm_90a", (128, 128), 128), ("cuda:sm_90a", (128, 256), 168),
    ("hip:gfx942", (128, 128), 224), ("hip:gfx1100", (128, 128), 208)])
def test_tiles_of_squares_take_no_more_registers(where: str, sides: tuple[int, int], most: int) -> None:
    tool = nvrtc if where.startswith("cuda") else amdgcn
    if tool.unavailable():
        pytest.skip(tool.unavailable())
    for lines in ((1, 8, 16), (32, 1, 4)):
        module = tiles(LAST, (lines, ()), where, sides=sides).module
        assert module is not None
        (kernel,) = usage(tool.assemble(module, "strict"))
        assert kernel.registers <= most and not kernel.spills and not kernel.local, kernel


def test_a_call_with_small_images_gets_squares_of_pixels(cuda: FakeGpu) -> None:
    op, rng = polyop.op(LAST.format(t="f32")), np.random.default_rng(3)
    x, f = rng.standard_normal((5, 7, 7, 9)).astype(np.float32), rng.standard_normal((2, 3, 9, 20)).astype(np.float32)
    y = op(Interface(x), Interface(f)).numpy()
    np.testing.assert_allclose(y, images({"X": x, "F": f}, last=True), atol=1e-4)
