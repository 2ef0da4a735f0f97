"""Threads of one block: nests with staged tiles are proved, and each way to get one wrong is refused with a case."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.expr import Affine, Load, Quasi, affine, map_loads, place, quasi, substitute, substitute_expr
from polyop.ir.interpret import interpret
from polyop.ir.loops import Barrier, For, If, Kind, LoopNest, Node, Space, Store, rebuild, stores, walk
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import target
from polyop.poly.blocks.barriers import with_barriers
from polyop.poly.scop import extract
from polyop.poly.verify import first_failure, prove
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.threads import crossed
from polyop.runtime.layout import contiguous

TEXTS = {
    "f32": "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] }",
    "f16": "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) }",
    "causal": "op mm(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m,n] += A[m,k] * B[k,n] where k <= m }",
    "conv": "op mm(X: f32[B, C, W], F: f32[K, C, R]) -> (Y: f32[B, K, W - R + 1]) { Y[b,k,p] += X[b,c,p+r] * F[k,c,r] }",
    "window": "op mm(X: f16[B, W, C], F: f16[3, C, K]) -> (Y: f32[B, W - 2, K]) "
              "{ Y[b,p,k] += f32(X[b,p+r,c]) * f32(F[r,c,k]) }",
    "chain": "op mm(A: f32[M, K], B: f32[K, N], b: f32[N]) -> (C: f32[M, N]) { t[m,n] += A[m,k] * B[k,n]\n"
             "  C[m,n] = relu(t[m,n] + b[n]) }",
}
BETWEEN = "between threads of a block that meet there is a barrier"
VALUES = "each value read is the one that the operator says"
DIGITS = "each thread has its own digits and registers"
MEET = "threads of a block do not meet themselves in memory"


@cache
def made(name: str, where: str = "cuda:sm_80") -> tuple[Op, LoopNest]:
    operator = polyop.op(TEXTS[name])
    op = operator._op(operator.choice())
    compiled = compile_op(op, contiguous(op), target(where), Options(check=False))
    assert compiled.rung == "tuned" and "staged" in compiled.chosen[0]
    assert compiled.nest is not None
    return op, compiled.nest


def failure(op: Op, nest: LoopNest) -> str:
    """The first claim that does not hold."""
    scop = extract(op)
    positive = scop.context
    for s in op.sizes:
        positive = positive.intersect(type(positive)(f"[{', '.join(op.sizes)}] -> {{ : {s} >= 1 }}"))
    failed = first_failure(prove(scop, nest, positive))
    return failed.claim if failed else ""


def changed(nest: LoopNest, f: Callable[[Node], Node | None]) -> LoopNest:
    """`nest` with `f` of each node, children first; None leaves it out."""
    def one(n: Node) -> Node | None:
        return f(rebuild(n, body))

    def body(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
        return tuple(x for n in nodes if (x := one(n)) is not None)

    return replace(nest, body=body(nest.body))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100"])
def test_a_staged_contraction_is_proved_for_all_sizes(name: str, where: str) -> None:
    assert failure(*made(name, where)) == ""


@pytest.mark.parametrize(("name", "sizes"), [
    ("f32", (3, 5, 4)), ("f32", (66, 17, 5)), ("f16", (17, 33, 9)), ("chain", (5, 4, 70)),
])
@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a"])
def test_loops_over_threads_and_tiles_mean_sequential_loops(name: str, sizes: tuple[int, int, int], where: str) -> None:
    op, nest = made(name, where)
    given = dict(zip("MKN", sizes, strict=True))
    generator = np.random.default_rng(1)
    shapes = {"A": "MK", "B": "KN", "b": "N"}
    arrays = {t.name: generator.integers(-4, 5, [given[s] for s in shapes[t.name]]).astype(t.dtype.numpy) for t in op.inputs}
    want = arrays["A"].astype(np.float64) @ arrays["B"].astype(np.float64)
    want = np.maximum(want + arrays["b"], 0) if name == "chain" else want
    arrays["C"] = np.full(want.shape, np.nan, np.float32)
    interpret(nest, given, {}, arrays)
    np.testing.assert_array_equal(arrays["C"], want)


STAGED = pytest.mark.parametrize(("name", "where"), [("f32", "cuda:sm_80"), ("f16", "cuda:sm_80"), ("f16", "cuda:sm_90a"),
                                                     ("window", "cuda:sm_80"), ("window", "cuda:sm_90a")])


def barriers(nest: LoopNest) -> list[Barrier]:
    return [n for n in walk(nest.body) if isinstance(n, Barrier)]


@STAGED
def test_no_barrier_can_be_left_out(name: str, where: str) -> None:
    op, nest = made(name, where)
    early, turn = barriers(nest)
    assert "are a group" in early.reason and "other threads" in turn.reason
    for gone in (early, turn):
        assert failure(op, changed(nest, lambda n, gone=gone: None if n is gone else n)) == BETWEEN


@STAGED
def test_a_barrier_leaves_the_copies_of_the_turns_between_on_their_way_and_no_more(name: str, where: str) -> None:
    op, nest = made(name, where)
    most = 1 if where == "cuda:sm_90a" else 2  # there the tile before is still read
    assert [b.pending for b in barriers(nest)] == [most, most]

    def leaving(groups: int) -> LoopNest:
        return changed(nest, lambda n: replace(n, pending=groups) if isinstance(n, Barrier) else n)
    assert [failure(op, leaving(p)) for p in range(most + 2)] == [*[""] * (most + 1), BETWEEN]


@pytest.mark.parametrize(("name", "turn", "step"), [("f16", "k", 64), ("window", "r", 1)])
def test_a_tile_that_a_unit_still_reads_is_not_copied_anew(name: str, turn: str, step: int) -> None:
    op, nest = made(name, "cuda:sm_90a")
    turn, first = (f"{turn}_c", f"{turn}_f") if name == "f16" else (turn, "c_f")
    assert any(s.outlasts for s in stores(nest.body))

    def later(n: Node) -> Node:
        """The copies of a turn go one slot further than they may, to the tile of the turn before."""
        if isinstance(n, For) and n.index == first:
            return replace(n, upper=n.upper + step)
        if isinstance(n, Barrier):
            return replace(n, pending=2)
        if not isinstance(n, If) or not any("_next" in s.stmt for s in stores((n,))):
            return n

        def ahead(x: Node) -> Node:
            if not isinstance(x, Store):
                return rebuild(x, lambda b: tuple(map(ahead, b)))
            at = {turn: affine(turn) + step}
            return replace(x, target=place(x.target, at), expr=substitute_expr(x.expr, at))
        return If(tuple(substitute(t, {turn: affine(turn) + step}) for t in n.tests), tuple(map(ahead, n.then)))
    wrong = changed(nest, later)
    assert failure(op, wrong) == BETWEEN
    assert failure(op, changed(wrong, lambda n: replace(n, outlasts=False) if isinstance(n, Store) else n)) == ""


def test_where_nothing_is_copied_while_threads_go_on_there_is_one_slot_and_nothing_to_leave() -> None:
    _, nest = made("f16", "hip:gfx942")
    assert {b.pending for b in barriers(nest)} == {0}
    assert [b.dims[0][0].const for b in nest.buffers if b.space == Space.SHARED] == [1, 1]


def test_turns_that_the_sum_does_not_have_still_close_their_groups() -> None:
    """Else a barrier that leaves two groups would not wait for the only tile of a short sum."""
    op, nest = made("f32")

    def fewer(n: Node) -> Node:
        return replace(n, upper=quasi("min", n.upper, affine("K"))) if isinstance(n, For) and n.index == "k_f" else n
    assert failure(op, changed(nest, fewer)) == BETWEEN


def test_a_tile_that_is_copied_a_turn_too_late_has_not_arrived() -> None:
    op, nest = made("f32")
    (loop,) = [n for n in walk(nest.body) if isinstance(n, For) and n.index == "k_f"]
    short = changed(nest, lambda n: replace(n, upper=n.upper - 16) if n == loop else n)
    assert failure(op, short) == "nothing is read before it is written"


def test_a_barrier_behind_the_product_is_too_late_for_the_first_tile() -> None:
    op, nest = made("f32")

    def behind(n: Node) -> Node:
        if isinstance(n, For) and n.index == "k_c":
            return replace(n, body=(*n.body[1:], n.body[0]))
        return n
    assert failure(op, changed(nest, behind)) == BETWEEN


def test_a_barrier_under_a_test_that_may_fail_is_none() -> None:
    op, nest = made("f32")

    def tested(n: Node) -> Node:
        if isinstance(n, For) and isinstance(n.body[0], Barrier):
            return replace(n, body=(If((affine("M") - 7,), (n.body[0],)), *n.body[1:]))
        return n
    assert failure(op, changed(nest, tested)) == BETWEEN


def test_with_one_slot_less_the_next_tile_overwrites_this_one() -> None:
    op, nest = made("f32")

    def slot(x: Load) -> Load:
        turn = x.index[0]
        assert isinstance(turn, Affine) and isinstance(turn.terms[0][0], Quasi)
        return replace(x, index=(quasi("mod", turn.terms[0][0].args[0], affine(3)), *x.index[1:]))

    def less(n: Node) -> Node:
        if not isinstance(n, Store):
            return n
        expr = map_loads(n.expr, lambda x: slot(x) if "tile" in x.source else x)
        return replace(n, target=slot(n.target) if "tile" in n.target.source else n.target, expr=expr)
    assert failure(op, nest) == ""
    assert failure(op, changed(nest, less)) in (VALUES, "nothing is read before it is written")


def test_a_product_that_reads_the_tile_of_the_next_turn_is_wrong() -> None:
    op, nest = made("f16")

    def other(n: Node) -> Node:
        if isinstance(n, Store) and n.stmt.endswith("_left") and isinstance(n.expr, Load):
            turn = quasi("mod", quasi("div", affine("k_c"), affine(32)) + 1, affine(4))
            return replace(n, expr=replace(n.expr, index=(turn, *n.expr.index[1:])))
        return n
    assert failure(op, changed(nest, other)) in (VALUES, "nothing is read before it is written")


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a", "hip:gfx942"])
def test_what_a_matrix_unit_adds_beyond_the_sum_must_be_zero(where: str) -> None:
    op, nest = made("f16", where)
    copies = ("S0_fetch0", "S0_ahead0") if where.startswith("hip") else ("S0_first0", "S0_next0")

    def repeated(n: Node) -> Node:
        """Beyond the last column of A its last one is copied again: it stays inside the tensor, and is not 0."""
        if isinstance(n, Store) and n.stmt in copies and isinstance(n.expr, Load):
            row, column = n.expr.index
            assert isinstance(row, Affine) and isinstance(column, Affine)
            inside = tuple(g for g in n.expr.guard if "K" not in str(g))
            return replace(n, expr=replace(n.expr, index=(row, quasi("min", column, affine("K") - 1)), guard=inside))
        return n
    assert failure(op, nest) == ""
    assert failure(op, changed(nest, repeated)) == VALUES


def test_a_unit_that_reads_the_tile_of_the_next_turn_itself_is_wrong() -> None:
    op, nest = made("f16", "cuda:sm_90a")
    assert not any(s.stmt.endswith("_left") for s in stores(nest.body))

    def other(n: Node) -> Node:
        if isinstance(n, Store) and n.stmt == "S0":
            turn = quasi("mod", quasi("div", affine("k_c"), affine(64)) + 1, affine(4))
            ahead = map_loads(n.expr, lambda x: replace(x, index=(turn, *x.index[1:])) if x.source == "A_S0_tile0" else x)
            return replace(n, expr=ahead)
        return n
    assert failure(op, changed(nest, other)) in (VALUES, BETWEEN, "nothing is read before it is written")


def test_a_register_of_another_thread_cannot_be_read() -> None:
    op, nest = made("f32")

    def strayed(n: Node) -> Node:
        if isinstance(n, Store) and n.stmt == "S0_finish" and isinstance(n.expr, Load):
            first = n.expr.index[0]
            assert isinstance(first, Affine)
            return replace(n, expr=replace(n.expr, index=(first + 0 if first.const else quasi("mod", first, affine(4)),
                                                          *n.expr.index[1:])))
        return n
    assert failure(op, changed(nest, strayed)) != ""


def test_loops_over_threads_cannot_share_a_digit() -> None:
    op, nest = made("f32")
    same = changed(nest, lambda n: replace(n, weight=1) if isinstance(n, For) and n.kind == Kind.THREADS else n)
    assert failure(op, same) == DIGITS


def test_results_cannot_be_finished_by_other_threads_than_they_were_added_up_by() -> None:
    op, nest = made("f32")
    assert any(s.stmt == "S0_finish" for s in stores(nest.body))

    def swapped(n: Node) -> Node:
        """The digits of rows and columns are exchanged, in the last nest alone."""
        if isinstance(n, For) and n.kind == Kind.THREADS and n.index in ("m_t", "n_t") and any(
                s.stmt == "S0_finish" for s in stores((n,))):
            return replace(n, weight=17 - n.weight)
        return n
    assert failure(op, changed(nest, swapped)) == DIGITS


def test_two_threads_cannot_copy_to_one_place() -> None:
    op, nest = made("f32")

    def folded(n: Node) -> Node:
        if isinstance(n, Store) and n.stmt == "S0_first1":
            return replace(n, target=replace(n.target, index=(*n.target.index[:-1], quasi("div", n.target.index[-1], affine(2)))))
        return n
    assert failure(op, changed(nest, folded)) in (MEET, VALUES, "nothing is read before it is written")


def test_a_copy_that_may_arrive_later_is_not_read_in_the_same_nest_of_threads() -> None:
    op, nest = made("f32")
    kinds = {b.name: b.space for b in nest.buffers}

    def at_once(n: Node) -> Node:
        """Each thread reads back what it has just begun to copy."""
        if isinstance(n, For) and len(n.body) == 1 and isinstance(n.body[0], Store) and n.body[0].stmt == "S0_first0":
            s = n.body[0]
            again = replace(s, stmt="again", target=s.target, expr=s.target, later=False)
            return replace(n, body=(s, again))
        return n
    assert kinds["A_S0_tile0"] == Space.SHARED
    assert failure(op, changed(nest, at_once)) in (DIGITS, MEET)


@pytest.mark.parametrize(("name", "where", "handed"), [("f16", "cuda:sm_90a", True), ("conv", "cuda:sm_80", True),
                                                       ("f32", "hip:gfx942", False)])
def test_barriers_are_handed_ones_where_only_copies_need_any(name: str, where: str, handed: bool) -> None:
    _, nest = made(name, where)
    assert {b.handed for b in barriers(nest)} == {handed}


@pytest.mark.parametrize("where", ["cuda:sm_80", "cuda:sm_90a"])
@pytest.mark.parametrize("sizes", ["L, B, H", "L, 16, 64"])  # a launch of blocks for each turn; one block for all
def test_copies_of_what_a_kernel_writes_itself_have_barriers_for_all_threads(sizes: str, where: str) -> None:
    columns = sizes.rpartition(" ")[2]
    operator = polyop.op(f"op r(X: f16[{sizes}], U: f16[{columns}, {columns}]) -> (Y: f16[{sizes}]) {{\n"
                         "  z[t, b, j] += f32((Y[t-1, b, k] else 0)) * f32(U[j, k])\n"
                         "  Y[t, b, j] = f16(tanh(z[t, b, j] + f32(X[t, b, j]))) }")
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target(where), Options())
    assert c.rung == "tuned" and c.nest is not None, c.notes
    assert {b.handed for b in barriers(c.nest)} == {False}


@pytest.mark.parametrize("sizes", ["L, B, H", "L, 16, 64"])
def test_lanes_of_a_unit_read_what_an_earlier_turn_wrote_and_not_what_this_one_does(sizes: str) -> None:
    columns = sizes.rpartition(" ")[2]
    operator = polyop.op(f"op r(X: f16[{sizes}], U: f16[{columns}, {columns}]) -> (Y: f16[{sizes}]) {{\n"
                         "  z[t, b, j] += f32((Y[t-1, b, k] else 0)) * f32(U[j, k])\n"
                         "  Y[t, b, j] = f16(tanh(z[t, b, j]) + f32((Y[t-1, b, j] else 0))) }")
    op = operator._op(operator.choice())
    c = compile_op(op, contiguous(op), target("cuda:sm_80"), Options())
    assert c.rung == "tuned" and c.nest is not None, c.notes
    (last,) = (s for s in stores(c.nest.body) if s.target.source == "Y")

    def this_turn(x: Load) -> Load:
        return replace(x, index=(last.target.index[0], *x.index[1:-1], x.index[-1] + 8)) if x.source == "Y" else x

    wrong = changed(c.nest, lambda n: replace(n, expr=map_loads(n.expr, this_turn)) if n is last else n)
    scop = extract(op)
    assert crossed(Accesses(scop, c.nest, scop.context)) is None
    assert "is written and used again" in (crossed(Accesses(scop, wrong, scop.context)) or "")


def test_handed_barriers_do_not_order_what_threads_themselves_write() -> None:
    op, nest = made("f32", "hip:gfx942")
    assert failure(op, changed(nest, lambda n: replace(n, handed=True) if isinstance(n, Barrier) else n)) == BETWEEN


def test_persistent_blocks_have_a_barrier_between_the_tiles_of_one_and_those_of_the_next() -> None:
    operator = polyop.op(TEXTS["f16"])
    op = operator._op(operator.choice())
    nest = compile_op(op, contiguous(op), target("cuda:sm_90a"), Options(tile=(64, 64))).nest
    assert nest is not None and any(isinstance(n, For) and n.persistent for n in walk(nest.body))

    def without(persistent: bool) -> LoopNest:
        """The barrier before the tile of the first turn, which orders blocks alone."""
        def one(n: Node) -> Node:
            if not isinstance(n, For) or n.kind != Kind.PARALLEL:
                return n
            return replace(n, body=tuple(x for x in n.body if not isinstance(x, Barrier)), persistent=n.persistent and persistent)
        return changed(nest, one)

    assert failure(op, without(persistent=False)) == ""
    assert failure(op, without(persistent=True)) == BETWEEN


def test_barriers_are_derived_again_from_a_nest_without_them() -> None:
    _, nest = made("f16")
    assert with_barriers(changed(nest, lambda n: None if isinstance(n, Barrier) else n)) == nest


def test_a_condition_on_terms_of_a_sum_leaves_the_matrix_unit_the_atoms_that_it_does_not_cut() -> None:
    text = "op mm(A: f16[M, K], B: f16[K, N]) -> (C: f32[M, N]) { C[m,n] += f32(A[m,k]) * f32(B[k,n]) where %s }"
    for condition, cut in (("k <= m", 1), ("n <= m", 0)):
        operator = polyop.op(text % condition)
        op = operator._op(operator.choice())
        compiled = compile_op(op, contiguous(op), target("cuda:sm_80"))
        assert compiled.rung == "tuned" and compiled.module is not None
        assert "pop_mma" in compiled.module.text and str(compiled.nest).count("k_s in [") == cut


@pytest.mark.parametrize("tile", [(32, 32), (64, 128), (128, 32)])
@pytest.mark.parametrize("name", ["f32", "f16"])
def test_smaller_tiles_are_proved_too(name: str, tile: tuple[int, int]) -> None:
    operator = polyop.op(TEXTS[name])
    op = operator._op(operator.choice())
    for where in ("cuda:sm_80", "hip:gfx942"):
        compiled = compile_op(op, contiguous(op), target(where), Options(tile=tile))
        assert compiled.rung == "tuned" and all(p.holds for p in compiled.proofs)
        assert f"rows m x {tile[0]}, columns n x {tile[1]}" in compiled.chosen[0]


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_result_that_is_updated_in_place_is_replaced_lane_by_lane(dtype: str) -> None:
    text = (f"op gemm(inout C: {dtype}[M, N], A: {dtype}[M, K], B: {dtype}[K, N]) "
            "{ t[m,n] += A[m,k] * B[k,n]\n  C[m,n] = 2 * t[m,n] + C[m,n] }")
    operator = polyop.op(text)
    op = operator._op(operator.choice())
    compiled = compile_op(op, contiguous(op), target("hip:gfx942"))
    assert compiled.rung == "tuned" and compiled.module is not None and "pop_mfma" in compiled.module.text
