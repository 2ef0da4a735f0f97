"""An Op that computes some elements of another one several times, and what it claims: which element each copy is one of.

The polyhedral layer proves the claims (`poly/verify/copies.py`); rewrites make them.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.ir.expr import Affine
from polyop.ir.op import Op


@dataclass(frozen=True, slots=True)
class Copies:
    """A temporary whose elements are copies of another tensor's: `name[indices]` is one of `of[index]`."""

    name: str
    of: str
    indices: tuple[str, ...]
    index: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """Which step of the other Op a step carries out, by number, and the values of that one's indices; None: it moves a copy."""

    step: int | None
    lift: tuple[Affine, ...] = ()


@dataclass(frozen=True, slots=True)
class Recomputed:
    """`op`, its temporaries that are `copies`, and the origin of each of its steps in order."""

    op: Op
    copies: tuple[Copies, ...]
    origins: tuple[Origin, ...]
