"""What is made of frozen inputs alone is made in the first call only, in memory that lasts.

    for k_h ..: right[k_h, .., k_v] = F[.., k_h + k_v]      becomes      if first - 1 >= 0
    for m_c ..: .. right[k_c + k_r, .., k_v] ..                            for k_h ..: right[k_h, .., k_v] = F[.., k_h + k_v]
                                                                         for m_c ..: .. right[k_c + k_r, .., k_v] ..

`first` is an argument that is 1 in a call which finds that memory empty, and else 0. What is made so are copies of weights, and
whatever else depends neither on other inputs, nor on scalars, nor on sizes that the frozen inputs do not have.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from hashlib import sha256
from itertools import groupby

from polyop.ir.affine import affine, names, settled_by
from polyop.ir.expr import Expr, Load, Scalar, expr_names, is_computed, loads, walk
from polyop.ir.loops import IS_FIRST, Buffer, For, If, IfData, LoopNest, Node, Prefetch, Space, Store, show, stores
from polyop.ir.loops import walk as nodes

_TESTS = (affine(IS_FIRST) - 1,)
"""That this is the first call."""


def once(nest: LoopNest, frozen: Collection[str]) -> LoopNest:
    """`nest`, which makes in the first call what depends on the inputs `frozen` alone."""
    buffers = {b.name: b for b in nest.buffers}
    given = [buffers[n] for n in frozen if n in buffers]
    if not given:
        return _with_lasting(nest, frozenset())
    known = settled_by(e for b in given for e, _ in b.dims)
    settled = _settled(nest, buffers, known, frozenset(frozen))
    if not settled:
        return _with_lasting(nest, frozenset())
    later = set[str]().union(*(_read(n) for k, n in enumerate(nest.body) if k not in settled))
    lasting = later & set[str]().union(*(_written(nest.body[k]) for k in settled))
    body: list[Node] = []
    for is_first, run in groupby(range(len(nest.body)), lambda k: k in settled):
        part = tuple(nest.body[k] for k in run)
        body += (If(_TESTS, part),) if is_first else part
    return replace(_with_lasting(nest, lasting), sizes=(*nest.sizes, IS_FIRST), body=tuple(body))


def _settled(nest: LoopNest, buffers: Mapping[str, Buffer], known: frozenset[str], frozen: frozenset[str]) -> set[int]:
    """Which nodes of `nest` depend on the inputs `frozen` alone, and all others find as they leave it.

    Those write nothing of it, and none reads memory before the last of these has written there, nor registers or a thread's own
    memory at all.
    """
    written, read = [_written(n) for n in nest.body], [_read(n) for n in nest.body]
    registers = {b.name for b in nest.buffers if not _stays(b)}
    settled = {k for k, n in enumerate(nest.body) if _is_made_of(n, buffers, known)}
    before: set[int] = set()
    while settled != before:
        before = settled
        made = frozen.union(*(written[k] for k in settled))
        others = [k for k in range(len(nest.body)) if k not in settled]
        left = set[str]().union(*(written[k] | read[k] & registers for k in others))

        def is_early(k: int, others: list[int] = others) -> bool:
            return not any(read[i] & written[k] for i in others if i < k)
        settled = {k for k in settled if not written[k] & left and read[k] <= made and is_early(k)}
    return settled


def first_call_of(nest: LoopNest) -> str:
    """A digest of what the first call does, and where: kernels with the same may share what it makes. Or empty."""
    parts = [n for n in nest.body if isinstance(n, If) and n.tests == _TESTS]
    used = frozenset[str]().union(*(_written(n) | _read(n) for n in parts))
    text = [*(str(b) for b in nest.buffers if b.name in used), *(line for n in parts for line in show(n, 0))]
    return sha256("\n".join(text).encode()).hexdigest()[:16] if parts else ""


def _with_lasting(nest: LoopNest, names: Collection[str]) -> LoopNest:
    """`nest`, in which these buffers last, and no others, whatever was meant to."""
    if all(b.lasting == (b.name in names) for b in nest.buffers):
        return nest
    return replace(nest, buffers=tuple(replace(b, lasting=b.name in names) for b in nest.buffers))


def _is_made_of(n: Node, buffers: Mapping[str, Buffer], known: frozenset[str]) -> bool:
    """Whether `n` fills memory for all threads, going by the sizes `known` alone, and each of its positions is a formula."""
    found: set[str] = set()
    own: set[str] = set()
    fills = False
    for x in nodes((n,)):
        match x:
            case For():
                own.add(x.index)
                found |= names(x.lower) | names(x.upper)
            case If():
                found |= frozenset[str]().union(*map(names, x.tests))
            case Store():
                b = buffers[x.target.source]
                if b.space not in (Space.WORK, Space.REG):
                    return False
                found |= {x for e, _ in b.dims for x in names(e)}
                if any(_is_open(e) for tree in (x.target, x.expr) for e in walk(tree)):
                    return False
                found |= expr_names(x.target) | expr_names(x.expr)
                fills = fills or _stays(b)
            case Prefetch():
                pass
            case _:
                return False
    return fills and found <= known | own


def _stays(b: Buffer) -> bool:
    """Whether it may be memory that lasts: all threads have the same."""
    return b.space == Space.WORK and not b.private


def _is_open(e: Expr) -> bool:
    """Whether `e` depends on more than a call's tensors and sizes, or on data for a position."""
    return isinstance(e, Scalar) or (isinstance(e, Load) and any(is_computed(p) for p in e.index))


def _written(n: Node) -> set[str]:
    return {s.target.source for s in stores((n,))}


def _read(n: Node) -> set[str]:
    found = {x.source for s in stores((n,)) for x in loads(s.expr)} | {s.target.source for s in stores((n,)) if s.reduce}
    return found | {x.source for c in nodes((n,)) if isinstance(c, IfData) for x in loads(c.test)}
