"""Sums of powers about a maximum or minimum, in blocks: see `cascade.py`."""

from __future__ import annotations

from dataclasses import replace

from polyop.ir.dtypes import BOOL, DType
from polyop.ir.expr import Apply, Const, Expr, Load, affine, loads
from polyop.ir.op import Step, builtin_monoid
from polyop.rewrite.algebra import apply_laws
from polyop.rewrite.folds import Fold, plain_indices, pointwise, reads, resolved
from polyop.rewrite.sums.blocked import InBlocks
from polyop.rewrite.sums.dependent import Powers
from polyop.rewrite.sums.partition import Blocked, has_any, needed
from polyop.rewrite.words import called, cast, equal, is_nan, select

NAN = float("nan")


def shift(c: InBlocks, f: Fold) -> None:
    """What the blocks of a chain of powers are done about: the block's own maximum, or the one so far; 0 for -inf."""
    monoid, dtype, part = f.step.reduce, f.step.target.dtype, c.parts[f.result]
    assert monoid is not None
    none = Const(monoid.identity, dtype)
    where = c.filled(f)
    if c.rolled:
        state = c.blocked(f, "state", dtype)
        now = called(monoid.body, {"a": c.before(f, state, none), "b": part.load(f.kept)})
        c.steps.append(Step(state.load(f.kept), None, now, c.ranges(f), where))
        c.parts[f.result] = part = state
    about = c.blocked(f, "about", dtype)
    value = part.load(f.kept)
    safe = select(equal(value, none), Const(0.0, dtype), value)
    c.steps.append(Step(about.load(f.kept), None, safe, c.ranges(f), where))
    c.stands[f.result] = about


def keep_aside(c: InBlocks, powers: list[Powers]) -> None:
    """Temporaries with a power that several folds read, or one that keeps more indices, get memory in the blocks."""
    read: dict[str, list[tuple[Fold, Load]]] = {}
    for m in powers:
        for x in loads(m.fold.step.expr):
            if pointwise(c.op, x.source) and reads(resolved(c.op, x), c.chain.firsts[0].result):
                read.setdefault(x.source, []).append((m.fold, x))
    for name, uses in read.items():
        s, at = pointwise(c.op, name), [plain_indices(x) for _, x in uses]
        mine = plain_indices(s.target) if s else None
        if s is None or mine is None or any(y is None for y in at):
            continue
        over = {i for (f, _), y in zip(uses, at, strict=True) for i, k in zip(mine, y or (), strict=True) if k == f.over}
        more = len(uses) > 1 or any(set(f.kept) - set(y or ()) for (f, _), y in zip(uses, at, strict=True))
        if not more or len(over) != 1 or any(f.over not in (y or ()) for (f, _), y in zip(uses, at, strict=True)):
            continue
        j = over.pop()
        t, ranges = c.op.tensor(name), c.cuts.ranges(s, j)
        if ranges is None:
            continue
        copy = c.tensor(f"{name}_block", t.dtype, t.shape)
        f = Fold(s, tuple(i for i in mine if i != j), j)
        index = tuple(c.cuts.at if i == j else affine(i) for i in mine)
        c.steps.append(Step(Load(copy, index, t.dtype), None, c.within(f, s.expr), ranges, c.cuts.elements(s, j)))
        c.aside[name] = copy


def add_up(c: InBlocks, m: Powers) -> Step:
    """The last step of a sum of powers."""
    f, first = m.fold, c.chain.firsts[0]
    part = c.part(f, c.within(f, f.step.expr))
    dtype, at = f.step.target.dtype, plain_indices(m.shift) or ()
    monoid = first.step.reduce
    assert monoid is not None
    none = Const(monoid.identity, first.step.target.dtype)
    state = c.parts[first.result]
    some = builtin_monoid("or", BOOL)
    seen = c.part(f, c.within(f, m.mask), "seen", some) if m.mask is not None and not c.rolled else None
    own = needed(f, m.mask) if m.mask is not None else ()

    if not c.rolled:
        old = state.load(at)
        w = _factor(m, old, m.shift, Apply("and", (equal(old, m.shift), Apply("ne", (old, none), BOOL)), BOOL), dtype)
        if seen:
            w = select(seen.load(own), w, Const(0.0, dtype))
        return replace(f.step, expr=Apply("mul", (part.load(f.kept), w), dtype), ranges=c.ranges(f), where=c.filled(f))
    sums, repaired = c.blocked(f, "state", dtype), cast(repair(c, m).load(at), dtype)
    known = Apply("mul", (c.before(f, sums, Const(0.0, dtype)), repaired), dtype)
    now = Apply("add", (known, part.load(f.kept)), dtype)
    c.steps.append(Step(sums.load(f.kept), None, now, c.ranges(f), c.filled(f)))
    found = c.last(f, sums, Const(0.0, dtype))
    counted = apply_laws(has_any(f, c.sizes))
    if m.mask is not None:
        shape = c.op.tensor(f.result).shape
        dims = tuple(e for i, e in zip(f.kept, shape, strict=True) if i in own)
        whole = Load(c.tensor(f"{f.result}_any", BOOL, dims), tuple(map(affine, own)), BOOL)
        ranges = tuple(r for r in f.step.ranges if r.index in (*own, f.over))
        c.steps.insert(0, Step(whole, some, m.mask, ranges, f.step.where))  # no block has to do with it
        counted = apply_laws(Apply("and", (counted, whole), BOOL))
    lost = apply_laws(Apply("and", (counted, Apply("or", (equal(m.shift, none), is_nan(m.shift)), BOOL)), BOOL))
    return replace(found, expr=select(lost, Const(NAN, dtype), found.expr))


def repair(c: InBlocks, m: Powers) -> Blocked:
    """By what sums of powers about the first fold's state after the block before are multiplied: once for all of them."""
    first, key = c.chain.firsts[0], f"{c.chain.firsts[0].result} {m.fn}"
    if key not in c.parts:
        state, monoid = c.parts[first.result], first.step.reduce
        assert monoid is not None
        new = state.load(first.kept)
        old = c.before(first, state, new)
        made = c.parts[key] = c.blocked(first, "repair", state.dtype)
        same = Apply("or", (equal(old, new), is_nan(new)), BOOL)  # NaN is for what a mask keeps alone: the end sees to it
        times = _factor(m, old, new, same, state.dtype)
        c.steps.append(Step(made.load(first.kept), None, times, c.ranges(first), c.filled(first)))
    return c.parts[key]


def _factor(m: Powers, old: Expr, new: Expr, same: Expr, dtype: DType) -> Expr:
    """What takes powers about `old` to powers about `new`: 1 where they are the `same`, infinite or not."""
    x, y = (old, new) if m.sign > 0 else (new, old)
    power = Apply(m.fn, (Apply("sub", (x, y), x.dtype),), x.dtype)
    return cast(select(same, Const(1.0, x.dtype), power), dtype)
