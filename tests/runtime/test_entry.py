"""The native front of a call: as fast as it should be, and never different from the way through Python."""

import gc
import logging
import os
import sys
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.operator import Operator
from polyop.runtime import blocks, entry, entry_load, entry_table
from tests.children import finished
from tests.runtime import operators
from tests.runtime.calling import f32, outcome, python_calls, warm

TEXT = """op mix<T: float>(X: T[N, M], Y: T[M]; a: f32 = 2, n: int = 1, const c: f32 = 1) -> (Z: T[N, M], S: T[N]) {
    Z[i, j] = a * X[i, j] + Y[j] * n
    S[i] += X[i, j] / c }"""


@pytest.fixture(scope="module")
def mix():
    return polyop.op(TEXT)


@pytest.fixture(scope="module")
def saxpy():
    return operators.saxpy()


def records(f):
    return [r for r in f._front[0] if r is not None]


def test_a_known_call_runs_no_python(saxpy):
    x, out = f32(5), f32(5)
    warm(saxpy, x, x)
    warm(saxpy, x, x, out=out)
    assert python_calls(lambda: saxpy(x, x)) == []
    assert python_calls(lambda: saxpy(x, Y=x, out=None)) == []
    assert python_calls(lambda: saxpy(x, x, out=out)) == []
    assert python_calls(lambda: saxpy(Y=x, X=x)) == []
    assert "_general" in python_calls(lambda: saxpy(f32(6)[::2], f32(6)[::-2]))
    np.testing.assert_array_equal(saxpy(x, x), 2 * x)
    assert saxpy(x, x, out=out) is out and (out == 2 * x).all()
    assert saxpy(x, x, out=(out,)) is out


def test_several_results_are_a_tuple_in_order(mix):
    x, y = f32(3, 4), f32(4)
    z, s = warm(mix, x, y, a=3.0)
    np.testing.assert_array_equal(z, 3 * x + y)
    np.testing.assert_array_equal(s, x.sum(1))
    outs = np.empty_like(z), np.empty_like(s)
    got = warm(mix, x, y, out=outs)
    assert got[0] is outs[0] and got[1] is outs[1]
    assert python_calls(lambda: mix(x, y, out=outs)) == []


def test_an_inout_is_given_back():
    scale = polyop.op("op scale(inout X: f32[N]; a: f32 = 2) { X[i] = a * X[i] }")
    x = np.ones(6, np.float32)
    for k in range(5):
        assert scale(x) is x and (x == 2 ** (k + 1)).all()
    x.flags.writeable = False
    with pytest.raises(polyop.CallError, match="`X` is read-only"):
        scale(x)


def test_results_lie_at_a_multiple_of_64_and_own_their_memory(saxpy):
    for n in (0, 1, 7, 100, 1 << 14, 1 << 15):
        kept = [warm(saxpy, f32(n), f32(n), a=k) for k in range(4)]
        for k, r in enumerate(kept):
            assert r.ctypes.data % 64 == 0 and r.flags.writeable and r.flags.c_contiguous and r.flags.aligned
            np.testing.assert_array_equal(r, np.float32(k) * f32(n) + f32(n))


def test_a_large_result_takes_the_memory_of_one_that_nobody_holds_and_runs_no_python(saxpy):
    x = f32(1 << 16)
    warm(saxpy, x, x)
    at = saxpy(x, x).ctypes.data
    assert at % 4096 == 0
    assert python_calls(lambda: saxpy(x, x)) == []
    assert saxpy(x, x).ctypes.data == at
    part = saxpy(x, x)[10:20]
    part[:] = 7
    living = [saxpy(x, x) for _ in range(2 * blocks.TRIES)]
    assert len({a.ctypes.data for a in living} | {at}) == len(living) + 1
    assert (part == 7).all() and all((a == 2 * x).all() for a in living)
    last = living.pop().ctypes.data
    assert saxpy(x, x).ctypes.data == last


