"""Rows that are neighbours, as C text: read and written several at once, where all are inside and lie as the machine wants them.

    for p in [0, 4) (rows 4) { Y[i + p] = f(X[i + p]) }

    if (all four are inside, and &Y[i] and &X[i] are multiples of 16 bytes) {
        pop_wide<4>(a, &X[i]);  4 times: b[p] = f(a[p]);  pop_wide<4>(&Y[i], b);
    } else { the loop as it is }

The loop runs in lock step, so all may be read before the first is written. A condition of each row, `p <= i`, is asked of the
last one, or the first. Where things lie is asked as the kernel runs: the same text serves every view, and on contiguous tensors
all threads answer alike. Accesses in steps that leave nothing out together, X[2 i] and X[2 i + 1], are neighbours, too
(`ir/residues.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from polyop.codegen.c import turned
from polyop.codegen.c.expr import expression
from polyop.codegen.c.index import condition, index, multiple
from polyop.codegen.c.lines import unrolled
from polyop.codegen.c.place import STORED, computed, offset, strides
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.inside import below, least
from polyop.ir.expr import Affine, Load, affine, bounds, expr_names, loads, map_loads, names, substitute
from polyop.ir.loops import Buffer, For, If, Kind, Node, Space, Store
from polyop.ir.residues import Run, runs_of

BYTES = 16  # that one instruction moves at most


def moved(n: For, scope: Scope) -> tuple[tuple[Run, ...], tuple[Run, ...]] | None:
    """What the loop `n` over rows can read, and write, of neighbours at once; None, if there is nothing or it must not.

    Where several statements write memory all do so at the end, so none may read what they write. What the last one alone writes
    may be read where it is written.
    """
    if n.kind != Kind.ROWS or n.step != 1 or not n.extent:
        return None
    stores = [s for s in n.body if isinstance(s, Store)]
    written = {s.target.source for s in stores}
    into = [s for s in stores if _is_memory(s.target, scope)]
    if len(stores) < len(n.body) or (into and into[-1] is not stores[-1]):
        return None
    used = dict.fromkeys(x for s in stores for x in loads(s.expr))
    same = into[0].target if len(into) == 1 and into[0].reduce is None else None
    wide = _runs((x for x in used if (x.source not in written or x == same) and not x.guard), n, scope)
    outs = _runs((s.target for s in into if s.reduce is None and not s.later), n, scope)
    if sum(map(len, outs)) < len(into) or not (wide or outs):
        return None
    if len(into) > 1 and {x.source for x in used} & {s.target.source for s in into}:
        return None
    return wide, outs


@dataclass(frozen=True, slots=True)
class Moves:
    """The lines of rows that are read and written at once.

    tests    after which they are right; none: always
    reads, writes
             for each run of neighbours: where it lies, the registers (type, name, how many, at which multiples of bytes
             they begin) and what moves it
    work     what is done in registers
    """

    tests: list[str]
    reads: list[tuple[list[str], tuple[str, str, int, int], list[str]]]
    writes: list[tuple[list[str], tuple[str, str, int, int], list[str]]]
    work: list[str]

    def lines(self) -> list[str]:
        """All of it, behind where things lie."""
        arrays = [declared(a) for _, a, _ in self.writes]
        taken = [x for _, a, moved in self.reads for x in (declared(a), *moved)]
        return [*taken, *arrays, *self.work, *(x for _, _, moved in self.writes for x in moved)]

    def places(self) -> list[str]:
        """Where things lie."""
        return [x for at, _, _ in (*self.reads, *self.writes) for x in at]


def declared(a: tuple[str, str, int, int], rows: int = 0) -> str:
    """Room for the registers of a run; `rows`: as many such rooms."""
    type_, name, count, align = a
    return f"alignas({align}) {type_} {name}{f'[{rows}]' if rows else ''}[{count}];"


def moves(n: For, scope: Scope, printed: Callable[[tuple[Node, ...], Scope], list[str]]) -> Moves | None:
    """The loop `n` over rows at once; None, if no neighbours are read or written."""
    asked, n = _asked(n)
    found = moved(n, scope)
    if found is None or not n.extent or asked is None:
        return None
    (wide, outs), stores = found, [s for s in n.body if isinstance(s, Store)]
    sides = [(r, f"pop_a{k}") for k, r in enumerate(wide)], [(r, f"pop_b{k or ''}") for k, r in enumerate(outs)]
    both = (*sides[0], *sides[1])
    held = {c: Buffer(c, r[0].dtype, ((affine(n.extent * len(r)), 1),), Space.REG) for r, c in both}
    taken, given = ({x: Load(c, (affine(n.index) * len(r) + k,), x.dtype) for r, c in side for k, x in enumerate(r)}
                    for side in sides)
    inner = replace(scope, names={**scope.names, **{x: x for x in held}}, buffers={**scope.buffers, **held})
    body = tuple(replace(s, expr=map_loads(s.expr, lambda x: taken.get(x, x)), target=given.get(s.target, s.target))
                 for s in stores)
    places = [(r, f"pop_p{k}", _place(r[0], n.index, scope)) for k, (r, _) in enumerate(both)]
    parts = []
    for k, ((r, c), (_, p, at)) in enumerate(zip(both, places, strict=True)):
        type_, far = STORED[r[0].dtype.name], _is_searched(r[0])
        where = [f"const pop_i64 {p}_at = {at};"] if far else []
        if not scope.buffers[r[0].source].swizzle:
            where += [f"{'const ' if k < len(wide) else ''}{type_}* const {p} = "
                      f"{scope.names[r[0].source]} + {f'{p}_at' if far else at};"]
        parts.append((where, (type_, c, n.extent * len(r), _bytes(r, n)), _moves(r, c, p, n, scope, back=k >= len(wide))))
    end = {n.index: affine(n.extent - 1)}
    tests = [condition(substitute(below(n, b), end), scope.names) for b in bounds(n.upper) if b != affine(n.end)]
    tests += [condition(x, scope.names) for x in asked]
    tests += [f"pop_is_inside({p}_at)" for r, p, _ in places if _is_searched(r[0])]
    tests += [f"pop_is_wide<{_bytes(r, n)}>({p})" for r, p, _ in places if not scope.whole and not _is_shared(r[0], scope)]
    i = scope.names[n.index]
    return Moves(tests, parts[:len(wide)], parts[len(wide):], unrolled(i, n.extent, printed(body, inner)))


def run(n: For, scope: Scope, plain: list[str], printed: Callable[[tuple[Node, ...], Scope], list[str]]) -> list[str] | None:
    """The lines of the loop `n` over rows, `plain` being those of each row alone; None, if no neighbours are read or written."""
    found = moves(n, scope, printed)
    if found is None:
        return None
    if not found.tests:
        return ["{", *("    " + x for x in (*found.places(), *found.lines())), "}"]
    n = _asked(n)[1]
    stores = [s for s in n.body if isinstance(s, Store)]
    registers = [x for s in stores for x in (s.target, *loads(s.expr)) if not _is_memory(x, scope)]
    chosen = any(n.index in names(p) for x in registers for p in x.index if isinstance(p, Affine))
    if not chosen and not any(x.source in scope.tiles.held for x in registers):
        plain = ["#pragma unroll 1" if x == "#pragma unroll" else x for x in plain]  # seldom run, so it had better be short
        plain = _in_order(turned.order(n, stores, scope), scope.names[n.index], plain)
    either = [f"if ({' && '.join(found.tests)}) {{", *("    " + x for x in found.lines()), "} else {",
              *("    " + x for x in plain), "}"]
    return ["{", *("    " + x for x in (*found.places(), *either)), "}"]


def _in_order(order: str, i: str, plain: list[str]) -> list[str]:
    """The lines of a loop `i` over rows, which each lane takes in its own `order`."""
    if not order:
        return plain
    pragma, head, *inside = plain
    return [pragma, head.replace(f"int {i} ", "int pop_x ").replace(f" {i} <", " pop_x <").replace(f"++{i}", "++pop_x"),
            f"    const int {i} = pop_x ^ (int)({order});", *inside]


def _asked(n: For) -> tuple[list[Affine] | None, For]:
    """What is >= 0 if a test around all that `n` does holds in each row, and the loop without it; None, if that is not plain."""
    match n.body:
        case (If(tests=tests, then=then, other=()),):
            ends = [least(x, (n,)) for x in tests]
            return None if None in ends else [x for x in ends if x is not None], replace(n, body=then)
    return [], n


def _moves(r: Run, registers: str, pointer: str, n: For, scope: Scope, back: bool = False) -> list[str]:
    """All neighbours to registers at once, or `back`: of a swizzled buffer as many as lie together."""
    x, count = r[0], (n.extent or 1) * len(r)
    swizzled = scope.buffers[x.source].swizzle > 0
    each = _bytes(r, n) // x.dtype.bytes_ if swizzled else count
    lines = []
    for at in range(0, count, each):
        first = Load(x.source, tuple(substitute(p, {n.index: affine(at)}) for p in x.index if isinstance(p, Affine)), x.dtype)
        there = f"&{scope.names[x.source]}[{offset(first, {}, scope).c}]" if swizzled else pointer
        here = f"{registers} + {at}" if at else registers
        lines.append(f"pop_wide<{each}>({there}, {here});" if back else f"pop_wide<{each}>({here}, {there});")
    return lines


def _bytes(r: Run, n: For) -> int:
    """What a place must be a multiple of."""
    return min(BYTES, (n.extent or 1) * len(r) * r[0].dtype.bytes_)


def all_lie_well(r: Run, n: For, scope: Scope) -> list[str] | None:
    """Tests of base and strides after which all places of a run are multiples of what is moved; None, if there are none."""
    x, count = r[0], (n.extent or 1) * len(r)
    b, name = scope.buffers[x.source], scope.names[x.source]
    if b.space == Space.SHARED:
        return []
    tests, plain = [f"pop_is_wide<{_bytes(r, n)}>({name})"], Affine()
    for p, (extent, unit), stride in zip(x.index, b.dims, strides(b, name), strict=True):
        if not isinstance(p, Affine) or unit != 1:
            return None
        if isinstance(stride, int):
            plain = plain + substitute(p, {n.index: Affine()}) * stride
        elif p != Affine():
            tests.append(f"({stride} % {count} == 0 || {index(extent, scope.names).at(10)} == 1)")
    return tests if multiple(plain, scope.steps) % count == 0 else None


def _place(x: Load, row: str, scope: Scope) -> str:
    """Where in its buffer the first of the neighbours along `row` lies.

    Notes   That it lies outside is told by the loop one by one, which follows then, and only if it is needed: not of
            `(X[p[i], j] else 0)`.
    """
    first = Load(x.source, tuple(substitute(p, {row: Affine()}) if isinstance(p, Affine) else p for p in x.index), x.dtype)
    if not _is_searched(x):
        return offset(first, {}, scope).at(12)
    silent = replace(scope, sites=dict.fromkeys((*scope.sites, first), 0))
    found = [expression(p, silent) for p in x.index if not isinstance(p, Affine)]
    return offset(first, computed(first, found), silent).c


def _is_searched(x: Load) -> bool:
    """Whether data say where `x` is, so that it may lie outside."""
    return any(not isinstance(p, Affine) for p in x.index)


def _is_memory(x: Load, scope: Scope) -> bool:
    return scope.buffers[x.source].space != Space.REG


def _runs(found: Iterable[Load], n: For, scope: Scope) -> tuple[Run, ...]:
    """What the rows `n` count neighbours of, in memory that threads share, in a number that one instruction moves."""
    units = {x: unit for x in found if (unit := _unit(x, n, scope)) is not None}
    return tuple(r for r in runs_of(units.items(), n.index) if _is_moved((n.extent or 0) * len(r) * r[0].dtype.bytes_)
                 and (not _is_shared(r[0], scope) or _lies_well_in_shared(r, n, scope)))


def _is_shared(x: Load, scope: Scope) -> bool:
    return scope.buffers[x.source].space == Space.SHARED


def _lies_well_in_shared(r: Run, n: For, scope: Scope) -> bool:
    """Whether neighbours in shared memory always begin where the machine wants them; and of swizzled ones each place follows."""
    b, each = scope.buffers[r[0].source], _bytes(r, n) // r[0].dtype.bytes_
    places = [substitute(p, {n.index: Affine()}) for p in r[0].index if isinstance(p, Affine)]
    if len(places) < len(b.dims) or any(unit != 1 for _, unit in b.dims):
        return False
    if b.swizzle:
        return len(r) == 1 and b.swizzle // 8 >= _bytes(r, n) and multiple(places[-1], scope.steps) % each == 0
    steps = strides(b, scope.names[b.name])
    flat = sum((p * k for p, k in zip(places, steps, strict=True) if isinstance(k, int)), Affine())
    any_row = b.turned and (not isinstance(steps[-2], int) or steps[-2] % each)  # a row's number says nothing of its place
    return all(isinstance(k, int) for k in steps) and not any_row and multiple(flat, scope.steps) % each == 0


def _is_moved(bytes_: int) -> bool:
    return bytes_ in (4, 8) or (bytes_ > 0 and bytes_ % BYTES == 0)


def _unit(x: Load, n: For, scope: Scope) -> int | None:
    """The dimension along which neighbours lie side by side, if the rows `n` go along that and along no other."""
    b, v = scope.buffers[x.source], n.index
    unit = b.dense if b.space != Space.REG else None
    if unit is None or not isinstance(x.index[unit], Affine):
        return None
    others = [p for d, p in enumerate(x.index) if d != unit]
    return None if any(v in (names(p) if isinstance(p, Affine) else expr_names(p)) for p in others) else unit
