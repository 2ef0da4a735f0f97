"""What crosses the border between code generation and running: Module (text), Signature (how to call it), Binary, Proof.

The calling convention of every CPU kernel is one function `i64 name(ptr args)`. `args` is an array of 8-byte slots:

    0                       address of `void parallel(void (*body)(ptr args, i64 lo, i64 hi, i64 thread), ptr args,
                            i64 lo, i64 hi, i64 step, i64 threads)`, or 0 to run all parallel loops on the calling thread
    1                       number of threads that may take part (work space holds as many private copies)
    then each size          i64
    then each scalar        its bits in the low bytes of the slot
    then each tensor        address of element [0, .., 0], then one i64 stride in elements for each dimension
    then each work buffer   address, aligned to 64 bytes; a private one is followed by its siblings at a distance of
                            `slots * bytes` rounded up to 64

It returns 0, or the number (from 1) of the first computed position found outside its tensor; see Signature.sites.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, Load, evaluate
from polyop.ir.loops import Buffer


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments of a kernel in slot order. `sites`: the Loads (or targets) whose computed positions are checked."""

    name: str
    sizes: tuple[str, ...]
    scalars: tuple[tuple[str, DType], ...]
    tensors: tuple[Buffer, ...]
    work: tuple[Buffer, ...]
    sites: tuple[Load, ...] = ()


@dataclass(frozen=True, slots=True)
class Module:
    """The text of a kernel for a target: LLVM IR, CUDA or HIP."""

    name: str
    target: str
    text: str
    signature: Signature
    launch: tuple[Affine, ...] = ()   # GPU only: grid then block extents

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Binary:
    """Machine code for a target: an ELF object, cubin or code object."""

    name: str
    target: str
    code: bytes = field(repr=False)
    signature: Signature


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
    counts = [-(-max(0, evaluate(e, sizes)) // u) for e, u in b.dims]
    if counts and b.pad > 1:
        counts[-1] = -(-counts[-1] // b.pad) * b.pad
    total = 1
    for c in counts:
        total *= c
    return total
