"""The lane maps of the matrix units: each covers its tile, and they are those of the vendors' documents."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from polyop.ir.atoms import ROWS, Atom, Fragment, atoms_for
from polyop.ir.dtypes import BF16, F16, F32, F64, I8, I32, U8
from polyop.ir.errors import InternalError
from polyop.ir.expr import affine
from polyop.ir.target import target

BY_NAME = {x.name: x for x in ROWS}


def operands(x: Atom) -> dict[str, tuple[Fragment | None, int, int, int]]:
    """The map, rows, columns and copies of each operand."""
    return {"a": (x.a_map, x.m, x.k, x.copies), "b": (x.b_map, x.k, x.n, x.copies), "c": (x.c_map, x.m, x.n, 1)}


@pytest.mark.parametrize("operand", "abc")
@pytest.mark.parametrize("x", ROWS, ids=lambda x: x.name)
def test_every_element_of_the_tile_is_held_and_as_often_as_the_row_says(x: Atom, operand: str) -> None:
    fragment, rows, columns, copies = operands(x)[operand]
    if fragment is None:
        return
    held = Counter((i, j) for _, _, i, j in fragment.places(x.warp))
    assert held == {(i, j): copies for i in range(rows) for j in range(columns)}


# of each element, the lane and the register, as the papers have them: the maps the other way round
WRITTEN = {
    "mma_m16n8k16_f16": (lambda i, k: (4 * (i % 8) + (k % 8) // 2, 4 * (k // 8) + 2 * (i // 8) + k % 2),
                         lambda k, j: (4 * j + (k % 8) // 2, 2 * (k // 8) + k % 2),
                         lambda i, j: (4 * (i % 8) + j // 2, 2 * (i // 8) + j % 2)),
    "mma_m16n8k8_tf32": (lambda i, k: (4 * (i % 8) + k % 4, 2 * (k // 4) + i // 8),
                         lambda k, j: (4 * j + k % 4, k // 4),
                         lambda i, j: (4 * (i % 8) + j // 2, 2 * (i // 8) + j % 2)),
    "mma_m16n8k32_s8": (lambda i, k: (4 * (i % 8) + (k % 16) // 4, 8 * (k // 16) + 4 * (i // 8) + k % 4),
                        lambda k, j: (4 * j + (k % 16) // 4, 4 * (k // 16) + k % 4),
                        lambda i, j: (4 * (i % 8) + j // 2, 2 * (i // 8) + j % 2)),
    "mma_m8n8k4_f64": (lambda i, k: (4 * i + k, 0), lambda k, j: (4 * j + k, 0), lambda i, j: (4 * i + j // 2, j % 2)),
    "mfma_f32_16x16x16_f16": (lambda i, k: (i + 16 * (k // 4), k % 4), lambda k, j: (j + 16 * (k // 4), k % 4),
                              lambda i, j: (j + 16 * (i // 4), i % 4)),
    "mfma_f32_16x16x4_f32": (lambda i, k: (i + 16 * k, 0), lambda k, j: (j + 16 * k, 0), lambda i, j: (j + 16 * (i // 4), i % 4)),
    "mfma_f64_16x16x4_f64": (lambda i, k: (i + 16 * k, 0), lambda k, j: (j + 16 * k, 0), lambda i, j: (j + 16 * (i % 4), i // 4)),
    "wmma_f32_16x16x16_f16": (lambda i, k: (i, k), lambda k, j: (j, k), lambda i, j: (16 * (i % 2) + j, i // 2)),
}
WRITTEN |= {f"mfma_f32_16x16x32_{t}": (  # two instructions: each lane's eight elements lie together
    lambda i, k: (i + 16 * (k // 8), k % 8), lambda k, j: (j + 16 * (k // 8), k % 8), lambda i, j: (j + 16 * (i // 4), i % 4))
    for t in ("f16", "bf16")}
WRITTEN |= {f"mfma_{t}_16x16x{4 * n}_{t}": (
    lambda i, k, n=n: (i + 16 * (k // n), k % n), lambda k, j, n=n: (j + 16 * (k // n), k % n),
    WRITTEN[f"mfma_{t}_16x16x4_{t}"][2])
    for t, n in (("f32", 4), ("f64", 2))}
WRITTEN |= {f"mfma_i32_16x16x{4 * n}_i8{parts}": (
    lambda i, k, n=n: (i + 16 * (k // n), k % n), lambda k, j, n=n: (j + 16 * (k // n), k % n),
    WRITTEN["mfma_f32_16x16x4_f32"][2])
    for n, parts in ((4, ""), (8, ""), (16, "_in_2"), (16, "_in_4"))}
WRITTEN |= {f"wgmma_m64n{n}k16_{t}{a}": (
    lambda i, k: (i // 16 * 32 + 4 * (i % 8) + (k % 8) // 2, 4 * (k // 8) + 2 * (i % 16 // 8) + k % 2), None,
    lambda i, j: (i // 16 * 32 + 4 * (i % 8) + (j % 8) // 2, 4 * (j // 8) + 2 * (i % 16 // 8) + j % 2))
    for n in (8, 64, 256) for t in ("f16", "bf16") for a in ("", "_a")}
WRITTEN |= {"mma_m16n8k16_bf16": WRITTEN["mma_m16n8k16_f16"], "mfma_f32_16x16x16_bf16": WRITTEN["mfma_f32_16x16x16_f16"],
            **{f"wmma_{t}": WRITTEN["wmma_f32_16x16x16_f16"]
               for t in ("f32_16x16x16_bf16", *(f"i32_16x16x16_{x}" for x in ("i8", "i8u8", "u8i8", "u8")))},
            **{f"mma_m16n8k32_{t}": WRITTEN["mma_m16n8k32_s8"] for t in ("s8u8", "u8s8", "u8")}}


@pytest.mark.parametrize("name", WRITTEN)
def test_the_maps_are_those_of_the_vendors_documents(name: str) -> None:
    x = BY_NAME[name]
    for (fragment, rows, columns, _), where in zip(operands(x).values(), WRITTEN[name], strict=True):
        if fragment is None:
            continue
        held = {(i, j): (lane % (x.warp // x.copies), reg) if fragment is not x.c_map else (lane, reg)
                for lane, reg, i, j in fragment.places(x.warp)}
        assert held == {(i, j): where(i, j) for i in range(rows) for j in range(columns)}


@pytest.mark.parametrize(("name", "dtypes", "first"), [
    ("cuda:sm_80", (F16, F16, F32), "mma_m16n8k16_f16"), ("cuda:sm_90", (BF16, BF16, F32), "mma_m16n8k16_bf16"),
    ("cuda:sm_80", (F32, F32, F32), "mma_m16n8k8_tf32"), ("cuda:sm_90a", (F64, F64, F64), "mma_m8n8k4_f64"),
    ("cuda:sm_80", (U8, I8, I32), "mma_m16n8k32_u8s8"), ("hip:gfx90a", (BF16, BF16, F32), "mfma_f32_16x16x32_bf16"),
    ("hip:gfx90a", (I8, I8, I32), "mfma_i32_16x16x64_i8_in_4"), ("hip:gfx942", (I8, I8, I32), "mfma_i32_16x16x64_i8_in_2"),
    ("hip:gfx1100", (U8, I8, I32), "wmma_i32_16x16x16_u8i8"),
    ("hip:gfx942", (F64, F64, F64), "mfma_f64_16x16x8_f64"), ("hip:gfx1100", (F16, F16, F32), "wmma_f32_16x16x16_f16"),
])
def test_a_target_and_dtypes_give_the_atoms_there_are(name: str, dtypes: tuple, first: str) -> None:
    assert atoms_for(target(name), *dtypes)[0].name == first


def test_what_a_target_cannot_multiply_has_no_atom() -> None:
    assert atoms_for(target("hip:gfx1100"), F64, F64, F64) == ()
    assert atoms_for(target("x86:x86-64-v4"), F32, F32, F32) == ()
    assert atoms_for(target("cuda:sm_80"), F16, BF16, F32) == ()


def test_operands_in_registers_come_before_those_in_shared_memory() -> None:
    names = [x.name for x in atoms_for(target("cuda:sm_90a"), BF16, BF16, F32)]
    assert names[0] == "mma_m16n8k16_bf16"
    assert names[1] == "wgmma_m64n256k16_bf16"
    assert atoms_for(target("cuda:sm_90"), BF16, BF16, F32)[0].name == "mma_m16n8k16_bf16"
    assert len(atoms_for(target("cuda:sm_90"), BF16, BF16, F32)) == 1


def test_only_tf32_loses_bits_of_what_it_multiplies() -> None:
    assert [x.name for x in ROWS if not x.exact] == ["mma_m16n8k8_tf32"]


def test_an_atom_whose_lanes_do_not_hold_the_tile_is_refused() -> None:
    x = BY_NAME["mma_m8n8k4_f64"]
    with pytest.raises(InternalError, match="32 lanes hold 4 elements of c each, expected 64 in all"):
        replace(x, c_map=Fragment(affine("lane"), affine("reg"), 4))


def test_a_map_prints_in_isl_notation() -> None:
    places = "{ [lane, reg] -> [((lane) mod 16), floor((lane)/16) + reg] : 0 <= reg < 1 }"
    assert str(BY_NAME["mfma_f32_16x16x4_f32"].a_map) == places
    assert str(BY_NAME["mma_m8n8k4_f64"]) == "mma_m8n8k4_f64: f64[8, 8] += f64[8, 4] * f64[4, 8]"
