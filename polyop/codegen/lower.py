"""LoopNest -> LoopNest for a CPU: the rewrites before emission, in order."""

from __future__ import annotations

from polyop.codegen.carry import carry
from polyop.codegen.clamp import declamp
from polyop.codegen.llvm.weight import vector_width
from polyop.codegen.passes import prefetch, split_full_tiles, unswitch
from polyop.codegen.peel import peel
from polyop.codegen.stream import stream_outputs
from polyop.codegen.ties import untie
from polyop.codegen.verify import verify
from polyop.ir.loops import LoopNest
from polyop.ir.options import Options
from polyop.ir.target import Target


def lower(nest: LoopNest, target: Target, options: Options) -> LoopNest:
    """`nest` as it will be emitted.

    Raises  UnsupportedError, if the target has too few registers or a loop is of a kind it cannot run.
    """
    verify(nest, target)
    width = vector_width(declamp(nest), target)
    split = split_full_tiles(untie(unswitch(carry(stream_outputs(nest), width))), width)
    return verify(prefetch(peel(unswitch(declamp(split)))), target)
