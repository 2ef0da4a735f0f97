"""Operators out of the cache: called without their text being read, and never otherwise than as it says."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest

import polyop
from polyop import program, standard
from polyop.ir.errors import CallError, UserError
from polyop.ir.interface import Choice
from polyop.recalled import Recalled
from polyop.runtime import cache, store

TEXT = """op f<T: f32 | f64>(X: T[M, N], mod: T[N]; const s: int = 2) -> (Y: T[M, N]) where N >= 2 {
    Y[m, n] = X[m, n] == inf ? -0.0 : s * X[m, n] + mod[n] }"""
TWO = "op a(X: f32[N]) -> (Y: f32[N]) { Y[i] = 2 * X[i] }\nop b(X: f32[N]) -> (Y: f32[N]) { Y[i] = 3 * X[i] }"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    store.forget()
    return tmp_path


def texts(folder):
    """The entries that Ops are kept in: not those of the parser's tables."""
    return [p for p in folder.glob("*.poc") if b'"interface"' in p.read_bytes()]


@pytest.fixture
def unread(monkeypatch):
    """From now on as in another process, in which reading a text fails."""
    def now():
        store.forget()
        standard.alone.cache_clear()
        program._parsed.cache_clear()
        for module in (program, standard):
            monkeypatch.setattr(module, "parse", None)
    return now


def data(dtype, n=3):
    return np.arange(2 * n, dtype=dtype).reshape(2, n), np.arange(n, dtype=dtype)


def test_what_has_been_called_once_is_called_again_without_its_text(unread):
    first = polyop.op(TEXT)
    x, a = data(np.float32)
    first(x, a)
    first(*data(np.float64), s=3)
    unread()
    again = polyop.op(TEXT)
    assert (again.interface, again.__doc__, repr(again)) == (first.interface, first.__doc__, repr(first))
    np.testing.assert_array_equal(again(x, a), 2 * x + a)
    np.testing.assert_array_equal(again(*data(np.float64), s=3), 3 * x.astype(float) + a)
    with pytest.raises(TypeError):
        again(x, a, s=5)  # an Op that there was not
    with pytest.raises(TypeError):
        polyop.op(TEXT + " ")


def test_of_several_operators_each_is_kept_by_its_name(unread):
    x = np.ones(5, np.float32)
    polyop.op(TWO, "a")(x)
    polyop.op(TWO, "b")(x)
    unread()
    assert polyop.op(TWO, "a")(x)[0] == 2 and polyop.op(TWO, "b")(x)[0] == 3
    with pytest.raises(TypeError):
        polyop.op(TWO)  # which one is not said, so this is an error of the text


def test_a_file_is_not_read_again_for_operators_that_were_called(unread, tmp_path):
    file, x = tmp_path / "two.pop", np.ones(5, np.float32)
    file.write_text(TWO)
    ops, linalg = polyop.load(file), polyop.load("linalg")
    want = linalg.matmul(np.eye(3, 4, dtype=np.float32), np.ones((4, 5), np.float32))
    assert ops.b(x)[0] == 3
    unread()
    again, library = polyop.load(file), polyop.load("linalg")
    assert list(again) == ["a", "b"] and dir(library) == sorted(linalg)
    assert again.b is again["b"] and again.b(x)[0] == 3 and again.b.interface == ops.b.interface
    np.testing.assert_array_equal(library.matmul(np.eye(3, 4, dtype=np.float32), np.ones((4, 5), np.float32)), want)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(again.b))(x), 3 * x)
    with pytest.raises(AttributeError, match=r"two\.pop defines no operator `c`"):
        _ = again.c
    with pytest.raises(TypeError):
        _ = again.a  # of which nothing was kept
    file.write_text(TWO.replace("3", "4"))
    with pytest.raises(TypeError):
        polyop.load(file)


def test_names_of_a_file_that_are_damaged_are_read_anew(own_cache, tmp_path):
    file = tmp_path / "two.pop"
    file.write_text(TWO)
    polyop.load(file)
    for names in (3, ["a", 3], None):
        cache.write(cache.key("names", TWO), {"names": names}, b"", cache.CODE)
        assert list(polyop.load(file)) == ["a", "b"]


def test_a_file_with_a_mistake_is_told_so_each_time(tmp_path):
    file = tmp_path / "wrong.pop"
    file.write_text(TWO + " x")
    for _ in range(2):
        with pytest.raises(UserError, match="E1"):
            polyop.load(file)


@pytest.mark.parametrize("name, shapes", [("softmax", ((3, 5),)), ("layernorm", ((3, 5), (5,), (5,))),
                                          ("matmul", ((3, 4), (4, 5)))])
def test_operators_of_the_library_are_kept_exactly(unread, name, shapes):
    given = [np.ones(s, np.float32) for s in shapes]
    first = polyop.library(name)
    want = first(*given)
    (made,), = ([known.op for known in first._known._values.values()],)
    unread()
    again = polyop.library(name)
    np.testing.assert_array_equal(again(*given), want)
    (kept,), = ([known.op for known in again._known._values.values()],)
    assert kept == made and repr(kept) == repr(made) and kept.names == made.names
    assert kept.steps[0].span is None and made.steps[0].span is not None


def test_no_text_is_taken_for_the_name_of_an_operator_of_the_library():
    x = np.ones((2, 3), np.float32)
    polyop.library("softmax")(x)
    with pytest.raises(UserError, match="E1"):
        polyop.op("library", "softmax")


