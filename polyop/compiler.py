"""THE pipeline: Op -> Compiled, one line per stage, and the ladder it falls down when a stage refuses.

    Op -extract-> Scop -schedule-> Schedule -tile-> TileProgram -generate-> LoopNest -keep-> LoopNest -prove-> Proof..
       -rewrite-> LoopNest -follow-> Proof -emit-> Module -assemble-> Binary
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from polyop.codegen import cuda, hip, x86
from polyop.codegen.lower import kept, rewritten
from polyop.codegen.verify import verify as verify_nest
from polyop.ir.errors import InternalError, UnsupportedError, UserError
from polyop.ir.loops import LoopNest
from polyop.ir.module import Binary, Module, Proof
from polyop.ir.op import Op
from polyop.ir.options import RUNGS, Layout, Options
from polyop.ir.target import Target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.scop import Scop
from polyop.poly.verify import first_failure, prove
from polyop.poly.verify.rewrites import follows
from polyop.poly.verify.verdict import is_undecided
from polyop.poly.wellformed import check
from polyop.rewrite.ones import fix_at_one
from polyop.rewrite.pieces import cut_into_pieces
from polyop.rewrite.residues import cut_into_residues
from polyop.runtime import cpu, forks
from polyop.trace import Recorder, Trace

LOG = logging.getLogger("polyop")

_ISL = forks.rlock()
"""isl's one context is not for several threads at once; Python's own lock is held inside isl anyway."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled operator and everything that was learnt on the way.

    rung     the rung of the ladder it came from; on "interpreter" there is no nest, module or binary
    nest     what the proofs look at: as isl wrote it, with values kept in registers; `final` after the rewrites
    chosen   the strategy of each cluster; `notes`: what was refused, and why
    """

    op: Op
    layout: Layout
    target: Target
    options: Options
    rung: str
    trace: Trace
    proofs: tuple[Proof, ...] = ()
    chosen: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    nest: LoopNest | None = None
    final: LoopNest | None = None
    module: Module | None = None
    binary: Binary | None = None


def compile_op(op: Op, layout: Layout, target: Target, options: Options | None = None) -> Compiled:
    """Compile `op` for tensors that lie as `layout` says.

    Raises  UserError, if the operator itself is wrong: reads outside, results not written, no legal order; or if isl cannot
            decide within its quota whether it is. UnsupportedError, if the pieces it is cut into exceed that quota.
    """
    options = options or Options()
    rec = Recorder()
    rec.text("op", op)
    with _ISL:
        rec.stage("check", check, op)
        scop = rec.stage("scop", lambda: scop_of(_before_scop(op, options)))
        rec.text("scop", scop)
        notes: list[str] = []
        for rung in RUNGS[RUNGS.index(options.rung) : -1]:
            for fold in (True, False) if rung in ("tuned", "default") else (False,):
                try:
                    return _on_rung(rung, fold, rec, scop, op, layout, target, options, notes)
                except _NotProvedError as error:
                    notes.append(f"not on rung {rung}{', folded' if fold else ''}: {error}")
                    if not error.has_folds:
                        if not is_undecided(error.failed):  # else it is a limit of the checker's
                            LOG.error("polyop bug: the schedule of %s on rung %s is %s", op.name, rung, error)
                        break
                except UnsupportedError as error:
                    notes.append(f"not on rung {rung}: {error}")
                    break
                except (UserError, RecursionError, MemoryError):
                    raise
                except Exception as error:  # plainer loops may do without what is broken
                    what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
                    notes.append(f"not on rung {rung}: {what}")
                    LOG.error("polyop bug: %s on rung %s: %s", op.name, rung, what)
                    break
    notes.append("no loops could be generated: calls are interpreted, which is slow")
    LOG.warning("%s runs in the interpreter: %s", op.name, "; ".join(notes))
    return Compiled(op, layout, target, options, "interpreter", rec.trace(), notes=tuple(notes))


def _before_scop(op: Op, options: Options) -> Op:
    """`op` as its Scop is made of it: sizes that are 1 put in, remainders and borders cut off."""
    return cut_into_pieces(cut_into_residues(fix_at_one(op, options.ones), options.numerics == "strict"))


class _NotProvedError(Exception):
    """A claim about a nest failed; `has_folds`: storage was folded, which was only a proposal."""

    def __init__(self, failed: Proof, has_folds: bool) -> None:
        super().__init__(f"not proved: {failed}")
        self.failed, self.has_folds = failed, has_folds


def _on_rung(rung: str, fold: bool, rec: Recorder, scop: Scop, op: Op, layout: Layout, target: Target, options: Options,
             notes: list[str]) -> Compiled:
    middle: Middle = rec.stage("loops", lower, scop, layout, target, options, rung, fold)
    rec.text("schedule", middle.schedule)
    rec.text("tiles", "\n\n".join(map(str, middle.programs)))
    rec.text("loops", middle.nest)
    on_cpu = target.family == "x86"
    nest = rec.stage("final", kept if on_cpu else verify_nest, middle.nest, target)
    proofs: tuple[Proof, ...] = ()
    if options.check:
        nest, proofs = rec.stage("proofs", _proved, middle, nest)
        rec.text("proofs", "\n".join(map(str, proofs)))
        failed = first_failure(proofs)
        if failed:
            raise _NotProvedError(failed, middle.has_folds)
    final = rec.stage("final", rewritten, nest, target) if on_cpu else nest
    if options.check and on_cpu:
        proof = rec.stage("proofs", follows, nest, final, middle.scop.context.intersect(middle.context))
        if proof.holds:
            proofs = (*proofs, proof)
            rec.text("proofs", "\n".join(map(str, proofs)))
        else:
            notes = [*notes, f"the loops are emitted as they were proved: {proof}"]
            LOG.error("polyop bug: the rewritten loops of %s on rung %s are not proved: %s", op.name, rung, proof)
            final = nest
    module = rec.stage("source", _emit, final, target, options)
    rec.text("final", final)
    rec.text("source", module)
    binary = rec.stage("assemble", cpu.assemble, module, target) if target.family == "x86" else None
    return Compiled(op, layout, target, options, rung, rec.trace(), proofs, middle.chosen, (*middle.notes, *notes),
                    nest, final, module, binary)


def _proved(middle: Middle, nest: LoopNest) -> tuple[LoopNest, tuple[Proof, ...]]:
    """`nest` and its proofs; if one fails, the nest as it was before values were kept in registers, and the proofs of that."""
    proofs = prove(middle.scop, nest, middle.context)
    if first_failure(proofs) is None or nest.buffers == middle.nest.buffers:
        return nest, proofs
    return middle.nest, prove(middle.scop, middle.nest, middle.context)


def _emit(nest: LoopNest, target: Target, options: Options) -> Module:
    match target.family:
        case "x86":
            return x86.emit(nest, target, options)
        case "cuda":
            return cuda.emit(nest, target, options)
        case "hip":
            return hip.emit(nest, target, options)
    raise InternalError(f"no emitter for {target.family}")
