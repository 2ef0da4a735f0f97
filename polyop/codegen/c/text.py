"""LoopNest -> CUDA or HIP text: one printer, with the dialects as rows of data."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from math import prod

from polyop.codegen.c import anew, copy, matrix
from polyop.codegen.c import boxes as cboxes
from polyop.codegen.c import roles as croles
from polyop.codegen.c import threads as cthreads
from polyop.codegen.c import units as cunits
from polyop.codegen.c.body import body
from polyop.codegen.c.boxes import Ring
from polyop.codegen.c.grid import beside
from polyop.codegen.c.index import index
from polyop.codegen.c.names import c_names, without_unused
from polyop.codegen.c.place import STORED, strides
from polyop.codegen.c.points import Points
from polyop.codegen.c.roles import Roles
from polyop.codegen.c.scope import Scope
from polyop.codegen.c.warps import require_whole_warps, threads_of
from polyop.codegen.gpu import raster
from polyop.codegen.gpu.blocks import folds, prepared
from polyop.codegen.gpu.private import shared
from polyop.codegen.gpu.reach import in_words, reaches
from polyop.codegen.gpu.refined import refined
from polyop.codegen.gpu.slots import slot_counts
from polyop.codegen.gpu.split import KernelNest, Part, kernels, plan, split, used, written
from polyop.codegen.stepped import Step
from polyop.ir.dots import factors
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Apply, Load, Scalar, is_computed, loads
from polyop.ir.expr import Test as Tests
from polyop.ir.expr import walk as walk_expr
from polyop.ir.loops import Barrier, Buffer, For, IfData, Kind, LoopNest, Space, stores, structure, walk
from polyop.ir.module import STATUS, Blocks, Launch, Module, Signature
from polyop.ir.reach import Reach
from polyop.ir.target import Target

HEADER = "pop_device.h"
"""The one header that every text includes; whoever compiles the text supplies it."""

_WIDEST = 110  # columns of a kernel's structure
_DEEP = 32  # steps of a turn
_BESIDE = 32  # registers of a lane beside what its products add up, with which nothing is spilled between them


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one language starts a kernel.

    title      its name, for people
    kernel     what stands before a kernel's name; `{block}` is the number of threads in a block, `{blocks}` how many blocks there
               must be registers for
    block      threads in a block
    """

    title: str
    kernel: str
    block: int


def module(nest: LoopNest, target: Target, dialect: Dialect, huge: bool = False, without: Container[str] = (),
           tell: Callable[[Step], None] | None = None) -> Module:
    """The text of `nest`, whose indices have 64 bits if it is `huge`, and the plan by which a host launches its kernels.

    without   passes of `codegen/gpu/blocks.py` and `refined.py` that are left out; `tell`: is told what others change
    Raises UnsupportedError for what this mapping cannot express; see `codegen/gpu/split.py` and `codegen/gpu/private.py`.
    """
    joined, chains = folds(nest), cunits.chains(nest.body)
    tiles = matrix.find_tiles(nest, target)
    ready, early = prepared(nest, without)
    nest, late = refined(ready, nest, tiles, without)
    if tell:
        for change in (*early, *late):
            tell(change)
    nest, steps = shared(nest, split(nest))
    signature = _signature(nest, kernels(steps))
    scope = Scope(c_names(nest), {b.name: b for b in nest.buffers}, {s: i + 1 for i, s in enumerate(signature.sites)},
                  folds=joined, tiles=tiles, steps=cunits.steps(nest.body), counts="pop_i64" if huge else "int")
    far = {} if huge else reaches(nest, steps)
    launch = {}
    texts = [f"// {nest.name} for {target.name} ({dialect.title})", f'#include "{HEADER}"']
    for k in kernels(steps):
        args = _arguments(k, nest, signature)
        threads = [threads_of(p.body, scope) for p in k.parts]
        # points with a thread each take blocks of any size, those with a block each have it told by their digits
        block = max(threads) or max(dialect.block if p.axes else 1 for p in k.parts)
        for together, p in zip(threads, k.parts, strict=True):
            require_whole_warps(p.body, together, scope)
        changed = tuple(b.name for b in nest.buffers if b.name in written(k.body) and b.name in args)
        bytes_ = max(cthreads.shared_offsets(_shared(p, nest))[1] for p in k.parts)
        boxes, told = cboxes.found(k.body, dict(scope.buffers), scope.steps) if target.boxes else ({}, ())
        results = matrix.results(k.body, scope)
        roles = croles.of(k.parts[0], block, boxes, bytes_, results, target) if told else None
        ring = cboxes.ring(k.body, bytes_, bool(roles), boxes, nest) if told else None
        bytes_ = ring.end if ring else bytes_
        size = roles.threads if roles else block
        first, *more = (Blocks(tuple(a.count for a in p.axes), 1 if t else None) for t, p in zip(threads, k.parts, strict=True))
        launch[k.name] = Launch(scope.names[k.name], first.extents, size, args, changed, bytes_, first.points,
                                far.get(k.name, ()), told, bool(roles), tuple(more))
        # beside long copies by threads compilers would move results while products work on them (C7515), and part all of these
        going = chains if all(s.stmt in boxes for s in stores(k.body) if s.later) else frozenset[str]()
        inside = tuple(replace(scope, block=t, barrier=_barrier(p, nest, scope, bool(told)), boxes=boxes, chains=going,
                               copies=copy.by_rows(p.body), anew=x, found=bool(x) and not target.spare)
                       for t, p in zip(threads, k.parts, strict=True) for x in (_anew(p, nest, t, target),))
        bound = _for_sums(k, nest, block, bytes_, target)
        inside = tuple(replace(x, deep=bound > 1 and _is_deep(k)) for x in inside)
        blocks = max(bound, _for_turns(k, nest, scope, size, bytes_, target))
        head = dialect.kernel.format(block=size, blocks=blocks)
        lines = _parameters(k, nest, scope, args, head, far.get(k.name, ()), len(told))
        does = without_unused(_text(k, nest, inside, bytes_, ring, roles, len(told)))
        texts += ["", *lines, "{", *("    " + x for x in does), "}"]
    return Module(nest.name, target.name, "\n".join(texts) + "\n", signature, plan(steps, launch))


