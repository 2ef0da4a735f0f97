"""Merging: two operators as one, their sizes unified, their names apart, their values those of one after the other."""

import numpy as np
import pytest

from polyop.ir.dtypes import F32
from polyop.ir.errors import UnsupportedError, UserError
from polyop.ir.expr import Const, affine
from polyop.ir.reference import evaluate
from polyop.ir.spelled import holds
from polyop.rewrite.inline import inline
from polyop.rewrite.merge import Part, compose
from polyop.rewrite.names import fresh
from polyop.rewrite.simplify import simplify
from polyop.rewrite.unify import unify
from tests.rewrite.ops import arguments, library, op, shape_of

MATMUL = "op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
BIAS = "op bias(X: f32[R, D], b: f32[D]) -> (Y: f32[R, D]) { Y[r, d] = X[r, d] + b[d] }"
SQUARE = "op square(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] * X[i] }"
SOFTMAX = """op softmax(X: f32[R, C]) -> (Y: f32[R, C]) {
    e[r, c] = exp(X[r, c] - max[k](X[r, k]))
    Y[r, c] = e[r, c] / sum[k](e[r, k]) }"""


def merge(first, second, bind, *, share=None, keep=(), name=""):
    """`second` behind `first`: `bind` and `share` name outputs and inputs of `first` for inputs of `second`."""
    taken = {t.name for t in first.tensors} | set(first.sizes) | {p.name for p in first.params}
    mine = {t.name: t.name for t in (*first.inputs, *first.outputs)}
    theirs = {**bind, **(share or {})}
    theirs.update({t.name: fresh(t.name, taken) for t in (*second.inputs, *second.outputs) if t.name not in theirs})
    bound = set(bind.values())
    outputs = [t.name for t in first.outputs if t.name not in bound or t.name in keep] + [theirs[t.name] for t in second.outputs]
    return compose(name or f"{first.name}_{second.name}", (Part(first, mine), Part(second, theirs)), outputs)


def assert_is_one_after_the_other(merged, first, second, bind, sizes):
    """`sizes`: of `merged`."""
    values, arrays = arguments(merged, sizes)
    got = evaluate(merged, sizes, values, arrays)
    inner = evaluate(first, {n: sizes[n] for n in first.sizes}, values, {t.name: arrays[t.name] for t in first.inputs})
    theirs = {i: inner[o] for i, o in bind.items()}
    theirs |= {t.name: arrays[t.name if t.name in arrays else f"{t.name}_2"] for t in second.inputs if t.name not in bind}
    mine = dict(zip((e for t in second.inputs for e in (x.name for x in t.shape)),
                    (n for t in second.inputs for n in theirs[t.name].shape), strict=True))
    want = evaluate(second, {n: mine[n] for n in second.sizes}, values, theirs)
    for t, out in zip(second.outputs, merged.outputs[-len(second.outputs):], strict=True):
        assert want[t.name].tobytes() == got[out.name].tobytes()


def test_the_second_reads_what_the_first_computes():
    first, second = op(MATMUL), op(BIAS)
    made = merge(first, second, {"X": "C"})
    assert made.name == "matmul_bias"
    assert [str(t) for t in made.tensors] == ["A: f32[M, K]", "B: f32[K, N]", "b: f32[N]", "Y: f32[M, N]", "C: f32[M, N]"]
    assert [t.role for t in made.tensors] == ["in", "in", "in", "out", "temp"]
    assert str(made.steps[1]) == "Y[r, d] = (C[r, d] + b[d])  where r in 0:M, d in 0:N"
    assert_is_one_after_the_other(made, first, second, {"X": "C"}, {"M": 2, "K": 3, "N": 4})


def test_equal_names_are_kept_apart():
    first, second = op(SQUARE), op(SQUARE)
    made = merge(first, second, {"X": "Y"})
    assert [t.name for t in made.tensors] == ["X", "Y_2", "Y"]
    assert not inline(made, again=1).temporaries
    assert_is_one_after_the_other(made, first, second, {"X": "Y"}, {"N": 3})


def test_an_iterator_never_meets_a_size_or_tensor_of_the_other():
    first = op("op a(X: f32[i]) -> (k: f32[i]) { k[n] = X[n] }")
    second = op("op b(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] + sum[k](X[k]) }")
    made = merge(first, second, {"X": "k"})
    taken = set(made.sizes) | {t.name for t in made.tensors}
    assert not any(set(s.indices) & taken for s in made.steps)
    assert_is_one_after_the_other(made, first, second, {"X": "k"}, {"i": 3})


def test_an_output_that_is_kept_is_still_an_output():
    made = merge(op(MATMUL), op(BIAS), {"X": "C"}, keep=("C",))
    assert [t.name for t in made.outputs] == ["C", "Y"]


def test_a_shared_input_is_one_input():
    add = op("op add(A: f32[N], B: f32[N]) -> (C: f32[N]) { C[i] = A[i] + B[i] }")
    made = merge(op(SQUARE), add, {"A": "Y"}, share={"B": "X"})
    assert [t.name for t in made.inputs] == ["X"]
    assert str(simplify(inline(made)).steps[0].expr) == "((X[i] * X[i]) + X[i])"


