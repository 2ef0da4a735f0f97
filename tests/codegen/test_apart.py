"""Tiles whose rows lie apart in memory are written once for edges with all rows and with some."""

import islpy as isl
import pytest

from polyop.codegen.cpu.apart import rows_lie_apart
from polyop.codegen.cpu.passes import split_full_tiles
from polyop.ir.loops import For, LoopNest, walk
from polyop.poly.verify.rewrites import difference
from tests.codegen.harness import RUNNABLE, check, compiled
from tests.codegen.nests import A, lanes, ld, least, loop, nest, reg, rows, st, tensor, work

ROWS, LANES = 3, 32
ROW, LANE = A("m_c", "m_p"), A("n_c", "n_v")


def all_rows(*body):
    return rows("m_p", ROWS, least(ROWS, A("M", (-1, "m_c"))), *body)


def product(left, buffers, images: bool = False) -> LoopNest:
    """C[m, n] += left * B[k, n] in tiles of 3 x 32; or C[b, m, n] of two `images`."""
    acc, result = ld("acc", "m_p", "n_v"), ld("C", "b", ROW, LANE) if images else ld("C", ROW, LANE)
    tile = lanes("n_v", LANES, least(LANES, A("N", (-1, "n_c"))), all_rows(st(acc, result)),
                 loop("k", "K", all_rows(st(acc, left, "add")), all_rows(st(acc, ld("B", "k", LANE), "add"))),
                 all_rows(st(result, acc)))
    loops = loop("m_c", "M", loop("n_c", "N", tile, step=LANES), step=ROWS)
    return nest([*buffers, tensor("B", "K", "N"), tensor("C", *((2,) if images else ()), "M", "N"), reg("acc", ROWS, LANES)],
                [loop("b", 2, loops) if images else loops], sizes=("M", "N", "K"))


APART = product(ld("A", ROW, "k"), [tensor("A", "M", "K")])
IMAGES = product(ld("A", "b", ROW, "k"), [tensor("A", 2, "M", "K")], images=True)
SIDE_BY_SIDE = product(ld("A", "k", ROW), [tensor("A", "K", "M")])
PACKED = product(ld("A", "k", ROW), [work("A", "K", "M", pad=ROWS)])
NEAR = product(ld("A", "k", ROW, 0), [work("A", "K", "M", 16)])  # a copy of an image: its rows of 16 pixels


def window(size) -> LoopNest:
    """C[m, n] += A[m + r, n] * F[r], r in 0 .. `size`, in tiles of 3 x 32: rows of the tile share those of A."""
    acc, shared = ld("acc", "m_p", "n_v"), ld("A", A("m_c", "m_p", "r"), LANE)
    tile = lanes("n_v", LANES, least(LANES, A("N", (-1, "n_c"))), all_rows(st(acc, ld("C", ROW, LANE))),
                 loop("r", size, all_rows(st(acc, shared, "add"))), all_rows(st(ld("C", ROW, LANE), acc)))
    return nest([tensor("A", A("M", "R"), "N"), tensor("C", "M", "N"), reg("acc", ROWS, LANES)],
                [loop("m_c", "M", loop("n_c", "N", tile, step=LANES), step=ROWS)], sizes=("M", "N", "R"))


def tile_of(n: LoopNest) -> For:
    return next(x for x in walk(n.body) if isinstance(x, For) and x.index == "n_v")


@pytest.mark.parametrize(("n", "apart"), [(APART, True), (SIDE_BY_SIDE, False), (PACKED, False), (NEAR, False),
                                          (window(3), False), (window("R"), True), (window(9), True)])
def test_rows_lie_apart_unless_their_distance_is_a_number_or_they_share_what_they_read(n, apart):
    assert rows_lie_apart(n, tile_of(n)) is apart


@pytest.mark.parametrize(("n", "copies"), [(APART, 3), (SIDE_BY_SIDE, 5), (IMAGES, 4)])
def test_edges_have_copies_for_missing_rows_only_where_these_cost_something(n, copies):
    """The full tile, and edges of one vector of 16 and of two: for all rows and for some, or for any; all lanes of images."""
    cut = split_full_tiles(n, 16)
    assert sum(isinstance(x, For) and x.index == "k" for x in walk(cut.body)) == copies
    assert difference(n, cut, isl.Set("[M, N, K] -> { : M >= 0 and N >= 0 and K >= 0 }")) is None


@pytest.mark.parametrize("n", [APART, IMAGES])
@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_edges_of_any_number_of_rows_compute_the_same(target, n):
    k = compiled(split_full_tiles(n, target.lanes(4)), target)
    for sizes in ((1, 1, 1), (2, 31, 3), (3, 32, 4), (4, 33, 2), (5, 65, 1), (7, 16, 5), (3, 64, 0), (0, 7, 2)):
        check(n, dict(zip("MNK", sizes, strict=True)), target, kernel=k)


def test_where_rows_are_missing_one_less_is_written():
    """Of tiles of three rows those of all lanes have two, if they are not full; where lanes are missing there may be three."""
    cut = split_full_tiles(IMAGES, 16)
    tiles = [x for x in walk(cut.body) if isinstance(x, For) and x.index == "n_v"]
    found = {(x.is_full, y.extent, y.is_full) for x in tiles for y in walk(x.body) if isinstance(y, For) and y.index == "m_p"}
    assert found == {(True, 3, True), (True, 2, False), (False, 3, False)}
