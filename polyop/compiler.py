"""THE pipeline: Op -> Compiled, one line per stage, and the ladder it falls down when a stage refuses.

    Op -extract-> Scop -schedule-> Schedule -tile-> TileProgram -generate-> LoopNest -keep-> LoopNest -prove-> Proof..
       -rewrite-> LoopNest -follow-> Proof -emit-> Module -assemble-> Binary

What an Op is taken for stands in `forms.py`, how one Scop becomes a nest in `making.py`, how several nests become one kernel in
`jobs.py`, how the rewrites of a text for GPUs are followed in `following.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from polyop.codegen import cuda, hip, x86
from polyop.codegen.c.text import with_head
from polyop.codegen.stepped import Step
from polyop.following import Followed, Text, follow
from polyop.forms import Form, attempts, before_scop, rounded, why_in_several
from polyop.ir.errors import InternalError, RegistersError, UnsupportedError, UserError
from polyop.ir.loops import LoopNest
from polyop.ir.module import Binary, Module, Proof
from polyop.ir.op import Op
from polyop.ir.options import RUNGS, Layout, Options
from polyop.ir.routine import Routine
from polyop.ir.target import Target
from polyop.jobs import apart, routines, together, whole
from polyop.making import PLAIN, Job, NotProvedError, Way, make
from polyop.poly.middle import scop_of
from polyop.poly.verify.verdict import is_undecided
from polyop.poly.wellformed import check
from polyop.runtime import forks
from polyop.runtime.collector import old_objects_spared
from polyop.runtime.cpu_ahead import Ahead
from polyop.trace import Recorder, Trace

T = TypeVar("T")

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


@dataclass(frozen=True, eq=False)
class _Asked:
    """What is to be compiled, and `notes`: what was refused so far.

    code    what makes machine code of x86
    ahead   what is told the text before its loops are proved
    """

    op: Op
    layout: Layout
    target: Target
    options: Options
    rec: Recorder
    notes: list[str]
    code: Ahead
    ahead: Callable[[Module], None] | None = None


def compile_op(op: Op, layout: Layout, target: Target, options: Options | None = None,
               ahead: Callable[[Module], None] | None = None) -> Compiled:
    """Compile `op` for tensors that lie as `layout` says.

    ahead   is told the text for a GPU as soon as there is one, so that its compiler may work while the loops are proved. They
            may not be: what counts is the module of the result, in which more is told and nothing else is done
    Raises  UserError, if the operator itself is wrong: reads outside, results not written, no legal order; or if isl cannot
            decide within its quota whether it is. UnsupportedError, if the pieces it is cut into exceed that quota.
    """
    code = Ahead(target)
    asked = _Asked(op, layout, target, options or Options(), Recorder(), [], code, code.begin if code.is_worth_it else ahead)
    asked.rec.text("op", op)
    with _ISL, old_objects_spared(), code:
        asked.rec.stage("check", check, op)
        made = _climbed_down(asked)
        if made:
            return made
        trace = asked.rec.trace()
    asked.notes.append("no loops could be generated: calls are interpreted, which is slow")
    LOG.warning("%s runs in the interpreter: %s", op.name, "; ".join(asked.notes))
    return Compiled(op, layout, target, asked.options, "interpreter", trace, notes=tuple(asked.notes))


def _climbed_down(a: _Asked) -> Compiled | None:
    """The kernel of the first rung that holds: of steps apart, then of each form of the whole; None if there is none."""
    cut = before_scop(a.op, a.options, a.target)
    if _may_be_rewritten(a) and a.options.rung == "tuned" and a.options.regime == "positive":
        jobs = _noted(a, "in parts", lambda: a.rec.stage("scop", apart, a.op, cut, a.layout))
        if jobs:
            made = _on_rung(a, "tuned", jobs)
            if made:
                return made
            a.notes.append("steps that differ in numbers alone are compiled one by one")
    for job, rungs in _forms(a, cut):
        for rung in rungs:
            found = _on_rung(a, rung, (job,), spills=rungs[-1] == RUNGS[-2])
            if found:
                return found
    return None


def _may_be_rewritten(a: _Asked) -> bool:
    """Whether an Op may become several kernels' worth of loops: on GPUs the host starts each of these."""
    return a.target.family == "x86"


def _forms(a: _Asked, cut: Op) -> Iterator[tuple[Job, tuple[str, ...]]]:
    """What to try, best first, and on which rungs: on those on which statements share loops, or on all if nothing follows."""
    rungs = RUNGS[RUNGS.index(a.options.rung) : -1]
    several = why_in_several(a.options, a.target)
    a.notes.extend([several] if several else [])
    fused = _FUSED if _may_be_rewritten(a) else ("tuned",)
    for what, form_of in attempts(a.op, cut, a.options, a.target):
        form = _noted(a, f"in {what}", form_of)
        job = _noted(a, f"in {what}", partial(_job, a, form)) if form else None
        if form and job:
            a.notes.extend([form.note] if form.note else [])
            yield job, tuple(r for r in rungs if r in fused)
    yield _job(a, Form(cut)), rungs


def _job(a: _Asked, form: Form) -> Job:
    form = rounded(form, a.options, a.target)
    return Job(a.rec.stage("scop", scop_of, form.op), a.layout, tiled=form.tiled, inside=form.inside, is_block=form.is_block)


