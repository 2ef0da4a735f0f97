"""The library as text: every operator has a case and a comment, and means what NumPy says."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from polyop import standard
from polyop.ir.reference import evaluate
from polyop.ir.span import Span
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


def placed(x):
    """A tree without the source's text: lines and columns stay."""
    if isinstance(x, Span):
        return x.source.name, x.line, x.column, x.end_line, x.end_column
    if is_dataclass(x):
        return type(x), *(placed(getattr(x, f.name)) for f in fields(x))
    return tuple(map(placed, x)) if isinstance(x, tuple) else x


def test_a_definition_by_itself_is_the_one_of_its_file_in_the_same_place():
    for name, file in standard.index().items():
        one, whole = standard.alone(name), standard.program(file)
        found = [(d.name, placed(d)) for d in (*one.ops, *one.fns, *one.monoids)]
        assert found == [(name, placed(whole.op(name) or whole.fn(name) or whole.monoid(name)))]


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