def test_errors_of_calls_have_the_users_names(unread):
    x, a = data(np.float32)
    polyop.op(TEXT)(x, a)
    said = []
    for _ in range(2):
        with pytest.raises(CallError) as e:
            polyop.op(TEXT)(x, a[:2])
        said.append(str(e.value.diagnostic))
        unread()
    assert said[0] == said[1] and "`mod`" in said[0]


def test_what_cannot_be_compiled_is_not_kept(own_cache):
    for _ in range(2):
        wrong = polyop.op("op f(X: f32[N]) -> (Y: f32[N]) { Y[i] = X[i + 1] }")
        with pytest.raises(UserError) as e:
            wrong(np.ones(4, np.float32))
        assert e.value.diagnostic.label is not None
    assert not texts(own_cache)


def test_operators_that_were_recalled_go_to_other_processes(unread):
    x, a = data(np.float32)
    polyop.op(TEXT)(x, a)
    given = np.ones((3, 5), np.float32)
    want = polyop.library("softmax")(given)
    text, library = polyop.op(TEXT), polyop.library("softmax")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(text))(x, a), 2 * x + a)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(library))(given), want)
    for f in (text, library):
        assert pickle.loads(pickle.dumps(f)) is pickle.loads(pickle.dumps(f))


def test_data_that_point_outside_are_told_in_the_words_of_the_text_in_a_second_process_too(own_cache):
    text = "op gather(E: f32[V, D], ids: i32[N]) -> (Y: f32[N, D]) { Y[i, d] = E[ids[i], d] }"
    table, said = np.ones((300, 200), np.float32), []
    ids = np.full(300, 300, np.int32)
    for _ in range(2):
        with pytest.raises(CallError) as e:
            polyop.op(text)(table, ids)
        said.append(e.value.diagnostic.message)
        store.forget()
    assert said[0] == said[1] and "`E[ids[i], d]` reads outside `E`" in said[0]


def test_zeros_of_both_signs_are_two_choices(own_cache):
    f = polyop.op("op f(X: f32[N]; const s: f32 = 1) -> (Y: f32[N]) { Y[i] = s }")
    x = np.ones(2, np.float32)
    for s in (0.0, -0.0):
        assert np.signbit(f(x, s=s)).all() == np.signbit(s)
    store.forget()
    f = polyop.op("op f(X: f32[N]; const s: f32 = 1) -> (Y: f32[N]) { Y[i] = s }")
    for s in (-0.0, 0.0):
        assert np.signbit(f(x, s=s)).all() == np.signbit(s)


def test_an_entry_with_anything_wrong_in_it_is_as_good_as_none(own_cache, caplog):
    x, a = data(np.float32)
    polyop.op(TEXT)(x, a)
    entry, = texts(own_cache)
    good = entry.read_bytes()
    key, (header, _) = entry.stem, cache.read(entry.stem, cache.CODE)
    said, (op, names) = next(iter(header["ops"].items()))
    broken = [{**header, "interface": None}, {**header, "interface": {"Interface": [1]}}, {**header, "ops": 3}, {"ops": {}},
              *({**header, "ops": {said: x}} for x in (
                  5, [op], [op, [1]], [{"Op": []}, names], [{"Op": [*op["Op"][:3], ["M", 3], *op["Op"][4:]]}, names]))]
    for new in broken:
        cache.write(key, new, b"", cache.CODE)
        np.testing.assert_array_equal(polyop.op(TEXT)(x, a), 2 * x + a)
    for new in (good[:-3], b"", b"garbage", good[:90] + b"}" + good[91:]):
        entry.write_bytes(new)
        np.testing.assert_array_equal(polyop.op(TEXT)(x, a), 2 * x + a)
    assert "ignoring the cached text" in caplog.text and "ignoring the damaged cache file" in caplog.text


def test_two_processes_keep_what_either_has_found():
    interface = polyop.op(TEXT).interface
    ops = {t: polyop.op(TEXT)._op(Choice((("T", polyop.ir.dtypes.DTYPES[t]),))) for t in ("f32", "f64")}
    one, two = Recalled("x"), Recalled("x")
    for r, t in ((one, "f32"), (two, "f64")):
        r.keep(interface, Choice((("T", polyop.ir.dtypes.DTYPES[t]),)), ops[t])
    for t, op in ops.items():
        assert Recalled("x").op(Choice((("T", polyop.ir.dtypes.DTYPES[t]),))) == op


def test_what_is_too_deep_for_json_is_read_each_time(own_cache):
    f = polyop.op(f"op f(X: f32[N]) -> (Y: f32[N]) {{ Y[i] = {' + '.join(['X[i]'] * 700)} }}")
    Recalled("deep").keep(f.interface, f.choice(), f._op(f.choice()))
    assert not texts(own_cache) and Recalled("deep").interface is None


def test_a_second_process_imports_neither_parser_nor_compiler():
    polyop.op(TEXT)(*data(np.float32))
    code = f"""
import sys, json, numpy as np, polyop
polyop.set_num_threads({polyop.get_num_threads()})
print(polyop.op({TEXT!r})(np.ones((2, 3), np.float32), np.ones(3, np.float32))[1, 2])
print(json.dumps([m for m in sys.modules if m in ("lark", "islpy", "polyop.compiler") or m.startswith("polyop.dsl")]))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["3.0", "[]"]
