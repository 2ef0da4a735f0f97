"""The groups of cases, in the order of the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from polyop.bench.case import Case, Sweep
from polyop.bench.groups.convolutions import conv, frozen, odd_conv, winograd
from polyop.bench.groups.elements import elementwise, reductions, scans
from polyop.bench.groups.fixed import fixed
from polyop.bench.groups.images import images
from polyop.bench.groups.matrices import batched, contractions, matmul, precision, skinny
from polyop.bench.groups.moves import calls, moves, permutes
from polyop.bench.groups.networks import attention, layers, recurrent, rows
from polyop.bench.groups.numerics import algebra, semirings, stencils
from polyop.bench.groups.points import points
from polyop.bench.groups.quoted import quoted
from polyop.bench.groups.sweeps import cached, dynamic

GROUPS: dict[str, Callable[[], Iterator[Case | Sweep]]] = {f.__name__: f for f in (
    matmul, skinny, batched, contractions, precision, conv, odd_conv, frozen, winograd, images, points, attention, layers, rows,
    elementwise, reductions, scans, permutes, moves, semirings, algebra, stencils, recurrent, calls, dynamic, cached, fixed,
    quoted)}

APART = ("fixed", "quoted")
"""Those that are measured only when they are named."""


def cases(groups: Sequence[str], size: str) -> Iterator[Case | Sweep]:
    """The cases of `groups`; of all but those apart if none is named; "small": only the quick ones."""
    for group in groups or (g for g in GROUPS if g not in APART):
        for case in GROUPS[group]():
            if case.quick or size == "full":
                yield case
