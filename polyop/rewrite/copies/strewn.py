"""Operands that a block of a GPU's threads cannot bring to its tiles in pieces of 16 bytes are taken from copies that it can.

    Y[b, k, p, q] += X[b, c, p + r, q + s] * F[k, c, r, s]                            filters lie in pieces of s elements

    Ft[k, r, s, c] = F[k, c, r, s];   Y[b, k, p, q] += X[b, c, p + r, q + s] * Ft[k, r, s, c]

Copies to shared memory take 16 bytes at a time, at addresses that are multiples of that, and those of engines, too. What does
not lie like that is copied element by element, in each block and turn anew: of a convolution of 3 x 3 with 64 channels nearly
all instructions. A copy along what is added up has such pieces whatever window is read, since that shifts what is
beside it. It reads and writes each element once (`inward.py` makes it), and copies that do not need each other are one launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from polyop.ir.atoms import atoms_for
from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, affine, evaluate, loads, names, substitute
from polyop.ir.op import Op
from polyop.ir.target import Target
from polyop.rewrite.copies.contracted import Contractions

PIECE, LEAST = 16, 8
"""Bytes that are copied at once, and of those that may be in half as much: rows begin at multiples of these."""
AGAIN = 64
"""Multiply-adds with each element that make its copy worth it: a copy takes as long as some ten of them by a unit."""


@dataclass(frozen=True, slots=True)
class Strewn:
    """An input that the one contraction of an operator multiplies.

    depth    the dimension of it along which a copy should lie: the last one that is counted by what is added up, and nothing else
    shape    of it; index: where it is read; kept: the iterators of the result
    extents  of all iterators; dtypes: of both operands and the result
    columns  whether it has those of the result
    """

    source: str
    depth: int
    shape: tuple[Affine, ...]
    index: tuple[Affine, ...]
    kept: frozenset[str]
    extents: tuple[tuple[str, Affine], ...]
    dtypes: tuple[DType, DType, DType]
    columns: bool


def find_strewn(op: Op, contractions: Contractions) -> tuple[Strewn, ...]:
    """The inputs of the one product that `op` adds up; nothing, if there are more."""
    products = [(s, last, reads) for s, last in contractions if len(reads := tuple(dict.fromkeys(loads(s.expr)))) == 2]
    if len(products) != 1:
        return ()
    ((s, last, reads),) = products
    kept = frozenset(n for p in s.target.index for n in (names(p) if isinstance(p, Affine) else ()))
    extents = tuple((r.index, r.upper - r.lower) for r in s.ranges)
    if s.reduce is None or s.reduce.fn != "add" or not all(names(e) <= {*op.sizes} for _, e in extents):
        return ()
    found, dtypes = [], (reads[0].dtype, reads[1].dtype, s.target.dtype)
    for x, other in (reads, reads[::-1]):
        index, summed = tuple(p for p in x.index if isinstance(p, Affine)), {*s.indices} - kept
        alone = {p.name for p in other.index if isinstance(p, Affine)}
        deep = [d for d, p in enumerate(index) if p.name in summed & alone]
        shape = op.tensor(x.source).shape
        known = len(index) == len(x.index) and all(names(e) <= {*op.sizes} for e in shape)
        if op.tensor(x.source).role == "in" and x.source != other.source and deep and known:
            found.append(Strewn(x.source, deep[-1], shape, index, kept, extents, dtypes, any(last in names(p) for p in index)))
    return tuple(found)


def to_copy(found: tuple[Strewn, ...], sizes: Mapping[str, int], target: Target, numerics: str) -> tuple[tuple[str, int], ...]:
    """(input, dimension) of those that are copied to lie along that in a call of these sizes, in which arrays are contiguous.

    For matrix units alone: tiles of threads do not lie along the sum.
    """
    def is_for_unit(x: Strewn) -> bool:
        return any(a.exact or numerics == "tf32" for a in atoms_for(target, *x.dtypes))

    return tuple((x.source, x.depth) for x in found if target.copies and is_for_unit(x) and _pays(x, sizes)
                 and not _has_pieces(x, sizes)) if numerics != "strict" else ()


def _pays(x: Strewn, sizes: Mapping[str, int]) -> bool:
    """Whether a copy has rows of pieces, and elements that are used often."""
    shape, terms = [evaluate(e, sizes) for e in x.shape], prod(evaluate(e, sizes) for _, e in x.extents)
    return shape[x.depth] * _bytes(x) % PIECE == 0 and terms >= AGAIN * prod(shape)


def _has_pieces(x: Strewn, sizes: Mapping[str, int]) -> bool:
    """Whether it lies in pieces along a tile as it is: no window moves along them, and rows are whole ones."""
    long = [d for d, e in enumerate(x.shape) if evaluate(e, sizes) > 1]
    if not long or long[-1] == x.depth:
        return True
    one = {i: affine(0) for i, e in x.extents if evaluate(e, sizes) == 1}
    last = substitute(x.index[long[-1]], one)
    whole = evaluate(x.shape[long[-1]], sizes) * _bytes(x) % LEAST == 0 or len(long) == 1
    return whole and last.name in x.kept


def _bytes(x: Strewn) -> int:
    return x.dtypes[0].bytes_
