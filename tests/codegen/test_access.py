import re

import numpy as np
import pytest

from polyop.codegen.x86 import emit
from polyop.ir.dtypes import BOOL, F16, F32, F64, I32, I64, U8
from polyop.ir.expr import Affine, Apply, Const, Number, Test, affine, quasi
from polyop.ir.interpret import PositionError, interpret
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, V4, check, compiled
from tests.codegen.nests import A, ap, lanes, ld, least, loop, nest, reg, rows, st, strip, tensor, when, work

I = A("i_c", "i_v")
SIZES = (0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 64, 70)
each_target = pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)


def check_all(n, target, sizes=SIZES, **keys):
    k = compiled(n, target)
    for size in sizes:
        check(n, {"N": size}, kernel=k, **keys)


@each_target
def test_a_broadcast_row_a_column_and_a_number_meet(target):
    e = ap("add", ap("mul", ld("row", I), ld("column", "m")), Apply("cast", (Number(A("m", (2, I.terms[1][0]), 1), I64),), F32))
    n = nest(
        [tensor("row", "N"), tensor("column", 3), tensor("y", 3, "N")],
        [loop("m", 3, strip("i", 32, "N", st(ld("y", "m", I), e)))],
    )
    check_all(n, target)


@each_target
@pytest.mark.parametrize("t", (F32, F64, U8, BOOL), ids=str)
def test_a_row_is_read_and_written_backwards(t, target):
    back = A("N", -1, (-1, "i_c"), (-1, "i_v"))
    n = nest(
        [tensor("x", "N", t=t), tensor("y", "N", t=t), tensor("z", "N", t=t)],
        [strip("i", 32, "N", st(ld("y", I, t=t), ld("x", back, t=t)), st(ld("z", back, t=t), ld("x", I, t=t)))],
    )
    check_all(n, target)


@each_target
def test_constant_and_run_time_strides_are_gathered_and_scattered(target):
    two = A((2, "i_c"), (2, "i_v"))
    n = nest(
        [
            tensor("x", A((2, "N"))),
            tensor("w", 3, "N", unit=0),
            tensor("y", "N"),
            tensor("z", A((2, "N"))),
            tensor("u", "N", 2, unit=None),
        ],
        [
            loop(
                "j",
                1,
                strip(
                    "i",
                    16,
                    "N",
                    st(ld("y", I), ap("add", ld("x", two), ld("w", 2, I))),
                    st(ld("z", two), ld("x", A(two, 1))),
                    st(ld("u", I, 1), ld("x", two)),
                    st(ld("u", I, 0), ld("y", I)),
                    st(ld("u", I, 0), ld("y", I), "add"),
                ),
            )
        ],
    )
    k = compiled(n, target)
    for size in SIZES:
        rng = np.random.default_rng(size)
        arrays = {
            "x": rng.standard_normal(2 * size).astype("f"),
            "w": np.asfortranarray(rng.standard_normal((3, size)).astype("f")),
            "y": np.zeros(size, "f"),
            "z": np.zeros(2 * size, "f"),
            "u": np.zeros((2, size), "f").T,
        }
        check(n, {"N": size}, kernel=k, arrays=arrays)


@each_target
@pytest.mark.parametrize("step", (2, 3, 4, 5))
@pytest.mark.parametrize("t", (F32, F64, U8), ids=str)
def test_lanes_a_few_elements_apart_are_picked_out_of_vectors_that_end_with_the_tensor(step, t, target):
    apart = A(1 - step, (step, "i_c"), (step, "i_v"))  # the first lane would read before the tensor
    guarded = ld("x", apart, t=t, guard=(apart, A("N", -4) + I * -1))
    n = nest(
        [tensor("x", A((step, "N"), 1 - step), t=t), tensor("y", "N", t=t), tensor("z", "N", t=t)],
        [strip("i", 32, "N", st(ld("y", I, t=t), ld("x", A((step, "i_c"), (step, "i_v")), t=t)), st(ld("z", I, t=t), guarded))],
    )
    k = compiled(n, target)
    assert ("masked.gather" in k.module.text) == (step > 4)
    for size in SIZES[1:]:
        check(n, {"N": size}, kernel=k)


