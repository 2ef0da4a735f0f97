"""Op -> Ops: what one operator may be taken for, before polyhedra come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from polyop.ir.copies import Recomputed
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import Target
from polyop.rewrite.beyond import read_beyond
from polyop.rewrite.copies.bordered import with_borders
from polyop.rewrite.copies.early import plain_products
from polyop.rewrite.copies.inward import turned_inward
from polyop.rewrite.copies.laid import laid_alongside
from polyop.rewrite.copies.landed import summed_where_it_lands
from polyop.rewrite.copies.late import turned_late
from polyop.rewrite.copies.operands import rounded_apart
from polyop.rewrite.copies.outward import turned_outward
from polyop.rewrite.copies.upright import columns_upright
from polyop.rewrite.copies.widened import widened
from polyop.rewrite.grouped import in_groups
from polyop.rewrite.inline import computed_again
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.regimes.positions import bounding, narrowed
from polyop.rewrite.sums.binary import binary
from polyop.rewrite.sums.blocks import cut_into_blocks
from polyop.rewrite.sums.capped import capped
from polyop.rewrite.sums.cascade import cascaded
from polyop.rewrite.sums.counted import counted
from polyop.rewrite.sums.dependent import chains_of
from polyop.rewrite.sums.factors import taken_out
from polyop.rewrite.sums.faint import without_faint
from polyop.rewrite.sums.normalised import told_of_rows
from polyop.rewrite.sums.prefixes import as_recurrences
from polyop.rewrite.sums.raised import raised
from polyop.rewrite.sums.scans import cut_scans
from polyop.rewrite.sums.shares import cut_into_shares
from polyop.rewrite.sums.thinned import thin
from polyop.rewrite.sums.zeros import multiplied_out
from polyop.rewrite.unread import without_unread
from polyop.rewrite.windows.overlap import cut_into_tiles
from polyop.rewrite.windows.pieces import cut_into_pieces
from polyop.rewrite.windows.residues import cut_into_residues
from polyop.rewrite.windows.rounds import cut_into_rounds
from polyop.rewrite.windows.turns import cut_at_turns

AGAIN = 40
"""What is computed again on a GPU costs at most that much, see `rewrite/measure.py`: four exponentials."""

ELEMENTS = 64
"""Elements of a row that a block of threads takes at a time, where reductions over it are done in one pass."""


@dataclass(frozen=True, eq=False)
class Tiled:
    """An Op whose chains run in overlapped tiles (`made`), and the one that it stands for."""

    op: Op
    made: Recomputed


@dataclass(frozen=True, eq=False)
class Form:
    """An Op that computes what another one does.

    tiled   in what way, where that has to be proved with each nest; note: what is said of it to the user
    inside  temporaries with which in memory it is worth nothing; is_block: as blocks of threads are to have all of it
    """

    op: Op
    tiled: Tiled | None = None
    note: str = ""
    inside: frozenset[str] = frozenset()
    is_block: bool = False


def before_scop(op: Op, options: Options, target: Target) -> Op:
    """`op` as its Scop is made of it: positions narrowed, sizes that are 1 put in; remainders, borders and shares cut off.

    On a GPU, what costs at most `AGAIN` is computed again and not stored.
    """
    near = _read(op, options, target)
    if options.rung == "tuned" and options.numerics != "strict":
        near = as_recurrences(near)
    if options.rung == "tuned" and target.family == "x86":
        near = multiplied_out(near)
        near = turned_late(near) if options.late else near
        near = laid_alongside(near, options.laid) if options.laid else near
        near = turned_outward(near) if options.outward else near
        near = taken_out(near, options.factors) if options.factors else near
        near = counted(near, target) if options.counted else near
        near = widened(raised(near) if options.raised else near, options.widened)
        near = plain_products(turned_inward(near, dict(options.inward), options.known), options)
        near = with_borders(near, target, options)
        near = cut_at_turns(columns_upright(near, dict(options.few)))
    elif options.rung == "tuned":
        near = turned_inward(thin(computed_again(near, AGAIN)), dict(options.inward), options.known)
    return _cut(near, options, target)


def _read(op: Op, options: Options, target: Target) -> Op:
    """`op` without what nobody reads, and with the positions that it reads at as a target likes them best."""
    op = without_unread(op)
    op = summed_where_it_lands(op) if options.rung == "tuned" and options.numerics != "strict" else op
    near = narrowed(op) if options.near or not bounding(op) else op
    if options.rung != "tuned":
        return near
    return in_groups(near if target.family == "x86" else read_beyond(near))


def _cut(op: Op, options: Options, target: Target) -> Op:
    """`op` with known sizes put in, and its steps cut: on a GPU also reductions to one element, as many blocks have work.

    A maximum in shares is no longer seen to be the greatest of a row, so what is next to nothing beside it is 0 before, unless
    that is for a chain to be found (`rounded`).
    """
    strict = options.numerics == "strict"
    cut = cut_into_pieces(cut_into_residues(cut_into_rounds(fix_sizes(op, options.known)), strict))
    on_cpu = target.family == "x86"
    if strict:
        return cut
    in_shares = partial(cut_into_shares, few=dict(options.shares), alone=options.threads or not on_cpu, feeds=on_cpu)
    made = in_shares(cut)
    if made is not cut and _clears_faint(options, target) and not chains_of(made):
        made = in_shares(without_faint(cut))
    return made


def _clears_faint(options: Options, target: Target) -> bool:
    """Whether powers that are denormal are made 0, which CPUs take long for."""
    return options.rung == "tuned" and target.family == "x86"


def in_tiles(cut: Op, options: Options) -> Form | None:
    """`cut` with chains in overlapped tiles; None if it has none."""
    tiled = cut_into_tiles(cut, options.overlap)
    return Form(tiled.op, Tiled(cut, tiled)) if tiled else None


def in_blocks(cut: Op, options: Options) -> Form | None:
    """`cut` with triangular recurrences in blocks; None if it has none."""
    blocked = cut_into_blocks(cut, options.numerics == "strict")
    return Form(blocked) if blocked is not cut else None


def why_in_several(options: Options, target: Target) -> str:
    """Why reductions stay apart though they are asked for in one pass; empty if they are not, or can be."""
    if options.cascade and options.numerics == "strict":
        return "not in one pass, since sums keep the order of the text"
    if options.cascade and target.family != "x86":
        return "in one pass only where a block of threads has all of it, since the host would start the kernels of each block"
    return ""


def in_one_pass(cut: Op, options: Options) -> Form | None:
    """`cut` with reductions that need another one's result in one pass with that; None if it has none, or is not asked for it."""
    if not options.cascade or options.numerics == "strict":
        return None
    made = cascaded(cut, least=_least(options))
    return Form(made, note=f"{_folds(cut)} are computed in one pass, block by block") if made is not cut else None


