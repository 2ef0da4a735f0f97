"""Scop -> LoopNest on one rung: made, proved, rewritten, and the rewrites followed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from polyop.codegen.cpu.frozen import once
from polyop.codegen.cpu.lower import kept, rewritten
from polyop.codegen.cpu.verify import verify as verify_nest
from polyop.forms import Tiled
from polyop.ir.copies import Recomputed
from polyop.ir.errors import UnsupportedError
from polyop.ir.loops import IS_FIRST, LoopNest, Space
from polyop.ir.module import Proof
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.poly.middle import Middle, lower, lower_in_block, scop_of
from polyop.poly.scop import Scop
from polyop.poly.verify import first_failure, prove
from polyop.poly.verify.copies import same_elements
from polyop.poly.verify.frozen import lasts
from polyop.poly.verify.rewrites import follows
from polyop.poly.wellformed import proofs as well_formed
from polyop.rewrite.families import Family
from polyop.trace import Recorder

LOG = logging.getLogger("polyop")


@dataclass(frozen=True, slots=True)
class Way:
    """What may be proposed on a rung: storage that is folded, recurrences in time tiles.

    spare   registers that tiles leave free beside those that they are known to need
    spills  whether values may go to memory and back, since no tile leaves enough
    """

    fold: bool = True
    skew: bool = True
    spare: int = 0
    spills: bool = False

    def roomier(self, missing: int, target: Target) -> Way:
        """The way after this one, whose loops want for `missing` registers: with more to spare, at last with all and memory."""
        spare = max(2 * self.spare, self.spare + missing)
        return replace(self, spare=spare) if 2 * spare < target.registers else replace(self, spare=0, spills=True)

    def __str__(self) -> str:
        return "some vectors in memory" if self.spills else f"{self.spare} registers to spare" if self.spare else "all registers"


PLAIN = Way(False, False)


@dataclass(frozen=True, eq=False)
class Job:
    """What becomes a nest of its own: a whole Op, or a family of its steps, or what is left of it then.

    inside, is_block   as of a `forms.Form`
    """

    scop: Scop
    layout: Layout
    family: Family | None = None
    tiled: Tiled | None = None
    inside: frozenset[str] = frozenset()
    is_block: bool = False


@dataclass(frozen=True, eq=False)
class Made:
    """A job's nest: as the proofs look at it, and as it is emitted."""

    job: Job
    middle: Middle
    nest: LoopNest
    final: LoopNest
    proofs: tuple[Proof, ...]
    notes: tuple[str, ...]


class NotProvedError(Exception):
    """A claim about a nest failed; `plainer`: the way without what was only proposed, the last of it first, if anything was."""

    def __init__(self, failed: Proof, made: Middle, way: Way) -> None:
        super().__init__(f"not proved: {failed}{', in time tiles' if made.has_skews else ''}")
        self.failed = failed
        less = {"skew": False} if made.has_skews else {"fold": False, "skew": False} if made.has_folds else None
        self.plainer = replace(way, **less) if less else None


def make(job: Job, rung: str, way: Way, target: Target, options: Options, rec: Recorder,
         early: Callable[[LoopNest], None] | None = None, frozen: tuple[str, ...] = ()) -> Made:
    """The nest of a job on a rung, proved and rewritten.

    frozen  inputs of which the first call alone makes what depends on nothing else
    early   is told the nest that will be emitted, if all that follows is proved, so that work on it may begin meanwhile
    Raises  NotProvedError; RegistersError, if this way takes too many; UnsupportedError, if this rung cannot do it.
    """
    lowered = lower_in_block if job.is_block else lower
    middle: Middle = rec.stage("loops", lowered, job.scop, job.layout, target, options, rung, way.fold, way.skew, way.spare)
    if job.tiled:
        _require_tiles(middle.nest, job.tiled.made)
    _require_inside(middle.nest, job.inside)
    rec.text("schedule", middle.schedule)
    rec.text("tiles", *middle.programs, between="\n\n")
    rec.text("loops", middle.nest)
    on_cpu, strict = target.family == "x86", options.numerics == "strict"
    nest = rec.stage("final", kept if on_cpu else verify_nest, middle.nest, target, way.spills)
    final = rec.stage("final", rewritten, nest, target, strict, way.spills) if on_cpu else nest
    emitted = once(final, frozen)
    if not options.check:
        return Made(job, middle, nest, emitted, (), ())
    if early:
        early(emitted)
    given = nest
    nest, proofs = rec.stage("proofs", _proved, middle, given, job.layout, strict)
    if job.tiled:
        proofs = (*rec.stage("proofs", _same_elements, job.tiled, job.scop), *proofs)
    rec.text("proofs", *proofs)
    failed = first_failure(proofs)
    if failed:
        raise NotProvedError(failed, middle, way)
    if not on_cpu:
        return Made(job, middle, nest, nest, proofs, ())
    if nest is not given:
        final = rec.stage("final", rewritten, nest, target, strict, way.spills)
        emitted = once(final, frozen)
    context = middle.scop.context.intersect(middle.context)
    proof = rec.stage("proofs", follows, nest, final, context, strict)
    if not proof.holds:
        LOG.error("polyop bug: the rewritten loops of %s on rung %s are not proved: %s", job.scop.op.name, rung, proof)
        return Made(job, middle, nest, once(nest, ()), proofs, (f"the loops are emitted as they were proved: {proof}",))
    proofs = (*proofs, proof)
    if IS_FIRST not in emitted.sizes:
        return Made(job, middle, nest, emitted, proofs, ())
    proof = rec.stage("proofs", lasts, once(final, ()), emitted, frozen)
    if proof.holds:
        return Made(job, middle, nest, emitted, (*proofs, proof), ())
    LOG.error("polyop bug: what the first call of %s makes on rung %s is not proved to last: %s", job.scop.op.name, rung, proof)
    return Made(job, middle, nest, once(final, ()), proofs, (f"nothing is kept from call to call: {proof}",))


def _same_elements(tiled: Tiled, scop: Scop) -> tuple[Proof, ...]:
    """That the tiles compute the operator: they make sense, and each copy of an element is right."""
    return (*well_formed(tiled.made.op), same_elements(scop_of(tiled.op), tiled.made, scop))


def _require_tiles(nest: LoopNest, made: Recomputed) -> None:
    """Raises  UnsupportedError, if `nest` keeps all tiles of something: then they were not worth their halos."""
    whole = {b.name for b in nest.buffers if b.space == Space.WORK and not b.private} & {c.name for c in made.copies}
    if whole:
        raise UnsupportedError(f"{', '.join(sorted(whole))} would be kept for all tiles")


def _require_inside(nest: LoopNest, names: frozenset[str]) -> None:
    """Raises  UnsupportedError, if `nest` keeps one of the temporaries `names` in memory."""
    kept = {b.name for b in nest.buffers if b.space == Space.WORK} & names
    if kept:
        raise UnsupportedError(f"{', '.join(sorted(kept))} would be in memory")


def _proved(middle: Middle, nest: LoopNest, layout: Layout, strict: bool) -> tuple[LoopNest, tuple[Proof, ...]]:
    """`nest` and its proofs; if one fails, the nest as it was before values were kept in registers, and the proofs of that."""
    proofs = prove(middle.scop, nest, middle.context, layout, strict)
    if first_failure(proofs) is None or nest.buffers == middle.nest.buffers:
        return nest, proofs
    return middle.nest, prove(middle.scop, middle.nest, middle.context, layout, strict)
