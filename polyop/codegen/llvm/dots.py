"""Sums of products through dot-product instructions: one Store under rows, lanes and a loop of a lane's few steps.

    acc[.., v] += a[.., f] * b[.., v, f]

With f along all of a rows loop, unit stride along f in both operands, and b's lanes as far apart as f has steps, the steps
of a lane are 32 bits that lie side by side: of b a vector of them is one load, and of a they are one scalar. Where what is added
up has the lanes, a has them, too: acc[.., v] += a[.., v, f] * b[.., v, f].
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.llvm.addresses import Place, locate, run_along
from polyop.codegen.llvm.index import splat
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.registers import key_of, register_axes
from polyop.codegen.llvm.repeat import points
from polyop.codegen.llvm.state import Axis, Point, RegKey, Shared, State
from polyop.codegen.llvm.types import alignment, constant, vector
from polyop.ir.dots import LEFT, RIGHT, Dot, dot, product, sided
from polyop.ir.expr import Affine, Load, affine, names
from polyop.ir.loops import For, If, IfData, Kind, Node, Space, Store

TOP = -0x7F7F7F80  # the byte 0x80, four times


def dot_of(shared: Shared, n: Store) -> Dot | None:
    """The instruction for the dtypes of `n`, if it adds products to registers."""
    factors = product(n.expr)
    if factors is None or n.reduce is None or n.reduce.name != "add" or shared.nest.buffer(n.target.source).space != Space.REG:
        return None
    left, right = sided(n, factors)
    return dot(shared.target, shared.width * 4, n.target.dtype, left.dtype, right.dtype, shared.strict, factors.side(right))


@dataclass(frozen=True, eq=False)
class Operands:
    """A Store that instructions carry out: `left` is a scalar for each copy of the rows, or vectors, as `right` is."""

    dot: Dot
    fine: Axis
    left: Place
    right: Place


def operands(s: State, n: Store) -> Operands | None:
    """The operands of `n`; None if it has to be carried out product by product."""
    found, factors = dot_of(s.shared, n), product(n.expr)
    if found is None or factors is None or s.lanes is None or s.active or n.target.source in s.lives.blended:
        return None
    rows, lanes = register_axes(s, n.target)
    fine = next((a for a in s.rows if a.extent == found.steps and a.valid is None and a.index not in rows), None)
    loads = sided(n, factors)
    if fine is None or not lanes or any(a.index not in rows for a in s.rows if a is not fine) or any(map(_is_hard, loads)):
        return None
    if any(s.nest.buffer(x.source).space == Space.REG or run_along(s, x, fine.index) != 1 for x in loads):
        return None
    left, right = (locate(s, x, (None,) * len(x.index)) for x in loads)
    both = left.lanes and not found.flipped
    if right.stride != found.steps or not _holds_all(s, right):
        return None
    if (left.stride != found.steps or not _holds_all(s, left)) if both else (left.lanes or right.rows != {fine.index}):
        return None
    return Operands(found, fine, left, right)


def _is_hard(x: Load) -> bool:
    return bool(x.guard) or not all(isinstance(p, Affine) for p in x.index)


def _holds_all(s: State, place: Place) -> bool:
    """Whether every lane may be read, also those that do not exist: their dimension is theirs alone, and long enough."""
    lanes = s.lanes
    assert lanes is not None
    if lanes.valid is None and lanes.extent % s.width == 0:
        return True
    at = [d for d, p in enumerate(place.load.index) if isinstance(p, Affine) and lanes.index in names(p)]
    if place.buffer.space != Space.WORK or len(at) != 1 or place.load.index[at[0]] != affine(lanes.index):
        return False
    extent = place.buffer.dims[at[0]][0]
    return extent.is_constant and extent.const >= s.vectors() * s.width


def store_dots(s: State, n: Store, o: Operands) -> None:
    """Carry out `n`: one instruction for each copy of the rows and each vector."""
    rows, _ = register_axes(s, n.target)
    if o.left.lanes:
        return _store_vectors(s, n, o, rows)
    lefts: dict[tuple[int, ...], str] = {}
    rights = [_right(s, o, v) for v in range(s.vectors())]
    offset = [_surplus(s, n.target.source, o, x, v) for v, x in enumerate(rights)] if o.dot.owes else []
    for point in points(s, rows):
        at = tuple(point[a] for a in sorted(o.left.rows - {o.fine.index}))
        if at not in lefts:
            lefts[at] = _left(s, o, point)
        for v, right in enumerate(rights):
            key = key_of(s, n.target, point, v)
            new = _multiply(s, o, s.regs[key], lefts[at], right)
            s.regs[key] = _less(s, new, offset[v]) if offset and offset[v] else new


def _store_vectors(s: State, n: Store, o: Operands, rows: frozenset[str]) -> None:
    """The same with vectors on both sides, each of which is loaded once for all rows that share it."""
    loaded: dict[tuple[str, tuple[int, ...], int], str] = {}

    def vector_of(x: Place, point: Point, v: int) -> str:
        key = x.load.source, tuple(point[a] for a in sorted(x.rows - {o.fine.index})), v
        if key not in loaded:
            p = gep(s, x.element, x.base({**point, o.fine.index: 0}, None), v * s.width * o.dot.steps)
            loaded[key] = s.b.do(f"load {_type(s, o)}, ptr {p}, align {alignment(x.element)}")
        return loaded[key]
    for point in points(s, rows):
        for v in range(s.vectors()):
            key = key_of(s, n.target, point, v)
            s.regs[key] = _multiply(s, o, s.regs[key], vector_of(o.left, point, v), vector_of(o.right, point, v))


def _right(s: State, o: Operands, v: int) -> str:
    p = gep(s, o.right.element, o.right.base(dict.fromkeys(s.axes, 0), None), v * s.width * o.dot.steps)
    if o.dot.flipped != RIGHT:
        return s.b.do(f"load {_type(s, o)}, ptr {p}, align {alignment(o.right.element)}")
    return _bits(s, o, _flip(s, s.b.do(f"load {vector('i32', s.width)}, ptr {p}, align {alignment(o.right.element)}")))


def _left(s: State, o: Operands, point: Point) -> str:
    """The steps of a lane, in all lanes."""
    p = o.left.base({**point, o.fine.index: 0}, None)
    x = splat(s, s.b.do(f"load i32, ptr {p}, align {alignment(o.left.element)}"), "i32")
    return _bits(s, o, _flip(s, x) if o.dot.flipped == LEFT else x)


def _flip(s: State, x: str) -> str:
    """The top bit of each byte of `x`."""
    return s.b.do(f"xor {vector('i32', s.width)} {x}, {constant(TOP, 'i32', s.width)}")


def _type(s: State, o: Operands) -> str:
    return vector(o.dot.instruction.operand, s.width * o.dot.steps)


def _bits(s: State, o: Operands, x: str) -> str:
    return s.b.pure(f"bitcast {vector('i32', s.width)} {x} to {_type(s, o)}", x)


def _multiply(s: State, o: Operands, total: str, left: str, right: str) -> str:
    t, sums = _type(s, o), vector("float" if o.dot.instruction.sums[0].is_float else "i32", s.width)
    first, second = (right, left) if o.dot.swapped else (left, right)
    called = o.dot.instruction.intrinsic.format(s.width * 32)
    if o.dot.instruction.adds:
        return s.b.call(sums, called, (sums, total), (t, first), (t, second))
    return s.b.do(f"add {sums} {total}, {s.b.call(sums, called, (t, first), (t, second))}")


# --- what a flipped operand adds, where the text does not mean it


def _offset_key(buffer: str, v: int) -> RegKey:
    """The register of what the vectors `v` of `buffer` have too much of; no element of the buffer has this name."""
    return buffer, (), v


def _surplus(s: State, buffer: str, o: Operands, right: str, v: int) -> str:
    """What these products have too much of, to be taken off now; "" if the loop around takes it off at its end."""
    key = _offset_key(buffer, v)
    old = s.regs.get(key)
    new = _multiply(s, o, old or "zeroinitializer", _bits(s, o, constant(TOP, "i32", s.width)), right)
    if old is None:
        return new
    s.regs[key] = new
    return ""


def _less(s: State, x: str, y: str) -> str:
    return s.b.do(f"sub {vector('i32', s.width)} {x}, {y}")


def open_offsets(s: State, n: For) -> tuple[str, ...]:
    """The buffers that get too much in the innermost serial loop `n`: registers for that start at 0."""
    if s.lanes is None:
        return ()
    found = tuple(sorted(set(_flipped(s.shared, n.body, False))))
    for buffer in found:
        s.regs |= {_offset_key(buffer, v): "zeroinitializer" for v in range(s.vectors())}
    return found


def _flipped(shared: Shared, body: tuple[Node, ...], in_full: bool) -> list[str]:
    """The targets of stores in full rows loops whose products add too much; none if there are loops inside."""
    out: list[str] = []
    for n in body:
        match n:
            case For(kind=Kind.ROWS):
                out += _flipped(shared, n.body, n.is_full)
            case For() | If() | IfData():
                return []
            case Store() if in_full and (found := dot_of(shared, n)) is not None and found.owes:
                out.append(n.target.source)
    return out


def close_offsets(s: State, buffers: tuple[str, ...]) -> None:
    """Take off what `buffers` have too much of."""
    for buffer in buffers:
        offsets = {v: s.regs.pop(_offset_key(buffer, v)) for v in range(s.vectors())}
        for key in [k for k in s.regs if k[0] == buffer and k[2] in offsets]:
            s.regs[key] = _less(s, s.regs[key], offsets[key[2]])
