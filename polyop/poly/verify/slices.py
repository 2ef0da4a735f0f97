"""One slice for all: what outer loops repeat for data of their own is proved once, without these loops.

A batched operator does the same for each b, in elements that no other b has to do with. Let E be an extent, and let each
statement have an iterator c with 0 <= c < E of which nothing else depends, such that

    { S[.., c, ..] -> T[.., c, ..] }    each tensor that is written has c in one dimension, the same for all that write or
                                        read it; so has an input, or it has c nowhere

and let the nest consist of loops `for c in [0, E)`, parallel or serial, in which c is in the places of c alone: in one dimension
of tensors and of work space, and where stores say which c of their statement they carry out. All other memory that is written
there lives inside one iteration. Then the operator is E problems that share inputs alone, the nest is E nests, one for each
problem, which differ in the name of the elements; and each is right if one is. That one is the operator and the nest without c,
in fewer coordinates, and without the sizes that say how many there are.

Loops inside keep their meaning: what lives in an iteration of the innermost parallel loop does so too if there is another
parallel loop around all of the body; or if there was none but c's, in the one nest that there is, which then is one iteration.
What a block of threads that is persistent leaves to the next iteration is not a matter of one slice, and is asked of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import islpy as isl

from polyop.ir.expr import Affine, Expr, Load, Position, affine, expr_names, loads, map_loads, names
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, walk
from polyop.ir.op import Op, Step
from polyop.poly.scop import Scop, extract

PARAM = isl.dim_type.param

T = TypeVar("T")

Dims = Mapping[str, "int | None"]
"""In which dimension of a tensor or buffer the slices lie; None if it has none."""


@dataclass(frozen=True, eq=False)
class Slice:
    """A problem: what `prove` takes."""

    scop: Scop
    nest: LoopNest
    context: isl.Set


@dataclass(frozen=True, eq=False)
class _Problem:
    """An operator, its nest, and of each statement of its Scop the iterators and the target."""

    op: Op
    nest: LoopNest
    stmts: Mapping[str, tuple[tuple[str, ...], Load]]


class _Shared(Exception):
    """Slices have something to do with each other, or may have."""


def one_slice(scop: Scop, nest: LoopNest, context: isl.Set) -> Slice | None:
    """A smaller problem that holds only if `nest` does what `scop` says wherever `context` holds; None if none is found.

    `nest` makes sense for `scop` (`structure.malformed`).
    """
    whole = found = _Problem(scop.op, nest, {s.name: (s.dims, s.target) for s in scop.stmts})
    try:
        while True:
            found = _sliced(found)
    except (_Shared, RecursionError):  # an expression of many terms is walked without it elsewhere
        pass
    if found is whole:
        return None
    used = frozenset(_sizes(found))
    kept = tuple(s for s in scop.op.sizes if s in used)
    facts = tuple(f for f in found.op.facts if expr_names(f) <= used)
    small = extract(replace(found.op, sizes=kept, facts=facts))
    if [(s.name, len(s.dims)) for s in small.stmts] != [(n, len(dims)) for n, (dims, _) in found.stmts.items()]:
        return None
    for s in scop.op.sizes:
        if s not in used:  # what is known of the others stays true
            context = context.project_out(PARAM, context.find_dim_by_name(PARAM, s), 1)
    return Slice(small, replace(found.nest, sizes=kept), small.context.intersect(context))


def _sizes(p: _Problem) -> Iterator[str]:
    """Every name of a size that is used, and others."""
    for s in p.op.steps:
        yield from (n for r in s.ranges for x in (r.lower, r.upper) for n in names(x))
        yield from (n for e in (s.target, s.expr, *s.where) for n in expr_names(e))
    shapes = [*(t.shape for t in p.op.tensors), *(tuple(e for e, _ in b.dims) for b in p.nest.buffers)]
    yield from (n for shape in shapes for e in shape for n in names(e))
    for n in walk(p.nest.body):
        match n:
            case For():
                yield from names(n.lower) | names(n.upper)
            case If():
                yield from (x for t in n.tests for x in names(t))
            case Store():
                yield from (x for e in (n.target, n.expr) for x in expr_names(e))
                yield from (x for y in n.lift for x in names(y))


def _sliced(p: _Problem) -> _Problem:
    """The problem without the outermost loops. Raises _Shared if it is not the same for all of their iterations."""
    loops = _outermost(p.nest)
    extent = loops[0].upper
    mine = _dims_of_nest(p, loops)
    theirs = _dims_of_op(p.op, {t.name: mine.get(t.name) for t in p.op.outputs}, extent)
    for b in p.nest.buffers:
        dim = mine.get(b.name)
        if b.space == Space.TENSOR:
            _require(b.name not in mine or dim == theirs.get(b.name))
        elif b.name in mine:
            lives_inside = b.private or b.space in (Space.SHARED, Space.REG)
            # what is written beyond the last dimension, up to a multiple, is of that dimension
            is_last = b.pad > 1 and dim == len(b.dims) - 1
            _require(lives_inside if dim is None else b.dims[dim] == (extent, 1) and not is_last)
    _require(all(theirs.get(i) == theirs.get(o) for i, o in p.op.updates))
    given = {t.name for t in p.op.tensors if t.role != "temp"}
    buffers = tuple(replace(b, dims=_without(b.dims, (theirs if b.name in given else mine).get(b.name))) for b in p.nest.buffers)
    stmts, places = {}, {}
    for name, (dims, target) in p.stmts.items():
        at = theirs[target.source]
        assert at is not None
        places[name] = dims.index(_iterator(target.index[at]))
        stmts[name] = (_without(dims, places[name]), replace(target, index=_without(target.index, at)))
    body = tuple(x for loop in loops for n in loop.body for x in _nodes((n,), loop.index, {**theirs, **mine}, places))
    return _Problem(_op(p.op, theirs), replace(p.nest, buffers=buffers, body=body), stmts)


def _require(holds: bool) -> None:
    if not holds:
        raise _Shared


def _without(xs: tuple[T, ...], at: int | None) -> tuple[T, ...]:
    return xs if at is None else xs[:at] + xs[at + 1 :]


def _iterator(p: Position) -> str:
    """The name of a position that is one. Raises _Shared."""
    name = p.name if isinstance(p, Affine) else None
    _require(bool(name))
    return name or ""


# --- the nest ---------------------------------------------------------------------------------------------------------


def _outermost(nest: LoopNest) -> tuple[For, ...]:
    """The loops around all of `nest`, if they are of one extent. Raises _Shared.

    With more in it than one parallel loop, a loop is alone in its nest, and what it has in it goes one after the other: so a
    memory that lives in its iterations lives in all of what is left, and in no more.
    """
    kinds = (Kind.PARALLEL, Kind.SERIAL)
    loops = tuple(n for n in nest.body if isinstance(n, For) and n.kind in kinds and n.lower == Affine() and n.step == 1)
    _require(len(loops) == len(nest.body) > 0 and all(x.upper == loops[0].upper for x in loops))
    inside = [x for loop in loops for x in walk(loop.body) if isinstance(x, For)]
    if not all(len(x.body) == 1 and isinstance(x.body[0], For) and x.body[0].kind == Kind.PARALLEL for x in loops):
        _require(len(loops) == 1 and not any(x.kind in (Kind.PARALLEL, Kind.THREADS) for x in inside))
    return loops


def _dims_of_nest(p: _Problem, loops: tuple[For, ...]) -> dict[str, int | None]:
    """The dimension of each buffer in use that has a loop's index as its position. Raises _Shared, if there are several."""
    found: dict[str, int | None] = {}
    for loop in loops:
        for n in walk(loop.body):
            if isinstance(n, Store):
                for x in (*loads(n.target), *loads(n.expr)):
                    dim = _dim(x, loop.index)
                    _require(found.setdefault(x.source, dim) == dim)
    return found


