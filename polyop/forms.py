"""Op -> Ops: what one operator may be taken for, before polyhedra come in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from polyop.ir.copies import Recomputed
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import Target
from polyop.rewrite.beyond import read_beyond
from polyop.rewrite.blocks import cut_into_blocks
from polyop.rewrite.cascade import cascaded, is_rolled
from polyop.rewrite.dependent import chains_of
from polyop.rewrite.inline import computed_again
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.overlap import cut_into_tiles
from polyop.rewrite.pieces import cut_into_pieces
from polyop.rewrite.positions import narrowed
from polyop.rewrite.residues import cut_into_residues
from polyop.rewrite.rounds import cut_into_rounds
from polyop.rewrite.scans import cut_scans
from polyop.rewrite.shares import cut_into_shares
from polyop.rewrite.thinned import thin
from polyop.rewrite.turns import cut_at_turns
from polyop.rewrite.upright import columns_upright

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
    inside  temporaries with which in memory it is worth nothing
    """

    op: Op
    tiled: Tiled | None = None
    note: str = ""
    inside: frozenset[str] = frozenset()


def before_scop(op: Op, options: Options, target: Target, again: int = AGAIN) -> Op:
    """`op` as its Scop is made of it: positions narrowed, sizes that are 1 put in; remainders, borders and shares cut off.

    On a GPU, what costs at most `again` is computed again and not stored, and a reduction to one element is always cut: many
    blocks have work.
    """
    strict, on_gpu = options.numerics == "strict", target.family != "x86"
    near = narrowed(op) if options.near else op
    if on_gpu and options.rung == "tuned":
        near = read_beyond(near)
    if on_gpu and options.rung == "tuned" and again:
        near = thin(computed_again(near, again))
    if not on_gpu and options.rung == "tuned":
        near = cut_at_turns(columns_upright(near, dict(options.few)))
    cut = cut_into_pieces(cut_into_residues(cut_into_rounds(fix_sizes(near, options.known)), strict))
    return cut_into_shares(cut, dict(options.shares)) if (options.threads or on_gpu) and not strict else cut


def in_tiles(cut: Op, options: Options) -> Form | None:
    """`cut` with chains in overlapped tiles; None if it has none."""
    tiled = cut_into_tiles(cut, options.overlap)
    return Form(tiled.op, Tiled(cut, tiled)) if tiled else None


def in_blocks(cut: Op, options: Options) -> Form | None:
    """`cut` with triangular recurrences in blocks; None if it has none."""
    blocked = cut_into_blocks(cut, options.numerics == "strict")
    return Form(blocked) if blocked is not cut else None


def why_in_several(options: Options, on_gpu: bool) -> str:
    """Why reductions stay apart though they are asked for in one pass; empty if they are not, or can be."""
    if not options.cascade or not (on_gpu or options.numerics == "strict"):
        return ""
    why = "the host would start the kernels of each block" if on_gpu else "sums keep the order of the text"
    return f"not in one pass, since {why}"


def in_one_pass(cut: Op, options: Options) -> Form | None:
    """`cut` with reductions that need another one's result in one pass with that; None if it has none, or is not asked for it."""
    if not options.cascade or why_in_several(options, False):
        return None
    made = cascaded(cut)
    return Form(made, note=f"{_folds(cut)} are computed in one pass, block by block") if made is not cut else None


def in_one_kernel(op: Op, options: Options, target: Target) -> Form | None:
    """`op` with chains in one pass whose partial results stay with a block of a GPU's threads; None if it has none such."""
    cut = before_scop(op, options, target, 0)
    if options.numerics == "strict" or not any(is_rolled(c) for c in chains_of(cut)):
        return None
    made = cascaded(cut, ELEMENTS)
    partial = frozenset(t.name for t in made.temporaries if any(e.name is None and not e.is_constant for e in t.shape))
    return Form(made, note=f"{_folds(cut)} are computed in one pass, block by block, in one kernel", inside=partial)


def _folds(op: Op) -> str:
    return ", ".join(dict.fromkeys(f.result for c in chains_of(op) for f in c.folds))


def in_chunks(cut: Op, options: Options) -> Form | None:
    """`cut` with scans in chunks, for the threads of a block; None if it has none."""
    if options.numerics == "strict" or options.regime != "positive":
        return None
    made = cut_scans(cut, options.apart)
    return Form(made.op, inside=made.inside) if made else None


FORMS: tuple[tuple[str, Callable[[Op, Options], Form | None]], ...] = (
    ("one pass", in_one_pass), ("overlapped tiles", in_tiles), ("blocks", in_blocks))
"""What is tried before an Op as it is, best first. Not for GPUs, whose host would start the kernels of each block."""

FORMS_ON_GPU: tuple[tuple[str, Callable[[Op, Options], Form | None]], ...] = (("chunks", in_chunks),)
"""The same for GPUs; it must hold on the tuned rung, since without its strategy it is no gain."""
