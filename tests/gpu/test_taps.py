"""Windows of a sum share one count of turns with its depth: what is copied and asked for, and tiles that end outside."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from gpu_texts import compiled, values

import polyop
from polyop.compiler import Compiled
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Boxes, launches
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.regimes.block_regimes import in_blocks
from polyop.rewrite.regimes.questions import questions
from polyop.runtime import cxx

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

LAST = """
op conv(X: f16[B, H, W, C], F: f16[R, S, C, K]) -> (Y: {t}[B, (H + {n} - 1) / {n}, (W + {n} - 1) / {n}, K])
    where R >= 1, S >= 1 {{
  y[b, p, q, k] += f32((X[b, {n}*p + r - 1, {n}*q + s - 1, c] else 0)) * f32(F[r, s, c, k])
  Y[b, p, q, k] = {t}(y[b, p, q, k])
}}
"""
THREE = Options(fixed=(("R", 3), ("S", 3)), tile=(64, 64), lines=((2, 4, 8), ()))
WIDE = replace(THREE, tile=(128, 128), lines=((2, 8, 8), ()))
WHERE = ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100"]
SIZES = tuple(dict(zip("BHWCKRS", n, strict=True)) for n in (
    (3, 5, 9, 72, 40, 3, 3), (1, 8, 16, 8, 136, 3, 3), (2, 1, 1, 1, 1, 3, 3), (1, 4, 3, 200, 64, 3, 3)))


def kernel(step: int, where: str, options: Options = THREE, dtype: str = "f16") -> Compiled:
    c = compiled(LAST.format(n=step, t=dtype), options, where)
    assert c.rung == "tuned" and all(p.holds for p in c.proofs) and "staged" in c.chosen[0], c.notes
    return c


def image(v: dict[str, np.ndarray], step: int) -> np.ndarray:
    x, f = v["X"].astype(np.float64), v["F"].astype(np.float64)
    (b, h, w, c), (rs, ss) = x.shape, f.shape[:2]
    wide = np.zeros((b, h + rs, w + ss, c))
    wide[:, 1:h + 1, 1:w + 1] = x
    return sum(wide[:, r:r + h:step, s:s + w:step] @ f[r, s] for r in range(rs) for s in range(ss))  # type: ignore[return-value]


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("step", [1, 2])
def test_windows_are_right_at_all_edges(where: str, step: int) -> None:
    c = kernel(step, where, dtype="f32" if step == 1 else "f16")
    for n, sizes in enumerate(SIZES):
        v = values(c, sizes, ("forward", "backward", "shuffled")[n % 3])
        want = image(v, step)
        np.testing.assert_allclose(v["Y"].astype(np.float64), want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("taps", [(1, 2), (2, 1), (1, 8), (5, 2)])
def test_turns_are_counted_over_windows_of_any_extent(taps: tuple[int, int]) -> None:
    """Also of fewer elements than turns are copied ahead."""
    for where in ("cuda:sm_90a", "hip:gfx942"):
        c = kernel(1, where, replace(THREE, fixed=tuple(zip("RS", taps, strict=True))))
        for n, sizes in enumerate(SIZES[1:]):
            v = values(c, {**sizes, "R": taps[0], "S": taps[1]}, ("forward", "backward")[n % 2])
            np.testing.assert_allclose(v["Y"].astype(np.float64), image(v, 1), rtol=2e-2, atol=2e-2)


def test_products_go_on_from_tap_to_tap() -> None:
    for options in (THREE, WIDE):
        module = kernel(1, "cuda:sm_90a", replace(options, alone=True)).module
        assert module is not None
        text = module.text
        assert text.count("pop_wgmma_wait<0>") == 1 and text.count("pop_wgmma_wait<1>") == 1
        first, turns = text.index("for (int c_f"), text.index("for (int c_c")
        assert first < turns and "for (int r = 0" not in text[:first]


def test_windows_of_sizes_that_are_not_known_have_turns_of_their_own() -> None:
    module = kernel(1, "cuda:sm_90a", replace(THREE, fixed=(), alone=True)).module
    assert module is not None and module.text.index("for (int s = 0") < module.text.index("for (int c_f")


def test_windows_in_steps_are_boxes_in_steps() -> None:
    module = kernel(2, "cuda:sm_90a").module
    assert module is not None
    (launch,) = launches(module.launch)
    assert Boxes("X", (3, 2, 1, 0), (64, 8, 4, 2), 128, (1, 2, 2, 1)) in launch.boxes
    c = kernel(9, "cuda:sm_90a")  # further than an engine goes
    assert c.module is not None
    (launch,) = launches(c.module.launch)
    assert [b.tensor for b in launch.boxes] == ["F"]


def test_rows_that_lie_outside_are_left_out_and_others_stored_as_wide_as_ever() -> None:
    """28 pixels of a line in tiles of 32 left no tile whole: all results were stored one by one."""
    for dtype, wide in (("f16", "pop_wide<4>(&Y"), ("f32", "pop_wide<2>(pop_p")):
        module = kernel(1, "cuda:sm_90a", WIDE, dtype).module
        assert module is not None
        (asked,) = re.findall(r"if \((K >= k_c \+ 128 [^{]*)\{", module.text)
        assert "W" not in re.sub(r"\(Y_s.*", "", asked) and "H" not in re.sub(r"\(Y_s.*", "", asked)
        place = module.text.index(wide)
        (test,) = re.findall(r"if \(([^{]*)\) \{", module.text[:place].rsplit("const int k_p", 1)[1])
        assert {"q_p", "p_p"} <= {*re.findall(r"\w+", test)} and "k_p" not in test


def chosen(text: str, sizes: dict[str, int], where: str = "cuda:sm_90a") -> Options:
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    return in_blocks(op, questions(op), sizes, Options(), target(where))


def test_a_call_tells_the_kernel_of_its_windows_and_of_how_few_tiles_it_has() -> None:
    sizes = {"B": 32, "H": 28, "W": 28, "C": 256, "K": 256, "R": 3, "S": 3}
    one, two = chosen(LAST.format(n=1, t="f16"), sizes), chosen(LAST.format(n=2, t="f16"), sizes)
    assert dict(one.fixed) == dict(two.fixed) == {"R": 3, "S": 3}
    assert one.lines[0] == (8, 4, 4) and not one.alone  # all pixels of 28 x 28
    assert two.tile == (128, 128) and two.alone  # 98 tiles, which take as long as twice as many of half the size
    assert not chosen(LAST.format(n=1, t="f16"), {**sizes, "R": 9, "S": 9}).fixed


def test_few_tiles_have_as_many_slots_as_many_have() -> None:
    module = kernel(1, "cuda:sm_90a", replace(THREE, alone=True)).module
    assert module is not None and "4 x 64 x 64" in module.text


FIRST = """
op conv(X: f16[B, C, H, W], F: f16[K, C, 3, 3]) -> (Y: f16[B, K, H, W]) {
  y[b, k, p, q] += f32((X[b, c, p + r - 1, q + s - 1] else 0)) * f32(F[k, c, r, s])
  Y[b, k, p, q] = f16(y[b, k, p, q])
}
"""


def test_lines_of_an_even_number_of_pixels_are_stored_by_two() -> None:
    c = compiled(FIRST, Options(inward=(("X", 1), ("F", 1)), tile=(64, 128), lines=((), (2, 4, 16))), "cuda:sm_90a")
    assert c.module is not None
    text = c.module.text
    assert "pop_wide<4>(&Y" in text and re.search(r"if \(pop_is_wide<4>\(Y\) .* && \(W - q_c\) % 2 == 0\)", text)
    for n, (w, k) in enumerate(((14, 64), (2, 9), (15, 66), (16, 3), (18, 8))):
        v = values(c, {"B": 3, "C": 8, "H": 5, "W": w, "K": k}, ("forward", "backward", "shuffled")[n % 3])
        turned = {"X": v["X"].transpose(0, 2, 3, 1), "F": v["F"].transpose(2, 3, 1, 0)}
        np.testing.assert_allclose(v["Y"].transpose(0, 2, 3, 1).astype(np.float64), image(turned, 1), rtol=2e-2, atol=2e-2)
