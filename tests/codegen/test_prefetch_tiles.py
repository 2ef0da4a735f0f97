"""What tiles ask for early: what they write, and what their innermost loop streams."""

import re
from dataclasses import replace

import pytest

from polyop.codegen.cpu.lower import rewrites
from polyop.codegen.cpu.passes import split_full_tiles, unswitch
from polyop.codegen.cpu.prefetch_squares import FEW_STEPS
from polyop.codegen.cpu.prefetch_tiles import prefetch_tiles
from polyop.codegen.x86 import emit
from polyop.ir.dtypes import F32, F64
from polyop.ir.expr import Const, affine, evaluate
from polyop.ir.loops import Buffer, For, If, Kind, Prefetch, Space, Store, rebuild, walk
from polyop.ir.options import Options
from polyop.ir.target import HINTS, LINE, Hints
from tests.codegen.harness import V2, V3, V4, check
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, st, tensor
from tests.codegen.test_x86 import matmul

N = A("n_c", "n_v")


def prefetched(n, width=16):
    return prefetch_tiles(n, width)


def early(n, width=16):
    return [str(x.place) for x in walk(prefetched(n, width).body) if isinstance(x, Prefetch)]


def rows_added_up(upper, column, t=F32, columns=64):
    """`upper` rows of X added up, in lanes at the place `column` of each."""
    acc = ld("acc", "n_v", t=t)
    body = lanes("n_v", columns, None, loop("k", upper, st(acc, ld("X", "k", column, t=t), "add")))
    return nest([tensor("X", "K", "N", t=t), reg("acc", columns, t=t)], [loop("n_c", "N", body, step=columns)], sizes=("K", "N"))


def test_what_a_loop_streams_is_asked_for_some_steps_early():
    n = str(prefetched(split_full_tiles(matmul(6, 64), 16)))
    assert "prefetch B[k_c + k_p + 16, n_r + n_v]" in n and "prefetch C[m_p + m_r, n_r + n_v]" in n
    assert early(rows_added_up("K", N)) == ["X[k + 16, n_c + n_v]"]


@pytest.mark.parametrize(("t", "columns", "steps"), [(F32, 32, 32), (F32, 16, 64), (F32, 4, 64), (F64, 32, 16), (F64, 8, 64)])
def test_narrow_rows_come_as_many_bytes_early(t, columns, steps):
    assert early(rows_added_up("K", N, t, columns)) == [f"X[k + {steps}, n_c + n_v]"]


def test_rows_that_are_only_added_up_are_asked_for_from_a_size_on_where_the_processor_wants_that():
    hints = Hints(added=40 << 20)
    found, short = (prefetch_tiles(rows_added_up(steps, N), 16, hints, strip=True) for steps in ("K", least(8, "K")))
    tiled = prefetch_tiles(split_full_tiles(matmul(6, 64), 16), 16, hints, strip=True)
    long = prefetch_tiles(rows_added_up("K", N), 16, hints)
    sizes = [{x.least for x in walk(n.body) if isinstance(x, Prefetch)} for n in (found, short, tiled, long)]
    assert sizes == [{40 << 20}, {0}, {0}, {0}]


def test_hints_of_a_size_stand_behind_a_branch():
    acc = ld("acc", "n_v")
    body = st(acc, Const(0.0, F32)), loop("k", "K", st(acc, ld("X", "k", N), "add")), st(ld("Y", N), acc)
    n = nest([tensor("X", "K", "N"), tensor("Y", "N"), reg("acc", 64)],
             [loop("n_c", "N", lanes("n_v", 64, None, *body), step=64)], sizes=("K", "N"))
    always, some = (emit(prefetch_tiles(n, 16, Hints(added=x), strip=True), V4, Options()).text for x in (0, 40 << 20))
    claim = re.compile(rf"(%\w+) = icmp sge i64 %\w+, {10 << 20}\n")  # in elements of 4 bytes
    assert not claim.search(always) and f"br i1 {claim.search(some)[1]}," in some
    hints = [x.count("call void @llvm.prefetch") for x in (always, some)]
    assert hints[0] == hints[1] > 0


