"""LoopNest: loops, tests and element-wise stores. Printer and one-line structure stand here; `ir/interpret.py` runs it.

The meaning of a nest is that of ordinary sequential loops, one element at a time. A loop's kind says how a target may
run it; the polyhedral layer proved that this gives the same:

  serial    one iteration after the other
  parallel  iterations in any order, on any thread; never inside a lock-step loop
  rows      a compile-time number of copies, unrolled in lock step: step by step of the body, not copy by copy
  lanes     in lock step too, one copy per vector lane
  atom      a side of the tile that a matrix unit takes at once; the lanes of a warp share the tile's elements (ir/atoms.py)
  threads   each iteration on a thread of its own, of one block of a GPU: iteration i on those whose number has the digit i,
            which is (number / weight) mod extent; all threads meet at a Barrier
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, IntEnum

from polyop.ir.dtypes import DType
from polyop.ir.errors import InternalError, assert_never
from polyop.ir.expr import Affine, Expr, Load, map_loads
from polyop.ir.op import Monoid


class Kind(str, Enum):
    SERIAL = "serial"
    PARALLEL = "parallel"
    ROWS = "rows"
    LANES = "lanes"
    THREADS = "threads"
    ATOM = "atom"

    __str__ = str.__str__


LOCKSTEP = (Kind.ROWS, Kind.LANES)
COUNTED = (*LOCKSTEP, Kind.THREADS, Kind.ATOM)
"""Kinds of loops with a constant number of iterations at most."""


IS_FIRST = "first?"
"""The integer argument that is 1 in a call which has to fill memory that lasts, and else 0; no name of a user looks like it."""


class Turn(IntEnum):
    """Which rows of a buffer in shared memory change places; `pop_turned` of `codegen/device` knows them by these numbers.

    EIGHTS, FOURS  of each 8 or 4 rows, 4 c + 2 b + a lies where 4 a + 2 b + c would, or 2 c + a where 2 a + c would: neighbours
                   are four lines or two apart
    PAIRS          of each 8 rows, the neighbours of the last four: 4 a + 2 b + c lies at 4 a + 2 b + (a xor c), so that four
                   neighbours, and four that are two apart, differ modulo four
    """

    NONE = 0
    PAIRS = 2
    FOURS = 4
    EIGHTS = 8


class Space(str, Enum):
    TENSOR = "tensor"   # an argument of the call
    WORK = "work"       # memory the caller provides for the time of the call
    SHARED = "shared"   # of a block of threads: lives inside one iteration of the parallel loops around
    STACK = "stack"     # memory of the function that runs, where a CPU's register buffers lie that its registers do not hold
    REG = "reg"         # registers: lives inside one iteration of the serial loops around its first store; of threads, each has
                        # its own, and what is indexed by the number of a thread is where that thread keeps it

    __str__ = str.__str__


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage of `dtype`, indexed like a tensor.

    dims     (extent, unit) for each: a dimension with unit u is indexed by a value in steps of u and has
             ceil(extent / u) slots
    unit     for a tensor: the dimension whose stride is known to be 1, or None; all other strides are run-time values
    pad      for work space: the innermost extent is rounded up to a multiple of this many elements, all of which may
             be read and written, so that a partial vector needs no mask
    private  for work space: one copy for each thread
    swizzle  for shared memory: the last dimension is cut into lines of so many bytes, L elements each, and the eighths of a
             line change places by the row, so that eight rows of a column lie in different banks. With Y rows in the
             dimension before,
                 { [.., y, x] -> [.., L (Y floor(x / L) + y) + ((x mod L) xor (L / 8) (y mod 8))] }
             is one to one on whole lines; an eighth of a line stays whole
    folded   of a swizzle: the row's next digit takes part too, (y xor floor(y / 8)) mod 8, so that eight rows of a column that
             are 2, 4 or 8 apart lie in different banks as well
    doubled  of a folded swizzle: instead of that number z, twice z in GF(8), modulo z^3 + z^2 + 1, so that lanes which have two
             neighbouring eighths of a row each meet none of another row
    turned   for shared memory: which rows in the dimension before the last one change places
    beyond   for work space: rows behind the last one, in the dimension before the last, that may be read, whatever they hold
    lasting  for work space: the same memory in all calls on the same frozen inputs, filled by the first one
    table    for a tensor of one dimension that nothing writes: it has at most so many elements, which registers may hold; as many
             as a byte can say (`ir/tables.py`), if that is the number; 0: more, or not known
    """

    name: str
    dtype: DType
    dims: tuple[tuple[Affine, int], ...]
    space: Space
    unit: int | None = None
    pad: int = 1
    private: bool = False
    beyond: int = 0
    swizzle: int = 0
    folded: bool = False
    doubled: bool = False
    turned: Turn = Turn.NONE
    lasting: bool = False
    table: int = 0

    def __post_init__(self) -> None:
        if self.swizzle and (self.space != Space.SHARED or len(self.dims) < 2 or any(u != 1 for _, u in self.dims[-2:])
                             or self.dims[-1][0].const * self.dtype.bytes_ % self.swizzle or self.dims[-2][0].const % 8):
            raise InternalError(f"buffer {self.name}: no lines of {self.swizzle} bytes to swizzle")
        if (self.folded and not self.swizzle) or (self.doubled and not self.folded):
            raise InternalError(f"buffer {self.name}: no swizzle to fold")
        if self.table and (self.space != Space.TENSOR or len(self.dims) != 1 or self.unit != 0):
            raise InternalError(f"buffer {self.name}: no elements side by side to be a table")
        if self.turned and (self.space != Space.SHARED or self.swizzle or len(self.dims) < 2
                            or self.dims[-2][1] != 1 or self.dims[-2][0].const % self.turned):
            raise InternalError(f"buffer {self.name}: rows cannot be turned, as {self.turned.name} of them")

    @property
    def dense(self) -> int | None:
        """The dimension whose neighbours lie side by side; None if none is known to be such, as of a single element."""
        return self.unit if self.space == Space.TENSOR else len(self.dims) - 1 if self.dims else None

    def __str__(self) -> str:
        dims = ", ".join(str(e) + (f"/{u}" if u > 1 else "") for e, u in self.dims)
        notes = [f"unit {self.unit}"] if self.unit is not None else []
        notes += [f"pad {self.pad}"] * (self.pad > 1) + ["private"] * self.private + ["lasting"] * self.lasting
        notes += [f"{self.beyond} rows beyond"] if self.beyond else []
        notes += [f"swizzle {self.swizzle}{' folded' * self.folded}{' doubled' * self.doubled}"] if self.swizzle else []
        notes += [f"turned {self.turned.value}"] if self.turned else []
        notes += [f"table of {self.table}"] if self.table else []
        return f"{self.name}: {self.dtype}[{dims}] {self.space}" + (f" ({', '.join(notes)})" if notes else "")


