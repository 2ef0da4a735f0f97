"""Reductions that need another reduction's result, in one pass: block by block, each about what is known of its own block.

A chain (`dependent.py` finds them) goes over its elements once for the first reduction and again for those that need its result.
In blocks { j = C b + p } each is done about a stand-in for that result, and repaired when the result is known.

**Powers.** With m_b the maximum of block b and m that of all,

    sum_j g_j exp(a_j - m)  =  sum_b exp(m_b - m) sum_{j in b} g_j exp(a_j - m_b)

since exp(a - m) = exp(a - m_b) exp(m_b - m). Neither factor is above 1; what large g_j bring may overflow in their block
though the repaired sum would not. For a minimum the signs are the other way round.

**Products.** With n_b elements in block b, a_b and c_b their means there, and whatever r and s are,

    sum_j (a_j - r) (c_j - s)  =  sum_b ( sum_{j in b} (a_j - a_b) (c_j - c_b)  +  n_b (a_b - r) (c_b - s) )

since the mixed terms add up to 0 in each block. No difference of large squares is taken, so it is as exact as the text.

**Picks.** With m_b and m as above, and NaN equal to NaN or not,

    min { g_j : a_j = m }  =  min { min { g_j : j in b, a_j = m_b } : m_b = m }

since an element that equals the maximum equals its block's: so the place of a maximum is found while its block is near.

**Infinities.** Results are those of the text for these, too, and for NaN. Where m_b = -inf, all of the block's a_j are, and

    a_j - m  is  -inf  where m > -inf:   the block is done about 0, which gives exp(-inf) = 0, and NaN where g_j is infinite
    a_j - m  is  NaN   where m = -inf:   exp(m_b - m) = NaN repairs that, if the block has an element that no mask leaves out

Blocks without elements are left out by conditions that follow from those of the text: { j >= l, j <= u, C b <= j < C b + C } has
a solution if and only if each lower bound is at most each upper one, since j has a factor of 1. Whether a mask keeps any element
of a block is noted (`seen`). Where m_b = m = inf the factor is 1: the block's own terms are what the text says. An infinite
element of a product is NaN less its mean, in its block as in the text.

A reduction that keeps more than the first one, as attention keeps a channel, has as many partial results for each block. Such a
chain is rolled: what is known after b blocks is repaired and taken on,

    m[b] = max(m[b-1], m_b)        l[b] = l[b-1] exp(m[b-1] - m[b]) + sum_{j in b} g_j exp(a_j - m[b])

so that two steps of it are ever kept. All other chains leave their blocks to the end, since these are independent then.

Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022;
        Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.dtypes import BOOL, DType
from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Number,
    Scalar,
    Test,
    affine,
    expr_names,
    loads,
    map_loads,
    names,
    quasi,
    rebuild,
    substitute_expr,
)
from polyop.ir.op import Monoid, Op, Range, Step, Tensor, builtin_monoid
from polyop.rewrite.dependent import Chain, Picks, Powers, Products, find_chain
from polyop.rewrite.folds import Fold, plain_indices, pointwise, reads, replaced, resolved
from polyop.rewrite.inline import inline
from polyop.rewrite.measure import is_deep
from polyop.rewrite.names import fresh
from polyop.rewrite.partition import Blocked, Partition, filled, has_any, in_blocks, is_followed, last_filled, needed

LONG = 4096
"""Elements of a block whose results wait for the end: 16 KiB of f32, which stay in L1 from one reduction to the next."""

SEARCHED = 1024
"""Elements of a block that is searched for its extreme: as many as are prefetched ahead, so that the next one comes meanwhile.
A search alone is so short that memory waits for it: of 4096 elements a block, 16 rows of 1048576 took 2.2 ms, of these 1.85."""

ROLLED = 960
"""Elements of a block of a rolled chain: of 192 rows of attention, 720 KiB of scores, which stay in L2; whole tiles of rows."""

NAN = float("nan")


def cascaded(op: Op, block: int | None = None, apart: bool = False) -> Op:
    """`op` with every chain of reductions in blocks of `block` elements; as many as suit the chain, if that is None.

    apart   whether all chains leave their blocks to the end, rolled ones too: blocks that are carried out at the same time
    """
    done: frozenset[str] = frozenset()
    while not is_deep(op) and (chain := find_chain(op, done)):
        op = _Cascade(op, chain, block or _length(chain), apart).cut()
        done |= {f.result for f in chain.folds}
    return op


def _length(chain: Chain) -> int:
    if all(isinstance(m, Picks) for m in chain.members):
        return SEARCHED
    return ROLLED if is_rolled(chain) else LONG


def is_rolled(chain: Chain) -> bool:
    """Whether some reduction of the chain keeps more than the first one."""
    return any(len(f.kept) > len(chain.firsts[0].kept) for f in chain.folds)


@dataclass(eq=False)
class _Cascade:
    """One chain on its way into blocks. `b` counts blocks, `p` elements in a block.

    parts    for each fold its result in each block; `stands`: what the blocks of the members are done about
    aside    pointwise temporaries that have memory of their own in the blocks
    """

    op: Op
    chain: Chain
    size: int
    apart: bool
    tensors: list[Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    parts: dict[str, Blocked] = field(default_factory=dict)
    stands: dict[str, Blocked] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        op, first = self.op, self.chain.firsts[0]
        self.taken = {*op.sizes, *(t.name for t in op.tensors), *(p.name for p in op.params),
                      *(i for s in op.steps for i in s.indices)}
        b, p = (fresh(f"{first.over}_{x}", self.taken) for x in ("b", "p"))
        self.cuts = Partition(b, p, self.size, first.extent)
        self.rolled = is_rolled(self.chain) and not self.apart

    def cut(self) -> Op:
        """The operator with blocks in the place of the chain's last step."""
        op, chain = self.op, self.chain
        powers = [m for m in chain.members if isinstance(m, Powers)]
        for f in chain.firsts:
            self.parts[f.result] = self.part(f, self.within(f, f.step.expr))
        if powers:
            self.shift(chain.firsts[0])
            self.keep_aside(powers)
        ends = [self.end(f) for f in chain.firsts]
        for m in chain.members:
            match m:
                case Powers():
                    ends.append(self.powers(m))
                case Products():
                    ends.append(self.products(m))
                case Picks():
                    ends.append(self.picks(m))
        own = {f.result for f in chain.folds}
        after = op.follow_from(own)
        later = [s for s in op.steps if s.target.source not in own and s.target.source in after]
        before = [s for s in op.steps if s.target.source not in own and s not in later]
        span = next(s.span for s in op.steps if s.target.source in own)
        steps = (*before, *(replace(s, span=span) for s in (*self.steps, *ends)), *later)
        made = _without_unread(replace(op, tensors=(*op.tensors, *self.tensors), steps=steps))
        # what stood between the reductions to be read twice, as `exp(x - top)`, is read once now: it needs no memory
        return in_blocks(inline(made, keep=[t.name for t in made.temporaries if t.name not in after]), self.cuts)

    # --- small words
    def tensor(self, name: str, dtype: DType, shape: Iterable[Affine]) -> str:
        t = Tensor(fresh(name, self.taken), dtype, tuple(shape), "temp")
        self.tensors.append(t)
        return t.name

    def blocked(self, f: Fold, suffix: str, dtype: DType, kept: tuple[str, ...] | None = None) -> Blocked:
        """A new tensor with an element for each block and each place of the result of `f`, or for some indices of it alone."""
        kept = f.kept if kept is None else kept
        shape = dict(zip(f.kept, self.op.tensor(f.result).shape, strict=True))
        elements = [x for x in loads(resolved(self.op, f.step.expr)) if f.over in expr_names(x)]
        along = bool(kept) and any(x.index[-1] == affine(kept[-1]) for x in elements)  # lanes run along what has unit stride
        at = len(kept) - 1 if along else len(kept)
        dims = [shape[i] for i in kept]
        name = self.tensor(f"{f.result}_{suffix}", dtype, (*dims[:at], self.cuts.count, *dims[at:]))
        return Blocked(name, dtype, at, self.cuts.b)

    def ranges(self, f: Fold, kept: tuple[str, ...] | None = None) -> tuple[Range, ...]:
        kept = f.kept if kept is None else kept
        return (*(r for r in f.step.ranges if r.index in kept), self.cuts.blocks)

    def filled(self, f: Fold) -> tuple[Test, ...]:
        return filled(f, self.cuts)

    def within(self, f: Fold, e: Expr) -> Expr:
        """`e`, which is part of what `f` adds up, in a block: what other folds of the chain give stands for the block alone.

        A pointwise temporary is computed on the spot, unless that would be done again for each index that it does without.
        """
        def read(x: Load) -> Expr:
            if x.source in self.stands:
                return self.stands[x.source].load(plain_indices(x) or ())
            if x.source in self.aside:
                return replace(x, source=self.aside[x.source])
            e = resolved(self.op, x)
            found = frozenset[str]().union(*(names(p) for p in x.index if isinstance(p, Affine)))
            if e is x or not (set(f.kept) <= found or any(reads(e, t.result) for t in self.chain.firsts)):
                return x
            return map_loads(e, lambda y: self.stands[y.source].load(plain_indices(y) or ()) if y.source in self.stands else y)

        return substitute_expr(map_loads(e, read), {f.over: self.cuts.at})

    def part(self, f: Fold, expr: Expr, suffix: str = "part", monoid: Monoid | None = None) -> Blocked:
        """What `f` makes of each block, `expr` in the place of what it adds up."""
        kept = f.kept if monoid is None else needed(f, expr)
        found = self.blocked(f, suffix, expr.dtype if monoid else f.step.target.dtype, kept)
        where = self.cuts.elements(f.step, f.over)
        if self.rolled or self.apart:  # of no other block is it asked
            where = (*where, *(w for w in self.filled(f) if w not in where))
        self.steps.append(Step(found.load(kept), monoid or f.step.reduce, expr, (*self.ranges(f, kept), self.cuts.inside), where))
        return found

    # --- the first folds, and what their blocks stand for
    def end(self, f: Fold) -> Step:
        """The result of a first fold out of its blocks, or what the last one of a rolled chain knows."""
        if not self.rolled:
            return replace(f.step, expr=self.parts[f.result].load(f.kept), ranges=self.ranges(f), where=self.filled(f))
        assert f.step.reduce is not None
        return self.last(f, self.parts[f.result], Const(f.step.reduce.identity, f.step.target.dtype))

    def last(self, f: Fold, state: Blocked, none: Const) -> Step:
        """`f`'s result is the `state` after the last block with elements, or `none` of no elements at all."""
        sizes = tuple(self.op.sizes)
        any_ = has_any(f, sizes)
        found = replace(state.load(f.kept, last_filled(f, self.cuts, sizes)), guard=any_.tests)
        ranges = tuple(r for r in f.step.ranges if r.index != f.over)
        return replace(f.step, reduce=None, expr=_select(any_, found, none), ranges=ranges, where=())

    def shift(self, f: Fold) -> None:
        """What the blocks of a chain of powers are done about: the block's own maximum, or the one so far; 0 for -inf."""
        monoid, dtype, part = f.step.reduce, f.step.target.dtype, self.parts[f.result]
        assert monoid is not None
        none = Const(monoid.identity, dtype)
        where = self.filled(f)
        if self.rolled:
            state = self.blocked(f, "state", dtype)
            now = _called(monoid.body, {"a": self.before(f, state, none), "b": part.load(f.kept)})
            self.steps.append(Step(state.load(f.kept), None, now, self.ranges(f), where))
            self.parts[f.result] = part = state
        about = self.blocked(f, "about", dtype)
        value = part.load(f.kept)
        safe = _select(_equal(value, none), Const(0.0, dtype), value)
        self.steps.append(Step(about.load(f.kept), None, safe, self.ranges(f), where))
        self.stands[f.result] = about

    def before(self, f: Fold, state: Blocked, none: Expr) -> Expr:
        """`state` after the block before, or `none` before the first one with elements."""
        earlier = is_followed(f, self.cuts)
        return _select(Test(earlier), replace(state.load(f.kept, affine(self.cuts.b) - 1), guard=earlier), none)

    def keep_aside(self, powers: list[Powers]) -> None:
        """Temporaries with a power that several folds read, or one that keeps more indices, get memory in the blocks."""
        read: dict[str, list[tuple[Fold, Load]]] = {}
        for m in powers:
            for x in loads(m.fold.step.expr):
                if pointwise(self.op, x.source) and reads(resolved(self.op, x), self.chain.firsts[0].result):
                    read.setdefault(x.source, []).append((m.fold, x))
        for name, uses in read.items():
            s, at = pointwise(self.op, name), [plain_indices(x) for _, x in uses]
            mine = plain_indices(s.target) if s else None
            if s is None or mine is None or any(y is None for y in at):
                continue
            over = {i for (f, _), y in zip(uses, at, strict=True) for i, k in zip(mine, y or (), strict=True) if k == f.over}
            more = len(uses) > 1 or any(set(f.kept) - set(y or ()) for (f, _), y in zip(uses, at, strict=True))
            if not more or len(over) != 1 or any(f.over not in (y or ()) for (f, _), y in zip(uses, at, strict=True)):
                continue
            j = over.pop()
            t, ranges = self.op.tensor(name), self.cuts.ranges(s, j)
            if ranges is None:
                continue
            copy = self.tensor(f"{name}_block", t.dtype, t.shape)
            f = Fold(s, tuple(i for i in mine if i != j), j)
            index = tuple(self.cuts.at if i == j else affine(i) for i in mine)
            self.steps.append(Step(Load(copy, index, t.dtype), None, self.within(f, s.expr), ranges, self.cuts.elements(s, j)))
            self.aside[name] = copy

    # --- members
    def powers(self, m: Powers) -> Step:
        """The last step of a sum of powers."""
        f, first = m.fold, self.chain.firsts[0]
        part = self.part(f, self.within(f, f.step.expr))
        dtype, at = f.step.target.dtype, plain_indices(m.shift) or ()
        monoid = first.step.reduce
        assert monoid is not None
        none = Const(monoid.identity, first.step.target.dtype)
        state = self.parts[first.result]
        some = builtin_monoid("or", BOOL)
        seen = self.part(f, self.within(f, m.mask), "seen", some) if m.mask is not None and not self.rolled else None
        own = needed(f, m.mask) if m.mask is not None else ()

        if not self.rolled:
            old = state.load(at)
            w = _factor(m, old, m.shift, Apply("and", (_equal(old, m.shift), Apply("ne", (old, none), BOOL)), BOOL), dtype)
            if seen:
                w = _select(seen.load(own), w, Const(0.0, dtype))
            return replace(f.step, expr=Apply("mul", (part.load(f.kept), w), dtype), ranges=self.ranges(f), where=self.filled(f))
        sums, repaired = self.blocked(f, "state", dtype), _cast(self.repair(m).load(at), dtype)
        known = Apply("mul", (self.before(f, sums, Const(0.0, dtype)), repaired), dtype)
        now = Apply("add", (known, part.load(f.kept)), dtype)
        self.steps.append(Step(sums.load(f.kept), None, now, self.ranges(f), self.filled(f)))
        found = self.last(f, sums, Const(0.0, dtype))
        counted: Expr = has_any(f, tuple(self.op.sizes))
        if m.mask is not None:
            shape = self.op.tensor(f.result).shape
            dims = tuple(e for i, e in zip(f.kept, shape, strict=True) if i in own)
            whole = Load(self.tensor(f"{f.result}_any", BOOL, dims), tuple(map(affine, own)), BOOL)
            ranges = tuple(r for r in f.step.ranges if r.index in (*own, f.over))
            self.steps.insert(0, Step(whole, some, m.mask, ranges, f.step.where))  # no block has to do with it
            counted = Apply("and", (counted, whole), BOOL)
        lost = Apply("and", (counted, Apply("or", (_equal(m.shift, none), _is_nan(m.shift)), BOOL)), BOOL)
        return replace(found, expr=_select(lost, Const(NAN, dtype), found.expr))

    def picks(self, m: Picks) -> Step:
        """The last step of an extreme of those elements that equal the first fold's result."""
        f, state = m.fold, self.parts[self.chain.firsts[0].result]
        own = state.load(plain_indices(m.shift) or ())
        expr = resolved(self.op, f.step.expr)
        part = self.part(f, substitute_expr(replaced(expr, m.shift, own), {f.over: self.cuts.at}))
        assert f.step.reduce is not None
        none = Const(f.step.reduce.identity, f.step.target.dtype)
        return replace(f.step, expr=_select(replaced(m.same, m.element, own), part.load(f.kept), none), ranges=self.ranges(f),
                       where=self.filled(f))

    def repair(self, m: Powers) -> Blocked:
        """By what sums of powers about the first fold's state after the block before are multiplied: once for all of them."""
        first, key = self.chain.firsts[0], f"{self.chain.firsts[0].result} {m.fn}"
        if key not in self.parts:
            state, monoid = self.parts[first.result], first.step.reduce
            assert monoid is not None
            new = state.load(first.kept)
            old = self.before(first, state, new)
            made = self.parts[key] = self.blocked(first, "repair", state.dtype)
            same = Apply("or", (_equal(old, new), _is_nan(new)), BOOL)  # NaN is for what a mask keeps alone: the end sees to it
            self.steps.append(Step(made.load(first.kept), None, _factor(m, old, new, same, state.dtype),
                                   self.ranges(first), self.filled(first)))
        return self.parts[key]

    def products(self, m: Products) -> Step:
        """The last step of a sum of products about centres."""
        f = m.fold
        dtype = f.step.target.dtype
        expr = resolved(self.op, f.step.expr, frozenset(s.result for s in self.chain.firsts))
        size = self.sizes(f)
        inner, correction = expr, expr
        for a, name, r in m.centres:
            mean = self.mean(name, a, f, size)
            inner, correction = replaced(inner, r, mean), replaced(correction, a, mean)
        part = self.part(f, substitute_expr(inner, {f.over: self.cuts.at}))
        more = Apply("mul", (_cast(size, dtype), _cast(correction, dtype)), dtype)
        return replace(f.step, expr=Apply("add", (part.load(f.kept), more), dtype), ranges=self.ranges(f), where=self.filled(f))

    def mean(self, name: str, a: Expr, f: Fold, size: Expr) -> Load:
        """The mean of `a` in each block, in the indices of `f`, out of the sums of the fold `name`."""
        total, at = self.parts[name], self.centre_of(name, f)
        if name not in self.stands:
            g = next(x for x in self.chain.firsts if x.result == name)
            self.stands[name] = made = self.blocked(g, "mean", total.dtype)
            count = self.sizes(g)
            value = Apply("div", (total.load(g.kept), _cast(count, total.dtype)), total.dtype)
            self.steps.append(Step(made.load(g.kept), None, value, self.ranges(g), self.filled(g)))
        return self.stands[name].load(at)

    def centre_of(self, name: str, f: Fold) -> tuple[str, ...]:
        """Where `f` reads the sum `name`."""
        found = next(x for x in loads(resolved(self.op, f.step.expr, frozenset({name}))) if x.source == name)
        return plain_indices(found) or ()

    def sizes(self, f: Fold) -> Expr:
        """How many elements of a block `f` adds up."""
        if not f.tests:
            left = self.cuts.extent - affine(self.cuts.b) * self.size
            return Number(quasi("min", affine(self.size), left), f.step.target.dtype)
        key = f"{f.result} size"
        if key not in self.parts:
            one = Const(1.0, f.step.target.dtype)
            self.parts[key] = self.part(f, one, "size", builtin_monoid("add", one.dtype))
        return self.parts[key].load(needed(f, Const(1.0, f.step.target.dtype)))


