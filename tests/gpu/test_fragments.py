"""Rows between contractions on the registers of a matrix unit's results: who holds what, and what nobody waits for."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from gpu_texts import compiled

from polyop.codegen.c.lanes import of_row, pieces, rows_of, side_by_side
from polyop.codegen.gpu.held import Held
from polyop.codegen.gpu.implied import without_implied
from polyop.codegen.gpu.unread import unasked
from polyop.ir.atoms import ROWS, Atom, Fragment
from polyop.ir.dtypes import F32
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, Load, affine, quasi
from polyop.ir.loops import Barrier, For, If, Kind, LoopNest, Space, Store, stores, walk
from polyop.poly.blocks.fragmentunits import holds_operand
from polyop.runtime import nvrtc
from polyop.runtime.usage import usage
from tests.gpu import test_keys_of_rows as seen
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


@pytest.mark.parametrize("keys", ["j <= i", "i - w < j <= i", "i - w < j < i + w", "j <= i, j < w"])
def test_rows_that_see_some_keys_have_their_scores_in_registers_and_one_loop(keys):
    made = seen.attention(keys, "cuda:sm_80", "f16", 64)
    assert {b.name.partition("_")[0] for b in made.nest.buffers if b.space == Space.SHARED} == {"Q", "K", "V"}
    assert sum(isinstance(n, For) and n.index == "j_b" for n in walk(made.nest.body)) == 1


@pytest.mark.parametrize("keys", ["j <= i", "i - w < j <= i", "i - w < j < i + w"])
def test_terms_of_atoms_that_are_cut_are_written_once_whichever_end_cuts_them(keys):
    made = seen.attention(keys, "cuda:sm_80", "f16", 64)
    assert sum("_cut" in s.stmt for s in stores(made.nest.body)) == 2  # a row's powers, and the terms
    assert made.module.text.count("pop_chosen<") == 1


@pytest.mark.skipif(bool(nvrtc.unavailable()), reason=nvrtc.unavailable())
@pytest.mark.parametrize("call", ["attention_window(Q, K, V, scale=0.125, window=w)", "attention_alibi(Q, K, V, m, scale=0.125)"])
def test_rows_that_see_some_keys_of_128_channels_spill_nothing(call):
    side = "f16[B, H, S, 128]"
    text = f"op a(Q: {side}, K: {side}, V: {side}, m: f16[H]; w: int) -> (O: {side}) where w >= 1 {{ O = {call} }}"
    (kernel,) = usage(nvrtc.assemble(compiled(text).module))
    assert kernel.local == 0, kernel


PLANTED = {"no lane asks the others": ("pop_v = pop_fold_lanes<4, 1>(pop_v, pop_f);", ""),
           "a lane asks those with other rows": ("pop_fold_lanes<4, 1>", "pop_fold_lanes<4, 4>"),
           "a row has the value of another one": ("[((pop_r / 2) % 2)]", "[((pop_r / 2 + 1) % 2)]"),
           "columns of an operand change places": ("p_block_f16_reg[(j_p4_o / 8) + 1][0]", "p_block_f16_reg[(j_p4_o / 8)][0]"),
           "rows of an operand change places": ("p_block_f16_reg[(j_p4_o / 8)][2]", "p_block_f16_reg[(j_p4_o / 8)][0]"),
           "powers beyond the last key are no zeros": ("[j_p_q][pop_r] = pop_to_f16(0.0f)", "[j_p_q][pop_r] = 0x7e00")}


def with_fault(made, before, after):
    """What was compiled, with `after` wherever its text says `before`, which it does."""
    assert before in made.module.text
    return replace(made, module=replace(made.module, text=made.module.text.replace(before, after)))


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_is_seen_in_the_values(fault):
    broken = with_fault(attention("cuda:sm_80", "f16", 64, depth=64), *PLANTED[fault])
    report, error = run(broken, "f16", 64, (65, 97, 64))
    assert report.findings or not error < 4e-3


TERMS = {"an element is that of another lane": ("pop_from(pop_mine, (int)pop_lane() / 4 * 4 + ((j_p4_s % 8) / 2))", "pop_mine"),
         "it is that of the next column": ("pop_chosen<16>(((j_p4_s % 8) % 2)", "pop_chosen<16>(1 - ((j_p4_s % 8) % 2)"),
         "it is that of another tile": ("return p_block_f16_reg[(pop_c / 2)]", "return p_block_f16_reg[(pop_c / 2) ^ 1]"),
         "it is that of another row": ("[pop_c % 2 + 2 * pop_r]", "[pop_c % 2 + 2 - 2 * pop_r]"),
         "the atom on the diagonal is left out": ("64 * j_b + j_p4_o + 14 >= i_o + i_w", "64 * j_b + j_p4_o > i_o + i_w"),
         "terms behind the diagonal are added": ("i_o + i_p + i_w >= 64 * j_b + j_p4_o + j_p4_s", "true")}


@pytest.mark.parametrize("fault", TERMS)
def test_a_fault_in_the_terms_of_an_atom_that_is_cut_is_seen_in_the_values(fault):
    broken = with_fault(seen.attention("j <= i", "cuda:sm_80", "f16", 64), *TERMS[fault])
    with pytest.raises(AssertionError, match=r"Not equal to tolerance|findings"):
        assert not seen.run(broken, "j <= i", "f16", 64, (65, 97, 0), strange=True).findings


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


@pytest.mark.parametrize("a", UNITS, ids=lambda a: a.name)
def test_a_column_of_a_row_lies_with_one_of_the_lanes_that_have_the_row(a):
    r, near, mine = rows_of(held(a)), side_by_side(held(a)), of_row(held(a), rows_of(held(a)))
    for lane, reg, row, column in a.c_map.places(a.warp):
        owner, e = column // near % r.over, column % near + column // (near * r.over) * near
        assert lane // r.step % r.over == owner and reg == mine[e] + reg // r.every % r.fragment.regs * r.every, (row, column)


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


def test_what_a_condition_bounds_is_computed_for_all_elements_if_nobody_reads_the_others():
    text = str(unasked(seen.attention("j <= i", "cuda:sm_80", "f16", 64).nest)).split("for i_w")
    (powers,) = [x for x in text if "p_block_reg[" in x and "] = exp(" in x]
    (sums,) = [x for x in text if "z_part_S5_part[" in x and "+= p_block_reg" in x]
    assert "if " not in powers and "if i_o + i_p + i_w - 64*j_b" in sums
    (handed,) = [x for x in text if "S9_row[" in x and "+=" in x]
    assert "if i_o + i_w - 64*j_b - j_p4_o + 15 >= 0" in handed.partition("_S9_row[")[0]  # which spares a warp the work


@pytest.mark.parametrize(("columns", "gone"), [("S", True), ("N", False)])
def test_bounds_that_another_bound_and_a_test_imply_are_not_asked(columns, gone):
    """{ j <= i and i < S } is { j < S }, and not { j < N }."""
    i, j = affine("i_o") + affine("i"), affine("j_o") + affine("j")
    store = Store("s", (), None, (), Load("r", (affine("i"), affine("j")), F32), None, Const(0.0, F32))
    inner = For("j", Affine(), quasi("min", affine(8), affine(columns) - affine("j_o")), (If((i - j,), (store,)),),
                kind=Kind.ATOM, extent=8)
    outer = replace(inner, index="i", upper=quasi("min", affine(16), affine("S") - affine("i_o")), body=(inner,), extent=16)
    nest = LoopNest("n", ("S", "N", "i_o", "j_o"), (), (), (outer,))
    (new,) = without_implied(nest, {"r"}).body
    assert new.upper == outer.upper and new.body[0].upper == (affine(8) if gone else inner.upper)
    assert without_implied(nest, {"q"}) == nest
