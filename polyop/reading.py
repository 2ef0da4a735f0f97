"""Text -> Program, as users' calls take it: the parser's tables come from the cache."""

from __future__ import annotations

from collections.abc import Callable

from polyop.dsl import parse as dsl
from polyop.dsl.syntax import Program
from polyop.ir.span import Source
from polyop.runtime import cache


def parse(source: Source) -> Program:
    """The definitions in `source`.

    Raises  UserError E1xx, if the text is not in the language.
    """
    return dsl.parse(source, _kept)


def _kept(said: str, make: Callable[[], bytes]) -> bytes:
    """Bytes from the cache, which belong to `said` alone, or new ones."""
    return cache.remember_code(cache.key("grammar", said), make)
