"""Kernels that serve for others: what few calls ask for is not compiled before it has cost about as much without.

A kernel for all sizes of at least one is right for every call that asks for one of few rows, short rows, or other tiles; these
are only faster. So a call of new sizes takes the kernel that is there; it is made where calls are of a second sort. Sizes that
come twice in a row or again and again, and calls that add up, are worth a kernel of their own. Which kernel a call gets follows
from the calls before it alone, neither from the clock nor from what is in the cache.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from polyop.ir.options import Layout, Options, altered

MOST = 5e8
"""Nanoseconds, as `cost` estimates them, of the calls of one sort that another's kernel carries out. Compiling one of their own
takes about a third of that; that it saves as much is assumed, not measured.
"""

LIKE = 4
"""How many times as long calls must take before they get a kernel that is like the one that serves: it saves that much less."""

TURNED = 2
"""How many times as much a call counts that is carried out with lanes along another dimension: contractions took 0.85 to 1.7
times as long so, convolutions of four filters 2.5 to 2.9.
"""

EMPTY = 8
"""The same where few rows, or what else is asked for, may leave most of these lanes empty: assumed, not measured."""

TIMES = 3
"""How often calls of one look take another's kernel, if others come between them; else once."""

LOOKS = 4096
"""Calls that are remembered."""

KEPT = ("regime", "near", "cascade", "threads", "frozen")
"""The options of a call that whatever serves for it must have, too: all others make its own kernel faster, and no more."""

Key = tuple[Layout, Options]
"""What a kernel is found by."""


@lru_cache(maxsize=1024)
def everyday(asked: Options, given: Options) -> Options:
    """The options of the kernel for all sizes of at least one, where a call asks for `asked` of an operator with options `given`.

    Notes   What a kernel of any sizes counts on, or does as long whatever the sizes, stays as `asked` says.
    """
    return altered(given, tuple((n, getattr(asked, n)) for n in KEPT if getattr(asked, n) != getattr(given, n)))


def lender(usual: Key, made: Iterable[Key], given: Options) -> Key | None:
    """Which kernel may do what `usual` does: one of those `made`, itself or one that takes about as long.

    Else one whose lanes run along another dimension. Itself, too, where those made are of other sorts: calls of one sort need
    nothing else, but those of two are likely to be of many, and `usual` serves for them all. None if there is none of these.
    `given`: the options of the operator.
    """
    units, options = usual
    alike = [k for k in made if k[0] == units and everyday(k[1], given) == options]
    others = [k for k in alike if is_like(k[1], options)] or [k for k in alike if is_turned(k[1], options)]
    if usual in others or (alike and not others):
        return usual
    return min(others, key=lambda k: (k[1].height, k[1].lent), default=None)


@lru_cache(maxsize=1024)
def is_like(served: Options, asked: Options) -> bool:
    """Whether kernels differ in heights of tiles and blocks alone, and in where long rows of temporaries lie: in little time."""
    return replace(served, height=asked.height, slim=asked.slim, slabs=asked.slabs, lent=asked.lent) == asked


@lru_cache(maxsize=1024)
def is_turned(served: Options, asked: Options) -> bool:
    """Whether kernels differ in which dimension lanes run along, and in what follows from that, as in little else."""
    return is_like(replace(served, short=asked.short, inward=asked.inward), asked)


@lru_cache(maxsize=1024)
def is_close(served: Options, asked: Options) -> bool:
    """Whether a kernel may serve for good where another one is asked for: at most its tiles are of another height."""
    return served == asked or replace(served, height=asked.height) == asked


def price_of(elements: int, points: int, asked: Key, served: Key) -> float:
    """About how many nanoseconds a call takes: a point in tiles of registers takes a part of what an element in memory takes.

    Less of them count where the kernel that serves is like the one asked for, and more where its lanes may be empty.
    """
    about, own, other = points / 64 + elements, asked[1], served[1]
    if is_like(other, own):
        return about / LIKE
    if not other.short or other.short == own.short:
        return about
    return about * (TURNED if is_turned(other, own) else EMPTY)


def price_without(elements: int, points: int) -> float:
    """The same of a call in the place of whose kernel serves one that does not know which of its sizes are few."""
    return (points / 64 + elements) * EMPTY


@dataclass(slots=True)
class Loans:
    """What one operator's kernels have done for others.

    spent   what was asked for -> nanoseconds
    times   look -> calls that another's kernel carried out
    last    the look of the last call of a new look, whoever carried it out
    """

    spent: dict[Hashable, float] = field(default_factory=dict)
    times: dict[Hashable, int] = field(default_factory=dict)
    last: Hashable = None

    def would_lend(self, asked: Hashable, look: Hashable, cost: float) -> bool:
        """Whether a call that looks like `look` may do without the kernel that it asks for."""
        return self.spent.get(asked, 0.0) + cost <= MOST and self.times.get(look, 0) < TIMES and look != self.last

    def made(self, asked: Hashable) -> None:
        """No call does without `asked` from now on."""
        self.spent[asked] = MOST

    def lends(self, asked: Hashable, look: Hashable, cost: float) -> bool:
        """The same, and writes that down."""
        if not self.would_lend(asked, look, cost):
            self.made(asked)  # now, and if that fails nobody does without it again
            return False
        times = self.times.get(look, 0)
        if len(self.times) >= LOOKS:
            self.times.clear()
        self.times[look], self.spent[asked], self.last = times + 1, self.spent.get(asked, 0.0) + cost, look
        return True
