"""Products of matrices over (or, and) count: whether some two of a row and a column are true together is whether there are any.

    C[m, n] or= A[m, k] and B[k, n]     becomes     a[m, k] = u8(A[m, k]);  b[k, n] = i8(B[k, n])
                                                    T[m, n] += i32(a[m, k]) * i32(b[k, n]);  C[m, n] = T[m, n] != 0

Instructions add up products of 64 pairs of bytes and more, or of 16 pairs of words where there are none for bytes. `and= x or y`
asks whether there are none of which neither holds, and `^= x & y`, a product of matrices of bits, whether their number is odd;
`+= i32(x and y)` asks for that number itself. Sums of integers are taken modulo 2^32: that many are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from polyop.ir.dots import dot
from polyop.ir.dtypes import BOOL, I8, I16, I32, U8, DType
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, expr_names, is_computed, loads, volume
from polyop.ir.op import Op, Step, Tensor, builtin_monoid
from polyop.ir.target import Target
from polyop.rewrite.folds import is_box, plain_indices
from polyop.rewrite.instead import Instead, each_instead, made_of
from polyop.rewrite.names import all_names, fresh

SHARED = 16
"""Results that share an element of either operand which make it worth it to write that as a byte: 8 x 8 of 64 terms take 1.3
of the time so, and of 1000 terms 0.8; 16 x 16 take 0.9 and 0.5."""
MOST = 1 << 31
"""What is counted stays below this."""
SIDES = ((U8, I8), (I16, I16))
"""What truths may become, the best first."""

BOTH, EITHER, NOT = ("and", "bitand", "min", "mul"), ("or", "bitor", "max", "add"), ("not", "invert")
"""How a text may say of truths that both hold, that one does, that one does not."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """A reduction over pairs of truths: `left` has rows, `right` columns.

    columns, rows, added   the extents of what the result has and `left`, or `right`, does without, and of what it has not
    """

    step: Step
    left: Expr
    right: Expr
    columns: tuple[Affine, ...]
    rows: tuple[Affine, ...]
    added: tuple[Affine, ...]


def find_pairs(op: Op) -> tuple[Pairs, ...]:
    """Those of `op` that may be counted."""
    return tuple(x for x in (_pairs(op, s) for s in op.steps) if x)


def counting_pays(found: Sequence[Pairs], sizes: Mapping[str, int], target: Target) -> bool:
    """Whether `target` has an instruction that counts, and each of them results enough for it, and not too many terms."""
    if _sides(target) is None:
        return False
    return all(min(volume(x.columns, sizes), volume(x.rows, sizes)) >= SHARED and volume(x.added, sizes) < MOST for x in found)


def _sides(target: Target) -> tuple[DType, DType] | None:
    """The types of two truths whose products `target` adds up."""
    return next((x for x in SIDES if dot(target, target.vector_bytes, I32, *x, strict=True)), None)


def counted(op: Op, target: Target) -> Op:
    """`op` with such reductions as counts, as `target` does it."""
    taken, sides = all_names(op), _sides(target) or SIDES[0]

    def instead(x: Pairs) -> Instead:
        s, name = x.step, x.step.target.source
        left, right = (made_of(s, Apply("cast", (e,), t), fresh(f"{name}_{word}", taken))
                       for e, t, word in zip((x.left, x.right), sides, ("left", "right"), strict=True))
        count = Tensor(fresh(f"{name}_count", taken), I32, op.tensor(name).shape, "temp")
        total = replace(s.target, source=count.name, dtype=I32)
        a, b = (Apply("cast", (y.element,), I32) for y in (left, right))
        summed = replace(s, target=total, reduce=builtin_monoid("add", I32), expr=Apply("mul", (a, b), I32))
        kept = tuple(r for r in s.ranges if r.index in expr_names(s.target))
        return (left.tensor, right.tensor, count), (left.step, right.step, summed,
                                                    replace(s, reduce=None, expr=_answer(s, total), ranges=kept))

    return each_instead(op, find_pairs(op), instead)


def _answer(s: Step, total: Load) -> Expr:
    """What `s` says of such a count."""
    none = Const(0, I32)
    if _name(s) == "add":
        return Apply("cast", (total,), s.target.dtype) if s.target.dtype != I32 else total
    if _name(s) == "bitxor":
        return Apply("ne", (Apply("bitand", (total, Const(1, I32)), I32), none), BOOL)
    return Apply("eq" if _name(s) in BOTH else "ne", (total, none), BOOL)


def _pairs(op: Op, s: Step) -> Pairs | None:
    """Where nothing but this step writes its result, all of it, and ranges are boxes from 0 on."""
    kept = plain_indices(s.target, s.indices)
    whole = _as_truth(s)
    if whole is None or not kept or s.where or not is_box(op, s):
        return None
    extents = {r.index: r.upper for r in s.ranges}
    if len(op.steps_of(s.target.source)) != 1 or tuple(extents[i] for i in kept) != op.tensor(s.target.source).shape:
        return None
    truths = list(_truths(whole, _name(s) in BOTH and s.target.dtype == BOOL))
    sides = [[x for x in truths if (kept[-1] in expr_names(x)) == which] for which in (False, True)]
    if not all(sides) or any(is_computed(p) for x in truths for y in loads(x) for p in y.index):
        return None
    left, right = (reduce(lambda a, b: Apply("and", (a, b), BOOL), side) for side in sides)
    columns, rows = (tuple(extents[i] for i in kept if i not in expr_names(x)) for x in (left, right))
    added = [i for i in extents if i not in kept]
    if not rows or not {*added} <= expr_names(left) & expr_names(right) or not added:
        return None
    return Pairs(s, left, right, columns, rows, tuple(extents[i] for i in added))


def _as_truth(s: Step) -> Expr | None:
    """What `s` asks about, or counts: a number that is 1 where it holds, and else 0."""
    if s.target.dtype == BOOL:
        return s.expr if _name(s) in (*BOTH, *EITHER, "bitxor") else None
    return _counts(s.expr) if _name(s) == "add" and s.target.dtype.kind in ("int", "uint") and s.target.dtype.bits >= 32 else None


def _counts(e: Expr) -> Expr | None:
    """The truth that the number `e` is 1 for, and 0 where it does not hold; None if it is something else."""
    match e:
        case Apply(fn="cast", args=(x,)):
            return x if x.dtype == BOOL else None
        case Apply(fn="select", args=(x, Const(value=1), Const(value=0))):
            return x if x.dtype == BOOL else None
        case Apply(fn="mul" | "bitand", args=(a, b)):
            first, second = _counts(a), _counts(b)
            return Apply("and", (first, second), BOOL) if first and second else None
    return None


def _name(s: Step) -> str:
    return s.reduce.name if s.reduce else ""


def _truths(e: Expr, denied: bool) -> Iterator[Expr]:
    """What all have to hold for `e` to hold, or not to."""
    match e:
        case Apply(fn=fn, args=(a, b), dtype=t) if t == BOOL and fn in (EITHER if denied else BOTH):
            yield from _truths(a, denied)
            yield from _truths(b, denied)
        case Apply(fn=fn, args=(a,)) if fn in NOT and a.dtype == BOOL:
            yield from _truths(a, not denied)
        case _:
            yield Apply("not", (e,), BOOL) if denied else e
