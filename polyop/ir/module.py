"""What crosses the border between code generation and running: Module (text), Signature (how to call it), Binary, Proof.

The calling convention of every CPU kernel is one function `i64 name(ptr args)`. `args` is an array of 8-byte slots:

    0                       address of `void parallel(void (*body)(ptr args, i64 lo, i64 hi, i64 thread), ptr args,
                            i64 lo, i64 hi, i64 step, i64 threads, i64 work, i64 lot)`, or 0 to run all parallel loops on
                            the calling thread; `work` says about how many operations on registers all of it is, `lot` how
                            many trips in a row begin with one copy, from a multiple of that on. A kernel that was not
                            compiled for several threads (`Options.threads`) does not look at it
    1                       number of threads that may take part (work space holds as many private copies)
    then each size          i64
    then each scalar        its bits in the low bytes of the slot
    then each tensor        address of element [0, .., 0], then one i64 stride in elements for each dimension
    then each work buffer   address, aligned to 64 bytes; a private one is followed by its siblings at a distance of
                            `slots * bytes` rounded up to 64, and a page: else a processor that reads its own to the end
                            fetches ahead the lines that another one is writing

It returns 0, or the number (from 1) of the first computed position found outside its tensor; see Signature.sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from polyop.ir.dtypes import DType
from polyop.ir.errors import InternalError, assert_never
from polyop.ir.expr import Affine, Load, evaluate
from polyop.ir.loops import Buffer
from polyop.ir.reach import Reach
from polyop.ir.target import LINE, PAGE


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a kernel in slot order.

    sites       the Loads (or targets) whose computed positions are checked
    first_call  a digest of what the first call does in memory that lasts, which kernels with the same one share; or empty
    """

    name: str
    sizes: tuple[str, ...]
    scalars: tuple[tuple[str, DType], ...]
    tensors: tuple[Buffer, ...]
    work: tuple[Buffer, ...]
    sites: tuple[Load, ...] = ()
    first_call: str = ""


