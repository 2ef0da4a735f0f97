"""Binding: what a call's arguments mean, and what wrong ones are told."""

import ml_dtypes
import numpy as np
import pytest

from polyop.ir.dtypes import BF16, BOOL, F32, F64, I32, I64
from polyop.ir.errors import CallError
from polyop.ir.expr import Affine, Apply, Const, affine, quasi
from polyop.ir.expr import Test as Condition
from polyop.ir.op import Op, Param, Step, builtin_monoid
from polyop.ir.updates import in_place, reads_elsewhere
from polyop.runtime.arrays import View, as_numpy
from polyop.runtime.bind import bind, overlaps_itself
from tests.runtime.modules import SAXPY, mul, ranges, read, tensor

M, N, K, D, R = map(affine, "MNKDR")
MATMUL = Op("matmul", (tensor("A", "in", "M", "K"), tensor("B", "in", "K", "N"), tensor("C", "out", "M", "N")), (),
            ("K", "M", "N"),
            (Step(read("C", "m", "n"), builtin_monoid("add", F32), mul(read("A", "m", "k"), read("B", "k", "n")),
                  ranges(m="M", n="N", k="K")),))


def f32(*shape):
    return np.ones(shape, np.float32)


def message(op, out=None, **arguments):
    with pytest.raises(CallError) as e:
        bind(op, arguments, out)
    d = e.value.diagnostic
    return f"{d.code}: {d.message}" + (f" | {d.hint}" if d.hint else "")


def fact_op(*facts, shape=("N", "D"), params=()):
    sizes = tuple(sorted({s for s in shape if isinstance(s, str)} | {p.name for p in params if p.is_size}))
    return Op("rows8", (tensor("X", "in", *shape), tensor("Y", "out", *shape)), params, sizes, (), facts)


def test_sizes_come_from_dimensions_and_results_have_the_shapes_they_say():
    bound = bind(MATMUL, {"A": f32(2, 3), "B": f32(3, 4)})
    assert bound.sizes == {"M": 2, "K": 3, "N": 4}
    assert bound.value.shape == (2, 4) and bound.value.dtype == np.float32
    assert bound.sources == {"M": "A", "K": "A", "N": "B"}


def test_sizes_that_disagree_name_both_places():
    assert message(MATMUL, A=f32(2, 3), B=f32(5, 4)) == \
        "E604: `K` is 3 in `A` (dimension 1 of (2, 3)) and 5 in `B` (dimension 0 of (5, 4))"


def test_a_wrong_dtype_names_the_cast():
    assert message(MATMUL, A=f32(2, 3), B=np.ones((3, 4))) == "E602: `B` is f32, got f64 | convert it first: B.astype('float32')"


def test_a_wrong_rank_shows_the_dimensions():
    assert message(MATMUL, A=f32(2, 3), B=f32(3)) == "E603: `B` has 2 dimensions [K, N], got 1 dimension: shape (3,)"
    assert message(SAXPY, X=f32(2, 2), Y=f32(2), a=1) == "E603: `X` has 1 dimension [N], got 2 dimensions: shape (2, 2)"


def test_an_extent_that_is_an_expression_is_checked():
    tensors = (tensor("X", "in", "N"), tensor("W", "in", N * 3), tensor("V", "in", 2), tensor("Y", "out", "N"))
    op = Op("f", tensors, (), ("N",), ())
    bind(op, {"X": f32(4), "W": f32(12), "V": f32(2)})
    assert message(op, X=f32(4), W=f32(13), V=f32(2)) == \
        "E604: `W` has 13 elements in dimension 0, expected 12 = 3*N with N = 4 (from `X`)"
    assert message(op, X=f32(4), W=f32(12), V=f32(3)) == "E604: `V` has 3 elements in dimension 0, expected 2"


