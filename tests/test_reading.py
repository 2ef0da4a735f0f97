"""The parser's tables out of the cache: another process reads the same, and makes none."""

from __future__ import annotations

import lark
import pytest

from polyop import reading
from polyop.dsl import parse as dsl
from polyop.ir.errors import UserError
from polyop.ir.span import Source

TEXT = """# Twice.
op f(X: f32[M, N], inout A: f32[N]) -> (Y: f32[M]) where N >= 1 {
    Y[m] max= X[m, n] > 0 ? X[m, n] : 0;  A[n] = A[n] + 1
}
fn twice(x) = 2 * x
"""


@pytest.fixture(autouse=True)
def a_new_process(tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    dsl._lark.cache_clear()
    yield
    dsl._lark.cache_clear()


def test_tables_are_made_once_for_all_processes_and_read_the_same(monkeypatch):
    want = dsl.parse(Source("f.pop", TEXT))
    first = reading.parse(Source("f.pop", TEXT))
    dsl._lark.cache_clear()
    monkeypatch.setattr(lark.Lark, "__init__", None)  # tables are made there
    assert reading.parse(Source("f.pop", TEXT)) == first == want
    with pytest.raises(TypeError):
        dsl.parse(Source("f.pop", TEXT))


def test_what_is_wrong_is_said_as_without_kept_tables():
    head = "op f(X: f32[N]) -> (Y: f32[N])"
    for text in (head + " { Y[i] = X[i }", head + " { Y[i] = = X[i] }", "op f(@", "op"):
        said = []
        for parse in (dsl.parse, reading.parse, reading.parse):
            with pytest.raises(UserError) as e:
                parse(Source("f.pop", text))
            said.append(str(e.value.diagnostic))
        assert said[0] == said[1] == said[2]


def test_tables_that_are_damaged_are_made_again(tmp_path):
    want = reading.parse(Source("f.pop", TEXT))
    entry, = tmp_path.glob("*.poc")
    entry.write_bytes(entry.read_bytes()[:-7] + b"garbage")
    dsl._lark.cache_clear()
    assert reading.parse(Source("f.pop", TEXT)) == want
