"""The verifier of nests: names are in scope, indices fit, lock-step loops are such, registers suffice."""

from __future__ import annotations

from collections.abc import Iterator

from polyop.codegen.cpu.pairs import paired
from polyop.codegen.cpu.rolled import on_stack
from polyop.codegen.cpu.weight import vector_width
from polyop.ir.errors import InternalError, RegistersError, UnsupportedError, assert_never
from polyop.ir.expr import Affine, Load, expr_names, is_computed, loads, names
from polyop.ir.loops import (
    LOCKSTEP,
    Barrier,
    For,
    If,
    IfData,
    Kind,
    LoopNest,
    Node,
    Prefetch,
    Space,
    Store,
    children,
    stores,
    walk,
)
from polyop.ir.registers import on_the_way
from polyop.ir.scalars import computes
from polyop.ir.target import Target


def verify(nest: LoopNest, target: Target, spills: bool = False) -> LoopNest:
    """`nest` itself; `spills`: what registers have no room for may go to memory and back.

    Raises  InternalError for a nest that means nothing; UnsupportedError for one that this target cannot run, RegistersError if
            only since it has too few registers.
    """
    _scopes(nest, nest.body, frozenset(nest.sizes), frozenset(), frozenset(), bool(target.warp))
    _whole_registers(nest)
    width = vector_width(nest, target)
    aside, _ = on_stack(nest, target)
    written = paired(nest, width)
    for n in _tiles(written.body):
        if not spills and (need := pressure(written, n, width, aside)) > target.registers:
            text = f"the tile at {n.index} keeps {need} vectors live; {target.name} has {target.registers}"
            raise RegistersError(text, need - target.registers)
    return nest


def _tiles(body: tuple[Node, ...]) -> Iterator[For]:
    """The outermost lock-step loops: those inside have fewer copies of fewer stores, and so need no more registers."""
    for n in body:
        if isinstance(n, For) and n.kind in LOCKSTEP:
            yield n
        else:
            yield from _tiles(children(n))


def _scopes(nest: LoopNest, body: tuple[Node, ...], scope: frozenset[str], rows: frozenset[str], lanes: frozenset[str],
            warp: bool) -> None:
    """`warp`: whether what runs in lock step are copies in one thread, each with bounds of its own."""
    for n in body:
        match n:
            case For():
                _in_scope(nest, scope, names(n.lower) | names(n.upper), f"the bounds of {n.index}")
                if not warp and (used := (names(n.lower) | names(n.upper)) & (rows | lanes)):
                    raise UnsupportedError(f"the bounds of {n.index} depend on {', '.join(sorted(used))}, which run in lock step")
                if n.index in scope:
                    raise InternalError(f"nest {nest.name}: {n.index} is bound twice")
                if n.kind == Kind.LANES and lanes:
                    raise UnsupportedError(f"lanes {n.index} inside lanes {', '.join(lanes)}")
                if n.kind == Kind.PARALLEL and rows | lanes:
                    raise InternalError(f"nest {nest.name}: parallel {n.index} inside a lock-step loop")
                inner = frozenset((n.index,))
                _scopes(nest, n.body, scope | inner, rows | inner if n.kind == Kind.ROWS else rows,
                        lanes | inner if n.kind == Kind.LANES else lanes, warp)
            case If():
                _in_scope(nest, scope, frozenset().union(*map(names, n.tests)), "a test")
                _scopes(nest, n.then, scope, rows, lanes, warp)
                _scopes(nest, n.other, scope, rows, lanes, warp)
            case IfData():
                for x in loads(n.test):
                    _load(nest, x)
                _in_scope(nest, scope, expr_names(n.test), "a test of data")
                if rows | lanes:
                    raise InternalError(f"nest {nest.name}: {n.test} chooses inside a lock-step loop")
                _scopes(nest, n.then, scope, rows, lanes, warp)
                _scopes(nest, n.other, scope, rows, lanes, warp)
            case Store():
                for x in (n.target, *loads(n.expr)):
                    _load(nest, x)
                _in_scope(nest, scope, expr_names(n.target) | expr_names(n.expr), f"{n.target} = {n.expr}")
            case Barrier():
                pass
            case Prefetch():
                _load(nest, n.place)
                _in_scope(nest, scope, expr_names(n.place), f"prefetch {n.place}")
            case _:
                assert_never(n)


