import pytest

from polyop.codegen.x86 import emit
from polyop.ir.dtypes import F32
from polyop.ir.expr import Const
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, check, compiled
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, st, strip, tensor, when, work

SIZES = (0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 130)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_an_elementwise_nest_writes_every_element_for_every_size(target):
    n = nest(
        [tensor("x", "N"), tensor("y", "N")],
        [strip("i", 64, "N", st(ld("y", A("i_c", "i_v")), ap("mul", ld("x", A("i_c", "i_v")), Const(2.0, F32))))],
    )
    k = compiled(n, target)
    for size in SIZES:
        check(n, {"N": size}, kernel=k)


def matmul(mr, nr, vector_pad=True):
    """The nest that the tile program gives for C = relu(A B), with B packed into panels while the first rows run."""
    m, n_ = A("m_r", "m_p"), A("n_r", "n_v")
    k = A("k_c", "k_p")
    acc = ld("acc", "m_p", "n_v")
    tile_m = least(mr, A("M", (-1, "m_r")))
    tile_n = least(nr, A("N", (-1, "n_r")))
    depth = least(128, A("K", (-1, "k_c")))
    panel = ld("right", "n_r", "k_p", "n_v")
    out = ld("C", m, n_)
    body = loop(
        "k_c",
        "K",
        loop(
            "m_r",
            "M",
            loop(
                "n_r",
                "N",
                lanes(
                    "n_v",
                    nr,
                    tile_n,
                    when(
                        [A("k_c", -128)],
                        [rows("m_p", mr, tile_m, st(acc, out))],
                        [rows("m_p", mr, tile_m, st(acc, Const(0.0, F32)))],
                    ),
                    loop(
                        "k_p",
                        depth,
                        when([A((-1, "m_r"))], [st(panel, ld("B", k, n_))]),
                        rows("m_p", mr, tile_m, st(acc, ap("mul", ld("A", m, k), panel), "add")),
                    ),
                    when(
                        [A("K", (-1, "k_c"), -129)],
                        [rows("m_p", mr, tile_m, st(out, acc))],
                        [rows("m_p", mr, tile_m, st(out, ap("relu", acc)))],
                    ),
                ),
                step=nr,
            ),
            step=mr,
        ),
        step=128,
    )
    return nest(
        [
            tensor("A", "M", "K"),
            tensor("B", "K", "N"),
            tensor("C", "M", "N"),
            work("right", (A("N"), nr), 128, nr),
            reg("acc", mr, nr),
        ],
        [body],
        sizes=("M", "N", "K"),
    )


@pytest.mark.parametrize(
    "target,mr,nr",
    [(t, 6 if t is V4 else 3, 4 * t.lanes(4) if t is V4 else 2 * t.lanes(4)) for t in RUNNABLE],
    ids=lambda t: getattr(t, "arch", str(t)),
)
def test_a_tiled_packed_matmul_is_right_at_every_edge(target, mr, nr):
    n = matmul(mr, nr)
    k = compiled(n, target)
    for m, c, d in (
        (1, 1, 1),
        (mr, nr, 5),
        (mr + 1, nr + 1, 3),
        (mr - 1, nr - 1, 9),
        (3, 9, 130),
        (13, nr + 9, 4),
        (7, 5, 0),
        (0, 4, 4),
        (2 * mr, 2 * nr, 2),
    ):
        check(n, {"M": m, "N": c, "K": d}, kernel=k)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_a_softmax_like_row_nest_folds_across_lanes(target):
    x = ld("x", "m", A("i_c", "i_v"))
    tail = least(64, A("N", (-1, "i_c")))
    top, total = ld("top"), ld("total")
    n = nest(
        [tensor("x", "M", "N"), tensor("y", "M", "N"), reg("top"), reg("total")],
        [
            loop(
                "m",
                "M",
                st(top, Const(float("-inf"), F32)),
                loop("i_c", "N", lanes("i_v", 64, tail, st(top, x, "max")), step=64),
                st(total, Const(0.0, F32)),
                loop("i_c", "N", lanes("i_v", 64, tail, st(total, ap("sub", x, top), "add")), step=64),
                loop("i_c", "N", lanes("i_v", 64, tail, st(ld("y", "m", A("i_c", "i_v")), ap("div", x, total))), step=64),
            )
        ],
        sizes=("M", "N"),
    )
    k = compiled(n, target)
    for size in SIZES[1:]:
        check(n, {"M": 3, "N": size}, kernel=k, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_what_a_condition_of_lanes_stored_is_in_some_of_them_alone(target):
    t, x = ld("t", "v"), ld("x", "v")
    n = nest([tensor("x", "N"), tensor("t", "N"), tensor("y", "N")], [lanes("v", 16, "N", (
        st(t, x)), when([A("v", -3)], [st(t, ap("mul", x, x))]), st(ld("y", "v"), t))])
    for size in (1, 3, 4, 15, 16):
        check(n, {"N": size}, target)


def test_what_was_just_stored_is_not_read_again_under_a_condition_of_lanes():
    copy, x = ld("copy", "v"), ld("x", "v")
    n = nest([tensor("x", "N"), tensor("y", "N"), work("copy", 16, pad=16)], [lanes("v", 16, "N", (
        st(copy, x)), when([A("v", -3)], [st(ld("y", "v"), copy)]))])
    text = emit(n, V4, Options(threads=True)).text
    assert text.count("call <16 x float> @llvm.masked.load") == 1
    for size in (1, 3, 4, 15, 16):
        check(n, {"N": size})
