"""Tests of data that a loop does not change stand before it."""

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

from polyop.codegen.cpu.lower import rewrites
from polyop.codegen.cpu.settle import settle, settled, steady_test
from polyop.ir.dtypes import BOOL, F32, I32
from polyop.ir.expr import Const, Number
from polyop.ir.loops import IfData, LoopNest, rebuild, stores, structure
from polyop.ir.module import Proof
from polyop.poly.verify.rewrites import follows
from tests.codegen.harness import RUNNABLE, check, compiled, make_arrays
from tests.codegen.nests import A, ap, lanes, ld, loop, nest, reg, st, strip, tensor

I = A("i_c", "i_v")
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
TOP, PART, X = ld("top"), ld("part", "i_v", t=I32), ld("x", I)
NAN = ap("isnan", TOP, t=BOOL)
FOUND = ap("or", ap("eq", X, TOP, t=BOOL), ap("and", ap("isnan", X, t=BOOL), NAN, t=BOOL), t=BOOL)
NONE = Const(I32.highest, I32)
PLACE = ap("select", FOUND, Number(I, I32), NONE, t=I32)
X0 = ld("x", 0)
SEARCH = strip("i", 32, "N", st(PART, PLACE, "min"))


def searching(*before):
    """The first place of each row's `t` in it, or of a NaN where `t` is one."""
    at = ld("at", t=I32)
    body = [*before, st(TOP, ld("t", "r")), st(at, NONE), strip("i", 32, "N", st(at, PLACE, "min")), st(ld("y", "r", t=I32), at)]
    buffers = [tensor("x", "N"), tensor("t", "M"), tensor("y", "M", t=I32), reg("top"), reg("at", t=I32)]
    return nest(buffers, [loop("r", "M", *body)], sizes=("M", "N"))


def test_a_test_of_registers_that_a_loop_does_not_write_is_steady():
    n = nest([tensor("x", "N"), reg("top"), reg("part", 32, t=I32)], [SEARCH])
    assert steady_test(n, SEARCH) == NAN
    yes, no = (str(stores(settled(SEARCH, NAN, holds).body)[0].expr) for holds in (True, False))
    assert yes == f"(({X} == {TOP}) or isnan({X})) ? i32(i_c + i_v) : {NONE})".replace("((", "(((", 1)
    assert no == f"(({X} == {TOP}) ? i32(i_c + i_v) : {NONE})"


def test_a_test_of_what_the_loop_writes_or_of_memory_is_not():
    changed = strip("i", 32, "N", st(PART, PLACE, "min"), st(TOP, X, "max"))
    assert steady_test(nest([tensor("x", "N"), reg("top"), reg("part", 32, t=I32)], [changed]), changed) is None
    assert steady_test(nest([tensor("x", "N"), tensor("top"), reg("part", 32, t=I32)], [SEARCH]), SEARCH) is None


def test_the_test_stands_around_the_innermost_loop_alone():
    n = settle(searching())
    found = "s s if(i_c(i_v:lanes(s)) | i_c(i_v:lanes(s))) s"
    assert structure(n.body) == f"r({found})"
    assert settle(n) == n


def followed(before: LoopNest, after: LoopNest) -> Proof:
    return follows(before, after, isl.Set("[M, N] -> { : }"))


def changed(n: LoopNest, change) -> LoopNest:
    """`n` with `change` made to its test of data."""
    def one(x):
        return change(x) if isinstance(x, IfData) else rebuild(x, lambda body: tuple(map(one, body)))

    return replace(n, body=tuple(map(one, n.body)))


def test_the_checker_follows_a_test_of_data():
    assert followed(searching(), settle(searching())).holds


def test_the_checker_follows_it_where_a_part_of_the_loop_stands_behind_it():
    before = searching()
    after = rewrites(before, 8)
    assert "if(i_c(i_v:lanes(s)) | i_c(i_v:lanes(s))) i_c(" in structure(after.body)
    assert followed(before, after).holds
    proof = followed(before, changed(after, lambda x: replace(x, other=x.then)))
    assert not proof.holds and proof.witness


def test_the_checker_refuses_a_test_of_what_is_written_further_on():
    before = searching()
    row = before.body[0]
    again = replace(before, body=(replace(row, body=(*row.body[:2], row.body[2], st(TOP, X0), *row.body[2:])),))
    right = settle(again)
    assert followed(again, right).holds
    first, second = (x for x in right.body[0].body if isinstance(x, IfData))
    between = st(TOP, X0)
    early = replace(first, then=(*first.then, between, *second.then), other=(*first.other, between, *second.other))
    assert early.test == second.test
    body = (*right.body[0].body[:2], early, *right.body[0].body[5:])
    assert not followed(again, replace(right, body=(replace(right.body[0], body=body),))).holds


