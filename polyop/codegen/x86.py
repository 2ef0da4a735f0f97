"""LoopNest -> LLVM IR text with explicit vectors.

A serial loop becomes a loop. Rows and lanes become no loop at all: an expression is computed once for each point of the
rows and lanes that it depends on. So `acc[p, v] += A[p, k] * B[k, v]` is, without being recognised as anything, v / w
vector loads, p scalar loads and broadcasts, and p v / w multiply-adds on accumulators held in SSA values.

Nothing is left to LLVM's optimiser: no pass of it is run, only its code generator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyop.codegen.cpu.frozen import first_call_of
from polyop.codegen.cpu.pairs import paired
from polyop.codegen.cpu.prefetch_results import asked_for
from polyop.codegen.cpu.rolled import rolled, sums_of_tiles, with_rows_beyond
from polyop.codegen.cpu.stream import written_as_read
from polyop.codegen.cpu.weight import heavy_functions, vector_width
from polyop.codegen.llvm.builder import Builder, Text
from polyop.codegen.llvm.lifetime import lives_of
from polyop.codegen.llvm.nodes import emit_nodes
from polyop.codegen.llvm.parallel import STATUS
from polyop.codegen.llvm.routines import call
from polyop.codegen.llvm.state import Shared, State, slots_of
from polyop.ir.errors import InternalError
from polyop.ir.expr import Load
from polyop.ir.loops import Buffer, LoopNest, Node, Space
from polyop.ir.module import Module, Signature
from polyop.ir.options import Options
from polyop.ir.routine import Routine
from polyop.ir.target import Target

Body = tuple[Node, ...]

BESIDE = 7  # registers for what a step of a tile reads: LLVM would read all of its rows at once
COPIED = 9  # the same with masks, if a step copies, too: of kernels that copy none some take 1.05 of their time so


def emit(nest: LoopNest, target: Target, options: Options, routines: tuple[Routine, ...] = (),
         rest: Body | None = None) -> Module:
    """The text of one kernel; its calling convention is that of `ir/module.py`.

    routines   if given, `nest` is their uses in order and then `rest`; each becomes one function, called for each use
    Raises     UnsupportedError, with the reason, for a nest that this target cannot run
    """
    nest = with_rows_beyond(nest, target)
    # https://gitlab.com/x86-psABIs/x86-64-ABI: FMA comes with AVX2 at level v3, vscalef with masks at level v4
    text = Text(fuses=target.vector_bytes >= 32, scales=target.masks)
    named = [(replace(r.nest, name=f"{nest.name}.r{k}"), r.uses) for k, r in enumerate(routines)]
    for shared, _ in named:
        if _function(text, shared, shared.body, target, options, "define internal"):
            raise InternalError(f"emit: {shared.name} has computed positions, whose sites a caller of it would not know")

    def before(s: State) -> None:
        for shared, uses in named:
            for use in uses:
                call(s, shared.name, shared, use)

    sites = _function(text, nest, nest.body if rest is None else rest, target, options, "define", before)
    full = text.copying + COPIED > target.registers if target.masks else text.carried + BESIDE > target.registers
    return Module(nest.name, target.name, text.assemble(attributes(target)), signature(nest, sites), is_full=full)


def _function(text: Text, nest: LoopNest, body: Body, target: Target, options: Options, define: str,
              before: Callable[[State], None] = lambda s: None) -> tuple[Load, ...]:
    """Write the function that does `before` and then `body`, with the arguments of `nest`; returns its sites."""
    b = Builder(text)
    alone = replace(nest, body=body)
    if (fuller := paired(alone, vector_width(alone, target))) is not alone:
        nest = alone = fuller
        body = nest.body
    width, tiled = vector_width(alone, target), sums_of_tiles(alone, target)
    if tiled:
        nest = alone = rolled(alone, target)
        body = nest.body
    strict = options.numerics == "strict"
    shared = Shared(nest, target, strict, options.threads, width, slots_of(nest), heavy_functions(alone, width), tiled,
                    asked_for(body), written_as_read(body, nest))
    s = State(b, shared, "%args", "%status", 0, lives_of(nest))
    before(s)
    emit_nodes(s, body)
    head = [f"{define} i64 @{nest.name}(ptr %args) #0 {{", "entry:", *STATUS]
    tail = ["  %found = load i64, ptr %status, align 8", "  ret i64 %found", "}"]
    if s.streams:
        tail.insert(0, b.fence())
    text.functions.append("\n".join([*head, *b.lines(), *tail]))
    return tuple(shared.sites)


def attributes(target: Target) -> str:
    wide = target.vector_bytes * 8
    features = f' "target-features"="{target.features}"' if target.features else ""
    return (f'nounwind "target-cpu"="{target.arch}"{features} "prefer-vector-width"="{wide}" "min-legal-vector-width"="{wide}" '
            '"no-trapping-math"="true"')


def signature(nest: LoopNest, sites: tuple[Load, ...]) -> Signature:
    def of(space: Space) -> tuple[Buffer, ...]:
        return tuple(b for b in nest.buffers if b.space == space)

    return Signature(nest.name, nest.sizes, nest.scalars, of(Space.TENSOR), of(Space.WORK), sites, first_call_of(nest))
