"""What a warp does with the results that a matrix unit left in its registers, as C text: each lane with those that it holds.

    for m, n (atom) { C[m, n] = c[m, n] }          for r < 4 { m = ..; n = ..; C[m, n] = c[r]; }

Where a lane holds neighbours of the tensor that is written, and the whole tile is inside (`c/whole.py`), these are stored
together, and what lies along them is read together:

    for s < 4 by 2 { m = ..; n = ..; b[0] = c[s]; b[1] = c[s + 1]; pop_wide<2>(&C[m, n], b); }

What is read of memory is asked for by halves of a turn, the next half before the results of this one are stored:

    read(0);  for g < 128 by 16 { read(g + 8);  store(g);  if (g + 16 < 128) read(g + 16);  store(g + 8); }

The four lanes that have a row of 8 columns write 32 bytes of it in f32, which is all that memory takes at once. Of 16-bit results
it takes twice as many, which lie in the next tile: `c/pairs.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from math import gcd

from polyop.codegen.c import pairs as cpairs
from polyop.codegen.c import roll
from polyop.codegen.c import wide as cwide
from polyop.codegen.c.digits import digits
from polyop.codegen.c.expr import combined
from polyop.codegen.c.index import Text, bounded, condition, natural
from polyop.codegen.c.lanes import lane_of, of_row, on_elements
from polyop.codegen.c.lines import unrolled, where
from polyop.codegen.c.place import element, narrowed, offset, value_type, widened
from polyop.codegen.c.scope import Printed, Scope
from polyop.codegen.gpu.held import Held, Rows
from polyop.ir.atoms import Fragment
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, loads, names, place, substitute_expr
from polyop.ir.loops import For, Kind, Node, Space, Store

_FIRST, _NEXT = "pop_s", "pop_e"  # the first register of neighbours, and which of them
_TURN = "pop_g"  # the first of the registers of a turn, see roll.py

AHEAD = 16
"""Results of a thread whose operands in memory are asked for together, before those in front of them are stored."""


def spread(loops: tuple[For, ...], s: Store, scope: Scope, printed: Printed, also: tuple[Affine, ...] = ()) -> list[str]:
    """A store of each element on the lane that holds it.

    also   tests beside those of the `loops` over the tile's sides
    """
    held = {h for x in (s.target, *loads(s.expr)) if (h := scope.tiles.held.get(x.source))}
    rows = {r for x in (s.target, *loads(s.expr)) if (r := scope.tiles.rows.get(x.source))}
    if not held and len(rows) == 1:
        return _of_rows(next(iter(rows)), loops, s, scope, printed, also)
    if len(held) != 1:
        raise UnsupportedError(f"`{s.target}` is written by a warp, and no tile says by which lane")
    h = next(iter(held))
    scope = on_elements(s, scope)
    if h.fragment is not h.atom.c_map or {f.index for f in loops} != h.loops:
        raise UnsupportedError(f"`{s.target}` does not go through the results of a tile")
    is_own = not loads(s.expr) and s.target.source in scope.tiles.held  # elements beyond the bounds are nobody's
    inside = printed(s, scope) if is_own else _tested(loops, also, printed(s, scope), scope)
    regs = h.fragment.regs
    each, tiles = _each(s, regs, 1, rows, scope), _tiles(s, scope)
    lines = [*_place(h, "pop_r" if each == regs else f"{_TURN} + pop_r", scope), *inside]
    plain = roll.turns(unrolled("pop_r", each, lines), regs, each, _TURN, tiles)
    if not scope.whole or also:
        return plain
    pairs = None if scope.twos else cpairs.found(loops, s, scope)
    return cpairs.lines(pairs, scope, printed) if pairs else _together(loops, s, h, scope, printed) or plain


def _tested(loops: tuple[For, ...], also: tuple[Affine, ...], lines: list[str], scope: Scope) -> list[str]:
    """`lines` where an element is inside the bounds of `loops` and what is asked `also` holds."""
    return where(tests_of(loops, also, scope), lines)


def tests_of(loops: tuple[For, ...], also: tuple[Affine, ...], scope: Scope) -> list[str]:
    """What is asked of an element: the bounds of `loops`, and what is asked `also`."""
    return [*(t for f in loops for t in bounded(f, scope.names)), *(condition(t, scope.names) for t in also)]


def _each(s: Store, regs: int, count: int, rows: Iterable[Rows], scope: Scope) -> int:
    """The registers of a turn where the text is rolled up: all rows of a tile, as these do not move; else all there are."""
    each = roll.registers(s, regs, count, scope)
    return regs if any(each % (r.every * r.fragment.regs) for r in rows) else each


def _of_rows(r: Rows, loops: tuple[For, ...], s: Store, scope: Scope, printed: Printed, also: tuple[Affine, ...]) -> list[str]:
    """A store of a value for each row on all lanes that have the row."""
    if {f.index for f in loops} != {r.row}:
        raise UnsupportedError(f"`{s.target}` does not go through the rows of a tile")
    inside = _tested(loops, also, printed(s, scope), scope)
    return unrolled("pop_r", r.fragment.regs, (place_of_row(r, scope), *inside))


def fold(loops: tuple[For, ...], s: Store, scope: Scope, also: tuple[Affine, ...]) -> list[str]:
    """`row op= element` over the elements of each row: of those that a lane has, then of all lanes that have the row.

    All lanes take part, and write what they have of rows inside the bounds.
    """
    assert s.reduce is not None and isinstance(s.expr, Load)
    r, h, t = scope.tiles.rows[s.target.source], scope.tiles.held[s.expr.source], s.target.dtype
    columns = {i for i, _ in h.column}
    cut = any(f.index in columns and not f.is_full for f in loops) or any(columns & names(x) for x in also)
    if {f.index for f in loops} != h.loops or cut:
        raise UnsupportedError(f"`{s.target}` is no fold of whole rows")
    kind = value_type(t)
    both = combined(s.reduce, t, Text("pop_a"), Text("pop_b"), scope)
    part = f"{scope.names[s.expr.source]}[{offset(s.expr, {}, scope).c}]"
    mine = [widened(f"{part}[{x} + {r.every} * pop_r]", t) for x in of_row(h, r)]
    place_ = element(s.target, {}, scope)
    result = combined(s.reduce, t, Text(widened(place_, t)), Text("pop_v"), scope)
    write = _tested(loops, also, [f"{place_} = {narrowed(result.c, t)};"], scope)
    lines = [place_of_row(r, scope),
             f"const auto pop_f = [](const {kind} pop_a, const {kind} pop_b) {{ return ({kind})({both.c}); }};",
             f"{kind} pop_v = {_joined(mine)};",
             f"pop_v = pop_fold_lanes<{r.over}, {r.step}>(pop_v, pop_f);",
             *write]
    return [f"// {s.stmt}", *unrolled("pop_r", r.fragment.regs, lines)]


def _joined(values: list[str]) -> str:
    """All of these joined two by two, so that none waits for all before it."""
    while len(values) > 1:
        pairs = [f"pop_f({x}, {y})" for x, y in zip(values[::2], values[1::2], strict=False)]
        values = [*pairs, *values[2 * len(pairs):]]
    return values[0]


def place_of_row(r: Rows, scope: Scope, register: str = "pop_r") -> str:
    """Which row a register of this lane is for."""
    return f"const int {scope.names[r.row]} = {natural(r.fragment.row, {'lane': lane_of(r.warp, scope), 'reg': register})};"


def _place(h: Held, register: str, scope: Scope) -> list[str]:
    """Where in its tile a register of this lane lies."""
    env = {"lane": lane_of(h.atom.warp, scope), "reg": register}
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
    unit = b.dense
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
    regs, step = h.fragment.regs, rows.extent or 1
    of_rows = [r for x in loads(s.expr) if (r := scope.tiles.rows.get(x.source))]
    each = _each(s, regs, step, of_rows, scope)

    def of_register(first: str) -> Callable[[tuple[Node, ...], Scope], list[str]]:
        return lambda body, mine: [f"const int pop_r = {first} + {_NEXT};",
                                   *(x for n in body if isinstance(n, Store) for x in printed(n, mine))]

    wide = cwide.moves(rows, inner, of_register(_FIRST))
    if wide is None:
        return None
    tiles = _tiles(s, scope)
    turn = each if each < regs else AHEAD
    if wide.reads and not wide.tests and turn < regs and regs % turn == 0 and turn % (2 * step) == 0:
        if each < regs:
            return _ahead(wide, loops, h, step, each, scope, [f"pop_turn<{regs // each}, {each}>({x});" for x in tiles])
        by_turns = cwide.moves(rows, inner, of_register(f"{_TURN} + {_FIRST}"))
        assert by_turns is not None
        return _ahead(by_turns, loops, h, step, turn, scope, [])
    place = _place(h, _FIRST if each == regs else f"{_TURN} + {_FIRST}", scope)
    stored = _tested(loops, (), cwide.run(rows, inner, [], of_register(_FIRST)) or [], scope)
    lines = unrolled(_FIRST, each, [*place, *stored], step)
    return roll.turns(lines, regs, each, _TURN, tiles)


def _ahead(wide: cwide.Moves, loops: tuple[For, ...], h: Held, step: int, each: int, scope: Scope, ends: list[str]) -> list[str]:
    """The stores of all registers, `each` of them in a turn, by halves: before one of them what the next one reads is asked for.

    Points of a tile are independent of each other, so none reads what another one writes. Compilers cannot know that, and let
    each read wait for the stores before it. The halves have registers of their own, which compilers would not give to copies.

    ends   what a turn that stays one in machine code does at last; none: the text is written out
    """
    regs, half = h.fragment.regs, each // 2

    def reads(register: str, which: int) -> list[str]:
        lines = []
        for lies, (_, name, *_), moved in wide.reads:
            lines += [*lies, f"auto& {name} = {name}_{which}[{_FIRST} % {half} / {step}];", *moved]
        return [*_place(h, register, scope), *_tested(loops, (), lines, scope)]

    def work(which: int) -> list[str]:
        lines = [f"const auto& {name} = {name}_{which}[{_FIRST} % {half} / {step}];" for _, (_, name, *_), _ in wide.reads]
        for lies, a, _ in wide.writes:
            lines += [*lies, cwide.declared(a)]
        lines += [*wide.work, *(x for _, _, moved in wide.writes for x in moved)]
        return [*_place(h, f"{_TURN} + {_FIRST}", scope), *_tested(loops, (), lines, scope)]

    rooms = [cwide.declared((a[0], f"{a[1]}_{which}", *a[2:]), half // step) for _, a, _ in wide.reads for which in (0, 1)]
    def lower(lines: list[str]) -> list[str]:
        return unrolled(_FIRST, half, lines, step)

    def upper(lines: list[str]) -> list[str]:
        return unrolled(_FIRST, each, lines, step, half)

    following = where([f"{_TURN} + {each} < {regs}"], lower(reads(f"{_TURN} + {each} + {_FIRST}", 0)))
    turn = [*upper(reads(f"{_TURN} + {_FIRST}", 1)), *lower(work(0)), *following, *upper(work(1)), *ends]
    lines = [*rooms, *lower(reads(_FIRST, 0)), f"#pragma unroll{' 1' if ends else ''}",
             f"for (int {_TURN} = 0; {_TURN} < {regs}; {_TURN} += {each}) {{", *("    " + x for x in turn), "}"]
    return ["{", *("    " + x for x in lines), "}"]


def _tiles(s: Store, scope: Scope) -> list[str]:
    """The tiles in registers that `s` goes through."""
    found = dict.fromkeys(x for x in (s.target, *loads(s.expr)) if x.source in scope.tiles.held)
    return list(dict.fromkeys(f"{scope.names[x.source]}[{offset(x, {}, scope).c}]" for x in found))
