"""Rows that are neighbours, as C text: read and written several at once, where all are inside and lie as the machine wants them.

    for p in [0, 4) (rows 4) { Y[i + p] = f(X[i + p]) }

    if (all four are inside, and &Y[i] and &X[i] are multiples of 16 bytes) {
        pop_wide<4>(a, &X[i]);  4 times: b[p] = f(a[p]);  pop_wide<4>(&Y[i], b);
    } else { the loop as it is }

The loop runs in lock step, so all may be read before the first is written. Where things lie is asked as the kernel runs: the
same text serves every view, and on contiguous tensors all threads answer alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from polyop.codegen.cexpr import expression
from polyop.codegen.cindex import below, condition, index, multiple
from polyop.codegen.cplace import STORED, computed, offset, side_by_side, strides
from polyop.codegen.cscope import Scope
from polyop.ir.expr import Affine, Load, affine, bounds, expr_names, loads, map_loads, names, substitute
from polyop.ir.loops import Buffer, For, Kind, Node, Space, Store

BYTES = 16  # that one instruction moves at most


def moved(n: For, scope: Scope) -> tuple[tuple[Load, ...], tuple[Load, ...]] | None:
    """What the loop `n` over rows can read, and write, of neighbours at once; None, if there is nothing or it must not.

    Where several statements write memory all do so at the end, so none may read what they write.
    """
    if n.kind != Kind.ROWS or n.step != 1 or not n.extent:
        return None
    stores = [s for s in n.body if isinstance(s, Store)]
    written = {s.target.source for s in stores}
    into = [s for s in stores if _is_memory(s.target, scope)]
    if len(stores) < len(n.body) or (into and into[-1] is not stores[-1]):
        return None
    used = dict.fromkeys(x for s in stores for x in loads(s.expr))
    wide = tuple(x for x in used if x.source not in written and not x.guard and _lies_along(x, n, scope))
    outs = tuple(s.target for s in into if s.reduce is None and not s.later and _lies_along(s.target, n, scope))
    if len(outs) < len(into) or not (wide or outs):
        return None
    if len(outs) > 1 and (len(set(outs)) < len(outs) or {x.source for x in used} & {x.source for x in outs}):
        return None
    return wide, outs


def run(n: For, scope: Scope, plain: list[str], printed: Callable[[tuple[Node, ...], Scope], list[str]]) -> list[str] | None:
    """The lines of the loop `n` over rows, `plain` being those of each row alone; None, if no neighbours are read or written."""
    found = moved(n, scope)
    if found is None or not n.extent:
        return None
    (wide, outs), stores = found, [s for s in n.body if isinstance(s, Store)]
    taken = {x: Load(f"pop_a{k}", (affine(n.index),), x.dtype) for k, x in enumerate(wide)}
    given = {x: Load(f"pop_b{k or ''}", (affine(n.index),), x.dtype) for k, x in enumerate(outs)}
    held = {x.source: Buffer(x.source, x.dtype, ((affine(n.extent), 1),), Space.REG) for x in (*taken.values(), *given.values())}
    inner = replace(scope, names={**scope.names, **{x: x for x in held}}, buffers={**scope.buffers, **held})
    body = tuple(replace(s, expr=map_loads(s.expr, lambda x: taken.get(x, x)), target=given.get(s.target, s.target))
                 for s in stores)
    places = [(x, f"pop_p{k}", _place(x, n.index, scope)) for k, x in enumerate((*wide, *outs))]
    lines = [f"const pop_i64 {p}_at = {at};" for x, p, at in places if _is_searched(x)]
    lines += [f"{'' if x in given else 'const '}{STORED[x.dtype.name]}* const {p} = "
              f"{scope.names[x.source]} + {f'{p}_at' if _is_searched(x) else at};" for x, p, at in places]
    end = {n.index: affine(n.extent - 1)}
    tests = [condition(substitute(below(n, b), end), scope.names) for b in bounds(n.upper) if b != affine(n.end)]
    tests += [f"pop_is_inside({p}_at)" for x, p, _ in places if _is_searched(x)]
    tests += [f"pop_is_wide<{_bytes(x, n)}>({p})" for x, p, _ in places if not scope.whole]
    first, lines = lines, []
    for x, p, _ in places:
        name = given[x].source if x in given else taken[x].source
        lines.append(f"alignas({_bytes(x, n)}) {STORED[x.dtype.name]} {name}[{n.extent}];")
        if x not in given:
            lines.append(f"pop_wide<{n.extent}>({name}, {p});")
    i = scope.names[n.index]
    lines += ["#pragma unroll", f"for (int {i} = 0; {i} < {n.extent}; ++{i}) {{"]
    lines += [*("    " + x for x in printed(body, inner)), "}"]
    lines += [f"pop_wide<{n.extent}>({p}, {given[x].source});" for x, p, _ in places if x in given]
    if not tests:
        return ["{", *("    " + x for x in (*first, *lines)), "}"]
    registers = [x for s in stores for x in (s.target, *loads(s.expr)) if not _is_memory(x, scope)]
    chosen = any(n.index in names(p) for x in registers for p in x.index if isinstance(p, Affine))
    if not chosen and not any(x.source in scope.tiles.held for x in registers):
        plain = ["#pragma unroll 1" if x == "#pragma unroll" else x for x in plain]  # seldom run, so it had better be short
    either = [f"if ({' && '.join(tests)}) {{", *("    " + x for x in lines), "} else {", *("    " + x for x in plain), "}"]
    return ["{", *("    " + x for x in (*first, *either)), "}"]


def _bytes(x: Load, n: For) -> int:
    """What a place must be a multiple of."""
    return min(BYTES, (n.extent or 1) * x.dtype.bytes_)


def all_lie_well(x: Load, n: For, scope: Scope) -> list[str] | None:
    """Tests of base and strides after which all places of `x` are multiples of what is moved at once; None, if there are none."""
    b, name, count = scope.buffers[x.source], scope.names[x.source], n.extent or 1
    tests, plain = [f"pop_is_wide<{_bytes(x, n)}>({name})"], Affine()
    for p, (extent, unit), stride in zip(x.index, b.dims, strides(b, name), strict=True):
        if not isinstance(p, Affine) or unit != 1:
            return None
        if isinstance(stride, int):
            plain = plain + substitute(p, {n.index: Affine()}) * stride
        elif p != Affine():
            tests.append(f"({stride} % {count} == 0 || {index(extent, scope.names).at(10)} == 1)")
    return tests if multiple(plain, scope.steps) % count == 0 else None


def _place(x: Load, row: str, scope: Scope) -> str:
    """Where in its buffer the first of the neighbours along `row` lies."""
    first = Load(x.source, tuple(substitute(p, {row: Affine()}) if isinstance(p, Affine) else p for p in x.index), x.dtype)
    if not _is_searched(x):
        return offset(first, {}, scope).at(12)
    found = [expression(p, scope) for p in x.index if not isinstance(p, Affine)]
    return offset(first, computed(first, found), replace(scope, sites={**scope.sites, first: scope.sites[x]})).c


def _is_searched(x: Load) -> bool:
    """Whether data say where `x` is, so that it may lie outside."""
    return any(not isinstance(p, Affine) for p in x.index)


def _is_memory(x: Load, scope: Scope) -> bool:
    return scope.buffers[x.source].space != Space.REG


def _lies_along(x: Load, n: For, scope: Scope) -> bool:
    """Whether the rows `n` count neighbours of `x` in memory that kernels share, in a number that one instruction moves."""
    b, v, bytes_ = scope.buffers[x.source], n.index, (n.extent or 0) * x.dtype.bytes_
    if b.space not in (Space.TENSOR, Space.WORK) or bytes_ < 4 or bytes_ & (bytes_ - 1):
        return False
    unit = side_by_side(b)
    searched = [p for p in x.index if not isinstance(p, Affine)]
    if unit is None or not isinstance(x.index[unit], Affine) or any(v in expr_names(p) for p in searched):
        return False
    return all((p.factor(v) == 1 if d == unit else v not in names(p))
               and not any(v in names(affine(a)) for a, _ in p.terms if not isinstance(a, str))
               for d, p in enumerate(x.index) if isinstance(p, Affine))
