"""Each matrix unit on the emulator: what a lane holds is what its row of `ir/atoms.py` says, element by element."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from gpu_kernels import ran

from polyop.ir.atoms import ROWS, Atom
from polyop.ir.dtypes import F32, DType
from polyop.ir.errors import UnsupportedError
from polyop.ir.module import Module
from polyop.runtime import cxx, emulated, nvrtc

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

IN_REGISTERS = [x for x in ROWS if x.b_map is not None]
STORED = {"f16": "pop_u16", "bf16": "pop_u16", "f32": "float", "f64": "double", "i8": "pop_i8", "u8": "pop_u8", "i32": "int"}


def random(t: DType, shape: tuple[int, ...], g: np.random.Generator) -> np.ndarray:
    if t.is_float:
        return g.uniform(-1, 1, shape).astype(t.numpy)
    return g.integers(t.lowest, int(t.highest) + 1, shape).astype(t.numpy)


def as_tf32(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def operand(name: str, t: DType, regs: int) -> tuple[str, str]:
    """The declaration of an operand's registers and the statement that fills them from the array of that name."""
    words, each = regs * t.bytes_ // 4, f"{name.upper()} + t * {regs}"
    if t.bits < 32 or (t == F32 and regs > 1):
        taken = f"pop_move<4>(&{name}[i], (const char*)({each}) + 4 * i);"  # NVRTC has no memcpy
        return f"pop_u32 {name}[{words}];", f"for (int i = 0; i < {words}; i++) {taken}"
    if regs > 1:
        return f"{STORED[t.name]} {name}[{regs}];", f"for (int i = 0; i < {regs}; i++) {name}[i] = ({each})[i];"
    return f"{STORED[t.name]} {name};", f"{name} = *({each});"


def multiplied(x: Atom, a: np.ndarray, b: np.ndarray, c: np.ndarray, order: str) -> np.ndarray:
    """c + a * b by the atom, whose operands are dealt out to the lanes as its maps say."""
    assert x.a_map is not None and x.b_map is not None
    dealt = {n: np.zeros(x.warp * f.regs, m.dtype) for n, f, m in (("A", x.a_map, a), ("B", x.b_map, b), ("C", x.c_map, c))}
    for n, f, m in (("A", x.a_map, a), ("B", x.b_map, b), ("C", x.c_map, c)):
        for lane, reg, i, j in f.places(x.warp):
            dealt[n][lane * f.regs + reg] = m[i, j]
    regs = x.c_map.regs
    pairs = [operand("a", x.a, x.a_map.regs), operand("b", x.b, x.b_map.regs)]
    result = STORED[x.c.name]
    body = "\n".join([*(d for d, _ in pairs), *(s for _, s in pairs), f"{result} d[{regs}];",
                      f"for (int r = 0; r < {regs}; r++) d[r] = C[t * {regs} + r];", f"{x.wrapper}(d, a, b);",
                      f"for (int r = 0; r < {regs}; r++) Y[t * {regs} + r] = d[r];"])
    arrays = {**dealt, "Y": np.zeros(x.warp * regs, c.dtype)}
    name = ("hip:" if x.targets[0].startswith("gfx") else "cuda:") + x.targets[0]
    report = ran(body, arrays, block=x.warp, target=name, order=order)
    assert str(report) == "no fault found"
    out = np.zeros((x.m, x.n), c.dtype)
    for lane, reg, i, j in x.c_map.places(x.warp):
        out[i, j] = arrays["Y"][lane * regs + reg]
    return out


@pytest.mark.parametrize("order", ["forward", "shuffled"])
@pytest.mark.parametrize("x", IN_REGISTERS, ids=lambda x: x.name)
def test_an_atom_multiplies_what_its_maps_deal_out(x: Atom, order: str) -> None:
    g = np.random.default_rng(1)
    a, b, c = random(x.a, (x.m, x.k), g), random(x.b, (x.k, x.n), g), random(x.c, (x.m, x.n), g)
    got = multiplied(x, a, b, c, order)
    if x.c.is_integer:
        wide = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
        np.testing.assert_array_equal(got, wide.astype(np.int32))
        return
    if not x.exact:
        a, b = as_tf32(a), as_tf32(b)
    expected = c.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(got, expected, rtol=0, atol=float(np.finfo(got.dtype).eps) * 8)


