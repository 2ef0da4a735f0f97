"""The thread pool: every trip once, whoever calls it, however often."""

import ctypes
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from polyop.ir.errors import UserError
from polyop.ir.module import Module, Signature
from polyop.runtime import cpu, threads
from tests.children import finished

# args of `count` and `nest`: 0 the counters, 1 `parallel`, 2 how many counters for each outer trip, 3 threads,
# 4 the greatest thread number seen
_TEXT = """
define void @count(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %a = load ptr, ptr %args
  %mp = getelementptr i64, ptr %args, i64 4
  %m = atomicrmw max ptr %mp, i64 %thread seq_cst
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %i1, %loop ]
  %p = getelementptr i64, ptr %a, i64 %i
  %v = load i64, ptr %p
  %v1 = add i64 %v, 1
  store i64 %v1, ptr %p
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @nest(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %pp = getelementptr i64, ptr %args, i64 1
  %par = load ptr, ptr %pp
  %np = getelementptr i64, ptr %args, i64 2
  %n = load i64, ptr %np
  %tp = getelementptr i64, ptr %args, i64 3
  %t = load i64, ptr %tp
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %i1, %loop ]
  %from = mul i64 %i, %n
  %to = add i64 %from, %n
  call void %par(ptr @count, ptr %args, i64 %from, i64 %to, i64 1, i64 %t, i64 4611686018427387904, i64 1)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @identify(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %a = load ptr, ptr %args
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %i1, %loop ]
  %p = getelementptr i64, ptr %a, i64 %i
  store i64 %thread, ptr %p
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @identities(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %a = load ptr, ptr %args
  %pp = getelementptr i64, ptr %args, i64 1
  %par = load ptr, ptr %pp
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %i1, %loop ]
  %i2 = mul i64 %i, 4
  %i3 = add i64 %i2, 1
  %i4 = add i64 %i2, 4
  %p = getelementptr i64, ptr %a, i64 %i2
  store i64 %thread, ptr %p
  call void %par(ptr @identify, ptr %args, i64 %i3, i64 %i4, i64 1, i64 4, i64 4611686018427387904, i64 1)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @many(ptr %par, ptr %body, ptr %args, i64 %n, i64 %step, i64 %threads, i64 %times, i64 %work, i64 %lot) {
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  call void %par(ptr %body, ptr %args, i64 0, i64 %n, i64 %step, i64 %threads, i64 %work, i64 %lot)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %times
  br i1 %more, label %loop, label %out
out:
  ret void
}
define void @ends(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
  %a = load ptr, ptr %args
  %p = getelementptr i64, ptr %a, i64 %lo
  store i64 %hi, ptr %p
  ret void
}
define void @trips(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %a = load ptr, ptr %args
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %i1, %loop ]
  %o = add i64 %i, 50
  %p = getelementptr i64, ptr %a, i64 %o
  %v = atomicrmw add ptr %p, i64 1 monotonic
  %sp = getelementptr i64, ptr %args, i64 2
  %s = load i64, ptr %sp
  %i1 = add i64 %i, %s
  %more = icmp slt i64 %i1, %hi
  br i1 %more, label %loop, label %out
out:
  ret void
}
"""
MUCH = 1 << 62
_NAMES = ("count", "nest", "identities", "many", "trips", "ends")


@pytest.fixture(scope="module")
def native():
    return cpu.link(cpu.assemble(Module("t", "x86:host", _TEXT, Signature("t", (), (), (), ())), cpu.host()).code, _NAMES)


def run(native, body, counters, n, count, times=1, inner=0, step=1, work=MUCH, lot=1):
    """The greatest thread number that took part."""
    address = threads.parallel_address()
    args = np.array([counters.ctypes.data, address, inner or step, count, 0], np.int64)
    many = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, *[ctypes.c_int64] * 6)(native.addresses["many"])
    many(address, native.addresses[body], args.ctypes.data, n, step, count, times, work, lot)
    return int(args[4])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_trip_runs_exactly_once_in_each_of_many_regions(native, count):
    times = 100_000 if count == 2 else 5_000
    for n in (1, 2, 13):
        counters = np.zeros(n, np.int64)
        assert run(native, "count", counters, n, count, times) < count
        assert (counters == times).all()