@pytest.mark.parametrize(("target", "vectors"), [(V4, 4), (V3, 8), (V2, 16)])
def test_tiles_of_rows_ask_for_each_line_once_and_sums_of_rows_with_each_vector(target, vectors):
    def hints(*terms):
        acc, x = ld("acc", "p", "n_v"), ld("X", "k", N)
        step = st(acc, ap("mul", x, *terms) if terms else x, "add")
        summed = rows("p", 2, None, step) if terms else replace(step, target=ld("acc", 0, "n_v"))
        before, behind = (rows("p", 2, None, x) for x in (st(acc, Const(0.0, F32)), st(ld("Y", "p", N), acc)))
        body = before, loop("k", "K", summed), behind
        buffers = [tensor("X", "K", "N"), tensor("A", 2, "K"), tensor("Y", 2, "N"), reg("acc", 2, 64)]
        found = prefetched(nest(buffers, [loop("n_c", "N", lanes("n_v", 64, None, *body), step=64)], sizes=("K", "N")))
        streams = [x for x in walk(found.body) if isinstance(x, Prefetch) and x.place.source == "X"]
        assert len(streams) == 1
        return emit(found, target, Options()).text.count("call void @llvm.prefetch") - 8 * 64 // target.vector_bytes

    assert hints(ld("A", "p", "k")) == 4 and hints() == vectors


@pytest.mark.parametrize(("t", "place"), [(F32, "X[k, n_c + n_v + 128]"), (F64, "X[k, n_c + n_v + 64]")])
def test_behind_a_loop_of_few_steps_come_the_next_places_of_its_rows(t, place):
    assert early(rows_added_up(least(8, "K"), N, t)) == [place]


@pytest.mark.parametrize(("steps", "turns", "place"), [
    (least(8, "K"), 0, "X[k, n_c + n_v + 128]"), (least(8, "K"), 2, "X[k + 16, n_c + n_v]  (cache 2)"),
    (least(4, "K"), 2, "X[k + 8, n_c + n_v]  (cache 2)"), ("K", 2, "X[k + 16, n_c + n_v]")])
def test_rows_of_which_a_few_are_read_side_by_side_come_some_turns_early_where_the_processor_wants_that(steps, turns, place):
    hints = Hints(cache=2, turns=turns)
    found = [x for x in walk(prefetch_tiles(rows_added_up(steps, N), 16, hints).body) if isinstance(x, Prefetch)]
    assert [f"{x.place}" + (f"  (cache {x.cache})" if x.cache > 1 else "") for x in found] == [place]


@pytest.mark.parametrize(("before", "behind", "steps", "again", "place"), [
    ("X", "X", least(8, "K"), 2, "X[k + 8*t + 8, n_c + n_v]  (cache 2)"),
    ("X", "X", least(8, "K"), 0, "X[k + 8*t, n_c + n_v + 128]"),
    ("X", "X", least(16, "K"), 2, "X[k + 8*t + 8, n_c + n_v]  (cache 2)"),
    ("X", "X", least(17, "K"), 2, "X[k + 8*t + 16, n_c + n_v]"),
    ("X", "X", "K", 2, "X[k + 8*t + 16, n_c + n_v]"),
    ("W", "X", least(8, "K"), 2, "X[k + 8*t, n_c + n_v + 128]"),
    ("W", "W", least(8, "K"), 2, "W[k, n_c + n_v + 128]")])
def test_while_a_few_rows_are_read_again_those_of_the_next_turn_come(before, behind, steps, again, place):
    """Of the same tensor alone, and where each turn has its own."""
    def row(of, at):
        return ld(of, *((A("k", (8, "t")) if of == "X" else A("k")), at))

    first = loop("k", steps, lanes("n_v", 64, None, st(ld("sums", "n_v"), row(before, "n_v"), "add")))
    tile = lanes("n_v", 64, None, loop("k", steps, st(ld("acc", "n_v"), row(behind, N), "add")))
    n = nest([tensor("X", "K", "N"), tensor("W", "K", "N"), reg("sums", 64), reg("acc", 64)],
             [loop("t", "T", first, loop("n_c", "N", tile, step=64))], sizes=("K", "N", "T"))
    found = [x for x in walk(prefetch_tiles(n, 16, Hints(again=again, kept=16)).body) if isinstance(x, Prefetch)]
    assert [f"{x.place}" + (f"  (cache {x.cache})" if x.cache > 1 else "") for x in found] == [place]


def test_tiles_that_are_known_to_be_brief_ask_for_nothing():
    def product(columns, steps):
        acc = ld("acc", "n_v")
        added = loop("k", steps, st(acc, ld("X", "b", "k", "n_v"), "add"))
        body = lanes("n_v", columns, None, added, st(ld("Y", "b", "n_v"), acc))
        buffers = [tensor("X", "B", "K", "N"), tensor("Y", "B", "N"), reg("acc", columns)]
        return nest(buffers, [loop("b", "B", body)], sizes=("B", "K", "N"))

    assert early(product(16, 16)) == [] and early(product(16, 17)) == early(product(16, "K")) == ["X[b, k + 64, n_v]"]


def test_where_rows_end_with_the_lanes_the_next_rows_come():
    assert early(rows_added_up(least(8, "K"), A("n_v"))) == ["X[k + 16, n_v]"]


