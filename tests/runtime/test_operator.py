"""Operators: calls the short and the long way, from any thread, in any kind of array."""

import os
import threading

import numpy as np
import pytest

from polyop.ir.dtypes import BF16, F16, F32, F64, I32
from polyop.ir.errors import CallError, UserError
from polyop.ir.interface import Choice, Interface, Parameter
from polyop.ir.op import Op
from polyop.operator import Operator
from polyop.runtime import call, choose, threads
from polyop.runtime.estimate import work
from tests.children import finished
from tests.runtime import modules, operators


@pytest.fixture
def saxpy():
    return operators.saxpy()


def f32(n, start=0):
    return np.arange(start, start + n, dtype=np.float32)


def message(f, *args, **keywords):
    with pytest.raises(CallError) as e:
        f(*args, **keywords)
    d = e.value.diagnostic
    return f"{d.code}: {d.message}" + (f" | {d.hint}" if d.hint else "")


def test_a_call_gives_the_same_the_short_way_as_the_long_way(saxpy):
    for _ in range(3):
        for n in (1, 5, 64):
            np.testing.assert_array_equal(saxpy(f32(n), f32(n, 1), a=2.5), np.float32(2.5) * f32(n) + f32(n, 1))
    assert len(saxpy._plans) == 3


def test_arguments_may_be_given_by_name_and_left_out(saxpy):
    x, y = f32(4), f32(4, 7)
    for got in (saxpy(x, y), saxpy(Y=y, X=x), saxpy(x, Y=y), saxpy(x, y, a=1), saxpy(x, y, a=1.0)):
        np.testing.assert_array_equal(got, x + y)


def test_wrong_arguments_are_told(saxpy):
    x = f32(3)
    assert message(saxpy, x) == "E601: `saxpy` is called without `Y` | " + str(saxpy.interface)
    assert message(saxpy, x, x, 2.0) == "E601: `saxpy` takes 2 arguments by position, got 3 | pass by name: a=..."
    assert message(saxpy, x, x, b=2) == "E601: `saxpy` has no parameter `b`"
    assert message(saxpy, x, x, aa=2) == "E601: `saxpy` has no parameter `aa`; did you mean `a`?"
    assert message(saxpy, x, x, X=x) == "E601: `X` is given by position and by name"
    assert message(saxpy, x, x, a=None) == "E609: `a` is a number of dtype f32, got a NoneType"
    assert message(saxpy, x, f32(4)) == "E604: `N` is 3 in `X` (dimension 0 of (3,)) and 4 in `Y` (dimension 0 of (4,))"


def test_wrong_arguments_are_told_after_right_ones_too(saxpy):
    x = f32(4)
    saxpy(x, x, out=f32(4))
    saxpy(x, x)
    assert message(saxpy, x, x.astype(np.float64)).startswith("E602")
    assert message(saxpy, x, x, a="no").startswith("E609")
    assert message(saxpy, x, x, out=x) == "E607: `out` for `Z` overlaps `X` | give it memory of its own"
    frozen = f32(4)
    frozen.flags.writeable = False
    assert message(saxpy, x, x, out=frozen) == "E607: `out` is read-only, and would be written"
    raw = np.zeros(17, np.uint8)[1:].view(np.float32)
    assert message(saxpy, raw, x).startswith("E608: `X` is not aligned")


def test_a_number_too_great_for_its_dtype_becomes_what_the_long_way_makes_of_it(saxpy):
    x = np.ones(2, np.float32)
    saxpy(x, x, a=2.0)
    assert (saxpy(x, x, a=1e300) == np.inf).all()


def test_out_is_written_without_a_copy_both_ways(saxpy):
    x, out = f32(6), np.zeros(12, np.float32)
    for part in (out[:6], out[6:], out[::2], out[11:5:-1]):
        for _ in range(2):
            out[:] = -1
            assert saxpy(x, x, out=part) is part
            np.testing.assert_array_equal(part, 2 * x)


def test_views_of_any_strides_are_read_in_place(saxpy):
    base = f32(60).reshape(6, 10)
    for x in (base[2], base[:, 3], base[::-1, 3], base[1, ::2][:3], np.broadcast_to(np.float32(2), (6,)), base[0, :0]):
        y = np.ones(len(x), np.float32)
        for _ in range(2):
            np.testing.assert_array_equal(saxpy(x, y), x + 1)


def test_every_contiguous_array_shares_one_kernel():
    compiler = operators.Counting(modules.saxpy())
    f = operators.saxpy(compiler)
    for n in (1, 2, 1000):
        f(f32(n), f32(n))
    assert len(compiler.asked) == 1
    f(f32(20)[::2], f32(10))
    assert len(compiler.asked) == 2


def test_a_second_process_finds_the_kernel_on_disk(monkeypatch):
    compiler = operators.Counting(modules.saxpy())
    operators.saxpy(compiler)(f32(3), f32(3))
    from polyop.runtime import store
    monkeypatch.setattr(store, "kernels", store.Memo())
    np.testing.assert_array_equal(operators.saxpy(compiler)(f32(3), f32(3)), 2 * f32(3))
    assert len(compiler.asked) == 1


