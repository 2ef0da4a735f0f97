"""Calls of compiled operators, from text to numbers: layouts, kinds of arrays, threads, `out`, `inout`."""

import threading

import ml_dtypes
import numpy as np
import pytest

import polyop
from polyop.ir.errors import CallError

MATMUL = "op matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N]) { C[m, n] += A[m, k] * B[k, n] }"
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def matmul():
    return polyop.op(MATMUL)


def f32(*shape):
    return RANDOM.integers(-4, 5, shape).astype(np.float32)  # sums of products of these are exact


@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (7, 5, 3), (33, 17, 65), (0, 3, 4), (3, 0, 4), (3, 4, 0), (0, 0, 0)])
def test_any_sizes_are_computed_by_one_operator(matmul, m, k, n):
    a, b = f32(m, k), f32(k, n)
    for _ in range(2):
        np.testing.assert_array_equal(matmul(a, b), a @ b)


def test_views_are_read_and_written_where_they_lie(matmul):
    a, b = f32(40, 30), f32(30, 50)
    out = np.zeros((60, 80), np.float32)
    turned = ((np.asfortranarray(a), b), (a, b.T.copy().T))
    for x, y in ((a, b), (a[::-1], b), (a, b[:, ::-1]), *turned, (a[::2], b), (a[:, ::3], b[::3])):
        for _ in range(2):
            part = out[1 : 1 + len(x), 80 : 80 - 1 - y.shape[1] : -1]
            out[:] = -1
            assert matmul(x, y, out=part) is part
            np.testing.assert_array_equal(part, x @ y)
            assert (out == -1).sum() >= out.size - part.size


def test_threads_do_not_change_the_result(matmul):
    a, b = f32(150, 64), f32(64, 170)
    before = polyop.get_num_threads()
    try:
        for count in (1, 2, 5):
            polyop.set_num_threads(count)
            for _ in range(3):
                np.testing.assert_array_equal(matmul(a, b), a @ b)
    finally:
        polyop.set_num_threads(before)


def test_eight_threads_compile_and_call_at_once():
    f, wrong = polyop.op(MATMUL), []

    def use(seed):
        random = np.random.default_rng(seed)
        for k in range(30):
            a = random.integers(-4, 5, random.integers(0, 30, 2)).astype(np.float32)
            b = random.integers(-4, 5, (a.shape[1], 20)).astype(np.float32)
            b = b[:, ::-1] if k % 3 == 0 else b
            if not np.array_equal(f(a, b), a @ b):
                wrong.append((seed, k))
    running = [threading.Thread(target=use, args=(s,)) for s in range(8)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert not wrong


def test_one_operator_takes_every_dtype_of_its_variable_and_any_rank():
    f = polyop.op("op double<T: float>(X: T[..., D]) -> (Y: T[..., D]) { Y[..., d] = X[..., d] + X[..., d] }")
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        for shape in ((5,), (2, 3), (2, 1, 4), (2, 2, 2, 2)):
            x = f32(*shape).astype(dtype)
            got = f(x)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got, x + x)


def test_torch_tensors_come_back_as_torch_tensors(matmul):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    a, b = torch.from_numpy(f32(20, 30)), torch.from_numpy(f32(30, 10))
    for x in (a, a.t().contiguous().t()):
        for _ in range(2):
            assert torch.equal(matmul(x, b), a @ b)
    double = polyop.op("op double(X: bf16[N]) -> (Y: bf16[N]) { Y[i] = X[i] + X[i] }")
    x = torch.arange(20).to(torch.bfloat16)
    assert double(x).dtype == torch.bfloat16 and torch.equal(double(x), x + x)


def test_an_inout_keeps_its_memory():
    scale = polyop.op("op scale(inout X: f32[N]; a: f32 = 2) { X[i] = a * X[i] }")
    x = np.arange(100, dtype=np.float32)
    for _ in range(3):
        assert scale(x) is x
    np.testing.assert_array_equal(x, 8 * np.arange(100, dtype=np.float32))
    part = x[::7]
    assert scale(part, a=0) is part and not x[::7].any() and x[1] == 8


def test_an_inout_that_is_only_written_keeps_the_rest():
    clear = polyop.op("op clear(inout X: f32[N]; n: int) where n <= N { X[i] = 0.0 where i in 0:n }")
    for _ in range(2):
        x = np.ones(10, np.float32)
        assert clear(x, n=4) is x and x.tolist() == [0] * 4 + [1] * 6
    with pytest.raises(CallError, match=r"`clear` needs N >= n, and N = 10 \(from `X`\), n = 11"):
        clear(x, n=11)


def test_parameters_may_have_names_that_generated_text_cannot_hold():
    f = polyop.op("op f(half: f32[N], new: f32[N]) -> (Y: f32[N]) { Y[i] = half[i] + new[i] }")
    np.testing.assert_array_equal(f(f32(3) * 0, new=np.ones(3, np.float32)), np.ones(3))
    with pytest.raises(CallError, match=r"`N` is 3 in `half` \(dimension 0 of \(3,\)\) and 4 in `new`"):
        f(f32(3), f32(4))


def test_data_that_point_outside_raise_and_leave_the_operator_usable():
    take = polyop.op("op take(ids: i64[B], E: f32[V, D]) -> (Y: f32[B, D]) { Y[b, d] = E[ids[b], d] }")
    e = f32(5, 4)
    for ids, place in ((np.array([0, 7]), "1] = 7"), (np.array([-1, 2]), "0] = -1")):
        with pytest.raises(CallError, match=rf"ids\[{place} reads outside `E`, which has V = 5 rows"):
            take(ids, e)
        np.testing.assert_array_equal(take(np.array([4, 0]), e), e[[4, 0]])


def test_a_result_of_rank_0_is_an_array_of_rank_0():
    total = polyop.op("op total(X: f32[N]) -> (S: f32) { S += X[i] }")
    for n in (0, 1, 1000):
        x = f32(n)
        assert total(x).shape == () and total(x) == x.sum()


def test_a_default_may_follow_from_a_const():
    f = polyop.op("""op f(X: f32[N]; const c: int = 3, s: f32 = c / 2.0, n: int = c + 1) -> (Z: f32[n]) {
        Z[i] = s * (X[i] else 0) }""")
    x = np.ones(3, np.float32)
    assert f(x).tolist() == [1.5, 1.5, 1.5, 0]
    assert f(x, c=1).tolist() == [0.5, 0.5]
    assert f(x, c=1, s=2, n=1).tolist() == [2]


def test_numbers_for_tensors_of_rank_0_live_as_long_as_the_call():
    product = polyop.op("op product(a: f32[], b: f32[]) -> (c: f32) { c = a * b }")
    for k in range(1, 30):
        for kind in (float, np.float32, lambda x: np.array(x, np.float32)):
            assert product(kind(k), kind(k + 0.5)) == k * (k + 0.5)


def test_a_number_is_no_inout_since_the_caller_would_not_see_it_change():
    add = polyop.op("op add(inout s: f32, X: f32[N]) { s += X[i] }")
    total = np.array(2, np.float32)
    assert add(total, np.ones(3, np.float32)) is total and total == 5
    for number in (2.0, 2, np.float32(2)):
        with pytest.raises(CallError, match="`s` is read-only, and would be written"):
            add(number, np.ones(3, np.float32))
