"""The nouns of a schedule: what shares loops with what, and which loops must run in order.

A `Schedule` is a sequence of nodes. A `Cluster` is a set of statements below common parallel loops (its shell), followed by
groups that share further loops; a `Serial` node is a loop that carries a recurrence, around nodes of its own; a `Shared` one
is parallel loops around several clusters. Loops are named by class: iterators of different statements that run together are
in one class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.poly.scop import Stmt

Classes = Mapping[str, Mapping[str, str]]
"""statement -> iterator -> class."""


@dataclass(frozen=True, eq=False)
class Group:
    """Statements that share all their loops inside a cluster's shell.

    kept      classes that every one of them writes by, outermost first
    reduced   classes over which at least one of them reduces
    """

    stmts: tuple[Stmt, ...]
    kept: tuple[str, ...]
    reduced: tuple[str, ...]

    def __str__(self) -> str:
        loops = "".join(f"{c}(" for c in self.kept) + "".join(f"{c}*(" for c in self.reduced)
        return loops + " ".join(s.name for s in self.stmts) + ")" * (len(self.kept) + len(self.reduced))


@dataclass(frozen=True, eq=False)
class Serial:
    """A loop over `stmts` whose iterations run in order, since they carry a recurrence; `is_reversed`: the last one first."""

    loop: str
    body: tuple[Node, ...]
    stmts: tuple[Stmt, ...]
    is_reversed: bool = False

    def __str__(self) -> str:
        return f"{'-' if self.is_reversed else ''}{self.loop}!({' '.join(map(str, self.body))})"


@dataclass(frozen=True, eq=False)
class Cluster:
    """Statements fused below the parallel loops `shell`; `is_contraction`: one update with row and column iterators."""

    stmts: tuple[Stmt, ...]
    shell: tuple[str, ...]
    body: tuple[Group | Serial, ...]
    is_contraction: bool = False

    def __str__(self) -> str:
        return f"[{' '.join(self.shell)} : {' '.join(map(str, self.body))}]"


@dataclass(frozen=True, eq=False)
class Shared:
    """Loops around clusters, or a recurrence of them, whose iterations have nothing to do with each other: see `batches.py`.

    tile   a loop of all the clusters' shells of which they take `step` iterations at a time, inside the others; or None
    """

    loops: tuple[str, ...]
    body: tuple[Cluster | Serial, ...]
    tile: str | None = None
    step: int = 0

    @property
    def serial(self) -> tuple[str, ...]:
        """The loops of recurrences inside, which go through all their turns for each iteration."""
        return tuple(n.loop for n in self.body if isinstance(n, Serial))

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return tuple(s for c in self.body for s in c.stmts)

    def __str__(self) -> str:
        tile = f"{self.step or 'some'} of {self.tile} at a time" if self.tile else ""
        around = ", ".join(x for x in (" ".join(self.loops), tile) if x)
        return "\n".join([f"{around} around", *(f"  {c}" for c in self.body)])


@dataclass(frozen=True, eq=False)
class Resident:
    """Clusters inside a recurrence and after it, of which each block of a GPU's threads has some rows to itself: `resident.py`.

    loops   parallel loops around all of it
    tile    the classes of the rows, one for each cluster; a block has `step` of them
    """

    loops: tuple[str, ...]
    body: tuple[Serial | Cluster, ...]
    tile: tuple[str, ...]
    step: int

    @property
    def stmts(self) -> tuple[Stmt, ...]:
        return tuple(s for n in self.body for s in n.stmts)

    def __str__(self) -> str:
        around = " ".join((*self.loops, f"{self.step} of {self.tile[0]}"))
        return "\n".join([f"{around} in a block", *(f"  {n}" for n in self.body)])


Node = Cluster | Serial | Shared | Resident | Group


@dataclass(frozen=True, eq=False)
class Schedule:
    """`nodes` in order; `classes` of all statements; `notes` say what was not fused and why."""

    nodes: tuple[Node, ...]
    classes: Classes
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([*map(str, self.nodes), *(f"note: {n}" for n in self.notes)])
