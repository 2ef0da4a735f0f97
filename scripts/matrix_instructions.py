"""Which operators of the library that multiply and add have matrix instructions in their machine code, in 16 bits.

    python scripts/matrix_instructions.py [TARGET ..] [f16 | bf16]       without words: four targets, f16

Prints a line for each operator: how many of its kernels have them, and what its contractions are built as where these do not.
Takes some minutes for each target; the tests ask this of sixteen operators.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "gpu")]

from gpu_contractions import TARGETS, assembly, compiled, multiplying, staged, with_units  # noqa: E402

from polyop.ir.module import launches  # noqa: E402


def main(words: list[str]) -> None:
    dtype = next((w for w in words if ":" not in w), "f16")
    for where in [w for w in words if ":" in w] or TARGETS:
        for name in multiplying():
            made = compiled(name, dtype, where)
            assert made.module is not None
            with tempfile.TemporaryDirectory() as folder:
                found = with_units(assembly(made.module.text, where, Path(folder)))
            kernels = [x.kernel for x in launches(made.module.launch)]
            print(f"{where} {dtype} {name}: {sum(k in found for k in kernels)} of {len(kernels)} kernels", flush=True)
            without = [x for x in staged(made) if " by " not in x]
            print("".join(f"    {x}\n" for x in (without if found else made.chosen)), end="", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
