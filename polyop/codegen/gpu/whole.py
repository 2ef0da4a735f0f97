"""LoopNest -> LoopNest for blocks of threads: the innermost loops of threads, of whole tiles and of others.

    for k in [0, min(16, K - k_c)) { S }   becomes   if K - k_c - 16 >= 0 { for k in [0, 16) { S } } else { .. }

What rows in such a loop ask of their elements holds for all of them if the least of it is not negative, which is asked once:

    for k in [0, min(16, M - k_c)) { for p, q (rows) { if i + p - k_c - k >= 0 { S } } }

    if M - k_c - 16 >= 0 and i - k_c - 15 >= 0 { for k in [0, 16) { for p, q { S } } }
    else { for k in [0, min(16, M - k_c)) { for p { if i + p - k_c - k >= 0 { for q { S } } } } }

So a triangular sum has tests where the diagonal cuts a thread's tile and nowhere else, and one copy of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyop.codegen.gpu.inside import least
from polyop.ir.expr import Affine, bounds, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Store, children, has_loop, rebuild, walk

Body = tuple[Node, ...]


def split(nest: LoopNest) -> LoopNest:
    """The innermost loops of threads, whole and not."""
    def go(body: Body, inside: bool) -> Body:
        return tuple(one(n, inside) for n in body)

    def one(n: Node, inside: bool) -> Node:
        new = rebuild(n, lambda body: go(body, inside or (isinstance(n, For) and n.kind == Kind.THREADS)))
        if not isinstance(new, For) or not inside or new.kind != Kind.SERIAL or has_loop(new.body) or new.lower != Affine():
            return new
        limits = bounds(new.upper)
        whole = [b for b in limits if b.is_constant]
        if len(whole) != 1 or len(limits) == 1 or not any(children(x) for x in new.body):
            return new
        tests = tuple(b - whole[0] for b in limits if b != whole[0])
        full = replace(new, upper=whole[0])
        counted = replace(full, kind=Kind.ROWS, extent=-(-whole[0].const // full.step))  # its last iteration is known
        also = _least_asked(counted, ()) if is_of_rows(tuple(walk(new.body))) else ()
        if also and None not in also:
            tests = (*tests, *dict.fromkeys(t for t in also if t is not None))
            return If(tests, (replace(full, body=_unasked(full.body)),), (replace(new, body=tuple(map(_asked_early, new.body))),))
        return If(tests, (full,), (new,))

    return replace(nest, body=go(nest.body, False))


def is_of_rows(inside: Sequence[Node]) -> bool:
    """Whether these nodes, and those in them, are statements, loops over rows, and tests without another branch."""
    return all(isinstance(x, Store) or (isinstance(x, For) and x.kind == Kind.ROWS) or (isinstance(x, If) and not x.other)
               for x in inside)


def _least_asked(n: Node, loops: tuple[For, ...]) -> tuple[Affine | None, ...]:
    """What the tests in a loop over rows never fall below there; None for each of which that is not plain to see."""
    match n:
        case For():
            return tuple(x for y in n.body for x in _least_asked(y, (*loops, n)))
        case If():
            return tuple(least(t, loops) for t in n.tests) + tuple(x for y in n.then for x in _least_asked(y, loops))
    return ()


def _asked_early(n: Node) -> Node:
    """Loops over rows inside of the tests that lack their index."""
    new = rebuild(n, lambda body: tuple(map(_asked_early, body)))
    match new:
        case For(body=(If(tests=tests, then=then),)):
            before = tuple(t for t in tests if new.index not in names(t))
            rest = tuple(t for t in tests if t not in before)
            inside = replace(new, body=(If(rest, then),) if rest else then)
            return If(before, (inside,)) if before else inside
    return new


def _unasked(body: Body) -> Body:
    """A body without the tests in it."""
    return tuple(y for n in body for y in (_unasked(n.then) if isinstance(n, If) else (rebuild(n, _unasked),)))
