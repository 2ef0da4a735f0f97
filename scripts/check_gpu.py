"""Run a dozen operators of the library on the GPU of this machine and compare with NumPy.

    python scripts/check_gpu.py

Exits with 0 if all agree, 1 if one does not, 2 if there is no GPU to try.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_operators import OPERATORS, calls  # noqa: E402

from polyop.runtime.device import assembled  # noqa: E402
from polyop.runtime.gpu import chips, direct, driver  # noqa: E402


def main() -> int:
    families = [f for f in ("cuda", "hip") if not driver.unavailable(f)]
    if not families:
        print("; ".join(map(driver.unavailable, ("cuda", "hip"))))
        return 2
    device = driver.Device(families[0], 0)
    name = chips.native(device).name
    failed = 0
    for case, dtype in OPERATORS:
        try:
            for small in (True, False):
                for call in calls(case, dtype, name, small):
                    binary, missing = assembled(call.module)
                    assert binary is not None, missing
                    outside = direct.run(binary, call.sizes, call.scalars, call.arrays, device)
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
