"""Plans: bound, run with memory that is used again, and compiled."""

import random
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.graph import build, f32, i64, input
from polyop.graph.memory import assign
from polyop.graph.network import network
from polyop.ir.dtypes import F16, F32
from polyop.ir.errors import CallError, UserError
from polyop.ir.expr import affine
from polyop.ir.op import Tensor
from tests.graph.helpers import (
    ADD,
    BLUR,
    DOUBLE,
    FLIP,
    LINEAR,
    MATMUL,
    SCAN,
    TOTAL,
    by_reference,
    call_by_call,
    random_inputs,
    square,
)

X, Y = square("x"), square("y")


def reference(outputs):
    built = build(outputs)
    return network(built.clusters(), built.form, runner=by_reference)


def test_outputs_come_back_as_they_were_asked_for():
    inputs = {"x": np.ones((2, 2), np.float32)}
    d = DOUBLE(X)
    assert reference(d)(inputs).tolist() == [[2, 2], [2, 2]]
    assert isinstance(reference([d])(inputs), tuple)
    named = reference({"twice": d, "rows": TOTAL(d)})(inputs)
    assert {k: v.tolist() for k, v in named.items()} == {"twice": [[2, 2], [2, 2]], "rows": [4, 4]}


def test_an_array_among_the_arguments_is_a_constant_of_the_graph():
    w = np.array([[2, 0], [0, 3]], np.float32)
    made = reference(MATMUL(X, w))
    assert [n for n, _ in made.graph.inputs] == ["x"]
    assert made({"x": np.ones((2, 2), np.float32)}).tolist() == [[2, 3], [2, 3]]
    with pytest.raises(CallError, match="E605"):
        made({"x": np.ones((3, 3), np.float32)})


@pytest.mark.parametrize("inputs, text", [
    ([1, 2], "inputs are given by name, in a dict; got list"), ({"x": 1}, "the input `y` is not given"),
    ({"x": 1, "y": 1, "z": 1}, "there is no input `z`"),
])
def test_inputs_that_are_missing_or_unknown_are_named(inputs, text):
    with pytest.raises(UserError, match=rf"error\[E709\]: {text}"):
        reference(MATMUL(X, Y))(inputs)


@pytest.mark.parametrize("x, code", [
    (np.ones((2, 2)), "E602"), (np.ones(2, np.float32), "E603"), (np.ones((2, 3), np.float32), "E604"),
])
def test_an_input_that_does_not_fit_is_refused_before_anything_runs(x, code):
    with pytest.raises(CallError, match=code):
        reference(MATMUL(X, Y))({"x": x, "y": np.ones((2, 2), np.float32)})


def test_an_input_that_does_not_fit_is_refused_after_one_that_did():
    made, good = reference(DOUBLE(X)), np.ones((2, 2), np.float32)
    made({"x": good})
    for bad in (good.astype(np.float64), np.ones((2, 3), np.float32), good.tolist()):
        with pytest.raises(CallError):
            made({"x": bad})
    assert made({"x": good}).tolist() == [[2, 2], [2, 2]]


def test_a_long_chain_needs_two_pieces_of_memory():
    y = X
    for _ in range(6):
        y = MATMUL(y, X)
    made = reference(y)
    assert len(made.steps) == 6 and made.slots.count == 2
    inputs = random_inputs(made.graph)
    assert made(inputs).tobytes() == call_by_call(made.graph, inputs)[made.graph.outputs[0][1]].tobytes()


def test_memory_between_kernels_is_kept_for_the_next_call_and_never_given_out():
    made = reference({"a": MATMUL(MATMUL(X, Y), X)})
    inputs = random_inputs(made.graph)
    first, second = made(inputs)["a"], made(inputs)["a"]
    assert first is not second and first.tobytes() == second.tobytes()
    between = next(iter(made._kept.between.values()))
    assert len(made._kept.between) == 1 and not any(np.shares_memory(first, b) for b in between.values())


def test_threads_do_not_share_what_lies_between_kernels():
    made = reference(MATMUL(MATMUL(X, Y), X))
    cases = [random_inputs(made.graph, seed=k) for k in range(4)]
    want = [made(c).tobytes() for c in cases]
    got = [[] for _ in cases]

    def run(k):
        got[k] += [made(cases[k]).tobytes() for _ in range(5)]
    threads = [threading.Thread(target=run, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [[w] * 5 for w in want]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4), st.booleans()), max_size=12))
def test_tensors_share_memory_only_if_their_lives_do_not_meet(lives):
    tensors = [Tensor(f"t{k}", F32 if wide else F16, (affine("N"),), "temp") for k, (_, _, wide) in enumerate(lives)]
    spans = {t.name: (first, first + more) for t, (first, more, _) in zip(tensors, lives, strict=True)}
    found = assign(tensors, spans)
    for a in spans:
        for b in spans:
            if a < b and found.of[a] == found.of[b]:
                assert spans[a][1] < spans[b][0] or spans[b][1] < spans[a][0]
    assert found.bytes_({t.name: 4 * k for k, t in enumerate(tensors)}) == tuple(
        max(4 * k for k, t in enumerate(tensors) if found.of[t.name] == s) for s in range(found.count))