def test_extents_that_only_values_can_compare_become_a_fact():
    second = op("op add(A: f32[N], B: f32[N]) -> (C: f32[N]) { C[i] = A[i] + B[i] }")
    first = op("op two(P: f32[K], Q: f32[L]) -> (S: f32[K], T: f32[L]) { S[i] = P[i]\n T[i] = Q[i] }")
    made = merge(first, second, {"A": "S", "B": "T"})
    assert [str(f) for f in made.facts] == ["(K - L >= 0 and -K + L >= 0)"]
    assert holds(made.facts[0], {"K": 2, "L": 2}) and not holds(made.facts[0], {"K": 2, "L": 3})


def test_facts_of_both_are_kept_in_the_merged_sizes():
    first = op("op half(X: f32[N]) -> (Y: f32[N / 2]) where N % 2 == 0 { Y[i] = X[i] }")
    made = merge(first, first, {"X": "Y"})
    assert shape_of(made.outputs[0], {"N": 12}) == (3,)
    assert [all(holds(f, {"N": n}) for f in made.facts) for n in (4, 6, 8)] == [True, False, True]


def test_extents_that_can_never_agree_are_refused():
    first = op("op pair(X: f32[N]) -> (Y: f32[N, 2]) { Y[i, j] = X[i] where j in 0:2 }")
    second = op("op triple(X: f32[N, 3]) -> (Y: f32[N, 3]) { Y[i, j] = X[i, j] }")
    with pytest.raises(UserError, match=r"error\[E704\]: `X` of `triple` has 2 elements in dimension 1, expected 3"):
        merge(first, second, {"X": "Y"})
    square = op("op square(X: f32[N, N]) -> (Y: f32[N]) { Y[i] = X[i, i] }")
    with pytest.raises(UserError, match=r"`N` of `square` is 3 in `X` \(dimension 0\) and 2 in `X` \(dimension 1\)"):
        unify(square, {"X": (affine(3), affine(2))})


def test_another_rank_is_refused():
    with pytest.raises(UserError, match=r"error\[E703\]: `X` of `square` has 1 dimensions \[N\], got 2: \[M, N\]"):
        merge(op(MATMUL), op(SQUARE), {"X": "C"})


def test_another_dtype_is_refused():
    with pytest.raises(UserError, match=r"error\[E702\]: `X` of `half` is f16, and `Y` is f32"):
        merge(op(SQUARE), op("op half(X: f16[N]) -> (Y: f16[N]) { Y[i] = X[i] }"), {"X": "Y"})


def test_an_operator_that_updates_in_place_is_refused():
    with pytest.raises(UnsupportedError, match="changes `X` in place"):
        merge(op(SQUARE), op("op inc(inout X: f32[N]) { X[i] = X[i] + 1 }"), {"X": "Y"})


def test_scalars_and_sizes_may_be_given_as_values():
    scale = op("op scale(X: f32[N]; a: f32, M: int) -> (Y: f32[M, N]) { Y[m, n] = X[n] * a }")
    part = Part(scale, {"X": "x", "Y": "y"}, scalars={"a": Const(1.0, F32)}, sizes={"M": affine("N") * 2})
    made = simplify(compose("twice", [part], ["y"], {"x": (affine("N"),)}))
    assert str(made) == "op twice(x: f32[N]) -> (y: f32[2*N, N]) {\n    y[m, n] = x[n]  where m in 0:2*N, n in 0:N\n}"


def test_scalars_that_are_not_given_stay_parameters_with_names_of_their_own():
    scale = op("op scale(X: f32[N]; a: f32 = 2) -> (Y: f32[N]) { Y[n] = X[n] * a }")
    made = merge(scale, scale, {"X": "Y"})
    assert [p.name for p in made.params] == ["a", "a_2"]
    got = evaluate(made, {"N": 1}, {"a": 3.0, "a_2": 5.0}, {"X": np.ones(1, np.float32)})
    assert got["Y_2"].tolist() == [15.0]


def test_a_size_that_no_input_shows_becomes_a_parameter():
    made = compose("f", [Part(op(SQUARE), {"X": "x", "Y": "y"})], ["y"], {"x": (affine("N") * 2,)})
    assert [(p.name, p.is_size) for p in made.params] == [("N", True)]


def test_softmax_after_a_matmul_is_softmax_after_a_matmul():
    first, second = op(MATMUL), op(SOFTMAX)
    made = simplify(inline(merge(first, second, {"X": "C"})))
    assert_is_one_after_the_other(made, first, second, {"X": "C"}, {"M": 3, "K": 2, "N": 4})


def test_sizes_are_bound_where_they_stand_alone_and_compared_elsewhere():
    conv = library("movement", "pack_panels")
    found = unify(op("op f(X: f32[N], Y: f32[2*N + 1]) -> (Z: f32[N]) { Z[i] = X[i] + Y[2*i] }"),
                  {"X": (affine("B"),), "Y": (affine("B") * 2 + 1,)})
    assert dict(found.sizes) == {"N": affine("B")} and found.facts == ()
    assert unify(conv, {"A": (affine(8), affine("Q"))}).sizes == {"M": affine(8), "K": affine("Q")}
