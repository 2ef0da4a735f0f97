"""Arrays of every kind as addresses, shapes and strides; memory for results."""

import ml_dtypes
import numpy as np
import pytest

from polyop.ir.dtypes import BF16, BOOL, DTYPES, F32, I64
from polyop.ir.errors import CallError
from polyop.runtime import arrays, blocks


def message(value, wanted=None):
    with pytest.raises(CallError) as e:
        arrays.view(value, "X", wanted)
    d = e.value.diagnostic
    return f"{d.code}: {d.message}" + (f" | {d.hint}" if d.hint else "")


@pytest.mark.parametrize("t", list(DTYPES.values()), ids=str)
def test_a_numpy_array_is_seen_as_it_is(t):
    a = np.zeros((3, 4), t.numpy)[::-1, ::2]
    v = arrays.view(a, "X")
    assert (v.address, v.shape, v.strides, v.dtype) == (a.__array_interface__["data"][0], (3, 2), (-4, 2), t)


def test_what_kernels_cannot_read_is_refused():
    assert message(np.zeros(3, ">f4")).startswith("E608: `X` has the byte order of another machine (>f4) | X.astype(")
    assert message(np.zeros(3, object)).startswith("E602: `X` has dtype object; expected one of f16, bf16, f32")
    assert message(np.zeros(3, complex)).startswith("E602: `X` has dtype complex128")
    assert message(np.zeros(3, "U4")).startswith("E602: `X` has dtype <U4")
    assert message(np.ma.zeros(3)).startswith("E608: `X` is a masked array")
    assert message([1.0]) == "E608: `X` is a list; expected an array | numpy.asarray(X)"
    assert message("text") == "E608: `X` is a str; expected an array"
    assert message(None) == "E608: `X` is a NoneType; expected an array"


def test_unaligned_elements_are_refused():
    raw = np.zeros(17, np.uint8)
    assert message(raw[1:].view(np.float32)) == "E608: `X` is not aligned to its elements of 4 bytes | X.copy()"
    packed = np.zeros(3, np.dtype([("a", "u1"), ("b", "<f4")]))["b"]
    assert message(packed).startswith("E608: `X` is not aligned to its elements of 4 bytes")


def test_dlpack_of_another_device_is_refused():
    class Elsewhere:
        def __dlpack_device__(self):
            return (8, 0)

        def __dlpack__(self):
            raise AssertionError("must not be asked")
    assert message(Elsewhere()) == "E608: `X` is in Metal memory; expected an array on the CPU or a GPU"


def test_dlpack_and_array_interface_producers_share_their_memory():
    a = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Pack:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            return a.__dlpack__(**keywords)

    class Interface:
        __array_interface__ = a.__array_interface__
    for x in (Pack(), Interface()):
        v = arrays.view(x, "X")
        assert (v.address, v.shape, v.strides, v.dtype) == (arrays.address(a), (2, 3), (3, 1), F32)


def test_a_producer_that_lies_gets_an_error_and_no_crash():
    class Liar:
        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **keywords):
            raise BufferError("not today")
    assert message(Liar()) == "E608: `X`: Liar cannot be read as an array: not today"


def test_numbers_become_arrays_of_rank_0():
    assert arrays.view(3, "X", BF16).dtype == BF16
    assert arrays.view(np.float32(3), "X").dtype == F32
    assert arrays.view(True, "X", BOOL).dtype == BOOL
    assert message(2.5, I64) == "E609: `X` is i64, got 2.5"


@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 7), (0, 4), (1 << 20,)])
@pytest.mark.parametrize("t", [F32, BF16, BOOL], ids=str)
def test_results_are_aligned_contiguous_and_writeable(shape, t):
    a, at = arrays.empty(shape, t, "numpy")
    assert at == arrays.address(a) and at % 64 == 0
    assert (a.shape, a.dtype, a.flags.c_contiguous, a.flags.writeable) == (shape, t.numpy, True, True)


@pytest.mark.parametrize(("n", "align"), [(1000, 64), (1 << 15, 4096), (1 << 20, 4096)])
def test_large_results_begin_with_a_page(n, align):
    blocks.release()
    assert all(arrays.empty((n,), F32, "numpy")[1] % align == 0 for _ in range(5))


def test_memory_is_used_again_only_when_nobody_holds_it():
    blocks.release()
    first, at = arrays.empty((1000,), F32, "numpy")
    first[:] = 1
    second, other = arrays.empty((1000,), F32, "numpy")
    assert at != other
    part = first[10:20]
    del first
    third, another = arrays.empty((1000,), F32, "numpy")
    assert another not in (at, other)
    del part
    assert at in {arrays.empty((1000,), F32, "numpy")[1] for _ in range(4)}
    assert second is not third


