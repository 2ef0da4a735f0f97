"""Tiles of results whose text would be long, as loops that stay loops in machine code, as C text.

    for q (rows 4), n (rows 8) { C[m_c + 16 q, n_c + 8 n] = f(c[q, n]) }

    #pragma unroll 1
    for (int q = 0; q < 4; ++q) {
        for n { C[m_c + 16 q, n_c + 8 n] = f(c[0, n]) }
        pop_turn<4, 8>(c + 0);                                       c[q, n] = c[(q + 1) mod 4, n]
    }

No loop can count registers, so each turn moves the next ones to where the text has the first; at the end all are back in their
places. That takes a move for each register and turn, so what is short, and what stores whole tiles and no more, is written
out. Compilers take as long as their text has instructions: `silu` of 128 results, once for whole tiles and once for those that
end inside, was most of a kernel.

Copies that go on by themselves need no registers, so a loop over their rows is one as it is: there a thread asks for them one by
one in any case (`copy.by_rows`). So is one of terms of a sum where a tensor ends: written out beside the loop without tests it
begins as that does, and compilers make one of the first terms, for which all others wait then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from polyop.codegen.c import copy
from polyop.codegen.c.place import offset
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.slots import slot_counts, slots_of
from polyop.ir.expr import Affine, Apply, Load, affine, loads, names, substitute
from polyop.ir.expr import walk as walk_expr
from polyop.ir.loops import For, If, Kind, Node, Space, Store, map_accesses, stores, walk
from polyop.ir.scalars import UNARY_FLOAT

EDGE, WHOLE = 32, 256
"""How long the text of a tile may be, in elements that are stored and no more: where a tensor ends, and where it does not."""

LEAST, MOST = 8, 16
"""Registers of one tile of a matrix unit for a turn: fewer would be moved too often."""

_FUNCTION = 8  # elements that are as long as a function of a float, or a division


@dataclass(frozen=True, slots=True)
class _Slabs:
    """Registers that a loop counts: it begins at `first`, and each turn has `size` elements of the buffer more."""

    first: Load
    size: int


def weight(nodes: tuple[Node, ...], scope: Scope) -> int:
    """How long a text comes of `nodes` that are written out: elements that a thread stores, functions counted as several."""
    total = 0
    for n in nodes:
        match n:
            case For():
                total += weight(n.body, scope) * ((n.extent or 1) if n.kind == Kind.ROWS else 1)
            case If():
                total += weight(n.then + n.other, scope)
            case Store():
                held = [h.fragment.regs for x in (n.target, *loads(n.expr)) if (h := scope.tiles.held.get(x.source))]
                total += of_one(n) * max(held, default=1)
    return total


def of_one(s: Store) -> int:
    """The weight of one element's store."""
    fns = [x.fn for x in walk_expr(s.expr) if isinstance(x, Apply)]
    return 1 + _FUNCTION * sum(f in UNARY_FLOAT or f in ("div", "mod", "pow") for f in fns)


def rolled(n: For, scope: Scope) -> tuple[tuple[Node, ...], list[str]] | None:
    """What each turn of the loop over rows `n` is, and what ends it; None, if it is to be written out."""
    if _is_copy(n, scope) or (scope.most == EDGE and _is_sum(n, scope)):
        return n.body, []
    if not scope.most or weight((n,), scope) <= scope.most or not any(isinstance(x, For) for x in walk(n.body)):
        return None
    found: dict[str, _Slabs | None] = {}
    for x in (x for s in stores(n.body) for x in (s.target, *loads(s.expr)) if scope.buffers[x.source].space == Space.REG):
        slabs = _slabs(x, n, scope)
        if found.setdefault(x.source, slabs) != slabs:
            return None
    turned = {b: x for b, x in found.items() if x}
    if not turned or not all(x.size for x in turned.values()):
        return None
    ends = []
    for b, t in turned.items():
        at = offset(t.first, {}, scope)
        ends.append(f"    pop_turn<{n.extent}, {t.size}>({scope.names[b]}{'' if at.c == '0' else f' + {at.at(13)}'});")
    return _at_first(n.body, n.index, frozenset(turned)), ends


def _is_copy(n: For, scope: Scope) -> bool:
    """Whether `n` goes over the rows of such copies."""
    match n.body:
        case (For() as inside,) if n.kind == Kind.ROWS and {s.stmt for s in stores(n.body)} <= scope.copies:
            return copy.run(inside, scope) is not None
    return False


def _is_sum(n: For, scope: Scope) -> bool:
    """Whether the rows of `n` are terms that one register takes, of which no other is chosen by a row."""
    match n.body:
        case (Store(target=target, reduce=monoid) as s,) if n.kind == Kind.ROWS and monoid is not None:
            held = [x for x in (target, *loads(s.expr)) if scope.buffers[x.source].space == Space.REG]
            return target in held and not any(n.index in names(p) for x in held for p in x.index if isinstance(p, Affine))
    return False


def _slabs(x: Load, n: For, scope: Scope) -> _Slabs | None:
    """The slabs that `n` counts of a buffer in registers; None, if it counts none. Their size is 0, if that is not plain."""
    b, counts = scope.buffers[x.source], [c.const for c in slot_counts(scope.buffers[x.source])]
    places, slots = [p for p in x.index if isinstance(p, Affine)], slots_of(x, b)
    mine = [d for d, p in enumerate(slots) if n.index in names(p)]
    if not mine:
        return None
    d = mine[0]
    first = Load(x.source, (*places[:d], *[Affine()] * (len(places) - d)), x.dtype)
    inside = {f.index for f in walk(n.body) if isinstance(f, For) and f.kind != Kind.ATOM}
    is_plain = len(mine) == 1 and slots[d] == affine(n.index) and counts[d] == n.extent and n.step == 1
    is_plain = is_plain and not any(names(p) & inside for p in places[:d])
    return _Slabs(first, prod(counts[d + 1:]) if is_plain else 0)


def _at_first(body: tuple[Node, ...], i: str, turned: frozenset[str]) -> tuple[Node, ...]:
    """`body` with the registers of the first turn."""
    def one(x: Load) -> Load:
        index = tuple(substitute(p, {i: Affine()}) if isinstance(p, Affine) else p for p in x.index)
        return replace(x, index=index) if x.source in turned else x

    return map_accesses(body, one)


def registers(s: Store, regs: int, step: int, scope: Scope) -> int:
    """How many of the `regs` registers of a unit's tile, which `s` stores `step` at a time, a turn has: all, if that is short."""
    if not scope.most or regs * of_one(s) <= scope.most:
        return regs
    return max(step, min(regs, MOST if MOST * of_one(s) <= scope.most else LEAST))


def turns(lines: list[str], regs: int, each: int, counted: str, held: Iterable[str]) -> list[str]:
    """`lines`, which use registers from 0 on of those in `held`, for `each` of them at a time, counted by `counted`."""
    if each == regs:
        return lines
    return ["#pragma unroll 1", f"for (int {counted} = 0; {counted} < {regs}; {counted} += {each}) {{",
            *("    " + x for x in lines), *(f"    pop_turn<{regs // each}, {each}>({x});" for x in held), "}"]
