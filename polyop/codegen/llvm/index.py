"""Index expressions as i64 values: scalars for one copy of the rows, vectors where they differ between lanes."""

from __future__ import annotations

from polyop.codegen.cpu.facts import follows, is_positive
from polyop.codegen.llvm.builder import IMPURE
from polyop.codegen.llvm.digits import in_parts, lanes_of_vector
from polyop.codegen.llvm.state import Axis, Point, State
from polyop.codegen.llvm.types import Int, constant, constant_mask, constants, iota, vector
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Atom, Quasi, affine, bounds, names
from polyop.ir.loops import Kind


def name_value(s: State, name: str, point: Point) -> Int:
    """The value of an iterator or size. A copy of a row that does not exist counts as the last that does."""
    axis = s.axes.get(name)
    if axis is None:
        known = s.env.get(name)
        return known if known is not None else s.slot(name)
    if axis.kind == Kind.LANES:
        raise InternalError(f"emit: {name} is a lanes index, used as a scalar")
    return row_value(s, axis, point[name])


def row_value(s: State, axis: Axis, r: int) -> Int:
    if axis.valid is None or r == 0:
        return r
    return s.b.extreme("min", r, s.b.add(axis.valid, -1))


def atom_value(s: State, a: Atom, point: Point) -> Int:
    if isinstance(a, str):
        return name_value(s, a, point)
    if a.op in ("min", "max"):
        total = index(s, a.args[0], point)
        for arg in a.args[1:]:
            total = s.b.extreme(a.op, total, index(s, arg, point))
        return total
    x, d = index(s, a.args[0], point), a.args[1].const
    if a.op == "mod" and d & (d - 1) == 0 and isinstance(x, str):
        return s.b.pure(f"and i64 {x}, {d - 1}", x)
    q = s.b.floor_div(x, d, d & (d - 1) != 0 and (s.nonnegative(a.args[0]) or is_positive(a.args[0] + 1, s.loops, s.tests)))
    return q if a.op == "div" else s.b.sub(x, s.b.mul(q, d))


def index(s: State, x: Affine, point: Point) -> Int:
    """The value of `x`, which must not depend on the lanes; what outer loops know is added first, and all numbers last.

    So p + r of a row and a step of a window is the same value for all that add up to it.
    """
    total: Int = 0
    const = x.const
    parts = sorted(((atom_value(s, a, point), f) for a, f in x.terms), key=lambda t: s.b.level(t[0]))
    for value, factor in parts:
        if isinstance(value, int):
            const += value * factor
        else:
            total = s.b.add(total, s.b.mul(value, factor))
    return s.b.add(total, const)


def lane_factor(s: State, x: Affine) -> int | None:
    """The factor of the lanes index in `x`, 0 if it does not occur, None if it occurs inside a Quasi."""
    lanes = s.lanes
    if lanes is None:
        return 0
    if any(not isinstance(a, str) and lanes.index in names(affine(a)) for a, _ in x.terms):
        return None
    return x.factor(lanes.index)


def without_lanes(s: State, x: Affine) -> Affine:
    """`x` at lane 0, where the lanes occur linearly."""
    return x if s.lanes is None else Affine(tuple(t for t in x.terms if t[0] != s.lanes.index), x.const)


def rows_of(s: State, x: Affine) -> frozenset[str]:
    """The rows axes that `x` depends on."""
    return frozenset(n for n in names(x) if n in s.axes and s.axes[n].kind == Kind.ROWS)


# --- vectors


def splat(s: State, x: Int, element: str = "i64") -> str:
    """`x` in every lane; pure if x is."""
    w = s.width
    if isinstance(x, int):
        return constant(x, element, w)
    if not x.startswith("%"):
        return x if x.startswith("splat") else f"splat ({element} {x})"
    one = s.b.pure(f"insertelement <{w} x {element}> poison, {element} {x}, i64 0", x)
    return s.b.pure(f"shufflevector <{w} x {element}> {one}, <{w} x {element}> poison, <{w} x i32> zeroinitializer", one)


def index_vector(s: State, x: Affine, point: Point, v: int) -> str:
    """<w x i64>: the value of `x` in each lane of vector `v`."""
    w, b = s.width, s.b
    assert s.lanes is not None
    lane = s.lanes.index
    if lane_factor(s, x) is None and (parts := in_parts(s, x, lanes_of_vector(s, v))) is not None:
        same = splat(s, index(s, parts[0], point))
        return b.pure(f"add <{w} x i64> {same}, {constants(parts[1])}", same)
    rest = Affine(tuple((a, f) for a, f in x.terms if lane not in names(affine(a))), x.const)
    total = splat(s, index(s, rest, point))
    for a, f in x.terms:
        if lane not in names(affine(a)):
            continue
        if isinstance(a, str):
            total = b.pure(f"add <{w} x i64> {total}, {iota(w, 'i64', v * w * f, f)}", total)
        else:
            part = _quasi_vector(s, a.op, a.args, point, v)
            scaled = b.pure(f"mul <{w} x i64> {part}, {constant(f, 'i64', w)}", part)
            total = b.pure(f"add <{w} x i64> {total}, {scaled}", total, scaled)
    return total