def test_eight_threads_compile_once_and_compute_right():
    compiler = operators.Counting(modules.saxpy())
    f, wrong = operators.saxpy(compiler), []

    def use(seed):
        for n in range(1, 200):
            x = f32(n * 7 % 50 + 1, seed)
            if not (f(x, x, a=float(seed)) == np.float32(seed) * x + x).all():
                wrong.append((seed, n))
    running = [threading.Thread(target=use, args=(s,)) for s in range(8)]
    for t in running:
        t.start()
    for t in running:
        t.join()
    assert not wrong and len(compiler.asked) == 1


def test_large_calls_use_the_pool_and_small_ones_do_not(saxpy, monkeypatch):
    before = threads.get_num_threads()
    try:
        threads.set_num_threads(3)
        for n in (10, 1 << 17):
            x = f32(n)
            for _ in range(2):
                np.testing.assert_array_equal(saxpy(x, x), 2 * x)
        slots = {plan.row[2]: (plan.row[0] != 0, plan.row[1]) for plan in saxpy._plans.values()}
        assert slots == {10: (False, 1), 1 << 17: (True, 3)}
    finally:
        threads.set_num_threads(before)


def test_a_forked_child_computes(saxpy):
    threads_before = threads.get_num_threads()
    threads.set_num_threads(2)
    x = f32(1 << 17)
    saxpy(x, x)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if (saxpy(x, x) == 2 * x).all() and (operators.total()(x[:100]) == x[:100].sum()) else 2
        finally:
            os._exit(code)
    threads.set_num_threads(threads_before)
    assert finished(pid) == 0


def test_the_work_of_a_call_is_counted_in_points():
    assert work(modules.SAXPY, {"N": 7}) == 7
    assert work(modules.SAXPY, {"N": 0}) == 0


# --- choosing ------------------------------------------------------------------------------------------------------

NORM = Interface("norm", (Parameter("X", "tensor", "T", ("...", "D")), Parameter("g", "tensor", "T", ("D",)),
                          Parameter("eps", "scalar", "f32", default=1e-6, by_name=True),
                          Parameter("n", "const", "i64", default=1, by_name=True)),
                 (Parameter("Y", "tensor", "T", ("...", "D")),), (("T", ("float",)),), "Normalise.")


def chosen(*args, interface=NORM, **keywords):
    return choose.choose(interface, choose.named(interface, args, keywords))


def test_dtypes_and_rank_are_read_off_the_arguments():
    x, g = np.ones((2, 3, 4), np.float16), np.ones(4, np.float16)
    assert chosen(x, g, n=2) == Choice((("T", F16),), (("n", 2),), 2)
    assert chosen(x[0, 0], g) == Choice((("T", F16),), (("n", 1),), 0)


def test_choices_that_contradict_are_told():
    x, g = np.ones((2, 4), np.float32), np.ones(4, np.float32)
    assert message(chosen, x, g.astype(np.float64)) == "E602: `T` is f32 in `X` and f64 in `g` | convert one: g.astype('float32')"
    assert message(chosen, x.astype(np.int32), g.astype(np.int32)) == "E602: `X` is i32, but `T` is one of f16, bf16, f32, f64"
    assert message(chosen, np.float32(1), g) == "E603: `X` has at least 1 dimension [..., D], got 0: shape ()"
    assert message(chosen, x, g, n=2.5) == "E609: `n` is an integer and fixed when the operator is compiled, got 2.5"
    assert message(chosen, x) == "E601: `norm` is called without `g` | " + str(NORM)


def test_two_tensors_with_dots_must_agree():
    both = Interface("f", (Parameter("X", "tensor", "f32", ("...",)), Parameter("Y", "tensor", "f32", ("...", "D"))), ())
    assert chosen(np.ones(3, np.float32), np.ones((3, 4), np.float32), interface=both).rest == 1
    assert message(chosen, np.ones(3, np.float32), np.ones(3, np.float32), interface=both) == \
        "E603: `...` is 1 dimensions in `X` (shape (3,)) and 0 in `Y` (shape (3,))"


def test_a_signature_prints_as_it_is_written():
    assert str(NORM) == "op norm<T: float>(X: T[..., D], g: T[D]; eps: f32 = 1e-06, const n: int = 1) -> (Y: T[..., D])"


def test_compiling_ahead_takes_names_and_defaults():
    f = Operator(NORM, lambda c: pytest.fail("not reached"), None)
    assert f.choice() == Choice((("T", F32),), (("n", 1),), 1)
    assert f.choice({"T": "bf16"}, {"n": 3}, 2) == Choice((("T", BF16),), (("n", 3),), 2)
    assert f.choice({"T": F64}).dtypes == (("T", F64),)
    for wrong in (dict(dtypes={"T": "i32"}), dict(dtypes={"S": "f32"}), dict(consts={"m": 1}), dict(consts={"n": "x"})):
        with pytest.raises(UserError):
            f.choice(**wrong)


