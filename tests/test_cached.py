"""Properties that are computed once: what Python 3.12 does, on every Python."""

import os
import threading
import time

import pytest

from polyop.cached import cached_property


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
    def __init__(self, started=None, goes_on=None):
        self.started, self.goes_on = started, goes_on

    @cached_property
    def value(self):
        if self.started is not None:
            self.started.set()
            self.goes_on.wait()
        return object()


def test_no_object_waits_for_another_of_its_class():
    started, goes_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Slow(started, goes_on).value)
    thread.start()
    started.wait()
    try:
        other = threading.Thread(target=lambda: Slow().value, daemon=True)
        other.start()
        other.join(30)
        assert not other.is_alive()
    finally:
        goes_on.set()
        thread.join()


def test_two_threads_that_compute_the_same_value_get_one():
    started, goes_on = threading.Event(), threading.Event()
    slow, got = Slow(started, goes_on), []
    threads = [threading.Thread(target=lambda: got.append(slow.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    started.wait()
    goes_on.set()
    for thread in threads:
        thread.join()
    assert got[0] is got[1] is slow.value


def test_a_child_that_is_forked_while_a_value_is_computed_computes_its_own():
    started, goes_on = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: Slow(started, goes_on).value)
    thread.start()
    started.wait()
    try:
        child = os.fork()
        if child == 0:
            Slow().value  # noqa: B018  it must end, whatever it is
            os._exit(0)
        end = time.monotonic() + 30
        while (done := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.01)
        if done[0] == 0:
            os.kill(child, 9)
            os.waitpid(child, 0)
    finally:
        goes_on.set()
        thread.join()
    assert done == (child, 0)
