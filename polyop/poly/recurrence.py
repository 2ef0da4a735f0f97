"""Whether the elements of an operator can be computed one after the other, or wait for each other in a circle.

Only statements that depend on themselves, directly or through others, can have no order: the strongly connected parts of
the graph of statements. For each of these

    a schedule that isl finds is a proof that there is an order, for all sizes;
    a circle among the instances at some small sizes is a proof that there is none.

One of the two is nearly always at hand. Where neither is, nothing is claimed and the operator is refused: an order may
exist that no piecewise affine schedule of isl describes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import islpy as isl

from polyop.ir.expr import Affine, evaluate
from polyop.poly.places import Places
from polyop.poly.scop import INIT, Scop, Stmt
from polyop.poly.sets import pieces
from polyop.poly.verify.frame import IN, OUT, PARAM

LARGEST = 4        # the largest size that is tried in search of a circle
TRIES = 300        # how many combinations of sizes
POINTS = 3000      # dependences at one combination

Instance = tuple[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Disorder:
    """Statements without an order. `cycle`: pairs (element, element that it needs), empty if no circle was found."""

    stmt: Stmt
    stmts: tuple[Stmt, ...]
    sizes: dict[str, int]
    cycle: tuple[tuple[str, str], ...] = ()


def disorder(o: Places) -> Disorder | None:
    """Statements of `o` that cannot be shown to have an order, or None."""
    scop = o.scop
    for part in circular(scop):
        deps = o.dependences(part)
        if deps.is_empty() or _scheduled(scop, part, deps):
            continue
        return _circle(scop, part, deps) or Disorder(part[0], part, {})
    return None


def circular(scop: Scop) -> tuple[tuple[Stmt, ...], ...]:
    """The groups of statements that depend on themselves, by the tensors they read."""
    work = [s for s in scop.stmts if s.kind != INIT]
    feeds = {s.name: {t.name for t in work if s.target.source in {x.source for x in t.reads}} for s in work}
    reach = {n: set(f) for n, f in feeds.items()}
    for k in reach:
        for i in reach:
            if k in reach[i]:
                reach[i] |= reach[k]
    out: dict[frozenset[str], tuple[Stmt, ...]] = {}
    for s in work:
        if s.name in reach[s.name]:
            group = tuple(t for t in work if t.name in reach[s.name] and s.name in reach[t.name])
            out.setdefault(frozenset(t.name for t in group), group)
    return tuple(out.values())


def _scheduled(scop: Scop, part: tuple[Stmt, ...], deps: isl.UnionMap) -> bool:
    """Whether isl finds an order of `part` that keeps `deps`, and it does keep them."""
    domain = isl.UnionSet.empty(scop.context.get_space())
    for s in part:
        domain = domain.union(isl.UnionSet.from_set(s.domain.intersect_params(scop.context)))
    try:
        schedule = isl.ScheduleConstraints.on_domain(domain).set_validity(deps).compute_schedule()
    except isl.Error:
        return False
    order = schedule.get_map()
    early = order.lex_lt_union_map(order)
    return deps.is_subset(early)


def _circle(scop: Scop, part: tuple[Stmt, ...], deps: isl.UnionMap) -> Disorder | None:
    for sizes in _small(scop):
        edges: dict[Instance, list[Instance]] = {}
        for m in pieces(deps):
            here = m.intersect_params(scop.context)
            for i, v in enumerate(sizes.values()):
                here = here.fix_val(PARAM, i, isl.Val(v))
            if here.is_empty() or here.wrap().count_val().to_python() > POINTS:
                continue
            source, sink, depth = m.get_tuple_name(IN) or "", m.get_tuple_name(OUT) or "", m.dim(IN)
            for point in _points(here.wrap()):
                edges.setdefault((sink, point[depth:]), []).append((source, point[:depth]))
        cycle = _shortest(edges)
        if cycle:
            elements = [_element(scop, x, sizes) for x in cycle]
            shown = [e for i, e in enumerate(elements) if e != elements[i - 1] or len(set(elements)) == 1]
            shown = list(dict.fromkeys(shown))
            pairs = tuple(zip(shown, [*shown[1:], shown[0]], strict=True))
            return Disorder(scop.stmt(cycle[0][0]), part, sizes, pairs)
    return None


def _small(scop: Scop) -> Iterator[dict[str, int]]:
    """Sizes in order of their sum; with many names all the same number, since all combinations are too many."""
    names = scop.op.sizes
    if (LARGEST + 1) ** len(names) > TRIES:
        choices = [(n,) * len(names) for n in range(1, LARGEST + 1)]
    else:
        choices = sorted(product(range(LARGEST + 1), repeat=len(names)), key=lambda c: (sum(c), c))
    for values in choices:
        yield dict(zip(names, values, strict=True))


def _points(s: isl.Set) -> list[tuple[int, ...]]:
    """Every point of a bounded set without parameters."""
    out: list[tuple[int, ...]] = []
    rank = s.dim(isl.dim_type.set)
    rest = s
    while not rest.is_empty():
        p = rest.sample_point()
        out.append(tuple(p.get_coordinate_val(isl.dim_type.set, i).to_python() for i in range(rank)))
        rest = rest.subtract(isl.Set.from_point(p))
    return out


def _shortest(needs: Mapping[Instance, list[Instance]]) -> tuple[Instance, ...]:
    """A shortest circle: each needs the next, the last the first; empty if there is none."""
    best: tuple[Instance, ...] = ()
    for start in sorted(needs):
        before: dict[Instance, Instance] = {}
        queue = deque([start])
        while queue:
            x = queue.popleft()
            for y in needs.get(x, ()):
                if y == start:
                    path = [x]
                    while path[-1] != start:
                        path.append(before[path[-1]])
                    if not best or len(path) < len(best):
                        best = tuple(reversed(path))
                    queue.clear()
                    break
                if y not in before:
                    before[y] = x
                    queue.append(y)
    return best


def _element(scop: Scop, x: Instance, sizes: Mapping[str, int]) -> str:
    """What an instance writes: `H[1]`."""
    s = scop.stmt(x[0])
    env = dict(sizes) | dict(zip(s.dims, x[1], strict=True))
    at = [str(evaluate(p, env)) if isinstance(p, Affine) else "?" for p in s.target.index]
    return f"{s.target.source}[{', '.join(at)}]" if at else s.target.source
