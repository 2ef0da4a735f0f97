"""LoopNest -> CUDA or HIP text: one printer, with the dialects as rows of data."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, replace

from polyop.codegen import cboxes, ccopy, cmatrix, croles, cthreads, cunits, raster
from polyop.codegen.blocks import folds, prepared
from polyop.codegen.cbody import body
from polyop.codegen.cboxes import Ring
from polyop.codegen.cindex import index
from polyop.codegen.cnames import c_names, without_unused
from polyop.codegen.cplace import STORED, slot_counts, strides
from polyop.codegen.cpoints import Points
from polyop.codegen.croles import Roles
from polyop.codegen.cscope import Scope
from polyop.codegen.cwarps import require_whole_warps
from polyop.codegen.private import shared
from polyop.codegen.reach import in_words, reaches
from polyop.codegen.split import KernelNest, kernels, plan, split, used, written
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Load, Scalar, is_computed, loads
from polyop.ir.expr import walk as walk_expr
from polyop.ir.loops import Barrier, Buffer, LoopNest, Space, stores, structure, walk
from polyop.ir.module import STATUS, Launch, Module, Signature
from polyop.ir.reach import Reach
from polyop.ir.target import Target

HEADER = "pop_device.h"
"""The one header that every text includes; whoever compiles the text supplies it."""

_WIDEST = 110  # columns of a kernel's structure


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one language starts a kernel.

    title      its name, for people
    kernel     what stands before a kernel's name; `{block}` is the number of threads in a block
    block      threads in a block
    """

    title: str
    kernel: str
    block: int


def module(nest: LoopNest, target: Target, dialect: Dialect, huge: bool = False) -> Module:
    """The text of `nest`, whose indices have 64 bits if it is `huge`, and the plan by which a host launches its kernels.

    Raises UnsupportedError for what this mapping cannot express; see `codegen/split.py` and `codegen/private.py`.
    """
    joined = folds(nest)
    tiles = cmatrix.find_tiles(nest, target)
    nest = prepared(nest)
    nest, steps = shared(nest, split(nest))
    signature = _signature(nest)
    scope = Scope(c_names(nest), {b.name: b for b in nest.buffers}, {s: i + 1 for i, s in enumerate(signature.sites)},
                  folds=joined, tiles=tiles, steps=cunits.steps(nest.body), counts="pop_i64" if huge else "int")
    far = {} if huge else reaches(nest, steps)
    launch = {}
    texts = [f"// {nest.name} for {target.name} ({dialect.title})", f'#include "{HEADER}"']
    for k in kernels(steps):
        args = _arguments(k, nest, signature)
        together = cthreads.threads_of(k.body)
        require_whole_warps(k.body, together, scope)
        block = together or (dialect.block if k.axes else 1)
        changed = tuple(b.name for b in nest.buffers if b.name in written(k.body) and b.name in args)
        _, bytes_ = cthreads.shared_offsets(_shared(k, nest))
        boxes, told = cboxes.found(k.body, dict(scope.buffers)) if target.boxes else ({}, ())
        results = cmatrix.results(k.body, scope)
        roles = croles.of(k, block, boxes, bytes_, results, target.multi) if told and target.multi else None
        ring = cboxes.ring(k.body, bytes_, bool(roles)) if told else None
        bytes_ = ring.end if ring else bytes_
        threads = roles.threads if roles else block
        launch[k.name] = Launch(scope.names[k.name], tuple(a.count for a in k.axes), threads, args, changed, bytes_,
                                1 if together else None, far.get(k.name, ()), told, bool(roles))
        inside = replace(scope, block=together, barrier=_barrier(k, nest, scope, bool(told)), boxes=boxes)
        head = dialect.kernel.format(block=threads)
        texts += ["", *_kernel(k, nest, inside, args, head, far.get(k.name, ()), len(told), ring, roles)]
    return Module(nest.name, target.name, "\n".join(texts) + "\n", signature, plan(steps, launch))


