"""Sums of products through matrix tiles: sixteen iterations of a serial loop around dot products are a product of tiles.

    for k in steps of F { for p { acc[p, v] += a[p, k + f] * b[k, v, f] } }     p rows, v lanes, f the F steps of a lane

Of sixteen iterations the left operand has 64 bytes for each p, and the right one sixteen rows of 64 bytes for each vector of v:
they are tiles as they lie in memory. Sums are tiles while such loops run, and lie on the stack around them (`sums.py`). What is
left of the depth is a product of tiles too: operands are copied to where zeros follow them; so are rows, where some are missing,
unless they are of a copy with room behind it (`Buffer.beyond`).

LLVM finds the registers of tiles, writes their configuration and puts it before the loop, if they are values of type `x86_amx`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyop.codegen.cpu.rolled import has_rows_last, is_of_tiles
from polyop.codegen.llvm.addresses import Place, locate, run_along
from polyop.codegen.llvm.index import index
from polyop.codegen.llvm.masked import masked_load
from polyop.codegen.llvm.pointers import gep, strides
from polyop.codegen.llvm.rounds import go_round
from polyop.codegen.llvm.state import Axis, State
from polyop.codegen.llvm.sums import LINE, height, load_tile, put, taken, tile_rows
from polyop.codegen.llvm.types import Int, alignment
from polyop.ir.dots import TILE, Matrix, matrix, product, sided
from polyop.ir.expr import Affine, Load, affine, names
from polyop.ir.loops import For, Kind, Space, Store

Branch = Callable[[State, str, Callable[[], None], Callable[[], None]], None]


@dataclass(frozen=True, eq=False)
class _Tiles:
    """A serial loop around the store `n` that tiles can carry out, in the rows `row` and the steps of a lane `fine`."""

    loop: For
    n: Store
    row: For
    fine: For
    left: Load
    right: Load
    instruction: Matrix


def emit_tiles(s: State, n: For, lower: Int, upper: Int, branch: Branch) -> bool:
    """Carry out `n` with tiles, if they can do it."""
    t = _tiles(s, n)
    if t is None:
        return False
    b, name = s.b, t.n.target.source
    # trips, not what lies between the bounds: the last trip of { k < K - 1 } in steps of 2 begins one before the end
    count = b.floor_div(b.extreme("max", b.add(b.sub(upper, lower), n.step - 1), 0), n.step)
    if not t.fine.is_full:
        def one(at: str, given: list[str]) -> list[str]:
            keep, s.env = s.env, {**s.env, n.index: at}
            steps = index(s, t.fine.upper, {})
            s.env = keep
            return _last(s, t, at, steps, given)

        put(s, name, go_round(s, lower, upper, n.step, _typed(taken(s, name)), one))
        return True
    tiles = b.floor_div(count, TILE)
    end, rest = b.add(lower, b.mul(tiles, TILE * n.step)), b.sub(count, b.mul(tiles, TILE))
    has_all = t.row.upper == affine(height(s, name)) or _has_rows_beyond(s, t)

    def whole(at: str, given: list[str]) -> list[str]:
        return _step(s, t, at, given) if has_all else _last(s, t, at, None, given)

    put(s, name, go_round(s, lower, end, n.step * TILE, _typed(taken(s, name)), whole))

    def last() -> None:
        put(s, name, _last(s, t, end, b.mul(rest, n.step), taken(s, name)))

    branch(s, b.compare("sgt", rest, 0), last, lambda: None)
    return True


def _has_rows_beyond(s: State, t: _Tiles) -> bool:
    """Whether the left operand is a copy with room behind it, so that rows which do not exist may be read there."""
    beyond = s.nest.buffer(t.left.source).beyond
    return has_rows_last(t.left, t.row.index) and beyond >= height(s, t.n.target.source) - 1


def _typed(tiles: list[str]) -> list[tuple[str, str]]:
    return [("x86_amx", x) for x in tiles]


def _tiles(s: State, n: For) -> _Tiles | None:
    """What tiles have to do in `n`; None if they cannot."""
    match n.body:
        case (For(kind=Kind.SERIAL, body=(For(kind=Kind.ROWS, body=(Store() as store,)) as fine,)) as row,):
            pass
        case _:
            return None
    nest, factors = s.nest, product(store.expr)
    if nest.buffer(store.target.source).space != Space.STACK or s.lanes is None or s.rows or s.active or factors is None:
        return None
    if not is_of_tiles(nest, s.shared.target, store, (n, row, fine)):
        return None
    left, right = sided(store, factors)
    found = matrix(s.shared.target, store.target.dtype, left.dtype, right.dtype)
    places = (*left.index, *right.index)
    if found is None or any(not isinstance(p, Affine) or _is_bent(p, (row.index, n.index)) for p in places):
        return None
    t = _Tiles(n, store, row, fine, left, right, found)
    close = _open(s, t, 0, 0)
    first, second = locate(s, left), locate(s, right)
    fits = not first.lanes and second.stride == fine.extent and run_along(s, right, fine.index) == 1
    fits = fits and run_along(s, right, row.index) == 0
    close()
    return t if fits else None


def _is_bent(p: Affine, indices: tuple[str, ...]) -> bool:
    """Whether one of `indices` stands in a quotient, remainder, minimum or maximum of `p`."""
    return any(not isinstance(a, str) and names(Affine(((a, 1),))) & set(indices) for a, _ in p.terms)


def _open(s: State, t: _Tiles, at: Int, row: Int) -> Callable[[], None]:
    """Be at this iteration of the loop, in this row, with the steps of a lane open; what ends that."""
    keep = s.env, s.loops
    s.env, s.loops = {**s.env, t.loop.index: at, t.row.index: row}, (*s.loops, t.loop)
    assert t.fine.extent is not None
    s.open_axis(Axis(t.fine.index, t.fine.kind, t.fine.extent, None, t.fine.upper))

    def close() -> None:
        s.close_axis(t.fine.index)
        s.env, s.loops = keep

    return close


def _at(s: State, t: _Tiles, x: Load, at: Int, row: Int) -> tuple[Place, str]:
    """Where `x` is in this iteration and row."""
    close = _open(s, t, at, row)
    place = locate(s, x)
    p = place.base(dict.fromkeys(s.axes, 0), None)
    close()
    return place, p


def _step(s: State, t: _Tiles, at: Int, sums: list[str]) -> list[str]:
    """Sixteen iterations from `at` on, of all rows: operands are where they are."""
    place, first = _at(s, t, t.left, at, 0)
    apart = _apart(s, place, t.row.index, 1)
    return _products(s, t, first, apart, *_rights(s, t, at), sums)


def _rights(s: State, t: _Tiles, at: Int) -> tuple[str, Int]:
    """Where the right operand's tiles begin, and how far their rows are apart."""
    place, first = _at(s, t, t.right, at, 0)
    return first, _apart(s, place, t.loop.index, t.loop.step)


