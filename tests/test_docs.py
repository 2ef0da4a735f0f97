"""The documentation tells the truth: every program in it is checked, every example runs, every link leads somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from polyop import standard
from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dtypes import DTYPES
from polyop.ir.errors import UserError
from polyop.ir.scalars import ARITY
from polyop.ir.span import Source
from polyop.poly.wellformed import check

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LANGUAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```pop\n(.*?)```", LANGUAGE, re.S)
WRONG = re.findall(r"```pop wrong\n(.*?)```\n\n```\n(.*?)\n```", LANGUAGE, re.S)
PYTHON = [(p.name, code) for p in DOCS for code in re.findall(r"```python\n(.*?)```", p.read_text(encoding="utf-8"), re.S)]
CONSTS = {"times": 2}


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_every_program_of_the_language_page_is_right(number):
    program = parse(Source(f"block {number}", PROGRAMS[number]))
    assert program.ops
    for op in program.ops:
        consts = {p.name: CONSTS[p.name] for p in op.params if p.name in CONSTS}
        check(instantiate(program, op.name, consts=consts, library=standard.LIBRARY))


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_every_wrong_program_of_the_language_page_gets_the_report_below_it(number):
    text, report = WRONG[number]
    program = parse(Source("wrong.pop", text))
    with pytest.raises(UserError) as caught:
        check(instantiate(program, program.ops[0].name))
    assert str(caught.value) == report


def test_no_block_of_a_page_is_left_out():
    assert LANGUAGE.count("```pop wrong\n") == len(WRONG) > 0
    assert sum(p.read_text(encoding="utf-8").count("```python") for p in DOCS) == len(PYTHON) > 0


@pytest.mark.parametrize("page, code", PYTHON, ids=[f"{n}-{k}" for k, (n, _) in enumerate(PYTHON)])
def test_every_piece_of_python_on_a_page_runs(page, code, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    exec(compile(code, page, "exec"), {})


def test_the_language_page_names_every_dtype_and_function():
    words = set(re.findall(r"\w+", LANGUAGE))
    assert set(DTYPES) <= words
    internal = {"neg", "not", "invert", "add", "sub", "mul", "div", "mod", "and", "or", "bitand", "bitor", "bitxor", "shl", "shr",
                "lt", "le", "gt", "ge", "eq", "ne", "select", "cast"}
    assert set(ARITY) - internal <= words


@pytest.mark.parametrize("page", DOCS, ids=lambda p: p.name)
def test_links_and_paths_of_a_page_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)#]+)\)", re.sub(r"`[^`]*`", "", text)):
        assert target.startswith("https://") or (page.parent / target).exists(), target
    for path in re.findall(r"`(polyop/[\w/]+\.\w+)`", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.name != "graph_mlp.py"], ids=lambda p: p.name)
def test_every_example_runs_and_agrees_with_numpy(path, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    runpy.run_path(str(path), run_name="__main__")
    assert "largest difference" in capsys.readouterr().out