@each_target
@pytest.mark.parametrize("t", (F32, F64, I32), ids=str)
def test_a_negative_run_time_stride_is_followed(t, target):
    n = nest(
        [tensor("x", "N", t=t, unit=None), tensor("y", "N", t=t)], [strip("i", 16, "N", st(ld("y", I, t=t), ld("x", I, t=t)))]
    )
    k = compiled(n, target)
    for size in SIZES[1:]:
        x = np.arange(3 * size).astype(t.numpy)[::-3]
        check(n, {"N": size}, kernel=k, arrays={"x": x, "y": np.zeros(size, t.numpy)})


@each_target
@pytest.mark.parametrize("t", (F32, F64), ids=str)
def test_a_square_of_rows_and_lanes_is_transposed_in_registers(t, target):
    w = target.lanes(t.bytes_)
    m, i = A("m_r", "m_p"), A("i_c", "i_v")
    full = loop(
        "m_r",
        A("M"),
        loop("i_c", "N", lanes("i_v", w, None, rows("m_p", w, None, st(ld("y", m, i, t=t), ld("x", i, m, t=t)))), step=w),
        step=w,
    )
    n = nest([tensor("x", "N", "M", t=t), tensor("y", "M", "N", t=t)], [full], sizes=("M", "N"))
    k = compiled(n, target)
    for a, b in ((w, w), (2 * w, 3 * w)):
        check(n, {"M": a, "N": b}, kernel=k)
    assert "gather" not in k.module.text
    assert not re.search(r"mul i64 %v\d+, \d+", k.module.text)  # one addition from line to line


@each_target
def test_partial_squares_are_transposed_too(target):
    w = target.lanes(4)
    m, i = A("m_r", "m_p"), A("i_c", "i_v")
    body = loop(
        "m_r",
        "M",
        loop(
            "i_c",
            "N",
            lanes(
                "i_v",
                w,
                least(w, A("N", (-1, "i_c"))),
                rows("m_p", w, least(w, A("M", (-1, "m_r"))), st(ld("y", m, i), ld("x", i, m))),
            ),
            step=w,
        ),
        step=w,
    )
    n = nest([tensor("x", "N", "M"), tensor("y", "M", "N")], [body], sizes=("M", "N"))
    k = compiled(n, target)
    for a, b in ((1, 1), (w - 1, w + 1), (w, w), (2 * w + 3, 5)):
        check(n, {"M": a, "N": b}, kernel=k)


@each_target
@pytest.mark.parametrize("t", (F32, F64, I32), ids=str)
def test_squares_as_narrow_as_a_window_are_transposed_side_by_side(t, target):
    w = target.lanes(t.bytes_)
    m, i = A("m_r", "m_p"), A("i_c", "i_v")
    copy = rows("m_p", 4, least(4, A("M", (-1, "m_r"))), st(ld("y", m, i, t=t), ld("x", i, m, t=t)))
    body = loop("m_r", "M", loop("i_c", "N", lanes("i_v", w, least(w, A("N", (-1, "i_c"))), copy), step=w), step=4)
    n = nest([tensor("x", "N", "M", t=t), tensor("y", "M", "N", t=t)], [body], sizes=("M", "N"))
    k = compiled(n, target)
    assert "gather" not in k.module.text or w < 4
    for a, b in ((1, 1), (3, w + 1), (4, w), (9, 2 * w + 3)):
        check(n, {"M": a, "N": b}, kernel=k)


@each_target
@pytest.mark.parametrize("height", (3, 4, 7, 19))
@pytest.mark.parametrize("t", (F32, F64, F16), ids=str)
def test_a_result_that_lies_along_the_rows_is_turned_in_registers(t, height, target):
    w = target.lanes(4)
    m, i = A("m_r", "m_p"), A("i_c", "i_v")
    scaled = ap("mul", ld("x", m, i, t=t), Const(3, t), t=t)
    copy = rows("m_p", height, least(height, A("M", (-1, "m_r"))), st(ld("y", i, m, t=t), scaled))
    tile = lanes("i_v", 2 * w, least(2 * w, A("N", (-1, "i_c"))), copy)
    body = loop("m_r", "M", loop("i_c", "N", tile, step=2 * w), step=height)
    n = nest([tensor("x", "M", "N", t=t), tensor("y", "N", "M", t=t)], [body], sizes=("M", "N"))
    k = compiled(n, target)
    assert "scatter" not in k.module.text
    assert k.module.text.count("br i1") < 2 * w or w < 8  # lanes that may be missing are not asked about one by one
    sizes = (1, 1), (1, 2 * w - 1), (height - 1, 2 * w + 1), (height, 2 * w), (height + 1, w + 1), (2 * height - 1, 4 * w + 3)
    for a, b in sizes:
        check(n, {"M": a, "N": b}, kernel=k)


