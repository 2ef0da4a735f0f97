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
from polyop.ir.copies import Recomputed
from polyop.ir.errors import InternalError, UnsupportedError, UserError
from polyop.ir.loops import Buffer, LoopNest, Space
from polyop.ir.module import Binary, Module, Proof
from polyop.ir.op import Op
from polyop.ir.options import RUNGS, Layout, Options
from polyop.ir.routine import Routine, Use, composed
from polyop.ir.target import Target
from polyop.poly.middle import Middle, lower, scop_of
from polyop.poly.schedule import is_contraction
from polyop.poly.scop import Scop
from polyop.poly.verify import first_failure, prove
from polyop.poly.verify.copies import same_elements
from polyop.poly.verify.rewrites import follows
from polyop.poly.verify.verdict import is_undecided
from polyop.poly.wellformed import check
from polyop.poly.wellformed import proofs as well_formed
from polyop.rewrite.blocks import cut_into_blocks
from polyop.rewrite.families import Family, families, rest_of
from polyop.rewrite.names import fresh
from polyop.rewrite.ones import fix_at_one
from polyop.rewrite.overlap import cut_into_tiles
from polyop.rewrite.pieces import cut_into_pieces
from polyop.rewrite.positions import narrowed
from polyop.rewrite.residues import cut_into_residues
from polyop.rewrite.rounds import cut_into_rounds
from polyop.rewrite.shares import cut_into_shares
from polyop.runtime import cpu, forks
from polyop.trace import Recorder, Trace

LOG = logging.getLogger("polyop")

_ISL = forks.rlock()
"""isl's one context is not for several threads at once; Python's own lock is held inside isl anyway."""

_FUSED = ("tuned", "default")
"""The rungs on which statements share loops, and storage may be folded."""


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


@dataclass(frozen=True, slots=True)
class _Way:
    """What may be proposed on a rung: storage that is folded, recurrences in time tiles."""

    fold: bool = True
    skew: bool = True


_PLAIN = _Way(False, False)


@dataclass(frozen=True, eq=False)
class _Tiled:
    """An Op whose chains run in overlapped tiles, and the one that it stands for."""

    op: Op
    made: Recomputed


@dataclass(frozen=True, eq=False)
class _Job:
    """What becomes a nest of its own: a whole Op, or a family of its steps, or what is left of it then."""

    scop: Scop
    layout: Layout
    family: Family | None = None
    tiled: _Tiled | None = None


@dataclass(frozen=True, eq=False)
class _Made:
    """A job's nest: as the proofs look at it, and as it is emitted."""

    job: _Job
    middle: Middle
    nest: LoopNest
    final: LoopNest
    proofs: tuple[Proof, ...]
    notes: tuple[str, ...]


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
        cut = _before_scop(op, options)
        notes: list[str] = []

        def tried(rung: str, way: _Way, jobs: tuple[_Job, ...]) -> Compiled | _Way | None:
            """The kernel; or, if there is none so, the next way to try on this rung."""
            rec.text("scop", "\n".join(str(j.scop) for j in jobs))
            try:
                return _on_rung(rung, way, rec, jobs, op, layout, target, options, notes)
            except _NotProvedError as error:
                notes.append(f"not on rung {rung}{', folded' if way.fold else ''}: {error}")
                if error.plainer is None and not is_undecided(error.failed):  # else it is a limit of the checker's
                    LOG.error("polyop bug: the schedule of %s on rung %s is %s", op.name, rung, error)
                return error.plainer
            except UnsupportedError as error:
                notes.append(f"not on rung {rung}: {error}")
            except (UserError, RecursionError, MemoryError):
                raise
            except Exception as error:  # plainer loops may do without what is broken
                what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
                notes.append(f"not on rung {rung}: {what}")
                LOG.error("polyop bug: %s on rung %s: %s", op.name, rung, what)
            return None

        apart = rec.stage("scop", _apart, op, cut, layout, target, options)
        if apart:
            made = tried(options.rung, _Way(), apart)
            if isinstance(made, Compiled):
                return made
            notes.append("steps that differ in numbers alone are compiled one by one")
        for form, tiled in _forms(cut, options, target):
            whole = (_Job(rec.stage("scop", scop_of, form), layout, tiled=tiled),)
            for rung in (r for r in RUNGS[RUNGS.index(options.rung) : -1] if form is cut or r in _FUSED):
                way: _Way | None = _Way() if rung in _FUSED else _PLAIN
                while way:
                    made = tried(rung, way, whole)
                    if isinstance(made, Compiled):
                        return made
                    way = made
    notes.append("no loops could be generated: calls are interpreted, which is slow")
    LOG.warning("%s runs in the interpreter: %s", op.name, "; ".join(notes))
    return Compiled(op, layout, target, options, "interpreter", rec.trace(), notes=tuple(notes))


