"""That what nodes read and write lies inside its buffer, where only some of the nodes of a nest are looked at."""

from __future__ import annotations

from collections.abc import Mapping

from polyop.ir.expr import Affine, Load, Quasi, substitute_expr
from polyop.ir.loops import Buffer, For, If, IfData, Node, Store
from polyop.poly.verify.known import Known
from polyop.poly.verify.ranges import range_of
from polyop.poly.verify.same import Path, loads_with_paths
from polyop.poly.verify.trees import raise_where


def require_within(n: Node, buffers: Mapping[str, Buffer], k: Known) -> None:
    """Raises  Differs, if something in `n` that runs where `k` holds has a position outside, which no data tells."""
    match n:
        case For(body=body):
            inner = k.inside(n).also(range_of(n))
            for x in body:
                require_within(x, buffers, inner)
        case If(tests=tests, then=then, other=other):
            for part, branch in ((k.also(tests), then), (k.unless(tests), other)):
                for x in branch:
                    require_within(x, buffers, part)
        case IfData(then=then, other=other):
            for x in (*then, *other):
                require_within(x, buffers, k)
        case Store():
            for load, path in ((n.target, ()), *loads_with_paths(n.expr)):
                _inside(load, path, buffers[load.source], k)


def _inside(x: Load, path: Path, b: Buffer, k: Known) -> None:
    for p, (extent, _) in zip(x.index, b.dims, strict=True):
        for t in (p, extent - 1 - p) if isinstance(p, Affine) else ():
            if not _is_sure(t, k):
                out = k.also((*x.guard, t * -1 - 1)).domain
                for condition, truth in path:
                    held = k.frame.condition(substitute_expr(condition, k.values), out)
                    out = held if truth else out.subtract(held)
                raise_where(out, k, f"`{x}` lies outside of {b}")


def _is_sure(t: Affine, k: Known) -> bool:
    """Whether single facts, or bounds of single names, say that t >= 0; a remainder is >= 0, and less than its divisor."""
    rest, least, facts = Affine((), t.const), 0, k.least or {}
    lowest: int | None = t.const  # as far as each name alone is known to have bounds
    for atom, f in t.terms:
        end = facts.get(((atom, 1 if f > 0 else -1),))
        if isinstance(atom, Quasi) and atom.op == "mod":
            end = 0 if f > 0 else atom.args[1].const - 1
            least += min(0, f * end)
        else:
            rest = rest + Affine(((atom, f),))
        lowest = None if lowest is None or end is None else lowest - abs(f) * end
    return (lowest is not None and lowest >= 0) or k.implies(rest + least)
