"""The range of an index in blocks of a constant size, and temporaries along it that only blocks use.

    { j : 0 <= j < N }    is    { C b + p : 0 <= b < ceil(N / C), 0 <= p < C, C b + p < N }
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.ir.dtypes import DType
from polyop.ir.expr import (
    Affine,
    Expr,
    Load,
    Test,
    affine,
    expr_names,
    loads,
    map_loads,
    names,
    quasi,
    substitute_expr,
)
from polyop.ir.op import Op, Range, Step
from polyop.rewrite.bounds import never_negative
from polyop.rewrite.folds import Fold, plain_indices


@dataclass(frozen=True, slots=True)
class Partition:
    """Blocks of `size` elements, which the index `b` counts, of a range of `extent`; `p` counts the elements of one."""

    b: str
    p: str
    size: int
    extent: Affine

    @property
    def at(self) -> Affine:
        """The index itself."""
        return affine(self.b) * self.size + affine(self.p)

    @property
    def count(self) -> Affine:
        return quasi("div", self.extent + (self.size - 1), affine(self.size))

    @property
    def blocks(self) -> Range:
        return Range(self.b, Affine(), self.count)

    @property
    def inside(self) -> Range:
        return Range(self.p, Affine(), affine(self.size))

    def ranges(self, s: Step, over: str) -> tuple[Range, ...] | None:
        """Those of `s` with blocks and elements for its index `over`; None, if that has another range, or one depends on it."""
        rest = tuple(r for r in s.ranges if r.index != over)
        if Range(over, Affine(), self.extent) not in s.ranges or any(over in names(r.lower) | names(r.upper) for r in rest):
            return None
        return (*rest, self.blocks, self.inside)

    def elements(self, s: Step, over: str) -> tuple[Expr, ...]:
        """The conditions of `s` with the elements of blocks in the place of its index `over`, and that these exist."""
        return (Test((self.extent - self.at - 1,)), *(substitute_expr(w, {over: self.at}) for w in s.where))


@dataclass(frozen=True, slots=True)
class Blocked:
    """A tensor with a dimension for blocks at position `at`, which the index `b` counts."""

    name: str
    dtype: DType
    at: int
    b: str

    def load(self, kept: tuple[str, ...], block: Affine | None = None) -> Load:
        index = list(map(affine, kept))
        return Load(self.name, (*index[: self.at], affine(self.b) if block is None else block, *index[self.at :]), self.dtype)


def needed(f: Fold, e: Expr) -> tuple[str, ...]:
    """The kept indices of `f` on which a reduction of `e` over the same elements depends."""
    return tuple(i for i in f.kept if i in expr_names(e) or any(i in names(t) for t in f.tests))


def _bounds(f: Fold) -> tuple[tuple[Affine, ...], tuple[Affine, ...]]:
    """(l, u): the index of `f` is at least each of `l`, and at most each of `u`, by its range and conditions."""
    j = affine(f.over)
    above = tuple((t - j) * -1 for t in f.tests if t.factor(f.over) > 0)
    below = tuple(t + j for t in f.tests if t.factor(f.over) < 0)
    return (Affine(), *above), (f.extent - 1, *below)


def eliminated(f: Fold, least: tuple[Affine, ...] = (), most: tuple[Affine, ...] = ()) -> tuple[Affine, ...]:
    """What holds of all other indices if that of `f` has a value in its range, and in { least <= j <= most }, that `f` allows.

    Each lower bound is at most each upper one; since j has a factor of 1 or -1 in each, this is exact in integers, too. Without
    the conditions of `f` there is such a value.
    """
    (zero, *above), (end, *below) = _bounds(f)
    free = [t for t in f.tests if not t.factor(f.over)]
    lower, upper = (zero, *least), (end, *most)
    found = (*free, *(u - x for x in above for u in (*below, *upper)), *(u - x for x in lower for u in below))
    return tuple(dict.fromkeys(t for t in found if t.terms or t.const < 0))


def filled(f: Fold, cuts: Partition) -> tuple[Test, ...]:
    """Of which blocks some element is added up: what the conditions of `f` say about any of them.

    What follows from conditions on elements is one test: it says which blocks count, and not where there is a result.
    """
    start = affine(cuts.b) * cuts.size
    found = eliminated(f, (start,), (start + (cuts.size - 1),))
    of_elements = tuple(t for t in found if t not in f.tests)
    return (*(Test((t,)) for t in found if t in f.tests), *([Test(of_elements)] if of_elements else []))


def is_followed(f: Fold, cuts: Partition) -> tuple[Affine, ...]:
    """Whether a block of which some element is added up comes after another such block: its predecessor's last element counts."""
    before = affine(cuts.b) * cuts.size - 1
    lower = dict.fromkeys(before - x for x in _bounds(f)[0][1:])
    return (affine(cuts.b) - 1, *lower)