def _before_scop(op: Op, options: Options) -> Op:
    """`op` as its Scop is made of it: positions narrowed, sizes that are 1 put in; remainders, borders and shares cut off."""
    strict = options.numerics == "strict"
    near = narrowed(op) if options.near else op
    cut = cut_into_pieces(cut_into_residues(cut_into_rounds(fix_at_one(near, options.ones)), strict))
    return cut_into_shares(cut) if options.threads and not strict else cut


def _forms(cut: Op, options: Options, target: Target) -> list[tuple[Op, _Tiled | None]]:
    """What to try, best first: chains in overlapped tiles, triangular recurrences in blocks, and `cut` as it is.

    Nothing but that for GPUs, whose host would start the kernels of each block.
    """
    if target.family != "x86":
        return [(cut, None)]
    tiled, blocked = cut_into_tiles(cut, options.overlap), cut_into_blocks(cut, options.numerics == "strict")
    return [*([(tiled.op, _Tiled(cut, tiled))] if tiled else []), *([(blocked, None)] if blocked is not cut else []), (cut, None)]


def _apart(op: Op, cut: Op, layout: Layout, target: Target, options: Options) -> tuple[_Job, ...]:
    """Residue classes that differ in numbers alone, each family of them a job, and what is left; () if there are none.

    Contractions only: what is lighter shares loops with what it is put into. Not for GPUs, whose kernels the host starts.
    """
    if options.rung != "tuned" or options.regime != "positive" or target.family != "x86":
        return ()
    classes = frozenset(t.name for t in cut.temporaries) - frozenset(t.name for t in op.temporaries)
    jobs = [_Job(scop_of(f.op), _layout_of(f.op, layout), f) for f in families(cut, classes)]
    jobs = [j for j in jobs if any(is_contraction(s, frozenset()) for s in j.scop.stmts)]
    if not jobs:
        return ()
    rest = rest_of(cut, tuple(j.family for j in jobs if j.family))
    return (*jobs, _Job(scop_of(rest), _layout_of(rest, layout)))


def _layout_of(part: Op, layout: Layout) -> Layout:
    """`layout` for a part of an operator, whose temporaries are contiguous."""
    units = {t.name: len(t.shape) - 1 if t.shape else None for t in part.tensors if t.role != "temp"}
    return Layout(tuple((units | {n: u for n, u in layout.units if n in units}).items()))


class _NotProvedError(Exception):
    """A claim about a nest failed; `plainer`: the way without what was only proposed, the last of it first, if anything was."""

    def __init__(self, failed: Proof, made: Middle) -> None:
        super().__init__(f"not proved: {failed}{', in time tiles' if made.has_skews else ''}")
        self.failed = failed
        self.plainer = _Way(skew=False) if made.has_skews else _PLAIN if made.has_folds else None


def _on_rung(rung: str, way: _Way, rec: Recorder, jobs: tuple[_Job, ...], op: Op, layout: Layout, target: Target,
             options: Options, notes: list[str]) -> Compiled:
    made = tuple(_made(rung, way, rec, j, target, options) for j in jobs)
    nest, final = _whole(made, [m.nest for m in made]), _whole(made, [m.final for m in made])
    proofs = _together([m.proofs for m in made])
    rec.text("schedule", "\n".join(str(m.middle.schedule) for m in made))
    rec.text("tiles", "\n\n".join(str(p) for m in made for p in m.middle.programs))
    rec.text("loops", _whole(made, [m.middle.nest for m in made]))
    rec.text("proofs", "\n".join(map(str, proofs)))
    module = rec.stage("source", _emit, final, target, options, _routines(made, [m.final for m in made]), made[-1].final)
    rec.text("final", final)
    rec.text("source", module)
    binary = rec.stage("assemble", cpu.assemble, module, target) if target.family == "x86" else None
    chosen = tuple(c for m in made for c in m.middle.chosen)
    said = tuple(dict.fromkeys(n for m in made for n in m.middle.notes))
    emitted = tuple(n for m in made for n in m.notes)
    alike = tuple(f"{', '.join(x.result for x in f.members)} differ in numbers alone and are one routine"
                  for f in (m.job.family for m in made) if f)
    return Compiled(op, layout, target, options, rung, rec.trace(), proofs, chosen, (*said, *alike, *notes, *emitted),
                    nest, final, module, binary)


