"""Cutting a triangular recurrence into blocks: what comes from earlier blocks is a product of matrices.

    s[i, n] += L[i, k] * X[k, n]   where k < i               with { i = 32 b + p }
    X[i, n]  = (B[i, n] - s[i, n]) / L[i, i]

becomes, for one block after the other, a contraction over all blocks before, and the recurrence inside the block:

    s[b, p, n] += L[32 b + p, k] * X[k, n]   where k < 32 b
    s[b, p, n] += L[32 b + p, k] * X[k, n]   where 32 b <= k < 32 b + p
    X[32 b + p, n] = (B[32 b + p, n] - s[b, p, n]) / L[32 b + p, 32 b + p]

No element is computed in another way, only the order in which terms are added up is another: far ones first.

Where the turns lie side by side in memory, as the columns of Cholesky's factor, nothing inside a block could be a vector. The
block is then kept turned, with its turns first, and so is what the result reads along them:

    f[b, p, i]  = s[b, i, p]                                  of the contraction
    a[b, p, i]  = A[i, 32 b + p]
    r[b, p, i] += T[b, q, i] * T[b, q, 32 b + p]   where q < p
    T[b, p, i]  = (a[b, p, i] - (f[b, p, i] + r[b, p, i])) / T[b, p, 32 b + p]
    L[i, 32 b + p] = T[b, p, i]

The contraction then fills all of its tiles, whatever ties a turn to other indices (`i >= 32 b + p`): nobody reads the rest.

Source: Golub and Van Loan, "Matrix Computations", 4.2.9, for the block form of Cholesky's factorisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from polyop.ir.expr import (
    Affine,
    Const,
    Expr,
    Load,
    Scalar,
    Test,
    affine,
    map_loads,
    names,
    place,
    quasi,
    rebuild,
    substitute,
    substitute_expr,
)
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.folds import plain_indices
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.triangles import Piece, Triangle, find_triangle, joined, plain_tests

BLOCK = 32
"""Turns of a block: two vectors of f32, and as many rows as use a right operand several times."""


def cut_into_blocks(op: Op, in_order: bool = False) -> Op:
    """`op` with its triangular recurrences cut into blocks.

    in_order   whether terms must be added up in the order of the text: then nothing is cut
    """
    t = None if in_order else find_triangle(op)
    while t is not None:
        op = _Blocks(op, t).cut()
        t = find_triangle(op)
    return op


@dataclass(eq=False)
class _Blocks:
    """One recurrence on its way into blocks. `b` counts blocks, `p` turns in a block, `q` past ones in it."""

    op: Op
    t: Triangle
    tensors: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        op, t = self.op, self.t
        self.taken = all_names(op)
        self.b, self.p, self.q = (fresh(f"{t.turn}_{x}", self.taken) for x in ("b", "p", "q"))
        self.first = affine(self.b) * BLOCK
        self.now = self.first + affine(self.p)
        self.extent = next(r.upper for r in t.update.ranges if r.index == t.turn)
        self.count = quasi("div", self.extent + (BLOCK - 1), affine(BLOCK))
        self.is_turned = t.is_covered and t.where > 0 and t.where == len(t.result.target.index) - 1
        self.staged: dict[tuple[str, tuple[Affine, ...]], str] = {}

    def cut(self) -> Op:
        """The operator with the blocks in the place of the result's step."""
        t, op = self.t, self.op
        steps: list[Step] = []
        for s in op.steps:
            if s.target.source == t.partial:
                continue
            steps += self.blocks() if s is t.result else [s]
        tensors = tuple(x for x in op.tensors if x.name != t.partial)
        return replace(op, tensors=(*tensors, *self.tensors), steps=tuple(steps))

    # --- small words
    def tensor(self, like: str, suffix: str, shape: Iterable[Affine]) -> str:
        t = Tensor(fresh(f"{like}_{suffix}", self.taken), self.op.tensor(like).dtype, tuple(shape), "temp")
        self.tensors.append(t)
        return t.name

    def within(self, x: Affine) -> Affine:
        return substitute(x, {self.t.turn: self.now})

    def ranges(self, s: Step, without: Iterable[str] = ()) -> tuple[Range, ...]:
        """Those of `s`, with the block and its turns instead of the turn."""
        gone = {self.t.turn, *without}
        zero, inner = Affine(), tuple(r for r in s.ranges if r.index not in gone)
        return (Range(self.b, zero, self.count), Range(self.p, zero, affine(BLOCK)), *inner)

    def where(self, tests: Iterable[Affine]) -> tuple[Test, ...]:
        """`tests`, that the turn exists, and what they say about the whole block."""
        out = [self.extent - self.now - 1, *tests]
        return tuple(Test((x,)) for x in dict.fromkeys((*out, *self.of_block(tests))))

    def of_block(self, tests: Iterable[Affine]) -> list[Affine]:
        """What `tests` say about all turns of a block: { 32 b + p <= i } says that 32 b <= i."""
        out: list[Affine] = []
        for t in tests:
            f = t.factor(self.p)
            whole = t - affine(self.p) * f + (f * (BLOCK - 1) if f > 0 else 0)
            out += [whole] if f and t.factor(self.b) and names(whole) - {self.b} - set(self.op.sizes) else []
        return out

    # --- the parts
    def blocks(self) -> list[Step]:
        t, u, f = self.t, self.t.update, self.t.result
        kept = plain_indices(u.target, u.indices) or ()
        shape = self.op.tensor(t.partial).shape
        if self.is_turned:  # the turns stay where they are, as lanes of the contraction
            index = tuple(affine(self.p if i == t.turn else i) for i in kept)
            dims = tuple(affine(BLOCK) if i == t.turn else e for i, e in zip(kept, shape, strict=True))
        else:
            index = (affine(self.p), *(affine(i) for i in kept if i != t.turn))
            dims = (affine(BLOCK), *(e for i, e in zip(kept, shape, strict=True) if i != t.turn))
        partial = self.tensor(t.partial, "far", (self.count, *dims))
        far = Load(partial, (affine(self.b), *index), self.op.tensor(t.partial).dtype)
        tests = [self.within(x) for x in plain_tests(u) or () if x != t.past_test]
        past = affine(t.past)
        before = past - self.first - BLOCK if t.backwards else self.first - past - 1
        of_all = [x for x in tests if not x.factor(self.p)] + self.of_block(tests)
        steps = [replace(u, target=far, expr=substitute_expr(u.expr, {t.turn: self.now}), ranges=self.ranges(u),
                         where=self.where([before, *(of_all if self.is_turned else tests)]))]
        if self.is_turned:
            steps += self.turned(far, kept, of_all)
        else:
            inside = [past - self.now - 1, self.first + (BLOCK - 1) - past] if t.backwards else [past - self.first,
                                                                                               self.now - past - 1]
            steps.append(replace(steps[0], where=self.where([*inside, *tests])))
            steps += [self.piece(x, {t.partial: far}) for x in t.inside]
        for x in t.outside:
            steps.append(replace(x.step, where=tuple(Test((y,)) for y in x.tests)))
        return [replace(s, span=f.span) for s in steps]

    def piece(self, x: Piece, values: dict[str, Expr]) -> Step:
        """A piece of the result in its blocks, with `values` for what it reads of the partial results."""
        def read(load: Load) -> Expr:
            return values.get(load.source, load)

        target = place(x.step.target, {self.t.turn: self.now})
        expr = substitute_expr(map_loads(x.step.expr, read), {self.t.turn: self.now})
        return replace(x.step, target=target, expr=expr, ranges=self.ranges(x.step),
                       where=self.where([self.within(y) for y in x.tests]))

    # --- blocks that are kept turned
    def turned(self, far: Load, kept: tuple[str, ...], of_all: list[Affine]) -> list[Step]:
        """The steps of a block after its contraction `far`, which is computed where `of_all` hold, whichever turn it is."""
        t, u = self.t, self.t.update
        monoid = u.reduce
        assert monoid is not None
        b, p, q = affine(self.b), affine(self.p), affine(self.q)
        rest = tuple(i for i in kept if i != t.turn)
        shape = tuple(e for i, e in zip(kept, self.op.tensor(t.partial).shape, strict=True) if i != t.turn)
        like = self.op.tensor(t.written)
        block = self.tensor(t.written, "block", (self.count, affine(BLOCK), *like.shape[:-1]))
        dims = (self.count, affine(BLOCK), *shape)
        turned, near = self.tensor(t.partial, "turned", dims), self.tensor(t.partial, "near", dims)
        dtype = self.op.tensor(t.partial).dtype
        at = (b, p, *map(affine, rest))
        steps = [Step(Load(turned, at, dtype), None, far, self.ranges(u, (t.past,)), self.where(of_all))]

        def earlier(x: Load) -> Expr:
            return Load(block, (b, q, *x.index[:-1]), x.dtype) if x.source == t.written else x

        env = {t.past: self.first + q, t.turn: self.now}
        tests = [substitute(x, env) for x in plain_tests(u) or () if x != t.past_test]
        inside = [q - p - 1] if t.backwards else [p - q - 1]
        ranges = (*self.ranges(u, (t.past,)), Range(self.q, Affine(), affine(BLOCK)))
        steps.append(Step(Load(near, at, dtype), monoid, substitute_expr(map_loads(u.expr, earlier), env), ranges,
                          self.where([*inside, *tests, *([self.extent - self.first - q - 1] if t.backwards else [])])))
        before: list[Step] = []

        def both(x: Load) -> Expr:
            index = (b, p, *(y for d, y in enumerate(x.index) if d != t.at))
            parts = {"a": Load(turned, index, dtype), "b": Load(near, index, dtype)}
            return _called(monoid.body, parts)

        def read(x: Load) -> Expr:
            if x.source == t.partial:
                return both(x)
            if x.source == t.written:
                return Load(block, (b, p, *x.index[:-1]), x.dtype, x.guard)
            return self.stage(x, before)

        for x in t.inside:
            made = self.piece(replace(x, step=replace(x.step, expr=map_loads(x.step.expr, read))), {})
            steps.append(replace(made, target=Load(block, (b, p, *made.target.index[:-1]), like.dtype)))
        target = t.result.target
        own = target.index[-1]
        assert isinstance(own, Affine) and own.name
        ranges = self.ranges(t.result, (own.name,))
        for region in joined(x.region for x in t.inside):
            out = replace(target, index=(*target.index[:-1], self.now))
            tests = [substitute(x, {own.name: self.now}) for x in map(self.within, region)]
            steps.append(replace(t.result, target=out, expr=Load(block, (b, p, *target.index[:-1]), like.dtype), ranges=ranges,
                                 where=self.where(tests)))
        return [*before, *steps]

    def stage(self, x: Load, before: list[Step]) -> Load:
        """What the result reads along the turns with unit stride, from a turned copy; all else from where it is."""
        shape = self.op.tensor(x.source).shape
        if not x.index or x.index[-1] != affine(self.t.turn) or shape[-1] != self.extent or len(x.index) == 1 \
                or not all(isinstance(p, Affine) for p in x.index):
            return x
        name = self.staged.get((x.source, shape))
        if name is None:
            name = self.staged[x.source, shape] = self.tensor(x.source, "turned", (self.count, affine(BLOCK), *shape[:-1]))
            free = tuple(fresh(f"{x.source}_{d}", self.taken) for d in range(len(shape) - 1))
            others = tuple(map(affine, free))
            ranges = (Range(self.b, Affine(), self.count), Range(self.p, Affine(), affine(BLOCK)),
                      *(Range(i, Affine(), e) for i, e in zip(free, shape, strict=False)))
            before.append(Step(Load(name, (affine(self.b), affine(self.p), *others), x.dtype), None,
                               Load(x.source, (*others, self.now), x.dtype), ranges, self.where(())))
        return Load(name, (affine(self.b), affine(self.p), *x.index[:-1]), x.dtype, x.guard)


def _called(body: Expr, arguments: dict[str, Load]) -> Expr:
    """A monoid's `body` with its two scalars put in."""
    if isinstance(body, Scalar):
        return arguments[body.name]
    return body if isinstance(body, Const) else rebuild(body, lambda x: _called(x, arguments))
