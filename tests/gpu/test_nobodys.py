"""Loops of a block that run on, or lack a test, are followed where nobody reads what they write then, and refused elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import islpy as isl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from register_mutants import put

import polyop
from polyop.codegen.gpu import blocks
from polyop.codegen.stepped import Follow, Step
from polyop.compiler import Compiled, compile_op
from polyop.ir.dtypes import F32
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Number, affine, names, quasi
from polyop.ir.interpret import interpret
from polyop.ir.loops import Buffer, For, If, Kind, LoopNest, Node, Space, Store, rebuild, stores, walk
from polyop.ir.op import builtin_monoid
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.verify.keeps import CLAIM
from polyop.poly.verify.nobodys import nobody_reads
from polyop.runtime import cxx, emulated
from polyop.runtime.layout import contiguous

TEXTS = {
    "product": "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "units": "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f16[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "scan": "op s(X: f32[N]) -> (Y: f32[N]) { Y = cumsum(X) }",
    "attention": "op a(Q: f16[B, H, S, 64], K: f16[B, H, S, 64], V: f16[B, H, S, 64]; scale: f32) -> (O: f16[B, H, S, 64]) "
                 "{ O = attention_causal(Q, K, V, scale=scale) }",
    "full": "op a(Q: f16[B, H, S, 64], K: f16[B, H, S, 64], V: f16[B, H, S, 64]; scale: f32) -> (O: f16[B, H, S, 64]) "
            "{ O = attention(Q, K, V, scale=scale) }",
    "shares": "op f(A: f32[K, L], T: f32[L, B]) -> (Y: f32[B]) { Y[b] += abs(A[k, l] - T[l, b]) }",
}
OPTIONS = {"shares": Options(shares=(("Y", 32),), regime="positive", special=False)}
TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx942")
PASSES = {
    ("product", "cuda:sm_80"): ("filled",), ("product", "cuda:sm_90a"): ("filled",), ("product", "hip:gfx942"): ("unasked",),
    ("units", "cuda:sm_80"): ("unasked",), ("units", "cuda:sm_90a"): ("unasked", "filled"), ("units", "hip:gfx942"): ("unasked",),
    ("scan", "cuda:sm_80"): ("filled",), ("scan", "cuda:sm_90a"): ("filled",), ("scan", "hip:gfx942"): ("filled",),
    ("attention", "cuda:sm_80"): ("unasked", "sunk"), ("attention", "cuda:sm_90a"): ("unasked",),
    ("attention", "hip:gfx942"): ("unasked", "sunk"), ("full", "cuda:sm_90a"): ("unasked",),
}


@cache
def made(text: str, target_name: str) -> Compiled:
    operator = polyop.op(TEXTS[text])
    op = operator._op(operator.choice())
    return compile_op(op, contiguous(op), target(target_name), OPTIONS.get(text, Options()))


def proved(text: str, target_name: str) -> LoopNest:
    nest = made(text, target_name).nest
    assert nest is not None
    return nest


def context(nest: LoopNest) -> isl.Set:
    return isl.Set(f"[{', '.join(nest.sizes)}] -> {{ : {' and '.join(f'{n} >= 1' for n in nest.sizes)} }}")


def steps(text: str, target_name: str) -> tuple[Step, ...]:
    return tuple(s for s in blocks.prepared(proved(text, target_name))[1] if s.by in (Follow.MORE, Follow.LESS))


def wrong(s: Step, nest: LoopNest) -> str:
    """Why a step is refused; "" if it is not."""
    few, more = (s.before, s.after) if s.by == Follow.MORE else (s.after, s.before)
    return nobody_reads(few, more, nest, context(nest)).witness


def longer(nest: LoopNest) -> Iterator[LoopNest]:
    """`nest`, of which one more loop runs on, or one more test is not asked."""
    for n in walk(nest.body):
        if isinstance(n, For) and n.kind in (Kind.ROWS, Kind.ATOM, Kind.THREADS) and not n.is_full:
            yield replace(nest, body=put(nest.body, n, (replace(n, upper=affine(n.end)),)))
        elif isinstance(n, If) and not n.other and len(n.then) == 1:
            yield replace(nest, body=put(nest.body, n, n.then))


@pytest.mark.parametrize(("text", "target_name"), PASSES)
def test_what_nobody_reads_may_be_written(text: str, target_name: str) -> None:
    found = steps(text, target_name)
    assert tuple(s.name for s in found) == PASSES[text, target_name]
    for s in found:
        assert not wrong(s, proved(text, target_name)), s.name
    compiled = made(text, target_name)
    assert compiled.rung == "tuned" and any(p.claim == CLAIM and p.holds for p in compiled.proofs)
    assert not any("loops are not rewritten" in x for x in compiled.notes)


@pytest.mark.parametrize(("text", "target_name"), PASSES)
def test_what_is_stored_or_read_is_not_written_beyond_its_bounds(text: str, target_name: str) -> None:
    nest = proved(text, target_name)
    for s in steps(text, target_name):
        if s.by == Follow.MORE:
            found = [wrong(replace(s, after=z), nest) for z in longer(s.after)]
            assert sum(map(bool, found)) >= 2, s.name  # the others are nobody's, or have nothing to do
            assert any("is written, and was not" in why for why in found)


@pytest.mark.parametrize(("text", "target_name"), PASSES)
def test_no_other_change_is_followed(text: str, target_name: str) -> None:
    nest = proved(text, target_name)
    for s in steps(text, target_name):
        after, was = s.after, {id(n) for n in walk(s.before.body)}
        mine = [n for n in walk(after.body) if id(n) not in was]
        loops = [n for n in mine if isinstance(n, For) and n.kind != Kind.PARALLEL][:12]
        for n in loops:
            for other in ((), (replace(n, upper=n.upper - n.step),), (replace(n, upper=n.upper + n.step),), (n, n)):
                assert wrong(replace(s, after=replace(after, body=put(after.body, n, other))), nest), (s.name, n.index)
        for n in [n for n in walk(after.body) if isinstance(n, Store)][:12]:
            shifted = replace(n.target, index=tuple(p + 1 if isinstance(p, Affine) else p for p in n.target.index))
            for new in ((), (n, n), (replace(n, target=shifted),), (replace(n, expr=Apply("neg", (n.expr,), n.expr.dtype)),)):
                if new != (n,):
                    assert wrong(replace(s, after=replace(after, body=put(after.body, n, new))), nest), (s.name, n.target)


def test_what_a_unit_reads_beyond_the_end_of_a_sum_stays_0() -> None:
    """Keys that there are none of: `e` of them may be anything, also infinite, and the unit multiplies all of a tile."""
    nest = proved("full", "cuda:sm_90a")
    (s,) = steps("full", "cuda:sm_90a")
    assert not wrong(s, nest)
    rounded = [n for n in walk(s.after.body) if isinstance(n, For) and n.index == "j_p_p" and not n.is_full
               and {x.target.source for x in stores((n,))} == {"attention_e_block_f16_reg"}]
    assert rounded
    for n in rounded:
        after = replace(s.after, body=put(s.after.body, n, (replace(n, upper=affine(n.end)),)))
        assert "attention_e_block_f16_reg[0, 0, i_p, j_p4_p]` of S9 is read" in wrong(replace(s, after=after), nest)


@pytest.mark.parametrize("target_name", TARGETS)
def test_what_is_added_up_under_another_bound_in_each_turn_is_somebodys(target_name: str) -> None:
    """The last share of 33 terms has one, k = 32, and the others of its 32 turns add nothing to it."""
    nest = proved("shares", target_name)
    found = [s for s in steps("shares", target_name) if s.name == "filled"]
    for s in found:
        assert not wrong(s, nest)
        turns = [f.index for f in walk(s.after.body) if isinstance(f, For) and f.kind == Kind.SERIAL]
        mine = [f for f in walk(s.after.body) if isinstance(f, For) and f.kind == Kind.ROWS and not f.is_full
                and names(f.upper) & {*turns} and any(x.reduce for x in stores((f,)))]
        full = {id(f): replace(f, upper=affine(f.end)) for f in mine}
        assert full

        def go(body: tuple[Node, ...], full: dict[int, For] = full) -> tuple[Node, ...]:
            return tuple(rebuild(full.get(id(n), n), go) for n in body)

        assert "_acc" in wrong(replace(s, after=replace(s.after, body=go(s.after.body))), nest)
    assert found
    try:
        cxx.compiler()
    except UnsupportedError as e:
        pytest.skip(str(e))
    module = made("shares", target_name).module
    assert module is not None
    rng = np.random.default_rng(1)
    arrays = {"A": rng.random((33, 9), np.float32), "T": rng.random((9, 3), np.float32) + 5, "Y": np.zeros(3, np.float32)}
    assert not emulated.run(module, {"K": 33, "L": 9, "B": 3}, {}, arrays).findings
    assert np.allclose(arrays["Y"], np.abs(arrays["A"][:, :, None] - arrays["T"]).sum((0, 1)), rtol=1e-5)


def test_a_pass_that_writes_what_somebody_reads_is_left_out_and_that_is_told(
        monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    right = made("product", "cuda:sm_80")

    def broken(nest: LoopNest) -> LoopNest:
        for n in walk(nest.body):
            if isinstance(n, For) and n.index == "k_p":  # terms beyond the end of the sum
                nest = replace(nest, body=put(nest.body, n, (replace(n, upper=affine(16)),)))
        return nest

    monkeypatch.setattr(blocks, "filled", broken)
    with caplog.at_level(logging.ERROR, "polyop"):
        found = compile_op(right.op, right.layout, right.target, Options())
    assert any(x.startswith("loops are not rewritten as `filled` does it") for x in found.notes)
    monkeypatch.setattr(blocks, "filled", lambda nest: nest)
    without = compile_op(right.op, right.layout, right.target, Options())
    assert found.module is not None and without.module is not None and found.rung == "tuned"
    assert found.module.text == without.module.text


# --- small nests ----------------------------------------------------------------------------------------------------------

BUFFERS = (Buffer("X", F32, ((affine("N"), 1),), Space.TENSOR), Buffer("Y", F32, ((affine("N"), 1),), Space.TENSOR),
           Buffer("r", F32, ((affine(4), 1),), Space.REG), Buffer("q", F32, ((affine(4), 1),), Space.REG),
           Buffer("s", F32, ((affine(8), 1),), Space.SHARED))
P, T, N, BLOCK = map(affine, ("p", "t", "N", "b"))
END = N - BLOCK * 4
"""Where the rows of block b end, which has rows 4 b .. 4 b + 3; of turn t it is so many less."""
ZERO = Const(0.0, F32)
PLACE = quasi("mod", P + T, affine(8))


def at(name: str, p: Affine = P) -> Load:
    return Load(name, (p,), F32)


def rows(target: Load, e: Expr, reduce: str = "", upper: Affine = END, index: str = "p", tests: tuple[Affine, ...] = ()) -> For:
    s: Node = Store("S", (), None, (), target, builtin_monoid(reduce, F32) if reduce else None, e)
    inside = If(tests, (s,)) if tests else s
    end = upper if upper.is_constant else quasi("min", affine(4), upper)
    return For(index, Affine(), end, (inside,), kind=Kind.ROWS, extent=4)


def nest(*body: Node) -> LoopNest:
    """`body` in each block, whose registers begin as 0."""
    begin = rows(at("r"), ZERO, upper=affine(4)), rows(at("q"), ZERO, upper=affine(4)), For(
        "e", Affine(), affine(8), (Store("E", (), None, (), at("s", affine("e")), None, Number(affine("e") + 1, F32)),))
    return LoopNest("small", ("N",), (), BUFFERS, (For("b", Affine(), quasi("div", N + 3, affine(4)), (*begin, *body),
                                                       kind=Kind.PARALLEL),))


def turns(*body: Node) -> For:
    return For("t", Affine(), affine(3), body)


def refused(before: LoopNest, after: LoopNest) -> str:
    return nobody_reads(before, after, before, context(before)).witness


FULL = affine(4)
RESULT = rows(at("Y", P + BLOCK * 4), at("q"))
GOOD = {
    "an element beyond the bound of its use":
        ((rows(at("q"), at("s")), RESULT), (rows(at("q"), at("s"), upper=FULL), RESULT)),
    "a sum": ((turns(rows(at("q"), at("s", PLACE), "add")), RESULT), (turns(rows(at("q"), at("s", PLACE), "add", FULL)), RESULT)),
    "what is written anew in each turn": (
        (turns(rows(at("r"), at("s", PLACE), upper=END - T), rows(at("q"), at("r"), "add", END - T)), RESULT),
        (turns(rows(at("r"), at("s", PLACE), upper=FULL), rows(at("q"), at("r"), "add", END - T)), RESULT)),
    "a sum that begins anew in each turn": (
        (turns(rows(at("r"), ZERO, upper=FULL), rows(at("r"), at("s"), "add", END + T - 2),
               rows(at("q"), at("r"), upper=END + T - 2)), RESULT),
        (turns(rows(at("r"), ZERO, upper=FULL), rows(at("r"), at("s"), "add", FULL),
               rows(at("q"), at("r"), upper=END + T - 2)), RESULT)),
    "a test instead of a bound": (
        (rows(at("q"), at("s", P), upper=FULL, tests=(END - P - 1,)), RESULT), (rows(at("q"), at("s", P), upper=FULL), RESULT)),
}
BAD = {
    "a result": ((rows(at("q"), ZERO), RESULT), (rows(at("q"), ZERO), replace(RESULT, upper=FULL)), "`Y[4*b + p]` is written"),
    "what is read without a bound": (
        (rows(at("q"), at("s")), rows(at("r"), at("q"), upper=FULL), RESULT),
        (rows(at("q"), at("s"), upper=FULL), rows(at("r"), at("q"), upper=FULL), RESULT), "`q[p]` of S is read"),
    "another store": ((rows(at("q"), ZERO), RESULT), (rows(at("q"), at("s")), RESULT), "other nodes"),
    "a store more": ((rows(at("q"), ZERO), RESULT), (rows(at("q"), ZERO), RESULT, rows(at("q"), ZERO)), "more nodes"),
    "an element that a later turn reads": (
        (turns(rows(at("r"), at("s", PLACE), upper=END - T)), rows(at("q"), at("r")), RESULT),
        (turns(rows(at("r"), at("s", PLACE), upper=FULL)), rows(at("q"), at("r")), RESULT), "`r[p]` of S is read"),
    "an element that the next turn reads before it is written": (
        (turns(rows(at("q"), at("r"), "add"), rows(at("r"), at("s", PLACE), upper=END - T - 1)), RESULT),
        (turns(rows(at("q"), at("r"), "add"), rows(at("r"), at("s", PLACE), upper=FULL)), RESULT), "`r[p]` of S is read"),
    "what is written anew in some elements only": (
        (turns(rows(at("r"), at("s", PLACE), upper=END - T), rows(at("q"), at("r"), "add", END)), RESULT),
        (turns(rows(at("r"), at("s", PLACE), upper=FULL), rows(at("q"), at("r"), "add", END)), RESULT), "`r[p]` of S is read"),
    "a sum of which some elements begin anew": (
        (turns(rows(at("r"), ZERO, upper=affine(2)), rows(at("r"), at("s"), "add", END + T - 2),
               rows(at("q"), at("r"), upper=END + T - 2)), RESULT),
        (turns(rows(at("r"), ZERO, upper=affine(2)), rows(at("r"), at("s"), "add", FULL),
               rows(at("q"), at("r"), upper=END + T - 2)), RESULT), "`r[p]` of S is read"),
    "the element next to it": (
        (rows(at("r"), at("s", P), upper=END - 1), rows(at("q"), at("r")), RESULT),
        (rows(at("r"), at("s", P), upper=FULL), rows(at("q"), at("r")), RESULT), "`r[p]` of S is read"),
    "reading outside of a tensor": (
        (rows(at("q"), at("X", P + BLOCK * 4)), RESULT), (rows(at("q"), at("X", P + BLOCK * 4), upper=FULL), RESULT), "outside"),
    "reading outside of a tile": (
        (rows(at("q"), at("s", P + 6), upper=quasi("min", affine(2), END)), RESULT),
        (rows(at("q"), at("s", P + 6), upper=FULL), RESULT), "outside"),
    "a loop that ends too early": (
        (rows(at("q"), ZERO), RESULT), (rows(at("q"), ZERO, upper=quasi("min", affine(3), END)), RESULT), "ends at"),
    "rows there are none of": ((rows(at("q"), ZERO), RESULT), (rows(at("q"), ZERO, upper=affine(5)), RESULT), "room for"),
    "a turn more": ((turns(rows(at("q"), ZERO)), RESULT), (replace(turns(rows(at("q"), ZERO)), upper=affine(4)), RESULT),
                    "one iteration after the other"),
}


@pytest.mark.parametrize("what", GOOD)
def test_elements_beyond_a_bound_are_nobodys(what: str) -> None:
    before, after = (nest(*body) for body in GOOD[what])
    assert not refused(before, after)
    assert all(np.array_equal(run(before, n), run(after, n), equal_nan=True) for n in range(1, 10))


@pytest.mark.parametrize("what", BAD)
def test_elements_that_somebody_reads_are_not_nobodys(what: str) -> None:
    before, after, why = BAD[what]
    assert why in refused(nest(*before), nest(*after))


def run(small: LoopNest, n: int) -> np.ndarray:
    arrays = {"X": np.arange(1.0, n + 1, dtype=np.float32), "Y": np.zeros(n, np.float32)}
    interpret(small, {"N": n}, {}, arrays)
    return arrays["Y"]


@st.composite
def pairs(draw: st.DrawFn) -> tuple[LoopNest, LoopNest]:
    """A nest, and the same of which some loops over rows run on, or lack a test."""
    def one(inside: bool) -> tuple[Node, Node]:
        upper = draw(st.sampled_from((END + T - 2, END + T - 3, END, FULL) if inside else (END, END - 1, FULL)))
        test = draw(st.sampled_from([(), (), (END - P - 2,)]))
        target, reduce = draw(st.sampled_from("rq")), draw(st.sampled_from(["", "", "add"]))
        value = draw(st.sampled_from([at("s"), at("r"), at("q"), at("r" if target == "q" else "q", affine(3) - P)]))
        before = rows(at(target), value, reduce, upper, tests=test)
        if draw(st.integers(0, 2)):
            return before, before
        return before, rows(at(target), value, reduce, FULL, tests=test if draw(st.booleans()) else ())

    def several(inside: bool, least: int, most: int) -> list[tuple[Node, Node]]:
        return [one(inside) for _ in range(draw(st.integers(least, most)))]

    first, turn, last = several(False, 0, 1), several(True, 1, 3), several(False, 0, 1)
    a, b = ((*(x[k] for x in first), turns(*(x[k] for x in turn)), *(x[k] for x in last), RESULT) for k in (0, 1))
    return nest(*a), nest(*b)


@settings(max_examples=300, deadline=None)
@given(pairs())
def test_what_is_accepted_stores_the_same(both: tuple[LoopNest, LoopNest]) -> None:
    before, after = both
    if not refused(before, after):
        assert all(np.array_equal(run(before, n), run(after, n), equal_nan=True) for n in range(1, 10))
