"""What is known while one function is written: names, axes, register values, facts about the loops around."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd

from polyop.codegen.llvm.builder import Builder
from polyop.codegen.llvm.lifetime import Lives
from polyop.codegen.llvm.types import Int
from polyop.codegen.vecmath.quotient import Inverse
from polyop.ir.dtypes import DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Expr, Load, bounds
from polyop.ir.loops import Buffer, For, Kind, LoopNest, Node, Space
from polyop.ir.target import Target

Point = Mapping[str, int]
"""One copy of each rows axis."""

RegKey = tuple[str, tuple[int, ...], int]
"""A register value: buffer, its indices along everything but the lanes, and the vector (or -1 for a scalar)."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A lock-step loop that is open: `valid` is the count of its iterations, or None if all `extent` exist.

    piece   the one vector of lanes that is being written, or None if all are
    """

    index: str
    kind: Kind
    extent: int
    valid: Int | None
    upper: Affine
    piece: int | None = None


@dataclass(slots=True)
class Value:
    """An expression over the axes it depends on; `make(point, vector)` emits it on first use.

    rows   the rows axes it depends on; lanes: whether it differs between lanes, and so is a vector
    narrow the integers of fewer bits that it is a cast of, if it is one
    """

    dtype: DType
    rows: frozenset[str]
    lanes: bool
    make: Callable[[Point, int], str]
    made: dict[tuple[tuple[int, ...], int, str], str] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    narrow: Value | None = None

    def __post_init__(self) -> None:
        self.order = tuple(sorted(self.rows))

    def at(self, point: Point, v: int) -> str:
        key = (tuple(point[a] for a in self.order), v if self.lanes else 0, "")
        if key not in self.made:
            self.made[key] = self.make(point, v)
        return self.made[key]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must hold for an expression to be evaluated.

    affine   isl may have relied on it; tests: those of the If whose `then` this is, if it is one
    """

    value: Value
    affine: bool
    tests: tuple[Affine, ...] = ()


Active = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Trips:
    """A range of the trips of the next loop, counted together with those of the loops `inside`, which stand directly in it.

    around   the loop around that is counted too, where it starts, and how many trips each of its iterations has
    """

    lower: Int
    upper: Int
    inside: tuple[For, ...] = ()
    around: For | None = None
    start: Int = 0
    size: Int = 0


@dataclass(frozen=True, slots=True)
class Sums:
    """Sums in matrix tiles, row by row of tiles; so many vectors wide. `is_stored`: whether they are on the stack as well."""

    tiles: tuple[str, ...]
    vectors: int
    is_stored: bool


@dataclass(slots=True)
class Shared:
    """What all functions of a module have in common.

    threads   whether several may run it; tiled: sums of matrix tiles; asked: results that are prefetched
    as_read   results that are written in the order in which what they are made of is read
    """

    nest: LoopNest
    target: Target
    strict: bool
    threads: bool
    width: int
    slots: dict[str, int]
    heavy: frozenset[tuple[str, str]]
    tiled: frozenset[str] = frozenset()
    asked: frozenset[str] = frozenset()
    as_read: frozenset[str] = frozenset()
    sites: list[Load] = field(default_factory=list)
    bodies: int = 0


