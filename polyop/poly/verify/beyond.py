"""That nobody reads what a matrix unit writes beyond the bounds of a tile of results: it takes whole tiles, and all rows of them.

    for i in [0, min(16, M - m)) (atom), j (atom), k (atom) { c[i, j] += a[i, k] b[k, j] }

stands in a nest, and c[i, j] of all 16 rows is what the unit adds to; a test of rows and columns, j <= i, does not keep it from
that either. What it reads beyond the end of a sum are zeros, see `accesses.py`; here it is rows and columns of results.
"""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyop.ir.expr import Affine, affine, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Store, placed, rebuild
from polyop.poly.verify.nobodys import chosen_by, difference


def read_beyond(nest: LoopNest, context: isl.Set) -> str | None:
    """The smallest case in which something is read that a unit writes beyond a bound, in words; None if there is none."""
    whole = replace(nest, body=_whole(nest.body, ()))
    return None if whole.body == nest.body else difference(nest, whole, nest, context)


def _whole(body: tuple[Node, ...], sides: tuple[For, ...]) -> tuple[Node, ...]:
    """`body`, in loops over `sides` of tiles, of whose products all rows and columns are computed."""
    return tuple(y for n in body for y in _all_of(n, sides))


def _all_of(n: Node, sides: tuple[For, ...]) -> tuple[Node, ...]:
    match n:
        case For(kind=Kind.ATOM):
            inside = (*sides, n)
            products = [s for s, more in placed(n.body, Kind.ATOM) if _summed(s, (*inside, *more))]
            if not n.is_full and any(n.index in chosen_by(s.target) for s in products):
                n = replace(n, upper=affine(n.end))
            return (replace(n, body=_whole(n.body, inside)),)
        case If(tests=tests, other=()) if sides:
            then, left = _whole(n.then, sides), tuple(t for t in tests if not _is_of_results(t, n.then, sides))
            return (replace(n, tests=left, then=then),) if left else then
    return (rebuild(n, lambda body: _whole(body, sides)),)


def _is_of_results(t: Affine, body: tuple[Node, ...], sides: tuple[For, ...]) -> bool:
    """Whether a test in front of products asks for rows and columns of results; for terms lanes ask, one by one."""
    summed = [_summed(s, (*sides, *more)) for s, more in placed(body, Kind.ATOM)]
    over = frozenset[str]().union(*summed)
    return all(summed) and not names(t) & over and bool(names(t) & ({f.index for f in sides} - over))


def _summed(s: Store, sides: tuple[For, ...]) -> frozenset[str]:
    """The sides of tiles over which a product is summed."""
    kept = chosen_by(s.target)
    return frozenset(f.index for f in sides if f.index not in kept) if s.reduce is not None else frozenset()
