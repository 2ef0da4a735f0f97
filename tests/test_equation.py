"""`polyop.einsum` asks about its operands once for each equation, dtype and shape."""

import numpy as np
import pytest

import polyop
from polyop import equation


@pytest.fixture
def asked(monkeypatch):
    """The names of what `polyop.einsum` asked about by looking into arrays."""
    seen, view = [], equation.arrays.view

    def look(value, name, out):
        seen.extend([name] * name.startswith("operand"))
        return view(value, name, out)
    monkeypatch.setattr(equation.arrays, "view", look)
    return seen


def test_a_call_that_looks_like_one_before_is_found_by_its_look(asked):
    x = np.random.default_rng(0).random((3, 5)).astype(np.float32)
    for a in (x, x + 1, np.asfortranarray(x), x[::-1]):
        for e, operands in (("ij,ik->jk", (a, a)), (a, ([0, 1], a, [0, 2], [1, 2]))):
            np.testing.assert_allclose(polyop.einsum(e, *operands), a.T @ a, rtol=1e-5)
    assert len(asked) == 4  # lists have labels of their own
    np.testing.assert_allclose(polyop.einsum("ij,ik->jk", x.astype(float), x.astype(float)), x.T.astype(float) @ x, rtol=1e-5)
    np.testing.assert_allclose(polyop.einsum("ij,ik->jk", x[:1], x), x[:1].T @ x.sum(0)[None], rtol=1e-5)
    assert len(asked) == 8


def test_what_only_exchanges_memory_is_taken_too(asked):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    class Shared:
        def __dlpack__(self, **keywords):
            return x.__dlpack__(**keywords)

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    for _ in range(2):
        np.testing.assert_array_equal(np.from_dlpack(polyop.einsum("ij->ji", Shared())), x.T)
    assert len(asked) == 2


def test_no_more_equations_are_remembered_than_so_many(monkeypatch):
    monkeypatch.setattr(equation, "_KEPT", 3)
    for n in range(1, 9):
        assert polyop.einsum("i->", np.ones(n, np.float32)) == n
        assert len(equation._found) <= 3


@pytest.mark.parametrize(("given", "code"), [((b"ij", np.ones(3)), "E150"), (("i", [1.0]), "E608"), ((np.ones(3), 3), "E150"),
                                             (("ij", np.ones(3)), "E151")])
def test_what_fits_nothing_is_one_error(given, code):
    with pytest.raises(polyop.PolyopError, match=code) as caught:
        polyop.einsum(*given)
    assert caught.value.__context__ is None
