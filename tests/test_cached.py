"""Properties that are computed once: what Python 3.12 does, on every Python."""

import os
import threading
from contextlib import contextmanager

import pytest

from polyop.cached import cached_property
from tests.children import finished


def test_a_value_is_computed_once_for_each_object_and_lies_in_its_dictionary():
    made = []

    class Square:
        def __init__(self, x):
            self.x = x

        @cached_property
        def area(self):
            """x^2."""
            made.append(self.x)
            return self.x**2

    a, b = Square(2), Square(3)
    assert (a.area, a.area, b.area) == (4, 4, 9) and made == [2, 3]
    assert a.__dict__ == {"x": 2, "area": 4}
    assert Square.area.__doc__ == "x^2."
    del a.area
    assert a.area == 4 and made == [2, 3, 2]
    with pytest.raises(TypeError, match="needs a name"):
        cached_property(len).__get__([])


class Slow:
    def __init__(self, begin=lambda: None):
        self.begin = begin

    @cached_property
    def value(self):
        self.begin()
        return object()


@contextmanager
def value_being_computed():
    """Meanwhile another thread computes the value of a `Slow`."""
    started, goes_on = threading.Event(), threading.Event()

    def begin():
        started.set()
        goes_on.wait()

    thread = threading.Thread(target=lambda: Slow(begin).value)
    thread.start()
    started.wait()
    try:
        yield
    finally:
        goes_on.set()
        thread.join()


def test_no_object_waits_for_another_of_its_class():
    with value_being_computed():
        other = threading.Thread(target=lambda: Slow().value, daemon=True)
        other.start()
        other.join(30)
        assert not other.is_alive()


def test_two_threads_that_compute_the_same_value_get_one():
    slow, got = Slow(threading.Barrier(2, timeout=30).wait), []  # neither goes on before both compute
    threads = [threading.Thread(target=lambda: got.append(slow.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got[0] is got[1] is slow.value


def test_a_child_that_is_forked_while_a_value_is_computed_computes_its_own():
    with value_being_computed():
        child = os.fork()
        if child == 0:
            os._exit(0 if Slow().value else 1)
        assert finished(child) == 0