def test_lines_that_stores_write_past_the_caches_are_not_fetched_before():
    def hints(stream):
        def one(n):
            n = replace(n, stream=stream and n.target.source == "C") if isinstance(n, Store) else n
            return rebuild(n, lambda body: tuple(map(one, body)))

        plain = split_full_tiles(matmul(6, 64), 16)
        tiles = [x for x in walk(prefetched(replace(plain, body=tuple(map(one, plain.body)))).body)
                 if isinstance(x, For) and x.kind == Kind.LANES]
        return {x.is_full: any(isinstance(y, Prefetch) and y.place.source == "C" for y in walk(x.body)) for x in tiles}

    assert hints(False) == {True: True, False: True}
    assert hints(True) == {True: False, False: True}  # of vectors that are not whole no store bypasses anything


def product(columns, steps, stride="k", copies=False):
    """Products of six rows of X, whose steps are `stride`, and of B; with a copy of B where it says so."""
    acc, left = ld("acc", "p", "v"), ld("X", A("m", "p"), stride)
    copy = [st(ld("Y", "k", "v"), ld("B", "k", "v"))] if copies else []
    added = rows("p", 6, None, st(acc, ap("mul", left, ld("B", "k", "v")), "add"))
    tile = lanes("v", columns, None, loop("k", steps, *copy, added))
    buffers = [tensor("X", "M", "K"), tensor("B", "K", 64), tensor("Y", "K", 64), reg("acc", 6, columns)]
    return nest(buffers, [loop("m", "M", tile, step=6)], sizes=("M", "K"))


@pytest.mark.parametrize(("columns", "width", "few"),
                         [(16, 16, True), (32, 16, True), (48, 16, False), (16, 8, True), (24, 8, False)])
def test_rows_that_few_columns_share_come_two_tiles_early_a_line_at_a_time(columns, width, few):
    n = prefetched(product(columns, "K"), width)
    hinted = "X[m + p + 12, k]" in early(product(columns, "K"), width)
    assert hinted is few
    assert ("if -K + 512 >= 0" in str(n)) is hinted and ("if -((k) mod 16) >= 0" in str(n)) is hinted


@pytest.mark.parametrize(("arch", "cache"), [("sapphirerapids", 1), ("znver4", 2)])
def test_such_rows_come_to_the_cache_that_the_processor_wants(arch, cache):
    hints = HINTS.get(arch, Hints())
    found = [x for x in walk(rewrites(product(16, "K"), 16, hints).body) if isinstance(x, Prefetch) and x.place.source == "X"]
    assert [x.cache for x in found] == [cache]


@pytest.mark.parametrize(("n", "hinted"), [
    (product(16, 512), True), (product(16, 513), False), (product(16, "K", stride=A((2, "k"))), False),
    (product(16, "K", copies=True), False)])
def test_long_rows_rows_with_gaps_and_loops_that_copy_ask_for_no_rows(n, hinted):
    """Hardware sees long rows coming, and a loop that copies is one of many."""
    assert ("X[m + p + 12, k]" in early(n)) is hinted


def blocks_of(most, t=F32):
    """Products of twelve rows of X with sixteen columns, at most `most` steps of them in a turn."""
    acc = ld("acc", "p", "v", t=t)
    added = rows("p", 12, None,
                 st(acc, ap("mul", ld("X", A("m", "p"), A("c", "k"), t=t), ld("B", A("c", "k"), "v", t=t), t=t), "add"))
    tile = lanes("v", 16, None, loop("k", least(most, A("K", (-1, "c"))), added))
    buffers = [tensor("X", "M", "K", t=t), tensor("B", "K", 16, t=t), reg("acc", 12, 16, t=t)]
    return nest(buffers, [loop("c", "K", loop("m", "M", tile, step=12), step=most)], sizes=("M", "K"))


@pytest.mark.parametrize(("most", "t", "places"), [
    (512, F32, ["X[floor((k)/32) + m + 12, 16*((k) mod 32) + c]"]),
    (128, F32, ["X[floor((k)/8) + m + 12, 16*((k) mod 8) + c]"]),
    (512, F64, ["X[floor((k)/64) + m + 12, 8*((k) mod 64) + c]", "X[floor((k)/64) + m + 20, 8*((k) mod 64) + c]"]),
    (513, F32, None)])
