"""How one cluster is built: by the first strategy that can do it and whose loops can be written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.loops import Node
from polyop.poly.blocks import scanned, scattered, spread, spreadchoice, squares, staged, strips, tilechoice, windows
from polyop.poly.build import Axes, Part, Plan
from polyop.poly.generate.generate import generate
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.strategies import columns, contract, lanes, packed, rows
from polyop.poly.tiles import TileProgram, bands

Attempt = tuple[str, Callable[[], Part]]
"""A strategy by what a user reads of it, and how it is built."""


def best(plan: Plan, cluster: Cluster, outer: Axes, rung: str, alone: bool = True) -> tuple[Part, tuple[Node, ...]]:
    """The part of `cluster` by the first strategy that can be built and, if `alone`, whose loops can be written; and these loops.

    Raises  UnsupportedError, with the reasons against each of them.
    """
    attempts, notes = _attempts(plan, cluster, outer, rung)
    reasons: list[str] = []
    for name, attempt in attempts:
        try:
            part = attempt()
            tiles = (c.name for c in plan.tiled.values())
            whole = replace(part, tree=bands(outer, *part.once, *bands(tiles, *part.tree)))
            nodes = generate(program(plan, whole), plan.head) if alone else ()
            return replace(part, chosen=(f"{cluster}: {name}",), notes=(*notes, *reasons)), nodes
        except UnsupportedError as error:
            reasons.append(f"{cluster}: not {name}, since {error}")
        except (KeyError, IndexError, StopIteration, ValueError) as error:
            raise InternalError(f"strategy {name} of {cluster}: {error!r}") from error
    raise UnsupportedError("; ".join(reasons))


def _attempts(plan: Plan, cluster: Cluster, outer: Axes, rung: str) -> tuple[list[Attempt], tuple[str, ...]]:
    """The strategies for `cluster` on a rung, best first, and why some of them are not among these."""
    found: list[Attempt] = []
    notes: tuple[str, ...] = ()
    if rung == "tuned" and may_pack(plan):
        try:
            for attempt in _packed(plan, cluster, outer):
                found.append(attempt)
        except UnsupportedError as error:
            notes = (f"{cluster}: not packed, since {error}",)
    if rung == "tuned" and plan.target.warp and (scan := scanned.choose(plan, cluster)):
        return [(str(scan), partial(scanned.build, plan, cluster, outer, scan))], ()  # else it had better not be in chunks
    if rung == "tuned" and plan.options.regime == "positive" and plan.target.warp:
        for name, choose in _ON_GPU:
            try:
                found += choose(plan, cluster, outer)
            except UnsupportedError as error:
                notes = (*notes, f"{cluster}: not {name}, since {error}")
    for r in lanes.choose(plan, cluster):
        if not (r.lane or any(r.inner)) or (rung in ("tuned", "default") and not plan.target.warp):
            found.append((str(r), partial(rows.build, plan, cluster, outer, r)))
    return found, notes


def _staged(plan: Plan, cluster: Cluster, outer: Axes) -> list[Attempt]:
    return [(str(s), partial(staged.build, plan, cluster, outer, s)) for s in tilechoice.choose(plan, cluster, outer)]


def _spread(plan: Plan, cluster: Cluster, outer: Axes) -> list[Attempt]:
    return [(str(s), partial(spread.build, plan, cluster, outer, s)) for s in spreadchoice.choose(plan, cluster)]


def _squares(plan: Plan, cluster: Cluster, outer: Axes) -> list[Attempt]:
    s = squares.choose(plan, cluster)
    return [(str(s), partial(squares.build, plan, cluster, outer, s))]


def _strips(plan: Plan, cluster: Cluster, outer: Axes) -> list[Attempt]:
    s = strips.choose(plan, cluster)
    return [(str(s), partial(rows.build, plan, cluster, outer, s))]


def _windows(plan: Plan, cluster: Cluster, outer: Axes) -> list[Attempt]:
    s = windows.choose(plan, cluster)
    return [(str(s), partial(rows.build, plan, cluster, outer, s))]


def _scattered(plan: Plan, cluster: Cluster, outer: Axes) -> list[Attempt]:
    s = scattered.choose(plan, cluster)
    return [(str(s), partial(scattered.build, plan, cluster, outer, s))]


_ON_GPU = (("staged", _staged), ("spread", _spread), ("squares", _squares), ("scattered", _scattered), ("strips", _strips),
           ("windows", _windows))
"""Strategies for GPUs, best first."""


def _packed(plan: Plan, cluster: Cluster, outer: Axes) -> Iterator[Attempt]:
    """A contraction, or a sum of rows, in register tiles. Raises UnsupportedError, if it cannot be."""
    choose = contract.choose if cluster.is_contraction else columns.choose
    for c in choose(plan, cluster, outer):
        c = contract.in_tiles(plan, c, next(iter(plan.tiled.values())).step) if plan.tiled else c
        yield str(c), partial(packed.build, plan, cluster, outer, c)


def may_pack(plan: Plan) -> bool:
    """Whether contractions may be packed at all."""
    return plan.options.regime == "positive" and not plan.target.warp


def program(plan: Plan, part: Part) -> TileProgram:
    """The tile program whose only part is `part`."""
    return TileProgram(plan.context, part.stmts, part.buffers, (*part.ahead, *part.tree), part.kinds, part.weights)
