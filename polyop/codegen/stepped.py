"""Passes one after the other, behind the proofs of a nest, and what each of them changed, so that the checker can follow it."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from enum import Enum

from polyop.ir.loops import LoopNest


class Follow(Enum):
    """How a pass is followed.

    STORES   each store stands along the same one (`poly/verify/rewrites.py`)
    VALUES   the same is stored, whatever registers hold meanwhile (`poly/verify/keeps.py`)
    MORE     iterations run on, or lack a test, and write only what nobody reads (`poly/verify/nobodys.py`)
    LESS     iterations are left out that wrote only what nobody read: the same, the other way round
    OWN      registers lose the dimensions by which threads share them out (`poly/verify/handed.py`)
    """

    STORES = "stores"
    VALUES = "values"
    MORE = "more"
    LESS = "less"
    OWN = "own"


@dataclass(frozen=True, eq=False)
class Step:
    """What the pass `name` made of a nest."""

    name: str
    by: Follow
    before: LoopNest
    after: LoopNest


def stepped(nest: LoopNest, without: Container[str], passes: Sequence[tuple[str, Follow, Callable[[LoopNest], LoopNest]]]
            ) -> tuple[LoopNest, tuple[Step, ...]]:
    """`nest` behind all passes but those left out, and what is to be followed."""
    found = list[Step]()
    for name, by, f in passes:
        new = f(nest) if name not in without else nest
        if new != nest:
            found.append(Step(name, by, nest, new))
        nest = new
    return nest, tuple(found)
