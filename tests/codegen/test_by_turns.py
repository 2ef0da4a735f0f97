"""Elements by turns, each read by name: what all of them lie in is read once, and taken apart in registers."""

from __future__ import annotations

import re

import numpy as np
import pytest

import polyop
from polyop.codegen.cpu.certain import first_of_run
from polyop.codegen.cpu.passes import split_full_tiles
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import BF16, F32, F64, I32, I64, U8
from polyop.ir.expr import Apply, Load, Number
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import For, Kind, stores, walk
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V3, V4, check, compiled, last_page, load, random_array
from tests.codegen.nests import A, ap, ld, least, loop, nest, reg, rows, st, strip, tensor, when
from tests.poly.middles import middle, proved

I = A("i_c", "i_v")
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def by_turns(step: int, number: int, name: str = "X", t=F32) -> Load:
    """X[step i + number]."""
    return ld(name, A((step, "i_c"), (step, "i_v"), number), t=t)


def loads(n, target) -> int:
    """The vectors that the text loads."""
    return len(re.findall(r"= (load <|call .*@llvm\.masked\.load)", emit(n, target, Options()).text))


def summed(step: int, numbers, t=F32, width: int = 16, more=()):
    total = by_turns(step, numbers[0], t=t)
    for k in numbers[1:]:
        total = ap("add", total, by_turns(step, k, t=t), t=t)
    room = A((step, "N"), max(0, max(numbers) - step + 1))
    return nest([tensor("X", room, t=t), tensor("y", "N", t=t)], [strip("i", width, "N", st(ld("y", I, t=t), total), *more)])


@each_target
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("t", [F32, F64, I32, U8, BF16], ids=lambda t: t.name)
def test_all_that_lies_between_is_read_once(target, step, t):
    width = target.lanes(max(4, t.bytes_))
    n = split_full_tiles(summed(step, range(step), t, 2 * width), width)
    kernel = load(emit(n, target, Options()), target)
    rng = np.random.default_rng(step)
    for size in (0, 1, width - 1, width, width + 1, 2 * width, 4 * width + 3):
        x = last_page(random_array(rng, t, (step * size,))) if size else random_array(rng, t, (0,))
        check(n, {"N": size}, target, kernel=kernel, arrays={"X": x, "y": random_array(rng, t, (size,))})


def written(step: int, order, t=F32, width: int = 16, reads=None):
    """y[step i + k] = k X[i], by one store for each k."""
    each = [st(by_turns(step, k, "y", t=t), reads(k) if reads else ap("mul", ld("X", I, t=t), number(k, t), t=t)) for k in order]
    return nest([tensor("X", "N", t=t), tensor("y", A((step, "N")), t=t)], [strip("i", width, "N", *each)])


def number(k: int, t):
    return Apply("cast", (Number(A(k), I64),), t)


@each_target
@pytest.mark.parametrize("order", [(0, 1), (1, 0), (2, 0, 1), (3, 1, 0, 2)], ids=str)
@pytest.mark.parametrize("t", [F32, F64, I32, U8, BF16], ids=lambda t: t.name)
def test_all_that_lies_between_is_written_at_once(target, order, t):
    width = target.lanes(max(4, t.bytes_))
    n = split_full_tiles(written(len(order), order, t, 2 * width), width)
    text = emit(n, target, Options()).text
    assert "masked.scatter" not in text
    kernel = load(emit(n, target, Options()), target)
    rng = np.random.default_rng(2)
    for size in (0, 1, width - 1, width, width + 1, 2 * width, 4 * width + 3):
        y = random_array(rng, t, (len(order) * size,))
        check(n, {"N": size}, target, kernel=kernel,
              arrays={"X": random_array(rng, t, (size,)), "y": last_page(y) if size else y})


@each_target
@pytest.mark.parametrize("order", [(0, 2), (0, 1, 1), (0, 0, 1)], ids=str)
def test_what_no_store_writes_stays(target, order):
    n = written(3, order)
    kernel = compiled(n, target)
    for size in (1, 15, 16, 40):
        check(n, {"N": size}, target, kernel=kernel)


@each_target
def test_what_another_one_wrote_before_is_read(target):
    def reads(k):
        return ap("add", by_turns(2, 0, "y"), ld("X", I)) if k else ld("X", I)

    n = written(2, (0, 1), reads=reads)
    for size in (1, 16, 35):
        check(n, {"N": size}, target)


@each_target
@pytest.mark.parametrize("step, numbers",
                         [(2, (0, 1, 2)), (2, (1, 2)), (3, (2, 4, 3, 5)), (2, (0, 2)), (3, (0, 1)), (4, (1, 2, 3))])
