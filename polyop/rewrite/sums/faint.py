"""Powers of distances from the greatest element that are added up may be 0 where they are next to nothing.

    top[i] max= t[i, j];  e[i, j] = exp(t[i, j] - top[i]);  o[i, d] += e[i, j] * V[j, d]
    e[i, j] = exp(t[i, j] - top[i], 0, -70.7)       a power that is at most 1, and need not be there below e^-70.7

Products with a denormal number, or that are one, take Intel's CPUs some 150 cycles. The greatest element's own power, which is 1,
is in the same sum, so that one below 2^-102 is not seen beside it, and 2^70 of them are not either. What is a result, or is
divided, stays as it is. Not done where sums go in the order of the text. To GPUs denormal numbers are as others, but their own
instruction does for such powers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyop.ir.dtypes import F32, F64
from polyop.ir.expr import Affine, Apply, Const, Expr, Load, affine, expr_names, loads, substitute_expr
from polyop.ir.op import Op, Step
from polyop.rewrite.folds import plain_indices, replaced, resolved

LEAST = {("exp", F32): -70.7, ("exp", F64): -671.65, ("exp2", F32): -102.0, ("exp2", F64): -969.0}
"""Powers of less, times the distance of two numbers beside each other around 1, are denormal or 0."""


def without_faint(op: Op, turns: bool = False) -> Op:
    """`op` with such powers.

    turns   whether those are among them, too, by which sums about the greatest element so far are multiplied
    """
    steps = tuple(_between_turns(op, s) if turns and _between(op, s) else _cleared(op, s) for s in op.steps)
    return op if all(a is b for a, b in zip(steps, op.steps, strict=True)) else replace(op, steps=steps)


def _cleared(op: Op, s: Step) -> Step:
    powers = [x for x in _powers(s.expr) if (x.fn, x.dtype) in LEAST]
    if not powers or not _is_added_up(op, s):
        return s
    for x in powers:
        if is_from_the_top(op, s, x):
            (d,) = x.args
            bounds = Const(0.0, d.dtype), Const(LEAST[x.fn, x.dtype], d.dtype)
            s = replace(s, expr=replaced(s.expr, x, replace(x, args=(d, *bounds))))
    return s


def _between_turns(op: Op, s: Step) -> Step:
    """`s`, told that its power between turns is at most 1."""
    power = _between(op, s)
    assert power
    least = Const(LEAST[power.fn, power.dtype], power.dtype)
    return replace(s, expr=replaced(s.expr, power, replace(power, args=(*power.args, Const(0.0, power.dtype), least))))


def _between(op: Op, s: Step) -> Apply | None:
    """What takes powers about the greatest element so far to those about a greater one: a power of what is at most 0.

        top[t] = max(t >= 1 ? top[t - 1] : -inf, ..);  repair[t] = top[t - 1] is top[t] ? 1 : exp(top[t - 1] - top[t])
    """
    match s.expr:
        case Apply(fn="select", args=(_, Const(value=1), Apply(fn="exp" | "exp2", args=(Apply(fn="sub", args=(
                Apply(fn="select", args=(_, Load() as old, Load() as same)), Load() as new)),)) as power)) if (
                    same == new and (power.fn, power.dtype) in LEAST):
            steps, at = op.steps_of(new.source), None
            if len(steps) == 1 and steps[0].reduce is None:
                at = plain_indices(steps[0].target)
            match steps[0].expr:
                case Apply(fn="max", args=(Apply(fn="select", args=(_, Load() as before, _)), _)) if at is not None:
                    env = {i: k for i, k in zip(at, new.index, strict=True) if isinstance(k, Affine)}
                    return power if substitute_expr(before, env) == old else None
    return None


def _powers(e: Expr) -> Iterator[Apply]:
    """The factors of `e` that are powers of a difference, under conditions too, where 0 is the other value."""
    match e:
        case Apply(fn="exp" | "exp2", args=(Apply(fn="sub"),)):
            yield e
        case Apply(fn="mul", args=(a, b)):
            yield from _powers(a)
            yield from _powers(b)
        case Apply(fn="select", args=(_, x, Const(value=0))) | Apply(fn="cast", args=(x,)):
            yield from _powers(x)


def _is_added_up(op: Op, s: Step) -> bool:
    """Whether `s` is a sum, or makes a temporary that is read by sums alone, all of which take all of it along their index."""
    if s.reduce is not None:
        return s.reduce.name == "add"
    t, (place, at) = op.tensor(s.target.source), _numbers_apart(s.target)
    readers = [(r, x) for r in op.steps for x in r.reads if x.source == t.name]
    if t.role != "temp" or at is None or not readers or len(op.steps_of(t.name)) != 1:
        return False
    return all(r.reduce is not None and r.reduce.name == "add" and any(x in (y, *_uncast(y)) for y in _factors(r.expr))
               and _numbers_apart(x)[0] == place and _asks_alike(s, at, r, x) for r, x in readers)


def _factors(e: Expr) -> Iterator[Expr]:
    match e:
        case Apply(fn="mul", args=(a, b)):
            yield from _factors(a)
            yield from _factors(b)
        case _:
            yield e


def _uncast(e: Expr) -> Iterator[Expr]:
    while isinstance(e, Apply) and e.fn == "cast":
        (e,) = e.args
        yield e


def _asks_alike(s: Step, at: Sequence[str], r: Step, x: Load) -> bool:
    """Whether `r`, which reads `x` of what `s` makes at `at`, leaves out no more of it along what it adds up than `s` does."""
    (_, into), kept = _numbers_apart(x), expr_names(r.target)
    if into is None:
        return False
    env = {i: affine(k) for i, k in zip(at, into, strict=True)}
    added = {i for i in into if i not in kept}
    return {w for w in r.where if expr_names(w) & added} <= {substitute_expr(w, env) for w in s.where}


def _numbers_apart(x: Load) -> tuple[tuple[Affine | None, ...], tuple[str, ...] | None]:
    """The positions of `x` that are numbers, None for others; and the names of these, or None as `plain_indices` has it."""
    found = tuple(p if isinstance(p, Affine) and p.is_constant else None for p in x.index)
    return found, plain_indices(replace(x, index=tuple(p for p, n in zip(x.index, found, strict=True) if n is None)))


def is_from_the_top(op: Op, s: Step, power: Apply) -> bool:
    """Whether `power` is one of an element less the greatest of all of these."""
    (d,) = power.args
    assert isinstance(d, Apply)
    x, top = (resolved(op, y) for y in d.args)
    return any(_is_greatest(op, s, x, y) for y in loads(top))


def _is_greatest(op: Op, s: Step, x: Expr, top: Load) -> bool:
    """Whether `top` is the greatest of all elements `x` along an index of `s`, under the same conditions."""
    steps, (place, at) = op.steps_of(top.source), _numbers_apart(top)
    m = steps[0] if len(steps) == 1 else None
    if m is None or m.reduce is None or m.reduce.name != "max":
        return False
    of, kept = _numbers_apart(m.target)
    if at is None or kept is None or place != of:
        return False
    over = [i for i in m.indices if i not in kept]
    if len(over) != 1:
        return False
    for j in (i for i in s.indices if i not in at):
        env: dict[str, Affine] = {i: affine(k) for i, k in zip((*kept, *over), (*at, j), strict=True)}
        asked, own = ({w for w in found if j in expr_names(w)} for found in ([substitute_expr(w, env) for w in m.where], s.where))
        if asked == own and substitute_expr(resolved(op, m.expr), env) == x:
            return True
    return False
