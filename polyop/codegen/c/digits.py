"""The sides of an atom, as C text. Several loops may count one side, when it is a few lines of a narrow tile:

    { [p, q] -> [8 p + q] : 0 <= p < 2 and 0 <= q < 8 }          const int q = row % 8, p = row / 8;
"""

from __future__ import annotations

from polyop.codegen.gpu.held import Digits


def digits(side: Digits, number: str) -> tuple[tuple[str, str], ...]:
    """The value of each loop at the row, or column, of this `number`, which is never negative."""
    found, weight = [], 1
    for i, n in reversed(side):
        high = f"({number}) / {weight}" if weight > 1 else number if len(side) == 1 else f"({number})"
        found.append((i, f"{high} % {n}" if i != side[0][0] else high))
        weight *= n
    return tuple(found)