def addresses(*elems: int) -> list[int]:
    """Where results of so many numbers lie, each given up before the next one."""
    return [arrays.empty((n,), F32, "numpy")[1] for n in elems]


def test_a_size_that_is_new_takes_a_free_block_that_is_at_most_twice_as_large():
    blocks.release()
    large, = addresses(1 << 20)
    assert addresses(1_000_000, 700_000, 600_000, 1 << 19) == [large] * 4
    assert large not in addresses(1 << 18, 1000)
    held = arrays.empty((1 << 20,), F32, "numpy")[0]
    assert large not in addresses(900_000) and held is not None


def test_sizes_that_come_again_get_a_block_of_their_own():
    blocks.release()
    large, = addresses(1 << 20)
    first = addresses(*[900_000, 800_000] * blocks.LOANS)
    assert first == [large] * 2 * blocks.LOANS
    own = addresses(900_000, 800_000, 900_000, 700_000, 700_000)
    assert own[0] == own[2] and own[1] == own[3] and len({*own, large}) == 4 and addresses(1 << 20) == [large]


def test_many_living_results_never_share_memory():
    living = [arrays.empty((1 + k % 40,), F32, "numpy")[0] for k in range(500)]
    living += [arrays.empty((n * 4099,), F32, "numpy")[0] for k in range(4) for n in range(40, 8, -1)]
    for k, a in enumerate(living):
        a[:] = k
    assert all((a == k).all() for k, a in enumerate(living))


def test_kept_memory_is_bounded(monkeypatch):
    blocks.release()
    monkeypatch.setattr(blocks, "MOST", 1 << 20)
    for k in range(1, 40):
        arrays.empty((k * 5000,), F32, "numpy")
    assert sum(size * len(b) for size, b in blocks._classes.items()) <= 1 << 20
    blocks.release()


@pytest.mark.parametrize("n", [1, 63, 64, 65, 1000, 4097, 1 << 20, (1 << 20) + 1, 3 << 30])
def test_classes_of_size_waste_at_most_an_eighth(n):
    size = blocks.rounded(n)
    assert n <= size <= max(n + 64, n * 9 // 8 + 64) and size % 64 == 0


def test_a_result_that_no_memory_can_hold_is_an_error():
    with pytest.raises(CallError, match="no memory for a result of shape"):
        arrays.empty((1 << 40, 1 << 20), F32, "numpy")


# --- torch ---------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8",
                                  "uint16", "uint32", "uint64", "bool"])
def test_a_torch_tensor_is_seen_as_it_is(name):
    t = torch.zeros(3, 4, dtype=getattr(torch, name)).t()[::2]
    v = arrays.view(t, "X")
    assert (v.address, v.shape, v.strides, v.kind) == (t.data_ptr(), (2, 3), (2, 4), "torch")
    assert v.dtype.bytes_ == t.element_size()
    back, at = arrays.empty((2, 3), v.dtype, "torch")
    assert back.dtype == t.dtype and back.data_ptr() == at and at % 64 == 0


def test_large_torch_results_reuse_memory_and_keep_their_dtype():
    blocks.release()
    a, at = arrays.empty((1 << 20,), BF16, "torch")
    assert (a.dtype, tuple(a.shape), a.data_ptr(), at % 64) == (torch.bfloat16, (1 << 20,), at, 0)
    b, other = arrays.empty((1 << 20,), BF16, "torch")
    assert other != at
    del a
    assert at in {arrays.empty((1 << 20,), BF16, "torch")[1] for _ in range(3)}
    assert b.data_ptr() == other


def test_torch_tensors_that_cannot_be_read_are_refused():
    assert message(torch.ones(2, requires_grad=True)) == "E608: `X` requires a gradient, which would be lost here | X.detach()"
    with torch.no_grad():
        arrays.view(torch.ones(2, requires_grad=True), "X")
    assert message(torch.ones(2, device="meta")) == "E608: `X` is on meta; expected a tensor on the CPU or a GPU | X.cpu()"
    assert message(torch.eye(2).to_sparse()) == "E608: `X` has layout torch.sparse_coo; expected a dense tensor | X.to_dense()"
    assert message(torch.ones(2, dtype=torch.complex64)).startswith("E602: `X` has dtype complex64")
    assert message(torch.ones(2, dtype=torch.complex64).conj().imag).startswith("E608: `X` is a lazy conjugate or negative")


def test_an_unaligned_torch_tensor_is_refused():
    t = torch.frombuffer(bytearray(17), dtype=torch.float32, count=4, offset=1)
    assert message(t) == "E608: `X` is not aligned to its elements of 4 bytes | X.clone()"


def test_ml_dtypes_bfloat16_is_bf16():
    assert arrays.view(np.zeros(3, ml_dtypes.bfloat16), "X").dtype == BF16
