"""The independent checker: a LoopNest does what its Scop says, for every size at once.

It looks at the Scop, which is the specification, and at the nest's own loops, tests, indices and claims (origin and
lift); never at how the nest came about.
"""

from __future__ import annotations

from time import perf_counter

import islpy as isl

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.loops import LoopNest
from polyop.ir.module import Proof
from polyop.poly.scop import Scop
from polyop.poly.sets import quota
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.claims import Claims

OPERATIONS = 4_000_000  # of isl, for one claim: a few seconds; a packed contraction needs 100,000
UNDECIDED = "not decided within the quota"
UNDECIDED_BY_ISL = "not decided, since isl failed"


def prove(scop: Scop, nest: LoopNest, only: isl.Set | None = None) -> tuple[Proof, ...]:
    """The claims about `nest`, in order; the last one may fail, and those after it are then not tried.

    only   { : what holds of the sizes in the regime this nest is for }, in addition to what the Scop knows
    """
    context = scop.context if only is None else scop.context.intersect(only)
    proofs: list[Proof] = []
    for claim, check in Claims(Accesses(scop, nest, context)).all():
        start = perf_counter()
        try:
            with quota(OPERATIONS, claim):
                witness = check()
        except UnsupportedError:
            witness = UNDECIDED
        except InternalError as error:
            witness = f"{UNDECIDED_BY_ISL}: {error}"
        proofs.append(Proof(claim, witness is None, witness or "", (perf_counter() - start) * 1e3))
        if witness is not None:
            break
    return tuple(proofs)


def first_failure(proofs: tuple[Proof, ...]) -> Proof | None:
    """The claim that does not hold, or None."""
    return next((p for p in proofs if not p.holds), None)
