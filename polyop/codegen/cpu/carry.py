"""What one iteration of a loop stores and the next one reads stays in a register in between.

    for c in [0, u) { Y[c] = (Y[c - 1] if c - 1 >= 0) + X[c] }

becomes

    if u - 1 >= 0 {
      carried = 0
      for c in [0, u) { carried = carried + X[c]; Y[c] = carried }
    }

The read is known to be of the place stored one step before because its index is the store's with c - step for c, and no
other store of the body writes that buffer. A test of the read's guard that holds from the second iteration on is dropped.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyop.ir.dtypes import BOOL
from polyop.ir.expr import Affine, Const, Expr, Load, affine, bounds, is_computed, loads, map_loads, names, place, substitute
from polyop.ir.loops import LOCKSTEP, Buffer, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, children, rebuild

Around = tuple[For, ...]


def carry(nest: LoopNest, width: int, most: int = 8) -> LoopNest:
    """`nest` with such reads replaced, in loops that contain no others, for values of at most `most` vectors."""
    new: list[Buffer] = []
    spaces = {b.name: b.space for b in nest.buffers}

    def go(body: tuple[Node, ...], around: Around) -> tuple[Node, ...]:
        return tuple(one(n, around) for n in body)

    def one(n: Node, around: Around) -> Node:
        inside = (*around, n) if isinstance(n, For) and n.kind in LOCKSTEP else around
        n = rebuild(n, lambda body: go(body, inside))
        if not isinstance(n, For) or n.kind in LOCKSTEP or any(children(c) or isinstance(c, Prefetch) for c in n.body):
            return n
        before: list[Node] = []
        for at, s in enumerate(n.body):
            if isinstance(s, Store) and spaces[s.target.source] != Space.REG and _vectors(around, width) <= most:
                name = f"{s.target.source}_carried{len(new)}"
                while name in spaces:
                    name += "_"
                n = _carried(n, at + len(before), s, around, name, before, new)
        return If(tuple(b - n.lower - 1 for b in bounds(n.upper)), (*before, n)) if before else n

    body = go(nest.body, ())
    return replace(nest, buffers=(*nest.buffers, *new), body=body)


def _carried(n: For, at: int, s: Store, around: Around, name: str, before: list[Node], new: list[Buffer]) -> For:
    """`n` with its store number `at`, which is `s`, kept in a register called `name`; `n` itself if nothing reads that."""
    target, index = s.target, tuple(p for p in s.target.index if not is_computed(p))
    own = [x for x in n.body if isinstance(x, Store) and x.target.source == target.source]
    axes = [f for f in around if any(isinstance(p, Affine) and f.index in names(p) for p in index)]
    if s.reduce is not None or len(own) != 1 or len(index) != len(target.index) or len(axes) != len(around):
        return n
    last = place(target, {n.index: affine(n.index) - n.step}).index
    found = [x for b in n.body[: at + 1] if isinstance(b, Store) for x in loads(b.expr)
             if x.source == target.source and x.index == last]
    if not found or len({x.guard for x in found}) != 1:
        return n
    register = Load(name, tuple(affine(f.index) for f in axes), target.dtype)
    kept = replace(register, guard=tuple(t for t in found[0].guard if not _holds_later(t, n)))
    new.append(Buffer(name, target.dtype, tuple((affine(f.extent or 1), 1) for f in axes), Space.REG))
    before.append(_move(s, register, _first(place(found[0], {n.index: n.lower}))))

    def read(x: Load) -> Load:
        return kept if x.source == target.source and x.index == last else x

    body = [replace(b, expr=map_loads(b.expr, read)) if isinstance(b, Store) else b for b in n.body[: at + 1]]
    computed = body.pop()
    assert isinstance(computed, Store)
    body += [replace(computed, target=register, stream=False), replace(_move(s, target, register), stream=s.stream)]
    return replace(n, body=(*body, *n.body[at + 1 :]))


def _move(s: Store, target: Load, expr: Expr) -> Store:
    """A store beside `s` that only moves a value."""
    return replace(s, origin=None, lift=(), target=target, expr=expr, stream=False)


def _vectors(around: Around, width: int) -> int:
    return prod(-(-f.extent // width) if f.kind == Kind.LANES else f.extent for f in around if f.extent)


def _first(x: Load) -> Expr:
    """`x` without tests that constants decide."""
    if any(t.is_constant and t.const < 0 for t in x.guard):
        return Const(False if x.dtype == BOOL else 0, x.dtype)
    return replace(x, guard=tuple(t for t in x.guard if not t.is_constant))


def _holds_later(test: Affine, n: For) -> bool:
    """Whether `test` >= 0 from the second iteration of `n` on: it does not fall, and holds there."""
    others = Affine(tuple(t for t in test.terms if t[0] != n.index))
    if n.index in names(others) or test.factor(n.index) <= 0:
        return False
    second = substitute(test, {n.index: n.lower + n.step})
    return second.is_constant and second.const >= 0
