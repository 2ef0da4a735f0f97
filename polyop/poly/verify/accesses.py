"""Every access of a nest as an isl map from executions to memory elements, with what the Scop wants to find there.

An element is named by its buffer, its position, and the life it belongs to: a register lives inside one iteration of the
serial loops around the store that begins it and inside one thread, private work space inside one iteration of the innermost
parallel loop around the access. So what does not survive from one iteration to another simply is another element there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.expr import (
    Affine,
    Const,
    Load,
    Position,
    affine,
    bounds,
    is_computed,
    loads,
    names,
    substitute,
    substitute_expr,
)
from polyop.ir.loops import Buffer, Kind, LoopNest, Space
from polyop.ir.updates import in_place
from polyop.poly.scop import Scop, Stmt
from polyop.poly.verify.frame import SET, Frame
from polyop.poly.verify.same import Differ, Obligation, Operand, Path, compare, computed, leaves
from polyop.poly.verify.sites import Site, sites


class Role(str, Enum):
    """Why something is read."""

    OPERAND = "operand"   # by the expression of a computing store
    OWN = "own"           # by a reducing store: its own target
    COPY = "copy"         # by a store that moves the value elsewhere
    FOLD = "fold"         # by a reducing store that only moves: a partial result, combined into another
    END = "end"           # by the caller, after the nest

    __str__ = str.__str__


@dataclass(frozen=True, eq=False)
class Read:
    """One Load of one site (none: the caller's).

    frame   `R<n>[the site's coordinates, then one for each computed position]`
    place   { R -> element }, for the executions that read
    wanted  { R -> Tensor[index] } in the Scop, or a constant where its guard fails; None if any value may be moved
    """

    role: Role
    site: Site | None
    load: Load
    frame: Frame
    place: isl.Map
    wanted: isl.UnionMap | None = None

    @property
    def to_site(self) -> isl.UnionMap:
        """{ R -> N }: the execution that reads."""
        assert self.site is not None
        back = self.frame.function(self.site.name, [affine(d) for d in self.site.frame.dims])
        return isl.UnionMap.from_map(back.intersect_domain(self.place.domain()))


@dataclass(frozen=True, eq=False)
class Accesses:
    """What `nest` does to memory; `context` is what is known about the sizes."""

    scop: Scop
    nest: LoopNest
    context: isl.Set

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        return sites(self.nest, self.context)

    @cached_property
    def buffers(self) -> dict[str, Buffer]:
        return {b.name: b for b in self.nest.buffers}

    def _life(self, site: Site, buffer: str) -> tuple[int, ...] | None:
        """The serial loops around the store that begins the register buffer `buffer` for `site`; None if there is none.

        That is the first store in the text whose serial loops are around `site` too. Registers of one buffer that are
        begun in different loops never meet: a loop around one beginning and a later access is around all in between.
        """
        mine = {a.key for a in site.around}
        for s in self.writers(buffer):
            life = tuple(s.around[i].key for i in s.serial)
            if s.number <= site.number and mine.issuperset(life):
                return life if {site.around[i].key for i in site.parallel} <= set(life) else None
        return None

    @cached_property
    def _shared(self) -> dict[str, str]:
        return in_place(self.scop.op)

    def memory(self, buffer: str) -> str:
        """The memory behind a buffer: the two ends of an `inout` parameter may share one."""
        return self._shared.get(buffer, buffer)

    def initial(self, memory: str) -> str | None:
        """The input whose values `memory` holds before the nest runs: its own, or the caller's old ones in an `inout`."""
        given = {self.memory(t.name): t.name for t in self.scop.op.inputs}
        return given.get(memory) or next((i for i, o in self.scop.op.updates if o == memory), None)

    def writers(self, memory: str) -> tuple[Site, ...]:
        return tuple(s for s in self.sites if self.memory(s.store.target.source) == memory)

    def stmt(self, site: Site) -> Stmt:
        assert site.store.origin is not None
        return self.scop.stmt(site.store.origin)

    # --- places ------------------------------------------------------------------------------------------------------

    def framed(self, name: str, site: Site, load: Load) -> tuple[Frame, isl.Set]:
        """A frame for `load` at `site`, and its executions: a computed position may be anywhere in its dimension."""
        extra = [(f"any{i}", self.buffers[load.source].dims[i][0]) for i, p in enumerate(load.index) if is_computed(p)]
        frame = Frame(name, site.frame.sizes, (*site.frame.dims, *(n for n, _ in extra)))
        domain = site.domain.add_dims(SET, len(extra)) if extra else site.domain
        tests = [t for n, e in extra for t in (affine(n), e - affine(n) - 1)]
        return frame, frame.where(tests, domain.set_tuple_name(name))

    def life(self, site: Site, buffer: str) -> tuple[str, tuple[str, ...]]:
        """The memory behind `buffer` as `site` sees it, and the coordinates on which it depends which life of it that is."""
        b = self.buffers[buffer]
        name, life = self.memory(buffer), tuple[str, ...]()
        if b.space == Space.REG:
            keys = self._life(site, buffer)
            life = tuple(a.loop.index for a in site.around if keys and a.key in keys)
            name += f" in {keys}" if keys is not None else f" outside {site.name}"
        elif (b.private or b.space == Space.SHARED) and site.parallel:
            inner = self._owner(site, buffer) if b.private else site.parallel[-1]
            life = tuple(a.loop.index for a in site.around[: inner + 1])
            name += f" in {site.around[inner].key}"
        return name, life

    def _owner(self, site: Site, buffer: str) -> int:
        """Which loop around `site` has a private `buffer` of its own in each iteration: the innermost parallel one.

        Each run of that may give its iterations to other threads. One around it, if all that is written there is written
        directly in it: a thread that takes iterations further inside has carried that out, too.
        """
        begun = {s.around[s.parallel[-1]].key if s.parallel else None for s in self.writers(buffer)}
        return next((i for i in site.parallel if begun == {site.around[i].key}), site.parallel[-1])

    def element(self, frame: Frame, site: Site, load: Load) -> isl.Map:
        """{ frame -> element }, for the place that `load` names at `site`."""
        name, life = self.life(site, load.source)
        return frame.function(name, (*map(affine, life), *self.index(frame, site, load)))

    def position(self, frame: Frame, site: Site, load: Load) -> isl.Map:
        """{ frame -> memory[position] }: the same place in every life."""
        return frame.function(self.memory(load.source), self.index(frame, site, load))

    def index(self, frame: Frame, site: Site, load: Load) -> list[Affine]:
        """The position that `load` names at `site`, over the coordinates of `frame`."""
        return placed(frame, site, [site.at(p) if isinstance(p, Affine) else p for p in load.index])

    def along(self, path: Path, site: Site, frame: Frame, domain: isl.Set) -> isl.Set:
        """The part of `domain` on which `path`, over the nest's names, leads to a sub-expression."""
        for condition, truth in path:
            part = frame.condition(substitute_expr(condition, site.values), domain)
            domain = part if truth else domain.subtract(part)
        return domain

    # --- what the Scop says ------------------------------------------------------------------------------------------

    def env(self, site: Site) -> dict[str, Affine]:
        """The origin's iterators in the nest's names: what the store claims."""
        return dict(zip(self.stmt(site).dims, site.store.lift, strict=True))

    def wanted_place(self, site: Site, load: Load, frame: Frame) -> isl.Map:
        """{ frame -> Tensor[index] }, for a Load of the origin of `site`."""
        env = self.env(site)
        index = [site.at(substitute(p, env)) if isinstance(p, Affine) else p for p in load.index]
        return frame.function(load.source, placed(frame, site, index))

    def wanted(self, site: Site, load: Load, frame: Frame, domain: isl.Set) -> isl.UnionMap:
        """{ R -> Tensor[index] }, and { R -> 0 } where the guard says that nothing is read."""
        place = self.wanted_place(site, load, frame)
        if not load.guard:
            return isl.UnionMap.from_map(place.intersect_domain(domain))
        inside = self.guarded(site, load, frame, domain)
        zero = frame.function(constant(Const(0, load.dtype)), ()).intersect_domain(domain.subtract(inside))
        return isl.UnionMap.from_map(place.intersect_domain(inside)).union(isl.UnionMap.from_map(zero))

    def guarded(self, site: Site, load: Load, frame: Frame, domain: isl.Set) -> isl.Set:
        """Where the guard of a Load of the origin of `site` holds."""
        env = self.env(site)
        return frame.where([site.at(substitute(g, env)) for g in load.guard], domain) if load.guard else domain

    def compared(self, site: Site) -> Iterator[Operand | Obligation | Differ]:
        """What a computing store has to do with the statement that it carries out, target positions included."""
        stmt, env = self.stmt(site), self.env(site)
        yield from compare(stmt.expr, site.store.expr, env)
        theirs, ours = computed(stmt.target), computed(site.store.target)
        if len(theirs) != len(ours):
            yield Differ(str(stmt.target), str(site.store.target))
        else:
            for a, b in zip(theirs, ours, strict=True):
                yield from compare(a, b, env)

    # --- reads -------------------------------------------------------------------------------------------------------

    @cached_property
    def reads(self) -> tuple[Read, ...]:
        """Every read of a buffer, the caller's included."""
        found: list[Read] = []
        for site in self.sites:
            found += self._moved(site) if site.store.origin is None else self._computed(site)
        return (*found, *self._ends())

    def _read(self, role: Role, site: Site, load: Load, frame: Frame, domain: isl.Set,
              wanted: isl.UnionMap | None = None) -> Read:
        return Read(role, site, load, frame, self.element(frame, site, load).intersect_domain(domain), wanted)

    def _own(self, site: Site) -> Iterator[Read]:
        if site.store.reduce is not None:
            frame, domain = self.framed(f"R{site.number}_own", site, site.store.target)
            wanted = None
            if site.store.origin is not None:
                wanted = self.wanted(site, self.stmt(site).target, frame, domain)
            yield self._read(Role.OWN, site, site.store.target, frame, domain, wanted)

    def _computed(self, site: Site) -> Iterator[Read]:
        yield from self._own(site)
        pairs = (x for x in self.compared(site) if isinstance(x, Operand))
        for n, o in enumerate(pairs):
            frame, domain = self.framed(f"R{site.number}_{n}", site, o.given)
            domain = frame.where(map(site.at, o.given.guard), self.along(o.path, site, frame, domain))
            yield self._read(Role.OPERAND, site, o.given, frame, domain, self.wanted(site, o.wanted, frame, domain))
        yield from self._beyond(site)

    def _beyond(self, site: Site) -> Iterator[Read]:
        """What a matrix unit reads beyond the end of a sum, since it takes whole tiles and all rows of them: zeros, or else.

        A side of its tile is the sum's then. Else lanes take elements one by one, each of which they ask for.
        """
        kept = frozenset[str]().union(*(names(p) for p in site.store.target.index if isinstance(p, Affine)))
        if not any(x.loop.kind == Kind.ATOM and x.loop.index not in kept for x in site.around):
            return
        for i, around in enumerate(site.around):
            loop = around.loop
            if loop.kind not in (Kind.ATOM, Kind.ROWS) or loop.index in kept or loop.is_full:
                continue
            inside = [affine(loop.index), affine(loop.end - 1) - affine(loop.index)]
            # isl may have left out bounds of other loops, and of sizes, that followed from this one's
            inside += [site.at(b - affine(x.loop.index) - 1) for x in site.around if x is not around
                       for b in bounds(x.loop.upper) if loop.index not in names(b)]
            around_all = site.domain.drop_constraints_involving_dims(SET, i, 1).intersect_params(self.context)
            whole = site.frame.where(inside, around_all)
            domain = whole.subtract(site.domain)
            for n, load in enumerate(x for x in loads(site.store.expr) if any(loop.index in names(p) for p in x.index
                                                                              if isinstance(p, Affine))):
                frame = Frame(f"R{site.number}_beyond{i}_{n}", site.frame.sizes, site.frame.dims)
                here = domain.set_tuple_name(frame.name)
                zero = frame.function(constant(Const(0, load.dtype)), ()).intersect_domain(here)
                yield self._read(Role.OPERAND, site, load, frame, here, isl.UnionMap.from_map(zero))

    def _moved(self, site: Site) -> Iterator[Read]:
        yield from self._own(site)
        role = Role.COPY if site.store.reduce is None else Role.FOLD
        for n, (leaf, path) in enumerate(leaves(site.store.expr) or ()):
            if isinstance(leaf, Load):
                frame = Frame(f"R{site.number}_{n}", site.frame.sizes, site.frame.dims)
                domain = self.along(path, site, frame, site.domain.set_tuple_name(frame.name))
                yield self._read(role, site, leaf, frame, frame.where(map(site.at, leaf.guard), domain))

    def constants(self, site: Site) -> Iterator[tuple[Const, isl.Set]]:
        """What a moving store writes that it reads nowhere, and when: constants, and 0 where a guard fails."""
        for leaf, path in leaves(site.store.expr) or ():
            domain = self.along(path, site, site.frame, site.domain)
            if isinstance(leaf, Const):
                yield leaf, domain
            elif leaf.guard:
                yield Const(0, leaf.dtype), domain.subtract(site.frame.where(map(site.at, leaf.guard), domain))

    def _ends(self) -> Iterator[Read]:
        """The caller reads every element of every output: what was written there, or what an `inout` held before."""
        for t in self.scop.op.outputs:
            dims = tuple(f"d{i}" for i in range(len(t.shape)))
            frame = Frame(f"end {t.name}", self.nest.sizes, dims)
            index = [affine(d) for d in dims]
            limits = [x for d, e in zip(index, t.shape, strict=True) for x in (d, e - d - 1)]
            box = frame.where(limits).intersect_params(self.context)
            place = frame.function(t.name, index)
            written = isl.Set.empty(place.range().get_space())
            for s in self.scop.writers(t.name):
                written = written.union(s.access(s.target).range())
            result = place.intersect_domain(box).intersect_range(written)
            wanted = isl.UnionMap.from_map(result)
            before = self.initial(t.name)
            if before:
                rest = frame.function(before, index).intersect_domain(box.subtract(result.domain()))
                wanted = wanted.union(isl.UnionMap.from_map(rest))
            yield Read(Role.END, None, Load(t.name, tuple(index), t.dtype), frame, place.intersect_domain(box), wanted)


def placed(frame: Frame, site: Site, index: Iterable[Position]) -> list[Affine]:
    """`index` with the last coordinates of `frame`, in order, for its computed positions."""
    spare = iter(frame.dims[len(site.frame.dims):])
    return [p if isinstance(p, Affine) else affine(next(spare)) for p in index]


def constant(c: Const) -> str:
    """The name under which a constant stands for the element that it came from; `0` and `0.0` of one dtype are one."""
    return f"={c.dtype} {float(c.value)!r}" if c.dtype.is_float else f"={c.dtype} {int(c.value)}"
