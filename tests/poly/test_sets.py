"""Sets built through isl's interface: what they say is what the same conditions say in isl's notation."""

from __future__ import annotations

import islpy as isl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Affine, Apply, Const, Expr, Test, affine, evaluate, quasi, substitute
from polyop.ir.op import Range
from polyop.poly.scop import limits
from polyop.poly.sets import Linear, condition, straight

I, J, N = affine("i"), affine("j"), affine("N")
LINEAR = Linear.over(isl.Set("[N] -> { : N >= 0 }").get_space(), "S", ("i", "j"))

sums = st.builds(lambda a, b, c: I * a + J * b + c, *3 * (st.integers(-3, 3),))
quotients = st.builds(lambda e, d: quasi("div", e, affine(d)), sums, st.integers(1, 5))
extremes = st.builds(quasi, st.sampled_from(("min", "max")), sums | quotients, sums | quotients)
tests = st.builds(lambda a, b, f, c: a * f + b * c, sums | quotients | extremes, sums | quotients | extremes,
                  st.integers(-2, 2), st.integers(-1, 1))


@settings(deadline=None)
@given(tests)
def test_plain_sums_say_together_what_a_test_with_quotients_and_extremes_says(t: Affine) -> None:
    found = straight(t)
    for i in range(-7, 8):
        for j in range(-7, 8) if found is not None else ():
            at = {"i": i, "j": j}
            assert all(evaluate(x, at) >= 0 for x in found or ()) == (evaluate(t, at) >= 0), (t, found, at)


@settings(deadline=None)
@given(tests, sums | quotients | extremes, st.integers(-7, 7), st.integers(-7, 7))
def test_a_sum_with_names_replaced_has_the_value_of_the_sum_there(t: Affine, x: Affine, i: int, j: int) -> None:
    found, at = substitute(t, {"i": x, "k": J}), {"i": i, "j": j}
    assert evaluate(found, at) == evaluate(t, {"i": evaluate(x, at), "j": j})
    assert found == found + affine("z") - affine("z") and all(f for _, f in found.terms)


@pytest.mark.parametrize("t, n", [
    (N - I - 1, 1), (quasi("min", N, I + 3) - J, 2), (J - quasi("max", I, N, affine(3)), 3),
    (quasi("div", N + 63, affine(64)) - J - 1, 1), (J - quasi("div", quasi("max", I, N), affine(4)), 2),
])
def test_no_notation_is_read_for_bounds_of_tiles(t: Affine, n: int) -> None:
    assert len(straight(t) or ()) == n


@pytest.mark.parametrize("t", [quasi("mod", I, affine(3)) - 1, quasi("max", I, J), quasi("div", I, affine(3)) * 2 - J])
def test_what_is_no_conjunction_of_plain_sums_is_none(t: Affine) -> None:
    assert straight(t) is None


@pytest.mark.parametrize("conditions", [
    (), (Test((I - J, J - 2)),), (Test((quasi("mod", I, affine(3)) - 1,)),), (Test((quasi("max", I - 3, J - 4),)),),
    (Apply("or", (Test((I - 3,)), Test((J - 3,))), BOOL), Test((N - I - J,))), (Apply("not", (Test((I - J,)),), BOOL),),
    (Const(False, BOOL),),
])
def test_a_set_holds_what_its_conditions_say_in_notation(conditions: tuple[Expr, ...]) -> None:
    ranges = (Range("i", affine(0), quasi("div", N + 4, affine(5))),
              Range("j", quasi("max", I - 2, affine(0)), quasi("min", N, I * 2 + 1)))
    said = " and ".join(["0 <= i < floor((N + 4)/5)", "max(i - 2, 0) <= j < min(N, 2i + 1)", *map(condition, conditions)])
    found = LINEAR.holding(limits(ranges), conditions)
    assert found.is_equal(isl.Set(f"[N] -> {{ S[i, j] : {said} }}"))
    assert [found.get_dim_name(isl.dim_type.set, k) for k in range(2)] == ["i", "j"]
