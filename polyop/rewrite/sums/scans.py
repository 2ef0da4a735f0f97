"""Cutting a scan into chunks, so that the threads of a block have work: totals, their scan, and the chunks.

    Y[n] = g(n > 0 ? Y[n - 1] : z, x[n])                       g associative; or a[n] * Y[n - 1] + b[n], with pairs in their place

    L[u, i] = i > 0 ? g(L[u, i - 1], x[C u + i]) : x[C u + i]  each chunk alone
    E[0] = z    E[u + 1] = g(E[u], L[u, C - 1])                what is before each chunk: a scan that is C times shorter
    Y[C u + i] = g(E[u], L[u, i])

Where rows are few and long, blocks share one: it is cut into parts first, whose totals are added up, and scanned like any
row. What is before a part is then what its own scan starts from:

    P[t] g= x[B t + j]    F[t] = g(t > 0 ? F[t - 1] : z, P[t])    Y[B t + j] = g(j > 0 ? Y[B t + j - 1] : F[t - 1], x[B t + j])

L, E, P and F are f32 for sums, products and pairs of 16-bit floats. Forwards, or backwards (n + 1). Sums and products of floats
are grouped otherwise; where one that begins in the middle leaves the numbers there are, and what is before it is 0, the result is
NaN and not 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.dtypes import DType, accumulator
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, Test, affine, loads, names, quasi, substitute, substitute_expr
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.ir.scans import Scan, is_one_instruction, joined, scan_of
from polyop.rewrite.names import fresh
from polyop.rewrite.words import cast

BYTES, BESIDE = 16, 64  # of a thread's elements, which lie together, and where rows lie side by side
LEAST, MOST = 4, 16
SHORT = 64        # elements of a row that is scanned by one thread
PART = 4096       # elements of a row that are a block's, where several share it
ACROSS = 512      # the same, where rows lie side by side


@dataclass(frozen=True, slots=True)
class Row:
    """What a scan goes along: the elements of a row, and how many rows there are in each dimension beside.

    part  the elements that a block takes; across: whether rows lie side by side in an array without gaps
    """

    extent: Affine
    rows: tuple[Affine, ...]
    part: int
    across: bool


@dataclass(frozen=True, slots=True)
class _Found:
    """The scan of `step` along the dimension `place` of its target, by the iterator `along`; from the last one on if `back`.

    first   what stands for the element before the first one
    parts   the range of parts of a row, of which each is scanned alone; None if rows are whole
    """

    step: Step
    along: Range
    place: int
    back: bool
    scan: Scan
    first: Expr
    parts: Range | None = None

    @property
    def part(self) -> int:
        return ACROSS if self.place + 1 < len(self.step.target.index) else PART


def find_rows(op: Op) -> tuple[Row, ...]:
    """The rows of the scans of `op` that can be cut into parts."""
    found = [x for s in op.steps if (x := _found(op, s)) and x.scan.monoid]
    known = [Row(x.along.upper, tuple(r.upper - r.lower for r in x.step.ranges if r is not x.along), x.part, x.part != PART)
             for x in found]
    return tuple(r for r in known if all(names(e) <= set(op.sizes) for e in r.rows))


def find_abreast(op: Op) -> tuple[tuple[tuple[Affine, ...], Affine], ...]:
    """(how many rows in each dimension beside, elements of a row) of scans along the last dimension by one instruction a step."""
    found = [x for s in op.steps if is_one_instruction(s.expr) and (x := _found(op, s)) and x.part == PART and not x.back]
    known = [(tuple(r.upper - r.lower for r in x.step.ranges if r is not x.along), x.along.upper) for x in found]
    return tuple((rows, extent) for rows, extent in known if all(names(e) <= set(op.sizes) for e in rows))


@dataclass(frozen=True, eq=False)
class Chunks:
    """An Op with its scans in chunks, and the temporaries of it that are worth nothing unless they are registers."""

    op: Op
    inside: frozenset[str]


def cut_scans(op: Op, apart: bool = False) -> Chunks | None:
    """`op` with each scan in chunks, and first in parts, if `apart`; None, if it has none."""
    cuts = {id(s): x for s in op.steps if (x := _found(op, s))}
    if not cuts:
        return None
    own = {i for s in op.steps for i in s.indices}
    taken = {*op.sizes, *(t.name for t in op.tensors), *(p.name for p in op.params), *own}
    tensors, steps, inside = list(op.tensors), list[Step](), set[str]()
    for s in op.steps:
        if id(s) not in cuts:
            steps.append(s)
            continue
        f, t = cuts[id(s)], op.tensor(s.target.source)
        todo = [(f, t)]
        if apart and f.scan.monoid:
            totals, step, of_totals, first = _parted(f, t, taken)
            tensors += totals
            steps.append(step)
            todo = [(of_totals, totals[1]), (first, t)]
        for x, written in todo:
            new, made = _cut(x, written, taken)
            tensors += new
            steps += made
            inside |= {y.name for y in new}
    return Chunks(replace(op, tensors=tuple(tensors), steps=tuple(steps)), frozenset(inside))


def _parted(f: _Found, t: Tensor, taken: set[str]) -> tuple[tuple[Tensor, Tensor], Step, _Found, _Found]:
    """Totals of parts and their scan as tensors, the step of the totals, the scan of these, and that of the elements."""
    s, n = f.step, f.along
    assert f.scan.monoid
    part, j = fresh("part", taken), fresh(f"{n.index}_part", taken)
    count = quasi("div", n.upper + (f.part - 1), affine(f.part))
    parts, inside = Range(part, Affine(), count), Range(j, Affine(), affine(f.part))
    others = tuple(r for r in s.ranges if r is not n)
    shape = tuple(count if d == f.place else e for d, e in enumerate(t.shape))
    wide = _wide(f.scan, t.dtype)
    totals, known = (Tensor(fresh(f"{t.name}_{w}", taken), wide, shape, "temp") for w in ("totals", "parts"))

    def at(x: Tensor, p: Affine) -> Load:
        return Load(x.name, tuple(p if d == f.place else q for d, q in enumerate(s.target.index)), wide)

    here, number = affine(part), affine(part) * f.part + affine(j)
    each = cast(substitute_expr(f.scan.each[0], {n.index: n.upper - 1 - number if f.back else number}), wide)
    step = Step(at(totals, here), f.scan.monoid, each, (*others, parts, inside), (Test((n.upper - 1 - number,)),), s.span)
    first = cast(substitute_expr(f.first, {n.index: n.upper - 1 if f.back else Affine()}), wide)
    before = Apply("select", (Test((here - 1,)), at(known, here - 1), first), wide)
    whole = Step(at(known, here), None, joined(f.scan.monoid, before, at(totals, here)), (*others, parts), (), s.span)
    of_totals = _Found(whole, parts, f.place, False, Scan(f.scan.monoid, (at(totals, here),)), first)
    return (totals, known), step, of_totals, replace(f, first=before, parts=parts)


def _found(op: Op, s: Step) -> _Found | None:
    """What `s` is as a scan, if it is one."""
    t = op.tensor(s.target.source)
    own = list(dict.fromkeys(x for x in loads(s.expr) if x.source == t.name))
    if s.reduce or s.where or len(op.steps_of(t.name)) > 1 or len(own) != 1:
        return None
    if any(not isinstance(p, Affine) or p.name is None for p in s.target.index) or len(set(s.target.index)) < len(t.shape):
        return None
    moved = [(d, p - q) for d, (p, q) in enumerate(zip(own[0].index, s.target.index, strict=True))
             if isinstance(p, Affine) and isinstance(q, Affine) and p != q]
    if len(moved) != 1 or moved[0][1] not in (affine(1), affine(-1)) or len(s.ranges) != len(t.shape):
        return None
    (place, distance), = moved
    along = next(r for r in s.ranges if affine(r.index) == s.target.index[place])
    extent = along.upper
    if along.lower != Affine() or not names(extent) <= set(op.sizes) or (extent.is_constant and extent.const < SHORT):
        return None
    if any(along.index in names(r.lower) | names(r.upper) for r in s.ranges):
        return None
    back = distance == affine(1)
    edge = extent - 2 - affine(along.index) if back else affine(along.index) - 1
    for before, first in _starts(s.expr, own[0], edge):
        scan = scan_of(s.expr, before)
        if scan and not any(x.source in op.follow_from((t.name,)) for e in (*scan.each, first) for x in loads(e)):
            return _Found(s, along, place, back, scan, first)
    return None


def _starts(e: Expr, own: Load, edge: Affine) -> list[tuple[Expr, Expr]]:
    """What in `e` is the element before, where `edge` >= 0 says that there is one, and what it is elsewhere."""
    found: list[tuple[Expr, Expr]] = []
    if isinstance(e, Load) and e == own and own.guard == (edge,):
        found.append((e, Const(0.0 if own.dtype.is_float else 0, own.dtype)))
    if isinstance(e, Apply):
        if e.fn == "select" and e.args[0] == Test((edge,)) and e.args[1] == own:
            found.append((e, e.args[2]))
        for x in e.args:
            found += _starts(x, own, edge)
    return found


def _cut(f: _Found, t: Tensor, taken: set[str]) -> tuple[tuple[Tensor, ...], tuple[Step, ...]]:
    """The temporaries, and the steps in the place of the scan, which writes `t`."""
    s, n = f.step, f.along
    bytes_ = BYTES if f.part == PART else BESIDE if f.scan.monoid else BESIDE // 2  # of pairs a thread has two registers
    c = min(MOST, max(LEAST, bytes_ // t.dtype.bytes_))
    u, i = fresh("u", taken), fresh(f"{n.index}_i", taken)
    count = affine(f.part // c) if f.parts else quasi("div", n.upper + (c - 1), affine(c))
    others = (*(r for r in s.ranges if r is not n), *((f.parts,) if f.parts else ()))
    part, of_parts = ((affine(f.parts.index),), (f.parts.upper,)) if f.parts else ((), ())
    chunks, inside = Range(u, Affine(), count), Range(i, Affine(), affine(c))
    number = sum((p * f.part for p in part), affine(u) * c + affine(i))
    at = n.upper - 1 - number if f.back else number
    within = (Test((n.upper - 1 - number,)),)
    wide = _wide(f.scan, t.dtype)

    def put(source: str, *places: Affine) -> Load:
        index = tuple(y for d, p in enumerate(s.target.index) for y in ((*part, *places) if d == f.place else (p,)))
        return Load(source, index, wide)

    def temporary(word: str, *extents: Affine) -> Tensor:
        shape = tuple(y for d, e in enumerate(t.shape) for y in ((*of_parts, *extents) if d == f.place else (e,)))
        return Tensor(fresh(f"{t.name}_{word}", taken), wide, shape, "temp")

    def one(before: tuple[Expr, ...], each: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """What two steps, or something known and a step, are together; of a pair the factor first."""
        def of(fn: str, x: Expr, y: Expr) -> Expr:
            return Apply(fn, (x, y), wide)

        if f.scan.monoid:
            return (joined(f.scan.monoid, before[0], each[0]),)
        factor = (of("mul", before[0], each[0]),) if len(before) > 1 else ()
        return (*factor, of("add", of("mul", each[0], before[-1]), each[1]))

    each = tuple(cast(substitute_expr(x, {n.index: at}), wide) for x in f.scan.each)
    alone = tuple(temporary(w, count, affine(c)) for w in (("chunk",) if f.scan.monoid else ("factor", "chunk")))
    earlier = tuple(put(x.name, affine(u), affine(i) - 1) for x in alone)
    here, last = (tuple(put(x.name, affine(u), p) for x in alone) for p in (affine(i), affine(c - 1)))
    later, is_later = one(earlier, each), Test((affine(i) - 1,))
    ranges = (*others, chunks, inside)
    steps = [Step(x, None, Apply("select", (is_later, y, z), wide), ranges, within, s.span)
             for x, y, z in zip(here, later, each, strict=True)]
    known = temporary("before", count)
    first = cast(substitute_expr(f.first, {n.index: n.upper - 1 if f.back else Affine()}), wide)
    steps.append(Step(put(known.name, Affine()), None, first, others, (Test((n.upper - 1,)),), s.span))
    (total,) = one((put(known.name, affine(u)),), last)
    full = (Test((n.upper - 1 - substitute(number, {i: affine(c)}),)),) if f.parts else ()
    steps.append(Step(put(known.name, affine(u) + 1), None, total, (*others, replace(chunks, upper=count - 1)), full, s.span))
    (whole,) = one((put(known.name, affine(u)),), here)
    target = Load(t.name, tuple(at if d == f.place else p for d, p in enumerate(s.target.index)), t.dtype)
    steps.append(Step(target, None, cast(whole, t.dtype), ranges, within, s.span))
    return (*alone, known), tuple(steps)


def _wide(scan: Scan, dtype: DType) -> DType:
    """What is known of a chunk or part alone, and before it: f32 for floats of 16 bits, as it may be large where no element is.

    Of a[n] * Y[n - 1] + b[n] the factors alone, 2, 2, 2, .., leave f16 after 16 of them, and infinity times 0 is no number.
    """
    sums = scan.monoid is None or scan.monoid.fn in ("add", "mul")
    return accumulator(dtype) if dtype.is_float and sums else dtype
