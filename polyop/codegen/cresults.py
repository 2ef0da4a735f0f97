"""What a warp does with the results that a matrix unit left in its registers, as C text: each lane with those that it holds.

    for m, n (atom) { C[m, n] = c[m, n] }          for r < 4 { m = ..; n = ..; C[m, n] = c[r]; }

Where a lane holds neighbours of the tensor that is written, and the whole tile is inside (`cwhole.py`), these are stored
together, and what lies along them is read together:

    for s < 4 by 2 { m = ..; n = ..; b[0] = c[s]; b[1] = c[s + 1]; pop_wide<2>(&C[m, n], b); }

The four lanes that have a row of 8 columns write 32 bytes of it in f32, which is all that memory takes at once. Of 16-bit results
it takes twice as many, which lie in the next tile: `cpairs.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import gcd

from polyop.codegen import cpairs, croll, cwide
from polyop.codegen.cdigits import digits
from polyop.codegen.cindex import bounded, condition, natural
from polyop.codegen.cplace import offset, side_by_side
from polyop.codegen.cscope import Held, Printed, Scope
from polyop.ir.atoms import Fragment
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, affine, loads, place, substitute_expr
from polyop.ir.loops import For, Kind, Node, Space, Store

_FIRST, _NEXT = "pop_s", "pop_e"  # the first register of neighbours, and which of them
_TURN = "pop_g"  # the first of the registers of a turn, see croll.py


def spread(loops: tuple[For, ...], s: Store, scope: Scope, printed: Printed, also: tuple[Affine, ...] = ()) -> list[str]:
    """A store of each element on the lane that holds it.

    also   tests beside those of the `loops` over the tile's sides
    """
    held = {h for x in (s.target, *loads(s.expr)) if (h := scope.tiles.held.get(x.source))}
    if len(held) != 1:
        raise UnsupportedError(f"`{s.target}` is written by a warp, and no tile says by which lane")
    h = next(iter(held))
    if h.fragment is not h.atom.c_map or {f.index for f in loops} != h.loops:
        raise UnsupportedError(f"`{s.target}` does not go through the results of a tile")
    is_own = not loads(s.expr) and s.target.source in scope.tiles.held  # elements beyond the bounds are nobody's
    tests = [] if is_own else [*(t for f in loops for t in bounded(f, scope.names)), *(condition(t, scope.names) for t in also)]
    inside = printed(s, scope)
    inside = [f"if ({' && '.join(tests)}) {{", *("    " + x for x in inside), "}"] if tests else inside
    regs = h.fragment.regs
    each, tiles = croll.registers(s, regs, 1, scope), _tiles(s, scope)
    lines = [*_place(h, "pop_r" if each == regs else f"{_TURN} + pop_r", scope), *inside]
    plain = ["#pragma unroll", f"for (int pop_r = 0; pop_r < {each}; ++pop_r) {{", *("    " + x for x in lines), "}"]
    plain = croll.turns(plain, regs, each, _TURN, tiles)
    if not scope.whole or also:
        return plain
    pairs = cpairs.found(loops, s, scope)
    return cpairs.lines(pairs, scope, printed) if pairs else _together(loops, s, h, scope, printed) or plain


def _place(h: Held, register: str, scope: Scope) -> list[str]:
    """Where in its tile a register of this lane lies."""
    lane = "(int)pop_lane()" if h.atom.warp == scope.tiles.warp else f"(int)(pop_thread() % {h.atom.warp})"
    env = {"lane": lane, "reg": register}
    found = (*digits(h.row, natural(h.fragment.row, env)), *digits(h.column, natural(h.fragment.column, env)))
    return [f"const int {scope.names[i]} = {at};" for i, at in found]


@cache
def neighbours(f: Fragment, warp: int, along: int) -> int:
    """How many registers of each lane, from multiples of so many on, hold neighbours in a column (`along` 0) or a row (1)."""
    step = (1, 0) if along == 0 else (0, 1)
    places = [[f.at(lane, r) for r in range(f.regs)] for lane in range(warp)]

    def lie_together(count: int) -> bool:
        return all(held[r] == tuple(x + r % count * d for x, d in zip(held[r - r % count], step, strict=True))
                   for held in places for r in range(f.regs))
    return max(n for n in (1, 2, 4, 8, 16) if f.regs % n == 0 and lie_together(n))


def rows_of(loops: tuple[For, ...], s: Store, scope: Scope) -> tuple[For, Scope] | None:
    """The loop over the neighbours that a lane has of what `s` writes, and what is known in it; None, if it has none."""
    b = scope.buffers[s.target.source]
    unit = side_by_side(b)
    last = s.target.index[unit] if unit is not None and b.space != Space.REG else None
    along = next((f for f in loops if isinstance(last, Affine) and last.factor(f.index) == 1), None)
    h = next((x for y in loads(s.expr) if (x := scope.tiles.held.get(y.source))), None)
    if along is None or h is None or s.atomic:
        return None
    fast = next((d for d, side in enumerate((h.row, h.column)) if side[-1][0] == along.index), None)
    if fast is None:
        return None
    together = gcd(neighbours(h.fragment, h.atom.warp, fast), along.extent or 1)
    count = min(together, cwide.BYTES // s.target.dtype.bytes_)
    if count < 2:
        return None
    env = {along.index: affine(along.index) + affine(_NEXT)}
    new = replace(s, target=place(s.target, env), expr=substitute_expr(s.expr, env))
    rows = For(_NEXT, Affine(), affine(count), (new,), kind=Kind.ROWS, extent=count)
    return rows, replace(scope, names={**scope.names, _NEXT: _NEXT}, steps={**scope.steps, along.index: count})


def _together(loops: tuple[For, ...], s: Store, h: Held, scope: Scope, printed: Printed) -> list[str] | None:
    """The stores of neighbours at once, all of which are inside; None, if `s` writes none."""
    found = rows_of(loops, s, scope)
    if found is None:
        return None
    rows, inner = found

    def one(body: tuple[Node, ...], mine: Scope) -> list[str]:
        return [f"const int pop_r = {_FIRST} + {_NEXT};", *(x for n in body if isinstance(n, Store) for x in printed(n, mine))]

    wide = cwide.run(rows, inner, [], one)
    if wide is None:
        return None
    regs = h.fragment.regs
    each = croll.registers(s, regs, rows.extent or 1, scope)
    place = _place(h, _FIRST if each == regs else f"{_TURN} + {_FIRST}", scope)
    lines = ["#pragma unroll", f"for (int {_FIRST} = 0; {_FIRST} < {each}; {_FIRST} += {rows.extent}) {{",
             *("    " + x for x in (*place, *wide)), "}"]
    return croll.turns(lines, regs, each, _TURN, _tiles(s, scope))


def _tiles(s: Store, scope: Scope) -> list[str]:
    """The tiles in registers that `s` goes through."""
    found = dict.fromkeys(x for x in (s.target, *loads(s.expr)) if x.source in scope.tiles.held)
    return list(dict.fromkeys(f"{scope.names[x.source]}[{offset(x, {}, scope).c}]" for x in found))
