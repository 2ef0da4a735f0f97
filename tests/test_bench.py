"""The benchmarks themselves: what they compare is the same thing, and what they print is what they measured."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from polyop import standard

BENCH = str(Path(__file__).parents[1] / "bench")


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The modules of bench/, which is no package."""
    monkeypatch.syspath_prepend(BENCH)
    monkeypatch.setenv("POLYOP_CACHE_DIR", str(tmp_path))
    import cases
    import machine
    import readme
    import run
    yield cases, machine, readme, run
    for name in ("cases", "compile", "machine", "readme", "run"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("group", ["elementwise", "calls", "reductions"])
def test_polyop_and_its_peers_compute_the_same(bench, group):
    cases, machine, _, run = bench
    limits = machine.Machine("some", "some", 100.0, 10.0)
    for case in islice(cases.GROUPS[group](), 2):
        row = run.measure(case, limits, None, 0.001)
        assert row.get("right", "numpy" not in row)
        assert row["polyop"] > 0 and case.label in run.line(row)


def test_a_wrong_result_is_marked(bench):
    cases, machine, _, run = bench
    wrong = cases.Case("g", "wrong", lambda x: x, (np.ones(3, np.float32),), None, lambda x: x + 1)
    row = run.measure(wrong, machine.Machine("some", "some", 100.0, 10.0), None, 0.001)
    assert not row["right"] and run.line(row).endswith("WRONG")


def test_the_limits_of_a_machine_are_measured(bench):
    found = bench[1].machine()
    assert 1 < found.gflops < 10_000 and 0.1 < found.gbytes < 10_000


def test_a_process_reports_its_first_call_and_leaves_the_kernel_to_the_next_one(bench, tmp_path):
    import compile as compiling
    cold = compiling.once("relu", tmp_path)
    kernels = {p: p.read_bytes() for p in tmp_path.glob("*.pok")}
    warm = compiling.once("relu", tmp_path)
    assert len(kernels) >= 2  # the operator that warms up, and the one that is measured
    assert {p: p.read_bytes() for p in tmp_path.glob("*.pok")} == kernels
    for found in (cold, warm):
        assert found.keys() == {"import", "first"} and min(found.values()) > 0


def test_operators_whose_compilation_is_measured_exist(bench):
    import compile as compiling
    assert set(compiling.SHOWN) <= set(compiling.COLD) <= set(standard.index())


def test_a_summary_is_a_table_of_geometric_means(bench):
    rows = [{"group": "g", "over_torch": 4.0, "over_numpy": 2.0}, {"group": "g", "over_torch": 1.0, "over_numpy": 2.0}]
    assert bench[3].summary(rows)[-1] == "| g | 2 | 2.00x | 1.00x | 2.00x |"


def test_numbers_go_between_the_marks_of_the_readme(bench, tmp_path, monkeypatch):
    readme = bench[2]
    monkeypatch.setattr(readme, "README", tmp_path / "README.md")
    readme.README.write_text("a\n<!-- measured -->\nold\n<!-- end -->\nb\n<!-- end -->\n")
    readme.fill("measured", ["new"])
    assert readme.README.read_text() == "a\n<!-- measured -->\n\nnew\n\n<!-- end -->\nb\n<!-- end -->\n"
    with pytest.raises(SystemExit):
        readme.fill("nothing", [])
