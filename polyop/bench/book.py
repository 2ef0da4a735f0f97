"""What was measured: rows, and the book of all of them with the machine they are from; both go to JSON and come back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from polyop.bench.clock import Timing
from polyop.bench.machine import Level, Machine

FORMAT = 1
OURS = "polyop"
Verdict = Literal["right", "WRONG", "alone", "failed"]


@dataclass(frozen=True, slots=True)
class Row:
    """One case.

    verdict   "right": the same as the first peer; "WRONG": not, and so nothing was timed; "alone": nobody to compare with;
              "failed": polyop itself raised `reason`
    error     the greatest difference to that peer, as a part of the greatest element
    flops     of one call, an upper bound if not `exact`; bytes_: of inputs and results, each element once
    least_ms  what the machine's limits leave at best; 0 where they say nothing
    times     polyop first; skipped  why peers that have something for this case were not timed
    """

    group: str
    case: str
    verdict: Verdict
    error: float | None = None
    reason: str = ""
    flops: float = 0.0
    exact: bool = True
    bytes_: int = 0
    least_ms: float = 0.0
    times: Mapping[str, Timing] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def best(self) -> str | None:
        """The fastest peer."""
        peers = {n: t.median for n, t in self.times.items() if n != OURS}
        return min(peers, key=lambda n: peers[n]) if peers else None

    def over(self, peer: str | None) -> float | None:
        """How many times as fast polyop is; None if one of the two was not timed."""
        if peer is None or OURS not in self.times or peer not in self.times:
            return None
        return self.times[peer].median / self.times[OURS].median

    def least_over(self, peer: str) -> float | None:
        """The same of the least times of both."""
        ours, theirs = (self.times[n].least if n in self.times else None for n in (OURS, peer))
        return theirs / ours if ours and theirs else None

    @property
    def seconds(self) -> float:
        return self.times[OURS].median / 1e3

    @property
    def gflops(self) -> float:
        return self.flops / self.seconds / 1e9

    @property
    def gbytes(self) -> float:
        return self.bytes_ / self.seconds / 1e9

    @property
    def limit(self) -> float | None:
        """The part of the machine's limit that is reached; None where it says nothing."""
        return self.least_ms / self.times[OURS].median if self.least_ms and OURS in self.times else None


@dataclass(frozen=True, slots=True)
class Book:
    """A whole run. versions: of polyop, Python and each peer; missing: why other peers are not in it.

    rounds   of turns, if everybody had a process of its own: a time's samples are then the least processor time in each round
    """

    machine: Machine
    size: str
    versions: Mapping[str, str]
    missing: Mapping[str, str]
    rows: tuple[Row, ...]
    rounds: int = 0

    @property
    def wrong(self) -> tuple[Row, ...]:
        return tuple(r for r in self.rows if r.verdict in ("WRONG", "failed"))

    @property
    def groups(self) -> dict[str, tuple[Row, ...]]:
        return {g: tuple(r for r in self.rows if r.group == g) for g in dict.fromkeys(r.group for r in self.rows)}


def to_json(book: Book) -> str:
    """The book, with what follows from it in each row, so that nobody has to compute it again."""
    data = {"format": FORMAT, **asdict(book)}
    for out, row in zip(data["rows"], book.rows, strict=True):
        out["times"] = {n: asdict(t) for n, t in row.times.items()}
        if OURS in row.times:
            out |= {"gflops": row.gflops, "gbytes": row.gbytes, "limit": row.limit, "best": row.best,
                    "over_best": row.over(row.best), "over": {n: row.over(n) for n in row.times if n != OURS},
                    "least_over": {n: row.least_over(n) for n in row.times if n != OURS}}
    return json.dumps(data, indent=1)


def from_json(text: str) -> Book:
    """The book that `to_json` wrote. Raises ValueError, if it is of another format."""
    data = json.loads(text)
    if data.get("format") != FORMAT:
        raise ValueError(f"expected format {FORMAT}, got {data.get('format')}")
    m: dict[str, Any] = data["machine"]
    machine = Machine(**{**m, "levels": tuple(Level(**x) for x in m["levels"])})
    known = Row.__dataclass_fields__
    rows = tuple(Row(**{**{n: v for n, v in r.items() if n in known}, "times": {n: Timing(**t) for n, t in r["times"].items()}})
                 for r in data["rows"])
    return Book(machine, data["size"], data["versions"], data["missing"], rows, data.get("rounds", 0))


def mean(ratios: list[float]) -> float:
    """The geometric mean: of twice as fast and half as fast it makes 1."""
    return float(np.exp(np.mean(np.log(ratios))))
