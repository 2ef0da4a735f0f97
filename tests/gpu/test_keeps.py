"""What is rewritten in kernels with matrix units behind their proofs is followed; what does anything else is refused."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from typing import Any

import islpy as isl
import pytest
from register_mutants import mutants, put

import polyop
from polyop.codegen.c import matrix
from polyop.codegen.gpu import mended, refined
from polyop.codegen.gpu.blocks import prepared
from polyop.codegen.stepped import Follow, Step
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import BF16, BOOL, F16, F32, DType
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, affine, loads, quasi
from polyop.ir.loops import Barrier, Buffer, For, If, IfData, Kind, LoopNest, Node, Space, Store, stores, walk
from polyop.ir.op import builtin_monoid
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.verify.keeps import CLAIM, stores_alike
from polyop.poly.verify.rewrites import follows
from polyop.runtime.layout import contiguous

PASSES = ("begun", "mended", "inplace", "emptied", "scaled")
SEEN = {"full": "attention(Q, K, V, scale=scale", "causal": "attention_causal(Q, K, V, scale=scale",
        "window": "attention_window(Q, K, V, scale=scale, window=w"}
TEXT = "op a(Q: f16[B, H, S, 64], K: f16[B, H, S, 64], V: f16[B, H, S, 64]; w: int, scale: f32) -> (O: f16[B, H, S, 64]) " \
       "where w >= 1 {{ O = {call}) }}"

SAME = {
    # blocks of 64 rows and keys: all keys are seen in front of the diagonal's, and in that no more than its rows see
    "if (i_o - 64*j_b - 63 >= 0): never",
    "if (i_o - 64*j_b - 63 >= 0): i_o - 64*j_b - 127 >= 0",
    "if (-i_o + 64*j_b + 62 >= 0): always",
    "if (-i_o + 64*j_b + 62 >= 0): -i_o + 64*j_b + 126 >= 0",
    "if (i_o - 64*j_b + 63 >= 0 and -i_o + 64*j_b + 62 >= 0): always",
    "if (i_o - 64*j_b + 63 >= 0 and -i_o + 64*j_b + 62 >= 0): i_o - 64*j_b + 127 >= 0",
    "if (i_o - 64*j_b + 63 >= 0 and -i_o + 64*j_b + 62 >= 0): -i_o + 64*j_b + 126 >= 0",
    "for i_p .. attention_causal_e_block_reg[0, 0] =: the last one not",  # the last row sees all keys
    # terms one by one where the unit would do as well; nothing multiplied by 1; the scale first
    "if ((i_o - 64*j_b - 63 >= 0) or isfinite(V_S9_tile1[((j_b) mod 2), 0, 0])): by (i_o - 64*j_b - 63 >= 0)",
    "if (attention_causal_top_repair_reg[0] != f32(1.0)): always",
    "if ((f32(0.0) < (scale * f32(1.4426950408889634))) and ((scale * f32(1.4426950408889634)) < f32(inf))): never",
    # the row of the operand, read where it was copied from
    "attention_causal_o_state_reg[0, 0] +=: reads attention_causal_e_block_f16_reg[0, 0]",
}
"""Mutants of the causal kernel that do the same."""


@cache
def made(seen: str, target_name: str) -> Compiled:
    operator = polyop.op(TEXT.format(call=SEEN[seen]))
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(target_name), Options())


@cache
def steps(seen: str, target_name: str) -> tuple[Step, ...]:
    nest = proved(seen, target_name)
    return refined.refined(prepared(nest)[0], nest, matrix.find_tiles(nest, target(target_name)))[1]


def proved(seen: str, target_name: str) -> LoopNest:
    nest = made(seen, target_name).nest
    assert nest is not None
    return nest


def context(nest: LoopNest) -> isl.Set:
    return isl.Set(f"[{', '.join(nest.sizes)}] -> {{ : {' and '.join(f'{n} >= 1' for n in nest.sizes)} }}")


def wrong(before: LoopNest, after: LoopNest, nest: LoopNest) -> str:
    """Why `after` is refused; "" if it is not."""
    return stores_alike(before, after, nest, context(nest)).witness


@pytest.mark.parametrize(("seen", "target_name", "passes"), [
    ("full", "cuda:sm_90a", ("begun", "inplace", "emptied", "scaled")), ("causal", "cuda:sm_90a", PASSES),
    ("window", "cuda:sm_90a", ("mended",)), ("causal", "cuda:sm_80", ("begun",))])
def test_each_pass_is_followed_and_all_of_them_as_one(seen: str, target_name: str, passes: tuple[str, ...]) -> None:
    nest, found = proved(seen, target_name), steps(seen, target_name)
    assert tuple(r.name for r in found) == passes
    for r in (*found, Step("all", Follow.VALUES, found[0].before, found[-1].after)):
        assert not wrong(r.before, r.after, nest), r.name
    assert any(p.claim == CLAIM and p.holds for p in made(seen, target_name).proofs)
    assert not any("loops are not rewritten" in x for x in made(seen, target_name).notes)


@pytest.mark.parametrize("seen", ["causal", "window"])
def test_products_whose_results_are_looked_at_are_followed_too(seen: str) -> None:
    nest = proved(seen, "cuda:sm_90a")
    before = next(r.before for r in steps(seen, "cuda:sm_90a") if r.name == "mended")
    places = {(s.stmt, x.source): x.index for s in stores(nest.body) for x in (s.target, *loads(s.expr))}
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    looks = mended._Mended(matrix.find_tiles(nest, target("cuda:sm_90a")).products, places, registers, set())
    after = replace(before, body=looks.go(before.body, frozenset(), ()))
    asked = [n for n in walk(after.body) if isinstance(n, IfData)]
    assert asked and not wrong(before, after, nest)
    never = replace(after, body=put(after.body, asked[0], ()))
    assert "is one term more, or less" in wrong(before, never, nest)


@pytest.mark.parametrize("name", PASSES)
def test_a_pass_that_does_anything_else_is_refused(name: str) -> None:
    nest = proved("causal", "cuda:sm_90a")
    (r,) = (r for r in steps("causal", "cuda:sm_90a") if r.name == name)
    each = {"begun": 2, "mended": 2, "scaled": 4}.get(name, 1)  # of which refusing one takes longer
    found = {what: wrong(r.before, z, nest) for what, z in [*mutants(r.before, r.after)][::each]}
    assert len(found) > 15
    assert {what for what, why in found.items() if not why} <= SAME


def test_a_pass_that_is_refused_is_left_out_and_that_is_told(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
                                                            ) -> None:
    right = made("full", "cuda:sm_90a")
    real = refined.inplace

    def broken(nest: LoopNest, products: Any, rows: Any) -> LoopNest:
        new = real(nest, products, rows)
        (asked,) = (n for n in walk(new.body) if isinstance(n, IfData))
        return replace(new, body=put(new.body, asked, ()))  # what was added up is not rescaled

    monkeypatch.setattr(refined, "inplace", broken)
    with caplog.at_level(logging.ERROR, "polyop"):
        found = compile_op(right.op, right.layout, right.target, Options())
    assert "polyop bug: what `inplace` makes of" in caplog.text
    assert any(x.startswith("loops are not rewritten as `inplace` does it: FAILS") for x in found.notes)
    assert found.rung == "tuned"
    monkeypatch.setattr(refined, "inplace", lambda nest, products, rows: nest)
    without = compile_op(right.op, right.layout, right.target, Options())
    assert found.module is not None and without.module is not None
    assert found.module.text.splitlines()[-100:] == without.module.text.splitlines()[-100:]


@pytest.mark.parametrize("target_name", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_steps_of_a_block_are_followed_store_by_store_and_damage_is_refused(target_name: str) -> None:
    nest = proved("causal", target_name)
    found = [s for s in prepared(nest)[1] if s.by == Follow.STORES]
    assert {"counted", "asked"} <= {s.name for s in found}
    for s in found:
        assert follows(s.before, s.after, context(nest), strict=True).holds
        tests = {id(n) for n in walk(s.before.body)}
        new = [n for n in walk(s.after.body) if isinstance(n, If) and id(n) not in tests]
        for n in new[:3]:
            assert not follows(s.before, replace(s.after, body=put(s.after.body, n, n.other)), context(nest)).holds


@pytest.mark.parametrize("target_name", ["cuda:sm_80", "cuda:sm_90a"])
def test_bounds_that_others_imply_go_and_no_other_bound_does(target_name: str) -> None:
    nest = proved("causal", target_name)
    (s,) = (s for s in prepared(nest)[1] if s.name == "implied")
    assert follows(s.before, s.after, context(nest), strict=True).holds
    bounded = [n for n in walk(s.after.body) if isinstance(n, For) and n.kind in (Kind.ROWS, Kind.ATOM) and not n.is_full]
    assert len(bounded) > 20

    def holds(n: For, upper: Affine) -> bool:
        other = replace(s.after, body=put(s.after.body, n, (replace(n, upper=upper),)))
        return follows(s.before, other, context(nest)).holds

    assert not any(holds(n, n.upper - n.step) for n in bounded)
    # whose keys all are in front of a row, which is there
    assert [n.index for n in bounded if holds(n, affine(n.end))] == ["j_p4_p"]


# --- small nests ----------------------------------------------------------------------------------------------------------

def vector(name: str, space: Space, dtype: DType = F32) -> Buffer:
    return Buffer(name, dtype, ((affine(4), 1),), space)


BUFFERS = (vector("X", Space.TENSOR), vector("W", Space.TENSOR), vector("Y", Space.TENSOR), vector("A", Space.SHARED),
           vector("B", Space.TENSOR, BF16), vector("r", Space.REG), vector("q", Space.REG))
X, W, A, R, Q = (Load(n, (affine("i"),), F32) for n in "XWArq")
B = Load("B", (affine("i"),), BF16)
ZERO, ONE, LOWEST = (Const(x, F32) for x in (0.0, 1.0, F32.lowest))
AGAIN = affine("t") - 1
"""In all turns but the first."""


def nest(*body: Node) -> LoopNest:
    return LoopNest("small", ("T",), (), BUFFERS, body)


def rows(target: str, e: Expr, reduce: str = "", upper: int = 4) -> For:
    """`target[i] = e` for four rows `i`."""
    s = Store("S", (), None, (), Load(target, (affine("i"),), F32), builtin_monoid(reduce, F32) if reduce else None, e)
    return For("i", Affine(), affine(upper), (s,), kind=Kind.ROWS, extent=4)


def terms(target: str, e: Expr, reduce: str) -> For:
    """`target[i] reduce= e` for four rows `i`, and four terms `j` of each."""
    f = rows(target, e, reduce)
    return replace(f, body=(For("j", Affine(), affine(4), f.body, kind=Kind.ROWS, extent=4),))


def turns(*body: Node) -> For:
    return For("t", Affine(), affine("T"), body)


def kept(old: Expr) -> Expr:
    """What the first turn finds, or `old`."""
    return Apply("select", (Test((AGAIN,)), replace(R, guard=(AGAIN,)), old), F32)


def plus(a: Expr, b: Expr) -> Expr:
    return Apply("add", (a, b), F32)


def cast(e: Expr, dtype: DType) -> Expr:
    return Apply("cast", (e,), dtype)


def times_zero(e: Expr) -> Expr:
    return Apply("mul", (e, ZERO), F32)


def if_finite(e: Expr) -> Node:
    """`r[i] = X[i] + e`, where all of `B` is finite, else `X[i]`."""
    return IfData(Apply("isfinite", (replace(B, index=(Affine(),)),), BOOL), (rows("r", plus(X, e)),), (rows("r", X),))


def maximum(a: Expr, b: Expr) -> Expr:
    return Apply("max", (a, b), F32)


SUM = rows("q", ZERO), terms("q", replace(X, index=(affine("j"),)), "add")
"""A sum in each element of `q`."""
MET = Barrier("copies are there")
END = rows("Y", R)
RIGHT = {
    "what begins as 0 begins as its first term": (nest(rows("r", ZERO), rows("r", X, "add"), END), nest(rows("r", X), END)),
    "sums have no order": (nest(rows("q", plus(X, W)), rows("r", plus(Q, X)), END),
                           nest(rows("r", plus(X, X)), rows("r", W, "add"), END)),
    "the first turn finds what was there": (
        nest(rows("r", ZERO), turns(rows("r", plus(kept(ZERO), X))), END),
        nest(rows("r", ZERO), turns(rows("r", plus(R, X))), END)),
    "nobody reads what is left out": (nest(rows("q", X), rows("r", W), END), nest(rows("r", W), END)),
    "a sum that is the first in a maximum": (
        nest(*SUM, rows("r", LOWEST), rows("r", Q, "max"), END), nest(*SUM, rows("r", Q), END)),
    "a sum that is the first in a maximum where elements are missing": (
        nest(*SUM, rows("r", LOWEST), rows("r", Q, "max", upper=3), END),
        nest(*SUM, rows("r", LOWEST), rows("r", Q, upper=3), END)),
    "a sum without what changes nothing is more terms of a sum": (
        nest(*SUM, rows("r", plus(X, maximum(LOWEST, plus(W, Apply("mul", (ONE, Q), F32))))), END),
        nest(*SUM, rows("r", plus(plus(X, Q), W)), END)),
    "a product with 0 is 0 where all numbers are finite": (
        nest(rows("r", X), END), nest(if_finite(times_zero(cast(B, F32))), END)),
    "a register of another name": (nest(rows("q", X), MET, rows("Y", Q)), nest(rows("r", X), MET, END)),
}
WRONG = {
    "a row is missing": (nest(rows("r", X), END), nest(rows("r", X, upper=3), END)),
    "another term": (nest(rows("r", ZERO), rows("r", X, "add"), END), nest(rows("r", W), END)),
    "the first turn finds something else": (
        nest(rows("r", ONE), turns(rows("r", plus(kept(ZERO), X))), END),
        nest(rows("r", ONE), turns(rows("r", plus(R, X))), END)),
    "another turn is the first": (
        nest(rows("r", ZERO), turns(rows("r", plus(kept(ZERO), X))), END), nest(rows("r", ZERO), turns(rows("r", X)), END)),
    "memory is read after it was written": (nest(rows("r", W), rows("W", X), END), nest(rows("W", X), rows("r", W), END)),
    "memory is read behind a barrier": (nest(rows("r", A), MET, END), nest(MET, rows("r", A), END)),
    "a barrier is missing": (nest(rows("r", X), MET, END), nest(rows("r", X), END)),
    "a store is missing": (nest(rows("r", X), rows("W", R), END), nest(rows("r", X), END)),
    "stores are in another order": (nest(rows("W", X), rows("Y", A)), nest(rows("Y", A), rows("W", X))),
    "what nobody reads lies outside": (
        nest(rows("r", X), END), nest(rows("q", replace(X, index=(affine("i") + 1,))), rows("r", X), END)),
    "a product with 0 may be no number": (nest(rows("r", ZERO), END), nest(rows("r", times_zero(X)), END)),
    "a sum that is not the first in a maximum": (
        nest(*SUM, rows("r", X), rows("r", Q, "max"), END), nest(*SUM, rows("r", Q), END)),
    "a sum that is in a maximum with 0": (
        nest(*SUM, rows("r", ZERO), rows("r", Q, "max"), END), nest(*SUM, rows("r", Q), END)),
    "a sum in a maximum where elements are missing, and not": (
        nest(*SUM, rows("r", LOWEST), rows("r", Q, "max", upper=3), END), nest(*SUM, rows("r", Q), END)),
    "missing elements of a maximum begin as 0": (
        nest(*SUM, rows("r", LOWEST), rows("r", Q, "max", upper=3), END),
        nest(*SUM, rows("r", ZERO), rows("r", Q, upper=3), END)),
    "a maximum of a sum is one term, not two": (
        nest(*SUM, rows("r", plus(X, maximum(ONE, plus(W, Q)))), END), nest(*SUM, rows("r", plus(plus(X, Q), W)), END)),
    "what is finite may not be so in a format with fewer exponents": (
        nest(rows("r", X), END), nest(if_finite(times_zero(cast(cast(B, F16), F32))), END)),
    "a maximum whose terms change nothing is what it began with, and no 0": (
        nest(rows("r", X), terms("r", LOWEST, "max"), END), nest(rows("r", ZERO), terms("r", ZERO, "add"), END)),
}


@pytest.mark.parametrize("what", RIGHT)
def test_what_stores_the_same_is_followed(what: str) -> None:
    before, after = RIGHT[what]
    assert not wrong(before, after, before)


def test_barriers_stand_for_themselves_where_each_store_stands_along_the_same() -> None:
    body = (rows("W", X), MET, rows("Y", A), rows("W", A))
    for k, other in enumerate(((), (MET, MET), (replace(MET, pending=1),), (turns(MET),))):
        assert not follows(nest(*body), nest(body[0], *other, *body[2:]), context(nest())).holds, k
    assert not follows(nest(*body), nest(*body[:3]), context(nest())).holds  # what comes behind one counts
    assert follows(nest(*body), nest(*body), context(nest())).holds


def test_threads_stay_as_many_with_the_same_numbers_and_blocks_take_no_more_iterations_one_after_the_other() -> None:
    threads = replace(rows("Y", X), kind=Kind.THREADS, extent=8, weight=4)
    blocks = For("b", Affine(), affine("T"), (threads,), kind=Kind.PARALLEL)
    same = replace(threads, upper=quasi("min", affine(4), affine(8)))
    assert follows(nest(threads), nest(same), context(nest())).holds
    for other in (replace(threads, extent=4), replace(threads, weight=1), replace(threads, weight=8)):
        assert not follows(nest(threads), nest(other), context(nest())).holds
    lasting = replace(blocks, persistent=True)
    assert follows(nest(lasting), nest(blocks), context(nest())).holds
    assert not follows(nest(blocks), nest(lasting), context(nest())).holds


@pytest.mark.parametrize("what", WRONG)
def test_what_stores_anything_else_is_refused(what: str) -> None:
    before, after = WRONG[what]
    assert wrong(before, after, before)