def _last(s: State, t: _Tiles, at: Int, elements: Int | None, sums: list[str]) -> list[str]:
    """The same of the rows that exist, and of so many elements of the depth, if that is not None: of copies, 0 beyond them."""
    b, name, vectors = s.b, t.n.target.source, s.vectors()
    size, steps = t.left.dtype.bytes_, t.loop.step
    lefts = b.pure(f"alloca [{height(s, name) * LINE} x i8], align {LINE} ; {name} left")
    mask = None if elements is None else _ones(s, b.mul(elements, size))

    def row(p: str, _: list[str]) -> list[str]:
        _copy(s, _at(s, t, t.left, at, p)[1], gep(s, "i8", lefts, b.mul(p, LINE)), mask)
        return []

    go_round(s, 0, index(s, t.row.upper, {}), 1, [], row)
    if elements is None:
        return _products(s, t, lefts, LINE, *_rights(s, t, at), sums)
    rights = b.pure(f"alloca [{TILE * vectors * LINE} x i8], align {LINE} ; {name} right {vectors}")

    def step(q: str, _: list[str]) -> list[str]:
        first = _at(s, t, t.right, b.add(at, b.mul(q, steps)), 0)[1]
        left = b.extreme("min", b.extreme("max", b.sub(elements, b.mul(q, steps)), 0), steps)
        some = b.do(f"mul i64 {_bits(s, b.mul(left, size))}, {0x1111111111111111}")  # of each lane's four bytes so many
        for v in range(vectors):
            to = gep(s, "i8", rights, b.add(b.mul(q, vectors * LINE), v * LINE))
            _copy(s, gep(s, "i8", first, v * LINE), to, b.do(f"bitcast i64 {some} to <{LINE} x i1>"))
        return []

    go_round(s, 0, TILE, 1, [], step, runs=True)
    return _products(s, t, lefts, LINE, rights, vectors * LINE, sums)


def _bits(s: State, count: Int) -> str:
    """A number whose lowest `count` bits are set, fewer than 64."""
    return s.b.do(f"sub i64 {s.b.do(f'shl i64 1, {count}')}, 1")


def _ones(s: State, count: Int) -> str:
    """A mask of the first `count` bytes of a line."""
    return s.b.do(f"bitcast i64 {_bits(s, count)} to <{LINE} x i1>")


def _copy(s: State, p: str, to: str, mask: str | None) -> None:
    """Copy a line, with zeros where the mask has none."""
    line = f"<{LINE} x i8>"
    x = masked_load(s, "i8", p, mask, LINE) if mask else s.b.do(f"load {line}, ptr {p}, align 1")
    s.b.line(f"store {line} {x}, ptr {to}, align {LINE}")


def _products(s: State, t: _Tiles, left: str, down: Int, right: str, along: Int, sums: list[str]) -> list[str]:
    """Sums with the products of tiles of lefts, whose rows lie `down` bytes apart, and rights, whose rows lie `along` apart.

    Notes   Of one row of tiles each right one is used once, and is loaded there: with all of four at once nine tiles would be
            alive, and LLVM ends the process where it cannot make eight of them.
    """
    b, vectors = s.b, s.vectors()
    tall, rows = tile_rows(s, t.n.target.source), len(sums) // vectors

    def loaded(v: int) -> str:
        return load_tile(s, TILE, gep(s, "i8", right, v * LINE), along)

    rights = [loaded(v) for v in range(vectors)] if rows > 1 else []
    new: list[str] = []
    for r in range(rows):  # rows across lines: a third faster than all of the left one first
        x = load_tile(s, tall, gep(s, "i8", left, b.mul(down, r * TILE)), down)
        new += [b.call("x86_amx", t.instruction.intrinsic, ("i16", tall), ("i16", LINE), ("i16", LINE),
                       ("x86_amx", sums[r * vectors + v]), ("x86_amx", x), ("x86_amx", rights[v] if rights else loaded(v)))
                for v in range(vectors)]
    return new


def _apart(s: State, place: Place, index: str, by: int) -> Int:
    """Bytes that `place` moves on as `index` does by `by`."""
    total: Int = 0
    for p, step, (_, unit) in zip(place.load.index, strides(s, place.buffer), place.buffer.dims, strict=True):
        assert isinstance(p, Affine)
        total = s.b.add(total, s.b.mul(step, p.factor(index) * by // unit))
    return s.b.mul(total, alignment(place.element))