def test_a_test_that_is_asked_twice_has_one_truth():
    before = searching()
    right = settle(before)
    for branch in ("then", "other"):
        def twice(x, branch=branch):
            return replace(x, **{branch: (x,)})

        assert followed(before, changed(right, twice)).holds
        wrong = followed(before, changed(right, lambda x, b=branch: replace(x, **{b: (replace(x, then=x.other, other=x.then),)})))
        assert not wrong.holds and wrong.witness


@pytest.mark.parametrize("wrong", [
    lambda x: replace(x, then=x.other, other=x.then),
    lambda x: replace(x, then=x.other),
    lambda x: replace(x, other=()),
    lambda x: replace(x, test=ap("isnan", ld("at", t=I32), t=BOOL)),
    lambda x: replace(x, test=ap("isnan", ld("t", "r"), t=BOOL)),
    lambda x: replace(x, test=ap("and", NAN, NAN, t=BOOL)),
    lambda x: x.then[0],
], ids=["swapped", "one twice", "nothing otherwise", "of what is written", "of memory", "another one", "taken for granted"])
def test_the_checker_refuses_a_test_of_data_that_decides_something_else(wrong):
    proof = followed(searching(), changed(settle(searching()), wrong))
    assert not proof.holds and proof.witness


def test_a_test_of_data_is_no_part_of_what_is_followed():
    assert not followed(settle(searching()), settle(searching())).holds


@each_target
def test_what_is_found_is_the_same_whichever_way_the_test_goes(target):
    n = settle(searching())
    k = compiled(n, target)
    for size in (0, 1, 31, 32, 33, 100):
        arrays = make_arrays(n, {"M": 4, "N": size}, np.random.default_rng(size))
        arrays["x"] = np.random.default_rng(1).integers(0, 9, size).astype(np.float32)
        arrays["t"] = np.array([3, np.nan, 11, 0], np.float32)
        for nans in ([], [size // 2, size - 1]):
            arrays["x"][[i for i in nans if 0 <= i < size]] = np.nan
            check(n, {"M": 4, "N": size}, arrays=arrays, kernel=k)


@each_target
def test_lanes_that_do_not_exist_keep_what_they_had_whichever_way_the_test_goes(target):
    one = ap("select", FOUND, Const(1, I32), Const(0, I32), t=I32)
    body = [st(TOP, ld("t", "r")), lanes("i_v", 32, None, st(PART, Const(0, I32))), strip("i", 32, "N", st(PART, one, "add")),
            lanes("i_v", 32, None, st(ld("y", "r", "i_v", t=I32), PART))]
    buffers = [tensor("x", "N"), tensor("t", "M"), tensor("y", "M", 32, t=I32), reg("top"), reg("part", 32, t=I32)]
    n = settle(nest(buffers, [loop("r", "M", *body)], sizes=("M", "N")))
    k = compiled(n, target)
    for size in (1, 31, 33, 70):
        arrays = {"x": np.zeros(size, np.float32), "t": np.array([0, np.nan, 1], np.float32), "y": np.zeros((3, 32), np.int32)}
        check(n, {"M": 3, "N": size}, arrays=arrays, kernel=k)


@each_target
def test_an_update_with_the_identity_keeps_what_was_there(target):
    body = []
    names = {"min": np.inf, "max": -np.inf, "add": 0.0}
    for name, identity in names.items():
        part, chosen = ld(f"p_{name}", "i_v"), ap("select", ap("lt", X, Const(0.0, F32), t=BOOL), X, Const(identity, F32))
        first, last = st(part, Const(-0.0, F32)), st(ld(f"y_{name}", "i_v"), part)
        body += [lanes("i_v", 32, None, first), strip("i", 32, "N", st(part, chosen, name)), lanes("i_v", 32, None, last)]
    n = nest([tensor("x", "N"), *(tensor(f"y_{m}", 32) for m in names), *(reg(f"p_{m}", 32) for m in names)], body)
    k = compiled(n, target, "strict")
    for size in (0, 5, 32, 70):
        check(n, {"N": size}, kernel=k)
        arrays = {"x": np.ones(size, np.float32)} | {f"y_{m}": np.zeros(32, np.float32) for m in names}
        assert k({"N": size}, {}, arrays) == 0
        assert not np.signbit(arrays["y_add"][:size]).any()  # -0 + 0 is 0


def test_a_pass_that_changes_one_loop_leaves_the_others_as_they_are():
    one, other = searching().body[0], SEARCH
    twice = loop("q", "M", one, other)

    def marked(body):
        return tuple(replace(n, index="other") if n is other else rebuild(n, marked) for n in body)
    new = rebuild(twice, marked)
    assert new.body[0] is one and new.body[1] == replace(other, index="other") and new != twice
    assert rebuild(twice, lambda body: tuple(body)) is twice
