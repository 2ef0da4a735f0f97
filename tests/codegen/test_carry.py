"""Values that one iteration leaves to the next stay in registers."""

import numpy as np
import pytest

from polyop.codegen.cpu.carry import carry
from polyop.codegen.cpu.lower import lower
from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, I8, I64
from polyop.ir.loops import structure
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, check, compiled, make_arrays
from tests.codegen.nests import A, ap, ld, loop, nest, rows, st, strip, tensor

I = A("i_c", "i_v")
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def scan(*tests, lower=0, step=1, t=F32, fn="add", at=("k",)):
    """`for k { Y[k] = fn(Y[k - step] if tests, X[k]) }`"""
    before = ld("Y", A("k", -step), t=t, guard=tests)
    body = loop("k", "N", st(ld("Y", *at, t=t), ap(fn, before, ld("X", "k", t=t), t=t)), lower=lower, step=step)
    return nest([tensor("X", "N", t=t), tensor("Y", "N", t=t)], [body])


def same(n, sizes, target=V4):
    """The rewritten nest, compiled, writes what the interpreter says of the one before."""
    k = compiled(lower(n, target, Options()), target)
    for size in sizes:
        arrays = make_arrays(n, {"N": size}, np.random.default_rng(size))
        check(n, {"N": size}, target, kernel=k, arrays=arrays, rtol=2e-2 if n.buffers[0].dtype in (F16, BF16) else None)


@each_target
@pytest.mark.parametrize("t", (F32, F64, F16, BF16, I8, I64), ids=str)
def test_a_scan_along_the_innermost_loop_reads_a_register(t, target):
    n = scan(A("k", -1), t=t)
    text = str(carry(n, 16))
    assert "Y_carried0 = (Y_carried0 + X[k])" in text and f"Y_carried0 = {t}(0)" in text
    same(n, (0, 1, 2, 9), target)


def test_a_scan_of_truth_values_starts_with_false():
    n = scan(A("k", -1), t=BOOL, fn="or")
    assert "Y_carried0 = false" in str(carry(n, 16))
    same(n, (0, 1, 7))


def test_the_first_value_comes_from_memory_where_it_exists():
    n = scan(lower=1)
    assert "Y_carried0 = Y[0]" in str(carry(n, 16)) and structure(carry(n, 16).body) == "if(s k(s s))"
    same(n, (0, 1, 2, 9))
    every_third = scan(lower=3, step=3)
    assert "Y_carried0 = Y[0]" in str(carry(every_third, 16))
    same(every_third, (0, 3, 4, 17))


def test_a_test_that_may_fail_later_stays():
    n = scan(A("k", -1), A(9, (-1, "k")))
    assert "(Y_carried0 if -k + 9 >= 0)" in str(carry(n, 16))
    same(n, (0, 5, 10, 11, 30))


@each_target
def test_a_scan_over_rows_keeps_vectors(target):
    before = ld("Y", A("k", -1), I, guard=(A("k", -1),))
    body = loop("k", 5, st(ld("Y", "k", I), ap("add", before, ld("X", "k", I))))
    n = nest([tensor("X", 5, "N"), tensor("Y", 5, "N")], [strip("i", 32, "N", body)])
    assert "Y_carried0[i_v] = (Y_carried0[i_v] + X[k, i_c + i_v])" in str(carry(n, 16))
    same(n, (0, 1, 15, 16, 33, 70), target)


def test_two_recurrences_of_one_loop_are_carried_side_by_side():
    y, z = ld("Y", A("k", -1), guard=(A("k", -1),)), ld("Z", A("k", -1), guard=(A("k", -1),))
    first, second = st(ld("Y", "k"), ap("add", y, ap("mul", z, ld("X", "k")))), st(ld("Z", "k"), ap("sub", z, ld("Y", "k")))
    body = loop("k", "N", first, second)
    n = nest([tensor("X", "N"), tensor("Y", "N"), tensor("Z", "N")], [body])
    text = str(carry(n, 16))
    assert "Y_carried0 = " in text and "Z_carried1 = " in text
    same(n, (0, 1, 2, 9))


def test_a_read_after_the_store_and_a_second_store_leave_memory_alone():
    late = loop("k", "N", st(ld("Y", "k"), ld("X", "k")), st(ld("Z", "k"), ld("Y", A("k", -1), guard=(A("k", -1),))))
    twice = loop("k", "N", st(ld("Y", "k"), ld("Y", A("k", -1), guard=(A("k", -1),))), st(ld("Y", 0), ld("X", "k")))
    other = scan(A("k", -1), at=(A("N", -1, (-1, "k")),))
    for body in (late, twice):
        n = nest([tensor("X", "N"), tensor("Y", "N"), tensor("Z", "N")], [body])
        assert "carried" not in str(carry(n, 16))
    assert "carried" not in str(carry(other, 16))


def test_what_would_take_too_many_registers_stays_in_memory():
    before = ld("Y", "p", A("k", -1), guard=(A("k", -1),))
    body = rows("p", 12, None, loop("k", "N", st(ld("Y", "p", "k"), ap("add", before, ld("X", "p", "k")))))
    n = nest([tensor("X", 12, "N"), tensor("Y", 12, "N")], [body])
    assert "carried" not in str(carry(n, 16)) and "carried" in str(carry(n, 16, most=12))
