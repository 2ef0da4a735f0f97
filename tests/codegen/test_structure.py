import ctypes
import struct
import threading

import numpy as np
import pytest

from polyop.codegen.cpu.facts import is_positive, runs_once
from polyop.codegen.cpu.lower import lower
from polyop.codegen.cpu.passes import decided, split_full_tiles, unswitch
from polyop.codegen.cpu.verify import verify
from polyop.codegen.vecmath.table import FLOAT
from polyop.codegen.x86 import emit
from polyop.ir import scalars
from polyop.ir.dtypes import DTYPES, F16, F32, F64, I32
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Const, affine, quasi
from polyop.ir.interpret import interpret
from polyop.ir.loops import For, structure, walk
from polyop.ir.options import Options
from polyop.ir.target import PAGE
from tests.codegen import harness
from tests.codegen.harness import RUNNABLE, V3, V4, aligned, assembled, check, compiled, load, make_arrays
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, st, strip, tensor, when, work
from tests.codegen.test_x86 import matmul

I = A("i_c", "i_v")
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
PARALLEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 6)


class Pool:
    """A `parallel` that cuts a loop into chunks of two iterations, last chunk first, each on a thread of its own."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int, int]] = []
        self.lots: list[int] = []
        self.function = PARALLEL(self.run)
        self.address = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def run(self, body, args, lo, hi, step, threads, work, lot) -> None:
        self.calls.append((lo, hi, step))
        self.lots.append(lot)
        fn = BODY(body)
        chunks = [(i, min(i + 2 * step, hi)) for i in range(lo, hi, 2 * step)]
        for number, (a, b) in enumerate(reversed(chunks)):
            worker = threading.Thread(target=fn, args=(args, a, b, number % threads))
            worker.start()
            worker.join()


@each_target
def test_a_parallel_loop_runs_through_the_callback_if_there_are_threads(target):
    n = nest(
        [tensor("x", "M", "N"), tensor("y", "M", "N"), work("t", "N", pad=16, private=True)],
        [
            loop(
                "m",
                "M",
                strip("i", 16, "N", st(ld("t", I), ld("x", "m", I))),
                strip("i", 16, "N", st(ld("y", "m", I), ap("add", ld("t", I), ld("y", "m", I)))),
                parallel=True,
                lower=1,
                step=2,
            )
        ],
        sizes=("M", "N"),
    )
    k = compiled(n, target)
    pool = Pool()
    for m, c in ((0, 3), (1, 4), (2, 5), (9, 17), (12, 40)):
        for threads in (1, 3):
            pool.calls.clear()
            check(n, {"M": m, "N": c}, kernel=k, parallel=pool.address, threads=threads)
            assert pool.calls == ([(1, m, 2)] if threads > 1 and m > 3 else [])
        check(n, {"M": m, "N": c}, kernel=k)


@each_target
def test_no_thread_writes_within_a_page_of_what_another_one_has_for_itself(target, monkeypatch):
    taken = []

    def recorded(bytes_):
        taken.append(aligned(bytes_))
        return taken[-1]

    monkeypatch.setattr(harness, "aligned", recorded)
    copied = strip("i", 16, "N", st(ld("t", I), ld("x", "m", I)))
    used = strip("i", 16, "N", st(ld("y", "m", I), ap("add", ld("t", I), ld("y", "m", I))))
    n = nest([tensor("x", "M", "N"), tensor("y", "M", "N"), work("t", "N", pad=16, private=True)],
             [loop("m", "M", copied, used, parallel=True)], sizes=("M", "N"))
    pool = Pool()
    for columns in (1, 16, 17, 1024):
        check(n, {"M": 12, "N": columns}, kernel=compiled(n, target), parallel=pool.address, threads=3)
        written = np.flatnonzero(taken[-1] != 0xFF)  # what no thread wrote is 0xFF
        assert np.count_nonzero(np.diff(written) > PAGE) == 2


def test_a_kernel_for_one_thread_shares_nothing_out():
    n = nest([tensor("x", "N"), tensor("y", "N")], [loop("i", "N", st(ld("y", "i"), ld("x", "i")), parallel=True)])
    shared, alone = (emit(n, V4, Options(threads=t)).text for t in (True, False))
    assert shared.count("define") == 2 and alone.count("define") == 1
    pool = Pool()
    check(n, {"N": 1000}, kernel=load(emit(n, V4, Options()), V4), parallel=pool.address, threads=3)
    assert not pool.calls


@each_target
def test_a_time_loop_may_surround_parallel_loops_and_they_may_nest(target):
    n = nest(
        [tensor("x", "M", "N")],
        [
            loop(
                "s",
                3,
                loop(
                    "m",
                    "M",
                    loop(
                        "q",
                        2,
                        strip("i", 16, "N", st(ld("x", "m", I), ap("mul", ld("x", A("M", -1, (-1, "m")), I), ld("x", "m", I)))),
                        parallel=True,
                    ),
                    lower=A("s"),
                    parallel=True,
                ),
            )
        ],
        sizes=("M", "N"),
    )
    k = compiled(n, target)
    pool = Pool()
    flat = nest(
        n.buffers,
        [
            loop(
                "s",
                3,
                loop(
                    "m",
                    "M",
                    strip("i", 16, "N", st(ld("x", "m", I), ap("add", ld("x", "m", I), Const(1.0, F32)))),
                    lower=A("s"),
                    parallel=True,
                ),
            )
        ],
        sizes=("M", "N"),
    )
    check(n, {"M": 4, "N": 9}, kernel=k)
    check(flat, {"M": 7, "N": 9}, kernel=compiled(flat, target), parallel=pool.address, threads=2)
    assert pool.calls == [(0, 7, 1), (1, 7, 1), (2, 7, 1)]


@each_target
def test_parallel_loops_directly_in_one_another_are_shared_out_together(target):
    more = ap("add", ld("x", "b", "m", I), ap("add", ld("y", "b", "m", I), Const(1.0, F32)))
    inner = loop("p", 3, strip("i", 16, "N", st(ld("y", "b", "m", I), more)), lower=A("s"), step=5)
    n = nest(
        [tensor("x", "B", "M", "N"), tensor("y", "B", "M", "N")],
        [loop("s", 2, loop("b", "B", loop("m", "M", inner, lower=A("s"), step=2, parallel=True), parallel=True))],
        sizes=("B", "M", "N"),
    )
    k = compiled(n, target)
    pool = Pool()
    for b, m in ((0, 4), (1, 0), (1, 1), (1, 7), (3, 2), (4, 5), (2, 6)):
        for threads in (1, 3):
            pool.calls.clear()
            check(n, {"B": b, "M": m, "N": 17}, kernel=k, parallel=pool.address, threads=threads)
            trips = [b * len(range(s, m, 2)) for s in range(2)]
            assert pool.calls == [(0, t, 1) for t in trips if threads > 1 and t > 1]
        check(n, {"B": b, "M": m, "N": 17}, kernel=k)


@each_target
def test_a_site_found_in_a_parallel_loop_is_returned(target):
    n = nest(
        [tensor("x", "N"), tensor("at", "N", t=I32), tensor("y", "N")],
        [loop("i", "N", st(ld("y", "i"), ld("x", ld("at", "i", t=I32))), parallel=True)],
    )
    k = compiled(n, target)
    pool = Pool()
    for threads in (1, 2):
        arrays = {"x": np.ones(9, "f"), "at": np.array([0, 1, 2, 3, 99, 5, 6, 7, 8], "i"), "y": np.zeros(9, "f")}
        assert k({"N": 9}, {}, arrays, pool.address, threads) == 1
        arrays["at"][4] = 4
        assert k({"N": 9}, {}, arrays, pool.address, threads) == 0


@each_target
def test_rows_of_two_axes_make_a_product(target):
    a, b = A("a_r", "a_p"), A("b_r", "b_p")
    acc = ld("acc", "a_p", "b_p", "k_v")

    def both(*body):
        return rows("a_p", 2, least(2, A("P", (-1, "a_r"))), rows("b_p", 3, least(3, A("Q", (-1, "b_r"))), *body))

    body = loop(
        "a_r",
        "P",
        loop(
            "b_r",
            "Q",
            lanes(
                "k_v",
                8,
                least(8, A("N")),
                both(st(acc, Const(0.0, F32))),
                loop("c", "C", both(st(acc, ap("mul", ld("x", a, b, "c"), ld("w", "c", "k_v")), "add"))),
                both(st(ld("y", a, b, "k_v"), acc)),
            ),
            step=3,
        ),
        step=2,
    )
    n = nest(
        [tensor("x", "P", "Q", "C"), tensor("w", "C", "N"), tensor("y", "P", "Q", "N"), reg("acc", 2, 3, 8)],
        [body],
        sizes=("P", "Q", "C", "N"),
    )
    k = compiled(n, target)
    low = compiled(lower(n, target, Options()), target)
    for p, q, c, f in ((1, 1, 1, 1), (2, 3, 4, 8), (3, 4, 5, 7), (5, 7, 2, 3)):
        check(n, {"P": p, "Q": q, "C": c, "N": f}, kernel=k)
        check(n, {"P": p, "Q": q, "C": c, "N": f}, kernel=low)


@each_target
def test_a_lockstep_loop_without_iterations_does_nothing(target):
    n = nest(
        [tensor("x", "N"), tensor("y", "N"), tensor("z")],
        [
            lanes(
                "i_v",
                16,
                least(16, A("N", (-1, "H"))),
                st(ld("y", "i_v"), ld("x", "i_v")),
                st(ld("z"), Const(1.0, F32)),
                rows("p", 2, least(2, A("N", (-1, "H"))), st(ld("y", "p"), Const(2.0, F32))),
            )
        ],
        sizes=("N", "H"),
    )
    k = compiled(n, target)
    for size, less in ((4, 4), (4, 9), (4, 3), (9, 1), (20, 2)):
        check(n, {"N": size, "H": less}, kernel=k)


@each_target
def test_rows_may_decide_differently(target):
    m = A("m_r", "m_p")
    n = nest(
        [tensor("x", "M", "N"), tensor("y", "M", "N"), reg("acc", 4, 16)],
        [
            loop(
                "m_r",
                "M",
                lanes(
                    "i_v",
                    16,
                    least(16, A("N")),
                    rows(
                        "m_p",
                        4,
                        least(4, A("M", (-1, "m_r"))),
                        st(ld("acc", "m_p", "i_v"), Const(0.0, F32)),
                        when(
                            [A("H") - m],
                            [
                                st(ld("acc", "m_p", "i_v"), ld("x", m, "i_v"), "add"),
                                st(ld("y", m, "i_v"), ld("acc", "m_p", "i_v")),
                            ],
                            [st(ld("y", m, "i_v"), Const(-1.0, F32)), st(ld("acc", "m_p", "i_v"), Const(2.0, F32))],
                        ),
                        st(ld("y", m, "i_v"), ld("acc", "m_p", "i_v"), "add"),
                    ),
                ),
                step=4,
            )
        ],
        sizes=("M", "N", "H"),
    )
    k = compiled(n, target)
    for a, b, h in ((1, 1, 0), (4, 16, 2), (7, 9, 4), (8, 5, 20)):
        check(n, {"M": a, "N": b, "H": h}, kernel=k)


@each_target
def test_registers_keep_rows_and_lanes_that_a_shorter_loop_does_not_reach(target):
    acc = ld("acc", "p", "v")
    n = nest(
        [tensor("x", 4, 16), tensor("y", 4, 16), reg("acc", 4, 16)],
        [
            rows("p", 4, None, lanes("v", 16, None, st(acc, ld("x", "p", "v")))),
            loop("k", 3, rows("p", 4, least(4, A("k", 1)), lanes("v", 16, least(16, A("H")), st(acc, Const(1.0, F32), "add")))),
            rows("p", 4, least(4, A("G")), lanes("v", 16, None, st(acc, Const(5.0, F32)))),
            rows("p", 4, None, lanes("v", 16, None, st(ld("y", "p", "v"), acc))),
        ],
        sizes=("H", "G"),
    )
    k = compiled(n, target)
    for h, g in ((0, 0), (3, 2), (16, 1), (20, 4), (7, 0)):
        check(n, {"H": h, "G": g}, kernel=k)


@pytest.mark.parametrize("target,mr,nr", [(V4, 6, 64), (V3, 4, 16)], ids=("v4", "v3"))
def test_lowering_keeps_what_a_nest_means(target, mr, nr):
    n = matmul(mr, nr)
    low = lower(n, target, Options())
    assert "prefetch" in structure(low.body)
    k = compiled(low, target) if target in RUNNABLE else None
    for m, c, d in ((1, 1, 1), (mr, nr, 3), (mr + 1, nr + 9, 2), (5, 33, 4)):
        arrays = make_arrays(n, {"M": m, "N": c, "K": d}, np.random.default_rng(1))
        first, second = ({x: y.copy() for x, y in arrays.items()} for _ in range(2))
        interpret(n, {"M": m, "N": c, "K": d}, {}, first)
        interpret(low, {"M": m, "N": c, "K": d}, {}, second)
        np.testing.assert_array_equal(first["C"], second["C"])
        if k is not None:
            check(low, {"M": m, "N": c, "K": d}, kernel=k)


def test_a_test_leaves_the_loop_that_it_does_not_depend_on():
    n = nest(
        [tensor("x", "N")],
        [
            loop(
                "m",
                "N",
                loop("k", "N", when([A((-1, "m"))], [st(ld("x", "k"), Const(1.0, F32))]), st(ld("x", "m"), Const(2.0, F32))),
            )
        ],
    )
    assert structure(unswitch(n).body) == "m(if(k(s s) | k(s)))"


def test_an_edge_whose_lanes_meet_takes_only_the_vectors_it_needs():
    n = nest([tensor("x", "N"), tensor("y")], [strip("i", 48, "N", st(ld("y"), ld("x", I), "add"))])
    assert structure(split_full_tiles(n, 16).body) == "i_c(if(i_v:lanes(s) | if(i_v:lanes(s) | if(i_v:lanes(s) | i_v:lanes(s)))))"


def sums_of_rows():
    """Rows whose partial sums are in registers, and what is written of each."""
    part, i = ld("part", "i_v"), ld("x", "m", I)
    row = [lanes("i_v", 64, None, st(part, Const(0.0, F32))), st(ld("total"), Const(0.0, F32)),
           strip("i", 64, "N", st(ld("e", I), ap("mul", i, i)), st(part, ld("e", I), "add")),
           lanes("i_v", 64, None, st(ld("total"), part, "add")), st(ld("y", "m"), ld("total"))]
    return nest([tensor("x", "M", "N"), tensor("y", "M"), work("e", "N", pad=64), reg("part", 64), reg("total")],
                [loop("m", "M", *row)], sizes=("M", "N"))


@each_target
def test_an_edge_is_written_vector_by_vector(target):
    n = split_full_tiles(sums_of_rows(), target.lanes(4))
    edge = "if(i_v:lanes(s s) | i_v:lanes(s s))"
    assert structure(n.body) == f"m(i_v:lanes(s) s i_c({edge}) i_v:lanes(s) s)"
    k, text = compiled(n, target), emit(n, target, Options()).text
    assert sum("call" in x and "masked.load" in x for x in text.splitlines()) == 64 // target.lanes(4)
    for size in (1, 4, 8, 15, 16, 17, 31, 33, 48, 49, 63, 64, 65, 110):
        check(n, {"M": 3, "N": size}, target, kernel=k)


def test_missing_rows_are_asked_for_before_missing_lanes():
    n = nest([tensor("x", "M", "N")], [strip("i", 32, "N", rows("p", 4, least(4, A("M")), st(ld("x", "p", I), Const(1.0, F32))))])
    full, few = "i_v:lanes(p:rows(s))", "if(i_v:lanes(p:rows(s)) | i_v:lanes(p:rows(s)))"
    assert structure(unswitch(split_full_tiles(n, 16)).body) == f"if(i_c(if({full} | {few})) | i_c({few}))"


def test_an_edge_of_whole_vectors_that_may_bypass_the_caches_has_no_bounds():
    copy = st(ld("Y", I), ld("X", I, guard=(A("i_c", (1, "i_v")),)), stream=True)
    n = nest([tensor("X", "N"), tensor("Y", "N")], [strip("i", 64, "N", copy)])
    twice = "if(i_v:lanes(s) | i_v:lanes(s))"
    got = split_full_tiles(n, 16)
    assert structure(got.body) == f"i_c(if(i_v:lanes(s) | if(i_v:lanes(s) | if({twice} | if({twice} | i_v:lanes(s))))))"
    full = {f.extent for f in walk(got.body) if isinstance(f, For) and f.is_full}
    assert full == {64, 48, 32}



@pytest.mark.parametrize(("size", "kept"), [(5, "i_v:lanes(s)"), (40, "i_v:lanes(s)"), (48, "i_v:lanes(s)")])
def test_of_a_size_that_is_a_number_only_the_case_that_happens_is_left(size, kept):
    n = nest([tensor("x", size)], [lanes("i_v", 48, least(48, size), st(ld("x", A("i_v")), Const(1.0, F32)))], sizes=())
    assert structure(split_full_tiles(n, 16).body) == kept


def test_a_test_of_constants_is_decided():
    one, two = st(ld("x", 0), Const(1.0, F32)), st(ld("x", 1), Const(2.0, F32))
    half = when([A("N")], [one], [two])
    for tests, left in (([A(-5)], [two]), ([A(0)], [one]), ([A(3), A("N")], [half]), ([A("N"), A(-1)], [two])):
        assert decided((loop("i", "N", when(tests, [one], [two])),)) == (loop("i", "N", *left),)
    assert decided((loop("i", "N", when([A(-1)], [one])),)) == ()


def test_the_edge_of_a_long_expression_is_written_once():
    x = ld("x", I)
    total = x
    for _ in range(300):
        total = ap("add", total, x)
    n = nest([tensor("x", "N"), tensor("y", "N")], [strip("i", 64, "N", st(ld("y", I), total))])
    assert structure(split_full_tiles(n, 16).body) == "i_c(if(i_v:lanes(s) | i_v:lanes(s)))"


def test_a_place_read_twice_in_one_store_is_loaded_once():
    x = ld("x", I)
    square = lanes("i_v", 16, None, st(ld("y", I), ap("mul", x, x)))
    n = nest([tensor("x", "N"), tensor("y", "N")], [loop("i_c", "N", square, step=16)])
    assert emit(n, V4, Options()).text.count("load <16 x float>") == 1


def floor_to(step, upper):
    """The last multiple of `step` up to `upper`."""
    return quasi("div", affine(upper), affine(step)) * step


def test_what_is_left_after_whole_steps_is_one_iteration():
    left = loop("i", "N", lower=floor_to(64, "N"), step=64)
    held = loop("i", least(3072, A("N", (-1, "c"))), lower=quasi("max", affine(0), floor_to(64, A("N", (-1, "c")))), step=64)
    assert runs_once(left) and runs_once(held)
    assert not runs_once(loop("i", "N", lower=floor_to(64, "N"), step=32))
    assert not runs_once(loop("i", "N", lower=floor_to(64, "M"), step=64))
    assert not runs_once(loop("i", "N", step=64))


@each_target
def test_a_loop_of_one_iteration_is_none(target):
    part = ld("part", "i_v")
    edge = lanes("i_v", 32, least(32, A("N", (-1, "i"))), st(part, ld("x", "r", A("i", "i_v")), "add"))
    body = [
        lanes("i_v", 32, None, st(part, Const(0.0, F32))),
        loop("i", "N", edge, lower=floor_to(32, "N"), step=32),
        lanes("i_v", 32, None, st(ld("y", "r", "i_v"), part)),
    ]
    n = nest([tensor("x", "M", "N"), tensor("y", "M", 32), reg("part", 32)], [loop("r", "M", *body)], sizes=("M", "N"))
    assert emit(n, target, Options()).text.count("!llvm.loop !0") == 1
    k = compiled(n, target)
    for size in (0, 1, 31, 32, 40, 64, 95):
        check(n, {"M": 3, "N": size}, kernel=k)


def test_more_registers_than_the_target_has_are_refused_with_the_count():
    with pytest.raises(UnsupportedError, match=r"the tile at n_v keeps 33 vectors live; x86:x86-64-v4 has 32"):
        verify(matmul(7, 64), V4)
    assert verify(matmul(6, 64), V4)


@pytest.mark.parametrize(
    "body,kind,text",
    [
        ([loop("i", "N", loop("i", "N", st(ld("x", "i"), Const(0.0, F32))))], InternalError, "i is bound twice"),
        ([st(ld("x", "j"), Const(0.0, F32))], InternalError, "j not in scope"),
        ([st(ld("x", 0, 0), Const(0.0, F32))], InternalError, "has 2 indices"),
        (
            [lanes("v", 8, None, loop("k", A("v"), st(ld("x", "k"), Const(0.0, F32))))],
            UnsupportedError,
            "the bounds of k depend on v",
        ),
        (
            [lanes("v", 8, None, lanes("u", 8, None, st(ld("x", "u"), Const(0.0, F32))))],
            UnsupportedError,
            "lanes u inside lanes v",
        ),
        (
            [lanes("v", 8, None, loop("k", 3, st(ld("x", "v"), Const(0.0, F32)), parallel=True))],
            InternalError,
            "inside a lock-step loop",
        ),
    ],
    ids=("twice", "scope", "indices", "bounds", "lanes", "parallel"),
)
def test_a_nest_that_means_nothing_is_refused(body, kind, text):
    with pytest.raises(kind, match=text):
        verify(nest([tensor("x", "N")], body), V4)


def test_a_bound_that_the_loops_around_imply_is_seen():
    around = (loop("m", least(A("M"), A("L"))), loop("n", A("N", (-1, "m"))))
    assert is_positive(least(6, A("M", (-1, "m"))), around, ())
    assert is_positive(A("N", (-1, "m"), (-1, "n")), around, ())
    assert is_positive(A("H", -3), around, (A("H", -4),))
    window = (loop("r", A("R"), lower=quasi("max", affine(0), A("p", (-1, "H")))),)
    assert is_positive(A("r", 1), window, ()) and is_positive(A("r", "H", (-1, "p"), 1), window, ())
    assert not is_positive(A("r"), window, ())
    assert not is_positive(A("M"), (), ()) and not is_positive(A("M", -1, (-1, "m")), around, ())


def test_equal_nests_give_equal_texts():
    assert emit(matmul(6, 64), V4, Options()).text == emit(matmul(6, 64), V4, Options()).text


def test_a_long_function_is_written_once():
    e = ap("pow", ld("x", I), ld("y", I))
    n = nest([tensor("x", "N"), tensor("y", "N")], [strip("i", 256, "N", st(ld("y", I), e))])
    assert emit(n, V4, Options()).text.count("define internal <16 x float> @pop.pow") == 1
    check(nest(n.buffers, [strip("i", 256, "N", st(ld("y", I), ap("pow", ap("abs", ld("x", I)), ld("y", I))))]), {"N": 300}, V4)


def undefined_symbols(binary: bytes) -> set[str]:
    """The names an ELF object leaves to the linker."""
    shoff = int.from_bytes(binary[0x28:0x30], "little")
    size, count = (int.from_bytes(binary[i : i + 2], "little") for i in (0x3A, 0x3C))
    heads = [struct.unpack_from("<IIQQQQIIQQ", binary, shoff + i * size) for i in range(count)]
    found: set[str] = set()
    for h in heads:
        if h[1] == 2:  # SHT_SYMTAB
            names = heads[h[6]][4]
            for at in range(h[4] + 24, h[4] + h[5], 24):
                name, _, _, section = struct.unpack_from("<IBBH", binary, at)
                if section == 0:
                    found.add(binary[names + name : binary.index(b"\0", names + name)].decode())
    return found


@each_target
def test_a_kernel_needs_no_library(target):
    simple = ("mod", "div", "round", "floor", "fma", "sqrt")
    for t in (F16, F32, F64):
        stores = []
        for fn in (*FLOAT, *simple):
            if fn == "nextafter" and t == F16:
                continue
            for i in (I, A("i_c")):
                args = tuple(ld(x, i, t=t) for x in "abc")[: scalars.ARITY[fn]]
                stores.append(st(ld("y", i, t=t), ap(fn, *args, t=t)))
        casts = [st(ld(f"z_{u}", I, t=u), ap("cast", ld("a", I, t=t), t=u)) for u in DTYPES.values() if u != t]
        back = [st(ld("y", I, t=t), ap("cast", ld(f"z_{u}", I, t=u), t=t)) for u in DTYPES.values() if u != t]
        n = nest(
            [*(tensor(x, "N", t=t) for x in "abcy"), *(tensor(f"z_{u}", "N", t=u) for u in DTYPES.values())],
            [strip("i", 4, "N", *stores, *casts, *back)],
        )
        assert undefined_symbols(assembled(n, target)) <= {"_GLOBAL_OFFSET_TABLE_"}
