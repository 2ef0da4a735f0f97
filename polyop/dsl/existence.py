"""Where a temporary of inferred shape exists, as tests on the position of a read: `else` needs to know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from polyop.dsl.draft import Draft
from polyop.dsl.intervals import Box
from polyop.ir.expr import Affine, Expr, Position, Test, affine, expr_names, names, substitute, substitute_expr

MAX_FAILURES = 256


@dataclass(frozen=True, slots=True)
class Written:
    """What one statement writes whose target is `T[indices + offsets]`: where all `tests` are >= 0 and `conditions` hold.

    indices  one for each dimension; "" where the position is `offset` alone, as in `T[0, j]`

    Of a reduction these are the elements with a term or with none: a condition on a reduced index does not count.
    """

    indices: tuple[str, ...]
    offsets: tuple[Affine, ...]
    tests: tuple[Affine, ...]
    conditions: tuple[Expr, ...] = ()

    def at(self, index: Sequence[Position]) -> tuple[tuple[Affine, ...], tuple[Expr, ...]]:
        """What must be >= 0, and what must hold, for the element at the affine positions `index` to be written here."""
        env: dict[str, Affine] = {}
        equal: list[Affine] = []
        for n, o, p in zip(self.indices, self.offsets, index, strict=True):
            assert isinstance(p, Affine)
            if n:
                env[n] = p - o
            else:
                equal += [p - o, o - p]
        return (*equal, *(substitute(t, env) for t in self.tests)), tuple(substitute_expr(c, env) for c in self.conditions)


Existence = tuple[Written, ...]
"""The statements that write a temporary; it exists where one of them does."""


def fills(where: Existence, index: Sequence[Position], inside: Sequence[Affine], always: Callable[[Affine], bool]) -> bool:
    """Whether an element that lies `inside` its tensor is seen to be written by one statement or another.

    It is not if each statement fails by one of its tests, and no two of these failures contradict each other.
    """
    failures = [[t * -1 - 1 for t in w.at(index)[0]] for w in where]
    if any(w.conditions for w in where) or prod(map(len, failures)) > MAX_FAILURES:
        return False
    return all(any(always((x + y) * -1 - 1) for x, y in combinations((*inside, *failed), 2)) for failed in product(*failures))


def written(draft: Draft, box: Box, sizes: Collection[str]) -> Written | None:
    """Where `draft` writes, or None where that is not plain: scattering, `2*i` and `i + j` on the left."""
    indices: list[str] = []
    offsets: list[Affine] = []
    for p in draft.at:
        mine = [n for n in names(p) if n not in sizes] if isinstance(p, Affine) else []
        if not isinstance(p, Affine) or len(mine) > 1:
            return None
        if not mine:
            indices.append("")
            offsets.append(p)
            continue
        if mine[0] in indices or p - affine(mine[0]) != _without(p, mine[0]):
            return None
        indices.append(mine[0])
        offsets.append(p - affine(mine[0]))
    tests = [t for n in indices if n for t in (affine(n) - box[n].lower, box[n].upper - 1 - affine(n))]
    tests += [t for c in draft.conditions if isinstance(c, Test) for t in c.tests]
    plain = {*indices, *sizes}
    others = tuple(c for c in draft.conditions if not isinstance(c, Test) and expr_names(c) <= plain)
    return Written(tuple(indices), tuple(offsets), tuple(t for t in tests if names(t) <= plain), others)


def _without(x: Affine, name: str) -> Affine:
    """`x` without the terms that `name` stands in."""
    return Affine(tuple((a, f) for a, f in x.terms if name not in names(affine(a))), x.const)


def existing(drafts: Mapping[int, Draft], boxes: Mapping[int, Box], inferred: Collection[str],
             sizes: Collection[str]) -> dict[str, Existence]:
    """What is known of the tensors `inferred`; of a reduction by several statements, nothing: it fills its shape."""
    found: dict[str, Existence] = {}
    for name in inferred:
        writers = [n for n, d in drafts.items() if d.target == name]
        where = [written(drafts[n], boxes[n], sizes) for n in writers]
        plain = tuple(w for w in where if w is not None)
        if len(plain) == len(where) and (len(where) == 1 or all(drafts[n].reduce is None for n in writers)):
            found[name] = plain
    return found