def _for_sums(k: KernelNest, nest: LoopNest, block: int, bytes_: int, target: Target) -> int:
    """How many blocks a multiprocessor must have registers for: two, where what each thread adds up leaves it as many again.

    Compilers take more where they may, for sums of what is no product, which is computed before it is added: 150 for 64 distances
    of rows, with which one block would run. So they do of products of deep turns, whose steps are all written out.
    """
    multi, adds = target.multi, [s for s in stores(k.body) if s.reduce is not None]
    if any(factors(s.expr) is not None for s in adds) and not _is_deep(k):
        return 1
    if multi is None or len(k.parts) > 1 or bytes_ > multi.room(2) or not any(s.later for s in stores(k.body)):
        return 1
    if any(isinstance(n, For) and n.kind == Kind.ATOM for n in walk(k.body)):
        return 1
    held = {b.name: b for b in nest.buffers if b.space == Space.REG and b.name in {s.target.source for s in adds}}
    words = sum(prod(n.const for n in slot_counts(b)) * max(1, b.dtype.bytes_ // 4) for b in held.values())
    mine = multi.parts * multi.registers * target.warp // (2 * block)
    return 2 if mine < 4 * words and 2 * words <= mine else 1


def _is_deep(k: KernelNest) -> bool:
    """Whether threads add up so many steps in a turn that all are written out."""
    return any(isinstance(n, For) and n.kind == Kind.SERIAL and n.upper.is_constant and n.upper.const >= _DEEP * n.step
               and all(isinstance(x, For) and x.kind == Kind.ROWS for x in n.body) for n in walk(k.body))


def _for_turns(k: KernelNest, nest: LoopNest, scope: Scope, size: int, bytes_: int, target: Target) -> int:
    """How many blocks must have registers at one time, where turns of a loop multiply several times: rows between these wait for
    them, and other blocks do not. As many as leave a lane what its products add up, and some registers beside.

    Compilers take a tenth more where they may. Rows that read memory, and atoms that two conditions cut, want more than that.
    """
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    m, several = target.multi, False
    for n in walk(k.body):
        mine = stores(n.body) if isinstance(n, For) and n.kind == Kind.SERIAL else ()
        units = [s for s in mine if cunits.reads_shared(s, scope)]
        several |= len({s.target.source for s in units}) > 1
        rows = [s for s in mine if s not in units and s.target.source in registers and s.reduce is None]
        if any(x.source not in registers for s in rows for x in loads(s.expr)):
            return 1
    asked = [n.test.args[0] for n in walk(k.body) if isinstance(n, IfData) and isinstance(n.test, Apply) and n.test.fn == "or"]
    if not several or m is None or any(isinstance(t, Tests) and len(t.tests) > 1 for t in asked):
        return 1
    lane = matrix.results(k.body, scope) + _BESIDE
    return max(1, min(m.shared // (bytes_ + m.reserved), m.parts * m.registers * target.warp // (size * lane)))


def _anew(p: Part, nest: LoopNest, block: int, target: Target) -> frozenset[str]:
    """The coordinates of a block of threads, and sizes, about which turns of its loops ask anew."""
    if not block or not target.answers:
        return frozenset()
    return anew.all_anew(p.body, frozenset((*nest.sizes, *(a.loop.index for a in p.axes))))


def with_head(made: Module, statements: Iterable[str], ways: Iterable[str], claims: Iterable[str], sizes: str) -> Module:
    """The module, with what a reader is to know first behind its first line: the statements that its comments name, the tiles in
    which they run (`ways`), and what was proved of the loops for all `sizes`.
    """
    first, rest = made.text.split("\n", 1)
    lines = [x for text in (*statements, *ways) for x in textwrap.wrap(text, _WIDEST, subsequent_indent="    ")]
    proved = "; ".join(claims)
    lines += textwrap.wrap(f"proved of its loops, for {sizes} at once: {proved}", _WIDEST) if proved else []
    return replace(made, text="\n".join([first, *(f"// {x}" for x in lines), rest]))


def _barrier(p: Part, nest: LoopNest, scope: Scope, boxes: bool) -> str:
    """What a barrier waits for: threads, copies, what matrix units read themselves; not for what is fetched ahead."""
    mine = stores(p.body)
    if any(cunits.reads_shared(s, scope) for s in mine):
        return "pop_units_barrier<{}>(pop_arriving);" if boxes else "pop_units_barrier<{}>();"
    if any(s.later for s in mine):
        return "pop_copies_barrier<{}>();"
    return "pop_shared_barrier();" if copy.taken(p.body, scope) and copy.meets_in_shared(p.body, nest) else "pop_barrier();"


def _shared(p: Part, nest: LoopNest) -> list[Buffer]:
    """What the threads of a block share."""
    here = used(p.body)
    return [b for b in nest.buffers if b.space == Space.SHARED and b.name in here]


def _signature(nest: LoopNest, parts: tuple[KernelNest, ...]) -> Signature:
    tensors = tuple(b for b in nest.buffers if b.space == Space.TENSOR)
    work = tuple(b for b in nest.buffers if b.space == Space.WORK)
    all_loads = [x for k in parts for s in stores(k.body) for e in (s.target, s.expr) for x in loads(e)]
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


def _parameters(k: KernelNest, nest: LoopNest, scope: Scope, args: tuple[str, ...], head: str, far: tuple[Reach, ...],
                maps: int) -> list[str]:
    """What a reader is told of a kernel, its head and its parameters."""
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
    said = [" | ".join(map(_shape, k.parts)), *([f"indices have 32 bits: {in_words(far, scope.names)}"] if far else [])]
    lines = [f"// {x}" for text in said for x in textwrap.wrap(text, _WIDEST, break_long_words=True)]
    lines.append(f"{head} {scope.names[k.name]}(")
    lines += [f"    {', '.join(p)}{',' if i + 1 < len(parameters) else ')'}" for i, p in enumerate(parameters)]
    if not parameters:
        lines[-1] += ")"
    return lines


def _shape(p: Part) -> str:
    return "".join(f"{a.loop.index}:{a.loop.kind}(" for a in p.axes) + structure(p.body) + ")" * len(p.axes)


def _text(k: KernelNest, nest: LoopNest, scopes: tuple[Scope, ...], bytes_: int, ring: Ring | None, roles: Roles | None,
          maps: int) -> list[str]:
    """What one thread does, first to find its point. `bytes_`: of shared memory."""
    shared = [f"POP_SHARED({bytes_});"] if bytes_ else []
    axes = [Points(p.axes, raster.is_shared_both_ways(p, nest), raster.grow(p)) for p in k.parts]
    if len(k.parts) > 1:
        inside = [_inside(p, nest, x, None) for p, x in zip(k.parts, scopes, strict=True)]
        return [*shared, *beside(axes, scopes, inside, frozenset(nest.sizes))]
    (at,), (part,), (scope,) = axes, k.parts, scopes
    if ring and roles:
        views = cthreads.shared_lines(_shared(part, nest), part.body, scope)
        return [*at.counts(scope), *cthreads.number(scope), *shared, *views,
                *_in_roles(part, nest, scope, at, ring, roles, maps)]
    return [*at.counts(scope), *cthreads.number(scope), *at.start(scope), *shared, *_inside(part, nest, scope, ring)]


def _inside(p: Part, nest: LoopNest, scope: Scope, ring: Ring | None) -> list[str]:
    """What one thread does at its point."""
    met = [i + 1 for i, n in enumerate(p.body) if any(isinstance(x, Barrier) for x in walk((n,)))]
    until = max(met) if met and copy.are_left(p.body) else 0
    end = ["pop_copies_end();  // those of turns that a short sum does not have"] if until else []
    end += [f"pop_ring_end<{ring.count - 1}>(pop_arriving);"] if ring else []
    start = cboxes.start(ring) if ring else []
    until = until or (len(p.body) if ring else 0)
    shared = cthreads.shared_lines(_shared(p, nest), p.body, scope)
    return [*shared, *_strides(p, nest, scope), *_registers(p, nest, scope), *start, *body(p.body[:until], scope), *end,
            *body(p.body[until:], scope)]


def _in_roles(p: Part, nest: LoopNest, scope: Scope, axes: Points, ring: Ring, roles: Roles, maps: int) -> list[str]:
    """The text of a kernel whose warps have roles, and whose blocks take point after point."""
    first, pending = roles.consumers, ring.pending
    boxed = " && ".join(f"pop_boxed{i}" for i in range(maps))
    copied, rest = croles.producer(p.body), croles.consumer(p.body)
    copying = replace(scope, producer=first, barrier="pop_producer_barrier<{}>(pop_arriving, pop_boxed);",
                      copies=copy.by_rows(copied))
    using = replace(scope, barrier="pop_consumer_barrier<{}>(pop_arriving);")
    until = croles.released(rest, scope.buffers)
    consumed = [*_registers(p, nest, using), *body(rest[:until], using),
                "pop_consumer_release(pop_arriving);  // nothing below uses what was copied", *body(rest[until:], using)]
    return [
        *_strides(p, nest, scope), f"const bool pop_boxed = {boxed};", *cboxes.start(ring),
        f"pop_pipe<{ring.count}> pop_arriving = pop_pipe_start<{ring.count}>("
        f"(pop_u64*)(pop_shared + {ring.at}), pop_boxed ? 1 : {croles.COPYING}, {first // scope.tiles.warp});",
        f"if ({cthreads.NUMBER} >= {first}) {{  // these threads copy; if they ask for boxes, one of them does",
        f"    pop_registers_less<{croles.FEW}>();",
        f"    if (!pop_boxed || {cthreads.NUMBER} == {first}) {{",
        *("        " + x for x in axes.loop(copying, body(copied, copying))),
        f"        pop_producer_end<{pending}>(pop_arriving, pop_boxed);",
        "    }", "    return;", "}",
        f"pop_registers_more<{roles.registers}>();",
        *axes.loop(using, consumed)]


def _strides(p: Part, nest: LoopNest, scope: Scope) -> list[str]:
    """Strides of work buffers."""
    out: list[str] = []
    here = used(p.body)
    for b in nest.buffers:
        if b.name in here and b.space == Space.WORK:
            counts = slot_counts(b)
            named = [(d, s) for d, s in enumerate(strides(b, scope.names[b.name])) if isinstance(s, str)]
            for d, s in named:
                out.append(f"const {scope.counts} {s} = {' * '.join(index(n, scope.names).at(13) for n in counts[d + 1:])};")
    return out


def _registers(p: Part, nest: LoopNest, scope: Scope) -> list[str]:
    """The thread's registers."""
    out: list[str] = []
    here, taken = used(p.body), copy.taken(p.body, scope)
    for b in nest.buffers:
        if b.name not in here or b.space in (Space.TENSOR, Space.SHARED, Space.WORK):
            continue
        c, counts = scope.names[b.name], slot_counts(b)
        if tile := scope.tiles.held.get(b.name) or scope.tiles.rows.get(b.name):
            out.append(matrix.declared(b, tile, c))
            continue
        if not all(n.is_constant for n in counts):
            raise UnsupportedError(f"{nest.name}: register buffer {b} has no constant size")
        total = prod(n.const for n in counts)
        wide = "alignas(16) " if b.name in taken else ""
        out.append(f"{wide}{STORED[b.dtype.name]} {c}{f'[{total}]' if b.dims else ''};")
    return out
