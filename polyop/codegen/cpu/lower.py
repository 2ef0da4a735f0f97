"""LoopNest -> LoopNest for a CPU: the rewrites before emission, in order."""

from __future__ import annotations

from polyop.codegen.cpu.carry import carry
from polyop.codegen.cpu.clamp import declamp
from polyop.codegen.cpu.ends import cut_ends
from polyop.codegen.cpu.gathered import fetch_gathered
from polyop.codegen.cpu.passes import split_full_tiles, unswitch
from polyop.codegen.cpu.peel import peel
from polyop.codegen.cpu.prefetch import read_ahead
from polyop.codegen.cpu.prefetch_blocks import prefetch_blocks
from polyop.codegen.cpu.prefetch_panels import prefetch_panels
from polyop.codegen.cpu.prefetch_results import ask_for_results
from polyop.codegen.cpu.prefetch_tiles import prefetch_tiles
from polyop.codegen.cpu.settle import settle
from polyop.codegen.cpu.stream import stream_outputs
from polyop.codegen.cpu.ties import untie
from polyop.codegen.cpu.unguard import unguard
from polyop.codegen.cpu.until import end_early
from polyop.codegen.cpu.verify import verify
from polyop.codegen.cpu.weight import vector_width
from polyop.ir.loops import LoopNest
from polyop.ir.options import Options
from polyop.ir.target import USUAL_HINTS, Hints, Target


def kept(nest: LoopNest, target: Target, spills: bool = False) -> LoopNest:
    """`nest` with values kept in registers from one iteration to the next: the last change that is proved like the nest itself.

    Raises  UnsupportedError, if a loop is of a kind the target cannot run; RegistersError, if not `spills` and it has too few.
    """
    verify(nest, target, spills)
    new = carry(stream_outputs(nest), vector_width(declamp(nest), target))
    return verify(new, target, spills) if new.buffers != nest.buffers else new


def rewritten(nest: LoopNest, target: Target, strict: bool = False, spills: bool = False, strip: bool = False) -> LoopNest:
    """What is emitted for `nest`: the same stores in the same order, but for those that change nothing, in other loops and tests.

    strict  whether no float that is 0 may be left out of a sum
    strip   whether rows that are added up are short: `Options.strip`
    Raises  RegistersError, if not `spills` and the target has too few registers for it.
    """
    return verify(rewrites(nest, vector_width(declamp(nest), target), target.hints, target.masks, strict,
                           target.pages_meet, strip), target, spills)


def rewrites(nest: LoopNest, width: int, hints: Hints = USUAL_HINTS, masks: bool = True, strict: bool = False,
             meet: bool = False, strip: bool = False) -> LoopNest:
    """The same for vectors of `width` lanes, on whatever target, of which `masks` says whether it has some."""
    split = split_full_tiles(untie(unswitch(end_early(nest))), width, masks=masks)
    whole = peel(unswitch(cut_ends(declamp(unguard(unswitch(split), strict)))))
    tiled = prefetch_blocks(prefetch_tiles(whole, width, hints, meet=meet, strip=strip))
    tiled = prefetch_panels(tiled) if hints.panels else tiled
    return settle(ask_for_results(fetch_gathered(read_ahead(tiled, hints))))


def lower(nest: LoopNest, target: Target, options: Options) -> LoopNest:
    """`nest` as it will be emitted."""
    return rewritten(kept(nest, target), target, options.numerics == "strict", strip=options.strip)
