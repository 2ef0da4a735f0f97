"""Names of what a nest has and the operator has not, loops and buffers: none of the operator's own, whatever these are.

    m_c, m_r, m_p    coordinates of the loop m; m_S0_r if a statement has tiles of its own
    C_row, C_reg     homes of the tensor C; C_S0_acc, C_S0_right and so on: what a statement needs beside it

A loop's own name, and how a buffer's name begins, are chosen such that nothing else looks like one of these.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from polyop.ir.loops import LoopNest

HOMES = ("row", "reg", "sum", "turned")
"""What follows a tensor's name in that of a buffer, where no statement's does."""


def names_in(nest: LoopNest) -> set[str]:
    """The sizes, scalars and buffers of `nest`."""
    return {*nest.sizes, *(n for n, _ in nest.scalars), *(b.name for b in nest.buffers)}


def new_name(base: str, is_free: Callable[[str], bool]) -> str:
    """The first of `base`, `base2`, `base3`, .. that is free."""
    name, n = base, 1
    while not is_free(name):
        n += 1
        name = f"{base}{n}"
    return name


def loop_name(base: str, taken: Collection[str], loops: Collection[str], stmts: Collection[str]) -> str:
    """A name that is not in `taken`, is no coordinate of one of `loops`, and of which nothing taken is one."""
    def is_free(name: str) -> bool:
        apart = not any(is_coordinate(x, name, stmts) for x in taken) and not any(is_coordinate(name, q, stmts) for q in loops)
        return name not in taken and apart

    if any(is_coordinate(base, q, stmts) for q in loops):  # and so are `base2`, `base3`, ..
        base = base.replace("_", "")
    return new_name(base, is_free)


def is_coordinate(name: str, loop: str, stmts: Collection[str]) -> bool:
    """Whether `name` may be that of a coordinate of `loop`."""
    rest = name.removeprefix(f"{loop}_")
    stmt, _, last = rest.rpartition("_")
    return rest != name and last[:1].isalpha() and (last[1:].isdigit() or not last[1:]) and (not stmt or stmt in stmts)


def stems(tensors: Iterable[str], taken: Collection[str], stmts: Collection[str]) -> dict[str, str]:
    """tensor -> how the names of buffers beside it begin: so that none is in `taken`, and no two are one."""
    out: dict[str, str] = {}
    for t in tensors:
        def is_free(stem: str) -> bool:
            return not any(is_buffer(x, stem, stmts) for x in taken) and not any(_meet(stem, x, stmts) for x in out.values())

        out[t] = new_name(t, is_free)
    return out


def is_buffer(name: str, stem: str, stmts: Collection[str]) -> bool:
    """Whether `name` may be that of a buffer beside a tensor, which begins with `stem`."""
    rest = name.removeprefix(f"{stem}_")
    return rest != name and (rest.rstrip("0123456789") in HOMES or any(rest.startswith(f"{s}_") for s in stmts))


def _meet(a: str, b: str, stmts: Collection[str]) -> bool:
    """Whether one name may begin with both stems: `C_S0_sum`, of C and of C_S0."""
    return a == b or any(y == f"{x}_{s}" for x, y in ((a, b), (b, a)) for s in stmts)
