"""Copies to shared memory, as C text: neighbours at once where they lie together, else one by one.

    for v in [0, 8) (rows 8) { A_s[.., x + v] = A[.., i + v] if N - i - v - 1 >= 0 }  (later)
    pop_copy_run<8>(&A_s[..], &A[..], N - i);

The same by way of registers, which takes two statements:

    for v in [0, 8) (rows 8) { A_r[v] = A[.., i + v] if N - i - v - 1 >= 0 }     pop_take_run<8>(&A_r[..], &A[..], N - i);
    for v in [0, 8) (rows 8) { A_s[.., x + v] = A_r[v] }                         pop_put_run<8>(&A_s[..], &A_r[..]);
    for u in [0, 4) (rows 4) { A_s[.., x + u] = A_r[u, v] }                      pop_put_column<4, 8>(&A_s[..], &A_r[v]);
"""

from __future__ import annotations

from polyop.codegen.c.index import conditions, index, multiple
from polyop.codegen.c.place import element, moved, strides
from polyop.codegen.c.scope import Scope
from polyop.ir.expr import Affine, Load, affine, is_computed, loads, names, quasi, substitute
from polyop.ir.loops import Barrier, For, If, Kind, LoopNest, Node, Space, Store, children, stores, walk

_ASYNCHRONOUS = 4  # bytes of the least copy that goes on by itself
_SHORT = 4  # statements in a turn of a sum beside copies: both operands are loaded and multiplied
_PUT, _TAKE, _WHOLE, _COPY, _ONE = "pop_put_run", "pop_take_run", "pop_wide", "pop_copy_run", "pop_copy_async"


def run(n: For, scope: Scope) -> list[str] | None:
    """The copy of the neighbours along `n`, if they are neighbours on both sides; else None."""
    if n.kind != Kind.ROWS or not n.is_full or n.step != 1 or len(n.body) != 1:
        return None
    s = n.body[0]
    if not isinstance(s, Store) or s.reduce is not None or not isinstance(s.expr, Load) or any(map(is_computed, s.expr.index)):
        return None
    to, source, v = s.target, s.expr, n.index
    wrapper = _wrapper(s, n.extent or 0, scope)
    if wrapper is None or not _stays_whole(to, v, n.extent or 0, scope):
        return None
    step = _step(source, v, scope) if wrapper == _PUT else 1 if _lies_along(source, v, scope) else None
    if not _lies_along(to, v, scope) or step is None or any(t.factor(v) not in (0, -1) for t in source.guard):
        return None
    zero = {v: Affine()}
    ends = [substitute(t, zero) + 1 for t in source.guard if t.factor(v)]
    whole = [t for t in source.guard if not t.factor(v)]
    count = index(quasi("min", *ends) if len(ends) > 1 else ends[0], scope.names).c if ends else str(n.extent)
    if whole:
        count = f"{conditions(whole, scope.names).at(4)} ? {count} : 0"
    places = [element(Load(x.source, tuple(substitute(p, zero) for p in x.index if isinstance(p, Affine)), x.dtype), {}, scope)
              for x in (to, source)]
    said = f"// {s.stmt}: {n.extent} of {source.source} to {to.source}"
    if wrapper == _PUT and step > 1:
        return [said, f"pop_put_column<{n.extent}, {step}>(&{places[0]}, &{places[1]});"]
    if wrapper == _COPY and scope.whole:
        return [said, f"{_ONE}<{(n.extent or 0) * to.dtype.bytes_}>(&{places[0]}, &{places[1]}, true);"]
    inside = "" if wrapper in (_PUT, _WHOLE) else f", {count}"
    return [said, f"{wrapper}<{n.extent}>(&{places[0]}, &{places[1]}{inside});"]


def _wrapper(s: Store, count: int, scope: Scope) -> str | None:
    """What copies `count` neighbours from and to such memory; None, if nothing does at once."""
    to, source = (scope.buffers[x.source].space for x in (s.target, s.expr) if isinstance(x, Load))
    if s.later:
        return _COPY
    at_once = s.target.dtype == s.expr.dtype and count * s.target.dtype.bytes_ in (4, 8, 16)
    if not at_once or s.target.source in scope.tiles.held or to == source:
        return None
    if to == Space.REG and source in (Space.TENSOR, Space.WORK) and isinstance(s.expr, Load) and (s.expr.guard or scope.whole):
        return _WHOLE if scope.whole else _TAKE
    return _PUT if to == Space.SHARED and source == Space.REG and isinstance(s.expr, Load) and not s.expr.guard else None


