"""What a kernel of attention does for each score: nothing that a tile, a turn or a sum need not ask."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from gpu_texts import compiled
from test_keys_of_rows import CAUSAL, attention, run

from polyop.codegen.gpu.begun import begun
from polyop.codegen.gpu.raster import grow
from polyop.codegen.gpu.split import Part
from polyop.compiler import Compiled
from polyop.forms import Form, rounded
from polyop.ir.dtypes import F32
from polyop.ir.expr import Affine, Apply, Const, Load, affine, quasi
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import Barrier, Buffer, For, If, Kind, LoopNest, Node, Space, Store, walk
from polyop.ir.op import builtin_monoid
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.rewrite.sums.binary import binary
from polyop.runtime import emulated

MAX = builtin_monoid("max", F32)
SCORES = "op a(Q: f16[B, H, S, 64], K: f16[B, H, {t}, 64], V: f16[B, H, {t}, 64]; c: f32) -> (O: f16[B, H, S, 64]) " \
         "{{ O = {call} }}"


@cache
def of_library(call: str, on: str = "cuda:sm_90a") -> Compiled:
    made = compiled(SCORES.format(call=f"{call}(Q, K, V, scale=c)", t="S" if "causal" in call else "T"), on=on)
    assert made.rung == "tuned" and all(p.holds for p in made.proofs)
    return made


@pytest.mark.parametrize(("call", "asked"), [("attention", "T >= 64 * j_b + 64"), ("attention_causal", "i_o >= 64 * j_b + 63")])
def test_what_a_condition_names_of_a_tile_is_asked_once_where_that_is_all_of_it(call, asked):
    text = of_library(call).module.text
    assert text.count(f"if ({asked}) {{") == 1  # maxima; of sums, and of what the unit takes, the powers are 0
    (whole,) = re.findall(rf"\n        if \({re.escape(asked)}\) {{\n(.*?)\n        }} else {{", text, re.DOTALL)
    assert whole.count("if (") == 1 and "< pop_inf_f()" in whole  # whether the scale is a positive number


def test_atoms_that_the_diagonal_cuts_are_the_unit_s_where_the_other_operand_is_finite():
    text = of_library("attention_causal").module.text
    (before,) = re.findall(r"(.*)\n *{\n *const pop_u32 pop_a0", text)
    assert before.strip().startswith("if (i_o >= 64 * j_b + 63 || pop_tile_is_finite<4096, 0x7c00>(&V_")
    assert text.count("pop_tile_is_finite<") == text.count("pop_chosen<") == 1


@pytest.mark.parametrize("keys", [CAUSAL, "i - w < j <= i"])
def test_results_that_are_not_finite_are_added_up_again_term_by_term(keys):
    made = attention("j <= i", "cuda:sm_90a", "f16", 64)
    before = "|| pop_tile_is_finite<"
    assert before in made.module.text
    broken = replace(made, module=replace(made.module, text=made.module.text.replace(before, "|| true " + before)))
    assert not run(broken, CAUSAL, "f16", 64, (65, 97, 0)).findings  # what lies beside the triangle is finite here
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        run(broken, CAUSAL, "f16", 64, (65, 97, 0), strange=True)


def test_one_barrier_stands_in_a_turn_whatever_is_added_term_by_term():
    (turns,) = [n for n in walk(of_library("attention_causal").nest.body) if isinstance(n, For) and n.index == "j_b"]
    assert sum(isinstance(n, Barrier) for n in walk(turns.body)) == 1


def test_blocks_with_the_most_turns_begin_first():
    assert "64 * ((i_o_count - 1 - item % i_o_count))" in of_library("attention_causal").module.text
    assert "64 * (item % i_o_count)" in of_library("attention").module.text
    turns = For("t", Affine(), quasi("div", affine("i"), affine(64)) + 1, ())
    assert grow(Part((), (turns,))) == frozenset()  # no loop over blocks


def test_a_product_begins_its_sum_and_descriptors_of_one_tile_are_sums():
    text = of_library("attention").module.text
    first, *others = re.findall(r"pop_wgmma_m64n64k16_f16<0, 0>\((.*)\);", text)
    assert first.endswith("false") and all(x.endswith("true") for x in others) and "// attention_s_init" not in text
    assert [x.count(f", 1024, 0, {at})") for x, at in zip(others, (32, 64, 96), strict=True)] == [2, 2, 2]


def test_powers_are_one_instruction_and_a_sum():
    text = of_library("attention").module.text
    assert len(re.findall(r"pop_exp2\(.*, 0\.0f, -102\.0f\)", text)) == 2 and "pop_exp(" not in text  # of elements, of turns


def test_elements_of_a_row_are_joined_two_by_two():
    assert "float pop_v = pop_f(pop_f(pop_f(pop_f(" in of_library("attention").module.text


@pytest.mark.parametrize("call", ["attention", "attention_causal"])
def test_all_of_that_leaves_the_values_right(call):
    made, g = of_library(call), np.random.default_rng(0)
    rows, keys = 130, 130 if "causal" in call else 97
    q, k, v = (g.standard_normal((1, 2, n, 64)).astype(np.float16) for n in (rows, keys, keys))
    out = np.zeros_like(q)
    sizes = {"B": 1, "H": 2, "S": rows} | ({} if "causal" in call else {"T": keys})
    assert not emulated.run(made.module, sizes, {"c": 0.3}, {"Q": q, "K": k, "V": v, "O": out}, order="shuffled").findings
    s = 0.3 * (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2))
    s = np.where(np.tri(rows, keys, dtype=bool), s, -np.inf) if "causal" in call else s
    p = np.exp(s - s.max(-1, keepdims=True))
    np.testing.assert_allclose(out, p / p.sum(-1, keepdims=True) @ v.astype(np.float64), rtol=4e-3, atol=4e-3)


def test_a_factor_stays_where_somebody_else_reads_the_maximum():
    body = "top[i] max= c * x[i, j]\n e[i, j] = exp(c * x[i, j] - top[i])\n z[i] += e[i, j]"
    for also, new in (("", True), ("\n m[i] = top[i]", False)):
        out = "z: f32[N], m: f32[N]" if also else "z: f32[N]"
        op = compiled(f"op f(x: f32[N, K]; c: f32) -> ({out}) {{ {body}{also} }}").op
        assert (binary(op) is not op) == new


def test_powers_of_results_stay_as_exact_as_they_are():
    op = compiled("op f(x: f32[N, K]) -> (e: f32[N, K]) { top[i] max= x[i, j]\n e[i, j] = exp(x[i, j] - top[i]) }").op
    assert rounded(Form(op), Options(), target("cuda:sm_80")).op.steps == op.steps


# --- registers that begin with a value --------------------------------------------------------------------------------


def over(index: str, *body: Node, kind: Kind = Kind.ATOM, upper: Affine | None = None) -> For:
    return For(index, Affine(), affine(8) if upper is None else upper, body, kind=kind, extent=None if kind == Kind.SERIAL else 8)


def at(name: str, *index: Affine) -> Load:
    return Load(name, index or (affine("n"),), F32)


def store(name: str, target_: Load, expr, reduce=None) -> Store:
    return Store(name, (), None, (), target_, reduce, expr)


NONE = Const(float("-inf"), F32)
BUFFERS = tuple(Buffer(x, F32, ((affine(8), 1),), Space.REG) for x in ("m", "s", "r"))


def nest(*body: Node) -> LoopNest:
    return LoopNest("n", ("N",), (), BUFFERS, body)


START, UPDATE = store("start", at("m"), NONE), store("update", at("m"), at("s"), MAX)
FOLD = store("fold", at("r"), at("m"), MAX)


def test_an_update_of_what_changes_nothing_is_an_assignment():
    (_, new, _) = begun(nest(over("n", START), over("n", UPDATE), over("n", FOLD))).body
    assert new == over("n", replace(UPDATE, reduce=None))
    part = If((affine("N") - affine("n"),), (UPDATE,))
    assert begun(nest(over("n", START), over("n", part), over("n", FOLD))).body[1] == over("n", replace(
        part, then=(replace(UPDATE, reduce=None),)))


@pytest.mark.parametrize("body", [
    (over("n", START), over("k", over("n", UPDATE)), over("n", FOLD)),  # several updates of an element
    (over("n", START), over("n", UPDATE), over("n", store("r", at("r"), at("m")))),  # which is more than folded
    (over("n", replace(START, expr=Const(0.0, F32))), over("n", UPDATE), over("n", FOLD)),
    (over("n", START, upper=quasi("min", affine(8), affine("N"))), over("n", UPDATE), over("n", FOLD))])
def test_other_updates_stay(body):
    assert begun(nest(*body)).body == body


LATER = affine("t") - 1
CHOICE = Apply("select", (Tests((LATER,)), replace(at("m"), guard=(LATER,)), NONE), F32)


def turns(*body: Node) -> For:
    return over("t", *body, kind=Kind.SERIAL, upper=affine("N"))


def test_what_a_register_holds_in_the_first_turn_is_not_chosen():
    step = store("step", at("m"), Apply("max", (CHOICE, at("s")), F32))
    (_, new) = begun(nest(over("n", START), turns(over("n", step)))).body
    assert new == turns(over("n", replace(step, expr=Apply("max", (at("m"), at("s")), F32))))


@pytest.mark.parametrize(("first", "before", "where"), [
    (Const(0.0, F32), (), at("m")),  # it is another number
    (NONE, (over("n", store("x", at("m"), at("s"))),), at("m")),  # it has been written since
    (NONE, (), at("m", affine("n") * -1 + 7))])  # another element, which may have been written since
def test_what_it_may_not_hold_is_chosen(first, before, where):
    step = store("step", where, Apply("max", (CHOICE, at("s")), F32))
    body = (over("n", replace(START, expr=first)), turns(*before, over("n", step)))
    assert begun(nest(*body)).body == body