@each_target
def test_floor_and_remainder_of_lanes_are_positions(target):
    half, third = quasi("div", I, affine(2)), quasi("mod", I, affine(3))
    clipped = quasi("max", A(I, -2), Affine())
    e = ap("add", ap("add", ld("x", half), ld("x", third)), ld("x", clipped))
    odd = quasi("div", A((5, "i_c"), (5, "i_v")), affine(7))
    n = nest(
        [tensor("x", A("N", 3)), tensor("y", "N"), tensor("z", "N")],
        [strip("i", 32, "N", st(ld("y", I), e), st(ld("z", I), ld("x", odd)))],
    )
    check_all(n, target)


@each_target
def test_floors_of_negative_numbers_round_down(target):
    neg = A((-1, "i_c"), (-1, "i_v"), 2)
    cases = [quasi(op, neg, affine(d)) for op in ("div", "mod") for d in (3, 4)]
    scalar = [quasi(op, A((-1, "j"), 1), affine(d)) for op in ("div", "mod") for d in (3, 4)]
    n = nest(
        [tensor("y", 4, "N", t=I32), tensor("z", 4, "N", t=I32)],
        [
            strip("i", 16, "N", *(st(ld("y", k, I, t=I32), Number(c, I32)) for k, c in enumerate(cases))),
            loop("j", "N", *(st(ld("z", k, "j", t=I32), Number(c, I32)) for k, c in enumerate(scalar))),
        ],
    )
    check_all(n, target)


@each_target
@pytest.mark.parametrize("t", (I32, I64, U8), ids=str)
def test_positions_from_data_are_gathered(t, target):
    at = ld("at", I, t=t)
    n = nest(
        [tensor("x", "N"), tensor("at", "N", t=t), tensor("y", "N"), tensor("w", 4, "N"), tensor("z", "N")],
        [strip("i", 16, "N", st(ld("y", I), ld("x", at)), st(ld("z", I), ld("w", 3, at)))],
    )
    k = compiled(n, target)
    for size in SIZES:
        rng = np.random.default_rng(size)
        arrays = {
            "x": rng.standard_normal(size).astype("f"),
            "at": rng.integers(0, max(size, 1), size).astype(t.numpy),
            "y": np.zeros(size, "f"),
            "w": rng.standard_normal((4, size)).astype("f"),
            "z": np.zeros(size, "f"),
        }
        check(n, {"N": size}, kernel=k, arrays=arrays)
    assert [str(x) for x in k.module.signature.sites] == ["x[at[i_c + i_v]]", "w[3, at[i_c + i_v]]"]


@each_target
def test_rows_of_a_table_are_looked_up(target):
    n = nest(
        [tensor("x", 5, "N"), tensor("at", 3, t=I64), tensor("y", 3, "N")],
        [loop("m", 3, strip("i", 16, "N", st(ld("y", "m", I), ld("x", ld("at", "m", t=I64), I))))],
    )
    k = compiled(n, target)
    for size in SIZES:
        arrays = {"x": np.random.rand(5, size).astype("f"), "at": np.array([4, 0, 2]), "y": np.zeros((3, size), "f")}
        check(n, {"N": size}, kernel=k, arrays=arrays)
    bad = {"x": np.ones((5, 9), "f"), "at": np.array([4, -1, 2]), "y": np.ones((3, 9), "f")}
    assert k({"N": 9}, {}, bad) == 1
    assert (bad["y"][1] == 0).all() and (bad["y"][[0, 2]] == 1).all()


@each_target
def test_a_position_outside_is_reported_by_the_number_of_its_site_and_not_read(target):
    at = ld("at", I, t=I32)
    n = nest(
        [tensor("x", "N"), tensor("at", "N", t=I32), tensor("y", "N")],
        [strip("i", 16, "N", st(ld("y", I), ap("add", ld("y", I), ld("x", at))))],
    )
    k = compiled(n, target)
    for size, bad, value in ((20, 3, -1), (20, 19, 20), (64, 40, 2**31 - 1), (5, 0, -(2**31))):
        arrays = {"x": np.ones(size, "f"), "at": np.zeros(size, "i"), "y": np.zeros(size, "f")}
        arrays["at"][bad] = value
        assert k({"N": size}, {}, arrays) == 1
        assert arrays["y"].sum() == size - 1
        with pytest.raises(PositionError):
            interpret(n, {"N": size}, {}, arrays)


