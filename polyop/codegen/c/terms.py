"""Terms of a sum that are added to a unit's results one by one, as C text: operands in shared memory are read 16 bytes at once.

    for s < n { for q, r { if (t) c[q, r] += A_s[m, s] * B_s[n, s]; } }

    for s < n by 8 { for q, r { pop_wide<8>(a, &A_s[m, s]); pop_wide<8>(b, &B_s[n, s]);
                                for t < 8 { if (s + t < n && t) c[q, r] += a[t] * b[t]; } } }

Each result has its terms in the same order. What the tests leave out is read, and not used: it lies in the same line of a tile,
of which the unit, too, reads all. Lanes read as they do for the unit, so they meet in no bank, and an eighth as often.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyop.codegen.c import matrix, rows
from polyop.codegen.c.index import bounded, condition, conditions, index, multiple
from polyop.codegen.c.lines import block, unrolled, where
from polyop.codegen.c.place import STORED, offset, strides
from polyop.codegen.c.scope import Printed, Scope
from polyop.codegen.c.wide import BYTES
from polyop.codegen.gpu.inside import below
from polyop.ir.expr import Affine, Load, affine, bounds, loads, map_loads, names, place, substitute
from polyop.ir.loops import Buffer, For, If, Kind, Node, Space, Store, rebuild, walk

_TERM = "pop_t"


def run(n: For, scope: Scope, printed: Callable[[Node, Scope], list[str]]) -> list[str] | None:
    """The lines of the loop `n` over terms, `printed` being those of one; None, if operands do not lie along the sum."""
    s = _only(n.body)
    if s is None or any(n.index in names(f.upper) for f in walk(n.body) if isinstance(f, For)):
        return None
    read = tuple(dict.fromkeys(loads(s.expr)))
    count = min((BYTES // x.dtype.bytes_ for x in read), default=0)
    deep = replace(scope, steps={**scope.steps, n.index: count})
    if count < 2 or n.step != 1 or n.lower != Affine() or not all(_lies_along(x, n.index, count, deep) for x in read):
        return None
    at = {n.index: affine(n.index) + affine(_TERM)}
    asked = [below(n, b) for b in bounds(n.upper) if not b.is_constant or b.const % count]
    asked += [t for x in walk(n.body) if isinstance(x, If) for t in x.tests if n.index in names(t)]

    def terms(one: Store, inner: Scope) -> list[str]:
        held = {x: Buffer(f"pop_a{k}", x.dtype, ((affine(count), 1),), Space.REG) for k, x in enumerate(read)}
        lines = []
        for x, b in held.items():
            lines.append(f"alignas({count * x.dtype.bytes_}) {STORED[x.dtype.name]} {b.name}[{count}];")
            lines.append(f"pop_wide<{count}>({b.name}, &{inner.names[x.source]}[{offset(x, {}, inner).c}]);")
        known = replace(inner, names={**inner.names, _TERM: _TERM, **{b.name: b.name for b in held.values()}},
                        buffers={**inner.buffers, **{b.name: b for b in held.values()}})
        term = replace(one, target=place(one.target, at), expr=map_loads(
            one.expr, lambda x: Load(held[x].name, (affine(_TERM),), x.dtype) if x in held else x))
        when = [condition(substitute(t, at), known.names) for t in asked]
        return [*lines, *unrolled(_TERM, count, where(when, printed(term, known)))]

    i = scope.names[n.index]
    (around,) = _of_all_terms(n.body, n.index)
    head = f"for (int {i} = 0; {i} < {index(n.upper, scope.names).c}; {i} += {count})"
    return ["#pragma unroll 1", *block(head, _around(around, deep, terms))]


def _only(body: tuple[Node, ...]) -> Store | None:
    """The one store in loops over tiles, over their sides, and tests, if that is all."""
    while len(body) == 1:
        match body[0]:
            case Store() as s:
                return s
            case For(kind=Kind.ROWS | Kind.ATOM) as f:
                body = f.body
            case If(other=()) as f:
                body = f.then
            case _:
                return None
    return None


def _of_all_terms(body: tuple[Node, ...], term: str) -> tuple[Node, ...]:
    """`body` without what is asked of single terms."""
    def go(inside: tuple[Node, ...]) -> tuple[Node, ...]:
        return _of_all_terms(inside, term)

    out: list[Node] = []
    for n in body:
        n = rebuild(n, go)
        tests = tuple(t for t in n.tests if term not in names(t)) if isinstance(n, If) else ()
        out += [replace(n, tests=tests)] if isinstance(n, If) and tests else n.then if isinstance(n, If) else [n]
    return tuple(out)


def _around(n: Node, scope: Scope, terms: Printed) -> list[str]:
    """The text of loops over tiles, and of what is asked of these, around `terms`."""
    match n:
        case If(tests=tests, then=(inside,)):
            return [f"if ({conditions(tests, scope.names).c}) {{", *("    " + x for x in _around(inside, scope, terms)), "}"]
        case For(kind=Kind.ROWS, body=(inside,)):
            lines, inner = _around(inside, scope, terms), bounded(n, scope.names)
            lines = where(inner, lines)
            return rows.lines(n, scope, terms) or rows.written([(n.index, n.end, n.step)], lines, scope)
    assert isinstance(n, For)
    return matrix.tile(n, scope, terms)


def _lies_along(x: Load, term: str, count: int, scope: Scope) -> bool:
    """Whether `count` terms lie side by side in shared memory, and begin where 16 bytes are read at once."""
    b = scope.buffers[x.source]
    *lines, last = x.index
    if b.space != Space.SHARED or x.guard or any(unit != 1 for _, unit in b.dims) or not isinstance(last, Affine):
        return False
    if last.factor(term) != 1 or any(not isinstance(p, Affine) or term in names(p) for p in lines):
        return False
    if b.swizzle and b.swizzle // 8 < count * x.dtype.bytes_:
        return False
    steps = strides(b, scope.names[b.name])
    if not b.swizzle and any(not isinstance(k, int) or k % count for k in steps[:-1]):
        return False
    return multiple(last, scope.steps) % count == 0
