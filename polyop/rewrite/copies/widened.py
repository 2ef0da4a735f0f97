"""Narrow operands of a product of matrices, which uses them again and again, are widened once, to what the target multiplies.

    C[m, n] += f32(A[m, k]) * f32(B[k, n])     becomes     a[m, k] = f32(A[m, k]);  C[m, n] += a[m, k] * f32(B[k, n])

The loop of a register tile otherwise widens what it reads: elements of the left operand for each tile of columns, on ports that
multiply too, so that f16 had half the speed of f32. Of the right operand it widens vectors, once for each tile of rows; to do it
before is worth its traffic only for many more rows.

Where there is an instruction for sums of products of a type that has all numbers of both operands, they get that, as bytes that
are weights of bf16 activations do:

    C[m, n] += f32(A[m, k]) * f32(B[n, k])     becomes     b[n, k] = bf16(B[n, k]);  C[m, n] += f32(A[m, k]) * f32(b[n, k])

So do bytes of which the target multiplies no vectors but of words, as processors without VNNI do: pairs of words, exactly.

    C[m, n] += i32(A[m, k]) * i32(B[k, n])     becomes     a[m, k] = i16(A[m, k]);  b[k, n] = i16(B[k, n]);  C[m, n] += ..

Widening is exact: the sums are those of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from polyop.ir.casts import lossless
from polyop.ir.dots import dot, product
from polyop.ir.dtypes import BF16, DTYPES, F32, I16, I32, U32, DType
from polyop.ir.expr import Affine, Apply, Expr, Load, expr_names, map_loads, names, volume
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.target import Target
from polyop.rewrite.beyond import read_beyond
from polyop.rewrite.folds import known_behind, plain_indices
from polyop.rewrite.instead import made_of_each
from polyop.rewrite.names import all_names
from polyop.rewrite.sums.terms import single_products
from polyop.rewrite.sums.zeros import multiplied_out

LEAST = 16
"""Results that share an element of the left operand which make it worth it to widen that to f32, of two rows or more."""
ROWS = 192
"""The same of the right one."""
SHARED = 16
"""The same of both, to get an instruction for bf16."""
COLUMNS, PAIRED, IN_PLACE = 5, 7, 9
"""The same of the left operand and of the right one for words, and where the right one lies along what is added up: fewer rows
read it where it is, once."""


@dataclass(frozen=True, slots=True)
class Wide:
    """A sum of products of two narrow numbers: `left` has rows, and `right` columns.

    column, total   the index of the columns, and the type of the sum
    columns, rows   the extents of what is kept and `left`, or `right`, does without
    is_alone        whether it is the only sum of its operator, and both are given
    is_apart        whether it is one only once factors stand behind it
    """

    left: Load
    right: Load
    column: str
    total: DType
    columns: tuple[Affine, ...]
    rows: tuple[Affine, ...]
    is_alone: bool
    is_apart: bool


def find_wide(op: Op) -> tuple[Wide, ...]:
    """The sums of `op` that are such."""
    op = read_beyond(op)
    alone = sum(s.reduce is not None for s in op.steps) == 1
    whole = multiplied_out(op)
    plain, apart = ({s.target.source: x for s in o.steps if (x := _wide(o, s, alone, o is not whole))}
                    for o in (whole, single_products(op)))
    return tuple((apart | plain).values())


def _wide(op: Op, s: Step, is_alone: bool, is_apart: bool) -> Wide | None:
    kept, factors = plain_indices(s.target), product(s.expr)
    if s.reduce is None or s.reduce.name != "add" or factors is None or factors.raised or not kept:
        return None
    both, total = (factors.a, factors.b), s.target.dtype
    wide = {F32: F32, I32: I16, U32: I16}.get(total)
    if wide is None or any(x.dtype.bytes_ > 2 or not lossless(x.dtype, wide) for x in both):
        return None
    given = [op.tensor(x.source).role == "in" for x in both]
    if any(not (g or x.dtype == BF16 or (wide == I16 and known_behind(op, x.source))) for x, g in zip(both, given, strict=True)):
        return None
    having = [x for x in both if kept[-1] in expr_names(x)]
    extents = {r.index: r.upper - r.lower for r in s.ranges}
    if len(having) != 1 or any(not names(e) <= set(op.sizes) for e in extents.values()):
        return None
    (right,) = having
    left = both[both[0] == right]
    columns, rows = (tuple(extents[i] for i in kept if i not in expr_names(x)) for x in (left, right))
    return Wide(left, right, kept[-1], total, columns, rows, is_alone and all(given), is_apart)


def to_widen(found: Sequence[Wide], sizes: Mapping[str, int], target: Target, strict: bool) -> tuple[tuple[str, str], ...]:
    """(operand, type) of those that are worth it in a call of these sizes."""
    out = dict[str, str]()
    for x in found:
        columns, rows = (volume(beside, sizes) for beside in (x.columns, x.rows))
        to = _taken(x, target, strict)
        least = _least(x)
        if to and columns >= least[0] and rows >= least[1]:
            out |= {y.source: to.name for y in (x.left, x.right) if y.dtype != to}
        elif not to and x.total == F32 and x.is_alone and not x.is_apart and columns >= LEAST and rows > 1:
            out |= {y.source: F32.name for y in (x.left, *([x.right] if rows >= ROWS else []))}
    return tuple(out.items())


def _least(x: Wide) -> tuple[int, int]:
    """Results that share an element of the left operand, and of the right one, which make it worth it to get an instruction."""
    if x.total == F32:
        return SHARED, SHARED
    last = x.right.index[-1]
    return COLUMNS, PAIRED if isinstance(last, Affine) and x.column in names(last) else IN_PLACE


def _taken(x: Wide, target: Target, strict: bool) -> DType | None:
    """The type of both operands for which there is an instruction, and which has all their numbers."""
    if x.is_apart and strict:
        return None
    both = x.left.dtype, x.right.dtype
    if x.total != F32:
        own, words = (dot(target, target.vector_bytes, x.total, *pair, strict) for pair in (both, (I16, I16)))
        return I16 if words and not own else None
    return next((t for t in (BF16,) if all(lossless(y, t) for y in both)
                 and dot(target, target.vector_bytes, F32, t, t, strict)), None)


def _cast(to: DType, x: Load) -> Expr:
    return Apply("cast", (x,), to)


def widened(op: Op, operands: Sequence[tuple[str, str]]) -> Op:
    """`op` with these operands of its sums widened before, to these types."""
    if not operands:
        return op
    op = read_beyond(op)
    if any(x.is_apart and {x.left.source, x.right.source} & {*dict(operands)} for x in find_wide(op)):
        op = single_products(op)
    taken, copies = all_names(op), dict[int, list[Step]]()
    wide: dict[str, Tensor] = {}
    for name, to in operands:
        dtype = DTYPES[to]
        wide[name], made = made_of_each(op.tensor(name), "wide", dtype, partial(_cast, dtype), taken)
        copies.setdefault(known_behind(op, name), []).append(made)

    def one(s: Step) -> Step:
        factors = product(s.expr) if s.reduce is not None and s.target.dtype in (F32, I32, U32) else None
        if factors is None or not isinstance(s.expr, Apply):
            return s
        return replace(s, expr=replace(s.expr, args=tuple(map(instead, s.expr.args))))

    def instead(e: Expr) -> Expr:
        inner = e.args[0] if isinstance(e, Apply) and e.fn == "cast" else None
        if not isinstance(inner, Load) or inner.source not in wide:
            return e
        new = wide[inner.source]
        found = map_loads(inner, lambda x: replace(x, source=new.name, dtype=new.dtype) if x == inner else x)
        return found if new.dtype == e.dtype else Apply("cast", (found,), e.dtype)

    steps = tuple(x for k, s in enumerate((*op.steps, None)) for x in (*copies.get(k, ()), *((one(s),) if s else ())))
    return replace(op, tensors=(*op.tensors, *wide.values()), steps=steps)
