"""What is rewritten behind the proofs of a kernel's loops, where registers are: each pass is followed, or left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from polyop.codegen.refined import Refined
from polyop.ir.loops import LoopNest
from polyop.ir.module import Module, Proof
from polyop.making import Made
from polyop.poly.verify.keeps import CLAIM, stores_alike
from polyop.poly.verify.verdict import is_undecided
from polyop.trace import Recorder

LOG = logging.getLogger("polyop")


@dataclass(frozen=True, eq=False)
class Text:
    """A module, and what was rewritten of its nest before it was printed."""

    module: Module
    refined: tuple[Refined, ...] = ()


@dataclass(frozen=True, eq=False)
class Followed:
    """A module whose rewrites are proved, and `notes`: which were left out, and why."""

    module: Module
    proofs: tuple[Proof, ...] = ()
    notes: tuple[str, ...] = ()


def follow(text: Text, proved: LoopNest, made: Sequence[Made], emit: Callable[[frozenset[str]], Text], rec: Recorder) -> Followed:
    """The text of the nest that was `proved`, as it is or without passes that cannot be followed, as `emit` prints it then."""
    notes, without, ms = list[str](), frozenset[str](), 0.0
    while text.refined:
        (only,) = made
        check = partial(stores_alike, proved=proved, context=only.middle.scop.context.intersect(only.middle.context))
        failed, took = rec.stage("proofs", first_failure, text.refined, check)
        ms += took
        if failed is None:
            return Followed(text.module, (Proof(CLAIM, True, "", ms),), tuple(notes))
        name, proof = failed
        notes.append(f"registers are not rewritten as `{name}` does it: {proof}")
        if not is_undecided(proof):  # else it is a limit of the checker's
            LOG.error("polyop bug: what `%s` makes of %s is not proved: %s", name, proved.name, proof)
        without |= {name}
        text = rec.stage("source", emit, without)
    return Followed(text.module, (), tuple(notes))


def first_failure(found: Sequence[Refined], check: Callable[[LoopNest, LoopNest], Proof]
                  ) -> tuple[tuple[str, Proof] | None, float]:
    """The first pass that `check` does not follow, and why; None, if it follows all. And the milliseconds that took.

    All of them are followed as one first, which takes a third of the time.
    """
    ms = 0.0
    if len(found) > 1:
        proof = check(found[0].before, found[-1].after)
        ms += proof.ms
        if proof.holds:
            return None, ms
    for r in found:
        proof = check(r.before, r.after)
        ms += proof.ms
        if not proof.holds:
            return (r.name, proof), ms
    return None, ms