@dataclass(slots=True)
class State:
    """One function being written.

    lives   which register buffers live here, and which of them are blended
    env     serial indices; axes: the lock-step loops that are open, of which `lanes` and `rows` (outermost first)
    masks   which lanes, as vectors; fills: whether those of the open tile have no registers beside its sums
    pinned  numbers as they are known in this block alone
    loops   the serial and parallel loops around, and tests that hold: what small proofs may use
    active  conditions of the Ifs around that rows or lanes decide differently
    sums    those of `Shared.tiled` that are in tiles now; the others are on the stack
    regs    register buffers; stored: what was just stored, by place, good until the block ends
    apart   vectors that were taken apart (`woven.py`), by buffer, pointer, mask, step and vector, good until the block ends
    certain the bodies around, of the open lanes, that run whatever lanes and data say: what those read, all lanes may read
    streams whether some store bypasses the caches; past: whether those being written do, where it is known already
    trips   which trips of the next loop are asked for, if not all
    steady  what was computed before the loop around, since nothing in it changes; inverses: of what it divides by
    loaded  the loads of the store being written, by load and the ids of the conditions beside it, which keeps them alive
    """

    b: Builder
    shared: Shared
    args: str
    status: str
    thread: Int
    lives: Lives
    env: dict[str, Int] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    lanes: Axis | None = None
    rows: tuple[Axis, ...] = ()
    masks: dict[tuple[str, Int, int], str] = field(default_factory=dict)
    tile_depth: int = 0
    fills: bool = False
    pinned: dict[str, str] = field(default_factory=dict)
    loops: tuple[For, ...] = ()
    tests: tuple[Affine, ...] = ()
    active: tuple[Condition, ...] = ()
    regs: dict[RegKey, str] = field(default_factory=dict)
    sums: dict[str, Sums] = field(default_factory=dict)
    stored: dict[tuple[Load, tuple[int, ...], int], str] = field(default_factory=dict)
    apart: dict[tuple[str, str, str, int, int], list[str]] = field(default_factory=dict)
    certain: tuple[tuple[Node, ...], ...] = ()
    loaded: dict[tuple[object, ...], tuple[Value, Active]] = field(default_factory=dict)
    steady: dict[Expr, str] = field(default_factory=dict)
    inverses: dict[Expr, Inverse] = field(default_factory=dict)
    streams: bool = False
    past: bool = False
    checks: bool = False
    outlined: bool = False
    trips: Trips | None = None

    @property
    def nest(self) -> LoopNest:
        return self.shared.nest

    @property
    def width(self) -> int:
        return self.shared.width

    def open_axis(self, axis: Axis) -> None:
        self.axes[axis.index] = axis
        self._sort()

    def close_axis(self, index: str) -> None:
        del self.axes[index]
        self._sort()

    def _sort(self) -> None:
        self.lanes = next((a for a in self.axes.values() if a.kind == Kind.LANES), None)
        self.rows = tuple(a for a in self.axes.values() if a.kind == Kind.ROWS)

    def vectors(self) -> int:
        """How many vectors the open lanes axis takes."""
        return -(-self.lanes.extent // self.width) if self.lanes else 1

    def pieces(self) -> range:
        """Which of them are being written."""
        if self.lanes is None or self.lanes.piece is None:
            return range(self.vectors())
        return range(self.lanes.piece, self.lanes.piece + 1)

    def label(self, name: str) -> None:
        self.b.label(name)
        self.stored = {}
        self.apart = {}
        self.pinned = {}

    def forget(self, source: str, but: Load | None = None) -> None:
        """What was stored to the buffer `source`, but for what was stored to `but`."""
        self.stored = {k: x for k, x in self.stored.items() if k[0] == but or k[0].source != source}

    def forget_reads(self, source: str) -> None:
        """What was read of the buffer `source`, which has been written since."""
        self.apart = {k: x for k, x in self.apart.items() if k[0] != source}

    def slot(self, name: str, type_: str = "i64") -> str:
        """The argument called `name`, loaded at entry."""
        number = self.shared.slots[name]
        place = self.b.pure(f"getelementptr i64, ptr {self.args}, i64 {number}", self.args)
        return self.b.pure(f"load {type_}, ptr {place}, align 8", place)

    def multiple(self, x: Affine) -> int:
        """A number that divides `x` for certain; 0 if x is 0."""
        total = x.const
        for atom, factor in x.terms:
            known = 1
            if isinstance(atom, str):
                loop = next((f for f in reversed(self.loops) if f.index == atom), None)
                if loop is not None and atom not in self.axes:
                    known = gcd(loop.step, self.multiple(loop.lower)) if loop.lower != Affine() else loop.step
            elif atom.op in ("min", "max"):
                known = gcd(*map(self.multiple, atom.args))
            total = gcd(total, factor * known)
        return abs(total)

    def limit(self, name: str) -> int | None:
        """A constant that the serial index `name` never exceeds, if the loop around says one; it is then >= 0."""
        for loop in reversed(self.loops):
            if loop.index == name:
                top = [b.const - 1 for b in bounds(loop.upper) if b.is_constant]
                return max(0, min(top)) if top and loop.lower.is_constant and loop.lower.const >= 0 else None
        return None

    def nonnegative(self, x: Affine) -> bool:
        """Whether x >= 0 is plain from its signs."""
        def atom(a: object) -> bool:
            if isinstance(a, str):
                if a in self.nest.sizes or a in self.axes:
                    return True
                loop = next((f for f in reversed(self.loops) if f.index == a), None)
                return loop is not None and self.nonnegative(loop.lower)
            args, op = getattr(a, "args", ()), getattr(a, "op", "")
            if op == "max":
                return any(map(self.nonnegative, args))
            return op == "mod" or all(self.nonnegative(y) for y in args if not y.is_constant or y.const < 0)
        return x.const >= 0 and all(f > 0 and atom(a) for a, f in x.terms)


def slots_of(nest: LoopNest) -> dict[str, int]:
    """The slot of each argument: sizes and scalars by name, `T.ptr`, and `T.d` for stride d of tensor T."""
    out: dict[str, int] = {}
    at = 2
    for name in (*nest.sizes, *(n for n, _ in nest.scalars)):
        out[name] = at
        at += 1
    for b in nest.buffers:
        if b.space == Space.TENSOR:
            out[f"{b.name}.ptr"] = at
            for d in range(len(b.dims)):
                out[f"{b.name}.{d}"] = at + 1 + d
            at += 1 + len(b.dims)
    for b in nest.buffers:
        if b.space == Space.WORK:
            out[f"{b.name}.ptr"] = at
            at += 1
    return out


def require_buffer(nest: LoopNest, load: Load) -> Buffer:
    """The buffer that `load` names; raises InternalError if it has another number of dimensions."""
    b = nest.buffer(load.source)
    if len(b.dims) != len(load.index):
        raise InternalError(f"emit: {load} has {len(load.index)} indices for {b}")
    return b


@contextmanager
def only_if(s: State, test: str | None) -> Iterator[None]:
    """What is written inside runs only where `test` holds."""
    if test is None:
        yield
        return
    then, done = s.b.new_label(), s.b.new_label()
    s.b.line(f"br i1 {test}, label %{then}, label %{done}")
    s.label(then)
    yield
    s.b.line(f"br label %{done}")
    s.label(done)
