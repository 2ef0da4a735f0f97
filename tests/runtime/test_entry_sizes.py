"""Calls with sizes never seen before: as without a front, and without Python."""

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyop
from polyop.runtime import blocks, entry, entry_sizes
from tests.runtime.calling import f32, outcome, python_calls

TEXTS = {
    "add": "op f(X: f32[N], Y: f32[N]) -> (Z: f32[N]) { Z[i] = X[i] + Y[i] }",
    "product": "op f(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }",
    "turned": "op f(A: f64[M, K], B: f64[N, K]) -> (C: f64[M, N]) { C[m, n] += A[m, k] * B[n, k] }",
    "two": """op f(X: i16[N, M], y: i16[M]; a: i16 = 3) -> (Z: i16[M, N], S: i32[N]) { Z[j, i] = a * X[i, j] + y[j]
              S[i] += X[i, j] }""",
    "softmax": """op f(X: f32[R, C]) -> (Y: f32[R, C]) { top[r] max= X[r, c]\n e[r, c] = exp(X[r, c] - top[r])\n s[r] += e[r, c]
                  Y[r, c] = e[r, c] / s[r] }""",
    "conv": "op f(X: f32[N], W: f32[R]) -> (Y: f32[N - R + 1]) where N >= R { Y[i] += X[i + r] * W[r] }",
    "strided": "op f(X: f32[N]; const s: int = 2) -> (Y: f32[(N + 1) / s]) { Y[i] = X[s * i] }",
    "edges": "op f(X: f32[N]) -> (Y: f32[N - 2]) where N >= 2 { Y[i] = X[i] + X[i + 1] + X[i + 2] }",
    "fixed": "op f(X: f32[N, 3], Y: f32[2*N]) -> (Z: f32[N]) { Z[i] = X[i, 0] * X[i, 2] + Y[2*i + 1] }",
    "even": "op f(X: f32[N]) -> (Y: f32[N]) where N % 2 == 0 { Y[i] = X[N - 1 - i] }",
    "inout": "op f(inout X: f32[N, M], Y: f32[M]) { X[i, j] = 2 * X[i, j] + Y[j] }",
    "padded": "op f(X: f32[N]; n: int = 5) -> (Y: f32[N + n]) { Y[i] = X[i] else 1 }",
    "flat": "op f(X: f32[A, B, C], Z: f32[A, B, C]) -> (Y: f32[A, B, C]) { Y[a, b, c] = X[a, b, c] + 2 * Z[a, b, c] }",
    "runs": """op f(X: f32[B, C, H, W], g: f32[C]) -> (Y: f32[B, C, H, W], s: f32[B]) { Y[b, c, h, w] = X[b, c, h, w] * g[c]
               s[b] += X[b, c, h, w] }""",
    "flat inout": "op f(inout X: f32[A, B, C]) { X[a, b, c] = 2 * X[a, b, c] }",
    "kept": "op f(X: f64[A, B, C]) -> (Y: f64[A, B, C]) { T[a, b, c] = X[a, b, c] + A; Y[a, b, c] = T[a, b, C - 1 - c] }",
    "window": """op f(X: f32[N, D], W: f32[R, D]) -> (Y: f32[N - R + 1, D]) where N >= R
                 { Y[i, d] += X[i + r, d] * W[r, d] }""",
    "image": """op f(X: f32[C, H, W], F: f32[K, C, R, R]) -> (Y: f32[K, H - R + 1, W - R + 1]) where H >= R, W >= R
                { Y[k, p, q] += X[c, p + r, q + s] * F[k, c, r, s] }""",
    "gather": "op f(ids: i64[B], E: f32[V, D]) -> (Y: f32[B, D]) { Y[b, d] = E[ids[b], d] }",
}
SHAPES = {
    "add": lambda n, m, k: ((n,), (n,)), "product": lambda n, m, k: ((n, k), (k, m)), "turned": lambda n, m, k: ((n, k), (m, k)),
    "two": lambda n, m, k: ((n, m), (m,)), "softmax": lambda n, m, k: ((n, m),), "conv": lambda n, m, k: ((n + k,), (k,)),
    "strided": lambda n, m, k: ((n,),), "edges": lambda n, m, k: ((n,),), "fixed": lambda n, m, k: ((n, 3), (2 * n,)),
    "even": lambda n, m, k: ((n,),), "inout": lambda n, m, k: ((n, m), (m,)), "padded": lambda n, m, k: ((n,),),
    "gather": lambda n, m, k: ((n,), (m, k)), "flat": lambda n, m, k: ((3, n, m),) * 2,
    "runs": lambda n, m, k: ((3, n % 4 + 1, n, m), (n % 4 + 1,)), "flat inout": lambda n, m, k: ((n % 4 + 1, m, 3),),
    "kept": lambda n, m, k: ((2, n, m),), "window": lambda n, m, k: ((n + k % 9, m), (k % 9 + 1, m)),
    "image": lambda n, m, k: ((3, n, m), (4, 3, k % 2 + 1, k % 2 + 1)),
}
DTYPES = {"two": ("i2", "i2"), "turned": ("f8", "f8"), "gather": ("i8", "f4"), "kept": ("f8",)}
made = {}