def is_taken(n: For, scope: Scope) -> bool:
    """Whether the neighbours along `n` go to registers at once."""
    return (run(n, scope) or [""])[-1].startswith(_TAKE)


def taken(body: tuple[Node, ...], scope: Scope) -> frozenset[str]:
    """The registers that neighbours go through."""
    found = {n.body[0].target.source for n in walk(body) if isinstance(n, For) and len(n.body) == 1
             and isinstance(n.body[0], Store) and is_taken(n, scope)}
    return frozenset(found)


def meets_in_shared(body: tuple[Node, ...], nest: LoopNest) -> bool:
    """Whether threads meet in shared memory alone: what one writes elsewhere is written once, and read by none."""
    same, found = dict(nest.in_place), stores(body)
    outside = [same.get(x.source, x.source) for s in found for e in (s.target, s.expr) for x in loads(e)
               if nest.buffer(x.source).space in (Space.TENSOR, Space.WORK)]
    written = {same.get(s.target.source, s.target.source) for s in found}
    return all(outside.count(w) < 2 for w in written) and not any(s.reduce for s in found if s.target.source in outside)


def one(s: Store, scope: Scope) -> list[str] | None:
    """The copy of one element that may arrive later; None if it cannot."""
    if not s.later or not isinstance(s.expr, Load) or s.target.dtype.bytes_ < _ASYNCHRONOUS:
        return None
    if any(map(is_computed, s.expr.index)):
        return None
    inside = conditions(s.expr.guard, scope.names).c
    source = moved(Load(s.expr.source, s.expr.index, s.expr.dtype), scope).c
    return [f"{_ONE}<{s.target.dtype.bytes_}>(&{element(s.target, {}, scope)}, &{source}, {inside});"]


def _stays_whole(x: Load, v: str, count: int, scope: Scope) -> bool:
    """Whether the `count` neighbours along `v` lie in one eighth of a line, where `x` is swizzled."""
    b, last = scope.buffers[x.source], x.index[-1] if x.index else None
    if not b.swizzle:
        return True
    assert isinstance(last, Affine)
    eighth = b.swizzle // 8 // b.dtype.bytes_
    return eighth % count == 0 and multiple(substitute(last, {v: Affine()}), scope.steps) % count == 0


def _step(x: Load, v: str, scope: Scope) -> int | None:
    """How far apart in a register's memory neighbours along `v` are; None, if that is no number."""
    b = scope.buffers[x.source]
    distances = strides(b, scope.names[b.name])
    found = [(p, k, unit) for p, k, (_, unit) in zip(x.index, distances, b.dims, strict=True)
             if not isinstance(p, Affine) or v in names(p)]
    if len(found) != 1:
        return None
    p, k, unit = found[0]
    return k if p == affine(v) and unit == 1 and isinstance(k, int) else None


def _lies_along(x: Load, v: str, scope: Scope) -> bool:
    """Whether `v` counts neighbours of `x` in memory, and nothing else."""
    b = scope.buffers[x.source]
    unit = b.dense
    return unit is not None and all(isinstance(p, Affine) and (p.factor(v) == 1 if d == unit else v not in names(p))
                                    and not any(v in names(affine(a)) for a, _ in p.terms if not isinstance(a, str))
                                    for d, p in enumerate(x.index))


def are_left(body: tuple[Node, ...], going: bool = False) -> bool:
    """Whether copies may be on their way behind `body`, where some are before it if they are `going`: a loop may have no turn."""
    for n in body:
        match n:
            case Store(later=True):
                going = True
            case Barrier(pending=0):
                going = False
            case For(body=inside):
                going = going or are_left(inside)
            case If(then=then, other=other):
                going = are_left(then, going) or are_left(other, going)
    return going


def by_rows(body: tuple[Node, ...]) -> frozenset[str]:
    """The copies that arrive later and whose rows are a loop of the machine code, too: written out they would be most of it.

    Not those between the products of a short turn, among which they are spread out.
    """
    found = set[str]()

    def go(nodes: tuple[Node, ...], others: int) -> None:
        for n in nodes:
            match n:
                case Store(later=True) if not 0 < others <= _SHORT:
                    found.add(n.stmt)
                case For(kind=Kind.SERIAL):
                    go(n.body, sum(not s.later for s in stores(n.body)))
                case _:
                    go(children(n), others)

    go(body, 0)
    return frozenset(found)