@dataclass(frozen=True, slots=True)
class Boxes:
    """A tensor of which a kernel has boxes copied by an engine that knows its matrix.

    dims      the tensor's dimensions as the engine counts them: that of unit stride first
    box       how many elements a box has in each of them
    swizzle   bytes of the lines in shared memory whose eighths change places
    steps     how far it is from one of them to the next in each dimension; () where that is 1 in all
    """

    tensor: str
    dims: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocks:
    """Points for which blocks start: `extents` and `points` as in Launch."""

    extents: tuple[Affine, ...]
    points: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Start `kernel` for each point of `extents`; nothing starts if one of them is below 1.

    extents  counts, the last one fastest among neighbouring threads; they may use the indices of host loops around
    block    threads in a block; the grid has as many blocks as hold all points
    args     names in the order of the kernel's arguments: sizes and scalars by value, a tensor as address and one i64
             stride in elements for each dimension, a work buffer as address, STATUS as the address of a u32 that holds
             0 or the number of a site, the index of a host loop by value
    writes   the buffers among them that the kernel stores to
    shared   bytes of dynamic shared memory of each block
    points   how many points one block takes; None: as many as it has threads, one each; 1: its threads share a point
    reach    how far the kernel's indices get, if these have 32 bits: see `ir/reach.py`
    persistent  each multiprocessor has one block, which takes point after point; else each point has a block of its own
    boxes    behind `args`, for each: 128 bytes that tell an engine of the tensor, and a u32, whether they do; if it does not lie
             as the engine needs it, the kernel copies its boxes otherwise
    more     points whose blocks follow, each with something else to do
    """

    kernel: str
    extents: tuple[Affine, ...]
    block: int
    args: tuple[str, ...]
    writes: tuple[str, ...]
    shared: int = 0
    points: int | None = None
    reach: tuple[Reach, ...] = ()
    boxes: tuple[Boxes, ...] = ()
    persistent: bool = False
    more: tuple[Blocks, ...] = ()

    def __post_init__(self) -> None:
        points = (self.points, *(p.points for p in self.more))
        if self.block < 1 or self.shared < 0 or any(p is not None and p < 1 for p in points):
            raise InternalError(f"launch of {self.kernel}: {self.block} threads, {self.shared} shared bytes and {points} "
                                "points for each block")


@dataclass(frozen=True, slots=True)
class HostLoop:
    """The host runs `body` for `index` in [lower, upper), in steps of `step`."""

    index: str
    lower: Affine
    upper: Affine
    step: int
    body: tuple[HostStep, ...]


@dataclass(frozen=True, slots=True)
class HostIf:
    """The host runs `then` where every test is >= 0, else `other`."""

    tests: tuple[Affine, ...]
    then: tuple[HostStep, ...]
    other: tuple[HostStep, ...] = ()


HostStep = Launch | HostLoop | HostIf

STATUS = "status*"
"""How `Launch.args` calls the status word; no name of a user looks like it."""


def launches(plan: tuple[HostStep, ...]) -> tuple[Launch, ...]:
    """Every launch of a host plan in text order."""
    out: list[Launch] = []
    for p in plan:
        match p:
            case Launch():
                out.append(p)
            case HostLoop(body=body):
                out += launches(body)
            case HostIf(then=then, other=other):
                out += launches(then + other)
            case _:
                assert_never(p)
    return tuple(out)


def in_order(plan: tuple[HostStep, ...], env: Mapping[str, int]) -> Iterator[tuple[Launch, dict[str, int]]]:
    """The launches a host carries out, one after the other, each with the values of sizes and host loop indices."""
    for p in plan:
        match p:
            case Launch():
                yield p, dict(env)
            case HostLoop():
                for i in range(evaluate(p.lower, env), evaluate(p.upper, env), p.step):
                    yield from in_order(p.body, {**env, p.index: i})
            case HostIf():
                yield from in_order(p.then if all(evaluate(t, env) >= 0 for t in p.tests) else p.other, env)
            case _:
                assert_never(p)


@dataclass(frozen=True, slots=True)
class Module:
    """The text of a kernel for a target: LLVM IR, CUDA or HIP.

    launch   GPU only: what the host does, in order
    is_full  CPU only: whether some loop carries round as many vectors as there are registers beside what it reads
    """

    name: str
    target: str
    text: str
    signature: Signature
    launch: tuple[HostStep, ...] = ()
    is_full: bool = False

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code for a target: an ELF object, cubin or code object, and for a GPU what its host does."""

    name: str
    target: str
    code: bytes = field(repr=False)
    signature: Signature
    launch: tuple[HostStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """One claim about a nest: whether it holds, for every size; if not, the case that breaks it; and its cost."""

    claim: str
    holds: bool
    witness: str = ""
    ms: float = 0.0

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'FAILS'}  {self.claim}" + (f"  ({self.witness})" if self.witness else "")


def slots(b: Buffer, sizes: dict[str, int]) -> int:
    """How many elements one copy of a work buffer takes, with its padding."""
    return prod(_counts(b, sizes))


def dense(b: Buffer, sizes: dict[str, int]) -> tuple[int, ...]:
    """The strides of a work buffer, in elements."""
    counts = _counts(b, sizes)
    return tuple(prod(counts[d + 1:]) for d in range(len(counts)))


def _counts(b: Buffer, sizes: dict[str, int]) -> list[int]:
    counts = [-(-max(0, evaluate(e, sizes)) // u) for e, u in b.dims]
    if counts and b.pad > 1:
        counts[-1] = -(-counts[-1] // b.pad) * b.pad
    return counts


def room(b: Buffer, sizes: dict[str, int], threads: int) -> int:
    """Bytes that a work buffer takes, with its siblings and a page behind each if it is private and there are several threads.

    And the rows behind the last of them that may be read.
    """
    one = -(-slots(b, sizes) * b.dtype.bytes_ // LINE) * LINE
    behind = -(-b.beyond * _counts(b, sizes)[-1] * b.dtype.bytes_ // LINE) * LINE if b.beyond else 0
    return ((one + PAGE) * threads if b.private and threads > 1 else one) + behind