def in_one_kernel(op: Op, options: Options, target: Target) -> Form | None:
    """`op` with chains in one pass whose partial results stay with a block of a GPU's threads; None if it has none such.

    Nothing of it is computed again: what a chain goes by is stored in the block.
    """
    cut = _cut(_read(op, options, target), options, target)
    if options.numerics == "strict" or not any(c.is_rolled for c in chains_of(cut)):
        return None
    cut = binary(cut) if options.rung == "tuned" else cut
    made = cascaded(cut, ELEMENTS, least=_least(options))
    partial = frozenset(t.name for t in made.temporaries if any(e.name is None and not e.is_constant for e in t.shape))
    note = f"{_folds(cut)} are computed in one pass, block by block, in one kernel"
    return Form(made, note=note, inside=partial, is_block=True)


def in_row_shares(op: Op, options: Options, target: Target) -> Form | None:
    """`op` with chains whose blocks are carried out at the same time, and then joined; None if it has none, or is not asked."""
    if not options.split or options.numerics == "strict":
        return None
    cut = _cut(_read(op, options, target), options, target)
    made = cascaded(cut, options.split, apart=True, least=_least(options))
    return Form(made, note=f"{_folds(cut)} are computed in one pass, in shares that are joined") if made is not cut else None


def _least(options: Options) -> int:
    """What all sizes of a call are at least."""
    return 1 if options.regime == "positive" else 0


def _folds(op: Op) -> str:
    return ", ".join(dict.fromkeys(f.result for c in chains_of(op) for f in c.folds))


def in_chunks(cut: Op, options: Options) -> Form | None:
    """`cut` with scans in chunks, for the threads of a block; None if it has none."""
    if options.numerics == "strict" or options.regime != "positive":
        return None
    made = cut_scans(cut, options.apart)
    return Form(made.op, inside=made.inside) if made else None


def attempts(op: Op, cut: Op, options: Options, target: Target) -> tuple[tuple[str, Callable[[], Form | None]], ...]:
    """What may be tried before `cut`, which `op` is as it stands: best first, by what a user reads of it, and how it is made."""
    if target.family != "x86":  # the host would start the kernels of each block, or tile
        return (("shares of rows", partial(in_row_shares, op, options, target)),
                ("one kernel", partial(in_one_kernel, op, options, target)), ("chunks", partial(in_chunks, cut, options)))
    return (("one pass", partial(in_one_pass, cut, options)), ("overlapped tiles", partial(in_tiles, cut, options)),
            ("blocks", partial(in_blocks, cut, options)))


def rounded(form: Form, options: Options, target: Target) -> Form:
    """`form` with rounded operands in memory of their own, and without powers that are denormal; others say that they are small.

    Tiles stay, as what is proved of them is of their very steps.
    """
    if form.tiled or options.numerics == "strict":
        return form
    op = form.op
    if _clears_faint(options, target):
        op = told_of_rows(capped(without_faint(op)))
    elif options.rung == "tuned":
        op = without_faint(op, turns=True)  # GPUs have an instruction for such a power
    return replace(form, op=rounded_apart(op, target))
