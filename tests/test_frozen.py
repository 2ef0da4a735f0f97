"""Operators with inputs that are given once: they compute the same, and what is made of these inputs is made once."""

import copy
import pickle
import threading

import numpy as np
import pytest

import polyop
from polyop import formed, graph, operator
from polyop.ir.errors import CallError
from polyop.runtime import threads
from tests.library.case import check
from tests.library.catalog import CASES, IDS, accuracy

MATMUL = polyop.op("op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }")
TURNED = polyop.op("op turned(A: f32[M, K], B: f32[N, K]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[n, k] }")
PICKED = polyop.op("""op picked(ids: i64[M], A: f32[V, K], B: f32[K, N]) -> (C: f32[M, N]) {
    C[m, n] += A[ids[m], k] * B[k, n]
}""")
UPDATE = polyop.op("op update(inout C: f32[M, N], A: f32[M, K], B: f32[K, N]) { C[m, n] += A[m, k] * B[k, n] }")
SEVERAL = [(name, case) for name, case in CASES if len(case.inputs) > 1]
NAMES = [i for i, (_, case) in zip(IDS, CASES, strict=True) if len(case.inputs) > 1]


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(("name", "case"), SEVERAL, ids=NAMES)
def test_every_operator_of_the_library_computes_the_same_with_its_last_inputs_frozen(name, case):
    op, dtype, sizes = polyop.load(name)[case.op], case.dtypes[0], case.sizes[-1]
    arrays, keywords = case.arguments(dtype, sizes), case.keywords(sizes)
    pairs = [(p, a) for p, a in zip(op.interface.tensors, arrays, strict=True)]
    frozen = {p.name: a for p, a in pairs[1:] if not p.inout}
    if not frozen:
        pytest.skip("it changes all inputs but the first in place")
    layer, want = op.freeze(**frozen), case.expected(arrays, sizes)
    for _ in range(2):
        got = layer(**{p.name: a.copy() for p, a in pairs if p.name not in frozen}, **keywords)
        check(case, accuracy(dtype), sizes, got, want)


@pytest.mark.parametrize("op, shape", [(MATMUL, (129, 49)), (TURNED, (49, 129))])
def test_what_is_made_of_a_frozen_input_is_made_in_the_first_call(op, shape):
    b = numbers(*shape)
    layer, a = op.freeze(B=b), numbers(33, 129, seed=1)
    want = op(a, b)
    assert layer.kept_bytes == 0
    assert (layer(a) == want).all()
    kept = layer.kept_bytes
    assert kept > b.nbytes
    b[:] = 0  # nobody may do that; it shows that the copy is read
    for rows in (33, 33, 34, 50, 33):
        assert (layer(np.resize(a, (rows, 129)))[:33] == want).all()
    assert layer.kept_bytes == kept  # by all kernels, which differ in their rows alone


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("columns, depth", [(1, 257), (2, 31), (23, 256), (24, 1), (25, 513), (47, 2), (48, 255), (49, 511)])
def test_rows_change_from_call_to_call(columns, depth, turned, count):
    b, op = numbers(columns, depth), TURNED if turned else MATMUL
    layer = op.freeze(B=b if turned else np.ascontiguousarray(b.T))
    before = polyop.get_num_threads()
    polyop.set_num_threads(count)
    try:
        for m in (9, 0, 31, 1, 5, 47, 13, 9):
            a = numbers(m, depth, seed=m)
            assert (layer(a) == a @ b.T).all()
            out = np.full((m, columns), np.nan, np.float32)
            assert layer(a, out=out) is out and (out == a @ b.T).all()
    finally:
        polyop.set_num_threads(before)


@pytest.mark.parametrize("rows", range(1, 9))
def test_a_few_rows_read_a_copy_where_that_is_sooner(rows):
    for op, b in ((MATMUL, numbers(513, 130)), (TURNED, numbers(130, 513))):
        layer, a = op.freeze(B=b), numbers(rows, 513, seed=1)
        want = a @ (b if op is MATMUL else b.T)
        assert all((layer(a) == want).all() for _ in range(3))
        made = op.compile(target="x86:x86-64-v3", options=polyop.Options(rows=rows, frozen=("B",)))
        assert any(x.lasting for x in made.binary.signature.work) == (rows >= 4)


@pytest.fixture
def three(monkeypatch):
    before = polyop.get_num_threads()
    monkeypatch.setattr(operator, "SERIAL", 1)
    monkeypatch.setattr(formed, "SERIAL", 1)
    polyop.set_num_threads(3)
    least = threads.share_from(0, 0)
    yield
    threads.share_from(*least)
    polyop.set_num_threads(before)


def test_threads_share_the_copy(three):
    f = numbers(3, 3, 20, 50)
    x, conv = numbers(2, 9, 10, 20, seed=1), polyop.library("conv2d_nhwc")
    layer = conv.freeze(F=f)
    want = conv(x, f, pad=1)
    for _ in range(3):
        assert (layer(x, pad=1) == want).all()
    assert layer.kept_bytes >= f.nbytes
    other = numbers(1, 30, 31, 20, seed=2)
    assert (layer(other, pad=1) == conv(other, f, pad=1)).all()