def test_of_long_rows_in_blocks_all_lines_of_the_next_tile_come_one_row_after_the_other(most, t, places):
    n = prefetched(blocks_of(most, t))
    came = [x for x in walk(n.body) if isinstance(x, Prefetch) and "floor" in str(x.place)]
    assert [str(x.place) for x in came] == (places or []) and {x.cache for x in came} <= {2}
    tests = [f"{x}" for b in walk(n.body) if isinstance(b, If) and any(y in came for y in walk(b.then)) for x in b.tests]
    assert tests == ([f"K - c - {most}", "M - m - 24"] if places else [])
    asked = {tuple(evaluate(p, {"k": k, "c": 0, "m": 0}) for p in x.place.index) for x in came for k in range(most)}
    assert not places or asked >= {(r, c) for r in range(12, 24) for c in range(0, most, LINE // t.bytes_)}


def test_short_rows_come_side_by_side_in_blocks_of_more_steps_too():
    n = prefetched(blocks_of(1024))
    (asked,) = (x for x in walk(n.body) if isinstance(x, If) and "-K + c + 512" in [str(t) for t in x.tests])
    assert "X[m + p + 24, c + k]" in [str(x.place) for x in walk(asked.then) if isinstance(x, Prefetch)]
    assert not [x for x in walk(asked.other) if isinstance(x, Prefetch) and x.place.source == "X"]


@pytest.mark.parametrize(("at", "hinted"), [
    ((A("m", "p", "s"), "k"), False), ((A("m", "p"), "k"), True), (("s", A("m", "p"), "k"), True)])
def test_rows_that_a_window_moves_along_are_not_asked_for(at, hinted):
    """Its other steps read them again."""
    added = rows("p", 6, None, st(ld("acc", "p", "v"), ap("mul", ld("X", *at), ld("B", "s", "k", "v")), "add"))
    tile = lanes("v", 16, None, loop("s", 3, loop("k", "K", added)))
    x = tensor("X", *(("S", "M", "K") if len(at) == 3 else ("M", "K")))
    n = nest([x, tensor("B", 3, "K", 16), reg("acc", 6, 16)], [loop("m", "M", tile, step=6)], sizes=("M", "K", "S"))
    assert ("mod 16" in str(prefetched(n))) is hinted


@pytest.mark.parametrize("sizes", [(13, 0, 17), (31, 257, 17), (24, 256, 16), (23, 256, 16), (12, 1, 1),
                                   (7, 15, 16), (6, 16, 15), (25, 17, 32), (1, 513, 33)])
def test_hints_change_no_result(sizes):
    n = prefetched(unswitch(split_full_tiles(matmul(6, 32), 16)))
    assert "prefetch A[m_p + m_r + 12, k_c + k_p]" in str(n)
    check(n, dict(zip("MKN", sizes, strict=True)))


@pytest.mark.parametrize(("steps", "place"), [(FEW_STEPS, "X[k, n_c + n_v + 96]"), (FEW_STEPS + 1, "X[k + 16, n_c + n_v]"),
                                              ("K", "X[k + 16, n_c + n_v]")])
def test_a_copy_of_few_known_steps_asks_for_the_same_rows_of_the_next_tile(steps, place):
    acc, copy, x = ld("acc", "n_v"), ld("W", "k", "n_v"), ld("X", "k", N)
    body = lanes("n_v", 64, None, loop("k", steps, st(copy, x), st(acc, copy, "add")))
    work = Buffer("W", F32, ((affine("K"), 1), (affine(64), 1)), Space.WORK)
    n = nest([tensor("X", "K", "N"), work, reg("acc", 64)], [loop("n_c", "N", body, step=64)], sizes=("K", "N"))
    assert early(n) == [place]


def squares(steps, at, lane=None):
    """Squares of X, whose unit stride is at the place `at`, copied into W with lanes along n; `lane`: those of the last."""
    copy = st(ld("W", A("k", "s"), "v"), ld("X", A("n", "v"), at))
    square = rows("s", 16, None, lanes("v", 16, lane, copy))
    work = Buffer("W", F32, ((affine(steps), 1), (affine(16), 1)), Space.WORK)
    return nest([tensor("X", "N", "K"), work], [loop("n", "N", loop("k", steps, square, step=16), step=16)], sizes=("K", "N"))


@pytest.mark.parametrize(("n", "places"), [
    (squares(96, A("k", "s")), ["X[n + v, k + 96]"]), (squares(FEW_STEPS, A("k", "s")), [f"X[n + v, k + {FEW_STEPS}]"]),
    (squares(FEW_STEPS + 16, A("k", "s")), []), (squares("K", A("k", "s")), []), (squares(96, A("k", (2, "s"))), []),
    (squares(96, A("k", "s"), least(16, "N", (-1, "n"))), [])])
def test_squares_of_few_known_steps_ask_for_the_same_ones_of_the_next_block(n, places):
    """Each row of a square once, where a whole one stands upright in memory."""
    assert early(n) == places

