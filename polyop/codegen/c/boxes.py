"""Copies of whole tiles by an engine that knows the tensor, as C text: one thread asks for a box, and what is outside is 0 there.

    for y, x (threads, rows) { A_s[s, y, x] = A[m + y, k + x] if M - m - y - 1 >= 0 and K - k - x - 1 >= 0 }  (later)

    if (pop_boxed0) { if (pop_n == 0) pop_ring_load(pop_arriving, &A_s[s, 0, 0], pop_map0, 16384, k, m); } else ..

Proofs know of a copy which arrives later that it is nobody's, so any thread may ask for it, and the engine bring it.
A box is one for the engine where each test is that of a bound of the tensor: what other conditions exclude is not 0 there.
And it begins at multiples of 16 bytes along memory, whatever is outside: else the instruction is an illegal one (seen on an
H200; PTX does not say so). Windows that are moved along memory are copied by threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod

from polyop.codegen.c.index import index, multiple
from polyop.codegen.c.place import element
from polyop.codegen.c.roles import COPYING
from polyop.codegen.c.scope import Box, Scope
from polyop.codegen.c.threads import NUMBER
from polyop.codegen.c.units import LINE
from polyop.codegen.nested import one_store
from polyop.ir.expr import Affine, Load, affine, is_computed, loads, names, substitute
from polyop.ir.loops import Barrier, Buffer, For, Kind, LoopNest, Node, Space, Store, stores, walk
from polyop.ir.module import Boxes

_MOST = 256  # elements of a box in each dimension
_FARTHEST = 8  # from one of them to the next
_GRAIN = 16   # bytes of which a box begins at a multiple along memory
_RANKS = range(2, 6)
BARRIER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Ring:
    """The barriers in shared memory on which an engine's copies arrive: one more than groups of them may be on their way.

    Of a `pipe` between a producer and consumers one more than that, or a power of two, and as many for the way back.

    alone   the numbers of the boxes, if nothing else writes shared memory; else none
    """

    pending: int
    at: int
    pipe: bool
    alone: tuple[int, ...] = ()

    @property
    def count(self) -> int:
        return 1 << (self.pending + 1).bit_length() if self.pipe else self.pending + 1

    @property
    def end(self) -> int:
        return self.at + self.count * BARRIER_BYTES * (1 + self.pipe)


def found(body: tuple[Node, ...], buffers: dict[str, Buffer], steps: Mapping[str, int]) -> \
        tuple[dict[str, Box], tuple[Boxes, ...]]:
    """The copies of a kernel that an engine may do, by statement, and what it must be told for them.

    steps   what the index of each loop is a multiple of
    """
    boxes: dict[str, Box] = {}
    told: list[Boxes] = []
    written = {s.target.source for s in stores(body)}  # by threads, for whose writes the engine does not wait
    for n in walk(body):
        if isinstance(n, For) and n.kind == Kind.THREADS:
            loops, s = _copied(n)
            made = s and not {x.source for x in loads(s.expr)} & written and _box(loops, s, buffers, steps)
            if made and s:
                what, to, corners = made
                if what not in told:
                    told.append(what)
                bytes_ = prod(what.box) * s.target.dtype.bytes_
                boxes.setdefault(s.stmt, Box(told.index(what), to, corners, bytes_))
    return boxes, tuple(told)


def ring(body: tuple[Node, ...], shared: int, pipe: bool, boxes: Mapping[str, Box], nest: LoopNest) -> Ring:
    """The ring of a kernel that has so many bytes of shared memory beside it."""
    written = {s.stmt for s in stores(body) if nest.buffer(s.target.source).space == Space.SHARED}
    alone = tuple(sorted({boxes[x].number for x in written})) if written <= boxes.keys() else ()
    return Ring(max((n.pending for n in walk(body) if isinstance(n, Barrier)), default=0), -(-shared // 16) * 16, pipe, alone)


def copy(n: For, scope: Scope, otherwise: list[str]) -> list[str]:
    """`otherwise`, the lines of a nest of threads, or the boxes that it copies."""
    _, s = _copied(n)
    box = scope.boxes.get(s.stmt) if s else None
    if box is None or s is None:
        return otherwise
    lines = []
    if scope.producer:  # all boxes, or none: threads copy as those of the nest would
        number, all_ = NUMBER, scope.producer
        turns = f"for (pop_u32 {number} = pop_thread() - {all_}; {number} < {all_}; {number} += {COPYING}) {{"
        otherwise = [turns, *("    " + x for x in otherwise), "}"]
    for to, corner in zip(box.to, box.corners, strict=True):
        at = ", ".join(f"(int)({index(c, scope.names).c})" for c in corner)
        lines.append(f"pop_ring_load(pop_arriving, &{element(to, {}, scope)}, pop_map{box.number}, {box.bytes_}, {at});")
    if scope.producer:
        return [f"if (pop_boxed) {{  // {s.stmt}", *("    " + x for x in lines), "} else {",
                *("    " + x for x in otherwise), "}"]
    asked = [f"    if ({NUMBER} == 0) {{  // {s.stmt}", *("        " + x for x in lines), "    }"]
    return [f"if (pop_boxed{box.number}) {{", *asked, "} else", *otherwise]


def start(r: Ring) -> list[str]:
    """The ring's declaration."""
    if r.pipe:
        return [f"POP_SHARED_VIEW(pop_full, pop_u64, {r.at}, {2 * r.count});"]
    alone = " && ".join(f"pop_boxed{i}" for i in r.alone) or "false"
    return [f"POP_SHARED_VIEW(pop_full, pop_u64, {r.at}, {r.count});",
            f"pop_ring<{r.count}> pop_arriving = {{(pop_u64*)(pop_shared + {r.at}), 0, 0, {alone}}};",
            "pop_ring_start(pop_arriving);"]


