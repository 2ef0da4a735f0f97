"""Lines of C text around others: a loop that is written out, and a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def unrolled(i: str, end: int, lines: Iterable[str], step: int = 1, first: int = 0) -> list[str]:
    """`lines` for each `i` in [first, end) by `step`, written out."""
    onward = f"++{i}" if step == 1 else f"{i} += {step}"
    return ["#pragma unroll", *block(f"for (int {i} = {first}; {i} < {end}; {onward})", lines)]


def where(tests: Sequence[str], lines: list[str]) -> list[str]:
    """`lines` where all that is asked holds."""
    return block(f"if ({' && '.join(tests)})", lines) if tests else lines


def block(head: str, lines: Iterable[str]) -> list[str]:
    return [f"{head} {{", *("    " + x for x in lines), "}"]