def _made(rung: str, way: _Way, rec: Recorder, job: _Job, target: Target, options: Options) -> _Made:
    """The nest of a job on a rung, proved and rewritten."""
    middle: Middle = rec.stage("loops", lower, job.scop, job.layout, target, options, rung, way.fold, way.skew)
    if job.tiled:
        _require_tiles(middle.nest, job.tiled.made)
    rec.text("schedule", middle.schedule)
    rec.text("tiles", "\n\n".join(map(str, middle.programs)))
    rec.text("loops", middle.nest)
    on_cpu = target.family == "x86"
    nest = rec.stage("final", kept if on_cpu else verify_nest, middle.nest, target)
    if not options.check:
        return _Made(job, middle, nest, rec.stage("final", rewritten, nest, target) if on_cpu else nest, (), ())
    nest, proofs = rec.stage("proofs", _proved, middle, nest)
    if job.tiled:
        proofs = (*rec.stage("proofs", _same_elements, job.tiled, job.scop), *proofs)
    rec.text("proofs", "\n".join(map(str, proofs)))
    failed = first_failure(proofs)
    if failed:
        raise _NotProvedError(failed, middle)
    if not on_cpu:
        return _Made(job, middle, nest, nest, proofs, ())
    final = rec.stage("final", rewritten, nest, target)
    proof = rec.stage("proofs", follows, nest, final, middle.scop.context.intersect(middle.context))
    if proof.holds:
        return _Made(job, middle, nest, final, (*proofs, proof), ())
    LOG.error("polyop bug: the rewritten loops of %s on rung %s are not proved: %s", job.scop.op.name, rung, proof)
    return _Made(job, middle, nest, nest, proofs, (f"the loops are emitted as they were proved: {proof}",))


def _same_elements(tiled: _Tiled, scop: Scop) -> tuple[Proof, ...]:
    """That the tiles compute the operator: they make sense, and each copy of an element is right."""
    return (*well_formed(tiled.made.op), same_elements(scop_of(tiled.op), tiled.made, scop))


def _require_tiles(nest: LoopNest, made: Recomputed) -> None:
    """Raises  UnsupportedError, if `nest` keeps all tiles of something: then they were not worth their halos."""
    whole = {b.name for b in nest.buffers if b.space == Space.WORK and not b.private} & {c.name for c in made.copies}
    if whole:
        raise UnsupportedError(f"{', '.join(sorted(whole))} would be kept for all tiles")


# --- several jobs as one kernel ----------------------------------------------------------------------------------------------


def _routines(made: tuple[_Made, ...], nests: list[LoopNest]) -> tuple[Routine, ...]:
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


def _whole(made: tuple[_Made, ...], nests: list[LoopNest]) -> LoopNest:
    """One nest of the jobs' `nests`: the families' members one after the other, then what is left."""
    if len(made) == 1:
        return nests[0]
    rest = made[-1].job.scop.op
    done = {x.result for m in made if m.job.family for x in m.job.family.members}
    results = [Buffer(t.name, t.dtype, tuple((e, 1) for e in t.shape), Space.WORK) for t in rest.tensors if t.name in done]
    return composed(_routines(made, nests), nests[-1], {b.name: b for b in results})


def _together(each: list[tuple[Proof, ...]]) -> tuple[Proof, ...]:
    """What is proved of all the jobs' nests is proved of the kernel."""
    if len(each) == 1:
        return each[0]
    claims = [p.claim for p in min(each, key=len)]
    found = [[p for proofs in each for p in proofs if p.claim == c] for c in claims]
    return tuple(Proof(c, True, "", sum(p.ms for p in same)) for c, same in zip(claims, found, strict=True))


def _proved(middle: Middle, nest: LoopNest) -> tuple[LoopNest, tuple[Proof, ...]]:
    """`nest` and its proofs; if one fails, the nest as it was before values were kept in registers, and the proofs of that."""
    proofs = prove(middle.scop, nest, middle.context)
    if first_failure(proofs) is None or nest.buffers == middle.nest.buffers:
        return nest, proofs
    return middle.nest, prove(middle.scop, middle.nest, middle.context)


def _emit(nest: LoopNest, target: Target, options: Options, routines: tuple[Routine, ...], rest: LoopNest) -> Module:
    match target.family:
        case "x86":
            return x86.emit(nest, target, options, routines, rest.body)
        case "cuda":
            return cuda.emit(nest, target, options)
        case "hip":
            return hip.emit(nest, target, options)
    raise InternalError(f"no emitter for {target.family}")