def _copied(n: For) -> tuple[tuple[For, ...], Store | None]:
    """The loops of a nest that only copies, and its statement."""
    loops, s = one_store(n.body, Kind.THREADS, Kind.ROWS)
    return (n, *loops), s if s and s.later else None


def _box(loops: tuple[For, ...], s: Store, buffers: dict[str, Buffer], steps: Mapping[str, int]) -> \
        tuple[Boxes, tuple[Load, ...], tuple[tuple[Affine, ...], ...]] | None:
    """What the engine is told of the tensor, and the first element and the corner of each box; None if it is no box."""
    to, source = s.target, s.expr
    if not isinstance(source, Load) or any(map(is_computed, source.index)) or not all(f.is_full for f in loops):
        return None
    shared, tensor = buffers[to.source], buffers[source.source]
    places, index_ = [p for p in to.index if isinstance(p, Affine)], [p for p in source.index if isinstance(p, Affine)]
    unit = _unit(tensor)
    if (shared.swizzle, shared.folded) != (LINE, False) or unit is None:
        return None
    if len(index_) not in _RANKS:
        return None
    own = frozenset(f.index for f in loops)
    y, x = places[-2:]
    rows, columns = shared.dims[-2][0].const, shared.dims[-1][0].const
    if any(names(p) & own for p in places[:-2]) or not _counts(y, loops, rows) or not _counts(x, loops, columns):
        return None
    inner, apart = zip(*(_in_steps(_only(p, own), loops) for p in index_), strict=True)
    across, down = _digits(inner, x, loops), _digits(inner, y, loops)
    others = [d for d, p in enumerate(inner) if d not in (*across, *down)]
    line = LINE // shared.dtype.bytes_
    if next(iter(across), None) != unit or across[unit] % line or {*across} & {*down}:
        return None
    if prod(across.values()) != columns or prod(down.values()) != rows or any(inner[d] != Affine() for d in others):
        return None
    if apart[unit] != 1 or max(apart) > _FARTHEST:
        return None
    bounds = {t for d, p in enumerate(index_) for t in (p, tensor.dims[d][0] - p - 1)}
    if not {t for t in source.guard if not _holds(t, loops)} <= bounds or max(n * apart[d] for d, n in down.items()) > _MOST:
        return None
    dims = (unit, *down, *(d for d in across if d != unit), *others)
    zero = dict.fromkeys(own, Affine())
    first = [substitute(index_[d], zero) for d in dims]
    if multiple(first[0], steps) * tensor.dtype.bytes_ % _GRAIN:
        return None
    panels = range(0, columns, line)
    corners = tuple(tuple(p + _digit(across, d, at) * apart[d] for d, p in zip(dims, first, strict=True)) for at in panels)
    starts = tuple(Load(to.source, (*places[:-2], Affine(), affine(at)), to.dtype) for at in panels)
    box = (line, *down.values(), *(1 for _ in dims[1 + len(down):]))
    each = tuple(apart[d] for d in dims)
    return Boxes(source.source, dims, box, LINE, each if max(each) > 1 else ()), starts, corners


