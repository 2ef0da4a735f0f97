"""Products where copies do not go on by themselves: the next tile waits in registers, and comes while this one is multiplied."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
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
@pytest.mark.parametrize("where", MACHINES)
def test_what_is_fetched_is_waited_for_behind_the_products(where: str, tmp_path: Path) -> None:
    lines = [x.strip() for x in amd(text_of(where), BY_NAME[where].arch, tmp_path).splitlines()]
    products = [n for n, x in enumerate(lines) if re.match(r"v_(mfma|wmma)", x)]
    first, last = products[0], products[-1]
    fetched = max(n for n, x in enumerate(lines[:first]) if re.match(r"global_load_(dwordx4|b128) ", x))
    put = min(n for n, x in enumerate(lines) if n > last and re.match(r"ds_(write|store)_b128 ", x))
    waits = [n for n, x in enumerate(lines) if "vmcnt(0)" in x]
    assert not [n for n in waits if fetched < n < last] and [n for n in waits if last < n < put]
    assert [n for n, x in enumerate(lines) if fetched < n < last and x.startswith("s_barrier")]
    assert sum(re.match(r"ds_(read|load)_b128 ", x) is not None for x in lines[fetched:last]) >= 8
    assert not [x for x in lines[fetched:last] if x.startswith(("scratch_", "buffer_store", "global_store"))]


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


@pytest.mark.parametrize("lies", ["nn", "nt", "tn"])
@pytest.mark.parametrize(("where", "dtype"), UNITS)
def test_lanes_meet_in_no_bank_whichever_way_operands_lie(where: str, dtype: str, lies: str) -> None:
    module = product(where, dtype, lies).module
    assert module is not None
    given, want = arrays(dtype, lies, (128, 64, 128))
    report = emulated.run(module, {"M": 128, "K": 64, "N": 128}, {}, given, banks=True)
    assert report.traffic and not [str(t) for t in report.traffic if t.conflicts]
    assert np.array_equal(given["C"], want)


@needs_amdgcn
@pytest.mark.parametrize("where", MACHINES)
def test_what_lies_across_the_sum_is_turned_in_registers(where: str, tmp_path: Path) -> None:
    text = text_of(where, order="tn")
    assert text.count("pop_take_run<8>") == 4 and text.count("pop_put_column<") == 4
    lines = [x.strip() for x in amd(text, BY_NAME[where].arch, tmp_path).splitlines()]
    first = next(n for n, x in enumerate(lines) if re.match(r"v_(mfma|wmma)", x))
    put = [x.split()[0] for x in lines if re.match(r"ds_(write|store)_b", x)]
    assert {x[-3:] for x in put} <= {"b64", "128"}  # 64 bits at least
    assert sum(re.match(r"global_load_(dwordx4|b128) ", x) is not None for x in lines[:first]) >= 8
    assert sum(re.match(r"v_(perm_b32|mov_b16\S*) ", x) is not None for x in lines[first:]) >= 16


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
