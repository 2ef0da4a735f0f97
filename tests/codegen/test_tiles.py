"""Matrix tiles: the machine code has them, and what they are asked to do is right: on hardware that has them, and with each
instruction done by a function elsewhere."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm
import numpy as np
import pytest

from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dots import matrix
from polyop.ir.dtypes import BF16, DTYPES, F32, I8, I16, I32, I64, U8
from polyop.ir.options import TURNED, Options
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.runtime.cpu import cpu_features, usable
from polyop.runtime.layout import contiguous
from tests.codegen.harness import FEATURES, V4, load

AMX = target("x86:sapphirerapids")
WITHOUT = replace(V4, name="vnni", features="+avx512vnni,+avx512bf16")
here = pytest.mark.skipif(not (FEATURES.get("avx512vnni") and FEATURES.get("avx512bf16")), reason="no AVX512-BF16 here")
tiled = pytest.mark.skipif(not cpu_features().get("amx-tile"), reason="no matrix tiles here")
DTYPE = {"bf16": "f32", "i8": "i32", "u8": "i32"}
PAIRS = [("bf16", "bf16", "tdpbf16ps"), ("i8", "i8", "tdpbssd"), ("u8", "i8", "tdpbusd"), ("i8", "u8", "tdpbsud"),
         ("u8", "u8", "tdpbuud")]
MATMUL = "op f(A: {0}[M, K], B: {1}[K, N]) -> (C: {2}[M, N]) {{ C[m, n] += {2}(A[m, k]) * {2}(B[k, n]) }}"
COLUMNS = MATMUL.replace("B: {1}[K, N]", "B: {1}[N, K]").replace("B[k, n]", "B[n, k]")
FILTER = """op f(A: {0}[M, K], B: {1}[3, K, N]) -> (C: {2}[M-2, N]) {{
    C[m, n] += {2}(A[m + r, k]) * {2}(B[r, k, n])  where m in 0:M-2 }}"""


@cache
def made(text: str, left: str, right: str, **options):
    op = instantiate(parse(Source("<test>", text.format(left, right, DTYPE[left]))), "f")
    out = compile_op(op, contiguous(op), AMX, Options(**options))
    assert out.rung == "tuned" and all(p.holds for p in out.proofs)
    return out


def machine_code(text: str) -> str:
    m = llvm.parse_assembly(text)
    machine = llvm.Target.from_default_triple().create_target_machine(cpu=AMX.arch, features=AMX.features, opt=2, reloc="pic",
                                                                      codemodel="small")
    return machine.emit_assembly(m)


@pytest.mark.parametrize("left,right,name", PAIRS)
def test_tiles_are_configured_once_and_never_spilled(left, right, name):
    code = machine_code(made(MATMUL, left, right).module.text)
    lines = [x.split()[0] for x in code.splitlines() if x.startswith("\t") and x.strip()]
    assert lines.count("ldtilecfg") == lines.count("tilerelease") == 1 and "sttilecfg" not in lines
    blocks = [x for x in re.split(r"\n\.L\w+:", code) if name in x]
    whole = [x for x in blocks if x.count(name) == x.count("tileloadd") == 4 and "zmm" not in x and "tilestored" not in x]
    assert any("\tj" in x for x in whole)


def test_only_targets_with_tiles_and_dtypes_that_these_take_have_them():
    assert matrix(AMX, F32, BF16, BF16) and matrix(AMX, I32, U8, I8) and not matrix(WITHOUT, F32, BF16, BF16)
    assert not matrix(AMX, I32, I16, I16) and not matrix(AMX, I64, I8, I8)
    assert not matrix(replace(AMX, features="+amx-tile"), I32, I8, I8)
    assert "x86_amx" not in made(MATMUL, "bf16", "bf16", numerics="strict").module.text


def test_tiles_are_not_used_where_the_system_refuses_them():
    found = {"avx2": True, "amx-tile": True, "amx-int8": True}
    assert usable(found, lambda: True) == found and usable({"avx2": True}, lambda: False) == {"avx2": True}
    assert usable(found, lambda: False) == {"avx2": True, "amx-tile": False, "amx-int8": False}


class Tiles:
    """What each instruction does, by number of the tile; `text` calls it instead."""

    def __init__(self) -> None:
        self.tiles: list[np.ndarray] = []
        self.products = 0
        i, p = ctypes.c_int64, ctypes.c_void_p
        h = ctypes.c_int16
        self.calls = {
            "tilezero": ctypes.CFUNCTYPE(i, h, h)(lambda m, n: self.new(np.zeros((m, n), np.uint8))),
            "tileloadd64": ctypes.CFUNCTYPE(i, h, h, p, i)(lambda m, n, at, by: self.new(np.stack(
                [np.frombuffer(ctypes.string_at(at + r * by, n), np.uint8) for r in range(m)]))),
            "tilestored64": ctypes.CFUNCTYPE(None, h, h, p, i, i)(self.store),
        }
        for left, right, name in PAIRS:
            self.calls[name] = ctypes.CFUNCTYPE(i, h, h, h, i, i, i)(self.product(left, right))
        self.addresses = {f"soft_{name}": ctypes.cast(f, p).value for name, f in self.calls.items()}

    def new(self, x: np.ndarray) -> int:
        self.tiles.append(x)
        return len(self.tiles) - 1

    def store(self, m: int, n: int, at: int, by: int, tile: int) -> None:
        for r, row in enumerate(self.tiles[tile][:m]):
            ctypes.memmove(at + r * by, row[:n].tobytes(), n)

    def product(self, left: str, right: str):
        def f(m: int, n: int, k: int, c: int, a: int, b: int) -> int:
            self.products += 1
            size = DTYPES[left].bytes_
            steps, total = 4 // size, DTYPES[DTYPE[left]].numpy
            x = self.tiles[a].view(DTYPES[left].numpy).astype(total)
            y = self.tiles[b].view(DTYPES[right].numpy).astype(total).reshape(k // 4, n // 4, steps)
            y = y.transpose(0, 2, 1).reshape(k // size, n // 4)
            return self.new((self.tiles[c].view(total) + x @ y).view(np.uint8))
        return f

    @staticmethod
    def text(text: str) -> str:
        text = text.replace("x86_amx", "i64")
        for name in ("tilezero", "tileloadd64", "tilestored64", *(n for _, _, n in PAIRS)):
            text = text.replace(f"@llvm.x86.{name}.internal", f"@soft_{name}")
        return text


def operands(text, left, right, m, k, n):
    """A, B, what their product is, and room for it; all values are small integers."""
    rng = np.random.default_rng(m + k + n)
    shape = (3, k, n) if text is FILTER else (n, k) if text is COLUMNS else (k, n)
    a, b = (rng.integers(0 if x == "u8" else -7, 8, s) for x, s in ((left, (m, k)), (right, shape)))
    rows = max(0, m - 2) if text is FILTER else m
    want = (sum(a[r : r + rows] @ b[r] for r in range(3)) if text is FILTER else a @ (b.T if text is COLUMNS else b))
    return a.astype(DTYPES[left].numpy), b.astype(DTYPES[right].numpy), want, np.full((rows, n), 77, DTYPES[DTYPE[left]].numpy)


@here
@pytest.mark.parametrize("text", [MATMUL, COLUMNS, FILTER], ids=["rows", "columns", "filter"])
@pytest.mark.parametrize("left,right", [p[:2] for p in PAIRS])
def test_what_tiles_are_asked_to_do_is_right(text, left, right):
    out = made(text, left, right)
    soft = Tiles()
    kernel = load(replace(out.module, text=Tiles.text(out.module.text)), WITHOUT, soft.addresses)
    for m, k, n in ((40, 200, 70), (29, 1100, 33), (12, 37, 1)):
        a, b, want, c = operands(text, left, right, m, k, n)
        with np.errstate(all="ignore"):  # rows and lanes that do not exist hold anything
            kernel({"M": m, "K": k, "N": n}, {}, {"A": a, "B": b, "C": c})
        np.testing.assert_array_equal(c, want)
        assert soft.products


@here
@pytest.mark.parametrize("left,right,steps", [("bf16", "bf16", 32), ("u8", "i8", 64)])
def test_a_depth_of_whole_tiles_is_all_in_tiles(left, right, steps):
    """Also the last of them: a loop to K - 1 in steps of two has its last trip one before the end."""
    out = made(COLUMNS, left, right)
    soft = Tiles()
    kernel = load(replace(out.module, text=Tiles.text(out.module.text)), WITHOUT, soft.addresses)
    a, b, _, c = operands(COLUMNS, left, right, 64, steps, 32)
    kernel({"M": 64, "K": steps, "N": 32}, {}, {"A": a, "B": b, "C": c})
    of_one = soft.products
    a, b, _, c = operands(COLUMNS, left, right, 64, 3 * steps, 32)
    kernel({"M": 64, "K": 3 * steps, "N": 32}, {}, {"A": a, "B": b, "C": c})
    assert of_one and soft.products == 4 * of_one


TURNED_TILES = [{"short": TURNED}, *({"short": TURNED, "few": (("M", most),)} for most in (16, 32, 48, 64))]


@here
@pytest.mark.parametrize("options", TURNED_TILES, ids=["many", "16", "32", "48", "64"])
@pytest.mark.parametrize("left,right", [p[:2] for p in PAIRS])
def test_columns_are_rows_of_tiles_as_they_lie(left, right, options):
    """Only A is packed, and results are turned: B has the rows, and an instruction that takes its type first."""
    out = made(COLUMNS, left, right, **options)
    soft = Tiles()
    kernel = load(replace(out.module, text=Tiles.text(out.module.text)), WITHOUT, soft.addresses)
    most = dict(options.get("few", ())).get("M", 80)
    for m, k, n in ((most, 200, 70), (most - 13, 1100, 33), (2, 37, 17), (1, 1, 1)):
        a, b, want, c = operands(COLUMNS, left, right, m, k, n)
        with np.errstate(all="ignore"):
            kernel({"M": m, "K": k, "N": n}, {}, {"A": a, "B": b, "C": c})
        np.testing.assert_array_equal(c, want)
        assert soft.products


SIZES = [(1, 1, 1), (15, 64, 16), (16, 63, 17), (17, 65, 15), (31, 32, 33), (32, 31, 63), (33, 128, 64), (64, 130, 65),
         (65, 1, 31), (63, 2, 127), (97, 101, 103), (40, 33, 32), (26, 1100, 33), (3, 15, 1), (48, 17, 200), (35, 4099, 33)]


@tiled
@pytest.mark.parametrize("text", [MATMUL, COLUMNS, FILTER], ids=["rows", "columns", "filter"])
@pytest.mark.parametrize("left,right", [p[:2] for p in PAIRS])
def test_the_hardware_gets_it_right(text, left, right):
    kernel = load(made(text, left, right).module, AMX)
    for m, k, n in SIZES:
        a, b, want, c = operands(text, left, right, m, k, n)
        kernel({"M": m, "K": k, "N": n}, {}, {"A": a, "B": b, "C": c})
        np.testing.assert_array_equal(c, want, err_msg=f"{m} x {k} x {n}")


@tiled
@pytest.mark.parametrize("options", TURNED_TILES, ids=["many", "16", "32", "48", "64"])
@pytest.mark.parametrize("left,right", [p[:2] for p in PAIRS])
def test_the_hardware_turns_results(left, right, options):
    kernel = load(made(COLUMNS, left, right, **options).module, AMX)
    most = dict(options.get("few", ())).get("M", 1 << 20)
    for m, k, n in (s for s in SIZES if s[0] <= most):
        a, b, want, c = operands(COLUMNS, left, right, m, k, n)
        kernel({"M": m, "K": k, "N": n}, {}, {"A": a, "B": b, "C": c})
        np.testing.assert_array_equal(c, want, err_msg=f"{m} x {k} x {n}")
