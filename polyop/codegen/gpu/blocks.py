"""LoopNest -> LoopNest for kernels whose blocks have threads that work together, before they are printed.

    implied   bounds that follow from what else is asked are not, see `implied.py`
    unasked   what nobody reads is written to registers without a question, see `unread.py`
    counted   rows are counted one by one
    own       registers lose the dimensions by which they are handed out to threads: each thread has its own anyway
    asked     what all elements of a tile, or all threads, answer alike is asked before the loops over them, see `hoisted.py`
    sunk      operands are fetched behind what their products ask, see `sunk.py`
    filled    copies of a statement that write registers alone run all, beyond the bounds of the tensor too: nobody reads those
              registers, and so no bound is tested in the innermost loops, nor before products of tiles in shared memory
    split     a loop of at most 16 iterations has a copy with just 16, for whole tiles, see `whole.py`

Each is followed by the checker, which knows none of them: see `stepped.py`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from polyop.codegen.gpu.hoisted import asked
from polyop.codegen.gpu.implied import without_implied
from polyop.codegen.gpu.sunk import sunk
from polyop.codegen.gpu.unread import going_on, unasked
from polyop.codegen.gpu.whole import is_of_rows, split
from polyop.codegen.stepped import Follow, Step, stepped
from polyop.ir.expr import Affine, Load, Quasi, affine, bounds, loads, names, place, quasi, substitute, substitute_expr
from polyop.ir.loops import (
    COUNTED,
    Buffer,
    For,
    If,
    Kind,
    LoopNest,
    Node,
    Space,
    Store,
    map_accesses,
    placed,
    rebuild,
    stores,
    walk,
)
from polyop.ir.scans import step_of

Body = tuple[Node, ...]

NEEDED = frozenset(("counted", "own"))
"""Passes that the printer takes for granted: without them nothing is printed."""


def prepared(nest: LoopNest, without: Container[str] = ()) -> tuple[LoopNest, tuple[Step, ...]]:
    """`nest` as it is printed, and the steps to that but for those left out; itself, if no threads of a block work together."""
    if not any(isinstance(n, For) and n.kind == Kind.THREADS for n in walk(nest.body)):
        return nest, ()
    return stepped(nest, without, (
        ("implied", Follow.STORES, lambda n: without_implied(n, going_on(n))),
        ("unasked", Follow.MORE, unasked),
        ("counted", Follow.STORES, counted),
        ("own", Follow.OWN, own),
        ("asked", Follow.STORES, lambda n: asked(n, folds(n))),
        ("sunk", Follow.LESS, sunk),
        ("filled", Follow.MORE, filled),
        ("split", Follow.STORES, split),
    ))


def counted(nest: LoopNest) -> LoopNest:
    """Rows in steps of 1.

        for q in [0, u) by 64 (rows 2) { .. q .. }   becomes   for q in [0, (u + 63) / 64) (rows 2) { .. 64 q .. }
    """
    def go(body: Body, env: Mapping[str, Affine]) -> Body:
        return tuple(one(n, env) for n in body)

    def one(n: Node, env: Mapping[str, Affine]) -> Node:
        match n:
            case For():
                upper = substitute(n.upper, env)
                if n.kind != Kind.ROWS or n.step == 1:
                    return replace(n, lower=substitute(n.lower, env), upper=upper, body=go(n.body, env))
                inside = {**env, n.index: affine(n.index) * n.step}
                limits = [quasi("div", b + (n.step - 1), affine(n.step)) for b in bounds(upper)]
                return replace(n, upper=quasi("min", *limits) if len(limits) > 1 else limits[0], step=1, body=go(n.body, inside))
            case If():
                return If(tuple(substitute(t, env) for t in n.tests), go(n.then, env), go(n.other, env))
            case Store():
                return replace(n, target=place(n.target, env), expr=substitute_expr(n.expr, env))
        return n

    return replace(nest, body=go(nest.body, {}))


def folds(nest: LoopNest) -> dict[str, tuple[For, ...]]:
    """The statements whose loops over threads do not all choose the target, which combine what threads have: these loops.

        for v in [0, 128) (threads 128) { total += part[v] }
        for v in [0, 128) (threads 128) { before[v] = total   total = total + part[v] }
    """
    found: dict[str, tuple[For, ...]] = {}
    for s, loops in placed(nest.body, Kind.THREADS):
        used = frozenset[str]().union(*(names(p) for p in s.target.index if isinstance(p, Affine)))
        over = tuple(f for f in loops if f.index not in used)
        if over and (s.reduce is not None or step_of(s.expr, s.target)):
            found[s.stmt] = over
    return found


def own(nest: LoopNest) -> LoopNest:
    """Registers without the dimensions that loops over threads index: see `verify/threads.py`."""
    threads = {n.index for n in walk(nest.body) if isinstance(n, For) and n.kind in (Kind.THREADS, Kind.ATOM)}
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    gone: dict[str, frozenset[int]] = {}
    for s in stores(nest.body):
        for x in (s.target, *loads(s.expr)):
            if x.source in registers:
                here = frozenset(d for d, p in enumerate(x.index) if isinstance(p, Affine) and p.name in threads)
                gone[x.source] = gone.get(x.source, frozenset()) | here

    def kept(x: Load) -> Load:
        drop = gone.get(x.source)
        return replace(x, index=tuple(p for d, p in enumerate(x.index) if d not in drop)) if drop else x

    def shrunk(b: Buffer) -> Buffer:
        return replace(b, dims=tuple(x for d, x in enumerate(b.dims) if d not in gone.get(b.name, frozenset())))

    return replace(nest, buffers=tuple(map(shrunk, nest.buffers)), body=map_accesses(nest.body, kept))


def filled(nest: LoopNest) -> LoopNest:
    """Rows that write registers alone, one for each row, have no bounds.

        for p in [0, min(4, M - m)) (rows 4) { acc[p] += A_s[p] }   becomes   for p in [0, 4) (rows 4) { acc[p] += A_s[p] }

    What is read then lies inside its buffer, which is shown here; what is written, `acc[3]`, is read under its own bound only. So
    nothing is added up under a bound that is another one in each turn, K - k - 32 m: what is nobody's in the last turn was
    somebody's before.
    """
    def go(body: Body, most: Mapping[str, int], turns: frozenset[str]) -> Body:
        return tuple(one(n, most, turns) for n in body)

    def one(n: Node, most: Mapping[str, int], turns: frozenset[str]) -> Node:
        if not isinstance(n, For):
            return rebuild(n, lambda body: go(body, most, turns))
        inside, around = {**most, **_most(n)}, turns | {n.index} if n.kind == Kind.SERIAL else turns
        lasts = names(n.upper).isdisjoint(turns)
        below = inside | {k: v for x in walk(n.body) if isinstance(x, For) for k, v in _most(x).items()}
        mine = _plain(n)
        if n.kind == Kind.THREADS and lasts and not n.is_full and _multiplies_shared(nest, n, below):
            n = replace(n, upper=affine(n.end))
        if n.kind == Kind.ROWS and not n.is_full and mine and all(
                _adds_zeros(nest, s, n, below) or ((lasts or s.reduce is None) and _only_registers(nest, s, n.index, below))
                for s in mine):
            n = replace(n, upper=affine(n.end))
        return rebuild(n, lambda body: go(body, inside, around))

    return replace(nest, body=go(nest.body, {}, frozenset()))


def _most(n: For) -> dict[str, int]:
    """The greatest value of a loop's index, if that is known."""
    end = n.end if n.kind in COUNTED else min((b.const for b in bounds(n.upper) if b.is_constant), default=0)
    return {n.index: end - n.step} if end and n.lower == Affine() else {}


