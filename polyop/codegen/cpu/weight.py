"""What a nest as a whole decides: the width of its vectors, and which functions are worth a body of their own."""

from __future__ import annotations

from collections.abc import Iterator

from polyop.ir.expr import (
    Affine,
    Apply,
    Expr,
    Load,
    Number,
    Test,
    children,
    expr_names,
    is_computed,
    names,
    walk,
)
from polyop.ir.loops import LOCKSTEP, For, If, IfData, Kind, LoopNest, Node, Store, stores
from polyop.ir.loops import walk as walk_nodes
from polyop.ir.registers import SLOW
from polyop.ir.target import Target

ALWAYS = 1 << 20
"""The length of a function with branches: it always has a body of its own."""

INSTRUCTIONS: dict[str, int] = {
    "exp": 20, "exp2": 20, "expm1": 35, "sinh": 45, "cosh": 30, "tanh": 25, "sigmoid": 25, "silu": 30, "log": 35, "log2": 45,
    "log1p": 45, "softplus": 35, "pow": 150, "sin": ALWAYS, "cos": ALWAYS, "tan": ALWAYS, "asin": 30, "acos": 30, "atan": 30,
    "atan2": 45, "erf": 40, "gelu": 45, "mod": ALWAYS,
}
"""About how many instructions each of `COMPUTED` is for f32; f64 is half as long again."""

INLINE = 1500
"""Instructions that all copies of a function may take together before it gets a body of its own."""

LIGHT = 16
"""Parts of an expression that take no longer than to read what it reads, from wherever that is."""


def vector_width(nest: LoopNest, target: Target) -> int:
    """Lanes of a vector: of 8-byte elements if the lanes run through any, else of 4-byte ones; no more than are needed.

    Of 1- or 2-byte elements where the lanes meet nothing else: integers at places that lie side by side, or in tables that
    registers hold. Half of that where all that they do is to move vectors and compute a little: halves come from L1 and L2 faster
    where L2 has 2 MB.
    """
    lanes = [n for n in walk_nodes(nest.body) if isinstance(n, For) and n.kind == Kind.LANES]
    found = [(n.index, x) for n in lanes for s in stores(n.body) for e in (s.target, s.expr) for x in _parts(nest, e)]
    is_wide = any(isinstance(x, Load) and x.dtype.bits == 64 and lane in expr_names(x) for lane, x in found)
    is_small = all(_is_small(nest, x) for _, x in found)
    small = max((x.dtype.bytes_ for _, x in found), default=4) if is_small else 4
    width = target.lanes(8 if is_wide else small)
    if target.l2 >= SLOW and target.masks and _is_light(nest, lanes):
        width //= 2
    widest = max((n.extent or 1 for n in lanes), default=width)
    while width > 2 and width // 2 >= widest:
        width //= 2
    return width


def _is_light(nest: LoopNest, lanes: list[For]) -> bool:
    """Whether all that `nest` does is to write vectors, of which each element takes little more than to read it."""
    what = [n.body[0] for n in lanes if len(n.body) == 1 and isinstance(n.body[0], Store)]
    if not what or len(what) < len(lanes) or any(isinstance(n, For) and n.kind == Kind.ROWS for n in walk_nodes(nest.body)):
        return False
    return all(_moves(nest, s, n.index) for s, n in zip(what, lanes, strict=True))


def _moves(nest: LoopNest, s: Store, lane: str) -> bool:
    """Whether `s` computes a little of vectors along `lane`, each element of one of each: where windows overlap, reads pass."""
    parts = tuple(walk(s.expr))
    if s.reduce or len(parts) > LIGHT or not any(isinstance(x, Apply) for x in parts):
        return False
    if any(isinstance(x, Test) or (isinstance(x, Apply) and x.fn in INSTRUCTIONS) for x in parts):
        return False
    reads = {x for x in parts if isinstance(x, Load)}
    if any(x.guard or x.dtype.bytes_ < 4 or any(map(is_computed, x.index)) for x in (s.target, *reads)):
        return False
    along = [x for x in (s.target, *reads) if lane in expr_names(x)]
    if len(along) < 2 or len({x.source for x in reads}) < len(reads):
        return False
    return all(len(x.index) == 1 and lie_along(nest, x, lane) for x in along)  # rows beside others may be short


def lie_along(nest: LoopNest, x: Load, *indices: str) -> bool:
    """Whether neighbours along each of `indices` lie side by side in `x`."""
    dense = nest.buffer(x.source).dense
    places = [(d, p) for d, p in enumerate(x.index) if not isinstance(p, Affine) or names(p) & {*indices}]
    along = (isinstance(p, Affine) and d == dense and all(p.factor(i) == 1 for i in indices) for d, p in places)
    return bool(places) and all(along)


def _parts(nest: LoopNest, e: Expr) -> Iterator[Expr]:
    """`e` and all below it, but for what widens the places that are looked up in tables: these are narrow again there."""
    stack = [e]
    while stack:
        top = stack.pop()
        yield top
        in_table = isinstance(top, Load) and any(map(is_computed, top.index)) and nest.buffer(top.source).table
        stack += [x.args[0] if in_table and isinstance(x, Apply) and x.fn == "cast" else x for x in children(top)]


def _is_small(nest: LoopNest, e: Expr) -> bool:
    """Whether vectors of `e` take no more than 2 bytes a lane."""
    if isinstance(e, Number | Test) or (isinstance(e, Load) and e.guard):
        return False
    if isinstance(e, Load) and any(map(is_computed, e.index)) and not nest.buffer(e.source).table:
        return False
    return e.dtype.bits < 32 and not e.dtype.is_float


def heavy_functions(nest: LoopNest, width: int) -> frozenset[tuple[str, str]]:
    """(function, dtype of its argument) of those that would be written so often that compiling takes long."""
    total: dict[tuple[str, str], int] = {}

    def go(body: tuple[Node, ...], copies: int) -> None:
        for n in body:
            match n:
                case For(kind=kind, extent=extent) if kind in LOCKSTEP:
                    assert extent is not None
                    go(n.body, copies * (extent if kind == Kind.ROWS else -(-extent // width)))
                case For():
                    go(n.body, copies)
                case If() | IfData():
                    go(n.then, copies)
                    go(n.other, copies)
                case Store():
                    for e in walk(n.expr):
                        if isinstance(e, Apply) and e.fn in INSTRUCTIONS and e.args[0].dtype.is_float:
                            key = (e.fn, e.args[0].dtype.name)
                            total[key] = total.get(key, 0) + copies * INSTRUCTIONS[e.fn]
                case _:
                    pass

    go(nest.body, 1)
    return frozenset(key for key, cost in total.items() if cost > INLINE)
