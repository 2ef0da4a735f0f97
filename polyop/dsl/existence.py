"""Where a temporary of inferred shape exists, as tests on the position of a read: `else` needs to know."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from polyop.dsl.draft import Draft
from polyop.dsl.intervals import Box
from polyop.ir.expr import Affine, Position, Test, affine, names, substitute


@dataclass(frozen=True, slots=True)
class Written:
    """The elements that the one statement writes whose target is `T[indices + offsets]`: those where all `tests` are >= 0.

    Of a reduction these are the elements with a term or with none: a condition on a reduced index does not count.
    """

    indices: tuple[str, ...]
    offsets: tuple[Affine, ...]
    tests: tuple[Affine, ...]

    def at(self, index: Sequence[Position]) -> tuple[Affine, ...]:
        """What must be >= 0 for the element at `index` to exist; nothing is said of a computed position."""
        env = {n: p - o for n, o, p in zip(self.indices, self.offsets, index, strict=True) if isinstance(p, Affine)}
        return tuple(substitute(t, env) for t in self.tests if names(t).isdisjoint(set(self.indices) - set(env)))


def written(draft: Draft, box: Box, sizes: Collection[str]) -> Written | None:
    """Where `draft` writes, or None where that is not plain: pieces, scattering, `2*i` and `i + j` on the left."""
    indices: list[str] = []
    offsets: list[Affine] = []
    for p in draft.at:
        mine = [n for n in names(p) if n not in sizes] if isinstance(p, Affine) else []
        if not isinstance(p, Affine) or len(mine) != 1 or mine[0] in indices or p - affine(mine[0]) != _without(p, mine[0]):
            return None
        indices.append(mine[0])
        offsets.append(p - affine(mine[0]))
    tests = [t for n in indices for t in (affine(n) - box[n].lower, box[n].upper - 1 - affine(n))]
    tests += [t for c in draft.conditions if isinstance(c, Test) for t in c.tests]
    plain = {*indices, *sizes}
    return Written(tuple(indices), tuple(offsets), tuple(t for t in tests if names(t) <= plain))


def _without(x: Affine, name: str) -> Affine:
    """`x` without the terms that `name` stands in."""
    return Affine(tuple((a, f) for a, f in x.terms if name not in names(affine(a))), x.const)


def existing(drafts: Mapping[int, Draft], boxes: Mapping[int, Box], inferred: Collection[str],
             sizes: Collection[str]) -> dict[str, Written]:
    """`written` for each of the tensors `inferred` that one statement alone writes."""
    found: dict[str, Written] = {}
    for name in inferred:
        writers = [n for n, d in drafts.items() if d.target == name]
        if len(writers) == 1:
            where = written(drafts[writers[0]], boxes[writers[0]], sizes)
            if where is not None:
                found[name] = where
    return found
