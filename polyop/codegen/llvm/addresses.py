"""Where a Load or Store's target lies: pointers, and strides along the lanes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from polyop.codegen.llvm.index import atom_value, index, index_vector, rows_of, splat
from polyop.codegen.llvm.pointers import Term, pointer, strides
from polyop.codegen.llvm.state import Point, State, Value, require_buffer
from polyop.codegen.llvm.types import Int, iota, memory
from polyop.ir.dtypes import BOOL, I64, U8, DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Atom, Load, Quasi, affine, names
from polyop.ir.loops import Buffer
from polyop.ir.tables import BYTE


@dataclass(slots=True)
class Place:
    """The memory that a Load names, for each copy of the rows.

    stride   elements from lane to lane: 0 if the place does not depend on the lanes
    offsets  vectors of further offsets, where the place depends on the lanes in another way
    bent     what of the position depends on lanes in another way, as (value, elements), if none of it comes from data; `along`:
             elements from lane to lane beside that
    runs     (lanes, elements), where so many lanes lie side by side, and the next ones that many elements further on
    base     the pointer of lane 0, without `offsets`
    inside   whether the computed positions lie in their dimensions, or None if none is computed
    """

    load: Load
    buffer: Buffer
    element: str
    rows: frozenset[str]
    stride: Int
    offsets: Callable[[Point, int], str] | None
    base: Callable[[Point, str | None], str]
    inside: Value | None
    runs: tuple[int, Int] | None = None
    bent: tuple[tuple[Affine, Int], ...] = ()
    along: Int = 0

    @property
    def lanes(self) -> bool:
        return self.stride != 0 or self.offsets is not None


def locate(s: State, load: Load, computed: tuple[Value | None, ...] = ()) -> Place:
    """The place of `load`. `computed`: for each position, its value as i64, if it comes from data.

    { load[position] -> base + sum of stride * position }, split into what depends on serial loops, on the rows (the
    pointer of a copy), and on the lanes.
    """
    b = require_buffer(s.nest, load)
    lane = s.lanes.index if s.lanes else None
    const: int = 0
    terms: list[Term] = []
    vectors: list[tuple[Affine | Value, Int]] = []
    along: Int = 0
    rows: frozenset[str] = frozenset()
    inside: list[tuple[Value, Int]] = []
    for d, (position, step) in enumerate(zip(load.index, strides(s, b), strict=True)):
        extent, unit = b.dims[d]
        if not isinstance(position, Affine):
            value = computed[d]
            assert value is not None
            if unit != 1:
                raise InternalError(f"emit: {load}: a computed position in steps of {unit}")
            extents = index(s, extent, {})
            if not _is_inside(b, value, extents):
                inside.append((value, extents))
            rows |= value.rows
            if value.lanes:
                vectors.append((value, step))
            else:
                terms.append(Term(value, step))
            continue
        rows |= rows_of(s, position)
        for atom, factor in _scaled(s, position, step, unit):
            if lane is None or (atom != lane and (isinstance(atom, str) or lane not in names(affine(atom)))):
                if atom == "":
                    if isinstance(factor, int):
                        const += factor
                    else:
                        terms.append(Term("", factor))
                else:
                    terms.append(Term(atom, factor, step, position.factor(atom) if unit == 1 and isinstance(atom, str) else 0))
            elif atom == lane:
                along = s.b.add(along, factor)
            else:
                vectors.append((affine(atom), factor))

    runs = _runs(s, vectors) if vectors and along == 0 else None
    if runs and runs[1] == runs[0]:
        along, vectors, runs = 1, [], None

    def offsets(point: Point, v: int) -> str:
        w = s.width
        total = lane_offsets(s, along, v) if along != 0 else "zeroinitializer"
        for item, factor in vectors:
            x = item.at(point, v) if isinstance(item, Value) else index_vector(s, item, point, v)
            f = splat(s, factor)
            scaled = x if factor == 1 else s.b.pure(f"mul <{w} x i64> {x}, {f}", x, f)
            total = scaled if total == "zeroinitializer" else s.b.pure(f"add <{w} x i64> {total}, {scaled}", total, scaled)
        return total

    element = memory(b.dtype)
    base = pointer(s, b, element, terms, const)
    bent = tuple((x, f) for x, f in vectors if isinstance(x, Affine))
    return Place(load, b, element, rows, 0 if vectors else along, offsets if vectors else None, base, _inside(s, inside), runs,
                 bent if len(bent) == len(vectors) else (), along)


def _runs(s: State, vectors: Sequence[tuple[Affine | Value, Int]]) -> tuple[int, Int] | None:
    """{ [v] -> further * floor(v / extent) + v mod extent }, as (extent, further); None for anything else."""
    factors: dict[str, Int] = {"div": 0, "mod": 0}
    extents = set[int]()
    for x, factor in vectors:
        atom = x.terms[0][0] if isinstance(x, Affine) else ""
        if not isinstance(atom, Quasi) or atom.op not in factors or s.lanes is None or atom.args[0] != affine(s.lanes.index):
            return None
        factors[atom.op] = s.b.add(factors[atom.op], factor)
        extents.add(atom.args[1].const)
    return (extents.pop(), factors["div"]) if len(extents) == 1 and factors["mod"] == 1 else None


def run_along(s: State, x: Load, index: str) -> Int | None:
    """Elements from one step of `index` to the next, None if that is not constant."""
    b = require_buffer(s.nest, x)
    total: Int = 0
    for position, step, (_, unit) in zip(x.index, strides(s, b), b.dims, strict=True):
        if not isinstance(position, Affine):
            return None
        if index in names(position):
            if unit != 1 or any(not isinstance(a, str) and index in names(affine(a)) for a, _ in position.terms):
                return None
            total = s.b.add(total, s.b.mul(step, position.factor(index)))
    return total


def lane_offsets(s: State, stride: Int, v: int) -> str:
    """stride * lane number, for the lanes of vector `v`."""
    w = s.width
    if isinstance(stride, int):
        return iota(w, "i64", v * w * stride, stride)
    step = splat(s, stride)
    return s.b.pure(f"mul <{w} x i64> {step}, {iota(w, 'i64', v * w)}", step)


def _scaled(s: State, position: Affine, step: Int, unit: int) -> list[tuple[Atom, Int]]:
    """`position / unit * step` as (atom, factor); the constant has the atom "". """
    whole = [*position.terms, ("", position.const)] if position.const else list(position.terms)
    if unit == 1:
        return [(a, s.b.mul(step, f)) for a, f in whole]
    if isinstance(step, int) and step % unit == 0:
        return [(a, step // unit * f) for a, f in whole]
    out: list[tuple[Atom, Int]] = []
    for a, f in whole:
        if f % unit == 0:
            out.append((a, s.b.mul(step, f // unit)))
        elif isinstance(a, str) and a in s.axes:
            raise InternalError(f"emit: {a} runs in steps of 1 through a dimension with unit {unit}")
        else:
            x = s.b.whole_div(atom_value(s, a, {}), unit)
            out.append(("", s.b.mul(s.b.mul(x, f), step)))
    return out


def _is_inside(b: Buffer, value: Value, extent: Int) -> bool:
    """Whether what `value` says, if it is a byte without sign, lies in the one dimension of `b`, whichever it says."""
    is_byte = value.narrow is not None and value.narrow.dtype == U8
    return is_byte and (b.table == BYTE or (isinstance(extent, int) and extent >= BYTE))


def _below(s: State, x: str, t: DType, extent: Int) -> str:
    """The lanes in which 0 <= x < extent, of integers of dtype `t`; asked in their own bits, which may be fewer than 64."""
    w, bits, b, signed = s.width, f"i{t.bits}", s.b, t.kind == "int"
    if t.bits == 64:
        n = splat(s, extent)
        return b.pure(f"icmp ult <{w} x i64> {x}, {n}", x, n)
    most = (1 << t.bits - 1) if signed else (1 << t.bits) - 1  # which `bits` can say
    least = b.extreme("min", extent, most)
    some = splat(s, least if isinstance(least, int) else b.pure(f"trunc i64 {least} to {bits}", least), bits)
    ok = b.pure(f"icmp ult <{w} x {bits}> {x}, {some}", x, some)
    if signed:  # none is larger than what is asked about
        return ok
    all_ = splat(s, b.compare("sgt", extent, most), "i1")
    return b.pure(f"or <{w} x i1> {ok}, {all_}", ok, all_)


def _inside(s: State, checks: list[tuple[Value, Int]]) -> Value | None:
    """Whether 0 <= position < extent for every computed position."""
    if not checks:
        return None
    rows = frozenset().union(*(v.rows for v, _ in checks))
    lanes = any(v.lanes for v, _ in checks)

    def make(point: Point, v: int) -> str:
        total: str | None = None
        for value, extent in checks:
            x = (value.narrow if value.narrow is not None and value.lanes else value).at(point, v)
            if value.lanes:
                ok = _below(s, x, (value.narrow or value).dtype, extent)
            elif lanes:
                ok = _below(s, splat(s, x), I64, extent)
            else:
                ok = s.b.compare("ult", x, extent)
            total = s.b.both(total, ok, s.width if lanes else 1)
        assert total is not None
        return total

    return Value(BOOL, rows, lanes, make)
