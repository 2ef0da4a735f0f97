"""The library as text: every operator has a case and a comment, and means what NumPy says."""

import numpy as np
import pytest

from polyop.ir.reference import evaluate
from tests.library.case import check
from tests.library.catalog import CASES, FILES, IDS, accuracy, bound, instance, program


def test_the_library_has_the_operators_that_people_use():
    assert sum(len(program(name).ops) for name in FILES) >= 350


@pytest.mark.parametrize("name", FILES)
def test_every_operator_has_a_case_and_every_case_an_operator(name):
    assert {o.name for o in program(name).ops} == {c.op for n, c in CASES if n == name}


def test_no_two_operators_have_the_same_name():
    names = [o.name for name in FILES for o in program(name).ops]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(("name", "case"), CASES, ids=IDS)
def test_an_operator_means_what_numpy_says(name, case):
    for dtype in case.dtypes:
        for sizes in case.tiny:
            arrays, keywords = case.arguments(dtype, sizes), case.keywords(sizes)
            want = case.expected(arrays, sizes)
            op = instance(name, case, dtype, arrays, keywords)
            call = bound(op, [a.copy() for a in arrays], keywords)
            with np.errstate(all="ignore"):
                got = evaluate(op, call.sizes, call.scalars, {t.name: a for t, a in zip(op.inputs, arrays, strict=True)})
            check(case, accuracy(dtype), sizes, tuple(got.values()), want)