def _dim(x: Load, index: str) -> int | None:
    return next((d for d, p in enumerate(x.index) if p == affine(index)), None)


def _nodes(body: tuple[Node, ...], index: str, dims: Dims, places: Mapping[str, int]) -> tuple[Node, ...]:
    """`body` without the loop's `index`. Raises _Shared, if it is used for something else than to say where slices lie."""
    out: list[Node] = []
    for n in body:
        match n:
            case For():
                _require(index not in names(n.lower) | names(n.upper))
                out.append(replace(n, body=_nodes(n.body, index, dims, places)))
            case If():
                _require(not any(index in names(t) for t in n.tests))
                out.append(replace(n, then=_nodes(n.then, index, dims, places), other=_nodes(n.other, index, dims, places)))
            case Store():
                lift = n.lift
                if n.origin is not None:
                    _require(lift[places[n.origin]] == affine(index))
                    lift = _without(lift, places[n.origin])
                _require(not any(index in names(x) for x in lift))
                target, expr = _expr(n.target, index, dims), _expr(n.expr, index, dims)
                assert isinstance(target, Load)
                out.append(replace(n, lift=lift, target=target, expr=expr))
            case _:
                out.append(n)
    return tuple(out)


# --- the operator -----------------------------------------------------------------------------------------------------


def _dims_of_op(op: Op, results: Dims, extent: Affine) -> dict[str, int | None]:
    """The dimension of each tensor in which slices lie, from that of each result. Raises _Shared, if a temporary has none."""
    found = dict(results)
    for s in reversed(op.steps):  # what is read later is known
        at = found.get(s.target.source)
        if at is None:
            raise _Shared
        index = _iterator(s.target.index[at])
        own = next((r for r in s.ranges if r.index == index), None)
        _require(own is not None and own.lower == Affine() and own.upper == extent)
        for x in (*loads(s.target), *loads(s.expr), *(y for w in s.where for y in loads(w))):
            dim = _dim(x, index)
            _require(found.setdefault(x.source, dim) == dim)
    for t in op.tensors:
        dim = found.get(t.name)
        _require(t.shape[dim] == extent if dim is not None else t.role == "in" or t.name not in found)
    return found


def _op(op: Op, dims: Dims) -> Op:
    """`op` for one slice. Raises _Shared, if a step has more to do with which one it is than where that lies."""
    tensors = tuple(replace(t, shape=_without(t.shape, dims.get(t.name))) for t in op.tensors)
    return replace(op, tensors=tensors, steps=tuple(_step(s, dims) for s in op.steps))


def _step(s: Step, dims: Dims) -> Step:
    at = dims[s.target.source]
    assert at is not None
    index = _iterator(s.target.index[at])
    ranges = tuple(r for r in s.ranges if r.index != index)
    _require(not any(index in names(r.lower) | names(r.upper) for r in ranges))
    target = _expr(s.target, index, dims)
    assert isinstance(target, Load)
    return replace(s, target=target, expr=_expr(s.expr, index, dims), ranges=ranges,
                   where=tuple(_expr(w, index, dims) for w in s.where))


def _expr(e: Expr, index: str, dims: Dims) -> Expr:
    """`e` without `index` in the dimensions of slices. Raises _Shared, if it is anywhere else."""
    def one(x: Load) -> Load:
        at = dims.get(x.source)
        if at is None:
            return x
        _require(x.index[at] == affine(index))
        return replace(x, index=_without(x.index, at))

    out = map_loads(e, one)
    _require(index not in expr_names(out))
    return out
