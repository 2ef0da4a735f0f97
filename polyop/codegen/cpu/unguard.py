"""Tiles that lie inside: guards and choices that come out alike in all rows and steps of a tile are asked once, before it.

    for v { for r in [0, R) { for p (rows 4) { acc[p, v] += X[c + p + r - 1, v] if c + p + r - 1 >= 0 and H - c - p - r >= 0 } } }

becomes

    if c - 1 >= 0 and H - c - R - 2 >= 0 { for v { for r in [0, R) { for p (rows 4) { acc[p, v] += X[c + p + r - 1, v] } } } }
    else { .. as before .. }

A border is as wide as the window is: all other tiles then read without looking. On the border an innermost loop whose steps all
ask the same is asked about once: for most steps of a window no row of the tile is outside, and images of 14 x 14 have no other
tiles. What lanes decide differently stays, since most tiles reach over the border along their lanes. Asking for that in each step
instead was worth 10 to 25 % for windows in steps of two, cost 5 to 15 % elsewhere, and twice the code. So does a tile that looks
in one of two ways alone, as the first of many does that copy an operand. So does a tile with rows missing, unless all
rows share its code (`apart.py`). A tile with lanes missing that turns its results is asked about inside alone, and so is one in
which only rows are missing: it is the last of a row, and lies on the border if there is one. Where windows are copied as full
vectors, lanes are asked about with all else: a copy is little code, and each of its vectors had a mask of its own.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from math import gcd

from polyop.codegen.cpu.apart import rows_lie_apart
from polyop.codegen.cpu.ends import settled
from polyop.ir.expr import Affine, Apply, Expr, Load, Test, affine, bounds, loads, names, substitute
from polyop.ir.expr import rebuild as rebuild_expr
from polyop.ir.idle import idle_without
from polyop.ir.loops import LOCKSTEP, For, If, Kind, LoopNest, Node, Space, Store, children, has_loop, rebuild, stores, walk

Body = tuple[Node, ...]
Ends = Mapping[str, tuple[Affine, Affine]]


def unguard(nest: LoopNest, strict: bool = False) -> LoopNest:
    """`nest` with such guards asked before each tile that holds a serial loop.

    strict   whether no float that is 0 may be left out of a sum
    """
    def go(body: Body) -> Body:
        return tuple(map(one, body))

    def one(n: Node) -> Node:
        if isinstance(n, For) and n.kind in LOCKSTEP:
            return _tile(nest, n, strict)
        return _copied(n) if isinstance(n, For) and _copies_a_window(nest, n) else rebuild(n, go)

    return replace(nest, body=go(nest.body))


def _copies_a_window(nest: LoopNest, n: For) -> bool:
    """Whether the loop `n` does nothing but copy full vectors, some of whose lanes may lie outside, in steps of one."""
    inside = [f for f in walk((n,)) if isinstance(f, For)]
    if any(f.step > 1 or not (f.kind == Kind.SERIAL or (f.kind == Kind.LANES and f.is_full)) for f in inside):
        return False
    lanes = {f.index for f in inside if f.kind == Kind.LANES}
    return all(isinstance(x, (For, Store)) for x in walk((n,))) and any(names(t) & lanes for t, _ in _tests(n, {})) and all(
        nest.buffer(s.target.source).space == Space.WORK for s in stores((n,)))


def _copied(n: For) -> Node:
    """The copy `n`, with a test before it whether all that it reads lies inside."""
    asked = _tests(n, {}, LOCKSTEP)
    known, own = frozenset(t for t, _ in asked), {f.index for f in walk((n,)) if isinstance(f, For)}
    tests = _together(asked)
    plain = all(map(_is_plain, (*known, *tests))) and not any(names(t) & own for t in tests)
    return If(tests, (_without(n, known),), (n,)) if plain and not any(t.is_constant and t.const < 0 for t in tests) else n


def _tile(nest: LoopNest, n: For, strict: bool) -> Node:
    """The tile `n`, with a test before it if there is something to ask."""
    inside = [f for f in (n, *walk(n.body)) if isinstance(f, For)]
    if all(f.kind in LOCKSTEP for f in inside) or _is_seldom(n):
        return n
    if any(f.kind == Kind.ROWS and not f.is_full for f in inside):
        if not rows_lie_apart(nest, n):
            return n
        if n.is_full:
            return _steps(n, strict)
    own = {f.index for f in inside}
    asked = [(t, {x: e for x, e in ends.items() if not any(names(y) & own for y in e)}) for t, ends in _tests(n, {})]
    varying = {t for t, free in asked if names(t) & (own - free.keys())}
    steps = _steps(n, strict) if _is_turned(nest, n) else n
    return steps if steps != n else _asked(n, [(t, free) for t, free in asked if t not in varying], strict)


def _is_turned(nest: LoopNest, n: For) -> bool:
    """Whether lanes of which some are missing lie across what a result has side by side: it takes hundreds of lines to turn it.

    There are several such tiles, one for each number of vectors. Windows are asked about inside them, once for each of their
    steps, so that they are written once: compiling a convolution takes four fifths of the time, calls 0.96 to 1.05.
    """
    def across(x: Store) -> bool:
        b = nest.buffer(x.target.source)
        along = [d for d, p in enumerate(x.target.index) if isinstance(p, Affine) and n.index in names(p)]
        return b.space != Space.REG and bool(along) and b.dense not in (None, *along)

    return not n.is_full and any(isinstance(x, Store) and across(x) for x in walk(n.body))


def _is_seldom(n: Node) -> bool:
    """Whether guards stand in one way alone of a test whose other way has loops, too: the first tile of many copies an operand.

    What looks there costs that tile little, and all others would be written twice for it.
    """
    match n:
        case If(then=then, other=other) if has_loop(then) and has_loop(other):
            return not all(any(_tests(c, {}) for c in way) for way in (then, other))
        case Store():
            return not any(x.guard for x in loads(n.expr))
    return all(map(_is_seldom, children(n)))


def _asked(n: For, asked: list[tuple[Affine, Ends]], strict: bool) -> Node:
    """`n` with the tests `asked`, each for all between its ends, before it, where that can be said and may hold."""
    inner = {t for t, ends in asked if any(not isinstance(a, str) and names(affine(a)) & ends.keys() for a, _ in t.terms)}
    known = frozenset(t for t, _ in asked) - inner
    tests = _together((t, ends) for t, ends in asked if t in known)
    if not tests or any(t.is_constant and t.const < 0 for t in tests):
        return n
    if len(tests) == 1 and {*tests} == {t for t, _ in asked}:  # there is nothing else to ask: all of the tile is beyond
        return If(tests, (_without(n, known),), (settled(n, Test(tests), False),))
    return If(tests, (_without(n, known),), (_steps(n, strict),))


def _together(asked: Iterable[tuple[Affine, Ends]]) -> tuple[Affine, ...]:
    """Tests that hold only if all of `asked` do between their ends; of those that differ by a constant, the strictest."""
    least: dict[Affine, int] = {}
    for low in (_least(t, ends) for t, ends in asked):
        least[low - low.const] = min(low.const, least.get(low - low.const, low.const))
    return tuple(t + c for t, c in least.items())


def _steps(n: Node, strict: bool, around: frozenset[str] = frozenset()) -> Node:
    """`n`, with tests before each innermost serial loop: whether it does anything, and whether all rows are inside.

    around   the loops in lock step around it, on which neither may depend, nor the second on lanes inside
    """
    inside = [f for f in walk((n,)) if isinstance(f, For)]
    if not isinstance(n, For) or n.kind in LOCKSTEP or any(f.kind not in LOCKSTEP for f in inside[1:]):
        around = around | {n.index} if isinstance(n, For) and n.kind in LOCKSTEP else around
        return rebuild(n, lambda body: tuple(_steps(x, strict, around) for x in body))
    varying = {f.index for f in inside} | around
    needed = tuple(sorted((t for t in _needed(n, strict) if _is_plain(t) and not names(t) & varying), key=str))
    if needed:
        return If(needed, (_inside(_without(n, frozenset(needed)), inside, around),))
    return _inside(n, inside, around)


def _needed(n: For, strict: bool) -> frozenset[Affine]:
    """Tests of which one that is < 0 is enough for `n` to do nothing."""
    each = [idle_without(s, strict) for s in stores((n,))]
    return frozenset[Affine].intersection(*each) if each else frozenset()


def _inside(n: Node, inside: list[For], around: frozenset[str]) -> Node:
    """The loop `n`, asked about once if its guards depend on nothing but rows in it."""
    rows = {f.index for f in inside if f.kind == Kind.ROWS}
    asked, own = _tests(n, {}), {f.index for f in inside} - rows | around
    if not asked or any(names(t) & own or not _is_plain(t) for t, _ in asked):
        return n
    return If(_together(asked), (_without(n, frozenset(t for t, _ in asked)),), (n,))


def _is_plain(t: Affine) -> bool:
    return all(isinstance(a, str) for a, _ in t.terms)


def _tests(n: Node, ends: Ends, kinds: Container[Kind] = (Kind.ROWS,)) -> list[tuple[Affine, Ends]]:
    """The tests that guard reads in `n`, each with the first and last step of the loops around it; in lock step, of `kinds`.

    Loops that follow each other may share an index, and end elsewhere.
    """
    match n:
        case Store(expr=e):
            return [(t, ends) for t in dict.fromkeys(t for x in loads(e) for t in x.guard)]
        case For():
            upper = affine(n.end) if n.extent else bounds(n.upper)[0]
            here = (bounds(n.lower, "max")[0], upper - 1)
            counts = n.kind not in LOCKSTEP or n.kind in kinds
            ends = {**ends, n.index: here} if counts else {x: e for x, e in ends.items() if x != n.index}
    return [x for c in children(n) for x in _tests(c, ends, kinds)]


def _least(t: Affine, ends: Ends) -> Affine:
    """Something that is >= 0 only if `t` is between all `ends`; 2 c - 5 >= 0 is c - 3 >= 0."""
    low = substitute(t, {x: last if t.factor(x) < 0 else first for x, (first, last) in ends.items() if t.factor(x)})
    by = gcd(*(f for _, f in low.terms)) or 1
    return Affine(tuple((a, f // by) for a, f in low.terms), low.const // by)


def _without(n: Node, known: frozenset[Affine]) -> Node:
    """`n` where the tests `known` hold."""
    if isinstance(n, Store):
        return replace(n, expr=_known(n.expr, known))
    return rebuild(n, lambda body: tuple(_without(x, known) for x in body))


def _known(e: Expr, known: frozenset[Affine]) -> Expr:
    match e:
        case Load(guard=guard):
            e = replace(e, guard=tuple(t for t in guard if t not in known))
        case Apply(fn="select", args=(Test(tests=tests), yes, no), dtype=t) if known & set(tests):
            rest = tuple(x for x in tests if x not in known)
            if not rest and yes.dtype == t:
                return _known(yes, known)
            e = replace(e, args=(Test(rest), yes, no))
    return rebuild_expr(e, lambda x: _known(x, known))