def _plain(n: For) -> tuple[Store, ...]:
    """The stores of `n`; none, if there are loops other than copies and sides of tiles, or tests of what units multiply."""
    inside = tuple(walk(n.body))
    if not (is_of_rows(inside) or all(isinstance(x, Store) or (isinstance(x, For) and x.kind in (Kind.ROWS, Kind.ATOM))
                                       for x in inside)):
        return ()
    return tuple(x for x in inside if isinstance(x, Store))


def _only_registers(nest: LoopNest, s: Store, row: str, most: Mapping[str, int]) -> bool:
    """Whether `s` writes a register of its own for each `row`, from what is inside its buffer for all of them."""
    chosen = any(isinstance(p, Affine) and names(p) == {row} for p in s.target.index)
    if nest.buffer(s.target.source).space != Space.REG or not chosen:
        return False
    return all(_inside(nest, x, row, most) for x in (s.target, *loads(s.expr)))


def _adds_zeros(nest: LoopNest, s: Store, n: For, most: Mapping[str, int]) -> bool:
    """Whether the rows `n` are steps of a sum that a matrix unit adds up: it reads zeros beyond its end, which is proved."""
    used = {i for p in s.target.index if isinstance(p, Affine) for i in names(p)}
    contracted = (x is s and any(f.index not in used for f in loops) for x, loops in placed(n.body, Kind.ATOM))
    is_product = s.reduce is not None and any(contracted)
    chosen = any(isinstance(p, Affine) and n.index in names(p) for p in s.target.index)
    return is_product and not chosen and all(_inside(nest, x, n.index, most) for x in loads(s.expr))


