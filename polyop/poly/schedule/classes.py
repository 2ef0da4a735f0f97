"""Classes of iterators: those of one class run along one loop, each in its own statement."""

from __future__ import annotations

import islpy as isl

from polyop.poly.labels import loop_name
from polyop.poly.scop import Scop, Stmt
from polyop.poly.sets import params, space_text


class Loops:
    """The loops found so far: statement -> iterator -> class. What has none yet stands in no loop."""

    def __init__(self, scop: Scop, context: isl.Set) -> None:
        self.scop, self.context = scop, context
        self.classes: dict[str, dict[str, str]] = {s.name: {} for s in scop.stmts}
        self.taken = set(scop.op.sizes) | {t.name for t in scop.op.tensors} | {p.name for p in scop.op.params}

    def fresh(self, name: str) -> str:
        """A class name that nothing else has, nor any of its coordinates."""
        loops = {c for own in self.classes.values() for c in own.values()}
        out = loop_name(name, self.taken, loops, self.classes.keys())
        self.taken.add(out)
        return out

    def fixed_of(self, s: Stmt, fixed: tuple[str, ...]) -> frozenset[str]:
        return frozenset(i for i, c in self.classes[s.name].items() if c in fixed)

    def projection(self, s: Stmt, iterators: tuple[str, ...]) -> isl.Set:
        """{ [iterators] } of the domain of `s`."""
        head = params(self.scop.op.sizes)
        m = isl.Map(f"{head}{{ {space_text(s.name, s.dims)} -> [{', '.join(iterators)}] }}")
        return s.domain.intersect_params(self.context).apply(m)

    def is_narrow(self, s: Stmt, i: str, most: int) -> bool:
        """Whether `i` has at most so many values, whatever the sizes."""
        values = self.projection(s, (i,))
        far = isl.Map(f"{{ [x] -> [y] : y >= x + {most} }}").intersect_domain(values).intersect_range(values)
        return bool(far.is_empty())

    def iterators(self, s: Stmt, loops: tuple[str, ...]) -> tuple[str, ...]:
        """The iterators of `s` of the classes `loops`."""
        back = {c: i for i, c in self.classes[s.name].items()}
        return tuple(back[c] for c in loops)