def _barrier(k: KernelNest, nest: LoopNest, scope: Scope, boxes: bool) -> str:
    """What a barrier of a kernel waits for: threads, copies, what matrix units read themselves; not for what is fetched ahead."""
    mine = stores(k.body)
    if any(cunits.reads_shared(s, scope) for s in mine):
        return "pop_units_barrier<{}>(pop_arriving);" if boxes else "pop_units_barrier<{}>();"
    if any(s.later for s in mine):
        return "pop_copies_barrier<{}>();"
    return "pop_shared_barrier();" if ccopy.taken(k.body, scope) and ccopy.meets_in_shared(k.body, nest) else "pop_barrier();"


def _shared(k: KernelNest, nest: LoopNest) -> list[Buffer]:
    """What the threads of a block share in a kernel."""
    here = used(k.body)
    return [b for b in nest.buffers if b.space == Space.SHARED and b.name in here]


def _signature(nest: LoopNest) -> Signature:
    tensors = tuple(b for b in nest.buffers if b.space == Space.TENSOR)
    work = tuple(b for b in nest.buffers if b.space == Space.WORK)
    all_loads = [x for s in stores(nest.body) for e in (s.target, s.expr) for x in loads(e)]
    sites = dict.fromkeys(x for x in all_loads if any(is_computed(p) for p in x.index))
    return Signature(nest.name, nest.sizes, nest.scalars, tensors, work, tuple(sites))


def _arguments(k: KernelNest, nest: LoopNest, signature: Signature) -> tuple[str, ...]:
    """The names a kernel is given, in the order of the signature."""
    buffers = used(k.body)
    exprs = [x for s in stores(k.body) for e in (s.target, s.expr) for x in walk_expr(e)]
    scalars = {x.name for x in exprs if isinstance(x, Scalar)}
    checked = any(isinstance(x, Load) and any(is_computed(p) for p in x.index) for x in exprs)
    return (*nest.sizes, *(n for n, _ in nest.scalars if n in scalars), *(b.name for b in signature.tensors if b.name in buffers),
            *(b.name for b in signature.work if b.name in buffers), *([STATUS] if checked else []), *k.host)


def _kernel(k: KernelNest, nest: LoopNest, scope: Scope, args: tuple[str, ...], head: str,
            far: tuple[Reach, ...], maps: int, ring: Ring | None, roles: Roles | None) -> list[str]:
    changed = written(k.body)
    scalar_types = dict(nest.scalars)
    parameters: list[list[str]] = [[]]  # in lines: the sizes and scalars, then one for each buffer
    for a in args:
        c = scope.names.get(a, "")
        if a == STATUS:
            parameters.append(["pop_u32* pop_status"])
        elif a in scope.buffers:
            b = scope.buffers[a]
            pointer = f"{'' if a in changed else 'const '}{STORED[b.dtype.name]}* {c}"
            parameters.append([pointer, *(f"{scope.counts} {c}_s{d}" for d in range(len(b.dims)) if b.space == Space.TENSOR)])
        else:
            kind = STORED[scalar_types[a].name] if a in scalar_types else scope.counts
            (parameters[-1] if a in k.host else parameters[0]).append(f"{kind} {c}")
    parameters += [[f"const __grid_constant__ pop_tensor_map pop_map{i}", f"pop_u32 pop_boxed{i}"] for i in range(maps)]
    parameters = [p for p in parameters if p]
    shape = "".join(f"{a.loop.index}:{a.loop.kind}(" for a in k.axes) + structure(k.body) + ")" * len(k.axes)
    said = [shape, *([f"indices have 32 bits: {in_words(far, scope.names)}"] if far else [])]
    lines = [f"// {x}" for text in said for x in textwrap.wrap(text, _WIDEST, break_long_words=True)]
    lines.append(f"{head} {scope.names[k.name]}(")
    lines += [f"    {', '.join(p)}{',' if i + 1 < len(parameters) else ')'}" for i, p in enumerate(parameters)]
    if not parameters:
        lines[-1] += ")"
    axes = Points(k.axes, raster.is_shared_both_ways(k, nest))
    if ring and roles:
        inside = without_unused([*axes.counts(scope), *_number(scope), *_shared_lines(k, nest, scope, ring),
                                 *_in_roles(k, nest, scope, axes, ring, roles, maps)])
        return [*lines, "{", *("    " + x for x in inside), "}"]
    until = max((i + 1 for i, n in enumerate(k.body) if any(isinstance(x, Barrier) and x.pending for x in walk((n,)))), default=0)
    end = ["pop_copies_end();  // those of turns that a short sum does not have"] if until else []
    end += [f"pop_ring_end<{ring.count - 1}>(pop_arriving);"] if ring else []
    start = cboxes.start(ring) if ring else []
    until = until or (len(k.body) if ring else 0)
    inside = without_unused([*axes.counts(scope), *_number(scope), *axes.start(scope),
                             *_shared_lines(k, nest, scope, ring), *_buffers(k, nest, scope), *start,
                             *body(k.body[:until], scope), *end, *body(k.body[until:], scope)])
    return [*lines, "{", *("    " + x for x in inside), "}"]


