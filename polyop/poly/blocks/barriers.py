"""LoopNest -> LoopNest: barriers between what threads of a block do, each for a dependence, which is its reason.

On the way through a block's text the accesses since the last barrier are kept. What meets one of them on another thread
stands behind a new barrier. The body of a loop is gone through twice: its end meets its own beginning.

    A_s[k, m] = A[..]          (threads)
    barrier: A_s is read after other threads wrote it
    acc[..] += A_s[k, m]       (threads)
    barrier: A_s is written again after other threads read it      in a loop, whose next turn writes A_s

Copies that arrive later, and are read only turns after, may be on their way at the barriers between: of a tile that is copied
to X[(t + 3) mod 4] in turn t and read in X[t mod 4], that of the turn t + 1 and of t + 2. Where that differs by copy, see
`groups.py`.

Where nothing would need a barrier if there were no copies, all barriers are `handed` ones: threads do not wait for each other.
Where a unit reads the copies itself, blocks are persistent then, as tiles of the next block may be copied while this one stores
its results.

Nothing here is trusted: `verify/threads.py` shows for all sizes that the barriers suffice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from polyop.cached import cached_property
from polyop.ir.expr import Affine, Load, Position, affine, loads, names, substitute
from polyop.ir.loops import Barrier, For, If, Kind, LoopNest, Node, Space, Store, placed, rebuild, stores, walk
from polyop.poly.blocks.groups import in_groups, never_equal, remainder

_LANES = "lanes"  # stands for those of a warp that share a matrix unit's tile: which one has an element is not asked here


@dataclass(frozen=True, slots=True)
class _Access:
    """One access of memory.

    threads  the loops over threads around it, by index
    later    whether it goes on until the next barrier
    aged     whether it happened in an earlier turn of a loop, so that indices are not those of now
    barriers how many must stand behind it
    before   the positions of an earlier turn, in the words of now
    by_all   whether all threads with these digits do it: those that have a value in registers, of which one writes memory
    """

    load: Load
    writes: bool
    threads: frozenset[str]
    later: bool = False
    aged: bool = False
    barriers: int = 1
    before: tuple[Position, ...] = ()
    by_all: bool = False


_Pending = dict[str, tuple[_Access, ...]]
"""memory -> its accesses since the last barrier"""


def with_barriers(nest: LoopNest) -> LoopNest:
    """`nest` with the barriers that its loops over threads need; itself, if it has none."""
    if not any(isinstance(n, For) and n.kind == Kind.THREADS for n in walk(nest.body)):
        return nest
    writer = _Writer(nest)
    body = _waiting(writer.kernels(nest.body))
    return replace(nest, body=tuple(map(_persistent, body)) if writer.is_persistent else body)


@dataclass(frozen=True, eq=False)
class _Writer:
    nest: LoopNest

    @cached_property
    def same(self) -> Mapping[str, str]:
        return dict(self.nest.in_place)

    def memory(self, x: Load) -> str:
        """What `x` lies in, by one name for both tensors of an update in place."""
        return self.same.get(x.source, x.source)

    def kernels(self, body: tuple[Node, ...]) -> tuple[Node, ...]:
        """The body of the host's plan: a loop over blocks is a kernel, and so is what stands between two of them."""
        out: list[Node] = []
        alone: list[Node] = []

        def flush() -> None:
            out.extend(self.kernel(tuple(alone)))
            alone.clear()

        for n in body:
            if not any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in walk((n,))):
                alone.append(n)
                continue
            flush()
            out.append(rebuild(n, self.inside if isinstance(n, For) and n.kind == Kind.PARALLEL else self.kernels))
        flush()
        return tuple(out)

    def inside(self, body: tuple[Node, ...]) -> tuple[Node, ...]:
        """The body of a loop over blocks, in which there may be more of them."""
        if any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in walk(body)):
            return tuple(rebuild(n, self.inside) for n in body)
        return self.kernel(body)

    def kernel(self, body: tuple[Node, ...]) -> tuple[Node, ...]:
        """The body of a kernel, whose barriers are handed ones if nothing but copies needs any."""
        if not any(isinstance(n, For) and n.kind in (Kind.THREADS, Kind.ATOM) for n in walk(body)):
            return body  # one thread; a tile of a matrix unit is a whole warp's, also where a block has no other
        waiting, after = self.block(body, {})
        all_stores = stores(body)
        copied = {self.memory(x) for s in all_stores if s.later for x in loads(s.expr)}
        written = {self.memory(s.target) for s in all_stores}
        if not copied or copied & written or _barriers(self.block(_without_copies(body), {})[0]):
            return waiting
        if self.is_persistent:  # the next block's accesses meet those of this one
            elsewhere = {m: tuple(replace(x, aged=True, before=()) for x in found) for m, found in after.items()
                         if self.nest.buffer(m).space == Space.SHARED}
            waiting, _ = self.block(body, elsewhere)
        return _handed(waiting)

    @cached_property
    def is_persistent(self) -> bool:
        """Whether blocks may be persistent: they are where a unit reads the copies itself."""
        return any(b.swizzle for b in self.nest.buffers)

    def block(self, body: tuple[Node, ...], pending: _Pending) -> tuple[tuple[Node, ...], _Pending]:
        """`body` with barriers, after what is pending; and what is pending then."""
        out: list[Node] = []
        for n in body:
            match n:
                case Barrier():
                    pending = _outlasting(pending)
                    out.append(n)
                case For(kind=Kind.SERIAL):
                    inner, after = self.turns(n, pending)
                    if (rest := _outlasting(pending)) != pending and _barriers(inner):
                        alone, later = self.turns(n, rest)
                        if _barriers(inner) > _barriers(alone):  # once before the loop, and not in each turn
                            out.append(_first_barrier(inner))
                            pending, inner, after = rest, alone, later
                    out.append(replace(n, body=inner))
                    pending = _joined(pending, _left(after))
                case If():
                    reason = self.meeting(pending, self.accesses(n))
                    if reason:  # before the test: in both branches, and for what follows
                        out.append(Barrier(reason))
                        pending = _outlasting(pending)
                    then, one = self.block(n.then, pending)
                    other, two = self.block(n.other, pending)
                    out.append(replace(n, then=then, other=other))
                    pending = _joined(_joined(pending, one), two)
                case _:
                    here = self.accesses(n)
                    reason = self.meeting(pending, here)
                    if reason:
                        out.append(Barrier(reason))
                        pending = _outlasting(pending)
                    out.append(n)
                    pending = _joined(pending, here)
        return tuple(out), pending

    def turns(self, loop: For, pending: _Pending) -> tuple[tuple[Node, ...], _Pending]:
        """The body of a loop with the barriers that it needs after what is pending, and after its own turns.

        What was pending before the loop is not of an earlier turn of it: its indices are those of now.
        """
        _, after = self.block(loop.body, pending)
        own = {m: tuple(x for x in found if x not in pending.get(m, ())) for m, found in after.items()}
        return self.block(loop.body, _joined(pending, _aged({m: found for m, found in own.items() if found}, loop)))

    def accesses(self, n: Node) -> _Pending:
        """What a store, or a loop over threads or rows, does to memory that threads share."""
        found: _Pending = {}
        for s, loops in placed((n,), Kind.THREADS, Kind.ATOM):
            threads = frozenset(f.index for f in loops) | ({_LANES} if any(f.kind == Kind.ATOM for f in loops) else set())
            read = [x for e in (s.expr, *(p for p in s.target.index if not isinstance(p, Affine))) for x in loads(e)]
            for x, writes in ((s.target, True), *((x, False) for x in read)):
                if self.nest.buffer(x.source).space != Space.REG:
                    memory = self.memory(x)
                    barriers = 2 if s.outlasts and not writes else 1
                    by_all = self.nest.buffer(s.target.source).space == Space.REG and not self.are_all(threads)
                    here = _Access(x, writes, threads, writes and s.later, barriers=barriers, by_all=by_all)
                    found = _joined(found, {memory: (here,)})
        return found

    def are_all(self, threads: frozenset[str]) -> bool:
        """Whether loops over `threads` have all digits of the threads of their block."""
        return prod(n.extent or 1 for n in self.over_threads if n.index in threads) == self.most

    @cached_property
    def over_threads(self) -> tuple[For, ...]:
        found = {n.index: n for n in walk(self.nest.body) if isinstance(n, For) and n.kind == Kind.THREADS}
        return tuple(found.values())

    @cached_property
    def most(self) -> int:
        return max((n.weight * (n.extent or 1) for n in self.over_threads), default=1)

    def meeting(self, pending: _Pending, here: _Pending) -> str:
        """Why a barrier must stand between; empty if none must."""
        for memory, now in here.items():
            for a in pending.get(memory, ()):
                for b in now:
                    if (a.writes or b.writes) and not _on_one_thread(a, b) and not _told_apart(a, b):
                        if a.later and a.aged and b.later and a.load == b.load:
                            return f"the copies to {memory} of each turn are a group"
                        said = "read after other threads wrote it" if not b.writes else \
                            "written again after other threads " + ("wrote" if a.writes else "read") + " it"
                        return f"{memory} is {said}"
        return ""


