"""Faults planted in kernels of each pipeline, one at a time: the emulator finds each barrier, wait and copy that is left out.

`scripts/mutate_gpus.py` plants all that `gpu_mutants.py` knows, and this file a sample.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gpu_mutants import in_headers, looked_at, mutants
from gpu_mutated import NAMES, kernel

from polyop.ir.errors import UnsupportedError
from polyop.runtime import cxx

try:
    cxx.compiler()
except UnsupportedError as e:
    pytest.skip(str(e), allow_module_level=True)

SAME = (
    ("one group less", r"copies_barrier<2>\(\);"),  # in front of the first tiles: of these nobody reads one yet
    ("left out", r"pop_ring_end<0>\("),  # the last turn copies nothing, so nothing is on its way
    ("left out", r"pop_units_barrier<0>\(pop_arriving\);"),  # parts groups of which all are waited for
)
"""Mutants that mean what the text means, as far as calls of these sizes go; of a kernel one of each sort."""


@pytest.mark.parametrize(("name", "where"), [
    ("product", "cuda:sm_80"), ("product", "hip:gfx90a"), ("product", "hip:gfx1100"), ("across", "hip:gfx942"),
    ("warpgroups", "cuda:sm_90a"), ("roles", "cuda:sm_90a"), ("window", "hip:gfx942"), ("boxes of windows", "cuda:sm_90a"),
    ("attention", "hip:gfx1100"), ("turned", "cuda:sm_80"),
    ("scattered", "hip:gfx942")])
def test_each_barrier_wait_and_copy_left_out_is_found(name: str, where: str) -> None:
    tried = [m for m in mutants(kernel(name, where).module.text)[1] if m.meets]
    said = looked_at(kernel(name, where), [m.number for m in tried])
    left = [m for m in tried if not said[m.number]]
    assert len(tried) >= 5 or name in ("turned", "scattered")
    for what, code in SAME:
        first = next((m for m in left if m.what == what and re.match(f".*{code}", m.code[m.column:])), None)
        left = [m for m in left if m is not first]
    assert not left, "\n".join(map(str, left))


@pytest.mark.parametrize(("name", "where"), [("product", "hip:gfx90a"), ("softmax", "cuda:sm_80"), ("turned", "hip:gfx942")])
def test_of_numbers_and_tests_that_are_wrong_most_show(name: str, where: str) -> None:
    tried = [m.number for m in mutants(kernel(name, where).module.text)[1]][1::9]
    said = looked_at(kernel(name, where), tried)
    assert sum(bool(x) for x in said.values()) > 0.5 * len(tried)


@pytest.mark.parametrize(("name", "where", "function", "found"), [
    ("softmax", "cuda:sm_80", "T pop_fold", ("uninitialised read", "")),
    ("scan", "cuda:sm_80", "T pop_scan", ("uninitialised read", "race")),
    ("warpgroups", "cuda:sm_90a", "void pop_ring_start", ("uninitialised read", "missing fence", "uninitialised read")),
    ("roles", "cuda:sm_90a", "> pop_pipe_start", ("uninitialised read",) * 2 + ("missing fence", "uninitialised read"))])
def test_what_functions_of_headers_leave_out_is_found(name: str, where: str, function: str, found: tuple[str, ...],
                                                      tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fold that is no loop's the last barrier is for nobody."""
    shipped = cxx.DEVICE
    monkeypatch.setattr(cxx, "DEVICE", tmp_path)
    asked = []
    for m in in_headers(tmp_path, shipped):
        lines = (shipped / m.what.split()[-1]).read_text().splitlines()
        heads = [k for k, x in enumerate(lines) if f"{function}(" in x]
        if heads and heads[0] < m.line - 1 < lines.index("}", heads[0]):
            asked.append(m.number)
    said = looked_at(kernel(name, where), asked)
    assert tuple(x.split(" in ")[0] for x in said.values()) == found


@pytest.mark.parametrize(("name", "where"), NAMES[::7])
def test_a_text_has_lines_and_braces_as_before(name: str, where: str) -> None:
    text = kernel(name, where).module.text
    changed, every = mutants(text)
    assert [m.number for m in every] == list(range(len(every)))
    assert changed.count("\n") == text.count("\n") and changed.count("{") == text.count("{") + 2
