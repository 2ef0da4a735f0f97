"""The verifier of nests: names are in scope, indices fit, lock-step loops are such, registers suffice."""

from __future__ import annotations

from polyop.codegen.llvm.weight import vector_width
from polyop.ir.errors import InternalError, UnsupportedError, assert_never
from polyop.ir.expr import Affine, Load, expr_names, is_computed, loads, names
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Prefetch, Space, Store, stores, walk
from polyop.ir.target import Target


def verify(nest: LoopNest, target: Target) -> LoopNest:
    """`nest` itself.

    Raises  InternalError for a nest that means nothing; UnsupportedError for one that this target cannot run.
    """
    _scopes(nest, nest.body, frozenset(nest.sizes), frozenset(), frozenset())
    width = vector_width(nest, target)
    for n in walk(nest.body):
        if isinstance(n, For) and n.kind in LOCKSTEP and (need := pressure(nest, n, width)) > target.registers:
            raise UnsupportedError(f"the tile at {n.index} keeps {need} vectors live; {target.name} has {target.registers}")
    return nest


def _scopes(nest: LoopNest, body: tuple[Node, ...], scope: frozenset[str], rows: frozenset[str], lanes: frozenset[str]) -> None:
    for n in body:
        match n:
            case For():
                _in_scope(nest, scope, names(n.lower) | names(n.upper), f"the bounds of {n.index}")
                if used := (names(n.lower) | names(n.upper)) & (rows | lanes):
                    raise UnsupportedError(f"the bounds of {n.index} depend on {', '.join(sorted(used))}, which run in lock step")
                if n.index in scope:
                    raise InternalError(f"nest {nest.name}: {n.index} is bound twice")
                if n.kind == Kind.LANES and lanes:
                    raise UnsupportedError(f"lanes {n.index} inside lanes {', '.join(lanes)}")
                if n.kind == Kind.PARALLEL and rows | lanes:
                    raise InternalError(f"nest {nest.name}: parallel {n.index} inside a lock-step loop")
                inner = frozenset((n.index,))
                _scopes(nest, n.body, scope | inner, rows | inner if n.kind == Kind.ROWS else rows,
                        lanes | inner if n.kind == Kind.LANES else lanes)
            case If():
                _in_scope(nest, scope, frozenset().union(*map(names, n.tests)), "a test")
                _scopes(nest, n.then, scope, rows, lanes)
                _scopes(nest, n.other, scope, rows, lanes)
            case Store():
                for x in (n.target, *loads(n.expr)):
                    _load(nest, x)
                _in_scope(nest, scope, expr_names(n.target) | expr_names(n.expr), f"{n.target} = {n.expr}")
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


def pressure(nest: LoopNest, tile: For, width: int) -> int:
    """Vectors that a lock-step nest keeps live: its register buffers, one update's lane-wise operands, one more for a row."""
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
        return nest.buffer(x.source).space == Space.REG

    inside = stores(tile.body)
    held = {x.target for x in inside if is_register(x.target)}
    # an operand that all rows share stays live from row to row; any other is used where it is loaded
    shared = [x for s in inside if is_register(s.target) and s.reduce and on_rows(s.target)
              for x in loads(s.expr) if not is_register(x) and not on_rows(x)]
    streamed = max(map(vectors, shared), default=0)
    return sum(map(vectors, held)) + streamed + (1 if held else 0)
