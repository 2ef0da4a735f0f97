"""Plant faults in kernels for GPUs, one at a time, and tell those of which neither the emulator nor the values show anything.

    python scripts/mutate_gpus.py --target cuda:sm_80 --kernel product --meetings

Each barrier, wait, copy and store is left out, each number is one more, one less or half, each test is left out or moved by
one. What survives is the same as the text, or a hole of the emulator, or of the sizes of the calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_mutants import Mutant, in_headers, looked_at, mutants  # noqa: E402
from gpu_mutated import NAMES, kernel  # noqa: E402

from polyop.runtime import cxx  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=sorted({where for _, where in NAMES}))
    parser.add_argument("--kernel", choices=sorted({name for name, _ in NAMES}))
    parser.add_argument("--meetings", action="store_true", help="only what threads do together: barriers, waits, copies")
    parser.add_argument("--headers", action="store_true", help="in functions of headers instead: what threads do together")
    parser.add_argument("--every", type=int, default=1, help="only each such mutant")
    asked = parser.parse_args()
    alive: tuple[Mutant, ...] = ()
    if asked.headers:
        cxx.DEVICE, shipped = Path(tempfile.mkdtemp()), cxx.DEVICE
        alive = in_headers(cxx.DEVICE, shipped)
    for name, where in NAMES:
        if asked.target not in (None, where) or asked.kernel not in (None, name):
            continue
        start = time.perf_counter()
        k = kernel(name, where)
        tried = alive or tuple(m for m in mutants(k.module.text)[1] if m.meets or not asked.meetings)[:: asked.every]
        said = looked_at(k, [m.number for m in tried])
        left = tuple(m for m in tried if not said[m.number])
        print(f"{k.name}: {len(tried)} mutants, {len(left)} survive, {time.perf_counter() - start:.0f} s", flush=True)
        for m in () if asked.headers else left:
            print(f"    {m}", flush=True)
        if asked.headers:
            alive = left
    for m in alive:
        print(f"    {m}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