@pytest.mark.parametrize(("lo", "hi", "step"), [(0, 0, 1), (5, 2, 1), (-7, 9, 4), (0, 40, 39), (-50, 50, 7)])
def test_loops_start_and_step_as_they_are_told(native, lo, hi, step):
    counters, address = np.zeros(100, np.int64), threads.parallel_address()
    args = np.array([counters.ctypes.data, address, step, 3, 0], np.int64)
    parallel = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 6)(address)
    parallel(native.addresses["trips"], args.ctypes.data, lo, hi, step, 3, MUCH, 1)
    assert [i - 50 for i in np.flatnonzero(counters)] == list(range(lo, hi, step))
    assert counters.max(initial=0) <= 1


@pytest.mark.parametrize(("share", "chunks"), [
    (1, [1]), (2, [1, 1]), (3, [1, 1, 1]), (5, [2, 1, 1, 1]), (10, [4, 2, 3, 1]), (11, [4, 3, 3, 1]), (42, [16, 10, 11, 5])])
def test_the_last_chunk_of_a_share_is_the_smallest(native, share, chunks):
    """What is left when another thread is done is then little."""
    assert cuts(native, share, MUCH) == 2 * chunks


@pytest.mark.parametrize(("work", "chunks"), [
    (threads.WAKING, [7, 3]), (5 * threads.CHUNK, [7, 3]), (6 * threads.CHUNK, [5, 3, 2]), (8 * threads.CHUNK, [4, 2, 3, 1])])
def test_little_work_has_fewer_chunks(native, work, chunks):
    assert cuts(native, 10, work) == 2 * chunks


@pytest.mark.parametrize(("trips", "lot", "chunks"), [
    (20, 0, [4, 2, 3, 1] * 2), (20, 1, [4, 2, 3, 1] * 2), (16, 4, [4, 4, 4, 4]), (32, 4, [4, 4, 4, 4] * 2), (12, 4, [4, 2, 2, 4]),
    (22, 2, [4, 2, 4, 1, 3, 4, 2, 2]), (77, 7, [14, 7, 14, 3, 18, 7, 7, 7]), (20, 11, [4, 2, 3, 1] * 2), (20, 10, [10, 10])])
def test_chunks_end_where_lots_do(native, trips, lot, chunks):
    """What a lot begins with is then done once, or again where a share ends; a share without a whole lot is cut anywhere."""
    assert cuts(native, trips / 2, MUCH, lot) == chunks


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_every_trip_of_lots_runs_once(native, count):
    for n in range(1, 60):
        for lot in (2, 3, 7, n, MUCH):
            counters = np.zeros(n, np.int64)
            run(native, "count", counters, n, count, 3, lot=lot)
            assert (counters == 3).all()


def cuts(native, share, work, lot=1):
    """The lengths of the chunks of two shares, in order."""
    ends = np.zeros(round(2 * share), np.int64)
    run(native, "ends", ends, len(ends), 2, work=work, lot=lot)
    return list(np.diff([0, *ends[ends > 0]]))


def test_a_nested_loop_runs_on_the_thread_that_meets_it(native):
    counters = np.zeros(6 * 11, np.int64)
    run(native, "nest", counters, 6, 3, 2_000, inner=11)
    assert (counters == 2_000).all()


def test_a_nested_loop_keeps_the_number_of_its_thread(native):
    numbers = np.full(4 * 64, -1, np.int64)
    run(native, "identities", numbers, 64, 3, 200)
    assert (numbers.reshape(64, 4) == numbers[::4, None]).all()
    assert numbers.max() < 3


def test_several_python_threads_may_call_at_once(native):
    counters = [np.zeros(64, np.int64) for _ in range(8)]
    running = [threading.Thread(target=run, args=(native, "count", c, 64, 3, 5_000)) for c in counters]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert all((c == 5_000).all() for c in counters)


def test_workers_wake_up_after_they_fell_asleep(native):
    counters = np.zeros(1 << 16, np.int64)
    for _ in range(5):
        run(native, "count", counters, len(counters), 2, 20)
        time.sleep(0.03)
    assert (counters == 100).all()


def test_little_work_stays_with_the_caller(native):
    counters = np.zeros(64, np.int64)
    run(native, "count", counters, 64, 3, 100)
    assert run(native, "count", counters, 64, 3, 2_000, work=threads.LEAST - 1) == 0
    assert (counters == 2_100).all()


