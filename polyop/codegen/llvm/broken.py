"""Vectors that lie in pieces: lanes over two indices, of which one has its neighbours side by side, see `codegen/cpu/pairs.py`.

    lanes 0 to 23 of Z[q, p, 0..], 24 to 47 of Z[q + 1, p, 0..]:  16 | 8 and 8 | 16  are three vectors, in four pieces
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.llvm.addresses import Place
from polyop.codegen.llvm.convert import to_memory
from polyop.codegen.llvm.expressions import operand
from polyop.codegen.llvm.index import existing
from polyop.codegen.llvm.loads import lanes_part, scalar_part
from polyop.codegen.llvm.masked import part, store_vector
from polyop.codegen.llvm.pieces import lanes_between, pieces_of
from polyop.codegen.llvm.pointers import gep, is_large
from polyop.codegen.llvm.reach import row_stride
from polyop.codegen.llvm.repeat import points, row_exists, rows_needed
from polyop.codegen.llvm.state import Active, Axis, Point, State, Value, only_if
from polyop.codegen.llvm.types import alignment, shuffle_mask, vector
from polyop.ir.loops import Store


def store_in_pieces(s: State, n: Store, x: Value, place: Place, conditions: Active) -> None:
    """Carry out `n`, which only writes: past the caches, where rows follow each other in memory and fill whole lines."""
    assert place.runs is not None
    whole = _whole_lines(s, n, place, conditions)
    for point in points(s, rows_needed(s, n, x, place.rows) - ({whole.axis.index} if whole else set())):
        if whole is None:
            exists = s.b.both(row_exists(s, s.rows, point), scalar_part(s, conditions, point))
            _write(s, x, place, conditions, point, exists)
            continue
        rows = [{**point, whole.axis.index: r} for r in range(whole.axis.extent)]
        texts = [[_text(s, x, place, at, v) for v in s.pieces()] for at in rows]
        p = place.base(rows[0], None)
        address = s.b.do(f"ptrtoint ptr {p} to i64")
        low = s.b.pure(f"and i64 {address}, {whole.bytes_ - 1}", address)
        past, plain, done = s.b.new_label(), s.b.new_label(), s.b.new_label()
        s.b.line(f"br i1 {s.b.both(s.b.compare('eq', low, 0), whole.test)}, label %{past}, label %{plain}")
        s.label(past)
        _write_lines(s, place, texts, p)
        s.b.line(f"br label %{done}")
        s.label(plain)
        for at in rows:
            _write(s, x, place, conditions, at, None)
        s.b.line(f"br label %{done}")
        s.label(done)
        s.streams = True


@dataclass(frozen=True, slots=True)
class _Lines:
    """Rows `axis` may make up whole lines: where `test` holds, and the first of them begins at a multiple of `bytes_`."""

    axis: Axis
    test: str
    bytes_: int


def _whole_lines(s: State, n: Store, place: Place, conditions: Active) -> _Lines | None:
    """The rows that fill lines together, if all of them and all lanes exist and the result is only written.

        { [p, v] -> 24 p + v : 0 <= p < 4 and 0 <= v < 24 }      six vectors of 16
    """
    assert place.runs is not None
    extent, further = place.runs
    lanes = s.lanes
    if not n.stream or conditions or lanes is None or lanes.piece is not None or lanes.valid is not None or len(s.rows) != 1:
        return None
    axis, = s.rows
    step = row_stride(s, place, axis)
    if axis.valid is not None or step is None or lanes.extent % extent or axis.extent * extent % s.width:
        return None
    bytes_ = s.width * alignment(place.element)
    apart = s.b.mul(further, alignment(place.element))
    low = apart % bytes_ if isinstance(apart, int) else s.b.pure(f"and i64 {apart}, {bytes_ - 1}", apart)
    test = s.b.both(s.b.compare("eq", step, extent), s.b.both(s.b.compare("eq", low, 0), is_large(s, place.buffer)))
    return _Lines(axis, test or "true", bytes_)


def _text(s: State, x: Value, place: Place, point: Point, v: int) -> str:
    return to_memory(operand(s, x, point, v, True), place.buffer.dtype, s.shared.target).text


def _write_lines(s: State, place: Place, texts: list[list[str]], p: str) -> None:
    """The rows of each run, one after the other, as vectors at whole multiples of their size."""
    assert place.runs is not None and s.lanes is not None
    extent, further = place.runs
    w, t, bytes_ = s.width, vector(place.element, s.width), s.width * alignment(place.element)
    for q in range(s.lanes.extent // extent):
        for line in range(len(texts) * extent // w):
            from_: dict[str, dict[int, int]] = {}
            for i in range(w):
                row, e = divmod(line * w + i, extent)
                v, lane = divmod(q * extent + e, w)
                from_.setdefault(texts[row][v], {})[i] = lane
            at = gep(s, place.element, p, s.b.add(s.b.mul(q, further), line * w))
            s.b.line(f"store {t} {_gathered(s, t, from_)}, ptr {at}, align {bytes_}, !nontemporal !2")


def _gathered(s: State, t: str, from_: dict[str, dict[int, int]]) -> str:
    """The vector whose lane i is `from_[x][i]` of x."""
    w, out = s.width, ""
    for x, lanes in from_.items():
        if len(lanes) == w and all(i == lane for i, lane in lanes.items()):
            return x
        order = shuffle_mask([lanes[i] + (w if out else 0) if i in lanes else i for i in range(w)])
        out = s.b.do(f"shufflevector {t} {out or x}, {t} {x if out else 'poison'}, {order}")
    return out


def _write(s: State, x: Value, place: Place, conditions: Active, point: Point, exists: str | None) -> None:
    """The vectors of one copy: a piece that is a half of its vector, or a quarter, is a vector of its own."""
    assert place.runs is not None
    texts = [_text(s, x, place, point, v) for v in s.pieces()]
    masks = [s.b.both(existing(s, v), lanes_part(s, conditions, point, v), s.width) for v in s.pieces()]
    p = place.base(point, None)
    with only_if(s, exists):
        for v, text, mask in zip(s.pieces(), texts, masks, strict=True):
            for y in pieces_of(s, place.runs, v):
                if mask is None and y.first % y.lanes == 0 and y.lanes & (y.lanes - 1) == 0:
                    piece = part(s, place.element, s.width, text, y.first, y.lanes)
                    store_vector(s, place.element, y.lanes, piece, gep(s, place.element, p, y.at), None)
                else:
                    here = s.b.both(mask, lanes_between(s, y), s.width)
                    store_vector(s, place.element, s.width, text, gep(s, place.element, p, s.b.add(y.at, -y.first)), here)
