"""Sums over windows with fewer multiplications, as calls ask for them: found, chosen by sizes, written and proved.

Only calls with `numerics="winograd"` import this module.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from polyop.cached import cached_property
from polyop.ir.module import Proof
from polyop.ir.op import Op
from polyop.ir.target import Target
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.windows.filtered import filtered
from polyop.rewrite.windows.winograd import find_filters, known_sizes, ways
from polyop.runtime import store


@dataclass(frozen=True, eq=False)
class Filtered:
    """An Op some of whose sums take fewer multiplications, and the one with those of the text, `of` windows of the same sizes."""

    op: Op
    of: Op

    @cached_property
    def proof(self) -> Proof:
        """That both are the same."""
        from polyop.poly.verify.bilinear import same_sums  # isl comes with it, which takes long to import

        return same_sums(self.of, self.op)


class Filters:
    """The sums of an Op over windows, and what calls have needed of it with fewer multiplications."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.found = find_filters(op)
        self._made: store.Memo[Filtered] = store.Memo()

    def made(self, sizes: Mapping[str, int], target: Target, frozen: Collection[str], threads: int = 1) -> Filtered | None:
        """The Op for calls of these sizes on so many threads; None if the sums of the text are faster."""
        if min(sizes.values(), default=1) < 1:
            return None
        chosen = ways(self.found, sizes, target, frozenset(frozen), threads)
        if not chosen:
            return None
        known = known_sizes(self.found, chosen, sizes)

        def make() -> Filtered:
            plain = fix_sizes(self.op, known)
            return Filtered(filtered(plain, chosen), plain)

        return self._made.get((chosen, *known.items()), make)
