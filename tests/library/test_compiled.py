"""The compiled operators of the library against NumPy, at sizes on both sides of every tile, on one thread and on three.

Kernels for several threads are others, so the sizes of an operator take turns: each is tried on one thread or on three, and the
other way round, as are other dtypes, by the tests marked `slow`.
"""

from functools import cache

import pytest

import polyop
from polyop import formed, operator
from polyop.runtime import threads
from tests.library.case import check
from tests.library.catalog import CASES, IDS, accuracy

FIRST = [(name, case, case.dtypes[0]) for name, case in CASES]
OTHERS = [(name, case, dtype) for name, case in CASES for dtype in case.dtypes[1:]]


@cache
def load(name):
    return polyop.load(name)


def runs_like_numpy(name, case, dtype, rows):
    compiled = load(name)[case.op]
    for sizes in rows:
        arrays, keywords = case.arguments(dtype, sizes), case.keywords(sizes)
        want = case.expected(arrays, sizes)
        given = [a.copy() for a in arrays]
        got = compiled(*given, **keywords)
        check(case, accuracy(dtype), sizes, got, want)
        for p, before, after in zip(compiled.interface.tensors, arrays, given, strict=True):
            if not p.inout:
                assert after.tobytes() == before.tobytes(), f"{case} wrote into its input {p.name}"


@pytest.fixture
def count(request, monkeypatch):
    """So many threads share what they can, however small it is."""
    before = polyop.get_num_threads()
    monkeypatch.setattr(operator, "SERIAL", 1)
    monkeypatch.setattr(formed, "SERIAL", 1)
    polyop.set_num_threads(request.param)
    least = threads.share_from(0, 0)
    yield
    threads.share_from(*least)
    polyop.set_num_threads(before)


def turn(case, number, threads):
    """Every other of the sizes of the case of that number; the others, if `threads` are several."""
    return [sizes for i, sizes in enumerate(case.sizes, number) if i % 2 == (threads > 1)]


@pytest.mark.parametrize("count", [1, 3], indirect=True, ids=["one", "three"])
@pytest.mark.parametrize(("name", "case", "dtype"), FIRST, ids=IDS)
def test_a_compiled_operator_returns_what_numpy_says(name, case, dtype, count):
    runs_like_numpy(name, case, dtype, turn(case, CASES.index((name, case)), polyop.get_num_threads()))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3], indirect=True, ids=["one", "three"])
@pytest.mark.parametrize(("name", "case", "dtype"), FIRST, ids=IDS)
def test_and_so_it_does_on_as_many_threads_at_every_other_size(name, case, dtype, count):
    runs_like_numpy(name, case, dtype, turn(case, CASES.index((name, case)) + 1, polyop.get_num_threads()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case", "dtype"), OTHERS, ids=[f"{n}-{c}-{t}" for n, c, t in OTHERS])
def test_and_so_it_does_for_every_other_dtype(name, case, dtype):
    runs_like_numpy(name, case, dtype, case.sizes)
