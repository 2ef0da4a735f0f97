"""Names that are new."""

from __future__ import annotations

from polyop.ir.op import Op


def all_names(op: Op) -> set[str]:
    """All names that `op` has: of sizes, tensors, parameters and iterators."""
    return {*op.sizes, *(t.name for t in op.tensors), *(p.name for p in op.params), *(i for s in op.steps for i in s.indices)}


def fresh(base: str, taken: set[str]) -> str:
    """`base`, or `base_2`, `base_3`, .. if that is in `taken`; it is taken then."""
    name, n = base, 1
    while name in taken:
        n += 1
        name = f"{base}_{n}"
    taken.add(name)
    return name
