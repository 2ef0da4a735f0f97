"""Which registers of a lane hold what beside the tiles of a matrix unit: values of rows, and pieces of an operand.

Where a statement goes through the elements of a unit's results, each lane takes those that it holds, so all else that the
statement finds in registers must lie there, too:

    elements   registers with an element for each of a tile's, which lie as the results do
    rows       registers with one for each row, which all lanes have that hold elements of it: { [lane, reg] -> [row] }
    pieces     an operand of the next product that is made of elements of such results:
                   { [lane, reg] -> [row, k] } of the operand = { [lane, reg'] -> [row, k'] } of results, k = k' + first column

All three are shown here lane by lane, for a warp is finite, or refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache

from polyop.codegen.c.index import natural
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.held import Held, Rows
from polyop.ir.atoms import Fragment
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, affine, evaluate, loads, names, quasi, substitute
from polyop.ir.loops import For, Kind, LoopNest, Space, Store, placed


@cache
def rows_of(h: Held) -> Rows:
    """The registers for rows beside the results `h`.

    Raises  UnsupportedError, if lanes have rows in no order, or share them with no neighbours.
    """
    f, warp, side = h.fragment, h.atom.warp, h.row
    if len(side) != 1:
        raise UnsupportedError(f"rows of {h.atom.name} are counted by several loops")
    mine = [[f.at(lane, r)[0] for r in range(f.regs)] for lane in range(warp)]
    count = len(set(mine[0]))
    every = next((r for r in range(f.regs) if mine[0][r] != mine[0][0]), f.regs)  # registers from one row to the next
    fragment = Fragment(substitute(f.row, {"reg": affine("reg") * every}), Affine(), count)
    if any(held[r] != held[r // every % count * every] for held in mine for r in range(f.regs)):
        raise UnsupportedError(f"{h.atom.name} leaves rows to lanes in no order")
    alike = [lane for lane in range(warp) if mine[lane] == mine[0]]
    over, step = len(alike), alike[1] if len(alike) > 1 else 1
    is_digit = over & (over - 1) == 0 and alike == [step * k for k in range(over)]
    # lanes that have one row have all rows alike, and differ in that digit alone
    first = [lane - lane // step % over * step for lane in range(warp)]
    if not is_digit or any((first[x] == first[y]) != bool({*mine[x]} & {*mine[y]}) for x in range(warp) for y in range(warp)):
        raise UnsupportedError(f"{h.atom.name} leaves a row to lanes that are no neighbours")
    if any(mine[lane] != mine[first[lane]] for lane in range(warp)):
        raise UnsupportedError(f"{h.atom.name} leaves rows to lanes in several orders")
    return Rows(fragment, side[0][0], warp, every, over, step)


def find_rows(nest: LoopNest, held: Mapping[str, Held], made: Container[str]) -> dict[str, Rows]:
    """The registers for rows of a nest whose tiles are `held`; `made`: of what operands are made, which are others.

    Raises  UnsupportedError, if a statement on a tile's elements finds some in registers that lie otherwise.
    """
    found: dict[str, Rows] = {}
    for s, loops in placed(nest.body, Kind.ATOM):
        sides = {f.index: f.extent for f in loops}
        for x in (s.target, *loads(s.expr)):
            if nest.buffer(x.source).space != Space.REG or x.source in held or x.source in made:
                continue
            if any(isinstance(p, Affine) and names(p) & sides.keys() for p in x.index):
                found[x.source] = _rows_at(x, sides, held, found)
    return found


def _rows_at(x: Load, sides: Mapping[str, int | None], held: Mapping[str, Held], found: Mapping[str, Rows]) -> Rows:
    here = [(i, sides.get(i or "")) for i in _sides_of(x, sides)]
    fitting = {rows_of(h) for h in held.values() if h.fragment is h.atom.c_map and tuple(here) == h.row}
    fitting |= {found[x.source]} if x.source in found else set()
    if len(fitting) != 1:
        raise UnsupportedError(f"`{x}` lies with no lanes that a unit's results lie with")
    return fitting.pop()


def _sides_of(x: Load, sides: Iterable[str]) -> list[str | None]:
    """The sides of a tile by which `x` is indexed, in order; None for a position with more in it than a side."""
    return [p.name for p in x.index if isinstance(p, Affine) and names(p) & {*sides}]


def require_own(s: Store, loops: tuple[For, ...], held: Mapping[str, Held], rows: Mapping[str, Rows]) -> None:
    """Raises  UnsupportedError, if `s`, which goes over a tile's elements, finds or leaves some with another lane."""
    sides = {f.index: f.extent for f in loops}
    for x in (s.target, *loads(s.expr)):
        if h := held.get(x.source):
            if [(i, sides.get(i or "")) for i in _sides_of(x, sides)] != [*h.row, *h.column]:
                raise UnsupportedError(f"`{x}` is not what a lane holds of {h.atom.name}")
        elif (r := rows.get(x.source)) and _sides_of(x, sides) != [r.row]:
            raise UnsupportedError(f"`{x}` is not the row that a lane holds")


