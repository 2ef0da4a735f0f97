"""Steps that differ in numbers alone are one operator with these numbers as sizes; each is that operator at its values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir.expr import Test, evaluate
from polyop.ir.op import Op
from polyop.rewrite.families import families, member_of, rest_of
from polyop.rewrite.windows.residues import cut_into_residues
from tests.rewrite.ops import assert_same, library, op
from tests.rewrite.test_residues import BIAS, PARTLY, SPREAD


def of(o: Op):
    """`o` cut into residue classes, and the families of these."""
    cut = cut_into_residues(o)
    return cut, families(cut, frozenset(t.name for t in cut.temporaries) - {t.name for t in o.temporaries})


def spread(name: str, stride: int, pad: int) -> Op:
    return library("conv", name, consts={"stride": stride, "pad": pad})


@pytest.mark.parametrize(("name", "dims"), [("conv1d_transposed", 1), ("conv2d_transposed", 2)])
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("pad", [0, 1, 2])
def test_all_classes_of_a_strided_convolution_are_one_family(name, dims, stride, pad):
    _, found = of(spread(name, stride, pad))
    assert [len(f.members) for f in found] == [stride ** dims]


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 4), st.sampled_from([1, -1]), st.sampled_from([1, -1]), st.integers(-5, 5))
def test_a_member_is_its_step_word_for_word(s, a, b, c):
    cut, found = of(op(SPREAD.format(s=s, a=a, b=b, c=c)))
    for f in found:
        for m in f.members:
            assert member_of(f, m) == (cut.tensor(m.result), cut.steps_of(m.result)[0])


@pytest.mark.parametrize(("a", "b", "c"), [(1, 3, 0), (-1, 5, 0), (5, 1, 1)])
def test_numbers_none_of_which_is_a_multiple_of_another_make_a_family_too(a, b, c):
    cut, (f,) = of(op(SPREAD.format(s=4, a=a, b=b, c=c)))
    assert len(f.members) == 4 and all(member_of(f, m)[1] == cut.steps_of(m.result)[0] for m in f.members)


@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("pad", [0, 1, 3])
def test_what_a_family_relies_on_holds_for_every_member(stride, pad):
    _, (f,) = of(spread("conv2d_transposed", stride, pad))
    own = f.op.facts[-1]
    assert isinstance(own, Test)
    for m in f.members:
        assert all(v >= 1 for v in m.values)
        assert all(evaluate(t, dict(zip(f.numbers, m.values, strict=True)) | dict.fromkeys("BCHKRSW", 5)) >= 0 for t in own.tests)


@pytest.mark.parametrize("stride", [2, 3])
def test_numbers_that_follow_from_others_are_none(stride):
    _, (f,) = of(spread("conv2d_transposed", stride, 1))
    assert len(f.numbers) == (2 if stride == 2 else 4)  # of three in each dimension


def test_what_is_left_takes_the_results_as_arguments():
    cut, found = of(spread("conv1d_transposed", 2, 1))
    rest = rest_of(cut, found)
    assert [t.name for t in rest.inputs] == ["X", "F", "Y_class_0", "Y_class_1"] and not rest.temporaries
    assert len(rest.steps) == 2


def test_the_members_and_what_is_left_compute_the_same():
    o = op(BIAS)
    cut, found = of(o)
    steps = tuple(member_of(f, m)[1] for f in found for m in f.members)
    again = Op(cut.name, cut.tensors, cut.params, cut.sizes, (*steps, *rest_of(cut, found).steps), cut.facts)
    assert len(steps) == 2
    for n in range(5):
        assert_same(o, again, {"C": 2, "L": n, "R": n + 1})


def test_steps_of_two_forms_are_no_family():
    cut = op("""op f(X: f32[N], Z: f32[N]) -> (Y: f32[N]) {
        a[i] += X[k] * Z[i]  where k in 0:N
        b[i] += X[k] + Z[i]  where k in 0:N
        Y[i] = a[i] + b[i] }""")
    assert families(cut, frozenset("ab")) == ()


def test_steps_that_read_temporaries_are_no_family():
    cut = op("""op f(X: f32[N]) -> (Y: f32[N]) {
        z[i] = 2 * X[i]
        a[i] += z[k] * X[i]  where k in 0:N
        b[i] += z[k] * X[i]  where k in 1:N
        Y[i] = a[i] + b[i] }""")
    assert families(cut, frozenset("ab")) == ()


def test_factors_are_no_numbers():
    cut = op("""op f(X: f32[N]) -> (Y: f32[N]) {
        a[i] += (X[2*k + i] else 0)  where k in 0:N
        b[i] += (X[3*k + i] else 0)  where k in 0:N
        Y[i] = a[i] + b[i] }""")
    assert families(cut, frozenset("ab")) == ()


def test_equal_steps_are_a_family_without_numbers():
    cut = op("""op f(X: f32[N]) -> (Y: f32[N]) {
        a[i] += X[k] * X[i]  where k in 0:N
        b[i] += X[k] * X[i]  where k in 0:N
        Y[i] = a[i] + b[i] }""")
    (f,) = families(cut, frozenset("ab"))
    assert f.numbers == () and [m.values for m in f.members] == [(), ()]


def test_a_class_of_its_own_form_is_left():
    cut, found = of(op(PARTLY))
    assert all(m.result in {t.name for t in cut.temporaries} for f in found for m in f.members)