def test_a_run_begins_where_all_of_it_is_read(target, step, numbers):
    n = summed(step, numbers)
    kernel = compiled(n, target)
    for size in (1, 5, 16, 21, 64):
        length = step * size + max(0, max(numbers) - step + 1)
        x = last_page(np.arange(length, dtype=np.float32))
        used = step * (size - 1) + max(numbers) + 1
        x = last_page(x[:used]) if used < length else x  # what no lane reads may not be there
        full = np.zeros(length, np.float32)
        full[:used] = x[:used]
        want = sum(full[k::step][:size] for k in numbers)
        y = np.zeros(size, np.float32)
        assert kernel({"N": size}, {}, {"X": x, "y": y}) == 0
        np.testing.assert_array_equal(y, want)


def test_where_a_run_begins():
    assert first_of_run(frozenset({0, 1}), 1, 2) == 0
    assert first_of_run(frozenset({-1, 0, 1}), -1, 2) == -1
    assert first_of_run(frozenset({-1, 0, 1}), 0, 2) == 0
    assert first_of_run(frozenset({0, 2}), 0, 2) is None
    assert first_of_run(frozenset({1, 2, 3}), 3, 3) == 1


def test_two_vectors_are_read_for_two_numbers_and_three_for_three():
    width = V3.lanes(4)
    for step in (2, 3, 4):
        whole = split_full_tiles(summed(step, range(step), width=width), width)
        alone = split_full_tiles(summed(step, range(step - 1), width=width), width)
        assert loads(whole, V3) == 2 * step  # whole vectors, and those of the edge
        assert loads(alone, V3) > loads(whole, V3) or step == 2


@each_target
@pytest.mark.parametrize("step", [2, 3, 4])
@pytest.mark.parametrize("t", [F32, F64, I32, U8], ids=lambda t: t.name)
def test_loops_over_what_lies_between_read_it_once(target, step, t):
    """{ m = max of X[step i + c], y = sum of (X[step i + c] - m) } by two serial loops."""
    at = A((step, "i_c"), (step, "i_v"), "c")
    width = target.lanes(max(4, t.bytes_))
    x, m, total = ld("X", at, t=t), ld("m", "i_v", t=t), ld("total", "i_v", t=t)
    zero = number(0, t)
    body = strip("i", 2 * width, "N", st(m, by_turns(step, 0, t=t)), st(total, zero), loop("c", step, st(m, x, "max")),
                 loop("c", step, st(total, ap("sub", x, m, t=t), "add")), st(ld("y", I, t=t), total))
    n = split_full_tiles(nest([tensor("X", A((step, "N")), t=t), tensor("y", "N", t=t), reg("m", 2 * width, t=t),
                               reg("total", 2 * width, t=t)], [body]), width)
    kernel = compiled(n, target)
    rng = np.random.default_rng(step)
    for size in (0, 1, width - 1, width, 2 * width, 4 * width + 3):
        x, y = (random_array(rng, t, (count * size,)) for count in (step, 1))
        check(n, {"N": size}, target, kernel=kernel, arrays={"X": last_page(x) if size else x, "y": y})
    whole = len(re.findall(r"= load <", emit(n, target, Options()).text))
    assert whole == (2 if target == V4 else 3) * step  # of two vectors, for both loops and what is before; and one of an edge


@each_target
def test_a_loop_that_is_longer_or_whose_reads_may_fail_stays(target):
    at = A((2, "i_c"), (2, "i_v"), "c")
    for count, guard in ((3, ()), (2, (A(7, (-1, "c"), (-1, "i_v")),))):
        x = ld("X", at, guard=guard)
        n = nest([tensor("X", A((2, "N"), 1)), tensor("y", "N"), reg("total", 16)],
                 [strip("i", 16, "N", st(ld("total", "i_v"), number(0, F32)),
                        loop("c", count, st(ld("total", "i_v"), x, "add")), st(ld("y", I), ld("total", "i_v")))])
        for size in (1, 15, 16, 33):
            check(n, {"N": size}, target)


@each_target
def test_what_a_condition_leaves_out_is_read_beside_what_is_read_anyway(target):
    sign = Apply("lt", (ld("c", I), by_turns(2, 0)), Tests(()).dtype)
    chosen = Apply("select", (sign, by_turns(2, 1), ap("mul", by_turns(2, 0), ld("c", I))), F32)
    both = ap("add", ap("mul", by_turns(2, 0), by_turns(2, 1)), chosen)
    for e in (both, chosen):
        n = nest([tensor("X", A((2, "N"))), tensor("c", "N"), tensor("y", "N")], [strip("i", 16, "N", st(ld("y", I), e))])
        for size in (1, 7, 16, 33):
            check(n, {"N": size}, target)


@each_target
def test_what_lanes_leave_out_together_is_not_read(target):
    """Behind the number m nothing is there: { y[i] = X[2i] + X[2i + 1] : i < m }."""
    test = A("M", -1, (-1, "i_c"), (-1, "i_v"))
    add = ap("add", by_turns(2, 0), by_turns(2, 1))
    n = nest([tensor("X", A((2, "M"))), tensor("y", "N")],
             [strip("i", 16, "N", when([test], [st(ld("y", I), add)], [st(ld("y", I), ld("y", I))]))], ("N", "M"))
    kernel = compiled(n, target)
    for size, m in ((16, 3), (16, 15), (40, 21), (5, 5)):
        x, y = last_page(np.arange(2 * m, dtype=np.float32)), np.full(size, 7, np.float32)
        assert kernel({"N": size, "M": m}, {}, {"X": x, "y": y}) == 0
        np.testing.assert_array_equal(y, [4 * i + 1 if i < m else 7 for i in range(size)])


