"""What one lane holds of each row of a unit's results, for all lanes that have the row, as C text.

    for i (atom) { row[i] = p[j div 8, i, j mod 8] }       j is a loop around, so all lanes of a warp are at one j

    for r < 2 { row[r] = pop_from(the register of p in which column j mod 8 lies, the lane of this row that has it); }

Registers have no numbers that a kernel computes, so the lane that has it chooses among all that it may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyop.codegen.c import lanes
from polyop.codegen.c.index import index, natural
from polyop.codegen.c.lanes import lane_of, of_row
from polyop.codegen.c.lines import unrolled
from polyop.codegen.c.place import STORED, element, offset
from polyop.codegen.c.results import place_of_row, tests_of
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.held import Held, Rows
from polyop.codegen.gpu.slots import slot_counts, slots_of
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, loads, names, quasi
from polyop.ir.loops import For, Kind, LoopNest, Store, placed

_TILE = "pop_tile"  # which tile of several
_HALF = 2  # bytes of half a register


def find(nest: LoopNest, held: Mapping[str, Held], rows: Mapping[str, Rows]) -> dict[str, Affine]:
    """The statements that do so, and the column of each.

    Raises  UnsupportedError, if lanes hold the rows of the one otherwise than those of the other.
    """
    found: dict[str, Affine] = {}
    for s, loops in placed(nest.body, Kind.ATOM):
        x, r = s.expr, rows.get(s.target.source)
        h = held.get(x.source) if isinstance(x, Load) else None
        if r is None or h is None or not isinstance(x, Load) or s.reduce is not None:
            continue
        if h.fragment is not h.atom.c_map or lanes.rows_of(h) != r or [f.index for f in loops] != [r.row]:
            raise UnsupportedError(f"`{s.target}` is handed on by lanes that do not have the row")
        lanes.side_by_side(h)
        at = _column(nest, x.source, h)
        position = x.index[at]
        if not isinstance(position, Affine) or r.row in names(position):
            raise UnsupportedError(f"`{x}` is no column")
        found[s.stmt] = position
    return found


def _column(nest: LoopNest, buffer: str, h: Held) -> int:
    """The dimension of the registers `buffer` that its columns are."""
    for s, _ in placed(nest.body, Kind.ATOM):
        for x in (s.target, *loads(s.expr)):
            for d, p in enumerate(x.index if x.source == buffer else ()):
                if len(h.column) == 1 and p == affine(h.column[0][0]):
                    return d
    raise UnsupportedError(f"{buffer} is nowhere gone through")


def lines(loops: tuple[For, ...], s: Store, scope: Scope, also: tuple[Affine, ...]) -> list[str]:
    """The text of such a statement; `also`: tests beside the bounds of its loop. All lanes of a warp take part."""
    x, r = s.expr, scope.tiles.rows[s.target.source]
    assert isinstance(x, Load)
    h, column = scope.tiles.held[x.source], scope.tiles.handed[s.stmt]
    tests = tests_of(loops, also, scope)
    tile, count, one = _tiles(x, scope)
    # { column -> [the element of those that a lane has of the row, the lane of those that have it] }, see `side_by_side`
    near, mine = lanes.side_by_side(h), of_row(h, r)
    e, owner = quasi("mod", column, affine(near)), quasi("div", column, affine(near))
    if near < len(mine):
        e, owner = e + quasi("div", column, affine(near * r.over)) * near, quasi("mod", owner, affine(r.over))
    me = lane_of(r.warp, scope)
    first = f"{me} / {r.over} * {r.over}" if r.step == 1 else f"{me} - {me} / {r.step} % {r.over} * {r.step}"
    kind, write = STORED[x.dtype.name], f"{element(s.target, {}, scope)} = pop_v;"
    # of a unit that has all its words at once these are handed on: no element has a register to itself then
    together = 2 if h.atom.b_map is None and x.dtype.bytes_ == _HALF and near % 2 == 0 else 1

    def value(k: int) -> str:
        c = Affine() + affine("c") * together + k
        tile_ = f"({natural(quasi('div', c, affine(len(mine))), {'c': 'pop_c'})})"
        inner = replace(scope, names={**scope.names, _TILE: tile_})
        register = natural(_register(mine, near, c), {"c": "pop_c"})
        return f"{scope.names[x.source]}[{offset(one, {}, inner).c}][{register} + {r.every} * pop_r]"

    column = tile * len(mine) + e
    chosen = index(column if together == 1 else quasi("div", column, affine(2)), scope.names).c
    word = value(0) if together == 1 else f"pop_pair({value(0)}, {value(1)})"
    handed = f"pop_from(pop_mine, {first} + {index(owner * r.step, scope.names).at(13)})"
    half = f"({kind})({handed} >> 16 * {index(quasi('mod', column, affine(2)), scope.names).at(13)})"
    inside = [f"const {kind if together == 1 else 'pop_u32'} pop_mine = pop_chosen<{count * len(mine) // together}>({chosen}, "
              f"[&](const int pop_c) {{ return {word}; }});",
              f"const {kind} pop_v = {handed if together == 1 else half};",
              *([place_of_row(r, scope), f"if ({' && '.join(tests)}) {write}"] if tests else [write])]
    return [f"// {s.stmt}", *unrolled("pop_r", r.fragment.regs, inside)]


def _register(mine: tuple[int, ...], near: int, c: Affine) -> Affine:
    """The register of element c mod n of the n that a lane has of its first row."""
    e = quasi("mod", c, affine(len(mine)))
    if mine == tuple(range(len(mine))):
        return e
    if any(reg != k % near + k // near * mine[near] for k, reg in enumerate(mine)):
        raise UnsupportedError("a lane's elements of a row lie in no order")
    return quasi("mod", e, affine(near)) + quasi("div", e, affine(near)) * mine[near]


def _tiles(x: Load, scope: Scope) -> tuple[Affine, int, Load]:
    """Which of several tiles `x` is of, how many there are, and `x` in tile `pop_tile`."""
    b = scope.buffers[x.source]
    places, slots = [p for p in x.index if isinstance(p, Affine)], slots_of(x, b)
    several = [d for d, n in enumerate(slot_counts(b)) if not (slots[d].is_constant or n == affine(1))]
    if len(several) > 1:
        raise UnsupportedError(f"`{x}` chooses among tiles in two ways")
    if not several:
        return Affine(), 1, x
    d = several[0]
    one = Load(x.source, (*places[:d], affine(_TILE) * b.dims[d][1], *places[d + 1:]), x.dtype)
    return slots[d], slot_counts(b)[d].const, one