def operator(name):
    """The operator, and its dtypes."""
    if name not in made:
        # kernels of their own for what is few at the end round otherwise
        f = polyop.op(TEXTS[name], options=polyop.Options(special=name != "softmax"))
        made[name] = f, [np.dtype(t) for t in DTYPES.get(name, ("f4", "f4"))]
        for n in range(33, 60):
            for view in (0, 1, 2, 3):
                outcome(f, *arguments(name, n, n + 1, n - 1, view))
    return made[name]


def arguments(name, n, m, k, view=0, wrong=None):
    """Arrays for sizes n, m, k: contiguous, turned round, or every other element of all dimensions or the first; one extent
    may be `wrong`.
    """
    out = []
    dtypes = made[name][1]
    for which, (shape, dtype) in enumerate(zip(SHAPES[name](n, m, k), dtypes, strict=False)):
        shape = tuple(max(0, x + (wrong == (which, d))) for d, x in enumerate(shape))
        steps = [2 if view == 2 or (view == 3 and not d) else 1 for d in range(len(shape))]
        extents = [s * x for s, x in zip(steps, shape, strict=True)]
        whole = (np.arange(np.prod(extents, dtype=int)) % 7).astype(dtype).reshape(extents)
        x = whole[tuple(slice(None, None, s) for s in steps)]
        out.append(np.asarray(x, order="F") if view == 1 else x)
    return out


sizes = st.integers(0, 20) | st.integers(30, 70) | st.integers(100, 130)


@pytest.mark.parametrize("name", TEXTS)
@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, st.integers(0, 3), st.none() | st.tuples(st.integers(0, 1), st.integers(0, 1)), st.integers(0, 3))
def test_new_sizes_come_to_the_same_as_in_python(name, n, m, k, view, wrong, into):
    f, _ = operator(name)

    def call(g):
        args = arguments(name, n, m, k, view, wrong)
        results = [] if "inout" in name else _results(f, args)
        keywords = {}
        if into == 1 and results:
            keywords["out"] = tuple(np.zeros(r.shape, r.dtype) for r in results)
        if into == 2 and results:
            keywords["out"] = tuple(np.zeros((2, *r.shape[::-1]), r.dtype)[1].T for r in results)
        if into == 3 and results:
            keywords["out"] = tuple(np.zeros(tuple(x + 1 for x in r.shape), r.dtype) for r in results)
        return outcome(g, *args, **keywords), [x.tobytes() for x in keywords.get("out", ())]
    wanted = call(f._general)
    for _ in range(3):
        assert call(f) == wanted


def _results(f, args):
    try:
        found = f._general(*args)
    except polyop.CallError:
        return []
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("name", [n for n in TEXTS if n not in ("even", "window")])
def test_a_call_of_a_new_size_runs_no_python(name):
    f, _ = operator(name)
    for n in (60, 61, 62):
        args = arguments(name, n, n + 1, n - 1)
        assert set(python_calls(lambda args=args: f(*args))) <= {"take"}  # much work memory, of the thread's own
    args = arguments(name, 63, 64, 62)
    assert outcome(f, *args) == outcome(f._general, *arguments(name, 63, 64, 62))


def test_a_size_of_1_and_a_size_of_0_keep_their_own_kernels():
    f, _ = operator("product")
    for n, m, k in ((1, 40, 40), (40, 1, 40), (40, 40, 1), (1, 1, 1), (0, 40, 40), (40, 0, 40), (40, 40, 0)):
        for d in range(12):
            args = arguments("product", n + d * (n > 1), m + d * (m > 1), k + d * (k > 1))
            np.testing.assert_array_equal(f(*args), args[0] @ args[1])


def test_memory_shared_with_the_result_is_noticed_for_new_sizes_too():
    f, _ = operator("add")
    for n in range(33, 64):
        memory = f32(3 * n)
        for start in (0, n - 1, n, n + 1, 2 * n):
            x, out = memory[n: 2 * n], memory[start: start + n]
            mine = outcome(f, x, x, out=out)
            assert (mine[0] is polyop.CallError) == (start in (n - 1, n, n + 1)), (n, start)


def test_results_too_large_or_impossible_are_left_to_python():
    f, _ = operator("product")
    thin = np.broadcast_to(np.float32(1), (1 << 40, 3))
    for rows in ((1 << 40) - 1, 1 << 40, 1 << 39):
        assert outcome(f, thin[:rows], thin[:rows].T)[0] is polyop.CallError
    g, _ = operator("add")
    for n in range(500_000, 500_008):
        assert g(f32(n), f32(n))[-1] == 2 * np.float32(n - 1)


