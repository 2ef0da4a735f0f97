"""The house itself: public names, walls, dependencies, packaging, the README's commands and example."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polyop

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "polyop"
README = (ROOT / "README.md").read_text(encoding="utf-8")

if sys.version_info >= (3, 11):
    import tomllib

    PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
else:
    PROJECT = None

needs_toml = pytest.mark.skipif(PROJECT is None, reason="tomllib is in Python 3.11 and later")


def imported(path: Path) -> set[str]:
    """The packages that a file imports, at its top or inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name.split(".")[0] for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def block(name: str) -> str:
    """The command between `<!-- name -->` and `<!-- end -->`."""
    found = re.search(rf"<!-- {name} -->\n```sh\n(.*?)\n```\n<!-- end -->", README, re.S)
    assert found, f"the README has no block {name}"
    return found.group(1)


@pytest.mark.parametrize("name, does", [("demo", ".venv/bin/polyop demo"), ("tests", ".venv/bin/python -m pytest")])
def test_each_command_of_the_readme_is_one_line_that_does_its_own_set_up(name, does):
    command = block(name)
    assert "\n" not in command
    first, second, third = command.split(" && ")
    assert first == "python3 -m venv .venv"
    assert second.startswith(".venv/bin/python -m pip install ")
    assert third.startswith(does)


def test_ci_runs_the_command_of_the_readme_word_for_word():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    last = script.splitlines()[-1]
    assert last.startswith('eval "$(')
    printed = subprocess.run(["bash", "-c", last.removeprefix("eval ").replace('"$(', "", 1).removesuffix(')"')],
                             cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.stdout.strip() == block("tests")
    assert "set -euo pipefail" in script


def test_ci_is_plain_bash():
    subprocess.run(["bash", "-n", ROOT / ".ci" / "run"], check=True)


def test_the_example_of_the_readme_runs(capsys):
    code = re.search(r"```python\n(.*?)```", README, re.S)
    assert code
    assert len(code.group(1).strip().splitlines()) <= 25
    exec(compile(code.group(1), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "each value read is the one that the operator says" in printed
    assert "__global__" in printed


def test_links_of_the_readme_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


@needs_toml
def test_each_dependency_is_imported_and_each_import_is_declared():
    imports = set().union(*(imported(p) for p in PACKAGE.rglob("*.py")))
    outside = imports - set(sys.stdlib_module_names) - {"polyop"}
    declared = {re.split(r"[<>=\[ ]", d)[0] for d in PROJECT["project"]["dependencies"]}
    optional = {"pyelftools": "elftools"}  # what an extra brings, and the name by which it is imported
    extras = {re.split(r"[<>=\[ ]", d)[0] for found in PROJECT["project"]["optional-dependencies"].values() for d in found}
    assert optional.keys() <= extras
    assert outside == declared | {*optional.values()}


@needs_toml
def test_every_extra_that_the_readme_names_exists():
    extras = set(PROJECT["project"]["optional-dependencies"])
    for group in re.findall(r"\.\[([a-z,]+)\]", README):
        assert set(group.split(",")) <= extras


def test_public_names_are_those_that_are_documented():
    assert {"op", "load", "library", "einsum", "set_num_threads", "get_num_threads", "Operator", "Options",
            "PolyopError", "UserError", "CallError"} <= set(polyop.__all__)
    for name in polyop.__all__:
        assert getattr(polyop, name) is not None
    assert set(polyop.__all__) <= set(dir(polyop))


@needs_toml
def test_the_version_is_the_same_everywhere():
    assert polyop.__version__ == PROJECT["project"]["version"]
    assert f"## [{polyop.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.strip()


def test_importing_polyop_loads_no_compiler_and_no_framework():
    heavy = ("torch", "jax", "cuda", "islpy", "llvmlite", "lark", "click", "rich", "scipy")
    loaded = in_a_fresh_process(f"import sys, polyop; print([m for m in {heavy} if m in sys.modules])")
    assert loaded == "[]"


def test_a_call_loads_no_framework_and_no_command_line():
    code = ("import sys, numpy, polyop; polyop.library('relu')(numpy.ones(3, 'f4'));"
            "print([m for m in ('torch', 'jax', 'cuda', 'click', 'rich', 'scipy') if m in sys.modules])")
    assert in_a_fresh_process(code) == "[]"


def test_a_list_of_commands_imports_none_of_them():
    loaded = in_a_fresh_process("import sys; from polyop.cli.commands import answer; answer(['--help'])\n"
                                "print([m for m in ('polyop.bench', 'polyop.program', 'islpy', 'numpy') if m in sys.modules])")
    assert loaded.endswith("[]")


def test_a_call_imports_neither_the_compiler_nor_what_explains_it_nor_what_is_for_gpus(tmp_path):
    call = (f"import os; os.environ['POLYOP_CACHE_DIR'] = {str(tmp_path)!r}; import sys, numpy, polyop\n"
            "polyop.library('softmax')(numpy.ones((3, 5), numpy.float32))\n"
            "print([m for m in ('islpy', 'polyop.compiler', 'polyop.report.explain', 'polyop.rewrite.regimes.blocktiles', "
            "'filelock', 'polyop.runtime.gpu') if m in sys.modules])")
    assert "islpy" in in_a_fresh_process(call)
    assert in_a_fresh_process(call) == "[]"



def test_only_the_command_line_prints_and_exits():
    for path in PACKAGE.rglob("*.py"):
        if path.parent == PACKAGE / "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in ("print", "sys.exit", "exit", "quit"), f"{path}:{node.lineno}"


def test_every_module_says_what_it_is():
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path


@pytest.mark.skipif(importlib.util.find_spec("importlinter") is None, reason="needs the `dev` extra")
def test_the_walls_stand():
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_everything_read_at_run_time_is_inside_the_package():
    kinds = {p.suffix for p in PACKAGE.rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert {".pop", ".lark", ".ll", ".h"} <= kinds
    for path in PACKAGE.rglob("*.py"):
        assert "parents[2]" not in path.read_text(encoding="utf-8"), f"{path} reaches out of the package"