@dataclass(frozen=True, slots=True)
class Piece:
    """An element of an operand's tile: the register `reg` of results, in the atom that is `column` columns further on."""

    column: int
    reg: int


@cache
def pieces(operand: Fragment, results: Fragment, columns: int, warp: int, first: int = 0) -> tuple[Piece, ...]:
    """Where each register of an operand lies in registers of results with so many `columns` in an atom, whose rows it has.

    first   the column at which the operand begins

    Raises  UnsupportedError, if some lane does not hold it there.
    """
    def held(lane: int) -> dict[tuple[int, int], int]:
        return {results.at(lane, r): r for r in range(results.regs)}

    found = []
    by_lane = [held(lane) for lane in range(warp)]
    for reg in range(operand.regs):
        row, k = operand.at(0, reg)
        atom = (first + k) // columns * columns
        mine = by_lane[0].get((row, first + k - atom))
        ours = (by_lane[lane].get((y, first + x - atom)) for lane in range(warp) for y, x in (operand.at(lane, reg),))
        if mine is None or any(r != mine for r in ours):
            raise UnsupportedError("lanes hold an operand otherwise than the results that it is made of")
        found.append(Piece(atom, mine))
    return tuple(found)


def lane_of(warp: int, scope: Scope) -> str:
    """The number of a lane among the `warp` that hold a tile together, in C."""
    return "(int)pop_lane()" if warp == scope.tiles.warp else f"(int)(pop_thread() % {warp})"


def row_register(r: Rows, register: str) -> Affine:
    """The register of a row, for the register of an element of it."""
    return quasi("mod", quasi("div", affine(register), affine(r.every)), affine(r.fragment.regs))


def of_element(r: Rows, count: int) -> Affine:
    """The register of one `element` of the `count` that a lane has of a `row`."""
    e, every = affine("element"), affine(r.every)
    near = e if count <= r.every else quasi("mod", e, every) + quasi("div", e, every) * (r.every * r.fragment.regs)
    return near + affine("row") * r.every


def on_elements(s: Store, scope: Scope) -> Scope:
    """What is known in the text of `s` on an element: the register of its row is that of the element's `pop_r`."""
    found = {r for x in (s.target, *loads(s.expr)) if (r := scope.tiles.rows.get(x.source))}
    if len(found) > 1:
        raise UnsupportedError(f"`{s.target}` has rows of two tiles")
    for r in found:
        scope = replace(scope, row=f"({natural(row_register(r, 'reg'), {'reg': 'pop_r'})})")
    return scope


@cache
def side_by_side(h: Held) -> int:
    """How many neighbours in a row each lane has, n of `over` lanes: column k is element k mod n + n floor(k / (n over)) of those
    that lane floor(k / n) mod over has of the row.

    Raises  UnsupportedError, if it is not so.
    """
    r = rows_of(h)
    mine = of_row(h, r)
    columns = len(mine) * r.over

    def lies(near: int, lane: int, k: int) -> bool:
        first = lane - lane // r.step % r.over * r.step
        owner, e = first + k // near % r.over * r.step, mine[k % near + k // (near * r.over) * near]
        return all(h.fragment.at(owner, e + row * r.every) == (h.fragment.at(lane, row * r.every)[0], k)
                   for row in range(r.fragment.regs))

    for near in (n for n in range(1, len(mine) + 1) if len(mine) % n == 0):
        if all(lies(near, lane, k) for lane in range(r.warp) for k in range(columns)):
            return near
    raise UnsupportedError(f"{h.atom.name} leaves the columns of a row to lanes in no order")


def of_row(h: Held, r: Rows) -> tuple[int, ...]:
    """The registers of the elements that a lane has of its first row; of the next one they are `every` further on."""
    return tuple(x for x in range(h.fragment.regs) if evaluate(row_register(r, "reg"), {"reg": x}) == 0)
