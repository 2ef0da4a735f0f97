"""Hunt for wrong values, faults and refused schedules in kernels for GPUs, on the emulator.

    python scripts/hunt_gpus.py --target cuda:sm_80 --kind einsum --count 100 --seed 7

Each call follows from its target, kind and seed: those of one failure are printed with it. Exits with 1 if something was found.
Without `--target` or `--kind` they take turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_calls import KINDS  # noqa: E402
from gpu_hunt import Hunted, hunt  # noqa: E402
from gpu_sessions import session  # noqa: E402

TARGETS = ("cuda:sm_80", "cuda:sm_90a", "hip:gfx90a", "hip:gfx942", "hip:gfx1100")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--kind", choices=[*KINDS, "session"], help="session: several calls, by the fake driver")
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--look", choices=("values", "machine", "text"), action="append", help="at what: values, if not said")
    parser.add_argument("--thorough", action="store_true", help="every order of threads, not two")
    parser.add_argument("--show", action="store_true", help="print each call, and the text of kernels")
    asked = parser.parse_args()
    found = 0
    for seed in range(asked.seed, asked.seed + asked.count):
        where = asked.target or TARGETS[seed % len(TARGETS)]
        kind = asked.kind or list(KINDS)[seed // len(TARGETS) % len(KINDS)]
        start = time.process_time()
        again = f"--target {where} --kind {kind} --seed {seed} --count 1"
        try:
            looks = tuple(asked.look or ("values",))
            got = session(seed, where) if kind == "session" else hunt(kind, seed, where, looks, asked.thorough)
            said = str(got) if got else "no such call"
            failed = got is not None and bool(got.fault)
        except Exception as error:  # the rest is to be tried in any case
            said, failed, got = f"RAISED {type(error).__name__}: {error}", True, None
        if failed or asked.show:
            print(f"{again}: {said}", flush=True)
        if asked.show and isinstance(got, Hunted) and got.made:
            print(got.made.module.text if got.made.module else "", f"{time.process_time() - start:.1f} s", sep="\n")
        found += failed
    print(f"{asked.count} calls, {found} failures")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