@each_target
def test_of_several_sites_the_first_one_that_points_outside_is_reported(target):
    both = ap("add", ld("x", ld("at", I, t=I32)), ld("x", ld("to", I, t=I32)))
    n = nest([tensor("x", "N"), tensor("at", "N", t=I32), tensor("to", "N", t=I32), tensor("y", "N")],
             [strip("i", 16, "N", st(ld("y", I), both))])
    k = compiled(n, target)
    for at, to, site in ((90, 3, 2), (3, 90, 1), (3, None, 1), (None, 3, 2), (None, None, 0)):
        arrays = {"x": np.ones(100, "f"), "at": np.zeros(100, "i"), "to": np.zeros(100, "i"), "y": np.zeros(100, "f")}
        for name, where in (("at", at), ("to", to)):
            if where is not None:
                arrays[name][where] = 100
        assert k({"N": 100}, {}, arrays) == site


def test_no_iteration_waits_for_what_the_one_before_found_about_its_positions():
    n = nest([tensor("y", "N"), tensor("at", "M", t=I32)],
             [loop("m", "M", st(ld("y", ld("at", "m", t=I32)), Const(1.0, F32), "add"))], sizes=("M", "N"))
    lines = [x.strip() for x in emit(n, V4, Options()).text.splitlines()]
    begin = next(k for k, x in enumerate(lines) if " = phi " in x)
    end = next(k for k, x in enumerate(lines) if k > begin and x.startswith("br i1"))
    assert any("icmp ult" in x for x in lines[begin:end]) and not any("%status" in x for x in lines[begin:end])
    note = lines.index(f"{lines[end].split('%')[2].split(',')[0]}:")
    assert "%status" in lines[note + 1] and sum("%status" in x for x in lines[end:]) == 3, "read, written; read at the end"


@each_target
def test_a_position_that_is_not_needed_may_lie_outside(target):
    at = ld("at", I, t=I32)
    needed = Apply("ge", (at, Const(0, I32)), BOOL)
    n = nest(
        [tensor("x", "N"), tensor("at", "N", t=I32), tensor("y", "N"), tensor("ok", "N", t=BOOL)],
        [
            strip(
                "i",
                16,
                "N",
                st(ld("y", I), ap("select", needed, ld("x", at), Const(-1.0, F32))),
                st(ld("ok", I, t=BOOL), Apply("and", (needed, Apply("gt", (ld("x", at), Const(0.0, F32)), BOOL)), BOOL)),
            )
        ],
    )
    k = compiled(n, target)
    for size in SIZES:
        rng = np.random.default_rng(size)
        arrays = {
            "x": rng.standard_normal(size).astype("f"),
            "at": rng.integers(-3, max(size, 1), size).astype("i"),
            "y": np.zeros(size, "f"),
            "ok": np.zeros(size, bool),
        }
        if not size:
            arrays["at"][:] = -1
        check(n, {"N": size}, kernel=k, arrays=arrays)


@each_target
@pytest.mark.parametrize("t", (F32, I64, U8, BOOL), ids=str)
@pytest.mark.parametrize("reduce", (None, "max", "add"), ids=str)
def test_scattered_updates_of_one_place_all_arrive_in_order(reduce, t, target):
    reduce = {"add": "or", "max": "and"}.get(reduce, reduce) if t == BOOL else reduce
    at = ld("at", I, t=I32)
    n = nest(
        [tensor("x", "N", t=t), tensor("at", "N", t=I32), tensor("y", 5, t=t)],
        [strip("i", 16, "N", st(ld("y", at, t=t), ld("x", I, t=t), reduce))],
    )
    k = compiled(n, target)
    for size in SIZES:
        rng = np.random.default_rng(size)
        x = rng.integers(0, 2 if t == BOOL else 9, size).astype(t.numpy)
        arrays = {"x": x, "at": rng.integers(0, 5, size).astype("i"), "y": np.zeros(5, t.numpy)}
        check(n, {"N": size}, kernel=k, arrays=arrays)
    arrays = {"x": np.ones(20, t.numpy), "at": np.full(20, 7, "i"), "y": np.zeros(5, t.numpy)}
    assert k({"N": 20}, {}, arrays) == 1 and not arrays["y"].any()