def test_what_work_is_shared_out_can_be_changed(native):
    counters = np.zeros(64, np.int64)
    before = threads.share_from(MUCH, MUCH)
    try:
        assert before == (threads.LEAST, threads.WAKING)
        assert run(native, "count", counters, 64, 3, 2_000, work=MUCH - 1) == 0
    finally:
        assert threads.share_from(*before) == (MUCH, MUCH)


_SELDOM = """
import os
import numpy as np
from tests.runtime.test_threads import native, run
from polyop.runtime import threads
code, counters = native.__wrapped__(), np.zeros(64, np.int64)
def workers(times, work):
    before = len(os.listdir("/proc/self/task"))
    run(code, "count", counters, 64, 2, times, work=work)
    return len(os.listdir("/proc/self/task")) - before
print(workers(1, threads.WAKING - 1), workers(100_000, threads.LEAST), workers(1, threads.WAKING), (counters == 100_002).all())
"""


def test_workers_come_for_one_call_with_much_work_or_for_many_with_some(tmp_path):
    environment = {**os.environ, "POLYOP_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", _SELDOM], env=environment, capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["0", "1", "0", "True"]


def test_the_child_of_a_fork_has_a_pool_of_its_own(native):
    counters = np.zeros(1000, np.int64)
    run(native, "count", counters, 1000, 2, 10)
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(native, "count", counters, 1000, 2, 1000)
                code = 0 if (counters == 1010).all() else 2
            finally:
                os._exit(code)
        assert finished(pid) == 0
    run(native, "count", counters, 1000, 2, 10)
    assert (counters == 20).all()


def test_a_process_ends_quietly_while_workers_still_spin(tmp_path):
    program = """
import numpy as np
from tests.runtime import operators
from polyop.runtime import threads
threads.set_num_threads(3)
x = np.ones(100_000, np.float32)
assert (operators.saxpy()(x, x) == 2).all()
"""
    environment = {**os.environ, "POLYOP_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.fixture
def count():
    before = threads.get_num_threads()
    yield
    threads.set_num_threads(before)


def test_the_number_of_threads_is_what_was_set(count):
    threads.set_num_threads(3)
    assert threads.get_num_threads() == 3


@pytest.mark.parametrize("wrong", [0, -1, 1000, "many", 2.5, None])
def test_a_wrong_number_of_threads_is_refused(count, wrong):
    with pytest.raises(UserError, match="expected an integer from 1 to 512"):
        threads.set_num_threads(wrong)


def test_the_environment_says_how_many_threads(monkeypatch):
    monkeypatch.setattr(threads, "setting", None)
    monkeypatch.setenv("POLYOP_NUM_THREADS", "5")
    assert threads.get_num_threads() == 5
    monkeypatch.setattr(threads, "setting", None)


def test_two_hardware_threads_of_one_core_count_once(tmp_path, monkeypatch):
    for c, siblings in enumerate(["0,2", "1,3", "0,2", "1,3"]):
        (tmp_path / f"cpu{c}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{c}/topology/thread_siblings_list").write_text(siblings + "\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert threads.physical_cores(tmp_path) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 2, 9})
    assert threads.physical_cores(tmp_path) == 2


_FORK_WHILE_IMPORTING = """
import os, sys, threading, time
import numpy as np
import polyop

class Slow:  # the compiler takes its time to be imported
    def find_spec(self, name, path, target=None):
        if name == "polyop.poly.middle":
            started.set()
            time.sleep(0.5)

started = threading.Event()
sys.meta_path.insert(0, Slow())
double = polyop.op("op double(X: f32[N]) -> (Y: f32[N]) { Y[i] = 2 * X[i] }")
x = np.ones(5, np.float32)
first = threading.Thread(target=double, args=(x,))
first.start()
started.wait()
child = os.fork()
if child == 0:
    os._exit(0 if (double(x) == 2).all() else 1)
first.join()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_forked_while_another_thread_imports_the_compiler_can_compile(tmp_path):
    environment = {**os.environ, "POLYOP_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _FORK_WHILE_IMPORTING], env=environment, timeout=60, check=False)
    assert done.returncode == 0
