"""What is rewritten behind the proofs of a kernel for GPUs: each pass is followed, or left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from polyop.codegen.gpu.blocks import NEEDED
from polyop.codegen.stepped import Follow, Step
from polyop.ir.errors import UnsupportedError, assert_never
from polyop.ir.loops import LoopNest
from polyop.ir.module import Module, Proof
from polyop.making import Made
from polyop.poly.verify.handed import shares_out
from polyop.poly.verify.keeps import stores_alike
from polyop.poly.verify.nobodys import nobody_reads
from polyop.poly.verify.rewrites import follows
from polyop.poly.verify.verdict import is_undecided
from polyop.trace import Recorder

LOG = logging.getLogger("polyop")

ALL = "all"

Check = Callable[[Step], Proof]


@dataclass(frozen=True, eq=False)
class Text:
    """A module, and what was rewritten of its nest before it was printed."""

    module: Module
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, eq=False)
class Followed:
    """A module whose rewrites are proved, and `notes`: which were left out, and why."""

    module: Module
    proofs: tuple[Proof, ...] = ()
    notes: tuple[str, ...] = ()


def follow(text: Text, proved: LoopNest, made: Sequence[Made], emit: Callable[[frozenset[str]], Text], strict: bool, rec: Recorder
           ) -> Followed:
    """The text of the nest that was `proved`, as it is or without passes that cannot be followed, as `emit` prints it then.

    Raises  UnsupportedError, if what cannot be followed is a pass without which nothing can be printed.
    """
    if not text.steps:
        return Followed(text.module)
    (only,) = made
    context = only.middle.scop.context.intersect(only.middle.context)

    def check(s: Step) -> Proof:
        match s.by:
            case Follow.STORES:
                return follows(s.before, s.after, context, strict)
            case Follow.OWN:
                return shares_out(s.before, s.after)
            case Follow.MORE:
                return nobody_reads(s.before, s.after, proved, context)
            case Follow.LESS:  # what is left out is what the other one has more
                return nobody_reads(s.after, s.before, proved, context)
            case Follow.VALUES:
                return stores_alike(s.before, s.after, proved, context)
        assert_never(s.by)

    notes, without = list[str](), frozenset[str]()
    while True:
        proofs = dict[str, Proof]()
        failed = rec.stage("proofs", first_failure, text.steps, check, proofs)
        if failed is None:
            return Followed(text.module, tuple(proofs.values()), tuple(notes))
        name, proof = failed
        if not is_undecided(proof):  # else it is a limit of the checker's
            LOG.error("polyop bug: what `%s` makes of %s is not proved: %s", name, proved.name, proof)
        if name in NEEDED:
            raise UnsupportedError(f"what `{name}` makes of its loops is not followed: {proof}")
        notes.append(f"loops are not rewritten as `{name}` does it: {proof}")
        without |= {name}
        text = rec.stage("source", emit, without)


def first_failure(steps: Sequence[Step], check: Check, proofs: dict[str, Proof]) -> tuple[str, Proof] | None:
    """The first pass that `check` does not follow, and why; None, if it follows all: then `proofs` has the claims and times."""
    for s in _together(steps):
        proof = check(s)
        if not proof.holds and s.name != ALL:
            return s.name, proof
        old = proofs.get(proof.claim)
        proofs[proof.claim] = replace(proof, holds=True, witness="", ms=proof.ms + (old.ms if old else 0.0))
        if proof.holds and s.name == ALL:
            return None
    return None


def _together(steps: Sequence[Step]) -> Iterator[Step]:
    """The passes whose values are followed as one first, which takes a third of the time, and then one by one."""
    values = [s for s in steps if s.by == Follow.VALUES]
    yield from (s for s in steps if s.by != Follow.VALUES)
    if len(values) > 1:
        yield Step(ALL, Follow.VALUES, values[0].before, values[-1].after)
    yield from values