def _unit(b: Buffer) -> int | None:
    """The dimension along which elements of a tensor, or of work memory without padding, are neighbours."""
    if b.space == Space.WORK:
        return len(b.dims) - 1 if b.dims and b.pad <= 1 and all(u == 1 for _, u in b.dims) else None
    return b.unit if b.space == Space.TENSOR else None


def _in_steps(p: Affine, loops: tuple[For, ...]) -> tuple[Affine, int]:
    """`p` in steps as far as it goes at once, and how far that is: { [q] -> [2 q] } is q in steps of 2."""
    step = gcd(*(p.factor(f.index) * f.step for f in loops if f.index in names(p)))
    terms = tuple((a, f // step) for a, f in p.terms) if step > 1 and all(f % step == 0 for _, f in p.terms) else None
    return (p, 1) if terms is None else (Affine(terms), step)


def _digits(inner: Sequence[Affine], y: Affine, loops: tuple[For, ...]) -> dict[int, int]:
    """The dimensions whose positions in a tile, `inner`, are digits of its line or column `y`, fastest first, and their extents.

        { [b, p, q] -> [64 b + 16 p + q] : 0 <= p < 4 and 0 <= q < 16 }
    """
    found: dict[int, int] = {}
    while y != Affine():
        weight = prod(found.values())
        d = next((d for d, p in enumerate(inner) if d not in found and p.terms and {*(p * weight).terms} <= {*y.terms}), None)
        if d is None:
            return {}
        found[d] = 1 + sum(inner[d].factor(f.index) * (f.end - f.step) for f in loops)
        if not _counts(inner[d], loops, found[d]):
            return {}
        y = y - inner[d] * weight
    return found


def _digit(digits: Mapping[int, int], d: int, number: int) -> int:
    """Digit `d` of a number; 0, if there is no such."""
    for other, extent in digits.items():
        if other == d:
            return number % extent
        number //= extent
    return 0


def _only(p: Affine, own: Iterable[str]) -> Affine:
    """The terms of `p` that have names in `own`."""
    return Affine(tuple(t for t in p.terms if names(Affine((t,))) & set(own)))


def _holds(test: Affine, loops: tuple[For, ...]) -> bool:
    """Whether `test` >= 0 for all iterations of `loops`, whatever else it names."""
    most = {f.index: affine(f.end - f.step if test.factor(f.index) < 0 else 0) for f in loops if f.index in names(test)}
    least = substitute(test, most)
    return least.is_constant and least.const >= 0


def _counts(p: Affine, loops: tuple[For, ...], extent: int) -> bool:
    """Whether `p` has each value from 0 to `extent` just once, as digits: { [z, x] -> [32 z + x] }."""
    mine = [f for f in loops if f.index in names(p)]
    if p.const or any(not isinstance(a, str) for a, _ in p.terms) or len(mine) != len(p.terms):
        return False
    total = 1
    for weight, count in sorted((p.factor(f.index) * f.step, f.extent or 0) for f in mine):
        if weight != total:
            return False
        total *= count
    return total == extent