@each_target
def test_a_guard_reads_zero_outside_and_touches_nothing(target):
    def inside(p):
        return p, A("N", -1) - p

    before, after = A(I, -3), A(I, 2)
    e = ap("add", ld("x", "m", before, guard=inside(before)), ld("x", A("m", 1), after, guard=(*inside(after), A(1, (-1, "m")))))
    n = nest([tensor("x", 3, "N"), tensor("y", 3, "N")], [loop("m", 3, strip("i", 32, "N", st(ld("y", "m", I), e)))])
    check_all(n, target)


@each_target
def test_rows_and_loops_inside_guards_share_a_row_of_zeros(target):
    """A padded convolution over (p, c): the input row of each copy may lie outside."""
    row = A("p_r", "p_p", "r", -1)
    x = ld("x", row, "c", guard=(row, A("P", -1) - row))
    acc = ld("acc", "p_p", "k_v")
    tile = least(4, A("P", (-1, "p_r")))
    body = loop(
        "p_r",
        "P",
        lanes(
            "k_v",
            16,
            least(16, A("N")),
            rows("p_p", 4, tile, st(acc, Const(0.0, F32))),
            loop("r", 3, loop("c", "C", rows("p_p", 4, tile, st(acc, ap("mul", x, ld("w", "r", "c", "k_v")), "add")))),
            rows("p_p", 4, tile, st(ld("y", A("p_r", "p_p"), "k_v"), acc)),
        ),
        step=4,
    )
    n = nest(
        [tensor("x", "P", "C"), tensor("w", 3, "C", "N"), tensor("y", "P", "N"), reg("acc", 4, 16)], [body], sizes=("P", "C", "N")
    )
    k = compiled(n, target)
    for p, c, f in ((1, 1, 1), (4, 3, 16), (9, 5, 7), (2, 40, 16), (6, 0, 3)):
        check(n, {"P": p, "C": c, "N": f}, kernel=k)


@pytest.mark.parametrize("first", [False, True])
def test_outside_or_not_is_asked_outside_the_loops_that_the_test_does_not_depend_on(first):
    """As above with a channel loop of at most 64: strides, of channels too if these come `first`, are known at run time only."""
    row, column = A("p_p", "r", -1), A("q", "s", -1)
    inside = (row, A("P", -1) - row, column, A("Q", -1) - column)
    channel = A("c_c", "c_p")
    x = ld("x", channel, row, column, guard=inside) if first else ld("x", row, column, channel, guard=inside)
    update = rows("p_p", 4, None, st(ld("acc", "p_p", "k_v"), ap("mul", x, ld("w", "r", "s", "c_p", "k_v")), "add"))
    taps = loop("r", 3, loop("s", 3, loop("c_p", least(64, A("C", (-1, "c_c"))), update)))
    body = loop("q", "Q", lanes("k_v", 16, None,
        rows("p_p", 4, None, st(ld("acc", "p_p", "k_v"), Const(0.0, F32))),
        loop("c_c", "C", taps, step=64),
        rows("p_p", 4, None, st(ld("y", "p_p", "q", "k_v"), ld("acc", "p_p", "k_v")))))
    image = ("C", "P", "Q") if first else ("P", "Q", "C")
    buffers = [tensor("x", *image), tensor("w", 3, 3, 64, 16), tensor("y", 4, "Q", 16), reg("acc", 4, 16)]
    n = nest(buffers, [body], sizes=("P", "Q", "C"))
    innermost = max(re.split(r"^b\d+:", emit(n, V4, Options()).text, flags=re.M), key=lambda x: x.count("fadd"))
    assert innermost.count("fadd") == 4 and "@zeros" not in innermost
    k = compiled(n, V4)
    for q, c in ((1, 1), (5, 3), (1, 64), (3, 66), (3, 0)):  # the interpreter takes 20 us a term
        check(n, {"P": 4, "Q": q, "C": c}, kernel=k)


@each_target
def test_an_affine_load_in_a_branch_is_read_only_where_its_test_holds(target):
    left = ap("select", Test((A(I, -1),)), ld("x", A(I, -1)), Const(9.0, F32))
    both = ap(
        "select",
        Apply("or", (Apply("not", (Test((A(I, -2),)),), BOOL), Apply("gt", (ld("x", A(I, -2)), Const(0.0, F32)), BOOL)), BOOL),
        ld("x", I),
        Const(3.0, F32),
    )
    n = nest(
        [tensor("x", "N"), tensor("y", "N"), tensor("z", "N")], [strip("i", 32, "N", st(ld("y", I), left), st(ld("z", I), both))]
    )
    check_all(n, target)