def test_an_unmet_fact_says_what_it_needs_and_who_gave_the_sizes():
    mod = quasi("mod", D, Affine(const=8))
    op = fact_op(Condition((mod, mod * -1)))
    bind(op, {"X": f32(3, 16)})
    assert message(op, X=f32(3, 12)) == "E605: `rows8` needs D % 8 == 0, and D = 12 (from `X`)"


@pytest.mark.parametrize(("fact", "words"), [
    (Condition((N - R,)), "N >= R, and N = 3 (from `X`), R = 9"),
    (Condition((R * -1 + 4,)), "R <= 4, and R = 9"),
    (Condition((N * 2 - R - 1,)), "2*N >= R + 1, and N = 3 (from `X`), R = 9"),
    (Apply("or", (Condition((N - R,)), Condition((N - 5, Affine(const=5) - N))), BOOL),
     "N >= R or N == 5, and N = 3 (from `X`), R = 9"),
    (Apply("not", (Condition((R - 2,)),), BOOL), "not (R >= 2), and R = 9"),
    (Const(False, BOOL), "false"),
    (Condition((quasi("div", N, Affine(const=2)) * 3 - R,)), "3*(N / 2) >= R, and N = 3 (from `X`), R = 9"),
    (Condition((quasi("min", N, affine("R")) - 5,)), "min(N, R) >= 5, and N = 3 (from `X`), R = 9"),
])
def test_facts_are_told_in_the_words_of_the_language(fact, words):
    op = fact_op(fact, shape=("N",), params=(Param("R", I64, is_size=True),))
    assert message(op, X=f32(3), R=9) == f"E605: `rows8` needs {words}"


def test_a_negative_extent_refuses_the_call():
    op = Op("valid", (tensor("X", "in", "N"), tensor("F", "in", "R"), tensor("Y", "out", N - R + 1)), (), ("N", "R"), ())
    assert bind(op, {"X": f32(2), "F": f32(3)}).value.shape == (0,)
    assert message(op, X=f32(1), F=f32(3)) == \
        "E606: `Y` would have -1 elements in dimension 0: N + 1 - R with N = 1 (from `X`), R = 3 (from `F`)"


def test_run_time_integers_are_sizes():
    op = Op("steps", (tensor("X", "in", "N"), tensor("H", "out", "T", "N")), (Param("T", I64, is_size=True),), ("N", "T"), ())
    assert bind(op, {"X": f32(3), "T": 4}).value.shape == (4, 3)
    assert bind(op, {"X": f32(3), "T": np.int32(4)}).sizes["T"] == 4
    assert message(op, X=f32(3), T=-1) == "E609: `T` is -1; a size is at least 0"


def test_a_run_time_integer_is_refused_before_positions_computed_from_it_would_wrap():
    op = Op("late", (tensor("X", "in", "N"), tensor("Y", "out", "N")), (Param("T", I64, is_size=True),), ("N", "T"), ())
    assert bind(op, {"X": f32(3), "T": 1 << 40}).sizes["T"] == 1 << 40
    for n in ((1 << 40) + 1, 1 << 62, (1 << 63) - 1):
        assert message(op, X=f32(3), T=n) == f"E609: `T` is {n}; a size is at most 2**40"
    assert message(op, X=f32(3), T=2.5) == "E609: `T` is i64, got 2.5"
    assert message(op, X=f32(3), T=True) == "E609: `T` is i64, got True"
    assert message(op, X=f32(3), T="4") == "E609: `T` is a number of dtype i64, got a str"


def test_an_integer_parameter_and_a_dimension_must_agree():
    op = Op("f", (tensor("X", "in", "N"), tensor("Y", "out", "N")), (Param("N", I64, is_size=True),), ("N",), ())
    assert message(op, X=f32(3), N=4) == "E604: `N` is 4 as the argument `N` and 3 in `X` (dimension 0 of (3,))"


@pytest.mark.parametrize("value", [2, 2.0, np.float64(2), np.array(2.0), np.array(2)])
def test_scalars_take_any_number(value):
    bound = bind(SAXPY, {"X": f32(1), "Y": f32(1), "a": value})
    assert bound.scalars["a"] == 2 and bound.scalars["a"].dtype == np.float32