def test_threads_and_torch_take_new_sizes_too():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("torch before 2.10 tells nothing")
    f = polyop.op(TEXTS["product"])
    for n in range(33, 50):
        x = torch.arange(n * n).reshape(n, n).remainder(5).float()
        assert torch.equal(f(x, x.t()), x @ x.t())
    x = torch.ones(63, 62)
    assert set(python_calls(lambda: f(x, x.t()))) <= {"take"}
    out = [torch.zeros(n, n) for n in range(33, 60)]
    for n, z in enumerate(out, 33):
        assert f(x[:n], x[:n].t(), out=z) is z and (z == 62).all()


def test_a_written_array_may_lie_in_any_order(caplog):
    up = polyop.op("op up(inout X: f32[M, N], Y: f32[M, N]) -> (s: f32[M]) { X[i, j] = X[i, j] * 2 + Y[i, j]; s[i] += Y[i, j] }")
    orders = [lambda m, n: np.ones((n, m), np.float32).T, lambda m, n: np.ones((m, n), np.float32)[::-1],
              lambda m, n: np.ones((m, 2 * n), np.float32)[:, ::2], lambda m, n: np.ones((3 * n, m), np.float32).T[:, ::-3]]
    with caplog.at_level(logging.ERROR, "polyop"):
        for order in orders:
            for n in range(33, 47):
                x, y = order(n + 1, n), np.ones((2 * n + 2, n), np.float32)[::2]
                s, z = up(x, y)
                assert z is x and (x == 3).all() and (s == n).all()
            x, y = order(48, 47), np.ones((96, 47), np.float32)[::2]
            assert not python_calls(lambda x=x, y=y: up(x, y))
    assert not caplog.text


def test_large_results_of_new_sizes_lie_upon_blocks_and_are_bound_by_no_python(caplog):
    f, threshold = polyop.op(TEXTS["add"]), entry_sizes.LARGEST // 4
    with caplog.at_level(logging.ERROR, "polyop"):
        for n in range(threshold - 20, threshold + 20, 2):
            assert f(f32(n), f32(n))[-1] == 2 * np.float32(n - 1)
    x = f32(threshold + 31)
    large = python_calls(lambda: f(x, x))
    assert "fill" in large and "_general" not in large and not caplog.text
    assert not python_calls(lambda: f(x[:-42], x[:-42]))
    assert f(x, x).ctypes.data % blocks.PAGE == 0


def test_code_that_does_not_reproduce_its_plan_is_not_used(monkeypatch, caplog):
    right = entry_sizes.text

    def wrong(*args):
        return right(*args).replace("ptr %plan) {", "ptr %plan) {\n  store i64 7, ptr %plan")
    monkeypatch.setattr(entry_sizes, "text", wrong)
    f = polyop.op(TEXTS["add"])
    with caplog.at_level(logging.ERROR, "polyop"):
        for n in range(33, 50):
            assert f(f32(n), f32(n))[-1] == 2 * n - 2
    assert "calls of f with new sizes take the way through Python" in caplog.text


def test_code_that_llvm_refuses_is_told_and_not_used(monkeypatch, caplog):
    monkeypatch.setattr(entry_sizes, "text", lambda *args: "define")
    f = polyop.op(TEXTS["add"])
    with caplog.at_level(logging.ERROR, "polyop"):
        for n in range(33, 50):
            assert f(f32(n), f32(n))[-1] == 2 * n - 2
    assert "calls of f with new sizes take the way through Python" in caplog.text


def test_an_outline_needs_a_few_looks(monkeypatch):
    f = polyop.op(TEXTS["add"])
    calls = [python_calls(lambda n=n: f(f32(n), f32(n))) for n in range(33, 50)]
    without = [k for k, c in enumerate(calls) if "_general" not in c]
    assert without and without[0] <= 2 * entry.LOOKS and without == list(range(without[0], len(calls)))


def test_an_outline_and_a_form_show_which_dimensions_lie_outside_others():
    f = polyop.op("op f(X: f32[A, B, C]) -> (Y: f32[A, C]) { Y[a, c] += X[a, b, c] }")
    code = entry.entry(polyop.Operator)
    gaps = [np.ones((a, 2 * b, c), np.float32)[:, ::2] for a, b, c in ((40, 41, 42), (44, 45, 46))]
    others = [np.ones((b, a, c), np.float32).transpose(1, 0, 2) for a, b, c in ((40, 41, 42), (44, 45, 46))]
    for show in (code.outline, code.form):
        seen = [show(f._front, x) for x in (*gaps, *others)]
        assert seen[0] == seen[1] != seen[2] == seen[3]