@each_target
def test_a_triangle_is_written_by_masked_stores(target):
    j = A("i_c", "i_v")
    n = nest(
        [tensor("x", "N", "N"), tensor("y", "N", "N"), tensor("z", "N", "N")],
        [
            loop(
                "m",
                "N",
                strip(
                    "i",
                    16,
                    "N",
                    when([A("m") - j], [st(ld("y", "m", j), ld("x", "m", j))], [st(ld("z", j, "m"), Const(1.0, F32))]),
                ),
            )
        ],
    )
    check_all(n, target, (0, 1, 7, 16, 17, 33))


@each_target
def test_a_padded_work_buffer_keeps_what_a_shorter_loop_does_not_reach(target):
    j = A("i_c", "i_v")
    n = nest(
        [tensor("x", "N"), tensor("y", "N"), work("t", "N", pad=32)],
        [
            strip("i", 32, "N", st(ld("t", j), ld("x", j))),
            loop("i_c", "N", lanes("i_v", 32, least(32, A("H", (-1, "i_c"))), st(ld("t", j), Const(7.0, F32))), step=32),
            loop(
                "i_c", "N", lanes("i_v", 32, least(32, A("H", (-1, "i_c"), -1)), st(ld("t", j), Const(1.0, F32), "add")), step=32
            ),
            strip("i", 32, "N", st(ld("y", j), ld("t", j))),
        ],
        sizes=("N", "H"),
    )
    k = compiled(n, target)
    for size, half in ((1, 0), (40, 5), (64, 33), (33, 33), (70, 1)):
        check(n, {"N": size, "H": half}, kernel=k)


@each_target
def test_an_outer_scalar_is_an_argument(target):
    from polyop.ir.dtypes import F16
    from polyop.ir.expr import Scalar

    e = ap("add", ap("mul", ld("x", I), Scalar("alpha", F32)), Apply("cast", (Scalar("beta", F16),), F32))
    n = nest(
        [tensor("x", "N"), tensor("y", "N")],
        [strip("i", 16, "N", st(ld("y", I), ap("select", Scalar("on", BOOL), e, ld("x", I))))],
        scalars=(("alpha", F32), ("beta", F16), ("on", BOOL)),
    )
    k = compiled(n, target)
    for on in (True, False):
        check(n, {"N": 21}, kernel=k, values={"alpha": 1.25, "beta": -0.5, "on": on})


def test_streamed_stores_are_written_at_any_alignment():
    n = nest(
        [tensor("x", "N"), tensor("y", "N")],
        [
            loop(
                "i_c",
                "N",
                when(
                    [A("N", (-1, "i_c"), -32)],
                    [lanes("i_v", 32, None, st(ld("y", I), ld("x", I), stream=True))],
                    [lanes("i_v", 32, least(32, A("N", (-1, "i_c"))), st(ld("y", I), ld("x", I), stream=True))],
                ),
                step=32,
            )
        ],
    )
    k = compiled(n, V4)
    assert "!nontemporal" in k.module.text and "sfence" in k.module.text
    for shift in range(20):
        x, y = np.random.rand(100).astype("f"), np.zeros(140, "f")[shift : shift + 100]
        assert k({"N": 100}, {}, {"x": x, "y": y}) == 0
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
def test_an_element_that_loops_keep_inside_is_read_whatever_lanes_are_left_out(target):
    """Y[v] += X[v - s] * W[s] where X has v - s: W[s] exists anyway, W[v - s] for one lane would not."""
    def text(at):
        update = st(ld("acc", "v"), ap("mul", ld("x", A("v", (-1, "s"))), ld("w", at)), "add")
        there = when((A("v", (-1, "s")), A("N", -1, (-1, "v"), "s")), (update,))
        sums = st(ld("acc", "v"), Const(0.0, F32)), loop("s", "R", there), st(ld("y", "v"), ld("acc", "v"))
        body = lanes("v", 16, A("M"), *sums)
        return nest([tensor("x", "N"), tensor("w", "R"), tensor("y", "M"), reg("acc", 16)], [body], sizes=("M", "N", "R"))

    inside, beyond = text(A("s")), text(A("s", -1, "N"))  # in [0, R), and so only where N is 1
    assert "@zeros" not in emit(inside, target, Options()).text and "@zeros" in emit(beyond, target, Options()).text
    kernel = compiled(inside, target)
    for m, n, r in ((1, 1, 1), (16, 14, 3), (9, 3, 7), (16, 2, 16), (5, 5, 0)):
        check(inside, {"M": m, "N": n, "R": r}, kernel=kernel)