def _barriers(body: tuple[Node, ...]) -> int:
    return sum(isinstance(n, Barrier) for n in walk(body))


def _first_barrier(body: tuple[Node, ...]) -> Barrier:
    return next(n for n in walk(body) if isinstance(n, Barrier))


def _on_one_thread(a: _Access, b: _Access) -> bool:
    """Whether one element is one thread's: both are named alike, and each loop over threads chooses it."""
    used = frozenset[str]().union(*(names(p) for p in a.load.index if isinstance(p, Affine)))
    if _LANES in a.threads | b.threads or a.by_all or b.by_all:
        return False
    return not a.later and a.load.index == b.load.index and a.threads == b.threads and a.threads <= used


def _told_apart(a: _Access, b: _Access) -> bool:
    """Whether one position of the two is never the same, in one turn of the loops around: X[t mod 2] and X[(t + 1) mod 2]."""
    if b.aged or (a.aged and not a.before):
        return False
    for p, q in zip(a.before if a.aged else a.load.index, b.load.index, strict=True):
        if isinstance(p, Affine) and isinstance(q, Affine) and (names(p) | names(q)).isdisjoint(a.threads | b.threads):
            if never_equal(p, q):
                return True
    return False


def _aged(p: _Pending, loop: For) -> _Pending:
    """The same in the next turn of `loop`. Where what is left outlasts a barrier, that was in the turn before."""
    back = {loop.index: affine(loop.index) - loop.step}

    def one(x: _Access) -> _Access:
        if x.barriers == 1 or x.aged:
            return x if x.aged and not x.before else replace(x, aged=True, before=())
        return replace(x, aged=True, before=tuple(substitute(q, back) if isinstance(q, Affine) else q for q in x.load.index))
    return {m: tuple(map(one, found)) for m, found in p.items()}


