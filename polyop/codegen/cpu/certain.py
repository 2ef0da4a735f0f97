"""What the lanes of a loop read for certain: then elements between those of two lanes may be read with them.

    lanes v { Z[v] = X[2v] * Y[2v + 1] + X[2v + 1] * Y[2v] }        all of X and Y from 2 0 to 2 V - 1, though by turns
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from polyop.ir.expr import Affine, Apply, Expr, Load, affine, names, substitute
from polyop.ir.loops import For, Kind, LoopNest, Node, Space, Store
from polyop.ir.target import NEAR

Run = tuple[str, tuple[Affine, ...], Affine]
"""Elements of a buffer that lie side by side: its name, the positions but for the last one, and that one but for a number."""

Steps = Sequence[tuple[str, int]]
"""Rows that all exist: their indices and how many they are."""


def run_of(x: Load) -> tuple[Run, int] | None:
    """The run of `x` and its number there; None if a position comes from data."""
    places = tuple(p for p in x.index if isinstance(p, Affine))
    if not places or len(places) < len(x.index):
        return None
    return (x.source, places[:-1], places[-1] - places[-1].const), places[-1].const


def certain_reads(nest: LoopNest, body: tuple[Node, ...], rows: Steps) -> Mapping[Run, frozenset[int]]:
    """The numbers in each run of memory that are read wherever `body` is, once for each step of `rows`."""
    found: dict[Run, set[int]] = {}
    for x, steps in _reads(body, tuple(rows)):
        if not x.index or nest.buffer(x.source).space == Space.REG:
            continue
        used = [(n, count) for n, count in steps if any(isinstance(p, Affine) and n in names(p) for p in x.index)]
        for at in product(*(range(count) for _, count in used)):
            here = {n: affine(i) for (n, _), i in zip(used, at, strict=True)}
            run = run_of(Load(x.source, tuple(substitute(p, here) if isinstance(p, Affine) else p for p in x.index), x.dtype))
            if run is not None:
                found.setdefault(run[0], set()).add(run[1])
    return {run: frozenset(numbers) for run, numbers in found.items()}


def first_of_run(numbers: frozenset[int], number: int, step: int) -> int | None:
    """The first of `step` numbers in turn among which `number` is, all of them in `numbers`: a multiple of `step`, if one is."""
    starts = sorted(range(number - step + 1, number + 1), key=lambda k: (k % step != 0, k))
    return next((k for k in starts if numbers.issuperset(range(k, k + step))), None)


def _reads(body: tuple[Node, ...], rows: tuple[tuple[str, int], ...]) -> Iterator[tuple[Load, Steps]]:
    for n in body:
        match n:
            case Store():
                yield from ((x, rows) for x in _always(n.expr))
            case For(kind=Kind.ROWS) if n.is_full and n.extent is not None and n.extent <= NEAR:
                yield from _reads(n.body, (*rows, (n.index, n.extent)))


def _always(e: Expr) -> Iterator[Load]:
    """The loads of `e` that no condition can leave out."""
    match e:
        case Load(guard=()):
            yield e
        case Apply(fn="select" | "and" | "or", args=(first, *_)):
            yield from _always(first)
        case Apply(args=args):
            for x in args:
                yield from _always(x)
