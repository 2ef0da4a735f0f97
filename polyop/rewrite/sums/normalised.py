"""What is known of rows whose powers of distances from their greatest element are added up.

    top[i] max= t[i, j];  z[i] += exp(t[i, j] - top[i]);  Y[i, j] = e[i, j] / z[i]

The greatest element's own power is 1, so that z is at least 1, or NaN: `e / min(max(z, 1), 2^64)` is the same, and a division by
a number of moderate size takes an instruction less (`vecmath/quotient.py`). It is so of elements that are read; of a product the
maximum is perhaps taken off before it is rounded. And where an element is NaN, so is z, and all that z is added to or divides:
`top` may then be any number, and to find a maximum that need not be NaN takes one instruction, not three.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from polyop.ir.affine import Affine
from polyop.ir.dtypes import BOOL, DType
from polyop.ir.expr import Apply, Const, Expr, Load, Scalar, rebuild
from polyop.ir.op import Monoid, Op, Step
from polyop.rewrite.folds import is_box, plain_indices, pointwise
from polyop.rewrite.sums.faint import LEAST, is_from_the_top

SIZES = 1.0, 2.0**64
"""Such a sum is no less, and of no more elements."""
SPREADING = ("add", "sub", "mul", "div", "neg", "log", "log2", "exp", "exp2", "sqrt")
"""Functions that are NaN where an argument is."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of powers: the greatest elements, the sums, and the step that has the powers, with the place of the rows' index there.

    powers   the temporary that this step makes; None if it is the sum itself
    """

    top: str
    total: str
    powers: str | None
    along: int


def told_of_rows(op: Op) -> Op:
    """`op` with such divisors and maxima."""
    rows = [x for s in op.steps if (x := _rows(op, s)) is not None]
    if not rows:
        return op
    totals, free = {x.total for x in rows}, {x.top for x in rows if _spreads(op, x)}
    steps = (replace(s, expr=e) if (e := _divided(s.expr, totals)) is not s.expr else s for s in op.steps)
    return replace(op, steps=tuple(_without_nan(s) if s.target.source in free else s for s in steps))


def _rows(op: Op, s: Step) -> Rows | None:
    """The rows whose powers `s` adds up, all of them; None if it does no such thing."""
    if s.reduce is None or s.reduce.name != "add":
        return None
    p = pointwise(op, s.expr.source) if isinstance(s.expr, Load) else s
    match p.expr if p else None:
        case Apply(fn=fn, args=(Apply(fn="sub", args=(Load() as x, Load() as y)) as d, *_)) as e if (fn, e.dtype) in LEAST:
            found = op.steps_of(y.source)
            if pointwise(op, x.source):
                return None
        case _:
            return None
    assert p is not None
    m = found[0] if found else s
    if any(x.where or not is_box(op, x) or len(op.steps_of(x.target.source)) != 1 for x in (s, p, m)):
        return None
    if m.reduce is None or m.reduce.fn != "max" or op.tensor(y.source).role != "temp" or e.dtype != s.target.dtype:
        return None
    row, kept, top = plain_indices(y), plain_indices(s.target), plain_indices(m.target)
    own, at = (plain_indices(p.target), plain_indices(s.expr)) if isinstance(s.expr, Load) else (p.indices, p.indices)
    if row is None or kept is None or top is None or own is None or at is None:
        return None
    renamed, along = dict(zip(own, at, strict=True)), [i for i in own if i not in row]
    if len(along) != 1 or not is_from_the_top(op, p, replace(e, args=(d,))) or tuple(renamed[i] for i in own if i in row) != kept:
        return None
    over = next(i for i in m.indices if i not in top)
    if tuple(i for i in own if i in row) != row or {_extent(p, along[0]), _extent(s, renamed[along[0]])} != {_extent(m, over)}:
        return None
    return Rows(y.source, s.target.source, None if p is s else p.target.source, own.index(along[0]))


def _extent(s: Step, index: str) -> Affine:
    return next(r.upper for r in s.ranges if r.index == index)


def _spreads(op: Op, rows: Rows) -> bool:
    """Whether all that is made of the greatest elements and of the powers is NaN where their sum is."""
    def good(s: Step, x: Load) -> bool:
        row = x.index if x.source == rows.top else (*x.index[:rows.along], *x.index[rows.along + 1:])
        return (s.reduce is None or s.reduce.name == "add") and _is_nan_with(s.expr, rows.total, row)

    others = [s for s in op.steps if s.target.source not in (rows.total, rows.powers)]
    return all(good(s, x) for s in others for x in s.reads if x.source in (rows.top, rows.powers))


def _is_nan_with(e: Expr, total: str, row: tuple[object, ...]) -> bool:
    """Whether `e` is NaN where `total` is, in that row."""
    match e:
        case Load(source=source, index=index, guard=()):
            return source == total and index == row
        case Apply(fn=fn, args=args) if fn in SPREADING or (fn == "cast" and e.dtype.is_float):
            return any(_is_nan_with(x, total, row) for x in args)
    return False


def _divided(e: Expr, totals: set[str]) -> Expr:
    """`e`, where a divisor that is one of `totals` says how large it may be."""
    new = rebuild(e, partial(_divided, totals=totals))
    match new:
        case Apply(fn="div", args=(x, Load(source=source, dtype=t) as z)) if source in totals:
            least, most = (Const(v, t) for v in SIZES)
            return replace(new, args=(x, Apply("min", (Apply("max", (z, least), t), most), t)))
    return new


def _without_nan(s: Step) -> Step:
    """The same maximum, which is some number where an element is NaN."""
    assert s.reduce is not None
    return replace(s, reduce=_greater(s.reduce, s.target.dtype))


def _greater(m: Monoid, t: DType) -> Monoid:
    a, b = Scalar("a", t), Scalar("b", t)
    return replace(m, fn=None, body=Apply("select", (Apply("gt", (b, a), BOOL), b, a), t))
