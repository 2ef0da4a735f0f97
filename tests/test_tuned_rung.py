"""No operator leaves the tuned rung because something in polyop is broken there."""

import logging

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import polyop
from polyop import compiler
from polyop.compiler import compile_op
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UserError
from polyop.ir.options import Options
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.ir.target import target
from polyop.runtime.layout import contiguous

KINDS = ["f16", "f32", "f64", "i8", "i32", "u64"]
SETTINGS = settings(deadline=None, max_examples=25, derandomize=True, database=None,
                    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much])


@pytest.fixture(autouse=True)
def no_bug(caplog, tmp_path, monkeypatch):
    """Nothing is logged as a bug, and every kernel is compiled."""
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    caplog.set_level(logging.ERROR, "polyop")
    yield
    assert not [r.getMessage() for r in caplog.get_records("call") if r.levelno >= logging.ERROR]


def whole(shape, kind="f32"):
    return np.random.default_rng([*shape]).integers(0, 3, shape).astype(DTYPES[kind].numpy)


def same_as_numpy(equation, arrays):
    got = polyop.einsum(equation, *arrays)
    want = np.einsum(equation, *(a.astype(np.int64) for a in arrays))
    np.testing.assert_array_equal(got, want.astype(got.dtype))


def same_as_the_definition(text, sizes):
    op = instantiate(parse(Source("<test>", text)), "f")
    arrays = {t.name: whole(tuple(sizes[e.name] for e in t.shape), str(t.dtype)) for t in op.inputs}
    want = evaluate(op, {n: sizes[n] for n in op.sizes}, {}, arrays)["C"]
    np.testing.assert_array_equal(polyop.op(text)(*arrays.values()), want)


def test_what_the_right_operand_alone_is_summed_over_is_no_index_of_the_left_ones_copy():
    same_as_numpy("a,d,a,dbfd->af", [whole(s, "i32") for s in ((1,), (3,), (1,), (3, 1, 4, 3))])
    same_as_numpy("km,kbn->mn", [whole((19, 9)), whole((19, 3, 37))])


def test_a_condition_on_two_loops_inside_a_tile_bounds_neither_by_the_other():
    same_as_the_definition("op f(A: f32[L, M, K], B: f32[K, K]) -> (C: f32[K, M]) {\n"
                           "  C[j, i] += A[l, i, k] * B[j, k] where k + j >= l }", {"L": 7, "M": 37, "K": 9})


@st.composite
def equations(draw):
    letters = "abcdef"[: draw(st.integers(2, 6))]
    word = st.text(st.sampled_from(letters), min_size=1, max_size=4)
    inputs = draw(st.lists(word, min_size=1, max_size=4))
    used = sorted(set("".join(inputs)))
    out = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    sizes = {x: draw(st.sampled_from((1, 2, 3, 4))) for x in used}
    return f"{','.join(inputs)}->{''.join(out)}", [tuple(sizes[x] for x in w) for w in inputs]


@SETTINGS
@given(equations(), st.sampled_from(KINDS))
def test_no_equation_shows_a_bug(equation, kind):
    text, shapes = equation
    same_as_numpy(text, [np.minimum(whole(s, kind), DTYPES[kind].numpy.type(1)) for s in shapes])