def _number(scope: Scope) -> list[str]:
    return [f"const pop_u32 {cthreads.NUMBER} = pop_thread();"] if scope.block else []


def _in_roles(k: KernelNest, nest: LoopNest, scope: Scope, axes: Points, ring: Ring, roles: Roles, maps: int) -> list[str]:
    """The text of a kernel whose warps have roles, and whose blocks take point after point."""
    first, pending = roles.consumers, ring.pending
    boxed = " && ".join(f"pop_boxed{i}" for i in range(maps))
    copying = replace(scope, producer=first, barrier="pop_producer_barrier<{}>(pop_arriving, pop_boxed);")
    using = replace(scope, barrier="pop_consumer_barrier<{}>(pop_arriving);")
    copied, rest = croles.producer(k.body), croles.consumer(k.body)
    until = croles.released(rest, scope.buffers)
    consumed = [*_buffers(k, nest, using), *body(rest[:until], using),
                "pop_consumer_release(pop_arriving);  // nothing below uses what was copied", *body(rest[until:], using)]
    return [
        f"const bool pop_boxed = {boxed};", *cboxes.start(ring),
        f"pop_pipe<{ring.count}> pop_arriving = pop_pipe_start<{ring.count}>("
        f"(pop_u64*)(pop_shared + {ring.at}), pop_boxed ? 1 : {croles.COPYING}, {first // croles.WARP});",
        f"if ({cthreads.NUMBER} >= {first}) {{  // these threads copy; if they ask for boxes, one of them does",
        f"    pop_registers_less<{croles.FEW}>();",
        f"    if (!pop_boxed || {cthreads.NUMBER} == {first}) {{",
        *("        " + x for x in axes.loop(copying, body(copied, copying))),
        f"        pop_producer_end<{pending}>(pop_arriving, pop_boxed);",
        "    }", "    return;", "}",
        f"pop_registers_more<{roles.registers}>();",
        *axes.loop(using, consumed)]


def _shared_lines(k: KernelNest, nest: LoopNest, scope: Scope, ring: Ring | None) -> list[str]:
    return cthreads.shared_lines(_shared(k, nest), scope, ring.end if ring else 0)


def _buffers(k: KernelNest, nest: LoopNest, scope: Scope) -> list[str]:
    """Strides of work buffers, and the thread's registers."""
    out: list[str] = []
    here, taken = used(k.body), ccopy.taken(k.body, scope)
    for b in nest.buffers:
        if b.name not in here or b.space in (Space.TENSOR, Space.SHARED):
            continue
        c, counts = scope.names[b.name], slot_counts(b)
        if b.name in scope.tiles.held:
            out.append(cmatrix.declared(b, scope.tiles.held[b.name], c))
            continue
        if b.space == Space.WORK:
            named = [(d, s) for d, s in enumerate(strides(b, c)) if isinstance(s, str)]
            for d, s in named:
                out.append(f"const {scope.counts} {s} = {' * '.join(index(n, scope.names).at(13) for n in counts[d + 1:])};")
        elif not all(n.is_constant for n in counts):
            raise UnsupportedError(f"{nest.name}: register buffer {b} has no constant size")
        else:
            total = 1
            for n in counts:
                total *= n.const
            wide = "alignas(16) " if b.name in taken else ""
            out.append(f"{wide}{STORED[b.dtype.name]} {c}{f'[{total}]' if b.dims else ''};")
    return out
