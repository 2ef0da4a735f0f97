"""LoopNest -> CUDA or HIP text: one printer, with the dialects as rows of data."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, replace
from itertools import islice

from polyop.codegen import ccopy, cmatrix, cthreads, cunits, cwide, raster
from polyop.codegen.blocks import folds, prepared
from polyop.codegen.cexpr import (
    NARROW,
    STORED,
    Names,
    Scope,
    Text,
    bounded,
    combined,
    computed,
    conditions,
    element,
    expression,
    index,
    moved,
    narrowed,
    of_dtype,
    offset,
    slot_counts,
    strides,
    value_type,
    widened,
)
from polyop.codegen.cmatrix import find_tiles
from polyop.codegen.private import shared
from polyop.codegen.split import Axis, KernelNest, kernels, plan, split, used, written
from polyop.ir.errors import InternalError, UnsupportedError, assert_never
from polyop.ir.expr import Affine, Load, Scalar, bounds, is_computed, loads
from polyop.ir.expr import walk as walk_expr
from polyop.ir.loops import (
    LOCKSTEP,
    Barrier,
    Buffer,
    For,
    If,
    IfData,
    Kind,
    LoopNest,
    Node,
    Prefetch,
    Space,
    Store,
    sign,
    stores,
    structure,
    walk,
)
from polyop.ir.module import STATUS, Launch, Module, Signature
from polyop.ir.target import Target


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


HEADER = "pop_device.h"
"""The one header that every text includes; whoever compiles the text supplies it."""

_WIDEST, _LARGEST = 110, 100  # columns and sub-expressions of a statement's comment
_UNROLLED, _WRITTEN = 32, 256  # iterations of a loop that is written out, and the statements that come of it

_TAKEN = frozenset(re.findall(r"\w+", """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl const constexpr continue decltype default
delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short signed sizeof
static struct switch template this throw true try typedef typename union unsigned using virtual void volatile wchar_t while
xor xor_eq item blockIdx blockDim threadIdx gridDim warpSize dim3 size_t int8_t int16_t int32_t int64_t NULL INFINITY NAN main
"""))
"""Words a user's name must not become."""


def module(nest: LoopNest, target: Target, dialect: Dialect) -> Module:
    """The text of `nest`, and the plan by which a host launches its kernels.

    Raises UnsupportedError for what this mapping cannot express; see `codegen/split.py` and `codegen/private.py`.
    """
    joined = folds(nest)
    tiles = find_tiles(nest, target)
    nest = prepared(nest)
    nest, steps = shared(nest, split(nest))
    signature = _signature(nest)
    scope = Scope(_c_names(nest), {b.name: b for b in nest.buffers}, {s: i + 1 for i, s in enumerate(signature.sites)},
                  folds=joined, held=tiles.held, products=tiles.products, warp=target.warp, family=target.family,
                  steps=cunits.steps(nest.body))
    launch = {}
    texts = [f"// {nest.name} for {target.name} ({dialect.title})", f'#include "{HEADER}"']
    for k in kernels(steps):
        args = _arguments(k, nest, signature)
        together = cthreads.threads_of(k.body)
        block = together or (dialect.block if k.axes else 1)
        changed = tuple(b.name for b in nest.buffers if b.name in written(k.body) and b.name in args)
        _, bytes_ = cthreads.shared_offsets(_shared(k, nest))
        launch[k.name] = Launch(scope.names[k.name], tuple(a.count for a in k.axes), block, args, changed, bytes_,
                                1 if together else None)
        inside = replace(scope, block=together, copies=any(s.later for s in stores(k.body)),
                         reads=any(cunits.reads_shared(s, scope) for s in stores(k.body)))
        texts += ["", *_kernel(k, nest, inside, args, dialect.kernel.format(block=block))]
    return Module(nest.name, target.name, "\n".join(texts) + "\n", signature, plan(steps, launch))


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


def _c_names(nest: LoopNest) -> Names:
    """A C identifier of its own for each name of the nest, and the name itself wherever C allows that."""
    loops = [n.index for n in walk(nest.body) if isinstance(n, For)]
    wanted = dict.fromkeys([*nest.sizes, *(n for n, _ in nest.scalars), *(b.name for b in nest.buffers), *loops,
                            *(k.name for k in kernels(split(nest)))])
    out = Names()
    out.counts = frozenset((*nest.sizes, *(n.index for n in walk(nest.body) if isinstance(n, For) and n.lower == Affine())))
    taken = set(_TAKEN)
    for name in wanted:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if plain[0].isdigit() or plain.startswith(("_", "pop_", "POP_")):
            plain = "v" + plain
        # `X_s0` is the first stride of `X`, `i_count` the number of points of a loop
        while plain in taken or re.search(r"(_s\d+|_count)$", plain):
            plain += "_"
        out[name] = plain
        taken.add(plain)
    return out