def _multiplies_shared(nest: LoopNest, n: For, most: Mapping[str, int]) -> bool:
    """Whether all that loops over threads do is multiply tiles in shared memory: units that read these want one path for all."""
    inside = tuple(walk(n.body))
    mine = stores(n.body)
    if any(isinstance(x, If) or (isinstance(x, For) and x.kind not in (Kind.THREADS, Kind.ROWS, Kind.ATOM)) for x in inside):
        return False
    return any(isinstance(x, For) and x.kind == Kind.ATOM for x in inside) and all(
        s.reduce is not None and nest.buffer(s.target.source).space == Space.REG
        and all(nest.buffer(x.source).space == Space.SHARED and _within(nest, x, most) for x in loads(s.expr)) for s in mine)


def _inside(nest: LoopNest, x: Load, row: str, most: Mapping[str, int]) -> bool:
    if not any(isinstance(p, Affine) and row in names(p) for p in x.index):
        return all(isinstance(p, Affine) for p in x.index)
    return _within(nest, x, most)


def _within(nest: LoopNest, x: Load, most: Mapping[str, int]) -> bool:
    """Whether all positions of `x`, in memory of constant size, are known to lie inside."""
    b = nest.buffer(x.source)
    if b.space not in (Space.REG, Space.SHARED) or x.guard:
        return False
    for p, (extent, _) in zip(x.index, b.dims, strict=True):
        highest = _highest(p, most) if isinstance(p, Affine) else None
        if highest is None or not extent.is_constant or highest >= extent.const:
            return False
    return True


def _highest(x: Affine, most: Mapping[str, int]) -> int | None:
    """The greatest value of a sum that is never negative, if that is known."""
    total = x.const
    for a, f in x.terms:
        if isinstance(a, str):
            top = most.get(a)
        else:
            top = _top(a, most)
        if f < 0 or top is None:
            return None
        total += f * top
    return total if x.const >= 0 else None


def _top(a: Quasi, most: Mapping[str, int]) -> int | None:
    """The greatest value of a remainder, or of a quotient of what is never negative."""
    if not a.args[1].is_constant or a.op not in ("mod", "div"):
        return None
    inner = _highest(a.args[0], most)
    if a.op == "mod":
        return a.args[1].const - 1 if inner is None else min(inner, a.args[1].const - 1)
    return None if inner is None else inner // a.args[1].const
