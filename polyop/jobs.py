"""Several jobs as one kernel: steps that differ in numbers alone are routines of it, and what is left calls them."""

from __future__ import annotations

from collections.abc import Sequence

from polyop.ir.loops import Buffer, LoopNest, Space
from polyop.ir.module import Proof
from polyop.ir.op import Op
from polyop.ir.options import Layout
from polyop.ir.routine import Routine, Use, composed
from polyop.making import Job, Made
from polyop.poly.iterators import is_contraction
from polyop.poly.middle import scop_of
from polyop.rewrite.families import families, rest_of
from polyop.rewrite.names import fresh


def apart(op: Op, cut: Op, layout: Layout) -> tuple[Job, ...]:
    """Residue classes that differ in numbers alone, each family of them a job, and what is left; () if there are none.

    Contractions only: what is lighter shares loops with what it is put into.
    """
    classes = frozenset(t.name for t in cut.temporaries) - frozenset(t.name for t in op.temporaries)
    jobs = [Job(scop_of(f.op), _layout_of(f.op, layout), f) for f in families(cut, classes)]
    jobs = [j for j in jobs if any(is_contraction(s, frozenset()) for s in j.scop.stmts)]
    if not jobs:
        return ()
    rest = rest_of(cut, tuple(j.family for j in jobs if j.family))
    return (*jobs, Job(scop_of(rest), _layout_of(rest, layout)))


def _layout_of(part: Op, layout: Layout) -> Layout:
    """`layout` for a part of an operator, whose temporaries are contiguous."""
    units = {t.name: len(t.shape) - 1 if t.shape else None for t in part.tensors if t.role != "temp"}
    return Layout(tuple((units | {n: u for n, u in layout.units if n in units}).items()))


def routines(made: Sequence[Made], nests: Sequence[LoopNest]) -> tuple[Routine, ...]:
    """The nest of each family with a use for each member, whose work space and registers have names of their own."""
    taken = {b.name for n in nests for b in n.buffers}
    out = list[Routine]()
    for m, nest in zip(made, nests, strict=True):
        if f := m.job.family:
            own = [b.name for b in nest.buffers if b.space != Space.TENSOR]
            uses = []
            for x in f.members:
                names = {f.result: x.result}
                if x is not f.members[0]:
                    names |= {b: fresh(f"{x.result}{b.removeprefix(f.result)}", taken) for b in own}
                uses.append(Use(tuple(zip(f.numbers, x.values, strict=True)), tuple(names.items())))
            out.append(Routine(nest, tuple(uses)))
    return tuple(out)


def whole(made: Sequence[Made], nests: Sequence[LoopNest]) -> LoopNest:
    """One nest of the jobs' `nests`: the families' members one after the other, then what is left."""
    if len(made) == 1:
        return nests[0]
    rest = made[-1].job.scop.op
    done = {x.result for m in made if m.job.family for x in m.job.family.members}
    results = [Buffer(t.name, t.dtype, tuple((e, 1) for e in t.shape), Space.WORK) for t in rest.tensors if t.name in done]
    return composed(routines(made, nests), nests[-1], {b.name: b for b in results})


def together(each: Sequence[tuple[Proof, ...]]) -> tuple[Proof, ...]:
    """What is proved of all the jobs' nests is proved of the kernel."""
    if len(each) == 1:
        return each[0]
    claims = [p.claim for p in min(each, key=len)]
    found = [[p for proofs in each for p in proofs if p.claim == c] for c in claims]
    return tuple(Proof(c, True, "", sum(p.ms for p in same)) for c, same in zip(claims, found, strict=True))
