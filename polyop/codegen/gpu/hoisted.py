"""LoopNest -> LoopNest for blocks of threads: tests stand before the loops over a tile whose indices they lack."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from polyop.codegen.nested import nested
from polyop.ir.expr import Affine, affine, bounds, names, quasi, substitute
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Store, rebuild

Body = tuple[Node, ...]


def asked(nest: LoopNest, folded: Container[str]) -> LoopNest:
    """Tests before the loops over a tile of a matrix unit, and before the loops in a thread around these, whose index they lack.

        for k in [0, 16) { for m (atom) { if t(k_o) >= 0 and u(k, m) >= 0 { S } } }
        if t(k_o) >= 0 { for k in [0, 16) { for m (atom) { if u(k, m) >= 0 { S } } } }

    Of several tiles in a loop, what they all ask is asked so. Of rows that threads write it is what they all answer alike, and
    whether any of several conditions, of which one is enough, may hold in some row; but not of the statements `folded`, to which
    all threads come.
    """
    def one(n: Node) -> Node:
        if not isinstance(n, For) or n.kind == Kind.THREADS:
            rows, inside = nested((n,), Kind.THREADS, Kind.ROWS)
            match inside:
                case (If(tests=tests, then=(Store() as s,), other=()) as x,) if rows and s.stmt not in folded:
                    return _before(rows, (x,), tests, tuple(_most(t, rows) for t in tests if _is_any(t))) or n
            return rebuild(n, lambda body: tuple(map(one, body)))
        if n.kind != Kind.ATOM:
            n = replace(n, body=tuple(map(one, n.body)))
        loops, inside = _tile_loops(n)
        alike = [x for x in inside if isinstance(x, If) and not x.other and (n.kind == Kind.ATOM or _is_tile(x.then))]
        if not alike or len(alike) < len(inside):
            return n
        return _before(loops, alike, tuple(t for t in alike[0].tests if all(t in x.tests for x in alike))) or n

    return replace(nest, body=tuple(map(one, nest.body)))


def _before(loops: Sequence[For], inside: Sequence[If], tests: Sequence[Affine], also: Sequence[Affine] = ()) -> If | None:
    """`loops` around `inside`, behind those of `tests` and `also` that lack their indices; None, if there are none."""
    here = {f.index for f in loops}
    before = tuple(t for t in (*tests, *also) if not names(t) & here)
    alone: Body = tuple(y for x in inside for y in _without(x, before))
    for f in reversed(loops):
        alone = (replace(f, body=alone),)
    return If(before, alone) if before else None


def _is_any(x: Affine) -> bool:
    """Whether `x` is the greatest of plain sums."""
    parts = bounds(x, "max")
    return len(parts) > 1 and all(isinstance(a, str) for y in parts for a, _ in y.terms)


def _most(x: Affine, loops: Sequence[For]) -> Affine:
    """What a maximum of sums never exceeds in full `loops`."""
    ends = {f.index: f.end - f.step for f in loops}
    return quasi("max", *(substitute(y, {i: affine(end if y.factor(i) > 0 else 0) for i, end in ends.items()})
                          for y in bounds(x, "max")))


def _without(n: If, known: tuple[Affine, ...]) -> Body:
    """What is in `n`, behind those of its tests that are not `known` to hold."""
    rest = tuple(t for t in n.tests if t not in known)
    return (If(rest, n.then),) if rest else n.then


def _tile_loops(n: For) -> tuple[tuple[For, ...], Body]:
    """`n`, with the loops over a tile that stand directly in it if it is one; and what is inside."""
    return nested((n,), Kind.ATOM) if n.kind == Kind.ATOM else ((n,), n.body)


def _is_tile(body: Body) -> bool:
    """Whether `body` goes over a tile of a matrix unit, and nothing else."""
    match body:
        case (For(kind=Kind.ATOM),):
            return True
        case (For(body=inside),) | (If(then=inside, other=()),):
            return _is_tile(inside)
    return False