def test_looks_that_differ_in_anything_do_not_meet(saxpy):
    base = f32(8, 8)
    views = [base[0], base[:, 0], base[::-1, 1], base[2, ::2], base[1:5, 2], base[3, :4], np.broadcast_to(np.float32(3), (8,))]
    for _ in range(4):
        for x in views:
            np.testing.assert_array_equal(saxpy(x, x, a=0.5), np.float32(1.5) * x)


def some_look(k, is_outline=False):
    """Bytes as those of a look or an outline, which differ in the last bit of the third word."""
    words = bytearray(np.random.default_rng(k).bytes(40))
    words[16] = words[16] & ~1 | is_outline
    return bytes(words)


def test_a_thousand_looks_fit_into_a_table():
    table = entry_table.front(["x"], [False], 1)[0]
    looks = [some_look(k) for k in range(1000)]
    for look in looks:
        entry_table.put(table, (look,))
    assert sum(entry_table.has(table, look) for look in looks) > 950


def test_a_table_that_is_full_forgets(monkeypatch):
    monkeypatch.setattr(entry_table, "MOST", 64)
    table = entry_table.front(["x"], [False], 1)[0]
    for k in range(1000):
        entry_table.put(table, (some_look(k),))
        assert entry_table.has(table, some_look(k))
    assert len(table) == 64


