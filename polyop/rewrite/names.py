"""Names that are new."""

from __future__ import annotations


def fresh(base: str, taken: set[str]) -> str:
    """`base`, or `base_2`, `base_3`, .. if that is in `taken`; it is taken then."""
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name