def _quasi_vector(s: State, op: str, args: tuple[Affine, ...], point: Point, v: int) -> str:
    w, b, t = s.width, s.b, vector("i64", s.width)
    if op in ("min", "max"):
        total = index_vector(s, args[0], point, v)
        for arg in args[1:]:
            other = index_vector(s, arg, point, v)
            total = b.pure_call(t, f"llvm.s{op}.v{w}i64", (t, total), (t, other))
        return total
    x, d = index_vector(s, args[0], point, v), args[1].const
    if d & (d - 1) == 0:
        shift = d.bit_length() - 1
        verb, by = ("ashr", shift) if op == "div" else ("and", d - 1)
        return b.pure(f"{verb} {t} {x}, {constant(by, 'i64', w)}", x)
    q = b.pure(f"sdiv {t} {x}, {constant(d, 'i64', w)}", x)
    m = b.pure(f"mul {t} {q}, {constant(d, 'i64', w)}", q)
    r = b.pure(f"sub {t} {x}, {m}", x, m)
    below = b.pure(f"icmp slt {t} {r}, zeroinitializer", r)
    if op == "div":
        e = b.pure(f"sext <{w} x i1> {below} to {t}", below)
        return b.pure(f"add {t} {q}, {e}", q, e)
    more = b.pure(f"add {t} {r}, {constant(d, 'i64', w)}", r)
    return b.pure(f"select <{w} x i1> {below}, {t} {more}, {t} {r}", below, more, r)


# --- masks

SIGNED = {"ult": "slt", "uge": "sge"}


def below(s: State, count: Int, v: int) -> str:
    """The lanes of vector `v` whose number is less than `count`."""
    return _threshold(s, "ult", count, v)


def _threshold(s: State, op: str, bound: Int, v: int) -> str:
    """The lanes i of vector `v` with `i op bound`; the bound, cut to what an axis may have, is the same for all vectors."""
    key = op, bound, v
    if key not in s.masks:
        w, b = s.width, s.b
        n = b.extreme("max", b.extreme("min", bound, max(w, *(a.extent for a in s.axes.values()))), 0)
        n = _pinned(s, n) if isinstance(n, str) and s.fills and len(b.zones) - 1 == s.tile_depth else n
        n32 = splat(s, n if isinstance(n, int) else b.pure(f"trunc i64 {n} to i32", n), "i32")
        # no number here is negative; vectors compare such as have a sign in one instruction, others in three
        how = op if s.shared.target.masks else SIGNED[op]
        mask = b.pure(f"icmp {how} <{w} x i32> {iota(w, 'i32', v * w)}, {n32}", n32)
        if b.level(mask) == IMPURE:
            return mask
        s.masks[key] = mask
    return s.masks[key]


def _pinned(s: State, n: str) -> str:
    """`n`, of which nothing is known before this block, so that what is made of it takes no register in the loops before."""
    if n not in s.pinned:
        s.pinned[n] = s.b.do(f'call i64 asm sideeffect "", "=r,0"(i64 {n})')
    return s.pinned[n]


def known_extent(a: Axis) -> int | None:
    """How many places of `a` exist, if that is a number."""
    found = a.extent if a.valid is None else a.valid
    return found if isinstance(found, int) else None


def existing(s: State, v: int) -> str | None:
    """The mask of lanes of vector `v` that exist, or None if all do."""
    lanes = s.lanes
    if lanes is None:
        return None
    if lanes.valid is None:
        return None if (v + 1) * s.width <= lanes.extent else below(s, lanes.extent, v)
    if isinstance(lanes.valid, int) and (v + 1) * s.width <= lanes.valid:
        return None
    return None if not s.shared.target.masks and is_whole(s, lanes, v) else below(s, lanes.valid, v)


def is_whole(s: State, lanes: Axis, v: int) -> bool:
    """Whether tests around say that all lanes of vector `v` exist: where masks cost something, only the last vector has one."""
    if lanes.upper.is_constant:  # `valid` may be less
        return False
    past = [b - (v + 1) * s.width for b in bounds(lanes.upper)]
    return all(x.const >= 0 if x.is_constant else any(follows(x, t) for t in s.tests) for x in past)


def test_scalar(s: State, t: Affine, point: Point) -> str:
    """An i1: t >= 0; of -(i mod d), which is never more, one instruction asks whether it is 0."""
    match t.terms:
        case ((Quasi(op="mod") as a, f),) if f < 0 and t.const == 0:
            rest = atom_value(s, a, point)
            return s.b.compare("eq", rest, 0) if isinstance(rest, str) else ("false" if rest else "true")
    x = index(s, t, point)
    return s.b.compare("sge", x, 0) if isinstance(x, str) else ("true" if x >= 0 else "false")


def test_lanes(s: State, t: Affine, point: Point, v: int) -> str:
    """A mask: t >= 0 in each lane of vector `v`.

        a i + c >= 0   <=>   i >= -floor(c / a)   (a > 0)        i < floor(c / -a) + 1   (a < 0)
    """
    a = lane_factor(s, t)
    if a is None:
        parts = in_parts(s, t, lanes_of_vector(s, v))
        if parts is not None and parts[0].is_constant:
            return constant_mask(parts[0].const + x >= 0 for x in parts[1])
        x = index_vector(s, t, point, v)
        return s.b.pure(f"icmp sge <{s.width} x i64> {x}, zeroinitializer", x)
    c = index(s, without_lanes(s, t), point)
    if a == 0:
        return splat(s, test_scalar(s, t, point), "i1")
    q = s.b.floor_div(c, abs(a))
    if a > 0:
        return _threshold(s, "uge", s.b.sub(0, q), v)
    return _threshold(s, "ult", s.b.add(q, 1), v)


def first_of(s: State, height: int, count: Int) -> str | None:
    """The first `count` of `height` places; None if that is all of them."""
    if isinstance(count, int):
        return None if count >= height else constant_mask(i < count for i in range(height))
    one = s.b.pure(f"insertelement <{height} x i64> poison, i64 {count}, i64 0", count)
    many = s.b.pure(f"shufflevector <{height} x i64> {one}, <{height} x i64> poison, <{height} x i32> zeroinitializer", one)
    return s.b.pure(f"icmp slt <{height} x i64> {iota(height)}, {many}", many)