def test_kernels_that_make_the_same_share_it(three):
    b, a = numbers(257, 480), numbers(40, 257, seed=1)
    layer = MATMUL.freeze(B=b)
    assert all((layer(a) == a @ b).all() for _ in range(3))
    kept = layer.kept_bytes
    polyop.set_num_threads(1)  # has another kernel
    assert all((layer(a) == a @ b).all() for _ in range(3))
    assert layer.kept_bytes == kept > b.nbytes


@pytest.mark.parametrize("options, same", [
    ({"rows": 4}, True), ({"threads": True}, True), ({"rows": 8}, False), ({"height": 6}, False)])
def test_kernels_make_the_same_for_tiles_of_as_many_columns(options, same):
    def first(**more):
        made = MATMUL.compile(target="x86:x86-64-v3", options=polyop.Options(frozen=("B",), **more))
        return made.binary.signature.first_call
    assert first() and (first(**options) == first()) == same


@pytest.mark.parametrize("module", ["follows", "lasts"])
def test_loops_that_are_emitted_as_they_were_proved_make_all_in_each_call(module, monkeypatch, tmp_path):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    from polyop import making
    from polyop.ir.module import Proof

    monkeypatch.setattr(making, module, lambda *_: Proof("a claim", False, "a case"))
    op = polyop.op(f"op {module}_not(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] }}")
    a, b = numbers(20, 60), numbers(60, 50, seed=1)
    layer = op.freeze(B=b)
    assert all((layer(a) == a @ b).all() for _ in range(3)) and layer.kept_bytes == 0


def test_calls_that_come_first_at_the_same_time_all_return_the_product():
    b, a = numbers(300, 100), numbers(40, 300, seed=1)
    want = a @ b
    for _ in range(5):
        layer, found, gate = MATMUL.freeze(B=b), [], threading.Barrier(4)

        def one(layer=layer, found=found, gate=gate):
            gate.wait()
            found.append(layer(a))
        many = [threading.Thread(target=one) for _ in range(4)]
        for t in many:
            t.start()
        for t in many:
            t.join()
        assert len(found) == 4 and all((c == want).all() for c in found)


def test_what_is_added_up_in_a_first_call_is_not_begun_again_by_another():
    op = polyop.op("""op f(X: f32[M, N], V: f32[K, J], W: f32[J, N]) -> (Y: f32[M, K]) {
        U[k, n] += V[k, j] * W[j, n]
        Y[m, k] += X[m, n] * U[k, n]
    }""")
    x, v, w = numbers(40, 60), numbers(50, 3000, seed=1), numbers(3000, 60, seed=2)
    want = op(x, v, w)
    for _ in range(4):
        layer = op.freeze(V=v, W=w)
        many = [threading.Thread(target=layer, args=(x,)) for _ in range(3)]
        for t in many:
            t.start()
        for t in many:
            t.join()
        assert (layer(x) == want).all()


def test_a_size_is_known_only_if_the_frozen_array_leaves_it_no_choice():
    op = polyop.op("""op g(X: f32[A], Z: f32[B], V: f32[C], W: f32[A + B + C]) -> (Y: f32[C], Q: f32[A], R: f32[B]) {
        T[c] = 2.0 * W[c + A]
        Y[c] = T[c] + V[c]
        Q[a] = X[a]
        R[b] = Z[b]
    }""")
    w = np.arange(10, dtype=np.float32)
    layer = op.freeze(W=w)
    for a in (1, 5, 2):
        got = layer(numbers(a), numbers(7 - a), np.zeros(3, np.float32))[0]
        assert (got == 2 * w[a:a + 3]).all()
    op = polyop.op("""op h(X: f32[A], V: f32[M, C], W: f32[A + C, N]) -> (Y: f32[M, N], Q: f32[A]) {
        Y[m, n] += V[m, c] * W[c + A, n]
        Q[a] = X[a]
    }""")
    w = numbers(60, 50)
    layer = op.freeze(W=w)
    for a in (20, 10, 20, 30, 1):
        v = numbers(30, 60 - a, seed=a)
        assert (layer(numbers(a), v)[0] == v @ w[a:]).all()


def test_an_artefact_is_called_like_the_layer_that_it_is_of():
    a, b = numbers(20, 64, seed=1), numbers(64, 50)
    layer = MATMUL.freeze(B=b)
    made = layer.compile()
    assert (made(a) == a @ b).all() and (pickle.loads(pickle.dumps(made))(a) == a @ b).all()
    with pytest.raises(CallError, match="frozen takes 1 argument"):
        made(a, b)
    strict = layer.compile(options=polyop.Options(numerics="strict"))
    assert (strict(a) == a @ b).all() and any(x.lasting for x in strict.binary.signature.work)