def _on_rung(a: _Asked, rung: str, jobs: tuple[Job, ...], spills: bool = False) -> Compiled | None:
    """The kernel of one rung, with as much as is proved of what is proposed there; None if there is none so.

    spills  whether registers may be too few, since what follows is slower than that
    """
    way: Way | None = Way() if rung in _FUSED else PLAIN
    while way and (spills or not way.spills):
        made = _tried(a, rung, way, jobs)
        if isinstance(made, Compiled):
            return made
        way = made
    return None


def _tried(a: _Asked, rung: str, way: Way, jobs: tuple[Job, ...]) -> Compiled | Way | None:
    """The kernel; or, if there is none so, the next way to try on this rung."""
    a.rec.text("scop", *(j.scop for j in jobs))
    try:
        return _noted(a, f"on rung {rung}", lambda: _kernel(a, rung, way, jobs))
    except RegistersError as error:
        roomier = way.roomier(error.missing, a.target)
        a.notes.append(f"on rung {rung} with {roomier}, since {error}")
        return roomier
    except NotProvedError as error:
        a.notes.append(f"not on rung {rung}{', folded' if way.fold else ''}: {error}")
        if error.plainer is None and not is_undecided(error.failed):  # else it is a limit of the checker's
            LOG.error("polyop bug: the schedule of %s on rung %s is %s", a.op.name, rung, error)
        return error.plainer


def _noted(a: _Asked, where: str, stage: Callable[[], T]) -> T | None:
    """What `stage` makes; None if it cannot, with a note that says why. Plainer loops may do without what is broken."""
    try:
        return stage()
    except (RegistersError, NotProvedError, UserError, RecursionError, MemoryError):
        raise
    except UnsupportedError as error:
        a.notes.append(f"not {where}: {error}")
    except Exception as error:  # a bug of ours: plainer loops follow, and the log has it
        what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
        a.notes.append(f"not {where}: {what}")
        LOG.error("polyop bug: %s %s: %s", a.op.name, where, what)
    return None


def _kernel(a: _Asked, rung: str, way: Way, jobs: tuple[Job, ...]) -> Compiled:
    """All `jobs` made, as one kernel."""
    rec = a.rec
    begun: list[tuple[LoopNest, Text]] = []

    def early(nest: LoopNest) -> None:
        with suppress(UnsupportedError):  # which is raised again, unless the loops are not proved anyway
            begun.append((nest, rec.stage("source", _emit, nest, a.target, a.options, (), nest)))
            if a.ahead:
                a.ahead(begun[-1][1].module)

    alone = len(jobs) == 1
    frozen = a.options.frozen if alone and a.target.family == "x86" else ()
    made = tuple(make(j, rung, way, a.target, a.options, rec, early if a.ahead and alone else None, frozen) for j in jobs)
    finals = [m.final for m in made]
    nest, final = whole(made, [m.nest for m in made]), whole(made, finals)
    proofs = together([m.proofs for m in made])
    rec.text("schedule", *(m.middle.schedule for m in made))
    rec.text("tiles", *(p for m in made for p in m.middle.programs), between="\n\n")
    rec.text("loops", whole(made, [m.middle.nest for m in made]))
    rec.text("proofs", *proofs)
    text = next((t for n, t in begun if n is final), None) or rec.stage(
        "source", _emit, final, a.target, a.options, routines(made, finals), made[-1].final)
    again = partial(_emit, final, a.target, a.options, (), final)
    followed = follow(text, final, made, again, a.options.numerics == "strict", rec) if a.options.check else Followed(text.module)
    module = followed.module
    chosen = tuple(c for m in made for c in m.middle.chosen)
    if a.target.warp:
        sizes = "all sizes" if a.options.regime == "any" else "all sizes of at least 1"
        statements = (f"{s.name}: {s.formula}" for j in jobs for s in j.scop.stmts if s.kind != "init")
        module = with_head(module, statements, chosen, (p.claim for p in proofs if p.holds), sizes)
    rec.text("final", final)
    rec.text("source", module)
    binary = rec.stage("assemble", a.code.assembled, module) if a.target.family == "x86" else None
    said = tuple(dict.fromkeys(n for m in made for n in m.middle.notes))
    emitted = tuple(n for m in made for n in m.notes)
    alike = tuple(f"{', '.join(x.result for x in f.members)} differ in numbers alone and are one routine"
                  for f in (m.job.family for m in made) if f)
    return Compiled(a.op, a.layout, a.target, a.options, rung, rec.trace(), (*proofs, *followed.proofs), chosen,
                    (*said, *alike, *a.notes, *emitted, *followed.notes), nest, final, module, binary)


def _emit(nest: LoopNest, target: Target, options: Options, routines: tuple[Routine, ...], rest: LoopNest,
          without: frozenset[str] = frozenset()) -> Text:
    steps = list[Step]()
    match target.family:
        case "x86":
            return Text(x86.emit(nest, target, options, routines, rest.body))
        case "cuda":
            return Text(cuda.emit(nest, target, options, without, steps.append), tuple(steps))
        case "hip":
            return Text(hip.emit(nest, target, options, without, steps.append), tuple(steps))
    raise InternalError(f"no emitter for {target.family}")
