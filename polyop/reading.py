"""Text -> Program, as users' calls take it: the parser's tables come from the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from polyop.ir.span import Source
from polyop.runtime import cache, forks

if TYPE_CHECKING:
    from polyop.dsl.syntax import Program


def parse(source: Source) -> Program:
    """The definitions in `source`.

    Raises  UserError E1xx, if the text is not in the language.
    """
    with forks.IMPORTS:  # many processes find all that they need in the cache, and read no text
        from polyop.dsl import parse as dsl

    return dsl.parse(source, _kept)


def _kept(said: str, make: Callable[[], bytes]) -> bytes:
    """Bytes from the cache, which belong to `said` alone, or new ones."""
    return cache.remember_code(cache.key("grammar", said), make)
