"""LoopNest -> LoopNest: neighbouring kernels that do not need each other are one, whose blocks are those of all of them.

    for r, i { Y[r, i] = A[r, i] }                for part in [0, 2) (parallel) {
    for r, i { Y[r, M + i] = B[r, i] }                if part = 0 { for r, i { Y[r, i] = A[r, i] } }
                                                      if part = 1 { for r, i { Y[r, M + i] = B[r, i] } } }

The pieces of a concatenation are started at once so, and so are two sums, or what else is independent. A kernel also joins
those that stand further up, if what is between does not need it, nor it that. How many registers and how much shared memory a
block has is weighed where blocks go through tiles in turns, so these join their like alone: the three products that make
queries, keys and values, each of which has too few blocks for a device. Where an engine copies their tiles they stay alone.

That kernels do not need each other is guessed: neither reads or updates what the other writes, or only at other positions, as
A[t] and A[t - 1] are in a loop of the host. Two that assign to one tensor write different elements, since to overwrite an
element that nobody reads would be of no use. Nothing here is trusted: that the loop over them may be parallel is proved as of
any other. A test around a kernel that joins others is a loop that runs once or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from polyop.ir.abreast import abreast
from polyop.ir.expr import Affine, Load, affine, loads, names, quasi
from polyop.ir.loops import Barrier, Buffer, For, If, Kind, LoopNest, Node, Space, children, rebuild, stores, walk
from polyop.poly.blocks.groups import never_equal
from polyop.poly.labels import names_in, new_name

Body = tuple[Node, ...]


Access = tuple[str, Load]
"""Memory, and where in it."""


@dataclass(frozen=True, eq=False)
class _Kernel:
    """One kernel of a nest.

    reads    what it reads or updates; `own`: registers and memory of blocks, which no other kernel has
    loops    the indices of its loops
    threads  of a block that work together; 0, if each point has one
    turns    elements of shared memory of blocks that go through tiles in turns; 0, if they do not
    """

    body: Body
    reads: tuple[Access, ...]
    writes: tuple[Access, ...]
    own: frozenset[str]
    loops: frozenset[str]
    threads: int
    turns: int

    def needs(self, other: _Kernel) -> bool:
        """Whether the order of the two matters."""
        inside = self.loops | other.loops
        return bool(self.own & other.own) or any(
            _may_meet(a, b, inside) for one, two in ((self, other), (other, self)) for a in one.writes for b in two.reads)

    def may_join(self, others: list[_Kernel]) -> bool:
        sizes = {k.threads for k in (self, *others)} - {0}
        return not any(k.turns != self.turns or k.needs(self) for k in others) and len(sizes) <= 1


def side_by_side(nest: LoopNest, engine: bool = False) -> LoopNest:
    """`nest`, in which kernels that do not need each other are one. `engine`: whether one may copy tiles for blocks."""
    taken = names_in(nest) | {n.index for n in walk(nest.body) if isinstance(n, For)}
    return _Joined(nest, taken, engine).nest()


@dataclass(eq=False)
class _Joined:
    given: LoopNest
    taken: set[str]
    engine: bool

    def nest(self) -> LoopNest:
        return replace(self.given, body=self.host(self.given.body))

    def host(self, body: Body) -> Body:
        """What the host does: kernels, and loops and tests around some."""
        out: list[Node] = []
        found: list[list[_Kernel]] = []

        def flush() -> None:
            for group in found:
                body = self.joined(group)
                follows = out and not is_parallel(out[-1]) and not is_parallel(body[0])  # and would be one with that
                out.extend((self.once(affine(1), body),) if follows else body)
            found.clear()

        for step in host_steps(body):
            if is_parallel(step[0]) and not is_kernel(step):
                flush()
                out.append(rebuild(step[0], self.host))
            else:
                k = self.kernel(step)
                if k.turns and self.engine:
                    found.append([k])
                else:
                    _place(found, k)
        flush()
        return tuple(out)

    def joined(self, group: list[_Kernel]) -> Body:
        if len(group) == 1:
            return group[0].body
        return (abreast([self.as_loops(k.body) for k in group], self.name("part")),)

    def as_loops(self, body: Body) -> Body:
        """A kernel without tests around it; one of a single thread as a point of blocks that have a thread each.

            if t >= 0 { for i (parallel) { S } }   becomes   for once in [0, min(t + 1, 1)) (parallel) { for i (parallel) { S } }
        """
        first = body[0]
        if not any(isinstance(n, For) and n.kind in (Kind.PARALLEL, Kind.THREADS, Kind.ATOM) for n in walk(body)):
            return (self.once(affine(1), body),)
        if not isinstance(first, If) or not is_parallel(first):
            return body
        inside = self.as_loops(first.then)
        for t in reversed(first.tests):
            inside = (self.once(quasi("min", t + 1, affine(1)), inside),)
        return inside

    def once(self, upper: Affine, body: Body) -> For:
        return For(self.name("once"), Affine(), upper, body, kind=Kind.PARALLEL)

    def name(self, base: str) -> str:
        found = new_name(base, lambda name: name not in self.taken)
        self.taken.add(found)
        return found

    def kernel(self, body: Body) -> _Kernel:
        same = dict(self.given.in_place)
        own = {b.name for b in self.given.buffers if b.space in (Space.REG, Space.SHARED) or b.private}
        mine = stores(body)
        # a target that is updated is read, too
        read = dict.fromkeys(x for s in mine for x in (*loads(s.expr), *loads(s.target)[s.reduce is None:]))
        written = dict.fromkeys(s.target for s in mine)
        reads, writes = (tuple((same.get(x.source, x.source), x) for x in found if x.source not in own)
                         for found in (read, written))
        used = frozenset(x.source for x in (*read, *written)) & own
        loops = [n for n in walk(body) if isinstance(n, For)]
        threads = max((n.weight * (n.extent or 1) for n in loops if n.kind == Kind.THREADS), default=0)
        shared = [b for b in self.given.buffers if b.space == Space.SHARED and b.name in used] if _goes_in_turns(body) else []
        return _Kernel(body, reads, writes, used, frozenset(n.index for n in loops), threads, sum(map(_elements, shared)))


def host_steps(body: Body) -> list[Body]:
    """What a host does one after the other: each node that has loops over blocks, and what stands between two of them."""
    out: list[Body] = []
    alone: Body = ()
    for n in body:
        if is_parallel(n):
            out += [alone, (n,)] if alone else [(n,)]
            alone = ()
        else:
            alone = (*alone, n)
    return [*out, alone] if alone else out


def _place(found: list[list[_Kernel]], k: _Kernel) -> None:
    """Put `k` behind all kernels that it needs: to the first ones that it may join, else in front of nobody."""
    last = next((at for at in reversed(range(len(found))) if any(k.needs(o) for o in found[at])), -1)
    for group in found[last + 1:]:
        if k.may_join(group):
            group.append(k)
            return
    found.append([k])


def is_parallel(n: Node) -> bool:
    """Whether there are loops over blocks in `n`."""
    return any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in walk((n,)))


def is_kernel(body: Body) -> bool:
    """Whether `body` is one kernel, with tests of sizes around it or not."""
    match body:
        case (For(kind=Kind.PARALLEL),):
            return True
        case (If(then=then, other=()),):
            return is_kernel(then)
    return False


def _may_meet(a: Access, b: Access, loops: frozenset[str]) -> bool:
    """Whether two accesses, which have loops of their own, may be of one element."""
    if a[0] != b[0]:
        return False
    pairs = [(p, q) for p, q in zip(a[1].index, b[1].index, strict=True) if isinstance(p, Affine) and isinstance(q, Affine)]
    return not any(never_equal(p, q) for p, q in pairs if (names(p) | names(q)).isdisjoint(loops))


def _elements(b: Buffer) -> int:
    return prod(-(-e.const // unit) for e, unit in b.dims)


def _goes_in_turns(body: Body) -> bool:
    """Whether blocks go through tiles in turns: there are barriers in a serial loop."""
    return any(isinstance(n, For) and n.kind == Kind.SERIAL and any(isinstance(x, Barrier) for x in walk(children(n)))
               for n in walk(body))
