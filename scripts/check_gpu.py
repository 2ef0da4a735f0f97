"""Run a dozen operators of the library on the NVIDIA GPU of this machine and compare with NumPy.

    python scripts/check_gpu.py

Exits with 0 if all agree, 1 if one does not, 2 if there is no GPU to try.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_operators import OPERATORS, calls  # noqa: E402

from polyop.ir.target import BY_NAME  # noqa: E402
from polyop.runtime import cuda, nvrtc  # noqa: E402


def main() -> int:
    reason = nvrtc.unavailable() or cuda.unavailable()
    if reason:
        print(reason)
        return 2
    name = f"cuda:{cuda.architecture()}"
    if name not in BY_NAME:
        print(f"{name} is no target")
        return 2
    failed = 0
    for case, dtype in OPERATORS:
        try:
            for small in (True, False):
                for call in calls(case, dtype, name, small):
                    outside = cuda.run(call.module, nvrtc.assemble(call.module), call.sizes, call.scalars, call.arrays)
                    assert outside is None, f"{outside} is outside its tensor"
                    call.check()
        except Exception as error:  # the rest is to be tried in any case
            failed += 1
            print(f"FAILED  {case}: {type(error).__name__}: {error}")
        else:
            print(f"agrees  {case}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
