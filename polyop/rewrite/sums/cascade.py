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

from dataclasses import replace

from polyop.ir.expr import Const, substitute_expr
from polyop.ir.op import Op, Step
from polyop.rewrite.bounds import least_sizes
from polyop.rewrite.folds import Fold, plain_indices, replaced, resolved
from polyop.rewrite.inline import inline
from polyop.rewrite.measure import is_deep
from polyop.rewrite.sums import centres, powers
from polyop.rewrite.sums.blocked import InBlocks
from polyop.rewrite.sums.dependent import Chain, Picks, Powers, Products, find_chain
from polyop.rewrite.sums.nans import chosen_once
from polyop.rewrite.sums.partition import in_blocks
from polyop.rewrite.unread import without_unread
from polyop.rewrite.words import select

LONG = 4096
"""Elements of a block whose results wait for the end: 16 KiB of f32, which stay in L1 from one reduction to the next."""

SEARCHED = 1024
"""Elements of a block that is searched for its extreme: as many as are prefetched ahead, so that the next one comes meanwhile.
A search alone is so short that memory waits for it: of 4096 elements a block, 16 rows of 1048576 took 2.2 ms, of these 1.85."""

ROLLED = 960
"""Elements of a block of a rolled chain: of 192 rows of attention, 720 KiB of scores, which stay in L2; whole tiles of rows."""


def cascaded(op: Op, block: int | None = None, apart: bool = False, least: int = 0) -> Op:
    """`op` with every chain of reductions in blocks of `block` elements; as many as suit the chain, if that is None.

    apart   whether all chains leave their blocks to the end, rolled ones too: blocks that are carried out at the same time
    least   what all sizes are at least
    """
    done: frozenset[str] = frozenset()
    while not is_deep(op) and (chain := find_chain(op, done)):
        op = _cut(InBlocks(op, chain, block or _length(chain), apart, least_sizes(op, least)))
        done |= {f.result for f in chain.folds}
    return op


def _length(chain: Chain) -> int:
    if all(isinstance(m, Picks) for m in chain.members):
        return SEARCHED
    return ROLLED if chain.is_rolled else LONG


def _cut(c: InBlocks) -> Op:
    """The operator with blocks in the place of the chain's last step."""
    op, chain = c.op, c.chain
    sums = [m for m in chain.members if isinstance(m, Powers)]
    for f in chain.firsts:
        c.parts[f.result] = c.part(f, c.within(f, f.step.expr))
    if sums:
        powers.shift(c, chain.firsts[0])
        powers.keep_aside(c, sums)
    ends = [_end(c, f) for f in chain.firsts]
    for m in chain.members:
        match m:
            case Powers():
                ends.append(powers.add_up(c, m))
            case Products():
                ends.append(centres.add_up(c, m))
            case Picks():
                ends.append(_picks(c, m))
    own = {f.result for f in chain.folds}
    after = op.follow_from(own)
    later = [s for s in op.steps if s.target.source not in own and s.target.source in after]
    before = [s for s in op.steps if s.target.source not in own and s not in later]
    span = next(s.span for s in op.steps if s.target.source in own)
    steps = (*before, *(replace(s, span=span) for s in (*c.steps, *ends)), *later)
    made = without_unread(replace(op, tensors=(*op.tensors, *c.tensors), steps=steps))
    # what stood between the reductions to be read twice, as `exp(x - top)`, is read once now: it needs no memory
    return in_blocks(chosen_once(inline(made, keep=[t.name for t in made.temporaries if t.name not in after])), c.cuts)


def _end(c: InBlocks, f: Fold) -> Step:
    """The result of a first fold out of its blocks, or what the last one of a rolled chain knows."""
    if not c.rolled:
        return replace(f.step, expr=c.parts[f.result].load(f.kept), ranges=c.ranges(f), where=c.filled(f))
    assert f.step.reduce is not None
    return c.last(f, c.parts[f.result], Const(f.step.reduce.identity, f.step.target.dtype))


def _picks(c: InBlocks, m: Picks) -> Step:
    """The last step of an extreme of those elements that equal the first fold's result."""
    f, state = m.fold, c.parts[c.chain.firsts[0].result]
    own = state.load(plain_indices(m.shift) or ())
    expr = resolved(c.op, f.step.expr)
    part = c.part(f, substitute_expr(replaced(expr, m.shift, own), {f.over: c.cuts.at}))
    assert f.step.reduce is not None
    none = Const(f.step.reduce.identity, f.step.target.dtype)
    return replace(f.step, expr=select(replaced(m.same, m.element, own), part.load(f.kept), none), ranges=c.ranges(f),
                   where=c.filled(f))
