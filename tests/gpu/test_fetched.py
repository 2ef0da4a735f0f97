"""Products where copies do not go on by themselves: the next tile waits in registers, and comes while this one is multiplied."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from gpu_assembly import LOADS, PRODUCTS, READS, WAITS, WRITES, count, instructions, most, places
from test_blocks import arrays, product, run
from test_instructions import amd

from polyop.ir.target import BY_NAME
from polyop.runtime import amdgcn, emulated
from polyop.runtime.usage import usage

MACHINES = ("hip:gfx90a", "hip:gfx942", "hip:gfx1100")
needs_amdgcn = pytest.mark.skipif(bool(amdgcn.unavailable()), reason=amdgcn.unavailable())


def text_of(where: str, dtype: str = "f16", order: str = "nt") -> str:
    module = product(where, dtype, order).module
    assert module is not None
    return module.text


@needs_amdgcn
@pytest.mark.parametrize("lies", ["nt", "nn"])
@pytest.mark.parametrize("where", MACHINES)
def test_what_is_fetched_is_waited_for_behind_the_products(where: str, lies: str, tmp_path: Path) -> None:
    lines = instructions(amd(text_of(where, order=lies), BY_NAME[where].arch, tmp_path))
    products = places(lines, PRODUCTS)
    first, last = products[0], products[-1]
    assert most(lines, LOADS, first, WAITS) >= 8  # one after the other
    assert most(lines, LOADS, places(lines[:first], READS)[0], "s_barrier") == 0
    assert not count(lines[first:last], WAITS)
    for between in (WAITS, "s_barrier"):
        assert all(most(lines, PRODUCTS, n, between) == 0 for n in places(lines, WRITES))
    assert count(lines[:last], READS) >= 8
    assert not count(lines[first:], "scratch_|buffer_store")


@needs_amdgcn
@pytest.mark.parametrize(("where", "dtype", "between"), [
    ("hip:gfx90a", "bf16", 4), ("hip:gfx942", "f16", 4), ("hip:gfx942", "f32", 8)])
def test_the_next_step_is_read_between_the_products_of_this_one(where: str, dtype: str, between: int, tmp_path: Path) -> None:
    text = text_of(where, dtype)
    assert f"pop_interleave<2, 8, {8 * between}>();" in text
    lines = instructions(amd(text, BY_NAME[where].arch, tmp_path))
    products = places(lines, PRODUCTS)
    assert len(products) == 2 * 8 * between
    later = [sum(p < n for p in products) for n in places(lines, READS)][8:]  # products before each read of the second step
    assert len(later) == 8 and later[0] <= 4 * between and max(later) <= 8 * between
    assert all(x - y <= 4 * between for y, x in pairwise(later))


@needs_amdgcn
@pytest.mark.parametrize("where", MACHINES)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_several_blocks_fit_on_a_multiprocessor_and_nothing_is_spilled(where: str, dtype: str) -> None:
    module = product(where, dtype, "nt").module
    assert module is not None
    (taken,) = usage(amdgcn.assemble(module))
    multi = BY_NAME[where].multi
    assert multi is not None and taken.local == 0 and 2 * taken.shared <= multi.shared


UNITS = [(where, dtype) for where in MACHINES for dtype in ("f16", "f32", "f64") if dtype == "f16" or where != "hip:gfx1100"]


@pytest.mark.parametrize(("lies", "tile"), [("nn", ()), ("nt", ()), ("tn", ()), ("nn", (32, 32)), ("nn", (32, 16)),
                                            ("tn", (16, 64))])
@pytest.mark.parametrize(("where", "dtype"), UNITS)
def test_lanes_meet_in_no_bank_whichever_way_operands_lie(where: str, dtype: str, lies: str, tile: tuple[int, ...]) -> None:
    module = product(where, dtype, lies, tile).module
    assert module is not None
    m, n = (64, 64) if tile else (128, 128)
    given, want = arrays(dtype, lies, (m, 64, n))
    report = emulated.run(module, {"M": m, "K": 64, "N": n}, {}, given, banks=True)
    assert report.traffic and not [str(t) for t in report.traffic if t.conflicts]
    assert np.array_equal(given["C"], want)


@needs_amdgcn
@pytest.mark.parametrize("where", MACHINES)
def test_what_lies_across_the_sum_is_turned_in_registers(where: str, tmp_path: Path) -> None:
    text = text_of(where, order="tn")
    assert text.count("pop_wide<8>") == text.count("pop_take_run<8>") == 4 and text.count("pop_put_column<") == 4
    lines = instructions(amd(text, BY_NAME[where].arch, tmp_path))
    assert count(lines, WRITES) == count(lines, r"ds_(write|store)")  # 64 bits at least
    assert count(lines, r"v_(perm_b32|mov_b16\S*) ") >= 32


@pytest.mark.parametrize("order", emulated.ORDERS)
@pytest.mark.parametrize("lies", ["nn", "nt", "tn", "tt"])
def test_tiles_go_through_registers_whichever_way_operands_lie(lies: str, order: str) -> None:
    module = product("hip:gfx942", "f16", lies).module
    assert module is not None
    assert "_ahead" in module.text and "pop_copy_run" not in module.text and "pop_copy_async" not in module.text
    for sizes in ((1, 1, 1), (129, 33, 65), (40, 97, 21), (130, 64, 130)):
        assert run(module, "f16", lies, sizes, order=order) == ("no fault found", True)


@pytest.mark.parametrize("nth", [0, 1])
def test_without_any_one_of_its_two_barriers_a_product_races(nth: int) -> None:
    module = product("hip:gfx942", "f16", "nt").module
    assert module is not None
    parts = re.split(r"(pop_shared_barrier\(\);)", module.text)
    barriers = [n for n, x in enumerate(parts) if x == "pop_shared_barrier();"]
    assert len(barriers) == 2
    parts[barriers[nth]] = ""
    seen = [run(replace(module, text="".join(parts)), "f16", "nt", (64, 130, 64), order=o)[0] for o in emulated.ORDERS]
    assert any("race" in x or "uninitialised" in x for x in seen)


def test_targets_whose_copies_go_on_by_themselves_need_no_registers_for_them() -> None:
    assert "_ahead" not in text_of("cuda:sm_80") and "pop_copy_run" in text_of("cuda:sm_80")
    assert [t.family for t in BY_NAME.values() if t.copies] == ["cuda"] * 3
