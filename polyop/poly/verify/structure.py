"""What a nest must be before anything can be proved about it: known names, right ranks and dtypes, loops that may nest so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyop.ir.errors import assert_never
from polyop.ir.expr import Affine, Expr, Load, Scalar, expr_names, is_computed, names, walk
from polyop.ir.loops import COUNTED, LOCKSTEP, Barrier, For, If, IfData, Kind, LoopNest, Prefetch, Space, Store
from polyop.ir.op import Op
from polyop.ir.options import Layout
from polyop.poly.scop import Scop
from polyop.poly.verify.sites import names_in_scope


def malformed(scop: Scop, nest: LoopNest, layout: Layout | None = None) -> str:
    """The first thing about `nest` that makes no sense for `scop`; empty if all is well."""
    return next(_complaints(scop, nest, dict(layout.units) if layout else {}), "")


def _complaints(scop: Scop, nest: LoopNest, units: Mapping[str, int | None]) -> Iterator[str]:
    if nest.sizes != scop.op.sizes:
        yield f"the sizes are {nest.sizes}, expected {scop.op.sizes}"
    yield from _buffers(scop.op, nest)
    for b in nest.buffers:  # a nest may know less than the call
        if b.unit is not None and b.unit != units.get(b.name, b.unit):
            yield f"{b} has no stride of 1 there"
    for n, known, loops in names_in_scope(nest):
        match n:
            case For():
                yield from _unknown(known, f"loop {n.index}", n.lower, n.upper)
                if n.index in known:
                    yield f"{n.index} names two things"
                if n.kind == Kind.PARALLEL and any(o.kind in COUNTED for o in loops):
                    yield f"loop {n.index} is parallel inside a loop of {next(o.kind for o in loops if o.kind in COUNTED)}"
                if n.kind == Kind.THREADS and any(o.kind in LOCKSTEP for o in loops):
                    yield f"loop {n.index} is over threads inside a lock-step loop"
            case If():
                yield from _unknown(known, "a test", *n.tests)
            case IfData():
                yield f"a test of data, `{n.test}`, is for rewritten loops alone"
            case Store():
                yield from _store(scop, nest, n, known)
            case Barrier():
                if any(o.kind in COUNTED for o in loops):
                    yield f"a barrier is inside a loop of {next(o.kind for o in loops if o.kind in COUNTED)}"
            case Prefetch():
                pass
            case _:
                assert_never(n)


def _unknown(known: frozenset[str], where: str, *xs: Affine) -> Iterator[str]:
    for x in xs:
        for name in sorted(names(x) - known):
            yield f"{name} in {where} is no loop around it and no size"


def _buffers(op: Op, nest: LoopNest) -> Iterator[str]:
    given = {b.name: b for b in nest.buffers}
    if len(given) != len(nest.buffers):
        yield "two buffers have one name"
    tensors = {t.name: t for t in op.tensors if t.role != "temp"}
    for b in nest.buffers:
        if b.space == Space.TENSOR and b.name not in tensors:
            yield f"{b.name} is no argument of {op.name}"
    for name, t in tensors.items():
        mine = given.get(name)
        if mine is None:
            yield f"there is no buffer for {name}"
        elif mine.space != Space.TENSOR or mine.dtype != t.dtype or mine.dims != tuple((e, 1) for e in t.shape):
            yield f"{mine} is not {t}"


def _store(scop: Scop, nest: LoopNest, s: Store, known: frozenset[str]) -> Iterator[str]:
    what = f"the store to `{s.target}`"
    for x in (s.target, s.expr):
        for name in sorted(expr_names(x) - known):
            yield f"{name} in {what} is no loop around it and no size"
        yield from _places(nest, x, what)
    yield from _unknown(known, f"the lift of {what}", *s.lift)
    if s.later and (s.reduce is not None or s.origin is not None or nest.buffer(s.target.source).space != Space.SHARED):
        yield f"{what} arrives later, and is no copy into shared memory"
    if s.outlasts and (s.reduce is None or nest.buffer(s.target.source).space != Space.REG):
        yield f"{what} outlasts a barrier, and is no sum in registers"
    if s.atomic and s.reduce is None:
        yield f"{what} is indivisible and updates nothing"
    if s.target.guard:
        yield f"{what} has a guarded target"
    if s.reduce is None and any(map(is_computed, s.target.index)):
        yield f"{what} assigns to a computed place"
    if any(t.name == s.target.source and t.role == "in" for t in scop.op.tensors):
        yield f"{what} writes to an input"
    if s.origin is not None:
        stmt = next((x for x in scop.stmts if x.name == s.origin), None)
        if stmt is None:
            yield f"{what} carries out {s.origin}, which is no statement"
        elif len(s.lift) != len(stmt.dims):
            yield f"{what} has a lift of {len(s.lift)} values, and {s.origin} has {len(stmt.dims)} iterators"


def _places(nest: LoopNest, e: Expr, what: str) -> Iterator[str]:
    buffers = {b.name: b for b in nest.buffers}
    scalars = dict(nest.scalars)
    for x in walk(e):
        match x:
            case Load():
                b = buffers.get(x.source)
                if b is None:
                    yield f"{x.source} in {what} is no buffer"
                elif len(x.index) != len(b.dims):
                    yield f"{x} in {what} has {len(x.index)} positions, expected {len(b.dims)}"
                elif x.dtype != b.dtype:
                    yield f"{x} in {what} is read as {x.dtype} from {b}"
                elif any(is_computed(p) and u != 1 for p, (_, u) in zip(x.index, b.dims, strict=True)):
                    yield f"{x} in {what} has a computed position in a dimension with a unit"
            case Scalar():
                if scalars.get(x.name) != x.dtype:
                    yield f"{x.name} in {what} is no scalar of {nest.name}"