def eighth(row: int, b: Buffer) -> int:
    """By which eighth those of a line change places in a `row` of `b`, which is swizzled."""
    z = (row ^ (row // 8 if b.folded else 0)) % 8
    return (2 * z ^ z // 4 * 5) % 8 if b.doubled else z


def turned(row: int, of: Turn) -> int:
    """Where the row lies of a buffer whose rows are `turned` so: with `EIGHTS`, 8 k + 4 c + 2 b + a at 8 k + 4 a + 2 b + c."""
    if of == Turn.PAIRS:
        return row ^ row // 4 % 2
    half = of // 2
    return row - row % 2 - row // half % 2 * half + row % 2 * half + row // half % 2


@dataclass(frozen=True, slots=True)
class For:
    """`for index in [lower, upper)`, in steps of `step`. An `upper` at or below `lower` is legal: nothing runs.

    Rows, lanes and threads start at 0, lanes in steps of 1, and have at most the constant `extent` of iterations; with as
    many the loop is full.

    weight      of threads, see above
    persistent  of a parallel loop, the innermost one: a block of threads may take iterations of it and of those around one
                after the other, with the same shared memory, and with no barrier between them
    """

    index: str
    lower: Affine
    upper: Affine
    body: tuple[Node, ...]
    step: int = 1
    kind: Kind = Kind.SERIAL
    extent: int | None = None
    weight: int = 0
    persistent: bool = False

    def __post_init__(self) -> None:
        if self.step < 1:
            raise InternalError(f"loop {self.index} has step {self.step}; steps are positive")
        if self.kind in COUNTED and (self.lower != Affine() or not self.extent):
            raise InternalError(f"loop {self.index}: {self.kind} needs an extent, and starts at 0")
        if self.kind == Kind.LANES and self.step != 1:
            raise InternalError(f"loop {self.index}: lanes go in steps of 1")
        if (self.kind == Kind.THREADS) != (self.weight > 0):
            raise InternalError(f"loop {self.index}: threads, and nothing else, have a weight")
        if self.persistent and self.kind != Kind.PARALLEL:
            raise InternalError(f"loop {self.index}: a block takes iterations of parallel loops, and of nothing else")

    @property
    def end(self) -> int:
        """What `upper` never exceeds."""
        return (self.extent or 0) * self.step

    @property
    def is_full(self) -> bool:
        """Whether a loop of constant extent has all its iterations, always."""
        return self.extent is not None and self.upper == Affine(const=self.end)


@dataclass(frozen=True, slots=True)
class If:
    """`then` where every test is >= 0, else `other`."""

    tests: tuple[Affine, ...]
    then: tuple[Node, ...]
    other: tuple[Node, ...] = ()


@dataclass(frozen=True, slots=True)
class IfData:
    """`then` where `test`, a truth made of data, holds, else `other`. Only rewrites write it, after a nest is proved."""

    test: Expr
    then: tuple[Node, ...]
    other: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Store:
    """`target = expr`, or `target reduce= expr`, for one element.

    stmt      which statement of the tile program this is
    instance  the values of that statement's coordinates here
    origin    the Scop statement it carries out, or None if it only moves data
    lift      the values of the origin's iterators here: a claim that the checker verifies
    stream    the value is not read again soon: a target may bypass its caches
    outlasts  a Barrier: what it reads in shared memory may be read until the second one behind it, as a unit may multiply while
              its threads pass one. Only as long as the serial loop around it goes on, or others of which each has nothing but
              the next one in it (`nested`): until the next Barrier behind those
    atomic    of a reduction: several threads may update the element at once, and each update is indivisible
    later     a target may copy the value while the thread goes on, or have another one copy it: it arrives when a Barrier has
              waited for its group
    """

    stmt: str
    instance: tuple[Affine, ...]
    origin: str | None
    lift: tuple[Affine, ...]
    target: Load
    reduce: Monoid | None
    expr: Expr
    stream: bool = False
    later: bool = False
    atomic: bool = False
    outlasts: bool = False


@dataclass(frozen=True, slots=True)
class Prefetch:
    """A hint that `place` is needed soon; it may lie outside its buffer.

    written   to be written, unless what is there bypasses the caches
    cache     which one it comes to, counted from 1
    once      each line has one hint, not one for each vector in it
    least     bytes of its buffer from which that pays; of a smaller one there is none, or, if `ahead` is known, one for what lies
              so many elements before `place` and is read now, so that it costs next to nothing and no branch
    """

    place: Load
    written: bool = False
    cache: int = 1
    once: bool = False
    least: int = 0
    ahead: Affine | None = None


@dataclass(frozen=True, slots=True)
class Barrier:
    """No thread of a block goes on before all are here, and before copies have arrived.

    The copies that arrive `later` and that a thread starts between two Barriers are a group, which the second one closes; so
    each Barrier closes one, empty or not. All groups have arrived then but the `pending` newest ones.

    reason   the dependence that needs it
    handed   it stands between copies and other accesses alone: threads need not wait for each other, only for copies, and what
             is copied behind it for them
    """

    reason: str
    pending: int = 0
    handed: bool = False

    def __post_init__(self) -> None:
        if self.pending < 0:
            raise InternalError(f"a barrier leaves {self.pending} groups of copies on their way")


Node = For | If | IfData | Store | Prefetch | Barrier

_BRANCHES = (If, IfData)


@dataclass(frozen=True, slots=True)
class LoopNest:
    """One kernel. `sizes` are its integer arguments, `scalars` its scalar ones, in order; `buffers` likewise.

    in_place   (tensor that is read, tensor that is written) which may be one memory: each element is read to replace itself
    """

    name: str
    sizes: tuple[str, ...]
    scalars: tuple[tuple[str, DType], ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Node, ...]
    in_place: tuple[tuple[str, str], ...] = ()

    def buffer(self, name: str) -> Buffer:
        for b in self.buffers:
            if b.name == name:
                return b
        raise InternalError(f"nest {self.name} has no buffer {name}")

    def __str__(self) -> str:
        head = [f"nest {self.name}({', '.join([*self.sizes, *(f'{n}: {t}' for n, t in self.scalars)])})"]
        return "\n".join([*head, *(f"  {b}" for b in self.buffers), *(line for n in self.body for line in show(n, 1))])


def rebuild(n: Node, f: Callable[[tuple[Node, ...]], tuple[Node, ...]]) -> Node:
    """`n` with `f` applied to each of its bodies; itself, if these stay as they are, as in most passes most do."""
    match n:
        case For(body=b):
            new = f(b)
            return n if _same(b, new) else replace(n, body=new)
        case If(then=a, other=b) | IfData(then=a, other=b):
            then, other = f(a), f(b)
            return n if _same(a, then) and _same(b, other) else replace(n, then=then, other=other)
    return n


def _same(a: tuple[Node, ...], b: tuple[Node, ...]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def map_accesses(body: tuple[Node, ...], f: Callable[[Load], Load]) -> tuple[Node, ...]:
    """`body` with `f` applied to each Load that a store writes or reads, innermost first."""
    def one(n: Node) -> Node:
        if not isinstance(n, Store):
            return rebuild(n, lambda inner: map_accesses(inner, f))
        target = map_loads(n.target, f)
        assert isinstance(target, Load)
        return replace(n, target=target, expr=map_loads(n.expr, f))
    return tuple(map(one, body))


def children(n: Node) -> tuple[Node, ...]:
    return n.body if isinstance(n, For) else n.then + n.other if isinstance(n, _BRANCHES) else ()


def walk(body: tuple[Node, ...]) -> Iterator[Node]:
    """Every node, parents first."""
    todo = list(reversed(body))
    while todo:
        n = todo.pop()
        yield n
        if not isinstance(n, Store):
            todo += children(n)[::-1]


def has_loop(body: tuple[Node, ...]) -> bool:
    """Whether there is a loop in `body` that does not run in lock step."""
    return any(isinstance(n, For) and n.kind not in LOCKSTEP for n in walk(body))


def stores(body: tuple[Node, ...]) -> tuple[Store, ...]:
    return tuple(n for n in walk(body) if isinstance(n, Store))


def placed(body: tuple[Node, ...], *kinds: Kind, around: tuple[For, ...] = ()) -> Iterator[tuple[Store, tuple[For, ...]]]:
    """The stores of a body in text order, each with the loops of these kinds around it, from the outermost in."""
    for n in body:
        if isinstance(n, Store):
            yield n, around
        yield from placed(children(n), *kinds, around=(*around, n) if isinstance(n, For) and n.kind in kinds else around)


def sign(reduce: Monoid | None) -> str:
    """How a store with this monoid is written."""
    return "=" if reduce is None else {"add": "+=", "mul": "*="}.get(reduce.name, f"{reduce.name}=")


def show(n: Node, depth: int) -> list[str]:
    """The lines of one node."""
    pad = "  " * depth
    match n:
        case For():
            weight = f" by {n.weight}" if n.weight else ""
            stays = ", persistent" if n.persistent else ""
            kind = "" if n.kind == Kind.SERIAL else f"  ({n.kind}{f' {n.extent}' if n.extent else ''}{weight}{stays})"
            step = f" by {n.step}" if n.step != 1 else ""
            return [f"{pad}for {n.index} in [{n.lower}, {n.upper}){step}{kind}"] + [x for b in n.body for x in show(b, depth + 1)]
        case If() | IfData():
            test = str(n.test) if isinstance(n, IfData) else " and ".join(f"{t} >= 0" for t in n.tests)
            head = [f"{pad}if {test}"] + [x for b in n.then for x in show(b, depth + 1)]
            return head + ([f"{pad}else"] + [x for b in n.other for x in show(b, depth + 1)] if n.other else [])
        case Store():
            said = ((n.stream, "stream"), (n.later, "later"), (n.outlasts, "outlasts"), (n.atomic, "atomic"))
            notes = "".join(f"  ({word})" for holds, word in said if holds)
            return [f"{pad}{n.target} {sign(n.reduce)} {n.expr}{notes}"]
        case Prefetch():
            hint = ((n.cache > 1, f"cache {n.cache}"), (n.least > 0, f"from {n.least >> 20} MB"))
            return [f"{pad}prefetch {n.place}" + "".join(f"  ({word})" for holds, word in hint if holds)]
        case Barrier():
            late = f" but for {n.pending} groups of copies" if n.pending else ""
            return [f"{pad}barrier{' of copies' if n.handed else ''}{late}: {n.reason}"]
    assert_never(n)


def structure(body: tuple[Node, ...]) -> str:
    """The shape in one line: `m_r(n_r(n_v:lanes(m_p:rows(init) k_p(m_p:rows(update)))))`."""
    def one(n: Node) -> str:
        match n:
            case For():
                return n.index + ("" if n.kind == Kind.SERIAL else f":{n.kind}") + f"({structure(n.body)})"
            case If() | IfData():
                return f"if({structure(n.then)}" + (f" | {structure(n.other)})" if n.other else ")")
            case Store():
                return n.stmt
            case Prefetch():
                return "prefetch"
            case Barrier():
                return "barrier"
        assert_never(n)
    return " ".join(map(one, body))