def test_an_artefact_shows_its_text_and_explains_itself(saxpy):
    made = saxpy.compile(target="x86")
    assert "define i64 @saxpy" in made.source and made.trace["source"] == made.source
    assert "unit stride in X (dimension 0), Y (dimension 0), Z (dimension 0)" in made.explain()
    np.testing.assert_array_equal(made(f32(3), Y=f32(3), a=2), 3 * f32(3))


def test_an_artefact_for_another_level_runs_with_its_own_code(saxpy):
    compiler = operators.Counting(modules.saxpy())
    made = operators.saxpy(compiler).compile(target="x86:x86-64-v2")
    np.testing.assert_array_equal(made(f32(3), f32(3)), 2 * f32(3))
    assert [t.name for t in compiler.targets] == ["x86:x86-64-v2", "x86:x86-64-v2"]


def test_an_unknown_target_is_refused(saxpy):
    for name in ("z80", 80):
        with pytest.raises(UserError, match=f"`{name}` is no target"):
            saxpy.compile(target=name)


@pytest.mark.parametrize("name, hint", [
    ("cuda", "say which: cuda:sm_80, cuda:sm_90, cuda:sm_90a"), ("hip:gfx950", "say which: hip:gfx90a, hip:gfx942, hip:gfx1100"),
    ("gfx942", "say `hip:gfx942`"), ("cuda:sm_89", "what is made for cuda:sm_80 runs on sm_89, too"),
    ("z80", "targets are x86 \\(this machine\\), cuda:sm_80, "),
])
def test_a_name_that_is_almost_a_target_is_answered_with_one_that_is(saxpy, name, hint):
    with pytest.raises(UserError, match=hint):
        saxpy.compile(target=name)


def test_results_of_one_call_survive_the_next(saxpy):
    results = [saxpy(np.full(16, k, np.float32), np.zeros(16, np.float32)) for k in range(100)]
    assert all((r == k).all() for k, r in enumerate(results))


def test_rank_0_results_are_arrays_of_rank_0():
    f = operators.total()
    for _ in range(2):
        assert f(f32(10)).shape == () and f(f32(10)) == 45
        assert f(f32(0)) == 0


# --- torch ---------------------------------------------------------------------------------------------------------

torch = pytest.importorskip("torch", reason="torch is not installed")


def test_torch_in_gives_torch_out(saxpy):
    x = torch.arange(12, dtype=torch.float32)
    for t in (x, x[::3], x.reshape(3, 4)[:, 1], x[:0]):
        for _ in range(2):
            got = saxpy(t, t, a=3)
            assert isinstance(got, torch.Tensor) and torch.equal(got, 4 * t)
    out = torch.zeros(12)
    for _ in range(2):
        assert saxpy(x, x, out=out) is out
    assert torch.equal(out, 2 * x)


def test_large_torch_results_are_right(saxpy):
    x = torch.arange(1 << 19, dtype=torch.float32)
    for _ in range(3):
        assert torch.equal(saxpy(x, x), 2 * x)


def test_torch_and_numpy_may_be_mixed(saxpy):
    assert torch.equal(saxpy(torch.ones(3), np.ones(3, np.float32)), torch.full((3,), 2.0))


def test_a_tensor_that_requires_a_gradient_is_refused_after_one_that_does_not(saxpy):
    x = torch.ones(3)
    saxpy(x, x)
    assert message(saxpy, x.requires_grad_(), x).startswith("E608: `X` requires a gradient")
    with torch.no_grad():
        assert torch.equal(saxpy(x, x), torch.full((3,), 2.0))


def test_torch_overlap_is_found(saxpy):
    x = torch.ones(8)
    saxpy(x[:4], x[:4], out=x[4:])
    assert message(saxpy, x[:4], x[:4], out=x[2:6]).startswith("E607: `out` for `Z` overlaps `X`")


def test_the_key_of_a_call_shows_everything_that_changes_its_plan():
    a = np.zeros((4, 4), np.float32)
    def key(v: object, fixed: bool = False) -> object:
        return call.key((v,), (fixed,), [])

    keys = [key(v) for v in (a, a.T, a[:2], a[::2], a.astype(np.int32), torch.zeros(4, 4), 1, 1.0, True)]
    assert len(set(keys)) == len(keys)
    assert key(1, True) != key(2, True) and key(1, True) != key(True, True)
    assert key(object()) is None


def test_operators_with_dtype_variables_keep_one_op_for_each_choice():
    seen = []

    def instantiate(choice: Choice) -> Op:
        seen.append(choice)
        return modules.SAXPY
    f = Operator(Interface("saxpy", (Parameter("X", "tensor", "T", ("N",)), Parameter("Y", "tensor", "T", ("N",)),
                                     Parameter("a", "scalar", "T", default=1)), (), (("T", ("f32", "i32")),)),
                 instantiate, operators.Counting(modules.saxpy()))
    f(f32(3), f32(3))
    f(f32(4), f32(4), 2)
    assert seen == [Choice((("T", F32),), (), None)]
    assert message(f, f32(3), np.ones(3, np.int32)).startswith("E602: `T` is f32 in `X` and i32 in `Y`")
    assert f.choice({"T": I32}) == Choice((("T", I32),), (), None)
