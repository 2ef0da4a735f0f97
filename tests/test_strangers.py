"""What strangers write: operators that are not in the library, against plain NumPy, and uses that nobody planned."""

import array
import copy
import os
import pickle
import threading
import time

import numpy as np
import pytest

import polyop
from polyop import compiler
from polyop.graph.network import operator
from polyop.ir import reference
from tests.children import finished

# --- processes -----------------------------------------------------------------------------------------------------------


def test_a_child_compiles_though_another_thread_was_compiling_when_it_was_forked(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))  # nothing may be found there, so that something is compiled
    x, stop = np.arange(5, dtype=np.float32), threading.Event()

    def compiling():
        k = 0
        while not stop.is_set():
            k += 1
            polyop.op(f"op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] + {k} }}")(
                x[:, None], x[None])

    polyop.op("op g(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] }")(x)  # whatever is imported late is imported now
    thread = threading.Thread(target=compiling)
    thread.start()
    try:
        codes = []
        for k in range(3):
            time.sleep(0.1)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    y = polyop.op(f"op g(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = {k + 2} * X[i] }}")(x)
                    code = 0 if (y == (k + 2) * x).all() else 2
                finally:
                    os._exit(code)
            codes.append(finished(pid))
    finally:
        stop.set()
        thread.join()
    assert codes == [0, 0, 0]


def test_an_operator_can_be_sent_to_another_process_and_copies_of_a_model_share_it():
    strict = polyop.Options(numerics="strict")
    for f in (polyop.op("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = 2 * X[i] }", options=strict), polyop.library("relu")):
        sent = pickle.loads(pickle.dumps(f))
        assert sent is pickle.loads(pickle.dumps(f)) and sent is not f
        assert (str(sent.interface), sent.options, sent.target) == (str(f.interface), f.options, f.target)
        assert (sent(np.ones(3, np.float32)) == f(np.ones(3, np.float32))).all()
        assert copy.deepcopy({"op": f})["op"] is f is copy.copy(f)
    with pytest.raises(TypeError, match="no text of its own"):
        pickle.dumps(operator(sent.compile().op))


# --- arguments -----------------------------------------------------------------------------------------------------------


def _refusal(f, *args, **keywords):
    with pytest.raises(polyop.UserError) as caught:
        f(*args, **keywords)
    d = caught.value.diagnostic
    return f"{d.code}: {d.message}" + (f" | {d.hint}" if d.hint else "")


def test_what_is_no_array_is_refused_by_name_whatever_its_own_code_raises():
    op = polyop.op("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] }")

    class Broken:
        def __dlpack_device__(self):
            raise KeyError("device")

    assert _refusal(op, Broken()) == "E608: `X`: Broken cannot be read as an array: 'device'"
    assert _refusal(op, array.array("f", [1, 2])) == "E608: `X` is an array.array; expected an array | numpy.asarray(X)"
    assert _refusal(op, b"abc") == "E608: `X` is a bytes; expected an array"
    assert _refusal(op, 1.5) == "E608: `X` is 1.5; expected an array of 1 dimension"
    assert _refusal(polyop.einsum, "ij->ji", [[1.0]]) == "E608: `operand 0` is a list; expected an array"


def test_integers_beyond_every_dtype_are_refused_by_name():
    op = polyop.op("op f(X: f32[N]; a: f32 = 0, n: int = 0, const c: int = 1) -> (Y: f32[N]) { Y[i] = a + n + c }")
    x = np.zeros(2, np.float32)
    assert _refusal(op, x, a=10**5000) == "E609: `a` is f32, got an integer of 16610 bits"
    assert _refusal(op, x, n=-10**5000) == "E609: `n` is i64, got an integer of 16610 bits"
    assert _refusal(op, x, c=1 << 64) == "E609: `c` is i64, got 18446744073709551616"
    assert _refusal(op, 10**5000) == "E608: `X` is an integer of 16610 bits; expected an array of 1 dimension"


def test_what_is_no_text_is_no_operator():
    assert _refusal(polyop.op, None) == "E101: the text of an operator is a str, got a NoneType"
    assert _refusal(polyop.op, b"op f") == "E101: the text of an operator is a str, got a bytes"
    assert _refusal(polyop.einsum, b"i->i", np.ones(2)) == "E150: the equation is a str, got b'i->i'"


def test_a_tensor_is_no_index():
    op = polyop.op("op f(A: f32[M, N]) -> (m: f32[M]) { m[m] += A[m, n] }")
    assert _refusal(op.compile) == ("E204: `m` is a tensor of 1 dimension, and so no index | "
                                    "in one operator a name means one thing: call the index something else")


# --- compiling -----------------------------------------------------------------------------------------------------------


