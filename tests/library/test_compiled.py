"""The compiled operators of the library against NumPy, at sizes on both sides of every tile, on one thread and on three.

Kernels for several threads are others, so the sizes of an operator take turns: each is tried on one thread or on three. Of an
operator with several cases, as with a stride and without, these take turns, each with all of its sizes. The other way round, and
other dtypes, is for the tests marked `slow`.
"""

from functools import cache

import pytest

import polyop
from polyop import formed, operator
from polyop.runtime import threads
from tests.library.case import check
from tests.library.catalog import CASES, IDS, accuracy

FIRST = [(name, case, case.dtypes[0]) for name, case in CASES]
COUNTS = {"one": 1, "three": 3}
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


def turn(name, case, threads):
    """The sizes at which `case` is tried on so many threads, and those that are left to the tests marked `slow`."""
    number, several = CASES.index((name, case)), threads > 1
    same = [c for n, c in CASES if (n, c.op) == (name, case.op)]
    if len(same) > 1:
        return (case.sizes, ()) if same.index(case) % 2 == several else ((), case.sizes)
    return tuple([s for i, s in enumerate(case.sizes, number) if (i % 2 == several) == now] for now in (True, False))


def tried(which):
    """Parameters of all that has sizes: at once (0), or left for later (1)."""
    return [pytest.param(name, case, dtype, threads, id=f"{i}-{word}") for i, (name, case, dtype) in zip(IDS, FIRST, strict=True)
            for word, threads in COUNTS.items() if turn(name, case, threads)[which]]


@pytest.mark.parametrize(("name", "case", "dtype", "count"), tried(0), indirect=["count"])
def test_a_compiled_operator_returns_what_numpy_says(name, case, dtype, count):
    runs_like_numpy(name, case, dtype, turn(name, case, polyop.get_num_threads())[0])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case", "dtype", "count"), tried(1), indirect=["count"])
def test_and_so_it_does_on_as_many_threads_at_every_other_size(name, case, dtype, count):
    runs_like_numpy(name, case, dtype, turn(name, case, polyop.get_num_threads())[1])


def test_each_operator_is_tried_on_one_thread_and_on_three_and_each_size_on_one_of_them():
    counts = {(n, c.op, k) for n, c in CASES for k in COUNTS.values() if turn(n, c, k)[0] or len(c.sizes) == 1}
    assert counts == {(n, c.op, k) for n, c in CASES for k in COUNTS.values()}
    for name, case in CASES:
        now = [s for k in COUNTS.values() for s in turn(name, case, k)[0]]
        assert len(now) == len(case.sizes) and all(s in now for s in case.sizes), f"{case}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case", "dtype"), OTHERS, ids=[f"{n}-{c}-{t}" for n, c, t in OTHERS])
def test_and_so_it_does_for_every_other_dtype(name, case, dtype):
    runs_like_numpy(name, case, dtype, case.sizes)