def test_a_first_call_that_fails_leaves_the_next_one_right():
    b, table = numbers(60, 50), numbers(7, 60, seed=1)
    layer = PICKED.freeze(A=table, B=b)
    with pytest.raises(CallError):
        layer(np.array([1, 2, 7, 0, 1, 1, 1, 1, 1, 1]))
    ids = np.arange(20) % 7
    for _ in range(2):
        assert (layer(ids) == table[ids] @ b).all()


def test_a_call_that_updates_does_it_once():
    a, b = numbers(12, 30), numbers(30, 40, seed=1)
    layer = UPDATE.freeze(B=b)
    for _ in range(3):
        c = numbers(12, 40, seed=2)
        want = c + a @ b
        layer(c, a)
        assert (c == want).all()


def test_arguments_keep_their_order_and_their_names():
    a, b, c = numbers(12, 30), numbers(30, 40, seed=1), numbers(12, 40, seed=2)
    layer, want = UPDATE.freeze(A=a), c + a @ b
    for call in (lambda x: layer(x, b), lambda x: layer(C=x, B=b), lambda x: layer(x, B=b)):
        x = c.copy()
        call(x)
        assert (x == want).all()
    whole = MATMUL.freeze(A=a, B=b)
    assert (whole() == a @ b).all() and (MATMUL.freeze(A=a)(b) == a @ b).all()
    assert (MATMUL.freeze(A=c).freeze(A=a)(b) == a @ b).all() and (MATMUL.freeze(A=a).freeze(B=b)() == a @ b).all()


@pytest.mark.parametrize("wrong, text", [
    (lambda b: MATMUL.freeze(D=b), "`matmul` has no input `D`, so it cannot be frozen"),
    (lambda b: MATMUL.freeze(B=[[1.0]]), "`B` is a list"),
    (lambda b: UPDATE.freeze(C=b), "`update` changes `C` in place, so it cannot be frozen"),
    (lambda b: polyop.library("conv2d").freeze(stride=b), "`conv2d` has `stride`, which is no array, so it cannot be frozen"),
    (lambda b: MATMUL.freeze(B=b)(b, b), "`matmul` with B frozen takes 1 argument by position, got 2"),
    (lambda b: MATMUL.freeze(B=b)(b, B=b), "`B` of `matmul` is frozen, and given again"),
    (lambda b: MATMUL.freeze(B=b)(), "`matmul` is called without `A`"),
    (lambda b: MATMUL.freeze(B=b)(b, C=b), "`matmul` has no parameter `C`"),
    (lambda b: MATMUL.freeze(B=b)(b[:, :3]), "E60"),
    (lambda b: MATMUL.freeze(B=b.astype(np.float64)), "`B` is f32, got f64"),
    (lambda b: MATMUL.freeze(B=b[0]), "`B` has 2 dimensions [K, N], got 1"),
    (lambda b: MATMUL.freeze(), "no input of `matmul` is given to be frozen"),
    (lambda b: MATMUL.freeze(self=b), "`matmul` has no input `self`"),
])
def test_what_does_not_fit_is_refused(wrong, text):
    with pytest.raises(CallError) as error:
        wrong(numbers(8, 8))
    assert text in str(error.value)


def test_a_frozen_operator_can_be_copied_and_pickled():
    a, b = numbers(20, 30), numbers(30, 40, seed=1)
    layer = MATMUL.freeze(B=b)
    again = pickle.loads(pickle.dumps(layer))
    assert (again(a) == a @ b).all() and copy.deepcopy(layer) is layer
    assert repr(layer).endswith("with B frozen>")


def test_constants_of_a_graph_are_frozen():
    b, bias = numbers(64, 50), numbers(50, seed=3)
    add = polyop.op("op add(X: f32[M, N], b: f32[N]) -> (Y: f32[M, N]) { Y[m, n] = X[m, n] + b[n] }")
    x = graph.input("x", graph.f32["M", 64])
    made = graph.build(add(MATMUL(x, b), bias)).compile()
    a = numbers(20, 64, seed=1)
    for rows in (20, 20, 7):
        assert (made({"x": a[:rows]}) == a[:rows] @ b + bias).all()
    assert sum(s.run.kept_bytes for s in made.steps) >= b.nbytes
    layer = MATMUL.freeze(B=b)
    assert (graph.build(layer(x)).compile()({"x": a}) == a @ b).all()


def test_weights_of_torch_need_no_gradient():
    torch = pytest.importorskip("torch")
    w = torch.nn.Parameter(torch.tensor(numbers(40, 30)))
    layer, x = TURNED.freeze(B=w), torch.tensor(numbers(20, 30, seed=1))
    for _ in range(3):
        got = layer(x)
        assert isinstance(got, torch.Tensor) and (got == x @ w.T).all()


def test_explain_says_what_is_kept():
    made = MATMUL.freeze(B=numbers(64, 50)).compile()
    assert "in the first call" in made.explain()
    assert any("first call alone" in p.claim for p in made.proofs)
    assert "first call" not in MATMUL.compile().explain()