@pytest.mark.parametrize("x", IN_REGISTERS, ids=lambda x: x.name)
def test_every_single_element_lands_where_the_maps_say(x: Atom) -> None:
    """a and b are 0 but for one element each, in turn along the diagonals, so no two errors can cancel."""
    for at in range(0, x.m, 5):
        i, k, j = at, (3 * at + 1) % x.k, (2 * at + 3) % x.n
        a, b, c = np.zeros((x.m, x.k), x.a.numpy), np.zeros((x.k, x.n), x.b.numpy), np.zeros((x.m, x.n), x.c.numpy)
        a[i, k], b[k, j] = 3, 2
        expected = c.copy()
        expected[i, j] = 6
        np.testing.assert_array_equal(multiplied(x, a, b, c, "forward"), expected)


def test_sixteen_bit_numbers_of_all_sorts_are_read_right() -> None:
    """Subnormals, infinities and signs of f16 and bf16 go through a product with the identity."""
    for x in IN_REGISTERS:
        if x.a.bits != 16 or x.name.startswith("wmma"):
            continue
        values = np.array([0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x3C00, 0x8000], np.uint16).view(x.a.numpy)
        a, b = np.zeros((x.m, x.k), x.a.numpy), np.zeros((x.k, x.n), x.b.numpy)
        least = min(x.m, x.k)
        a[:least, :least], b[0, : values.size] = np.eye(least), values
        got = multiplied(x, a, b, np.zeros((x.m, x.n), np.float32), "forward")
        np.testing.assert_array_equal(got[0, : values.size], values.astype(np.float32) + np.float32(0))


def test_a_kernel_that_deals_out_wrongly_is_found_by_its_values() -> None:
    x = next(r for r in ROWS if r.name == "mma_m16n8k16_bf16")
    assert x.a_map is not None
    wrong = replace(x, a_map=replace(x.a_map, row=x.c_map.column * 2, column=x.a_map.column))
    g = np.random.default_rng(2)
    a, b = random(x.a, (16, 16), g), random(x.b, (16, 8), g)
    c = np.zeros((16, 8), np.float32)
    got = multiplied(wrong, a, b, c, "forward")
    assert a.dtype == ml_dtypes.bfloat16
    assert np.abs(got - a.astype(np.float64) @ b.astype(np.float64)).max() > 0.1


@pytest.mark.parametrize(("body", "line"), [
    ("if (t < 16) pop_mma_m16n8k8_tf32(d, a, b);", "pop_mma_m16n8k8_tf32(d, a, b);"),
    ("if (t < 16) pop_mma_m16n8k8_tf32(d, a, b); else pop_mma_m16n8k16_f16(d, a, b);", "pop_mma"),
])
def test_lanes_that_do_not_take_part_are_reported(body: str, line: str) -> None:
    body = f"float d[4] = {{0, 0, 0, 0}};\npop_u32 a[4] = {{0, 0, 0, 0}}, b[2] = {{0, 0}};\n{body}\nY[t] = d[0];"
    report = ran(body, {"Y": np.zeros(32, np.float32)})
    assert [f.what for f in report.findings] == ["divergent collective"]
    assert line in report.findings[0].code


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize("name", ["mma_m16n8k16_f16", "mma_m16n8k8_tf32", "mma_m8n8k4_f64", "mma_m16n8k32_s8u8"])
def test_nvidias_compiler_takes_what_a_device_is_to_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Module] = []
    monkeypatch.setattr(emulated, "run", lambda m, *given, **how: made.append(m) or emulated.Report(None, ()))
    x = next(x for x in IN_REGISTERS if x.name == name)
    multiplied(x, *(np.zeros(s, t.numpy) for t, s in ((x.a, (x.m, x.k)), (x.b, (x.k, x.n)), (x.c, (x.m, x.n)))), "forward")
    code, said = nvrtc.compiled(made[0])
    assert code and not said
