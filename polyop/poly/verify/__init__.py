"""The independent checker: a LoopNest does what its Scop says, for every size at once.

It looks at the Scop, which is the specification, and at the nest's own loops, tests, indices and claims (origin and
lift); never at how the nest came about.
"""

from __future__ import annotations

import islpy as isl

from polyop.ir.loops import LoopNest
from polyop.ir.module import Proof
from polyop.ir.options import Layout
from polyop.poly.scop import Scop
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.claims import Claims
from polyop.poly.verify.slices import one_slice
from polyop.poly.verify.structure import malformed
from polyop.poly.verify.verdict import decided


def prove(scop: Scop, nest: LoopNest, only: isl.Set | None = None, layout: Layout | None = None,
          strict: bool = False) -> tuple[Proof, ...]:
    """The claims about `nest`, in order; the last one may fail, and those after it are then not tried.

    only     { : what holds of the sizes in the regime this nest is for }, in addition to what the Scop knows
    layout   how the call's tensors lie, if that is known: the nest then assumes no other unit strides
    strict   whether floats are to be added up in the order of the text
    """
    context = scop.context if only is None else scop.context.intersect(only)
    sense = decided("the nest makes sense for the operator", lambda: malformed(scop, nest, layout) or None)
    if not sense.holds:
        return (sense,)
    whole, one = Accesses(scop, nest, context), one_slice(scop, nest, context)
    proofs = _proofs(Claims(Accesses(one.scop, one.nest, one.context), whole, strict)) if one else ()
    if not one or first_failure(proofs):  # which is told in all coordinates, if it is one of the whole
        proofs = _proofs(Claims(whole, whole, strict))
    return (sense, *proofs)


def _proofs(claims: Claims) -> tuple[Proof, ...]:
    proofs: list[Proof] = []
    for claim, check in claims.all():
        proofs.append(decided(claim, check))
        if not proofs[-1].holds:
            break
    return tuple(proofs)


def first_failure(proofs: tuple[Proof, ...]) -> Proof | None:
    """The claim that does not hold, or None."""
    return next((p for p in proofs if not p.holds), None)