@pytest.mark.parametrize("seed", range(8))
def test_looks_never_push_an_outline_out_of_a_table(seed, monkeypatch):
    monkeypatch.setattr(entry_table, "MOST", 64)
    table = entry_table.front(["x"], [False], 1)[0]
    outlines = [some_look(10000 * seed + k, is_outline=True) for k in range(8)]
    for k in range(1000):
        if k < 80 and k % 10 == 0:
            entry_table.put(table, (outlines[k // 10],))
        entry_table.put(table, (some_look(10000 * seed + 100 + k),))
    shared = Counter(entry_table._places(o, 64)[0] // 2 for o in outlines)  # two fit into a place and its neighbour
    assert all(entry_table.has(table, o) for o in outlines if shared[entry_table._places(o, 64)[0] // 2] < 3)


def test_numbers_are_converted_as_python_does_it(saxpy):
    x, y = np.ones(2, np.float32), np.zeros(2, np.float32)
    floats = 0.1, 1e300, -1e300, 3e38, 3.5e38, float("inf"), float("nan"), -0.0, 1e-46
    integers = 7, -1, 2**24 + 1, 2**53 + 1, 2**62, 2**70, 10**30, True
    typed = np.float32(0.3), np.float64(1e39), np.float16(2.5), np.int64(-5), np.uint8(200), np.bool_(True)
    for a in (1.0, 1, True, np.float32(1), np.float64(1), np.float16(1), np.int64(1), np.uint8(1)):
        outcome(saxpy, x, y, a=a)
        outcome(saxpy, x, y, a=a)
    for a in (*floats, *integers, *typed, None, "1"):
        assert outcome(saxpy, x, y, a=a) == outcome(saxpy._general, x, y, a=a), a


def test_integers_and_truth_values_keep_their_bounds():
    names = ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"]
    for dtype in (*names, "f64", "bool"):
        f = polyop.op(f"op f(X: {dtype}[N]; a: {dtype}) -> (Y: {dtype}[N]) {{ Y[i] = i == 0 ? a : X[i] }}")
        x = np.zeros(2, f"{dtype[0]}{int(dtype[1:]) // 8}" if dtype != "bool" else np.bool_)
        for a in (0, 1.0, True, np.int64(1), np.bool_(False)):
            outcome(f, x, a=a)
            outcome(f, x, a=a)
        ends = [sign * 2**k + d for k in (0, 7, 8, 31, 32, 63, 64) for d in (-1, 0, 1) for sign in (1, -1)]
        for a in (*ends, True, np.int64(-1), np.uint64(2**63), np.bool_(True), 1.5):
            assert outcome(f, x, a=a) == outcome(f._general, x, a=a), (dtype, a)


def test_consts_and_sizes_are_part_of_a_look(mix):
    x, y = f32(3, 4), f32(4)
    for _ in range(3):
        for n, c in ((1, 1.0), (2, 1.0), (2, 2.0), (True, 1), (0, 4.0)):
            assert outcome(mix, x, y, n=n, c=c) == outcome(mix._general, x, y, n=n, c=c)


def test_a_const_of_minus_0_is_not_0():
    f = polyop.op("op f(X: f32[N]; const c: f32 = 1) -> (Y: f32[N]) { Y[i] = X[i] / c }")
    x = np.ones(3, np.float32)
    for _ in range(3):
        assert (f(x, c=0.0) == np.inf).all() and (f(x, c=-0.0) == -np.inf).all()


def test_a_size_given_as_an_array_of_rank_0_is_read_in_every_call():
    f = polyop.op("op f(X: f32[N]; n: int) -> (Y: f32[n]) { Y[i] = X[i] else 0 }")
    for _ in range(3):
        for n in (3, 4):
            assert len(f(f32(3), n=np.array(n))) == len(f(f32(3), n=np.int32(n))) == n


def test_names_that_are_equal_and_not_the_same_go_the_other_way():
    f = polyop.op("op f(X: f32[N]; factor: f32 = 1) -> (Y: f32[N]) { Y[i] = factor * X[i] }")
    warm(f, f32(4), factor=2.0)
    name = "".join(["fac", "tor"])
    for a in (2.0, 3.0):
        np.testing.assert_array_equal(f(f32(4), **{name: a}), np.float32(a) * f32(4))


@pytest.mark.parametrize("count", [3, 63, 64, 65, 1000, 200_000])
def test_any_number_of_arguments_is_counted(saxpy, count):
    x = f32(4)
    warm(saxpy, x, x)
    assert outcome(saxpy, *[x] * count) == outcome(saxpy._general, *[x] * count)
    names = {f"k{i}": x for i in range(min(count, 2000))}
    assert outcome(saxpy, x, x, **names) == outcome(saxpy._general, x, x, **names)
    assert outcome(saxpy, x, x, out=(x,) * count) == outcome(saxpy._general, x, x, out=(x,) * count)


# --- beside the way through Python --------------------------------------------------------------------------------------


class Sub(np.ndarray):
    pass


def misaligned(n):
    return np.zeros(4 * n + 1, np.uint8)[1:].view(np.float32)


def read_only(n):
    x = f32(n)
    x.flags.writeable = False
    return x


ARRAYS = {
    "plain": lambda n: f32(n), "longer": lambda n: f32(n + 1), "reversed": lambda n: f32(n)[::-1],
    "steps": lambda n: f32(2 * n)[::2],
    "same": lambda n: np.broadcast_to(np.float32(2), (n,)), "misaligned": misaligned, "read only": read_only,
    "subclass": lambda n: f32(n).view(Sub), "masked": lambda n: np.ma.masked_array(f32(n)), "matrix": lambda n: f32(n, 1),
    "doubles": lambda n: f32(n).astype(np.float64), "integers": lambda n: f32(n).astype(np.int32),
    "objects": lambda n: f32(n).astype(object), "swapped": lambda n: f32(n).astype(f32(n).dtype.newbyteorder()),
    "record": lambda n: np.zeros(n, [("a", np.float32)]), "rank 0": lambda n: np.float32(n),
    "array of rank 0": lambda n: np.array(n),
    "list": lambda n: [1.0] * n, "none": lambda n: None, "number": lambda n: 1.5, "bytes": lambda n: b"1234" * n,
    "other machine": lambda n: f32(n).astype(">f4"), "copy of dtype": lambda n: f32(n).astype(np.dtype("=f4", copy=True)),
}
NUMBERS = st.sampled_from([1, 2.5, True, None, "x", 1e300, np.float32(3), np.int64(2), np.array(2.0), 10**40])
OUTS = {
    **{name: ARRAYS[name] for name in ("plain", "longer", "reversed", "steps", "misaligned", "read only", "subclass", "none")},
    "tuple": lambda n: (f32(n),), "pair": lambda n: (f32(n), f32(n)), "empty": lambda n: (), "a list": lambda n: [f32(n)],
    "nested": lambda n: ((f32(n),),), "a number": lambda n: 3, "a string": lambda n: "out",
}


FORMS = ["", "X", "Y", "extra", "twice", "third", "b"]


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ARRAYS)), st.sampled_from(["plain", "reversed", *sorted(ARRAYS)]), st.integers(0, 5), st.booleans(),
       st.none() | NUMBERS, st.none() | st.sampled_from(sorted(OUTS)), st.sampled_from(FORMS))
def test_every_call_comes_to_the_same_as_in_python(saxpy, first, second, n, swap, a, out, form):
    x, y = ARRAYS[first](n), ARRAYS[second](n)
    x, y = (y, x) if swap else (x, y)
    args, keywords = {"": ((x, y), {}), "X": ((), {"Y": y, "X": x}), "Y": ((x,), {"Y": y}), "extra": ((x, y, x), {}),
                      "twice": ((x, y), {"X": x}), "third": ((x,), {}), "b": ((x, y), {"b": 1})}[form]
    keywords = dict(keywords) if a is None else {"a": a, **keywords}

    def call(f):
        into = {} if out is None else {"out": OUTS[out](n)}
        return outcome(f, *args, **keywords, **into), repr(into)
    wanted = call(saxpy._general)
    for _ in range(3):
        assert call(saxpy) == wanted


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 24), st.integers(0, 24), st.integers(0, 24), st.integers(0, 8), st.sampled_from([1, 2, -1]))
def test_memory_that_is_shared_with_the_result_is_noticed(saxpy, i, j, k, n, step):
    def call(f):
        memory = f32(64)
        x, y, z = (memory[8 + p: 8 + p + n * abs(step)][::step] for p in (i, j, k))
        return outcome(f, x, y, out=z), memory.tobytes()
    wanted = call(saxpy._general)
    for _ in range(3):
        assert call(saxpy) == wanted


# --- what a process shares ---------------------------------------------------------------------------------------------


def test_references_balance(mix, saxpy):
    x, y, out = f32(3, 4), f32(4), (f32(3, 4), f32(3))
    a, b, z = f32(4), f32(4), f32(4)
    frozen = read_only(4)
    things = [x, y, out, *out, a, b, z, x.dtype, np.dtype(np.uint8), saxpy, mix, frozen, saxpy._front]

    def work():
        for _ in range(50):
            mix(x, y)
            mix(x, y, a=2.5, out=out)
            saxpy(a, b)
            saxpy(a, Y=b, out=z)
            saxpy(a, b, out=(z,))
            outcome(saxpy, a, b, out=frozen)
            outcome(saxpy, a, b, out=a)
            saxpy(a, b, a=10**300)

    def counts():
        gc.collect()  # errors that were caught
        return [sys.getrefcount(t) for t in things]
    work()
    before = counts()
    for _ in range(20):
        work()
    assert counts() == before


def test_a_million_calls_take_no_memory(saxpy):
    x, z = f32(16), f32(16)
    warm(saxpy, x, x)
    warm(saxpy, x, x, out=z)

    def resident():
        with open("/proc/self/statm") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    blocks, bytes_ = sys.getallocatedblocks(), resident()
    for _ in range(500_000):
        saxpy(x, x)
        saxpy(x, x, out=z)
    assert abs(sys.getallocatedblocks() - blocks) < 200 and resident() - bytes_ < 4 << 20


def test_data_that_point_outside_are_reported_again_and_again():
    take = polyop.op("op take(ids: i64[B], E: f32[V, D]) -> (Y: f32[B, D]) { Y[b, d] = E[ids[b], d] }")
    e, ids = f32(5, 4), np.array([4, 0])
    assert (warm(take, ids, e) == e[ids]).all()
    for _ in range(3):
        ids[0] = 5
        with pytest.raises(polyop.CallError, match=r"ids\[0\] = 5 reads outside `E`"):
            take(ids, e)
        ids[0] = 4
        assert (take(ids, e) == e[ids]).all()


def test_threads_call_one_operator_at_once(saxpy):
    wrong = []

    def use(seed):
        rng = np.random.default_rng(seed)
        for k in range(400):
            n = int(rng.integers(1, 30)) if k % 4 else 5000
            x = rng.integers(-9, 9, n).astype(np.float32)
            if not np.array_equal(saxpy(x, x, a=float(seed)), np.float32(seed) * x + x):
                wrong.append((seed, k))
    running = [threading.Thread(target=use, args=(s,)) for s in range(6)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert not wrong


def test_work_memory_comes_from_the_stack_or_is_the_threads_own():
    product = polyop.op("op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
    for n in (3, 16, 70):
        a = f32(n, n) % 7
        np.testing.assert_array_equal(warm(product, a, a), a @ a)


def test_a_forked_child_calls(saxpy):
    x = f32(40)
    warm(saxpy, x, x)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if (saxpy(x, x) == 2 * x).all() and not python_calls(lambda: saxpy(x, x)) else 2
        finally:
            os._exit(code)
    assert finished(pid) == 0


def test_another_number_of_threads_is_another_look(saxpy):
    before = polyop.get_num_threads()
    x = f32(1 << 17)
    try:
        for count in (1, 3, 300, 1):
            polyop.set_num_threads(count)
            assert "_general" in python_calls(lambda: saxpy(x, x)) or count == 1
            np.testing.assert_array_equal(warm(saxpy, x, x), 2 * x)
    finally:
        polyop.set_num_threads(before)


def test_the_signature_and_the_text_of_a_call_stay(saxpy):
    import inspect
    warm(saxpy, f32(3), f32(3))
    assert str(inspect.signature(saxpy)) == "(*args, out=None, **keywords)"
    assert "Run on arguments" in Operator.__call__.__doc__


def test_an_operator_without_a_front_is_called_all_the_same(saxpy):
    warm(saxpy, f32(3), f32(3))
    f = operators.saxpy()
    for front in (None, 3, "x"):
        f._front = None
        assert (f(f32(3), f32(3)) == 2 * f32(3)).all()
        f._front = front
        assert (f(f32(3), f32(3)) == 2 * f32(3)).all() if front is None else True
    del f._front
    with pytest.raises(AttributeError):
        f(f32(3), f32(3))


def test_more_parameters_than_places_have_no_front():
    names = [f"p{i}" for i in range(40)]
    assert entry_table.front(names, [False] * 40, 40) is None
    assert entry_table.front(names[:30], [False] * 30, 30) is not None


@pytest.mark.parametrize("spoil", [
    lambda m: m.setattr(sys, "gettotalrefcount", lambda: 0, raising=False),
    lambda m: m.setattr(entry_load, "_numpy_api", lambda: (_ for _ in ()).throw(RuntimeError("no table"))),
    lambda m: m.setattr(entry_load, "_SYMBOLS", (*entry_load._SYMBOLS, "polyop_none")),
    lambda m: m.setattr(sys, "abiflags", "t"),
    lambda m: m.setattr(entry_load, "_probe", lambda made: (_ for _ in ()).throw(ValueError("not as expected"))),
])
def test_a_process_that_is_not_as_expected_goes_through_python_and_says_so(monkeypatch, caplog, spoil):
    class Plain:
        def __call__(self):
            return self._general()

        def _general(self):
            return 3
    spoil(monkeypatch)
    with caplog.at_level(logging.DEBUG, "polyop"):
        assert entry._entry(Plain) is None
    assert "calls take the way through Python" in caplog.text and Plain()() == 3