def _in_scope(nest: LoopNest, scope: frozenset[str], used: frozenset[str], what: str) -> None:
    if missing := used - scope:
        raise InternalError(f"nest {nest.name}: {what}: {', '.join(sorted(missing))} not in scope")


def _load(nest: LoopNest, x: Load) -> None:
    b = nest.buffer(x.source)
    if len(b.dims) != len(x.index):
        raise InternalError(f"nest {nest.name}: {x} has {len(x.index)} indices for {b}")
    if b.space == Space.REG and any(map(is_computed, x.index)):
        raise UnsupportedError(f"{x}: a register cannot be chosen by data")


def _whole_registers(nest: LoopNest) -> None:
    """A loop over lanes with one point has become no loop, and what it did to one lane no vector instruction does."""
    lanes = frozenset(n.index for n in walk(nest.body) if isinstance(n, For) and n.kind == Kind.LANES)
    along: dict[tuple[str, int], bool] = {}
    for s in stores(nest.body):
        for x in (s.target, *loads(s.expr)):
            if nest.buffer(x.source).space == Space.REG:
                for d, p in enumerate(x.index):
                    has_lanes = isinstance(p, Affine) and bool(names(p) & lanes)
                    if along.setdefault((x.source, d), has_lanes) != has_lanes:
                        raise UnsupportedError(f"{x}: one lane of a vector is used alone")


def pressure(nest: LoopNest, tile: For, width: int, aside: frozenset[str] = frozenset()) -> int:
    """Vectors that a lock-step nest keeps live: its register buffers, one update's lane-wise operands, one more for a row.

    Beside them what an update computes on its way to the sums; functions take whatever there is, and more.

    aside   the register buffers that are not kept in vectors
    """
    axes = {n.index: (n.kind, n.extent or 1) for n in (tile, *walk(tile.body)) if isinstance(n, For) and n.kind in LOCKSTEP}

    def vectors(x: Load) -> int:
        used = frozenset().union(*(names(p) for p in x.index if isinstance(p, Affine))) & axes.keys()
        if not any(axes[u][0] == Kind.LANES for u in used):
            return 0
        total = 1
        for u in used:
            kind, extent = axes[u]
            total *= -(-extent // width) if kind == Kind.LANES else extent
        return total

    def on_rows(x: Load) -> bool:
        return any(axes[u][0] == Kind.ROWS for p in x.index if isinstance(p, Affine) for u in names(p) & axes.keys())

    def is_register(x: Load) -> bool:
        return nest.buffer(x.source).space == Space.REG and x.source not in aside

    inside = stores(tile.body)
    alive = _lifetimes(tile, frozenset(x for s in inside for x in (s.target, *loads(s.expr)) if is_register(x)))

    def need(place: int, s: Store) -> int:
        held = [x for x, (first, last) in alive.items() if first <= place < last or place == first]
        # an operand that all rows share stays live from row to row; any other is used where it is loaded
        is_update = is_register(s.target) and s.reduce is not None and on_rows(s.target)
        shared = [x for x in loads(s.expr) if is_update and not is_register(x) and not on_rows(x)]
        operands = max(map(vectors, shared), default=0)
        computed = on_the_way(s.expr, s.reduce) if operands and s.reduce and not computes(s.expr) else 0
        return sum(map(vectors, held)) + operands + (1 if held else 0) + computed

    return max((need(place, s) for place, s in enumerate(inside)), default=0)


def _lifetimes(tile: For, registers: frozenset[Load]) -> dict[Load, tuple[int, int]]:
    """From which store of `tile` to which each register lives, counted in text order.

    What a serial loop touches lives through all of the loop. The last read of a value frees it for what that store writes:
    lock step goes vector by vector.
    """
    found: dict[Load, tuple[int, int]] = {}

    def touch(x: Load, first: int, last: int) -> None:
        old = found.get(x, (first, last))
        found[x] = min(old[0], first), max(old[1], last)

    def go(body: tuple[Node, ...], place: int) -> int:
        for n in body:
            start = place
            match n:
                case Store():
                    for x in (n.target, *loads(n.expr)):
                        if x in registers:
                            touch(x, place, place)
                    place += 1
                case For():
                    place = go(n.body, place)
                    if n.kind not in LOCKSTEP:
                        for x in {x for s in stores(n.body) for x in (s.target, *loads(s.expr))} & registers:
                            touch(x, start, place)
                case If():
                    place = go(n.other, go(n.then, place))
                case _:
                    pass
        return place

    go(tile.body, 0)
    return found
