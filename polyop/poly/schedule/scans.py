"""Scans in chunks, brought together: what each chunk comes to, what is before it, and its elements share a loop over chunks.

    [r u : i!(L)]  [r : Z]  [r : u!(S)]  [r u i : Y]    becomes    [r : Z u!(i!(L) S i(Y))]

A chunk then stays where it was read, from its total to its elements. Which of these loops are threads is the strategy's business
(`scanned.py`); that this order is right is shown like that of any nest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, names
from polyop.poly.edges import single
from polyop.poly.schedule.nodes import Cluster, Group, Node, Schedule, Serial
from polyop.poly.scop import MAP, Scop, Stmt


@dataclass(frozen=True, eq=False)
class Pieces:
    """A cluster that is a scan in chunks, by its pieces.

    start   what the first chunk starts from; carried: what is before the next one, along the loop `chunks`
    alone   each chunk alone, along the loop `inside`; whole: the elements
    """

    start: Stmt
    alone: tuple[Stmt, ...]
    carried: Stmt
    whole: Stmt
    chunks: str
    inside: str


def pieces_of(cluster: Cluster) -> Pieces | None:
    """The pieces of `cluster`, if it is such a scan."""
    match cluster.body:
        case (Group(stmts=(start,), kept=(), reduced=()),
              Serial(loop=u, body=(Serial(loop=i, body=(Group(stmts=alone),)), Group(stmts=(carried,), kept=(), reduced=()),
                                   Group(stmts=(whole,), kept=(j,), reduced=())), is_reversed=False)) if i == j:
            return Pieces(start, alone, carried, whole, u, i)
    return None


def gathered(found: Schedule, scop: Scop) -> Schedule:
    """`found` with the clusters of each such scan as one."""
    classes = {s: dict(own) for s, own in found.classes.items()}
    nodes = list(found.nodes)
    for n in found.nodes:
        scan = _carried(n)
        members = _members(scan[0], nodes, scop) if scan else None
        if scan and members:
            start, alone, whole = members
            one = _joined(scan[0], scan[1], start, alone, whole, classes)
            if one:
                gone = {s.name for s in one.stmts}
                nodes = [one if _stmt(x) is whole else x for x in nodes if _stmt(x) is whole or not _names(x) & gone]
    return replace(found, nodes=tuple(nodes), classes=classes)


def ends_scan(scop: Scop, s: Stmt) -> bool:
    """Whether `s` puts the elements of chunks together from what is before each chunk: others do so point by point elsewhere."""
    known = [x.source for x in s.reads if any(x.source in {y.source for y in w.reads} for w in scop.writers(x.source))]
    in_chunks = any(isinstance(p, Affine) and len(names(p) & set(s.dims)) > 1 for p in s.target.index)
    return s.kind == MAP and in_chunks and any(scop.op.tensor(t).role == "temp" for t in known)


def _carried(n: Node) -> tuple[Stmt, str] | None:
    """The one statement of `n`, and its loop, if it is computed from the one before it."""
    match n:
        case Cluster(body=(Serial(loop=u, body=(Group(stmts=(s,), kept=(), reduced=()),), is_reversed=False),), stmts=(_,)):
            return (s, u) if s.kind == MAP else None
        case Serial(loop=u, body=(Cluster(stmts=(s,), shell=(), body=(Group(kept=(), reduced=()),)),), is_reversed=False):
            return (s, u) if s.kind == MAP else None
    return None


def _members(carried: Stmt, nodes: list[Node], scop: Scop) -> tuple[Stmt, tuple[Stmt, ...], Stmt] | None:
    """What `carried` starts from, what its steps are made of, and what reads it; None, if others have to do with these."""
    known = carried.target.source
    made = tuple(dict.fromkeys(x.source for x in carried.reads if x.source != known))
    if any(scop.op.tensor(t).role != "temp" for t in (known, *made)):
        return None
    start = [s for s in scop.users(known) if s is not carried and s.target.source == known]
    whole = [s for s in scop.users(known) if s.target.source != known]
    alone = tuple(s for t in made for s in scop.writers(t))
    if len(start) != 1 or len(whole) != 1 or len(alone) != len(made):
        return None
    of_scan = {*start, *whole, *alone, carried}
    if any(not set(scop.users(t)) <= of_scan for t in (known, *made)) or any(s.kind != MAP for s in of_scan):
        return None
    single_ = {id(_stmt(n)) for n in nodes}
    return (start[0], alone, whole[0]) if all(id(s) in single_ or s is carried for s in of_scan) else None


def _joined(carried: Stmt, u: str, start: Stmt, alone: tuple[Stmt, ...], whole: Stmt,
            classes: dict[str, dict[str, str]]) -> Cluster | None:
    """The cluster; `classes` are changed, so that each loop has one class throughout. None, if loops do not match."""
    own = classes[carried.name]
    shell = tuple(own[i] for i in carried.dims if own[i] != u)
    by_name = {s.name: _named(s, carried, own) for s in (start, *alone, whole)}
    inside = [i for i in whole.dims if i not in by_name[whole.name]]
    if len(inside) != 1 or set(by_name[start.name].values()) != set(shell):
        return None
    loop = classes[whole.name][inside[0]]
    new: dict[str, dict[str, str]] = {start.name: by_name[start.name]}
    for s in (*alone, whole):
        left = [i for i in s.dims if i not in by_name[s.name]]
        if len(left) != 1 or set(by_name[s.name].values()) != {*shell, u}:
            return None
        new[s.name] = {**by_name[s.name], left[0]: loop}
    classes.update(new)
    body = (Serial(loop, (Group(alone, (), ()),), alone), Group((carried,), (), ()), Group((whole,), (loop,), ()))
    return Cluster((start, *alone, carried, whole), shell, (Group((start,), (), ()), Serial(u, body, (*alone, carried, whole))))


def _named(s: Stmt, carried: Stmt, own: Mapping[str, str]) -> dict[str, str]:
    """iterator of `s` -> class of the loop of `carried` that stands in the same position of a tensor that both use."""
    found: dict[str, str] = {}
    for x in (carried.target, *carried.reads):
        for y in (s.target, *s.reads):
            if x.source == y.source:
                found |= _matched(x, carried, y, s, own)
    return found


def _matched(x: Load, carried: Stmt, y: Load, s: Stmt, own: Mapping[str, str]) -> dict[str, str]:
    out = {}
    for p, q in zip(x.index, y.index, strict=True):
        if isinstance(p, Affine) and isinstance(q, Affine) and names(p) and names(q):
            i, j = single(p, carried.dims), single(q, s.dims)
            if i and j:
                out[j] = own[i]
    return out


def _names(n: Node) -> set[str]:
    return {s.name for s in n.stmts}


def _stmt(n: Node) -> Stmt | None:
    """The one statement of `n`, if it has one."""
    return n.stmts[0] if len(n.stmts) == 1 else None
