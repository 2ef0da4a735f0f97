"""Operators called on symbolic values: shapes follow, and what does not fit is said at once."""

import numpy as np
import pytest

import polyop
from polyop.graph import bf16, build, f16, f32, i64, input
from polyop.ir.errors import UserError
from polyop.ir.expr import affine
from tests.graph.helpers import ADD, LINEAR, MATMUL

X, W = input("x", f32["B", "S", "D"]), input("w", f32["D", "F"])
CONV, RELU, ROWS = (polyop.library(n) for n in ("conv2d", "relu", "broadcast_rows"))


def test_shapes_follow_from_those_of_the_arguments():
    assert str(LINEAR(X, W)) == "Y: f32[B, S, F]"
    y = CONV(input("x", f32["B", 3, "H", "W"]), input("k", f32[16, 3, 5, 5]), pad=2, stride=2)
    assert str(y) == "Y: f32[B, 16, floor((H + 1)/2), floor((W + 1)/2)]"


def test_a_graph_prints_its_calls_in_the_order_in_which_they_run():
    y = LINEAR(X, W)
    g = build([polyop.library("layernorm")(y, input("g", f32["F"]), input("b", f32["F"]), eps=0.5)]).graph
    assert str(g) == """graph(x: f32[B, S, D], w: f32[D, F], g: f32[F], b: f32[F]) -> (layernorm_Y: f32[B, S, F]) {
    linear_Y = linear(x, w)
    layernorm_Y = layernorm(linear_Y, g, b, eps=0.5)
}"""


def test_names_that_generated_text_could_not_hold_are_changed_inside_and_kept_outside():
    g = build([ADD(input("int", f32["float", "float"]), input("y", f32["float", "float"]))]).graph
    assert [n for n, _ in g.inputs] == ["int", "y"]
    assert g.tensors[0].name != "int" and "float" not in g.sizes


def test_an_operator_called_twice_gives_two_results_with_names_of_their_own():
    g = build([LINEAR(LINEAR(X, W), input("v", f32["F", "G"]))]).graph
    assert [c.name for c in g.calls] == ["linear", "linear_2"]


def test_a_value_that_no_output_needs_is_not_in_the_graph():
    LINEAR(X, W)
    assert len(build([RELU(X)]).graph.calls) == 1


def test_a_graph_may_be_far_deeper_than_the_stack_of_python():
    y = X
    for _ in range(2000):
        y = RELU(y)
    assert len(build([y]).graph.calls) == 2000


def test_an_int_parameter_takes_a_number_or_an_extent():
    v = input("v", f32["N"])
    assert ROWS(v, M=7).shape == (affine(7), affine("N"))
    assert ROWS(v, M=X.shape[0]).shape == (affine("B"), affine("N"))


def test_extents_that_only_a_call_can_compare_are_checked_then():
    y = MATMUL(input("a", f32["P", "P"]), input("b", f32["Q", "Q"]))
    assert [str(f) for f in build([y]).graph.facts] == ["(P - Q >= 0 and -P + Q >= 0)"]


def refused(code, text, call):
    with pytest.raises(UserError) as caught:
        call()
    assert caught.value.diagnostic.code == code
    assert text in caught.value.diagnostic.message


@pytest.mark.parametrize("code, text, call", [
    ("E701", "an extent is a name or a number >= 0, got -1", lambda: f32[-1]),
    ("E701", "got 'N M'", lambda: f32["N M"]),
    ("E701", "expected a type such as f32", lambda: input("x", "f32")),
    ("E701", "got 'my input'", lambda: input("my input", f32["N"])),
    ("E702", "`T` of `linear` is f32 in `X` and f16 in `W`", lambda: LINEAR(X, input("w", f16["D", "F"]))),
    ("E702", "`X` of `linear` is i64, but `T` is one of f16, bf16, f32, f64", lambda: LINEAR(input("x", i64["B", "D"]), W)),
    ("E702", "`A` of `add` is f32, got x: bf16[N, N]", lambda: ADD(input("x", bf16["N", "N"]), input("y", f32["N", "N"]))),
    ("E703", "`A` of `add` has 2 dimensions [N, N], got 3: [B, S, D]", lambda: ADD(X, X)),
    ("E703", "`W` of `linear` has 2 dimensions [D, F], got 1: [D]", lambda: LINEAR(X, input("w", f32["D"]))),
    ("E703", "`X` of `linear` has at least 1 dimensions [..., D], got 0: x: f32", lambda: LINEAR(input("x", f32), W)),
    ("E703", "`B` of `add` has as `A` has it, 3 dimensions [...], got 2", lambda: polyop.library("add")(X, W)),
    ("E704", "`D` of `linear` is 3 in `X` (dimension 1) and 4 in `W` (dimension 0)",
     lambda: LINEAR(input("x", f32["B", 3]), input("w", f32[4, "F"]))),
    ("E705", "nothing binds `M`", lambda: build([RELU(input("x", f32[affine("M") * 2]))])),
    ("E705", "cannot hold", lambda: build([CONV(input("x", f32["B", 3, 2, 2]), input("k", f32[16, 3, 5, 5]))])),
    ("E701", "an input is called by a name, got 3", lambda: input(3, f32["D"])),
    ("E706", "a graph has at least one output", lambda: build([])),
    ("E706", "got NoneType", lambda: build(None)),
    ("E706", "an output is the result of an operator, got x: f32[B, S, D]", lambda: build([X])),
    ("E706", "got ndarray", lambda: build([np.zeros(3)])),
    ("E706", "two inputs are called `x`", lambda: build([LINEAR(X, input("x", f32["D", "F"]))])),
    ("E706", "`B` is an input and a size", lambda: build([LINEAR(X, input("B", f32["D", "F"]))])),
    ("E707", "`linear` is called on symbolic values", lambda: LINEAR(X, W, out=np.zeros(3))),
    ("E707", "`M` of `broadcast_rows` is an integer, got 1.5", lambda: ROWS(input("v", f32["N"]), M=1.5)),
    ("E708", "`sgd` changes `P` in place", lambda: polyop.library("sgd")(W, W, W, rate=0.1)),
    ("E601", "`linear` has no parameter `V`", lambda: LINEAR(X, V=W)),
    ("E609", "`eps` is a number of dtype f32, got a str", lambda: polyop.library("l2norm")(X, eps="a")),
])
def test_a_call_that_does_not_fit_is_refused(code, text, call):
    refused(code, text, call)