@pytest.mark.parametrize(("dtype", "value", "text"), [
    (F32, "x", "`p` is a number of dtype f32, got a str"), (F32, None, "`p` is a number of dtype f32, got a NoneType"),
    (F32, np.ones(3), "`p` is a number of dtype f32, got an array of shape (3,)"), (F32, True, "`p` is f32, got True"),
    (I32, 1 << 31, "`p` is i32, got 2147483648"), (I32, 0.5, "`p` is i32, got 0.5"), (BOOL, 1, "`p` is bool, got 1"),
    (F32, 1j, "`p` is a number of dtype f32, got a complex"),
])
def test_a_scalar_that_does_not_fit_is_refused(dtype, value, text):
    op = Op("f", (tensor("X", "in", "N"), tensor("Y", "out", "N")), (Param("p", dtype),), ("N",), ())
    assert message(op, X=f32(1), p=value) == f"E609: {text}"


def test_a_tensor_of_rank_0_may_be_a_number():
    op = Op("f", (tensor("s", "in", dtype=BF16), tensor("Y", "out", dtype=BF16)), (), (), ())
    bound = bind(op, {"s": 1.5})
    assert bound.views["s"].dtype == BF16 and as_numpy(bound.views["s"])[()] == ml_dtypes.bfloat16(1.5)
    assert bound.value.shape == ()
    assert message(op, s=np.float64(2)) == "E602: `s` is bf16, got f64 | convert it first: s.astype('bfloat16')"


# --- out -----------------------------------------------------------------------------------------------------------


def test_out_is_written_and_returned():
    out = np.empty((2, 4), np.float32)
    bound = bind(MATMUL, {"A": f32(2, 3), "B": f32(3, 4)}, out)
    assert bound.value is out and bound.views["C"].address == out.ctypes.data
    assert bind(MATMUL, {"A": f32(2, 3), "B": f32(3, 4)}, (out,)).value is out


def out_message(out):
    return message(MATMUL, out=out, A=f32(2, 3), B=f32(3, 4))


def test_a_wrong_out_is_refused():
    frozen = f32(2, 4)
    frozen.flags.writeable = False
    assert out_message(f32(4, 2)) == "E607: `out` for `C` has shape (4, 2), expected (2, 4)"
    assert out_message(np.ones((2, 4))) == "E607: `out` for `C` has dtype f64, expected f32"
    assert out_message(frozen) == "E607: `out` is read-only, and would be written"
    assert out_message(np.broadcast_to(f32(4), (2, 4)).view()) == "E607: `out` is read-only, and would be written"
    assert out_message((f32(2, 4), f32(2, 4))) == "E607: `out` has 2 arrays, but `matmul` returns 1 new array: `C`"
    assert out_message(3.0) == "E607: `out` for `C` is a number; expected an array of shape (2, 4) and dtype f32"


def test_an_out_that_overlaps_itself_is_refused():
    zero = np.lib.stride_tricks.as_strided(f32(4), (2, 4), (0, 4))
    told = "E607: `out` overlaps itself (shape (2, 4), strides (0, 1) in elements), and would be written"
    assert out_message(zero).startswith(told)


def test_an_out_that_overlaps_an_input_is_refused_but_interleaving_is_not():
    both = f32(8)
    arguments = {"X": both[:4], "Y": f32(4), "a": 1}
    assert message(SAXPY, out=both[2:6], **arguments) == "E607: `out` for `Z` overlaps `X` | give it memory of its own"
    assert message(SAXPY, out=both[:4], **arguments) == "E607: `out` for `Z` overlaps `X` | give it memory of its own"
    bind(SAXPY, arguments, both[4:])
    bind(SAXPY, {"X": both[::2], "Y": f32(4), "a": 1}, both[1::2])


