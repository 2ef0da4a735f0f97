"""What is asked of the rows of a unit's results: once for each row, and of nobody else's."""

from __future__ import annotations

import pytest
from test_fragments import held, with_fault

from polyop.codegen.c.lanes import of_element, of_row, rows_of
from polyop.ir.atoms import ROWS
from polyop.ir.expr import evaluate
from tests.gpu import test_keys_of_rows as seen

WINDOW = "i - w < j <= i"


@pytest.mark.parametrize("a", [a for a in ROWS if a.name in ("mma_m16n8k16_f16", "mfma_f32_16x16x16_f16", "wmma_f32_16x16x16_f16")
                               or "wgmma_m64n64k16_f16" in a.name], ids=lambda a: a.name)
def test_the_elements_of_a_row_are_those_that_the_map_of_the_results_puts_there(a):
    r = rows_of(held(a))
    register = of_element(r, len(of_row(held(a), r)))
    found = {(row, e): evaluate(register, {"row": row, "element": e})
             for row in range(r.fragment.regs) for e in range(len(of_row(held(a), r)))}
    assert sorted(found.values()) == list(range(a.c_map.regs))
    for lane in range(a.warp):
        assert all(a.c_map.at(lane, reg)[0] == r.fragment.at(lane, row)[0] for (row, _), reg in found.items())


@pytest.mark.parametrize("where", ["cuda:sm_80", "hip:gfx942"])
def test_no_element_of_a_result_is_asked_what_its_row_tells(where):
    text = [x.strip() for x in seen.attention(WINDOW, where, "f16", 64).module.text.splitlines()]
    around = {row: max(n for n, x in enumerate(text[:at]) if "for (int pop_q" in x)
              for at, x in enumerate(text) for row in ("S9_cut", "S10") if x == f"// {row}"}
    assert "S10" in around
    for name, at in around.items():
        inside = text[at : text.index(f"// {name}", at)]
        (test,) = [n for n, x in enumerate(inside) if x.startswith("if (")]
        (loop,) = [n for n, x in enumerate(inside) if "for (int v_q" in x]
        assert test < loop, name


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a"])
def test_a_tile_whose_rows_are_all_there_is_asked_once(where):
    text = [x.strip() for x in seen.attention(WINDOW, where, "f16", 64).module.text.splitlines()]
    at = text.index("// S10")
    test = max(n for n, x in enumerate(text[:at]) if x.startswith("if ("))
    assert "S >= i_o" in text[test] and any(x.startswith("for (int pop_r") for x in text[test:at])
    assert "// S10" in text[text.index("} else {", at) :]


@pytest.mark.parametrize("fault", [("const int pop_r = pop_e + pop_q * 2;", "const int pop_r = pop_e + (1 - pop_q) * 2;"),
                                   ("pop_lane() / 4 + pop_q * 8", "pop_lane() / 4 + (1 - pop_q) * 8")])
def test_a_row_that_is_asked_for_another_one_is_seen_in_the_values(fault):
    broken = with_fault(seen.attention(WINDOW, "cuda:sm_80", "f16", 64), *fault)
    with pytest.raises(AssertionError, match=r"Not equal to tolerance|findings"):
        assert not seen.run(broken, WINDOW, "f16", 64, (65, 97, 20), strange=True).findings
