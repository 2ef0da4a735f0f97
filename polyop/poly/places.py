"""What the statements of an operator read and write, as isl maps, with the conditions under which a Load is evaluated."""

from __future__ import annotations

from dataclasses import dataclass

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.expr import Affine, Load, affine, is_computed
from polyop.ir.op import Op, Step, Tensor
from polyop.poly.scop import INIT, UPDATE, Scop, Stmt
from polyop.poly.verify.frame import IN, SET, Frame
from polyop.poly.verify.same import Path, computed, loads_with_paths


@dataclass(frozen=True, eq=False)
class Access:
    """One Load of one statement (or its target): { frame -> Tensor[position] }, where it is evaluated."""

    stmt: Stmt
    load: Load
    tensor: Tensor
    frame: Frame
    domain: isl.Set

    @cached_property
    def place(self) -> isl.Map:
        spare = iter(self.frame.dims[len(self.stmt.dims):])
        index = [p if isinstance(p, Affine) else affine(next(spare)) for p in self.load.index]
        return self.frame.function(self.load.source, index).intersect_domain(self.domain)

    @property
    def instances(self) -> isl.Map:
        """{ S[dims] -> Tensor[position] }: the places that an instance may touch."""
        extra = len(self.frame.dims) - len(self.stmt.dims)
        whole = self.place.project_out(IN, len(self.stmt.dims), extra) if extra else self.place
        return whole.set_tuple_name(IN, self.stmt.name)


@dataclass(frozen=True, eq=False)
class Places:
    """What each statement of an Op reads and writes."""

    op: Op
    scop: Scop

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        return {t.name: t for t in self.op.tensors}

    def step(self, s: Stmt) -> Step:
        return self.op.steps[s.step]

    def access(self, s: Stmt, load: Load, path: Path = ()) -> Access:
        """`load`, evaluated on `path`; a computed position may be anywhere in its dimension."""
        t = self.tensors[load.source]
        extra = [(f"any {d}", t.shape[d]) for d, p in enumerate(load.index) if is_computed(p)]
        frame = Frame(s.name, self.op.sizes, (*s.dims, *(n for n, _ in extra)))
        domain = s.domain.intersect_params(self.scop.context)
        if extra:
            domain = domain.add_dims(SET, len(extra)).set_tuple_name(s.name)
        for condition, truth in path:
            part = frame.condition(condition, domain)
            domain = part if truth else domain.subtract(part)
        tests = [x for n, e in extra for x in (affine(n), e - affine(n) - 1)]
        return Access(s, load, t, frame, frame.where((*load.guard, *tests), domain) if tests or load.guard else domain)

    @cached_property
    def targets(self) -> tuple[Access, ...]:
        return tuple(self.access(s, s.target) for s in self.scop.stmts)

    @cached_property
    def reads(self) -> tuple[Access, ...]:
        found = []
        for s in self.scop.stmts:
            if s.kind != INIT:
                inner = [x for p in computed(s.target) for x in loads_with_paths(p)]
                found += [self.access(s, load, path) for load, path in (*loads_with_paths(s.expr), *inner)]
        return tuple(found)

    def dependences(self, stmts: tuple[Stmt, ...]) -> isl.UnionMap:
        """{ source -> sink } among `stmts`, through memory: W . R^-1. Updates of one element are not ordered among themselves."""
        names = {s.name for s in stmts}
        found = isl.UnionMap.empty(self.scop.context.get_space())
        for r in self.reads:
            for w in self.targets:
                if r.stmt.name in names and w.stmt.name in names and r.load.source == w.load.source:
                    found = found.union(isl.UnionMap.from_map(w.instances.apply_range(r.instances.reverse())))
        return found

    def unwritten(self, tensor: str) -> isl.Set | None:
        """The elements that no statement writes; None if that is plainly none."""
        written = isl.Set.empty(self.scop.box(tensor).get_space())
        for a in self.targets:
            if a.load.source == tensor and a.stmt.kind != UPDATE:
                if self._plainly_full(a):
                    return None
                written = written.union(a.place.range())
        return self.scop.box(tensor).intersect_params(self.scop.context).subtract(written)

    def _plainly_full(self, a: Access) -> bool:
        """Whether the target is `T[i, j]` with i and j over all of T."""
        step = self.step(a.stmt)
        if a.stmt.kind == INIT or step.where:
            return False
        limits = {r.index: (r.lower, r.upper) for r in step.ranges}
        at = [p.name for p in a.load.index if isinstance(p, Affine) and p.name in limits]
        whole = [limits[i] == (Affine(), e) for i, e in zip(at, a.tensor.shape, strict=False) if i is not None]
        return len(set(at)) == len(a.tensor.shape) == len(limits) and all(whole)