def _left(p: _Pending) -> _Pending:
    """The same behind the loop."""
    return {m: tuple(dict.fromkeys(replace(x, barriers=1, before=()) for x in found)) for m, found in p.items()}


def _outlasting(p: _Pending) -> _Pending:
    """What is left behind a barrier."""
    left = {m: tuple(replace(x, barriers=x.barriers - 1) for x in found if x.barriers > 1) for m, found in p.items()}
    return {m: found for m, found in left.items() if found}


def _joined(a: _Pending, b: _Pending) -> _Pending:
    if not a or not b:
        return a or b
    return {m: tuple(dict.fromkeys((*a.get(m, ()), *b.get(m, ())))) for m in (*a, *(x for x in b if x not in a))}


def _waiting(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """`body` with barriers that leave as many groups of copies on their way as they may."""
    inside = tuple(walk(body))
    if any(isinstance(n, For) and n.kind == Kind.PARALLEL for n in inside):  # the kernels are inside
        return tuple(rebuild(n, _waiting) for n in body)
    ahead = _ahead(tuple(n for n in inside if isinstance(n, Store)))

    def one(n: Node) -> Node:
        return replace(n, pending=ahead - 1) if isinstance(n, Barrier) else rebuild(n, lambda inner: tuple(map(one, inner)))

    return tuple(map(one, body)) if ahead > 1 else in_groups(body)


def _without_copies(body: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(rebuild(n, _without_copies) for n in body if not (isinstance(n, Store) and n.later))


def _handed(body: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(replace(n, handed=True) if isinstance(n, Barrier) else rebuild(n, _handed) for n in body)


def _persistent(n: Node) -> Node:
    """`n` with blocks that are persistent where all their barriers are handed ones."""
    n = rebuild(n, lambda inner: tuple(map(_persistent, inner)))
    inside = tuple(walk(n.body)) if isinstance(n, For) and n.kind == Kind.PARALLEL else ()
    barriers = [x for x in inside if isinstance(x, Barrier)]
    if not isinstance(n, For) or not barriers or any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in inside):
        return n
    return replace(n, persistent=all(x.handed for x in barriers))


def _ahead(all_stores: tuple[Store, ...]) -> int:
    """How many turns before it is read everything that arrives later is copied, at least; 0 if that is not known."""
    found = []
    for s in all_stores:
        if s.later:
            found += [_turns(s.target, x) for t in all_stores for x in loads(t.expr) if x.source == s.target.source]
    return min((d for d in found if d is not None), default=0)


def _turns(copied: Load, read: Load) -> int | None:
    """d, if X[(t + d) mod n] is copied and X[t mod n] read; None if it is copied before the loop over turns, else 0."""
    p, q = (remainder(x.index[0]) if x.index and isinstance(x.index[0], Affine) else None for x in (copied, read))
    if p is None or q is None or p[1] != q[1]:
        return 0
    distance = p[0] - q[0]
    return distance.const % p[1] if distance.is_constant else None
