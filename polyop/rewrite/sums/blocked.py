"""One chain of reductions on its way into blocks: the tensors and steps made so far, and the words to make more.

What becomes of which member of a chain say `cascade.py`, `powers.py` and `centres.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.dtypes import DType
from polyop.ir.expr import Affine, Const, Expr, Load, Test, affine, expr_names, loads, map_loads, names, substitute_expr
from polyop.ir.op import Monoid, Op, Range, Step, Tensor
from polyop.rewrite.algebra import apply_laws
from polyop.rewrite.folds import Fold, plain_indices, reads, resolved
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.sums.dependent import Chain
from polyop.rewrite.sums.partition import Blocked, Partition, filled, has_any, is_followed, last_filled, needed
from polyop.rewrite.words import select


@dataclass(eq=False)
class InBlocks:
    """One chain on its way into blocks. `b` counts blocks, `p` elements in a block.

    size     elements of a block; apart: whether all blocks wait for the end, of chains that may be rolled, too
    sizes    what each size of the operator is at least
    parts    for each fold its result in each block; `stands`: what the blocks of the members are done about
    aside    pointwise temporaries that have memory of their own in the blocks
    """

    op: Op
    chain: Chain
    size: int
    apart: bool
    sizes: Mapping[str, int]
    tensors: list[Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    parts: dict[str, Blocked] = field(default_factory=dict)
    stands: dict[str, Blocked] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        op, first = self.op, self.chain.firsts[0]
        self.taken = all_names(op)
        b, p = (fresh(f"{first.over}_{x}", self.taken) for x in ("b", "p"))
        self.cuts = Partition(b, p, self.size, first.extent)
        self.rolled = self.chain.is_rolled and not self.apart

    def tensor(self, name: str, dtype: DType, shape: Iterable[Affine]) -> str:
        t = Tensor(fresh(name, self.taken), dtype, tuple(shape), "temp")
        self.tensors.append(t)
        return t.name

    def blocked(self, f: Fold, suffix: str, dtype: DType, kept: tuple[str, ...] | None = None) -> Blocked:
        """A new tensor with an element for each block and each place of the result of `f`, or for some indices of it alone."""
        kept = f.kept if kept is None else kept
        shape = dict(zip(f.kept, self.op.tensor(f.result).shape, strict=True))
        elements = [x for x in loads(resolved(self.op, f.step.expr)) if f.over in expr_names(x)]
        along = bool(kept) and any(x.index[-1:] == (affine(kept[-1]),) for x in elements)  # lanes run along what has unit stride
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

    def last(self, f: Fold, state: Blocked, none: Const) -> Step:
        """`f`'s result is the `state` after the last block with elements, or `none` of no elements at all."""
        any_ = has_any(f, self.sizes)
        found = replace(state.load(f.kept, last_filled(f, self.cuts, self.sizes)), guard=any_.tests)
        ranges = tuple(r for r in f.step.ranges if r.index != f.over)
        return replace(f.step, reduce=None, expr=apply_laws(select(apply_laws(any_), found, none)), ranges=ranges, where=())

    def before(self, f: Fold, state: Blocked, none: Expr) -> Expr:
        """`state` after the block before, or `none` before the first one with elements."""
        earlier = is_followed(f, self.cuts)
        return select(Test(earlier), replace(state.load(f.kept, affine(self.cuts.b) - 1), guard=earlier), none)