def _arguments(k: KernelNest, nest: LoopNest, signature: Signature) -> tuple[str, ...]:
    """The names a kernel is given, in the order of the signature."""
    buffers = used(k.body)
    exprs = [x for s in stores(k.body) for e in (s.target, s.expr) for x in walk_expr(e)]
    scalars = {x.name for x in exprs if isinstance(x, Scalar)}
    checked = any(isinstance(x, Load) and any(is_computed(p) for p in x.index) for x in exprs)
    return (*nest.sizes, *(n for n, _ in nest.scalars if n in scalars), *(b.name for b in signature.tensors if b.name in buffers),
            *(b.name for b in signature.work if b.name in buffers), *([STATUS] if checked else []), *k.host)


def _kernel(k: KernelNest, nest: LoopNest, scope: Scope, args: tuple[str, ...], head: str) -> list[str]:
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
            parameters.append([pointer, *(f"pop_i64 {c}_s{d}" for d in range(len(b.dims)) if b.space == Space.TENSOR)])
        else:
            kind = STORED[scalar_types[a].name] if a in scalar_types else "pop_i64"
            (parameters[-1] if a in k.host else parameters[0]).append(f"{kind} {c}")
    parameters = [p for p in parameters if p]
    shape = "".join(f"{a.loop.index}:{a.loop.kind}(" for a in k.axes) + structure(k.body) + ")" * len(k.axes)
    lines = [*(f"// {x}" for x in textwrap.wrap(shape, _WIDEST, break_long_words=True)), f"{head} {scope.names[k.name]}("]
    lines += [f"    {', '.join(p)}{',' if i + 1 < len(parameters) else ')'}" for i, p in enumerate(parameters)]
    if not parameters:
        lines[-1] += ")"
    in_groups = raster.is_shared_both_ways(k, nest)
    body = without_unused([*_axes(k.axes, scope, in_groups), *_buffers(k, nest, scope), *_body(k.body, scope)])
    return [*lines, "{", *("    " + x for x in body), "}"]


_DECLARED = re.compile(r" *const (?:int|pop_i64|pop_u32) (\w+) = [^;]*;$")


def without_unused(lines: list[str]) -> list[str]:
    """`lines` without numbers that nothing reads, about which compilers would warn."""
    while True:
        unused = {at for at, line in enumerate(lines) if (m := _DECLARED.match(line)) and not _is_read(m[1], lines[at + 1:])}
        if not unused:
            return lines
        lines = [line for at, line in enumerate(lines) if at not in unused]


def _is_read(name: str, after: list[str]) -> bool:
    """Whether a line of the same block, or of one inside it, has `name` in its code."""
    word, depth = re.compile(rf"\b{re.escape(name)}\b"), 0
    for line in after:
        code = line.partition("//")[0]
        if word.search(code):
            return True
        depth += code.count("{") - code.count("}")
        if depth < 0:
            return False
    return False


def _axes(axes: tuple[Axis, ...], scope: Scope, in_groups: bool) -> list[str]:
    """One thread, or one block of them, for each point of the box of counts: the last loop varies fastest, if not `in_groups`."""
    number = [f"const pop_u32 {cthreads.NUMBER} = pop_thread();"] if scope.block else []
    if not axes:
        return number
    names = [scope.names[a.loop.index] for a in axes]
    counts = [str(a.count.const) if a.count.is_constant else f"{n}_count" for a, n in zip(axes, names, strict=True)]
    pairs = zip(axes, counts, strict=True)
    out = [f"const pop_i64 {c} = {index(a.count, scope.names).c};" for a, c in pairs if not a.count.is_constant]
    if scope.block:
        out += [*number, f"const pop_i64 item = {raster.numbered(counts) if in_groups else 'blockIdx.x'};"]
    else:
        out.append("const pop_i64 item = (pop_i64)blockIdx.x * blockDim.x + threadIdx.x;")
        out.append(f"if (item >= {' * '.join(counts)}) return;")
    for d, a in enumerate(axes):
        inner = counts[d + 1:]
        at = "item" if not inner else f"item / {inner[0]}" if len(inner) == 1 else f"item / ({' * '.join(inner)})"
        at = f"{at} % {counts[d]}" if d else at
        at = at if a.loop.step == 1 else f"{a.loop.step} * ({at})" if d or inner else f"{a.loop.step} * {at}"
        lower = index(a.loop.lower, scope.names).at(12)
        out.append(f"const pop_i64 {names[d]} = {at if a.loop.lower == Affine() else f'{lower} + {at}'};")
        if not a.exact:
            out.append(f"if ({names[d]} >= {index(a.loop.upper, scope.names).c}) return;")
    return out


