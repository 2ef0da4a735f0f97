"""A loop ends where a test ends that all of its stores stand behind, and begins where such a test begins.

    for k in [0, 512) { if N - c - k - 1 >= 0 { R[k] = B[c + k] } for p (rows 6) { if N - c - k - 1 >= 0 { x[p] += R[k] } } }

becomes

    for k in [0, min(512, N - c)) { R[k] = B[c + k] for p (rows 6) { x[p] += R[k] } }

So it is where tiles are boxes and the last share of a sum or the last block of a row is not. A test in each step costs a product
of 32 x 32 and depth 100,000 a third of its time. Inside a tile it also hides that what was just copied is what is read: the test
chooses the place, so a vector goes to memory and back.

A loop inside rows or lanes has one end for all of them: what a test says of each, { k <= n } for lanes along n, is for `ties.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from polyop.ir.expr import Affine, affine, bounds, names, quasi
from polyop.ir.loops import LOCKSTEP, For, If, IfData, Kind, LoopNest, Node, Prefetch, rebuild

Body = tuple[Node, ...]


def end_early(nest: LoopNest) -> LoopNest:
    """`nest` with every such serial loop ended early, and begun late; hints to fetch what would follow are left out."""
    return replace(nest, body=_all_ended(nest.body, frozenset()))


def _all_ended(body: Body, abreast: frozenset[str]) -> Body:
    """`body` inside the rows and lanes `abreast`."""
    out = []
    for n in body:
        inside = abreast | {n.index} if isinstance(n, For) and n.kind in LOCKSTEP else abreast
        out.append(_ended(rebuild(n, partial(_all_ended, abreast=inside)), abreast))
    return tuple(out)


def _ended(n: Node, abreast: frozenset[str]) -> Node:
    if not isinstance(n, For) or n.kind != Kind.SERIAL:
        return n
    asked, own = _asked(n.body) or (), abreast | {n.index}
    last = {t: affine(n.index) + t for t in asked if t.factor(n.index) == -1}  # t holds while index <= last
    first = {t: affine(n.index) - t for t in asked if t.factor(n.index) == 1 and n.step == 1}  # t holds from first <= index on
    known = frozenset(t for t, x in (*last.items(), *first.items()) if not names(x) & own)
    if not known:
        return n
    ends = sorted((last[t] + 1 for t in known & last.keys()), key=str)
    starts = sorted((first[t] for t in known & first.keys()), key=str)
    return replace(n, lower=quasi("max", *bounds(n.lower, "max"), *starts), upper=quasi("min", *bounds(n.upper), *ends),
                   body=_without(n.body, known))


def _asked(body: Body) -> frozenset[Affine] | None:
    """The tests that each store of `body` stands behind, and that are the same for all of them; None if it has no store."""
    found = [x for x in map(_of, body) if x is not None]
    return frozenset.intersection(*found) if found else None


def _of(n: Node) -> frozenset[Affine] | None:
    match n:
        case For(index=i, body=body):
            inside = _asked(body)
            return None if inside is None else frozenset(t for t in inside if i not in names(t))
        case If(tests=tests, then=then, other=other):
            found = [x | more for x, more in ((_asked(then), {*tests}), (_asked(other), set())) if x is not None]
            return frozenset.intersection(*found) if found else None
        case IfData(then=then, other=other):
            return _asked(then + other)
        case Prefetch():
            return None
    return frozenset()


def _without(body: Body, known: frozenset[Affine]) -> Body:
    """`body` where the tests `known` hold."""
    out: list[Node] = []
    for n in body:
        n = rebuild(n, lambda inner: _without(inner, known))
        if isinstance(n, If) and known & set(n.tests):
            rest = tuple(t for t in n.tests if t not in known)
            out += [replace(n, tests=rest)] if rest else n.then
        else:
            out.append(n)
    return tuple(out)
