"""Results of 16 bits that lanes exchange before they are stored, as C text: 32 bytes of a row at once, all that memory takes.

Four lanes have a row of 8 columns, two neighbours each: 4 bytes. So lanes 2 i and 2 i + 1 share two such tiles, side by side:

    before    lane 2 i      t: 0 1   t + 1: 0 1        lane 2 i + 1    t: 2 3   t + 1: 2 3          (from column 4 i on)
    after                   t: 0 1 2 3                                 t + 1: 0 1 2 3

    for t < 8 by 2 { for s < 4 by 2 { for e < 4 { o[e] = c[t + e / 2][s + e % 2]; }  pop_pairs(o);  pop_wide<4>(&C[m, n], o); } }

An atom of many columns has such tiles in its registers, others are neighbours in a loop over rows of atoms. All lanes of a warp
have the same answer to whether the whole tile is inside, but for rows that are left out (`c/whole.py`), which four lanes have, so
all come to the exchange. What is read where it is
written, of the same element, is read by one of two lanes before they exchange, and written by one of them behind that. Tiles
whose text is so long that it is rolled up (`roll.py`) are stored without.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from polyop.codegen.c import roll
from polyop.codegen.c import wide as cwide
from polyop.codegen.c.digits import digits
from polyop.codegen.c.index import bounded, natural
from polyop.codegen.c.lanes import lane_of, on_elements
from polyop.codegen.c.lines import unrolled, where
from polyop.codegen.c.place import STORED, element
from polyop.codegen.c.scope import Printed, Scope
from polyop.codegen.gpu.held import Held
from polyop.codegen.nested import one_store
from polyop.ir.atoms import Fragment
from polyop.ir.expr import Affine, Load, affine, loads, names, place, substitute_expr
from polyop.ir.loops import Buffer, For, Kind, Node, Space, Store

TILE, TOGETHER = 8, 4  # columns of a tile, and what a lane stores at once
_OUT, _FIRST, _TILE, _HALF, _NEXT = "pop_o", "pop_s", "pop_t", "pop_h", "pop_e"


@dataclass(frozen=True, slots=True)
class Pairs:
    """A store of results in the loops over a tile's sides, that goes two tiles of 8 columns at a time.

    held     the tile; along: the loop over neighbours
    tiles    the loop that counts tiles of 8 columns; None: the atom's registers do
    count    how many of them there are
    apart    the loops over sides of which not all may be inside: see `c/whole.py`
    """

    store: Store
    held: Held
    along: str
    tiles: For | None
    count: int
    apart: tuple[For, ...]


def found(loops: tuple[For, ...], s: Store, scope: Scope) -> Pairs | None:
    """How `s`, in `loops` over rows of atoms and the sides of one, goes in pairs; None, if it does not."""
    b = scope.buffers[s.target.source]
    unit = b.dense
    h = next((x for y in loads(s.expr) if (x := scope.tiles.held.get(y.source))), None)
    if unit is None or h is None or b.space in (Space.REG, Space.SHARED) or s.target.dtype.bytes_ != 2:
        return None
    if s.atomic or s.later or s.reduce is not None:
        return None
    (along, extent), last = h.column[-1], s.target.index[unit]
    if not _has_tiles(h.fragment, h.atom.warp) or not isinstance(last, Affine) or last.factor(along) != 1:
        return None
    apart = tuple(f for f in loops if f.kind == Kind.ATOM and f.index != along)
    most = roll.WHOLE // roll.of_one(s) // h.fragment.regs  # tiles that are written out
    if extent % (2 * TILE) == 0:
        return Pairs(s, h, along, None, h.fragment.regs // 4, apart) if most else None
    outer = [f for f in loops if f.kind == Kind.ROWS]
    others = [p for d, p in enumerate(s.target.index) if d != unit and isinstance(p, Affine)]
    if not outer or h.column != ((along, TILE),) or last.factor(outer[-1].index) != TILE or outer[-1].step != 1:
        return None
    if (outer[-1].extent or 1) % 2 or (outer[-1].extent or 1) > most or any(outer[-1].index in names(p) for p in others):
        return None
    return Pairs(s, h, along, outer[-1], outer[-1].extent or 0, apart)


def of_rows(n: For, scope: Scope) -> Pairs | None:
    """The same for the rows of atoms `n`, where nothing but an atom stands in them; None, if its registers have the tiles."""
    atoms, s = one_store(n.body, Kind.ATOM)
    p = found((n, *atoms), s, scope) if atoms and s else None
    return p if p and p.tiles else None


@cache
def _has_tiles(f: Fragment, warp: int) -> bool:
    """Whether registers go by tiles of 8 columns and two rows, each a row's pair of neighbours.

        { [lane, r] -> [row(lane / 4, r mod 4 / 2), 8 (r / 4) + 2 (lane mod 4) + r mod 2] }
    """
    return f.regs % 4 == 0 and all(
        f.at(lane, r) == (f.at(lane - lane % 4, r % 4 // 2 * 2)[0], TILE * (r // 4) + 2 * (lane % 4) + r % 2)
        for lane in range(warp) for r in range(f.regs))


def wide(p: Pairs, scope: Scope) -> tuple[tuple[Load, ...], For, Scope]:
    """What is stored at once, as neighbours along rows of a loop."""
    env = {p.along: affine(p.along) + affine(_NEXT)}
    rows = For(_NEXT, Affine(), affine(TOGETHER), (), kind=Kind.ROWS, extent=TOGETHER)
    return (place(p.store.target, env),), rows, _named(p, scope, TOGETHER)


def _named(p: Pairs, scope: Scope, step: int) -> Scope:
    mine = {_NEXT: _NEXT, _HALF: _HALF, _OUT: _OUT}
    out = Buffer(_OUT, p.store.target.dtype, ((affine(TOGETHER), 1),), Space.REG)
    return replace(on_elements(p.store, scope), names={**scope.names, **mine}, buffers={**scope.buffers, _OUT: out},
                   steps={**scope.steps, p.along: step})


def lines(p: Pairs, scope: Scope, printed: Printed) -> list[str]:
    """The stores of all tiles."""
    s, type_ = p.store, STORED[p.store.target.dtype.name]
    env = {p.along: affine(p.along) + affine(_NEXT)}
    mine = Load(_OUT, (affine(_HALF) * 2 + affine(_NEXT),), s.target.dtype)
    new = replace(s, target=mine, expr=substitute_expr(s.expr, env))
    rows = For(_NEXT, Affine(), affine(2), (new,), kind=Kind.ROWS, extent=2)
    inner = _named(p, scope, 2)
    base = "" if p.tiles else f"4 * ({_TILE} + {_HALF}) + "

    def one(body: tuple[Node, ...], known: Scope) -> list[str]:
        stores = (n for n in body if isinstance(n, Store))
        return [f"const int pop_r = {base}{_FIRST} + {_NEXT};", *(x for n in stores for x in printed(n, known))]

    wide = cwide.moves(rows, inner, one)
    is_ahead = wide is not None and bool(wide.reads) and not wide.tests and p.count > 2
    plain = unrolled(_NEXT, 2, one((new,), inner))
    tests = [t for f in p.apart for t in bounded(f, scope.names)]
    reads = any(scope.buffers[x.source].space != Space.REG for x in loads(s.expr))
    if wide is not None and is_ahead:
        now = f"[{_TILE} / 2 % 2][{_FIRST} + {_HALF}]"
        take = [*(f"const auto& {a[1]} = {a[1]}_ahead{now};" for _, a, _ in wide.reads), *wide.work]
    else:
        take = cwide.run(rows, inner, [], one) or plain
    taken = [*_here(p, f"{_TILE} + {_HALF}", scope), *where(tests if reads else [], take)]
    given = [*_place(p, f"{_TILE} + (int)pop_lane() % 2", "(int)pop_lane() % 4 / 2 * 4", scope),
             *where(tests, [f"pop_wide<{TOGETHER}>(&{element(s.target, {}, scope)}, {_OUT});"])]
    turn = [f"alignas({TOGETHER * 2}) {type_} {_OUT}[{TOGETHER}];", *unrolled(_HALF, 2, taken),
            f"pop_pairs({_OUT});", "{", *("    " + x for x in given), "}"]
    body = unrolled(_FIRST, 4, turn, 2)
    if wide is None or not is_ahead:
        return unrolled(_TILE, p.count, body, 2)
    rooms = [cwide.declared((a[0], f"{a[1]}_ahead[2]", *a[2:]), 4) for _, a, _ in wide.reads]
    later = where([f"{_TILE} + 2 < {p.count}"], _reads(p, wide, f"{_TILE} + 2", tests, scope))
    lines = [*rooms, *_reads(p, wide, "0", tests, scope), *unrolled(_TILE, p.count, [*later, *body], 2)]
    return ["{", *("    " + x for x in lines), "}"]


def _reads(p: Pairs, wide: cwide.Moves, tile: str, tests: list[str], scope: Scope) -> list[str]:
    """What is read of memory for the two tiles from `tile` on, before stores of those in front of them: see `c/results.py`."""
    lines = []
    for at, (_, name, *_), moved in wide.reads:
        lines += [*at, f"auto& {name} = {name}_ahead[({tile}) / 2 % 2][{_FIRST} + {_HALF}];", *moved]
    return unrolled(_FIRST, 4, unrolled(_HALF, 2, [*_here(p, f"{tile} + {_HALF}", scope), *where(tests, lines)]), 2)


def _here(p: Pairs, tile: str, scope: Scope) -> list[str]:
    """Where in a tile the neighbours lie that a lane holds."""
    return _place(p, tile, "2 * ((int)pop_lane() % 4)", scope)


def _place(p: Pairs, tile: str, beside: str, scope: Scope) -> list[str]:
    """Where a lane is in a tile: in which row of it, and how far from its first column."""
    h = p.held
    row = natural(h.fragment.row, {"lane": lane_of(h.atom.warp, scope), "reg": _FIRST})
    column = beside if p.tiles else f"{TILE} * ({tile}) + {beside}"
    mine = [(p.tiles.index, tile)] if p.tiles else []
    return [f"const int {scope.names[i]} = {at};" for i, at in (*mine, *digits(h.row, row), *digits(h.column, column))]
