"""Lookups in registers, in machine code: on targets with and without instructions for bytes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from polyop.ir.errors import InternalError
from polyop.ir.loops import Space
from polyop.ir.options import Options
from polyop.ir.tables import BYTE, BYTES, FULL, lookup
from tests.codegen.harness import FEATURES, V4, assembly, check
from tests.poly.middles import middle

VBMI = replace(V4, name="x86:vbmi", features="+avx512vbmi")
"""Looks up bytes in registers."""
TARGETS = [V4, VBMI]
LOOK = "op f(X: {at}[N], t: {of}[T]) -> (Y: {of}[N]) {{ Y[n] = t[X[n]] }}"


def nest(at: str, of: str, most: int, target):
    return middle(LOOK.format(at=at, of=of), "tuned", Options(tables=(("t", most),)), t=target).nest


TYPES = (("u8", "u8", 1), ("u8", "f16", 2), ("i32", "f32", 4), ("i64", "f64", 8), ("u8", "f32", 4), ("i16", "i16", 2),
         ("i64", "bool", 1))
HELD = [(t, at, of, most) for t in TARGETS for at, of, bytes_ in TYPES for most in (16, 32, 64, 128, FULL, BYTE)
        if lookup(t, bytes_, most)]


def test_some_tables_of_each_width_are_held():
    assert len(HELD) == 16 + 38  # without and with instructions for bytes


@pytest.mark.parametrize(("target", "at", "of", "most"), HELD, ids=lambda x: getattr(x, "name", str(x)))
def test_registers_hold_what_is_looked_up(target, at, of, most):
    if target is VBMI and not FEATURES.get("avx512vbmi"):
        pytest.skip("this machine has no VPERMB")
    made = nest(at, of, most, target)
    assert f"table of {most}" in str(made)
    text = assembly(made, target)
    assert "gather" not in text and re.search(r"vperm(b|w|d|q|ps|pd|[it]2\w+)\s", text)
    rng = np.random.default_rng(most)
    for count in {most, most - 1 if most < BYTE else most, 1 if most < BYTE else most}:
        for n in (1, 15, 16, 17, 63, 64, 65, 130):
            x = rng.integers(0, count, n).astype(made.buffer("X").dtype.numpy)
            t = rng.integers(0, 2 if of == "bool" else 100, count).astype(made.buffer("t").dtype.numpy)
            check(made, {"N": n, "T": count}, target, arrays={"X": x, "t": t, "Y": np.zeros(n, t.dtype)})


def test_all_that_a_byte_says_lies_in_a_table_of_as_many():
    """So nothing is asked about it: there is no way beside the loop's."""
    texts = [assembly(nest("u8", "u8", most, VBMI), VBMI) for most in (FULL, BYTE)]
    assert [bool(re.search(r"ko?r?test", x)) for x in texts] == [True, False]


def test_what_is_asked_of_narrow_places_is_asked_of_as_many_bits():
    text = assembly(nest("i32", "f32", 64, V4), V4)
    assert re.search(r"vpcmp\w*ud\s", text) and not re.search(r"vpcmp\w*uq\s", text)


def test_only_a_tensor_of_elements_side_by_side_is_a_table():
    made = nest("u8", "f32", 64, V4)
    t = made.buffer("t")
    for wrong in ({"unit": None}, {"space": Space.WORK}, {"dims": t.dims * 2}):
        with pytest.raises(InternalError, match="table"):
            replace(t, **wrong)
    assert BYTES.width == 64 and not nest("u8", "f32", 64, V4).buffer("X").table