def test_two_outs_may_not_share_memory():
    op = Op("two", (tensor("X", "in", "N"), tensor("Y", "out", "N"), tensor("Z", "out", "N")), (), ("N",), ())
    both = f32(8)
    bind(op, {"X": f32(4)}, (both[:4], both[4:]))
    assert message(op, out=(both[:4], both[3:7]), X=f32(4)) == \
        "E607: `out` for `Y` overlaps `out` for `Z` | give it memory of its own"
    assert message(op, out=both[:4], X=f32(4)) == "E607: `out` has 1 array, but `two` returns 2 new arrays: `Y`, `Z`"


@pytest.mark.parametrize(("shape", "strides", "overlaps"), [
    ((3,), (1,), False), ((3,), (0,), True), ((1,), (0,), False), ((2, 3), (3, 1), False), ((2, 3), (1, 2), False),
    ((2, 3), (2, 1), True), ((2, 3), (-3, 1), False), ((0, 3), (0, 0), False), ((2, 2), (2, 3), False)])
def test_arrays_that_overlap_themselves_are_known(shape, strides, overlaps):
    assert overlaps_itself(View(1 << 20, shape, strides, F32, True, None)) == overlaps


# --- inout ---------------------------------------------------------------------------------------------------------


def inout(expr, reduce=None):
    return Op("relax", (tensor("X", "in", "N"), tensor("X_out", "out", "N")), (), ("N",),
              (Step(read("X_out", "i"), reduce, expr, ranges(i="N")),), updates=(("X", "X_out"),))


def test_an_inout_is_written_where_it_lies():
    x = f32(4)
    bound = bind(inout(mul(read("X", "i"), read("X", "i"))), {"X": x})
    assert bound.value is x
    assert bound.views["X"].address == bound.views["X_out"].address == x.ctypes.data


def test_an_inout_that_is_read_elsewhere_is_copied_first():
    x = np.arange(4, dtype=np.float32)
    bound = bind(inout(read("X", affine("N") - affine("i") - 1)), {"X": x})
    assert bound.views["X_out"].address == x.ctypes.data != bound.views["X"].address
    np.testing.assert_array_equal(as_numpy(bound.views["X"]), x)


def test_the_old_value_is_needed_unless_it_is_read_only_to_compute_its_successor():
    here = read("X", "i")
    assert not reads_elsewhere(inout(mul(here, here)), "X", "X_out")
    assert in_place(inout(mul(here, here))) == {"X": "X_out"}
    assert in_place(inout(mul(here, read("X", affine("i") + 1)))) == {}
    assert reads_elsewhere(inout(mul(here, read("X", affine("i") + 1))), "X", "X_out")
    assert reads_elsewhere(inout(here, builtin_monoid("add", F32)), "X", "X_out")
    op = inout(here)
    late = Step(read("T", "i"), None, here, ranges(i="N"))
    two = Op("f", (*op.tensors, tensor("T", "out", "N")), (), ("N",), (*op.steps, late), updates=op.updates)
    assert reads_elsewhere(two, "X", "X_out")


def test_a_wrong_inout_is_refused():
    op = inout(read("X", "i"))
    frozen = f32(3)
    frozen.flags.writeable = False
    assert message(op, X=frozen) == "E607: `X` is read-only, and would be written"
    assert message(op, out=f32(3), X=f32(3)) == "E607: `out` has 1 array, but `relax` returns 0 new arrays: none"
    with_input = Op("f", (*op.tensors, tensor("W", "in", "N")), (), ("N",), op.steps, updates=op.updates)
    x = f32(3)
    assert message(with_input, X=x, W=x) == "E607: `X` overlaps `W` | give it memory of its own"


def test_dtypes_of_results_follow_the_op():
    op = Op("f", (tensor("X", "in", "N"), tensor("Y", "out", "N", dtype=F64)), (), ("N",), ())
    assert bind(op, {"X": f32(3)}).value.dtype == np.float64
