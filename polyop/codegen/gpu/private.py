"""Work buffers of which each CPU thread has a copy -> one buffer with a copy for each thread of the grid.

    for i (parallel) { W[c] = ..; .. W[c] .. }        becomes        for i (parallel) { W[i, c] = ..; .. W[i, c] .. }
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyop.codegen.gpu.split import Choice, KernelNest, Loop, Part, Start, Step, kernels, used
from polyop.ir.errors import UnsupportedError, assert_never
from polyop.ir.expr import Affine, Load, affine, names, quasi
from polyop.ir.loops import Buffer, LoopNest, Node, map_accesses


def shared(nest: LoopNest, steps: tuple[Step, ...]) -> tuple[LoopNest, tuple[Step, ...]]:
    """`nest` and its kernels without private buffers.

    Raises UnsupportedError, if two kernels use one, or if the host decides how many threads there are.
    """
    private = {b.name: b for b in nest.buffers if b.private}
    if not private:
        return nest, steps
    owners: dict[str, Part] = {}
    names_: dict[str, str] = {}  # of the kernels
    for k in kernels(steps):
        for part in k.parts:
            for name in sorted(used(part.body) & private.keys()):
                if owners.setdefault(name, part) is not part:
                    raise UnsupportedError(f"{nest.name}: private buffer {name} is used by {names_[name]} and {k.name}")
                names_[name] = k.name
                if any(names(a.count) & set(k.host) for a in part.axes):
                    raise UnsupportedError(f"{nest.name}: the size of private buffer {name} depends on a loop of the host")
    buffers = tuple(_grown(b, owners.get(b.name)) if b.private else b for b in nest.buffers)
    moved = _mapped(steps, lambda k: replace(k, parts=tuple(
        replace(p, body=_body(p.body, frozenset(private), _thread(p))) for p in k.parts)))
    return replace(nest, buffers=buffers), moved


def _grown(b: Buffer, owner: Part | None) -> Buffer:
    axes = owner.axes if owner else ()
    return replace(b, dims=(*((a.count, 1) for a in axes), *b.dims), private=False)


def _thread(p: Part) -> tuple[Affine, ...]:
    """Which of the counts of each axis a thread stands for."""
    return tuple(quasi("div", affine(a.loop.index) - a.loop.lower, affine(a.loop.step)) for a in p.axes)


def _mapped(steps: tuple[Step, ...], f: Callable[[KernelNest], KernelNest]) -> tuple[Step, ...]:
    def one(s: Step) -> Step:
        match s:
            case Start(kernel=k):
                return Start(f(k))
            case Loop(body=body):
                return replace(s, body=_mapped(body, f))
            case Choice(then=then, other=other):
                return replace(s, then=_mapped(then, f), other=_mapped(other, f))
        assert_never(s)
    return tuple(map(one, steps))


def _body(body: tuple[Node, ...], private: frozenset[str], thread: tuple[Affine, ...]) -> tuple[Node, ...]:
    def moved(x: Load) -> Load:
        return replace(x, index=(*thread, *x.index)) if x.source in private else x

    return map_accesses(body, moved)