def last_filled(f: Fold, cuts: Partition, sizes: Mapping[str, int]) -> Affine:
    """The last block of which some element is added up, where there is one."""
    ranges = tuple(r for r in f.step.ranges if r.index != f.over)
    found = list(dict.fromkeys(_bounds(f)[1]))
    for u in tuple(found):
        if any(never_negative(u - x, sizes, ranges) for x in found if x is not u):
            found.remove(u)
    return cuts.count - 1 if found == [f.extent - 1] else quasi("div", quasi("min", *found), affine(cuts.size))


def has_any(f: Fold, sizes: Mapping[str, int]) -> Test:
    """Whether anything is added up; without a question, if something always is for `sizes` of at least so much."""
    ranges = tuple(r for r in f.step.ranges if r.index != f.over)
    return Test(tuple(t for t in (f.extent - 1, *eliminated(f)) if not never_negative(t, sizes, ranges)))


def in_blocks(op: Op, cuts: Partition) -> Op:
    """`op` with temporaries in blocks, of which nothing is read but in these: { T[j] -> T[b, p] : j = C b + p }."""
    for t in op.temporaries:
        steps = op.steps_of(t.name)
        found = [x for s in op.steps for x in loads(s.expr) if x.source == t.name]
        at = plain_indices(steps[0].target) if len(steps) == 1 else None
        own = steps[0].target.index.index(cuts.at) if len(steps) == 1 and cuts.at in steps[0].target.index else None
        if any(x.source == t.name for s in op.steps for p in s.target.index if not isinstance(p, Affine) for x in loads(p)):
            continue  # it says where something is written
        for d, e in enumerate(t.shape):
            is_cut = e == cuts.extent and all(x.index[d] == cuts.at for x in found) and (at is not None or own == d)
            if not found or not is_cut:
                continue
            s = steps[0]
            if at is not None:
                ranges = cuts.ranges(s, at[d])
                if ranges is None:
                    continue
                s = Step(s.target, s.reduce, substitute_expr(s.expr, {at[d]: cuts.at}), ranges, cuts.elements(s, at[d]), s.span)
            return in_blocks(_in_two(op, t.name, d, steps[0], s, cuts), cuts)
    return op


def _in_two(op: Op, name: str, d: int, old: Step, new: Step, cuts: Partition) -> Op:
    """`op` with dimension `d` of `name` in two, and `new` for the step that writes it."""
    def at(x: Load) -> Load:
        return replace(x, index=(*x.index[:d], affine(cuts.b), affine(cuts.p), *x.index[d + 1 :])) if x.source == name else x

    steps = tuple(replace(s, expr=map_loads(s.expr, at)) for s in (new if s is old else s for s in op.steps))
    steps = tuple(replace(s, target=at(s.target)) for s in steps)
    t = op.tensor(name)
    new_t = replace(t, shape=(*t.shape[:d], cuts.count, affine(cuts.size), *t.shape[d + 1 :]))
    return replace(op, tensors=tuple(new_t if x is t else x for x in op.tensors), steps=steps)