def _factor(m: Powers, old: Expr, new: Expr, same: Expr, dtype: DType) -> Expr:
    """What takes powers about `old` to powers about `new`: 1 where they are the `same`, infinite or not."""
    x, y = (old, new) if m.sign > 0 else (new, old)
    power = Apply(m.fn, (Apply("sub", (x, y), x.dtype),), x.dtype)
    return _cast(_select(same, Const(1.0, x.dtype), power), dtype)


def _without_unread(op: Op) -> Op:
    """`op` without temporaries that nothing reads."""
    used = {x.source for s in op.steps for x in loads(s.expr)}
    used |= {x.source for s in op.steps for p in s.target.index if not isinstance(p, Affine) for x in loads(p)}
    unread = {t.name for t in op.temporaries} - used
    if not unread:
        return op
    return _without_unread(replace(op, tensors=tuple(t for t in op.tensors if t.name not in unread),
                                   steps=tuple(s for s in op.steps if s.target.source not in unread)))


def _equal(a: Expr, b: Expr) -> Expr:
    return Apply("eq", (a, b), BOOL)


def _is_nan(e: Expr) -> Expr:
    return Apply("ne", (e, e), BOOL)


def _select(c: Expr, yes: Expr, no: Expr) -> Expr:
    return Apply("select", (c, yes, no), yes.dtype)


def _cast(e: Expr, dtype: DType) -> Expr:
    return e if e.dtype == dtype else Apply("cast", (e,), dtype)


def _called(body: Expr, arguments: Mapping[str, Expr]) -> Expr:
    """A monoid's `body` with its two scalars put in."""
    if isinstance(body, Scalar):
        return arguments[body.name]
    return body if isinstance(body, Const) else rebuild(body, lambda x: _called(x, arguments))
