"""Scans over the threads of a block: what one iteration leaves to the next, where it may.

    before[v] = c            moves, which may be absent
    c = f(c, x[v])           f as in `ir/scans.py`, so that threads may join their steps in groups

Each thread has what was before its own step, and all of them have the last `c`.
"""

from __future__ import annotations

from polyop.ir.expr import loads
from polyop.ir.loops import Space
from polyop.ir.scans import step_of
from polyop.poly.verify.accesses import Accesses
from polyop.poly.verify.sites import Site


def is_step(a: Accesses, s: Site) -> bool:
    """Whether `s` is a step of a scan, in a register."""
    store = s.store
    return a.buffers[store.target.source].space == Space.REG and store.reduce is None and not store.later \
        and step_of(store.expr, store.target) is not None


def is_scanned(a: Accesses, step: Site, other: Site) -> bool:
    """Whether `other` is the `step` itself, or a move of what it starts from that stands before it in the same loops."""
    if not is_step(a, step):
        return False
    if other is step:
        return True
    here = [x.key for x in other.around] == [x.key for x in step.around] and other.number < step.number
    moved = a.buffers[other.store.target.source].space == Space.REG and other.store.reduce is None
    return here and moved and other.store.expr == step.store.target \
        and step.store.target.source != other.store.target.source and len(loads(other.store.expr)) == 1