def _buffers(k: KernelNest, nest: LoopNest, scope: Scope) -> list[str]:
    """Strides of work buffers, and the thread's registers."""
    out = cthreads.shared_lines(_shared(k, nest), scope)
    here = used(k.body)
    for b in nest.buffers:
        if b.name not in here or b.space in (Space.TENSOR, Space.SHARED):
            continue
        c, counts = scope.names[b.name], slot_counts(b)
        if b.name in scope.held:
            out.append(cmatrix.declared(b, scope.held[b.name], c))
            continue
        if b.space == Space.WORK:
            named = [(d, s) for d, s in enumerate(strides(b, c)) if isinstance(s, str)]
            for d, s in named:
                out.append(f"const pop_i64 {s} = {' * '.join(index(n, scope.names).at(13) for n in counts[d + 1:])};")
        elif not all(n.is_constant for n in counts):
            raise UnsupportedError(f"{nest.name}: register buffer {b} has no constant size")
        else:
            total = 1
            for n in counts:
                total *= n.const
            out.append(f"{STORED[b.dtype.name]} {c}{f'[{total}]' if b.dims else ''};")
    return out


def _body(body: tuple[Node, ...], scope: Scope) -> list[str]:
    """The lines of a body. Products that it starts go on as long as they may."""
    out: list[str] = []
    going = frozenset[str]()
    for n in body:
        if going and cunits.must_wait(n, going):
            out += cunits.ended(going, scope)
            going = frozenset()
        out += _node(n, scope)
        going |= cunits.started(n, scope)
    return out + cunits.ended(going, scope)


def _indented(body: tuple[Node, ...], scope: Scope) -> list[str]:
    return ["    " + line for line in _body(body, scope)]


def _node(n: Node, scope: Scope) -> list[str]:
    match n:
        case For(kind=Kind.THREADS):
            inner = replace(scope, block=0)
            return cthreads.nest(n, scope, scope.block, cunits.lanes(n.body, scope),
                                 lambda body: cunits.group(body, _body(body, inner), scope))
        case For(kind=Kind.ATOM):
            lines = cmatrix.tile(n, scope, lambda s, inner: _node(s, inner))
            return cunits.group((n,), lines, scope) if scope.block else lines
        case For():
            return _loop(n, scope)
        case Barrier():
            return [f"{'pop_units_barrier' if scope.reads else 'pop_copies_barrier' if scope.copies else 'pop_barrier'}();"
                    f"  // {n.reason}"]
        case If():
            head = f"if ({conditions(n.tests, scope.names).c}) {{"
            return [head, *_indented(n.then, scope), *(["} else {", *_indented(n.other, scope)] if n.other else []), "}"]
        case IfData():
            raise InternalError(f"ctext: `{n.test}` chooses, and nests for GPUs are not rewritten so")
        case Store():
            lines = _store(n, scope)
            return [f"// {n.stmt}{_said(n)}", *(cthreads.uniform(n, scope, lines) if scope.block else lines)]
        case Prefetch():
            return []
    assert_never(n)


def _loop(n: For, scope: Scope) -> list[str]:
    """A loop that one thread goes through. Copies are unrolled, so that what they index is registers; bounds are tests then."""
    i, lower, upper = scope.names[n.index], index(n.lower, scope.names).c, index(n.upper, scope.names)
    step = f"++{i}" if n.step == 1 else f"{i} += {n.step}"
    # in a block, but in no loop over its threads, the first one alone writes memory: each store of a plain loop says so
    copy = None if scope.block else ccopy.run(n, scope)
    if copy:
        return copy
    if n.kind in LOCKSTEP:
        head = ["#pragma unroll", f"for (int {i} = 0; {i} < {n.end}; {step}) {{"]
        inside = _indented(n.body, scope)
        tests = bounded(n, scope)
        bound = [f"    if ({' && '.join(tests)}) {{"] if tests else []
        plain = [*head, *bound, *(["    " + x for x in inside] + ["    }"] if bound else inside), "}"]
        return (None if scope.block else cwide.run(n, scope, plain, _body)) or plain
    is_small = n.lower == Affine() and any(b.is_constant for b in bounds(n.upper))
    head = [*([_unrolled(n)] if is_small and n.upper.is_constant and n.upper.const <= _UNROLLED * n.step else []),
            f"for ({'int' if is_small else 'pop_i64'} {i} = {lower}; {i} < {upper.c}; {step}) {{"]
    return [*head, *_indented(n.body, scope), "}"]


