"""What the threads of one block do together, as C text: their digits, the memory they share, barriers, folds.

A loop over threads is no loop in a kernel: each thread has its digit.

    for m_t in [0, 64) by 4 (threads 16 by 16)     const int m_t = 4 * (pop_n / 16 % 16);
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from polyop.codegen.c import scan
from polyop.codegen.c.expr import combined, expression, of_dtype
from polyop.codegen.c.index import Text, bounded, condition
from polyop.codegen.c.lines import where
from polyop.codegen.c.place import STORED, element, narrowed, value_type, widened
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.slots import slot_counts
from polyop.codegen.nested import nested
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Const, loads, names
from polyop.ir.loops import Buffer, For, If, Kind, Node, Space, Store, Turn, stores, walk

NUMBER = "pop_n"
"""The number of the thread in its block."""


def threads_of(body: Sequence[Node]) -> int:
    """How many threads a block of a kernel with this body has; 0 if its points have a thread each."""
    loops = [n for n in walk(tuple(body)) if isinstance(n, For) and n.kind == Kind.THREADS]
    return max((n.weight * (n.extent or 1) for n in loops), default=0)


def number(scope: Scope) -> list[str]:
    """The declaration of that number, where threads of a block work together."""
    return [f"{'' if scope.found else 'const '}pop_u32 {NUMBER} = pop_thread();"] if scope.block else []


def shared_offsets(buffers: Sequence[Buffer]) -> tuple[dict[str, int], int]:
    """Where each shared buffer lies, at multiples of 16 bytes or of eight swizzled lines, and how many bytes they take.

    Raises  UnsupportedError, if one has no constant size.
    """
    out, total = {}, 0
    for b in buffers:
        align = max(16, 8 * b.swizzle)
        total = -(-total // align) * align
        out[b.name] = total
        total += -(-count(b) * b.dtype.bytes_ // 16) * 16
    return out, total


def count(b: Buffer) -> int:
    """The elements of a buffer of constant size."""
    counts = slot_counts(b)
    if not all(n.is_constant for n in counts):
        raise UnsupportedError(f"{b} has no constant size")
    return prod(n.const for n in counts)


def shared_lines(buffers: Sequence[Buffer], body: tuple[Node, ...], scope: Scope) -> list[str]:
    """The declarations of what a block shares as it does `body`, in `pop_shared`."""
    offsets, _ = shared_offsets(buffers)
    out = []
    for b in buffers:
        c, kind = scope.names[b.name], STORED[b.dtype.name]
        out += [f"// {c}: {_content(b, body, scope)}", f"POP_SHARED_VIEW({c}, {kind}, {offsets[b.name]}, {count(b)});",
                f"{kind}* const {c} = ({kind}*)(pop_shared + {offsets[b.name]});"]
    return out


_TURNED = {Turn.PAIRS: "pairs of", Turn.FOURS: "four", Turn.EIGHTS: "eight"}


def _content(b: Buffer, body: tuple[Node, ...], scope: Scope) -> str:
    """What a reader is told of a buffer that a block shares: whose elements it has, and how they lie."""
    mine = [s for s in stores(body) if s.target.source == b.name]
    copied = dict.fromkeys(x.source for s in mine for x in loads(s.expr) if scope.buffers[x.source].space == Space.TENSOR)
    what = f"a tile of {' and '.join(copied)}" if copied else f"written by {', '.join(dict.fromkeys(s.stmt for s in mine))}"
    extents = " x ".join(str(n) for n in slot_counts(b))
    lies = f", in swizzled lines of {b.swizzle} bytes" if b.swizzle else ""
    lies = f", {_TURNED[b.turned]} rows turned" if b.turned else lies
    return f"{what}, {extents}{lies}"


def chain(n: For) -> tuple[tuple[For, ...], tuple[Node, ...]]:
    """The loops over threads that stand directly in one another from `n`, and what is inside."""
    return nested((n,), Kind.THREADS)


def nest(n: For, scope: Scope, block: int, lanes: int, printed: Callable[[tuple[Node, ...]], list[str]]) -> list[str]:
    """A nest of loops over threads of a block of `block`; `printed`: the lines of what is inside, with `lanes` for each."""
    loops, inside = chain(n)
    out = [f"const int {scope.names[f.index]} = {_digit(f, block)};" for f in loops]
    tests = [t for f in loops for t in bounded(f, scope.names)]
    for s in stores(inside):
        if s.stmt in scope.folds:
            if s.reduce is None:
                return ["{", *("    " + x for x in (*out, *scan.scan(inside, s, tests, block, scope))), "}"]
            asked, alone = _of_point(inside, scope.folds[s.stmt])
            if alone != (s,) or any(bounded(f, scope.names) for f in scope.folds[s.stmt]):
                raise UnsupportedError("threads fold in a loop of their own, which is full")
            tests += [condition(t, scope.names) for t in asked]
            return ["{", *("    " + x for x in (*out, *_fold(s, loops, scope, block, tests))), "}"]
    # what is in registers all threads with these digits have; memory is written by the first of them
    first = _first(loops, block, lanes)
    if first and any(is_memory(s, scope) for s in stores(inside)):
        if not all(is_memory(s, scope) for s in stores(inside)):
            raise UnsupportedError("a loop over some of the threads writes memory and registers")
        tests.append(first)
    lines = printed(inside)
    lines = where(tests, lines)
    return ["{", *("    " + x for x in (*out, *lines)), "}"]


def _of_point(inside: tuple[Node, ...], over: tuple[For, ...]) -> tuple[tuple[Affine, ...], tuple[Node, ...]]:
    """A test that all threads that fold together, which are those `over` these loops, answer alike; and what it stands before."""
    match inside:
        case (If(tests=tests, then=then, other=()),) if not {i for t in tests for i in names(t)} & {f.index for f in over}:
            return tests, then
    return (), inside


def is_memory(s: Store, scope: Scope) -> bool:
    """Whether `s` writes what more than one thread sees."""
    return scope.buffers[s.target.source].space != Space.REG


def _digit(f: For, block: int) -> str:
    assert f.extent is not None
    at = NUMBER if f.weight == 1 else f"{NUMBER} / {f.weight}"
    if f.weight * f.extent < block:
        at += f" % {f.extent}"
    at = at if at == NUMBER else f"({at})"
    return f"(int){at}" if f.step == 1 else f"{f.step} * (int){at}"


def _first(loops: tuple[For, ...], block: int, lanes: int = 1) -> str:
    """The test for the one thread of those with the same digits whose other digits are 0; empty if there are no others.

    lanes   threads that have the lowest digits in any case
    """
    total, digits = lanes, sorted((f.weight, f.extent or 1) for f in loops)
    for weight, extent in digits:
        if weight != total:
            return f"{NUMBER} == " + " + ".join(f"{NUMBER} / {w} % {e} * {w}" for w, e in digits)
        total *= extent
    return f"{NUMBER} < {total}" if total < block else ""


def _fold(s: Store, loops: tuple[For, ...], scope: Scope, block: int, tests: list[str]) -> list[str]:
    """`target op= value` over some of the threads, all of which have the result then; the first of them writes it to memory.

    All threads of the block take part; where `tests` fail, in groups of threads that have nothing to fold, with the identity.
    """
    assert s.reduce is not None
    t = s.target.dtype
    over, step = scan.spaced(scope.folds[s.stmt])
    kind = value_type(t)
    both = combined(s.reduce, t, Text("pop_a"), Text("pop_b"), scope)
    value = of_dtype(expression(s.expr, scope), s.expr.dtype, t).c
    if tests:
        value = f"{' && '.join(tests)} ? ({kind})({value}) : ({kind})({expression(Const(s.reduce.identity, t), scope).c})"
    place = element(s.target, {}, scope)
    result = combined(s.reduce, t, Text(widened(place, t)), Text("pop_v"), scope)
    write = f"{place} = {narrowed(result.c, t)};"
    first = [f"{NUMBER} / {step} % {over} == 0" if step > 1 else f"{NUMBER} % {over} == 0" if over > 1 else "",
             _first(loops, block)] if is_memory(s, scope) else []
    when = [*tests, *filter(None, first)]
    return [f"const {kind} pop_v = pop_fold<{over}, {step}, {block}>(({kind})({value}), "
            f"[](const {kind} pop_a, const {kind} pop_b) {{",
            f"    return ({kind})({both.c});", "});", f"if ({' && '.join(when)}) {write}" if when else write]


def uniform(s: Store, scope: Scope, lines: list[str]) -> list[str]:
    """A store that stands in no loop over threads: registers are each thread's, memory is written by the first."""
    if not is_memory(s, scope):
        return lines
    return [f"if ({NUMBER} == 0) {{", *("    " + x for x in lines), "}"]
