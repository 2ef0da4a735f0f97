"""Rows between contractions on the registers of a matrix unit's results: who holds what, and what nobody waits for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from polyop.codegen.clanes import pieces, rows_of
from polyop.codegen.cscope import Held
from polyop.codegen.unread import unasked
from polyop.ir.atoms import ROWS, Atom, Fragment
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import affine
from polyop.ir.loops import Barrier, Space, walk
from polyop.poly.fragmentunits import holds_operand
from tests.gpu.test_resident import attention, run

ATOMS = {a.name: a for a in ROWS}
MMA = ATOMS["mma_m16n8k16_f16"]
UNITS = [a for a in ROWS if a.a_map and a.b_map]


def held(a: Atom) -> Held:
    return Held(a, a.c_map, (("m", a.m),), (("n", a.n),))


@pytest.mark.parametrize("channels", [32, 33, 64, 80, 128])
def test_attention_has_its_scores_in_registers_and_is_right_at_all_ends(channels):
    made = attention("cuda:sm_80", "f16", channels, depth=channels)
    shared = {b.name.partition("_")[0] for b in made.nest.buffers if b.space == Space.SHARED}
    assert shared == {"Q", "K", "V"} and all(p.holds for p in made.proofs)
    for sizes in ((1, 1), (63, 64), (64, 65), (65, 127), (127, 63)):
        for order in ("forward", "backward", "shuffled"):
            report, error = run(made, "f16", channels, (*sizes, channels), order=order)
            assert not report.findings, report
            assert error < 4e-3, (sizes, order)


def test_threads_wait_for_copies_and_for_nothing_else():
    made = attention("cuda:sm_80", "f16", 64, depth=64)
    (barrier,) = [n for n in walk(made.nest.body) if isinstance(n, Barrier)]
    assert barrier.handed


PLANTED = {"no lane asks the others": ("pop_v = pop_fold_lanes<4, 1>(pop_v, pop_f);", ""),
           "a lane asks those with other rows": ("pop_fold_lanes<4, 1>", "pop_fold_lanes<4, 4>"),
           "a row has the value of another one": ("[((pop_r / 2) % 2)]", "[((pop_r / 2 + 1) % 2)]"),
           "columns of an operand change places": ("p_block_f16_reg[(j_p4_o / 8) + 1][0]", "p_block_f16_reg[(j_p4_o / 8)][0]"),
           "rows of an operand change places": ("p_block_f16_reg[(j_p4_o / 8)][2]", "p_block_f16_reg[(j_p4_o / 8)][0]"),
           "powers beyond the last key are no zeros": ("[j_p_q][pop_r] = pop_to_f16(0.0f)", "[j_p_q][pop_r] = 0x7e00")}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen_in_the_values(fault):
    made = attention("cuda:sm_80", "f16", 64, depth=64)
    before, after = PLANTED[fault]
    assert before in made.module.text
    broken = replace(made, module=replace(made.module, text=made.module.text.replace(before, after)))
    report, error = run(broken, "f16", 64, (65, 97, 64))
    assert report.findings or not error < 4e-3


@pytest.mark.parametrize("a", UNITS, ids=lambda a: a.name)
def test_the_lanes_that_share_a_row_are_those_that_hold_elements_of_it(a):
    h = held(a)
    r = rows_of(h)
    for lane, reg, row, _ in a.c_map.places(a.warp):
        assert r.fragment.at(lane, reg // r.every % r.fragment.regs)[0] == row
    holding = {row: {lane for lane, _, y, _ in a.c_map.places(a.warp) if y == row} for row in range(a.m)}
    for row, lanes in holding.items():
        first = min(lanes)
        assert lanes == {first + r.step * k for k in range(r.over)}, row


def test_rows_that_lanes_have_in_no_order_are_refused():
    sloping = Fragment(affine("lane") + affine("reg"), affine("lane") * 0, 4)  # neighbours share some rows, and not others
    with pytest.raises(UnsupportedError, match="neighbours"):
        rows_of(held(replace(MMA, m=64, n=2, c_map=sloping, a_map=None, b_map=None)))


@pytest.mark.parametrize(("results", "operand"), [(a, b) for a, b in product(UNITS, UNITS)
                                                  if set(a.targets) & set(b.targets) and (a.warp, a.m) == (b.warp, b.m)],
                         ids=lambda a: a.name)
def test_the_relation_says_what_lane_by_lane_is_so(results, operand):
    """isl's relations and the printer's walk over the lanes agree in which results are an operand where they are."""
    try:
        pieces(operand.a_map, results.c_map, results.n, results.warp)
        same = operand.a.bytes_ == 2 and (results.n % operand.k == 0 or operand.k % results.n == 0)
    except UnsupportedError:
        same = False
    assert holds_operand(results, operand) == same


def test_results_of_mma_are_its_left_operand_and_those_of_mfma_are_not():
    assert holds_operand(MMA, MMA)
    for name in ("mfma_f32_16x16x16_f16", "wmma_f32_16x16x16_f16"):
        assert not holds_operand(ATOMS[name], ATOMS[name])
    assert holds_operand(ATOMS["wgmma_m64n64k16_f16"], ATOMS["wgmma_m64n128k16_f16_a"])


def test_registers_are_asked_about_where_somebody_reads_what_lies_beyond():
    nest = attention("cuda:sm_80", "f16", 64, depth=64).nest
    new = str(unasked(nest))
    assert "for j_p_p in [0, 8)  (atom 8)\n" in new
    powers = [x for x in new.split("for i_w") if "p_block_reg[" in x and "] = exp(" in x]
    assert len(powers) == 1 and "min(" not in powers[0]
    rounded = [x for x in new.split("for i_w") if "p_block_f16_reg[" in x and "] = f16(p_block_reg" in x]
    assert len(rounded) == 1 and "min(8, " in rounded[0]  # the unit reads zeros beyond these
