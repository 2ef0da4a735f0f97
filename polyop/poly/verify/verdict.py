"""How a claim becomes a proof: its check runs within a quota of isl's operations, and what is not decided is not proved."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.module import Proof
from polyop.poly.sets import quota

Check = Callable[[], "str | None"]
"""Returns the case that breaks a claim, in words, or None."""

OPERATIONS = 4_000_000  # of isl, for one claim: a few seconds; a packed contraction needs 100,000
UNDECIDED = "not decided within the quota"
UNDECIDED_BY_ISL = "not decided, since isl failed"


def is_undecided(p: Proof) -> bool:
    """Whether the claim may well hold, and only took too long to prove."""
    return p.witness == UNDECIDED


def decided(claim: str, check: Check) -> Proof:
    """The outcome of `check`, with the time it took."""
    start = perf_counter()
    try:
        with quota(OPERATIONS, claim):
            witness = check()
    except UnsupportedError:
        witness = UNDECIDED
    except InternalError as error:
        witness = f"{UNDECIDED_BY_ISL}: {error}"
    return Proof(claim, witness is None, witness or "", (perf_counter() - start) * 1e3)
