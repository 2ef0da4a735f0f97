"""What a text was found to say, on disk: how an operator of it is called, and the Ops that kernels were made of.

A process that finds both, and its kernels, reads no text: neither the parser nor anything else of `dsl` is imported. What is kept
of an Op lacks the places in the text; it is kept once there is a kernel of it, so nothing is wrong with it that these would show.
Operators whose data may point outside, of which a call is told in the words of the text, are read from it each time. Of a file
the names of its operators are kept, too.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

from polyop.ir.codec import decode, encode
from polyop.ir.errors import PolyopError
from polyop.ir.expr import is_computed, loads
from polyop.ir.interface import Choice, Interface
from polyop.ir.op import Op
from polyop.runtime import cache

log = logging.getLogger("polyop")

_MOST = 32
"""Ops of one operator that are kept: dtypes, consts and ranks of calls."""


class Recalled:
    """What the cache has of one operator; `says` tells which: all that it depends on, but for polyop itself."""

    def __init__(self, *says: str) -> None:
        self._key = cache.key("text", *says)
        self._ops: dict[str, Any] = {}
        self.interface: Interface | None = None
        found = cache.read(self._key, cache.CODE)
        if found is None:
            return
        try:
            self.interface = decode(Interface, found[0].get("interface"))
            self._ops = _ops(found[0])
        except (PolyopError, RecursionError) as e:
            log.warning("ignoring the cached text %s: %s", self._key, e)

    def op(self, choice: Choice) -> Op | None:
        """The Op of `choice`, if it is kept."""
        found = self._ops.get(_said(choice))
        if found is None:
            return None
        try:
            made, names = found
            return replace(decode(Op, made), names=tuple((str(here), str(users)) for here, users in names))
        except (PolyopError, RecursionError, ValueError, TypeError) as e:
            log.warning("ignoring the cached text %s: %s", self._key, e)
            return None

    def keep(self, interface: Interface, choice: Choice, op: Op) -> None:
        """Keep what `choice` gives, beside what this process and others have kept; not what is too deep for JSON."""
        said = _said(choice)
        if said in self._ops or _has_computed_positions(op):
            return
        try:
            made = encode(op), encode(op.names)
            found = cache.read(self._key, cache.CODE)
            kept = {**(_ops(found[0]) if found else {}), **self._ops, said: made}
            self._ops = dict(list(kept.items())[-_MOST:])
            cache.write(self._key, {"interface": encode(interface), "ops": self._ops}, b"", cache.CODE)
        except RecursionError:
            self._ops[said] = None


def recalled_names(text: str) -> tuple[str, ...] | None:
    """The operators that `text` defines, if it has been read before."""
    found = cache.read(cache.key("names", text), cache.CODE)
    names = found[0].get("names") if found else None
    return tuple(names) if isinstance(names, list) and all(isinstance(n, str) for n in names) else None


def keep_names(text: str, names: tuple[str, ...]) -> None:
    """Keep which operators `text` defines, in which nothing was wrong with the definitions."""
    cache.write(cache.key("names", text), {"names": names}, b"", cache.CODE)


def _ops(header: dict[str, Any]) -> dict[str, Any]:
    found = header.get("ops")
    return found if isinstance(found, dict) else {}


def _has_computed_positions(op: Op) -> bool:
    return any(is_computed(p) for s in op.steps for x in (s.target, *loads(s.expr)) for p in x.index)


def _said(choice: Choice) -> str:
    """What tells apart choices, those that are equal too: consts of 0.0 and of -0.0."""
    return json.dumps(encode(choice))
