"""What the lanes of a loop read for certain: then elements between those of two lanes may be read with them.

    lanes v { Z[v] = X[2v] * Y[2v + 1] + X[2v + 1] * Y[2v] }        all of X and Y from 2 0 to 2 V - 1, though by turns
    lanes v { for c in [0, 3) { Z[v] += X[3v + c] } }               all of X, too
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from polyop.ir.expr import Affine, Apply, Expr, Load, affine, names, substitute
from polyop.ir.loops import For, Kind, LoopNest, Node, Space, Store
from polyop.ir.target import NEAR

Run = tuple[str, tuple[Affine, ...], Affine]
"""Elements of a buffer that lie side by side: its name, the positions but for the last one, and that one but for a number."""

Steps = Sequence[tuple[str, range]]
"""Loops of which all iterations run: their indices, and the values that these have."""


def run_of(x: Load) -> tuple[Run, int] | None:
    """The run of `x` and its number there; None if a position comes from data."""
    places = tuple(p for p in x.index if isinstance(p, Affine))
    if not places or len(places) < len(x.index):
        return None
    return (x.source, places[:-1], places[-1] - places[-1].const), places[-1].const


def certain_reads(nest: LoopNest, body: tuple[Node, ...], rows: Steps,
                  known: Mapping[str, Affine]) -> Mapping[Run, frozenset[int]]:
    """The numbers in each run of memory that are read wherever `body` is, for each step of `rows`; `known`: other indices."""
    found: dict[Run, set[int]] = {}
    for x, steps in _reads(body, tuple(rows)):
        if not x.index or nest.buffer(x.source).space == Space.REG:
            continue
        used = [(n, values) for n, values in steps if any(isinstance(p, Affine) and n in names(p) for p in x.index)]
        for at in product(*(values for _, values in used)):
            run = run_of(at_known(x, {**known, **{n: affine(i) for (n, _), i in zip(used, at, strict=True)}}))
            if run is not None:
                found.setdefault(run[0], set()).add(run[1])
    return {run: frozenset(numbers) for run, numbers in found.items()}


def at_known(x: Load, known: Mapping[str, Affine]) -> Load:
    """`x` where these indices are known."""
    return replace(x, index=tuple(substitute(p, known) if isinstance(p, Affine) else p for p in x.index))


def turns_of(n: For) -> int:
    """How many iterations `n` has, if these are a few, of which the number is known, and of stores alone; else 0."""
    found = _values(n)
    return len(found) if found is not None and all(isinstance(x, Store) for x in n.body) else 0


def first_of_run(numbers: frozenset[int], number: int, step: int) -> int | None:
    """The first of `step` numbers in turn among which `number` is, all of them in `numbers`: a multiple of `step`, if one is."""
    starts = sorted(range(number - step + 1, number + 1), key=lambda k: (k % step != 0, k))
    return next((k for k in starts if numbers.issuperset(range(k, k + step))), None)


def _reads(body: tuple[Node, ...], rows: tuple[tuple[str, range], ...]) -> Iterator[tuple[Load, Steps]]:
    for n in body:
        match n:
            case Store():
                yield from ((x, rows) for x in _always(n.expr))
            case For() if (values := _values(n)) is not None:
                yield from _reads(n.body, (*rows, (n.index, values)))


def _values(n: For) -> range | None:
    """What the index of `n` goes through, if these are few numbers that are known."""
    if n.kind == Kind.ROWS and n.is_full and n.extent is not None:
        found = range(n.extent)
    elif n.kind == Kind.SERIAL and n.lower.is_constant and n.upper.is_constant:
        found = range(n.lower.const, n.upper.const, n.step)
    else:
        return None
    return found if 0 < len(found) <= NEAR else None


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
