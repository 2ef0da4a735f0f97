"""Whatever the tests run on the emulator, run on a device too: each wrapper of `codegen/device` beside what emulates it.

The tests know which kernels exercise which wrapper; here they are told to carry each one out twice, with the same arrays. A
kernel that the emulator finds fault with, as many a test means it to, stays away from the device.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from polyop.ir.atoms import ROWS
from polyop.ir.errors import PolyopError
from polyop.ir.module import Module
from polyop.ir.target import target
from polyop.runtime import device as compilers
from polyop.runtime import emulated
from polyop.runtime.findings import Report
from polyop.runtime.gpu import chips, direct
from polyop.runtime.gpu.driver import Device, on

TESTS = Path(__file__).parents[2] / "tests" / "gpu"
FILES = ("test_wrappers.py", "test_matrix.py", "test_hopper.py", "test_matmuls.py", "test_functions.py",
         "test_units.py", "test_boxes.py", "test_roles.py", "test_blocks.py")  # what wrappers are, and then whole products
NESTS = tuple(f"test_{n}.py" for n in (
    "scores", "whole_copies", "fragments", "resident", "keys_of_rows", "row_shares", "few_results", "results", "logsums",
    "squares", "scanned", "spread", "strips", "scattered", "fetched", "sides", "shares", "bytes", "tf32", "reach", "warps",
    "operators", "hunt"))
"""Whatever else the emulator runs of generated texts: attention, rows, scans, scatters and windows in all their ways."""
SAME = 4        # runs of one text without sizes, with different arrays; of one with sizes each is run once
_LOOSE = 1e-5   # of a number, or of what is usual: sums of matrix units are rounded otherwise, and so are functions
_STEPS = {"float16": 2.0**-9, "bfloat16": 2.0**-6}  # two last places: f32 that differ in their last are rounded apart


@dataclass(eq=False)
class Twice:
    """`emulated.run`, and the device beside it.

    agreed   texts that were run, and how often; `wrong`: those of them that did not agree, or were refused, and are run no more;
             `differ`: what is told of these
    sizes    how often a text was run with these
    lost     whether the device takes no more work from this process, so that what follows says nothing of a text
    """

    device: Device
    run: Callable[..., Report] = emulated.run
    agreed: dict[str, int] = field(default_factory=dict)
    differ: list[str] = field(default_factory=list)
    wrong: set[str] = field(default_factory=set)
    sizes: dict[tuple[str, tuple[tuple[str, int], ...]], int] = field(default_factory=dict)
    lost: bool = False

    def __call__(self, module: Module, sizes: Mapping[str, int], scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray],
                 **how: Any) -> Report:
        before = {n: a.copy() for n, a in arrays.items()}
        report = self.run(module, sizes, scalars, arrays, **how)
        given = module.text, tuple(sizes.items())
        seen = self.sizes.get(given, 0)
        if not self.lost and not report.findings and seen < (1 if sizes else SAME) and module.text not in self.wrong \
                and runs_here(module, self.device) and (
                    how.get("watched", True) or self.is_clean(module, sizes, scalars, before, how)):
            self.sizes[given] = seen + 1
            self.agreed[module.text] = self.agreed.get(module.text, 0) + 1
            said = differs(module, sizes, scalars, before, arrays, report, self.device)
            if said:
                self.wrong.add(module.text)
                self.lost = is_lost(self.device)
                rest = "; the rest of this test was not tried" if self.lost else ""
                self.differ.append(f"{_test()}{module.name} for {module.target}: {said}{rest}")
        return report

    def is_clean(self, module: Module, sizes: Mapping[str, int], scalars: Mapping[str, Any], arrays: Mapping[str, np.ndarray],
                 how: Mapping[str, Any]) -> bool:
        """Whether the emulator finds no fault with a kernel that a test runs without being watched."""
        copies = {n: a.copy() for n, a in arrays.items()}
        return not self.run(module, sizes, scalars, copies, **{**how, "watched": True}).findings


def _test() -> str:
    """The test that runs a kernel now, as pytest writes it down for whoever asks."""
    running = os.environ.get("PYTEST_CURRENT_TEST", "")
    return f"{running.rpartition('::')[2].removesuffix(' (call)')}: " if running else ""


def runs_here(module: Module, device: Device) -> bool:
    """Whether the text of `module` may be compiled for `device`: it is for this family, and this chip is not older.

    AMD's chips of one width of warps differ in their matrix units alone.
    """
    family, _, arch = module.target.partition(":")
    here = chips.arch(device)
    if family == "hip" == device.family:
        units = [x for x in ROWS if f"{x.wrapper}(" in module.text]
        return target(module.target).warp == chips.native(device).warp and all(here in x.targets for x in units)
    return family == device.family and (arch.rstrip("a") == here if arch.endswith("a") else int(arch[3:]) <= int(here[3:]))


def is_lost(device: Device) -> bool:
    """Whether the device takes no more work from this process: after a fault each call fails as the kernel did."""
    try:
        with on(device) as d:
            d.do("wait_all")
    except PolyopError:
        return True
    return False


def differs(module: Module, sizes: Mapping[str, int], scalars: Mapping[str, Any], arrays: dict[str, np.ndarray],
            want: Mapping[str, np.ndarray], report: Report, device: Device) -> str:
    """How a run on the device differs from one on the emulator; "" if it does not."""
    try:
        binary, missing = compilers.assembled(replace(module, target=chips.native(device).name))
        if binary is None:
            return missing
        site = direct.run(binary, sizes, scalars, arrays, device)
    except PolyopError as e:
        return f"{type(e).__name__}: {e}"
    if site != report.site:
        return f"{site} is outside its tensor, on the emulator {report.site}"
    for name, w in want.items():
        bad = apart(arrays[name], w)
        if bad.any():
            at = tuple(int(k) for k in np.argwhere(bad)[0])
            return f"{name}{list(at)} is {arrays[name][at]}, on the emulator {w[at]}; {int(bad.sum())} of {bad.size} differ"
    return ""


def apart(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Which elements are not the same, but for rounding: of a function by the element, of a sum by what is usual around it."""
    if want.dtype.kind in "iub":
        return got != want
    a, b = got.astype(np.float64), want.astype(np.float64)
    sizes = np.abs(np.where(np.isfinite(b), b, 0.0))
    usual = float(np.median(sizes[sizes > 0])) if sizes.any() else 0.0
    room = max(_LOOSE, _STEPS.get(want.dtype.name, 0.0)) * np.maximum(sizes, max(usual, 2.0**-24))
    with np.errstate(invalid="ignore"):
        return (a != b) & ~(np.isnan(a) & np.isnan(b)) & ~(np.abs(a - b) <= room)


def tests(files: Sequence[str] = FILES) -> list[str]:
    """The tests in `files` as pytest calls them, each with all its parameters: what one process is asked for at a time."""
    return [f"{f}::{name}" for f in files if (TESTS / f).exists()
            for name in re.findall(r"^def (test_\w+)", (TESTS / f).read_text(encoding="utf-8"), re.MULTILINE)]


def compared(device: Device, which: Sequence[str] = FILES, only: str = "") -> Twice:
    """Run the files and tests `which`, or those whose name contains `only`, with every kernel carried out twice.

    Raises ModuleNotFoundError without pytest.
    """
    import pytest

    twice = Twice(device)
    quiet = io.StringIO()
    emulated.run = twice
    try:
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            code = pytest.main([*(str(TESTS / f) for f in which if (TESTS / f.partition("::")[0]).exists()), "-q",
                                "-p", "no:cacheprovider", "-m", "not emulators", *(["-k", only] if only else [])])
    finally:
        emulated.run = twice.run
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        twice.differ.append("the tests themselves do not pass here:\n" + quiet.getvalue()[-2000:])
    return twice