def test_a_compiled_graph_serves_every_size_and_layout():
    x, w, b = input("x", f32["B", "D"]), input("w", f32["D", "F"]), input("b", f32["F"])
    made = build(polyop.library("relu")(polyop.library("bias_add")(LINEAR(x, w), b))).compile()
    assert len(made.steps) == 1
    rng = np.random.default_rng(0)
    for batch, d, f in ((1, 1, 1), (5, 17, 33), (8, 64, 48)):
        a, m, c = (rng.standard_normal(s).astype(np.float32) for s in ((batch, d), (d, f), (f,)))
        np.testing.assert_allclose(made({"x": a, "w": m, "b": c}), np.maximum(a @ m + c, 0), rtol=1e-5, atol=1e-5)
    turned = np.asfortranarray(m)
    np.testing.assert_allclose(made({"x": a, "w": turned, "b": c}), np.maximum(a @ m + c, 0), rtol=1e-5, atol=1e-5)


def test_a_compiled_graph_agrees_with_its_calls_one_by_one():
    m = MATMUL(X, Y)
    made = build({"sum": ADD(m, X), "product": m, "rows": TOTAL(polyop.library("gelu")(m))}).compile()
    inputs = random_inputs(made.graph, size=9)
    memory = call_by_call(made.graph, inputs)
    for label, got in made(inputs).items():
        np.testing.assert_allclose(got, memory[dict(made.graph.outputs)[label]], rtol=1e-5, atol=1e-5)


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 1 << 20))
def test_compiled_graphs_of_any_form_agree_with_their_calls_one_by_one(seed):
    choose = random.Random(seed)
    values = [X, Y]
    for _ in range(choose.randint(2, 5)):
        operator = choose.choice((ADD, BLUR, DOUBLE, FLIP, MATMUL, SCAN))
        values.append(operator(*(choose.choice(values[-3:]) for _ in operator.interface.tensors)))
    made = build({"last": values[-1], "some": choose.choice(values[2:])}).compile()
    inputs = {n: v / 4 for n, v in random_inputs(made.graph, size=6, seed=seed).items()}
    memory = call_by_call(made.graph, inputs)
    for label, got in made(inputs).items():
        want = memory[dict(made.graph.outputs)[label]]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1, np.abs(want).max()))


def test_torch_tensors_go_in_and_come_out():
    torch = pytest.importorskip("torch")
    made = build(MATMUL(MATMUL(X, Y), X)).compile()
    a, b = torch.rand(5, 5), torch.rand(5, 5)
    got = made({"x": a, "y": b})
    assert isinstance(got, torch.Tensor)
    torch.testing.assert_close(got, a @ b @ a)


def test_attention_with_its_heads_swapped_on_the_way_in_and_out_is_one_kernel():
    swap = polyop.library("swap_heads")
    q = input("q", f32["B", "S", "H", "D"])
    made = build(swap(polyop.library("attention")(swap(q), swap(q), swap(q), scale=0.5))).compile()
    assert len(made.steps) == 1 and not made.slots.of
    x = np.random.default_rng(0).standard_normal((2, 9, 3, 4)).astype(np.float32)
    p = np.swapaxes(x, 1, 2).astype(np.float64)
    e = np.exp(0.5 * p @ np.swapaxes(p, -1, -2))
    want = np.swapaxes(e / e.sum(-1, keepdims=True) @ p, 1, 2)
    np.testing.assert_allclose(made({"q": x}), want, rtol=1e-5, atol=1e-5)


def test_a_row_that_is_not_there_is_reported_by_the_kernel_that_gathers_it():
    ids, e, g, b = input("ids", i64["B", "S"]), input("E", f32["V", "D"]), input("g", f32["D"]), input("b", f32["D"])
    made = build(polyop.library("layernorm")(polyop.library("embedding")(ids, e), g, b)).compile()
    assert len(made.steps) == 1
    arrays = {"E": np.eye(3, 4, dtype=np.float32), "g": np.ones(4, np.float32), "b": np.zeros(4, np.float32)}
    assert made({"ids": np.array([[0, 2]]), **arrays}).shape == (1, 2, 4)
    with pytest.raises(CallError, match=r"E610.*ids\[0, 1\] = 7 reads outside `E`"):
        made({"ids": np.array([[0, 7]]), **arrays})


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_a_size_may_be_zero(sizes):
    batch, d, f = sizes
    x, w, b = input("x", f32["B", "D"]), input("w", f32["D", "F"]), input("b", f32["F"])
    made = build(polyop.library("bias_add")(LINEAR(x, w), b)).compile()
    got = made({"x": np.ones((batch, d), np.float32), "w": np.ones((d, f), np.float32), "b": np.ones(f, np.float32)})
    assert got.tolist() == np.full((batch, f), 1 + d).tolist()
