"""What a call gives, in the order of an operator's parameters."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

from polyop.ir.interface import Interface
from polyop.runtime import choose

_WAYS = 4096  # of giving arguments, by position and by name, that are remembered

Pick = Callable[[tuple[Any, ...]], tuple[Any, ...]]


class Arguments:
    """The parameters of an interface, prepared for calls.

    names      as users give them; inner: those in the Op
    by_value   for each whether its value chooses sizes or the Op itself
    most       how many may be given by position
    """

    def __init__(self, interface: Interface) -> None:
        parameters = interface.parameters
        self.names = tuple(sys.intern(p.name) for p in parameters)
        self.inner = tuple(p.name_in_op for p in parameters)
        self.by_value = tuple(p.kind in ("int", "const") for p in parameters)
        self.most = next((k for k, p in enumerate(parameters) if p.by_name), len(parameters))
        self._interface = interface
        self._defaults = tuple(p.default for p in parameters)
        self._index = {p.name: k for k, p in enumerate(parameters)}
        self._required = frozenset(k for k, p in enumerate(parameters) if p.required)
        self._least = max(self._required, default=-1) + 1  # as many need no names: the rest have defaults
        self._picks: dict[Any, Pick] = {}

    def values(self, args: tuple[Any, ...], keywords: Mapping[str, Any]) -> tuple[Any, ...]:
        """The value of each parameter; what is not quite simple is left to `choose`, which can say what is wrong."""
        if not keywords and self._least <= len(args) <= self.most:
            return args + self._defaults[len(args):]
        given = (len(args), *keywords)
        pick = self._picks.get(given)
        if pick is None:
            pick = self._pick(len(args), *keywords)
            if pick is None:
                return tuple(choose.named(self._interface, args, keywords).values())
            if len(self._picks) < _WAYS:
                self._picks[given] = pick
        return pick((*args, *keywords.values(), *self._defaults))

    def _pick(self, count: int, *keywords: str) -> Pick | None:
        """What takes the values out of those by position, those by name, and the defaults; None if they do not fit."""
        if count > self.most:
            return None
        places = [*range(count), *range(count + len(keywords) + count, count + len(keywords) + len(self._defaults))]
        known = set(range(count))
        for at, name in enumerate(keywords, count):
            k = self._index.get(name)
            if k is None or k in known:
                return None
            places[k] = at
            known.add(k)
        if not self._required <= known:
            return None
        return picks(tuple(places))


def picks(places: tuple[int, ...]) -> Pick:
    """What takes the values at these places out of others, as a tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return (lambda pool: (pool[places[0]],)) if places else (lambda pool: ())
