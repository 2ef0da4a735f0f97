"""The native front of a call, with tensors of torch."""

import sys

import pytest

import polyop
from polyop.runtime import arrays
from tests.runtime import operators
from tests.runtime.calling import f32, outcome, python_calls, warm

torch = pytest.importorskip("torch", reason="torch is not installed")
told = pytest.mark.skipif(not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="torch before 2.10 tells nothing")


@pytest.fixture(scope="module")
def saxpy():
    return operators.saxpy()


@told
def test_a_known_call_with_tensors_runs_no_python(saxpy):
    x, out = torch.arange(6, dtype=torch.float32), torch.zeros(6)
    for a, b in ((x, x), (x, f32(6)), (torch.nn.Parameter(x, requires_grad=False), x)):
        got = warm(saxpy, a, b)
        assert type(got) is torch.Tensor and torch.equal(got, 2 * x)
        assert python_calls(lambda a=a, b=b: saxpy(a, b)) == []
    assert warm(saxpy, x, x, out=out) is out and torch.equal(out, 2 * x)
    assert python_calls(lambda: saxpy(x, x, out=out)) == []
    weight = torch.nn.Parameter(x.clone())
    with torch.no_grad():
        warm(saxpy, x, weight)
        assert python_calls(lambda: saxpy(x, weight)) == []
    assert outcome(saxpy, x, weight) == outcome(saxpy._general, x, weight)


@told
def test_large_tensors_take_the_memory_of_one_that_nobody_holds_and_run_no_python(saxpy):
    x = torch.ones(1 << 18)
    warm(saxpy, x, x)
    assert python_calls(lambda: saxpy(x, x)) == []
    part = saxpy(x, x)[10:20]
    part[:] = 7
    living = [saxpy(x, x) for _ in range(10)]
    assert len({t.data_ptr() for t in living} | {part.data_ptr()}) == 11
    assert (part == 7).all() and all(torch.equal(t, 2 * x) and type(t) is torch.Tensor for t in living)
    before, base = sys.getrefcount(torch.from_numpy), saxpy(x, x)
    del living, part
    first = saxpy(x, x).data_ptr()
    again = saxpy(x, x).data_ptr()
    assert again == first != base.data_ptr()
    after = sys.getrefcount(torch.from_numpy)
    assert after == before


def test_tensors_that_are_not_plain_memory_are_refused_as_before(saxpy):
    x = torch.ones(4)
    warm(saxpy, x, x)
    negative = torch.view_as_complex(torch.ones(4, 2)).conj().imag
    fake_mode = pytest.importorskip("torch._subclasses.fake_tensor").FakeTensorMode()
    freed, cut, fake = torch.ones(4), torch.ones(4), fake_mode.from_tensor(x)
    freed.untyped_storage().resize_(0)
    cut.untyped_storage().resize_(8)
    for _ in range(2):
        for strange in (negative, x.clone().requires_grad_(), x.to_sparse(), x.to("meta"), x.double(), torch.ones(5), x[::2],
                        torch.nn.Parameter(x), freed, fake):
            mine, wanted = outcome(saxpy, strange, x), outcome(saxpy._general, strange, x)
            assert mine == wanted and issubclass(mine[0], Exception)
        with pytest.raises(polyop.CallError, match="no memory"):
            torch.vmap(lambda v: saxpy(v, v))(torch.ones(3, 4))
        with pytest.raises(polyop.CallError, match="no memory"):
            saxpy(x, x, out=freed)
    with pytest.raises(polyop.CallError, match="no memory"):
        arrays.view(cut, "x")
    assert torch.equal(saxpy(x, x), 2 * x)


@told
def test_references_of_tensors_balance(saxpy):
    x, out = torch.ones(8), torch.ones(8)
    warm(saxpy, x, x)
    warm(saxpy, x, x, out=out)
    before = sys.getrefcount(x), sys.getrefcount(out), sys.getrefcount(torch.empty_like)
    for _ in range(1000):
        saxpy(x, x)
        saxpy(x, x, out=out)
        outcome(saxpy, x, x, out=x)
    assert (sys.getrefcount(x), sys.getrefcount(out), sys.getrefcount(torch.empty_like)) == before


def test_torch_results_have_memory_of_their_own(saxpy):
    for n in (0, 1, 100, 1 << 15, 1 << 19):
        x = torch.arange(n, dtype=torch.float32)
        kept = [warm(saxpy, x, x, a=float(k)) for k in range(3)]
        for k, r in enumerate(kept):
            assert torch.equal(r, k * x + x)