def test_a_contraction_that_also_sums_over_one_operand_alone_is_tuned_without_complaint(caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    op = polyop.op("op g(A: f32[E, J], B: f32[I, K]) -> (C: f32[K, E]) { C[k, e] += A[e, j] * B[i, k] }")
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((33, 7), np.float32), rng.standard_normal((5, 17), np.float32)
    np.testing.assert_allclose(op(a, b), np.einsum("ej,ik->ke", a, b), atol=1e-4)
    assert not caplog.records


def test_sums_along_diagonals_and_into_bins_by_position_run_as_loops(caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    op = polyop.op("""op f(A: f32[B, M], F: f32[N]) -> (C: f32[B, M + N - 1], p: f32[M], q: f32[3], r: f32[M])
        where M >= 1, N >= 1 {
        C[b, i + j] += A[b, i] * F[j]
        p[i / 2]  max= A[b, i]
        q[i % 3]    += A[b, i]
        r[M - 1 - i] += A[b, i]
    }""")
    rng = np.random.default_rng(0)
    for m, n in ((1, 1), (2, 5), (17, 3), (65, 40)):
        a, f = rng.standard_normal((3, m), np.float32), rng.standard_normal(n, np.float32)
        c, p, q, r = op(a, f)
        at = np.arange(m)
        want_p, want_q = np.full(m, -np.inf), np.zeros(3)
        np.maximum.at(want_p, at // 2, a.max(0))
        np.add.at(want_q, at % 3, a.sum(0))
        np.testing.assert_allclose(c, [np.convolve(row, f) for row in a], atol=1e-4)
        np.testing.assert_array_equal(p, want_p)
        np.testing.assert_allclose(q, want_q, atol=1e-4)
        np.testing.assert_allclose(r, a.sum(0)[::-1], atol=1e-5)
    assert not caplog.records


def test_a_loop_over_lanes_that_has_one_point_is_compiled(caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    dot = polyop.op("op f(A: f32[K], B: f32[K]) -> (C: f32) { C += A[k] * B[k] where k <= 0 }")
    product = polyop.op("op g(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] where k <= n }")
    assert dot(np.full(3, 2, np.float32), np.full(3, 3, np.float32)) == 6
    assert (product(np.ones((4, 5), np.float32), np.ones((5, 1), np.float32)) == 1).all()
    assert not caplog.records


TRIANGLES = {
    "m <= k": lambda m, n, k: m <= k,
    "k <= m": lambda m, n, k: k <= m,
    "k <= n": lambda m, n, k: k <= n,
    "n <= k": lambda m, n, k: n <= k,
    "n <= k <= m": lambda m, n, k: (n <= k) & (k <= m),
    "k <= m, k <= n": lambda m, n, k: (k <= m) & (k <= n),
    "n <= m": lambda m, n, k: n <= m + 0 * k,
}


@pytest.mark.parametrize("condition", TRIANGLES)
def test_a_product_over_a_triangle_is_packed_without_complaint(condition, caplog, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    f = polyop.op(f"op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) {{ C[m, n] += A[m, k] * B[k, n] where {condition} }}")
    notes = f.compile().notes
    packed = [n for n in notes if "packed: rows m" in n and "not packed" not in n]
    assert packed and not any("not on rung" in n for n in notes)
    assert ("fused" in packed[0]) == (condition != "n <= m")  # a tile beyond the diagonal does nothing, and copies nothing either
    for m, n, k in ((1, 1, 1), (7, 65, 64), (49, 100, 67)):
        a, b = (np.random.default_rng(k).standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        terms = a[:, None, :].astype(float) * b.T[None]
        places = np.arange(m)[:, None, None], np.arange(n)[None, :, None], np.arange(k)[None, None]
        np.testing.assert_allclose(f(a, b), np.where(TRIANGLES[condition](*places), terms, 0).sum(2), atol=1e-4)
    assert not caplog.records


@pytest.mark.parametrize(("text", "want"), [
    ("t[r] max= X[r, c]; e[r, c] = exp(X[r, c] - t[r]); z[r] += e[r, c]; Y[c, r] = e[r, c] / z[r]",
     lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)),
    ("z[r] += X[r, c] * X[r, c]; Y[c, r] = X[r, c] * rsqrt(z[r] + 1)", lambda x: x / np.sqrt((x * x).sum(1, keepdims=True) + 1)),
])
def test_rows_that_are_written_as_columns_are_turned_in_squares(text, want):
    f = polyop.op(f"op f(X: f32[M, N]) -> (Y: f32[N, M]) {{ {text} }}")
    assert any("it writes across" in line and "rows c" in f.compile().explain() for line in f.compile().explain().splitlines())
    for m, n in ((0, 3), (3, 0), (1, 1), (15, 17), (16, 16), (33, 65), (64, 3)):
        x = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
        np.testing.assert_allclose(f(x), want(x.astype(float)).T if n else x.T, rtol=1e-5, atol=1e-6)


def test_whatever_goes_wrong_on_a_rung_the_next_one_is_tried(caplog, monkeypatch):
    broken = []

    real = compiler.x86.emit

    def emit(nest, *rest):
        if not broken:
            broken.append(nest)
            raise KeyError("a register")
        return real(nest, *rest)

    monkeypatch.setattr(compiler.x86, "emit", emit)
    made = polyop.op("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i] }").compile()
    assert made.binary is not None
    assert "not on rung tuned: KeyError: 'a register'" in made.notes
    assert "polyop bug: f on rung tuned: KeyError: 'a register'" in caplog.messages


def test_the_wide_evaluation_reduces_in_float64_too():
    op = polyop.op("op f(X: f32[N]) -> (s: f32, a: i64) { s += X[i]; a argmax= 0.1 * X[i] }")
    x = np.array([1e8, 1, 1, 1], np.float32)
    made = op.compile()
    want = reference.evaluate(made.op, {"N": 4}, {}, {"X": x}, wide=True)
    assert want["s"] == 100000003.0
    assert want["a"] == 0, "what is equal to the greatest element is found again"
