"""Compile every operator of the library for GPUs, with NVRTC and amdgcn's clang: all of it is accepted, and nothing is spilled.

    python scripts/compile_library.py [TARGET ..] [FILE ..]       cuda:sm_80 softmax; without words, five targets and all files

Exits with 0 if so, 1 if not, 2 if there is no compiler for a target. Takes some minutes for each target; the tests
compile each operator for one of them, and a dozen for all.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_operators import FILES, together  # noqa: E402

from polyop.runtime import amdgcn, nvrtc  # noqa: E402
from polyop.runtime.usage import usage  # noqa: E402

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")


def main(words: list[str]) -> int:
    targets = [w for w in words if ":" in w] or list(TARGETS)
    files = [w for w in words if ":" not in w] or list(FILES)
    failed = 0
    for target in targets:
        tool = nvrtc if target.startswith("cuda") else amdgcn
        if tool.unavailable():
            print(f"{target}: {tool.unavailable()}")
            return 2
        for file in files:
            module = together(file, target)[0].module
            try:
                found = usage(tool.assemble(module))
            except Exception as error:  # the rest is to be tried in any case
                failed += 1
                print(f"FAILED  {target} {file}: {error}")
                continue
            failed += any(u.spills for u in found)
            # arrays that are indexed at run time lie in local memory, too: the steps of sin and cos for large numbers
            local = [f"    {u}" for u in found if u.spills or u.local]
            print("\n".join([f"{'SPILLS' if any(u.spills for u in found) else 'accepts'} {target} {file}: {len(found)} kernels",
                             *local]), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
