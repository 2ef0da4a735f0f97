"""Tiles of neighbours of which whole pieces are inside, though not all: those that are there are asked for before one is used.

    for q (rows 4) { for p (rows 4) { s += X[h + 1024 q + p] } }        p < N - h - 1024 q

    if (N % 4 == 0 && X lies well) {
        for q { if (N > h + 1024 q) pop_wide<4>(a + 4 q, &X[h + 1024 q]); }
        for q { if (N > h + 1024 q) { for p { s += a[4 q + p] } } }
    }

One after the other, each behind its test, a piece was waited for before the next one: lines of 3136 are three of 1024 and a bit,
so few threads have all four. That takes registers for one tensor's pieces, so it is done of one, and where a block goes through
several lines: of kernels that have one each, other blocks have more on their way if they are more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyop.codegen.c import wide as cwide
from polyop.codegen.c.index import bounded, index, multiple
from polyop.codegen.c.lines import unrolled, where
from polyop.codegen.c.place import STORED, offset
from polyop.codegen.c.scope import Scope
from polyop.codegen.c.whole import chain
from polyop.ir.expr import Affine, Load, affine, bounds, map_loads, names, substitute
from polyop.ir.loops import Buffer, For, Kind, Node, Space

_LINES = 2  # loops around: over lines, and over a line

Printed = Callable[[tuple[Node, ...], Scope], list[str]]
"""The lines of some nodes."""


def found(inside: tuple[Node, ...], scope: Scope, printed: Printed) -> tuple[str, list[str]] | None:
    """What is asked, and the lines where that is so; None, where pieces are not read at once, or what is written is read."""
    loops, s = chain(inside)
    if s is None or len(loops) != 2 or any(f.kind != Kind.ROWS or f.step != 1 or not f.extent for f in loops) or s.later:
        return None
    if scope.turns < _LINES:
        return None
    over, last = loops
    runs = cwide.moved(last, scope)
    if not runs or not runs[0] or any(len(r) > 1 for side in runs for r in side):
        return None
    far = [r[0] for r in runs[0] if scope.buffers[r[0].source].space in (Space.TENSOR, Space.WORK)]
    wide = [x for x in far if any(over.index in names(p) for p in x.index if isinstance(p, Affine))]
    is_copy = s.reduce is None and scope.buffers[s.target.source].space == Space.REG
    if len(wide) != 1 or is_copy or s.target.source in {x.source for x in wide}:
        return None
    lies = [cwide.all_lie_well((x,), last, scope) for x in (*wide, *(r[0] for r in runs[1]))]
    whole = [_is_whole(last, b, scope) for b in bounds(last.upper) if b != affine(last.end)]
    if None in lies or None in whole or (not whole and s.target.source not in {r[0].source for r in runs[1]}):
        return None
    each, many = last.extent or 1, over.extent or 1
    held = {x: Buffer(f"pop_h{k}", x.dtype, ((affine(each * many), 1),), Space.REG) for k, x in enumerate(wide)}
    inner = replace(scope, whole=True, names={**scope.names, **{b.name: b.name for b in held.values()}},
                    buffers={**scope.buffers, **{b.name: b for b in held.values()}})
    at = affine(over.index) * each
    taken = {x: Load(b.name, (at + affine(last.index),), x.dtype) for x, b in held.items()}
    used = replace(s, expr=map_loads(s.expr, lambda x: taken.get(x, x)))
    i, tests = scope.names[over.index], bounded(over, scope.names)
    lines, reads = list[str](), list[str]()
    for x, b in held.items():
        first = Load(x.source, tuple(substitute(p, {last.index: Affine()}) for p in x.index if isinstance(p, Affine)), x.dtype)
        lines.append(f"alignas({min(cwide.BYTES, each * x.dtype.bytes_)}) {STORED[x.dtype.name]} {b.name}[{each * many}];")
        reads.append(f"pop_wide<{each}>({b.name} + {index(at, scope.names).at(12)}, "
                     f"{scope.names[x.source]} + {offset(first, {}, scope).at(12)});")
    lines += unrolled(i, many, where(tests, reads))
    lines += printed((replace(over, body=(replace(last, upper=affine(last.end), body=(used,)),)),), inner)
    asked = dict.fromkeys((*(t for t in whole if t), *(t for x in lies for t in x or ())))
    return " && ".join(asked), ["{", *("    " + x for x in lines), "}"]


def _is_whole(last: For, b: Affine, scope: Scope) -> str | None:
    """A test after which a bound is a multiple of the loop's extent; None, if it depends on more than sizes."""
    each = last.extent or 1
    rest = Affine(tuple(t for t in b.terms if multiple(Affine((t,)), scope.steps) % each), b.const % each)
    if any(not isinstance(a, str) or a in scope.steps for a, _ in rest.terms):
        return None
    return f"({index(rest, scope.names).c}) % {each} == 0" if rest != Affine() else ""