def _unrolled(n: For) -> str:
    """The pragma for a loop of few iterations: all of them, or as many as make a body that compilers take in good time."""
    copies = sum(_copies(x) for x in n.body)
    trips = -(-n.upper.const // n.step)
    return "#pragma unroll" if copies * trips <= _WRITTEN else f"#pragma unroll {max(1, _WRITTEN // copies)}"


def _copies(n: Node) -> int:
    """How many stores come of a node whose rows are unrolled."""
    match n:
        case For():
            return sum(map(_copies, n.body)) * (n.extent or 1 if n.kind in LOCKSTEP else 1)
        case If():
            return sum(map(_copies, n.then + n.other))
    return 1


def _said(s: Store) -> str:
    """The statement as the nest's printer writes it, if that is short."""
    if sum(1 for _ in islice(walk_expr(s.expr), _LARGEST + 1)) > _LARGEST:
        return ""
    text = f": {s.target} {sign(s.reduce)} {s.expr}"
    return text if len(text) <= _WIDEST else ""


def _store(s: Store, scope: Scope) -> list[str]:
    """`target = expr`, or the old value combined with it."""
    t = s.target.dtype
    if copy := ccopy.one(s, scope):
        return copy
    if isinstance(s.expr, Load) and s.reduce is None and s.expr.dtype == t in NARROW and not _is_computed(s):
        return [f"{element(s.target, {}, scope)} = {moved(s.expr, scope).c};"]  # the bits as they are
    value = of_dtype(expression(s.expr, scope), s.expr.dtype, t)
    positions = [p for p in s.target.index if not isinstance(p, Affine)]
    if not positions:
        return _assign(s, element(s.target, {}, scope), value, scope)
    at = offset(s.target, computed(s.target, [expression(p, scope) for p in positions]), scope)
    place = f"{scope.names[s.target.source]}[pop_place]"
    return ["{", f"    const pop_i64 pop_place = {at.c};", "    if (pop_is_inside(pop_place)) {",
            *("        " + x for x in _assign(s, place, value, scope)), "    }", "}"]


def _is_computed(s: Store) -> bool:
    return any(not isinstance(p, Affine) for x in (s.target, *loads(s.expr)) for p in x.index)


def _assign(s: Store, place: str, value: Text, scope: Scope) -> list[str]:
    t = s.target.dtype
    if s.atomic:
        return _atomic(s, place, value, scope)
    if s.reduce is None:
        return [f"{place} = {narrowed(value.c, t)};"]
    if s.reduce.fn in ("add", "mul") and t.is_float and t.bits >= 32:
        return [f"{place} {sign(s.reduce)} {value.c};"]
    if s.reduce.fn not in (None, "and", "or"):
        return [f"{place} = {narrowed(combined(s.reduce, t, Text(widened(place, t)), value, scope).c, t)};"]
    kind, body = value_type(t), combined(s.reduce, t, Text("pop_a"), Text("pop_b"), scope)
    return ["{", f"    const {kind} pop_a = {widened(place, t)};", f"    const {kind} pop_b = {value.c};",
            f"    {place} = {narrowed(body.c, t)};", "}"]


def _atomic(s: Store, place: str, value: Text, scope: Scope) -> list[str]:
    """The same in one piece, beside other threads: by an instruction where there is one, else until nobody came between."""
    assert s.reduce is not None
    t = s.target.dtype
    is_wide = t.is_integer and t.bits >= 32
    if (s.reduce.fn == "add" and (is_wide or (t.is_float and t.bits >= 32))) or (s.reduce.fn in ("max", "min") and is_wide):
        return [f"pop_atomic_{s.reduce.fn}(&{place}, ({STORED[t.name]})({value.c}));"]
    kind, body = value_type(t), combined(s.reduce, t, Text("pop_a"), Text("pop_b"), scope)
    stored = STORED[t.name]
    return ["{", f"    const {kind} pop_b = {value.c};", f"    pop_atomic(&{place}, [=](const {stored} pop_old) {{",
            f"        const {kind} pop_a = {widened('pop_old', t)};", f"        return ({stored})({narrowed(body.c, t)});",
            "    });", "}"]
