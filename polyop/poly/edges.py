"""Dependences between statements, and what they say about single iterators."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import islpy as isl

from polyop.ir.expr import Affine, Load, names
from polyop.ir.op import Range
from polyop.poly.scop import INIT, UPDATE, Scop, Stmt
from polyop.poly.sets import IN, OUT


@dataclass(frozen=True, eq=False)
class Edge:
    """A dependence { source[..] -> sink[..] }; `load` is the read that makes it, None if both only write one tensor."""

    source: Stmt
    sink: Stmt
    load: Load | None
    map: isl.Map


def edges(scop: Scop, ordered: bool = False) -> tuple[Edge, ...]:
    """Every dependence, one for each read (W . R^-1), and from each init to the updates of its tensor.

    ordered   whether sums are added up in the order of the text, { S[i] -> S'[j] : both add to one element } for statements S
              before S'. That one statement goes through its terms in order is up to the strategies: as a dependence of S on
              itself it would make a recurrence of every sum. Of whole numbers any order gives the same bits
    """
    out = []
    for s in scop.stmts:
        for load in dict.fromkeys(s.reads):
            for w in scop.writers(load.source):
                if _are_apart(w.target, load):
                    continue
                m = w.access(w.target).apply_range(s.access(load).reverse()).intersect_params(scop.context)
                if not m.is_empty():
                    out.append(Edge(w, s, load, m))
        if s.kind == UPDATE:
            before = scop.writers(s.target.source)
            exact = not ordered or not s.target.dtype.is_float
            for w in before[:before.index(s)]:
                m = w.access(w.target).apply_range(s.access(s.target).reverse()).intersect_params(scop.context)
                if w.kind == INIT or not (exact or m.is_empty()):
                    out.append(Edge(w, s, None, m))
    return tuple(out)


def _are_apart(x: Load, y: Load) -> bool:
    """Whether the text says that two places differ: some position of both is a number, and not the same one."""
    return any(isinstance(p, Affine) and isinstance(q, Affine) and p.is_constant and q.is_constant and p != q
               for p, q in zip(x.index, y.index, strict=True))


def counterpart(e: Edge, iterator: str, forward: bool, exact: bool = False) -> str | None:
    """The iterator at the other end of `e` that stands in the same position of the tensor as `iterator`.

    `exact` asks for it alone; otherwise a constant distance, as in `H[t - 1]`, is allowed.
    """
    there = e.load if e.load is not None else e.sink.target
    pairs = zip(e.source.target.index, there.index, strict=True)
    for a, b in pairs:
        if not isinstance(a, Affine) or not isinstance(b, Affine):
            continue
        x, y = (a, b) if forward else (b, a)
        other = e.sink if forward else e.source
        mine = e.source if forward else e.sink
        i, j = single(x, mine.dims), single(y, other.dims)
        if i == iterator and j and (not exact or (x.const == y.const and x.terms and len(x.terms) == len(y.terms) == 1)):
            return j
    return None


def single(x: Affine, dims: tuple[str, ...]) -> str | None:
    """The one iterator in `x`, if it has factor 1 and everything else is a constant."""
    if len(x.terms) == 1 and isinstance(x.terms[0][0], str) and x.terms[0][1] == 1 and x.terms[0][0] in dims:
        return x.terms[0][0]
    return None


def digits(x: Affine, ranges: tuple[Range, ...]) -> frozenset[str]:
    """The iterators of `x`, if its value tells each of them, since they are its digits: { 32 b + p : 0 <= p < 32 }; else none."""
    spans = {r.index: r for r in ranges}
    own = sorted(((f, a) for a, f in x.terms if isinstance(a, str) and a in spans), reverse=True)
    if {a for _, a in own} != names(x) & set(spans):
        return frozenset()
    for (more, _), (factor, i) in pairwise(own):
        r = spans[i]
        if factor < 1 or r.lower != Affine() or not r.upper.is_constant or factor * r.upper.const > more:
            return frozenset()
    return frozenset(i for _, i in own)


def compared(m: isl.Map, source: str, sink: str, relation: str) -> isl.Map:
    """The pairs of `m` whose source iterator stands in `relation` (">", "<" or "=") to the sink's."""
    i = m.find_dim_by_name(IN, source)
    j = m.find_dim_by_name(OUT, sink)
    local = isl.LocalSpace.from_space(m.get_space())
    alloc = isl.Constraint.alloc_equality if relation == "=" else isl.Constraint.alloc_inequality
    sign = -1 if relation == "<" else 1
    c = alloc(local).set_coefficient_val(IN, i, sign).set_coefficient_val(OUT, j, -sign)
    return m.add_constraint(c if relation == "=" else c.set_constant_val(-1))


def same_value(m: isl.Map, source: str, sink: str) -> bool:
    """Whether both iterators are equal in every pair of `m`."""
    return bool(m.is_subset(compared(m, source, sink, "=")))


def components(stmts: tuple[Stmt, ...], deps: Iterable[Edge]) -> list[tuple[Stmt, ...]]:
    """Strongly connected components, sources first, otherwise in text order."""
    after = {s.name: [e.sink for e in deps if e.source is s and e.sink in stmts] for s in stmts}
    reach: dict[str, set[str]] = {}
    for s in stmts:
        seen: set[str] = set()
        todo = list(after[s.name])
        while todo:
            q = todo.pop()
            if q.name not in seen:
                seen.add(q.name)
                todo += after[q.name]
        reach[s.name] = seen
    out: list[list[Stmt]] = []
    for s in stmts:
        for c in out:
            if s.name in reach[c[0].name] and c[0].name in reach[s.name]:
                c.append(s)
                break
        else:
            out.append([s])
    done: list[tuple[Stmt, ...]] = []
    left = list(out)
    while left:
        for c in left:
            if not any(c[0].name in reach[o[0].name] for o in left if o is not c):
                done.append(tuple(c))
                left.remove(c)
                break
    return done