@st.composite
def conditions(draw, indices):
    x, y, z = draw(st.permutations(indices))[:3]
    near, far, factor = draw(st.integers(0, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    return draw(st.sampled_from([
        f"{y} <= {x}", f"{y} >= {x}", f"{y} < {x}", f"{x} - {far} < {y} <= {x}", f"{x} - {near} <= {y} < {x} + {far}",
        f"{factor}*{y} <= {x} + {near}", f"{x} + {y} < {far + near}", f"{x} + {y} >= {z}", f"({x} + {y}) % {far} == 0"]))


@st.composite
def programs(draw):
    """A contraction in any order of its loops, under one to three conditions."""
    sizes = {"i": "M", "j": draw(st.sampled_from("NK")), "k": "K", "b": "P", "l": "L"}
    batch, deep = draw(st.sampled_from(["", "b"])), draw(st.sampled_from(["", "", "l"]))

    def tensor(indices):
        order = draw(st.permutations(indices))
        return f"[{', '.join(sizes[x] for x in order)}]", f"[{', '.join(order)}]"

    (a, left), (b, right), (c, out) = tensor(f"ik{batch}{deep}"), tensor(f"jk{deep}"), tensor(f"ij{batch}")
    kind = draw(st.sampled_from(["f32", "f64", "i32"]))
    where = " and ".join(draw(st.lists(conditions(f"ijk{batch}{deep}"), min_size=1, max_size=3)))
    body = draw(st.sampled_from([
        f"C{out} += A{left} * B{right} where {where}",
        f"T{out} += A{left} * B{right} where {where}\n  C{out} = T{out} * 2",
        f"S{left} = A{left} + 1\n  C{out} += S{left} * B{right} where {where}"]))
    return f"op f(A: {kind}{a}, B: {kind}{b}) -> (C: {kind}{c}) {{\n  {body}\n}}"


@SETTINGS
@given(programs(), st.tuples(*[st.integers(1, 5)] * 5))
def test_no_conditions_between_loops_show_a_bug(text, extents):
    try:
        same_as_the_definition(text, dict(zip("MNKPL", extents, strict=True)))
    except UserError as refused:  # such as a temporary that is read beyond the condition it is written under
        assert refused.diagnostic.code in ("E324", "E326")


@pytest.fixture
def rungs(monkeypatch):
    """The rungs of what is compiled from now on."""
    found = []

    def noted(op, *rest):
        made = compile_op(op, *rest)
        found.append(made.rung)
        return made
    monkeypatch.setattr(compiler, "compile_op", noted)
    return found


def chain(kind):
    return f"""op f(Q: {kind}[M, D], K: {kind}[N, D], V: {kind}[N, E]) -> (O: f32[M, E]) {{
        s: f32[M, N] [i, j] += Q[i, d] * K[j, d]
        top[i] max= s[i, j]
        e[i, j] = s[i, j] - top[i]
        O[i, v] += e[i, j] * V[j, v] }}"""


def same_chain(kind, q, m=195, n=37):
    rng = np.random.default_rng(m)
    arrays = [rng.integers(-2, 3, shape).astype(DTYPES[kind].numpy) for shape in ((m, 9), (n, 9), (n, 20))]
    scores = arrays[0].astype(float) @ arrays[1].astype(float).T
    want = (scores - scores.max(1, keepdims=True)) @ arrays[2].astype(float)
    np.testing.assert_array_equal(polyop.op(chain(kind))(q(arrays[0]), *arrays[1:]), want)


def test_a_left_operand_that_is_packed_stands_inside_tiles_of_rows(rungs):
    same_chain("f32", np.asfortranarray)
    same_chain("f32", lambda a: np.repeat(a, 2, axis=1)[:, ::2])
    assert set(rungs) == {"tuned"}


def test_contractions_whose_tiles_differ_in_rows_share_tiles_of_rows(rungs):
    for m in (1, 191, 192, 193, 200, 385):
        same_chain("bf16", lambda a: a, m)
    assert set(rungs) == {"tuned"}


@pytest.mark.parametrize("level", ["v2", "v3", "v4"])
@pytest.mark.parametrize("rows", [1, 3, 4, 6, 8])
def test_few_rows_fit_into_the_registers_of_every_target(level, rows):
    text = "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
    op = instantiate(parse(Source("<test>", text)), "f")
    assert compile_op(op, contiguous(op), target(f"x86:x86-64-{level}"), Options(rows=rows)).rung == "tuned"


def test_what_other_sums_of_a_tensor_begin_with_is_no_part_of_the_tiles_of_the_first():
    same_as_the_definition("op f(A: f32[M, K], B: f32[K, N], D: f32[K, N]) -> (C: f32[2, M, N]) {\n"
                           "C[0, i, j] += A[i, k] * B[k, j]\nC[1, i, j] += A[i, k] * D[k, j] }", {"M": 7, "K": 5, "N": 19})


@pytest.mark.parametrize("before, sums, read", [("C[t-1, i, k]", "t >= 1", "(t >= 1 ? Z[t, i, j] : 0)"),
                                                ("(C[t-1, i, k] else 2)", "t + k < R", "Z[t, i, j]")])
def test_steps_of_a_recurrence_in_which_nothing_is_added_up_are_carried_out_too(before, sums, read):
    same_as_the_definition("op f(A: f32[T, M, N], B: f32[N, N], X: f32[R]) -> (C: f32[T, M, N]) {\n"
                           f"Z[t, i, j] += {before} * B[k, j] where {sums}\nC[t, i, j] = {read} + A[t, i, j] }}",
                           {"T": 4, "M": 7, "N": 5, "R": 3})
