"""How loops and branches are written, for those who need some of their own: `nodes.py` knows how, and asks them for theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import Int
from polyop.ir.loops import For


@dataclass(frozen=True, slots=True)
class Emitters:
    """Functions of `nodes.py`.

    loop     a serial loop with given bounds, in whatever way is best for it
    plain    the same, as nothing but a loop
    branch   one thing or another, by a test
    """

    loop: Callable[[State, For, Int, Int], None]
    plain: Callable[[State, For, Int, Int], None]
    branch: Callable[[State, str, Callable[[], None], Callable[[], None]], None]
