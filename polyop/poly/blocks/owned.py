"""LoopNest -> LoopNest: each kernel, and each thread, has registers and shared memory of its own.

Conditions may cut a loop over blocks, as { j != 2 } does, and then each piece is a kernel with the same statements:

    for j in [0, 2) (parallel) { acc = 0; .. }    for j in [3, N) (parallel) { acc = 0; .. }

What a kernel keeps for itself ends with it, so the second one gets names of its own. Nothing here is trusted: that each element
is written before it is read is proved of what comes out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyop.ir.expr import Load, loads
from polyop.ir.loops import Buffer, For, Kind, LoopNest, Node, Space, Store, children, map_accesses, rebuild, stores
from polyop.poly.blocks.beside import Body, host_steps, is_kernel, is_parallel
from polyop.poly.labels import names_in, new_name


def owned(nest: LoopNest) -> LoopNest:
    """`nest`, in which no two kernels use the same registers, shared memory or memory of threads."""
    own = {b.name: b for b in nest.buffers if b.space in (Space.REG, Space.SHARED) or b.private}
    taken = names_in(nest)
    seen = set[str]()
    more: list[Buffer] = []

    def kernel(body: Body) -> Body:
        used = dict.fromkeys(x.source for s in stores(body) for e in (s.target, s.expr) for x in loads(e) if x.source in own)
        names = dict[str, str]()
        for name in used:
            if name in seen:
                names[name] = new_name(name, lambda n: n not in taken)
                taken.add(names[name])
                more.append(replace(own[name], name=names[name]))
        seen.update(used)
        return _renamed(body, names) if names else body

    def host(body: Body) -> Body:
        out: Body = ()
        for step in host_steps(body):
            out += (rebuild(step[0], host),) if is_parallel(step[0]) and not is_kernel(step) else kernel(step)
        return out

    body = host(nest.body)
    return replace(nest, body=body, buffers=(*nest.buffers, *more)) if more else nest


def by_threads(nest: LoopNest) -> LoopNest:
    """`nest`, in which no register is used both around a parallel loop and inside.

    Where a condition leaves one iteration by itself, as { j != 1 } does, that one stands before the loop over the others:

        acc = 0; ..    for j in [2, N) (parallel) { acc = 0; .. }
    """
    own = {b.name: b for b in nest.buffers if b.space == Space.REG}
    taken = names_in(nest)
    more: list[Buffer] = []

    def thread(body: Body) -> Body:
        around = {n for x in body for n in _used(x, False)} & own.keys()

        def inside(part: Body) -> Body:
            return tuple(loop(x) if _is_shared_out(x) else rebuild(x, inside) for x in part)

        def loop(x: Node) -> Node:
            names = {n: new_name(n, lambda n: n not in taken) for n in dict.fromkeys(_used(x, True)) if n in around}
            taken.update(names.values())
            more.extend(replace(own[n], name=m) for n, m in names.items())
            own.update((m, own[n]) for n, m in names.items())
            return rebuild(x, lambda b: thread(_renamed(b, names) if names else b))

        return inside(body)

    body = thread(nest.body)
    return replace(nest, body=body, buffers=(*nest.buffers, *more)) if more else nest


def _used(x: Node, parallel: bool) -> Iterator[str]:
    """The buffers that stores in `x` read and write; those in parallel loops too, or not."""
    if isinstance(x, Store):
        yield from (y.source for e in (x.target, x.expr) for y in loads(e))
    elif parallel or not _is_shared_out(x):
        for y in children(x):
            yield from _used(y, parallel)


def _is_shared_out(x: Node) -> bool:
    return isinstance(x, For) and x.kind == Kind.PARALLEL


def _renamed(body: Body, names: dict[str, str]) -> Body:
    def load(x: Load) -> Load:
        return replace(x, source=names.get(x.source, x.source))

    return map_accesses(body, load)
