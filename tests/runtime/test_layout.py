"""Layouts: which dimension has stride 1."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.runtime.arrays import view
from polyop.runtime.bind import bind
from polyop.runtime.layout import contiguous, layout, unit
from tests.runtime.modules import SAXPY


@settings(deadline=None)
@given(st.lists(st.integers(0, 5), max_size=4).map(tuple))
def test_a_contiguous_array_has_its_last_dimension_whatever_its_extents(shape):
    v = view(np.zeros(shape, np.float32), "X")
    assert unit(v.shape, v.strides) == (len(shape) - 1 if shape else None)


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@settings(deadline=None)
@given(shapes.flatmap(lambda s: st.tuples(st.just(s), st.permutations(range(len(s))))))
def test_the_unit_dimension_has_stride_1_or_one_element(case):
    shape, order = case
    v = view(np.zeros(shape, np.float32).transpose(order), "X")
    d = unit(v.shape, v.strides)
    assert d is not None and (v.strides[d] == 1 or v.shape[d] == 1)


@pytest.mark.parametrize(("array", "expected"), [
    (np.zeros((4, 5)).T, 0), (np.zeros((4, 10))[:, ::2], None), (np.zeros((4, 10))[:, ::-1], None), (np.zeros((4, 5))[::-1], 1),
    (np.zeros((2, 3, 4)).transpose(0, 2, 1), 1), (np.zeros((2, 3, 4)).transpose(2, 0, 1), 0), (np.zeros((4, 1)), 1),
    (np.zeros((5, 1, 8))[:, :, ::2], 1), (np.broadcast_to(np.zeros(()), (3, 3)), None), (np.zeros((0, 3)).T, 1),
    (np.broadcast_to(np.zeros((3, 1)), (3, 4)), 0), (np.zeros(()), None)])
def test_views_have_the_dimension_along_which_they_are_dense(array, expected):
    v = view(array, "X")
    found = unit(v.shape, v.strides)
    assert found == expected


def test_the_layout_of_contiguous_arguments_is_the_contiguous_layout():
    x = np.zeros(3, np.float32)
    assert layout(SAXPY, bind(SAXPY, {"X": x, "Y": x, "a": 1}).views) == contiguous(SAXPY)