@each_target
def test_what_was_written_meanwhile_is_read_again(target):
    even, odd = by_turns(2, 0), by_turns(2, 1)
    n = nest([tensor("X", A((2, "N"))), tensor("y", "N")], [strip(
        "i", 16, "N", st(even, ap("add", even, odd)), st(odd, ap("mul", even, odd)), st(ld("y", I), ap("sub", odd, even)))])
    for size in (1, 8, 15, 16, 33):
        check(n, {"N": size}, target)


@each_target
def test_rows_and_numbers_share_what_is_read(target):
    """Products of complex numbers, as (row, lane): Z[i, c] = X[i, 0] Y[i, c] + X[i, 1] (c = 0 ? -Y[i, 1] : Y[i, 0])."""
    at = A((2, "i_c"), (2, "i_v"))
    other = Apply("select", (Tests((A((-1, "c")),)), ap("neg", ld("Y", A(at, 1))), ld("Y", at)), F32)
    e = ap("add", ap("mul", ld("X", at), ld("Y", A(at, "c"))), ap("mul", ld("X", A(at, 1)), other))
    two = A((2, "N"))
    n = nest([tensor("X", two), tensor("Y", two), tensor("Z", two)],
             [strip("i", 16, "N", rows("c", 2, None, st(ld("Z", A(at, "c")), e)))])
    for size in (1, 7, 8, 16, 17, 50):
        check(n, {"N": size}, target)
    if target == V4:
        full = split_full_tiles(n, 16)
        text = emit(full, V4, Options()).text
        assert loads(full, V4) == 8 and " select " not in text


@each_target
def test_edges_of_rows_of_tiles_do_not_matter(target):
    """Rows that do not exist count as the last one, and read what that reads."""
    at = A((2, "i_c"), (2, "i_v"))
    e = ap("mul", ld("X", A("r_c", "r_p"), at), ld("X", A("r_c", "r_p"), A(at, 1)))
    body = rows("r_p", 4, least(4, A("R", (-1, "r_c"))), st(ld("y", A("r_c", "r_p"), I), e))
    n = nest([tensor("X", "R", A((2, "N"))), tensor("y", "R", "N")],
             [loop("r_c", "R", strip("i", 16, "N", body), step=4)], ("R", "N"))
    for r, size in ((1, 1), (3, 16), (4, 15), (6, 33)):
        check(n, {"R": r, "N": size}, target)


@pytest.mark.parametrize("target", [V3, V4], ids=lambda t: t.arch)
def test_halves_of_pairs_have_lanes_whoever_names_them(target):
    """On AVX2, too, where a vector cannot be written in part at no cost."""
    text = """op f(X: f32[R, 2*N], C: f32[R, N]) -> (Y: f32[R, 2*N]) {
        Y[r, 2*i] = X[r, 2*i] * C[r, i] - X[r, 2*i + 1]; Y[q, 2*j + 1] = X[q, 2*j] + X[q, 2*j + 1] * C[q, j] }"""
    m = middle(text, "tuned", t=target)
    assert proved(m)
    assert all(x.kind == Kind.LANES for x in walk(m.nest.body) if isinstance(x, For) and stores(x.body) == x.body)


@pytest.mark.parametrize("text, want", [
    ("op f(X: f32[N, 3]) -> (Y: f32[N]) { Y[n] = 0.5 * X[n, 0] + 0.25 * X[n, 1] + X[n, 2] }",
     lambda x: x @ [0.5, 0.25, 1]),
    ("op f(X: f32[N, 3]) -> (Y: f32[N]) { Y[n] = max(X[n, 0], X[n, 2]) }", lambda x: np.maximum(x[:, 0], x[:, 2])),
    ("op f(X: f32[N, 3]) -> (Y: f32[N]) { Y[n] = X[n, 0] > 0.0 ? X[n, 1] : X[n, 2] }",
     lambda x: np.where(x[:, 0] > 0, x[:, 1], x[:, 2])),
    ("op f(X: f32[N, 3]) -> (Y: f32[N]) { s = sum[n](X[n, 0] * X[n, 1] * X[n, 2]); Y[n] = X[n, 1] + s }",
     lambda x: x[:, 1] + x.prod(1).sum()),
], ids=["grey", "two", "chosen", "sum"])
def test_columns_by_name(text, want):
    f = polyop.op(text)
    rng = np.random.default_rng(8)
    for n in (0, 1, 5, 15, 16, 17, 100, 1001):
        x = rng.standard_normal((n, 3)).astype(np.float32)
        for given in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
            np.testing.assert_allclose(f(given), want(x.astype(np.float64)), rtol=1e-5, atol=1e-5 * max(1, n) ** 0.5)
