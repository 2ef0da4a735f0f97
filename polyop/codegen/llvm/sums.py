"""Where the sums of matrix tiles are: in tiles, or on the stack, row by row, for all else that uses them.

They come into tiles when a loop of products needs them, and stay there until something else asks. So zeros at the beginning are
never stored, and loops around loops of products carry tiles round.
"""

from __future__ import annotations

from dataclasses import replace

from polyop.codegen.llvm.builder import Code
from polyop.codegen.llvm.pointers import base_pointer, gep
from polyop.codegen.llvm.state import State, Sums
from polyop.codegen.llvm.types import Int
from polyop.ir.dots import TILE
from polyop.ir.expr import Const, loads
from polyop.ir.loops import For, Node, Space, Store, stores

LINE = 64  # bytes of a row of a tile


def height(s: State, name: str) -> int:
    """Rows of all tiles of sums together."""
    return s.nest.buffer(name).dims[0][0].const


def tile_rows(s: State, name: str) -> int:
    return min(TILE, height(s, name))


def load_tile(s: State, rows: int, place: str, apart: Int) -> str:
    """A tile of lines that lie `apart`."""
    return s.b.call("x86_amx", "llvm.x86.tileloadd64.internal", ("i16", rows), ("i16", LINE), ("ptr", place), ("i64", apart))


def _pitch(s: State, name: str) -> int:
    b = s.nest.buffer(name)
    return b.dims[1][0].const * b.dtype.bytes_


def _places(s: State, name: str, vectors: int) -> list[str]:
    """Where each tile begins on the stack."""
    p, down = base_pointer(s, s.nest.buffer(name)), TILE * _pitch(s, name)
    return [gep(s, "i8", p, r * down + v * LINE) for r in range(-(-height(s, name) // TILE)) for v in range(vectors)]


def taken(s: State, name: str) -> list[str]:
    """The sums as tiles."""
    if name not in s.sums:
        s.sums[name] = _loaded(s, name, s.vectors())
    return list(s.sums[name].tiles)


def _loaded(s: State, name: str, vectors: int) -> Sums:
    rows, apart = tile_rows(s, name), _pitch(s, name)
    return Sums(tuple(load_tile(s, rows, p, apart) for p in _places(s, name, vectors)), vectors, True)


def put(s: State, name: str, tiles: list[str]) -> None:
    """The sums are these tiles now."""
    s.sums[name] = Sums(tuple(tiles), s.vectors(), False)


def settle(s: State, body: tuple[Node, ...]) -> None:
    """What `body` does with sums it does on the stack."""
    if not s.sums:
        return
    for name in sorted(s.sums.keys() & _touched(body)):
        x = s.sums[name]
        if not x.is_stored:
            for p, tile in zip(_places(s, name, x.vectors), x.tiles, strict=True):
                s.b.call("void", "llvm.x86.tilestored64.internal", ("i16", tile_rows(s, name)), ("i16", LINE), ("ptr", p),
                         ("i64", _pitch(s, name)), ("x86_amx", tile))
        s.sums[name] = replace(x, is_stored=True)
        if any(n.target.source == name for n in stores(body)):
            del s.sums[name]


def _touched(body: tuple[Node, ...]) -> set[str]:
    return {x.source for n in stores(body) for x in (n.target, *loads(n.expr))}


def start_at_zero(s: State, n: For) -> bool:
    """Whether `n` does nothing but begin sums, for p { acc[p, v] = 0 }, which then are tiles of zeros."""
    match n.body:
        case (Store(target=target, reduce=None, expr=Const(value=0)),) if s.lanes is not None and not s.active:
            if s.nest.buffer(target.source).space != Space.STACK or target.source not in s.shared.tiled:
                return False
            zero = [s.b.call("x86_amx", "llvm.x86.tilezero.internal", ("i16", tile_rows(s, target.source)), ("i16", LINE))
                    for _ in range(-(-height(s, target.source) // TILE) * s.vectors())]
            put(s, target.source, zero)
            return True
    return False


def carried(s: State, n: For) -> tuple[str, ...]:
    """The sums that loops inside `n` add up."""
    if not s.shared.tiled:
        return ()
    inner = {x.target.source for f in n.body if isinstance(f, For) for x in stores((f,)) if x.reduce is not None}
    return tuple(sorted(inner & s.shared.tiled)) if s.lanes is not None and not s.rows else ()


def merged(s: State, ends: list[tuple[str, dict[str, Sums], Code]]) -> dict[str, Sums]:
    """The sums behind two ways: the last block of each, what it has, and where it may still write something."""
    out: dict[str, Sums] = {}
    for name in sorted(ends[0][1].keys() | ends[1][1].keys()):
        found = [sums.get(name) for _, sums, _ in ends]
        known = [x for x in found if x is not None]
        if len(known) == 2 and known[0].tiles == known[1].tiles:
            out[name] = replace(known[0], is_stored=all(x.is_stored for x in known))
        elif not all(x.is_stored for x in known):
            each = []
            for x, (_, _, tail) in zip(found, ends, strict=True):
                keep, s.b.code = s.b.code, tail
                each.append(x or _loaded(s, name, known[0].vectors))
                s.b.code = keep
            tiles = [s.b.do(f"phi x86_amx [ {a}, %{ends[0][0]} ], [ {b}, %{ends[1][0]} ]")
                     for a, b in zip(each[0].tiles, each[1].tiles, strict=True)]
            out[name] = Sums(tuple(tiles), known[0].vectors, False)
    return out
