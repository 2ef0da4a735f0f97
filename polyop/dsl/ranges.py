"""The ranges of a draft's indices: from `where`, the left side, reads, comparisons, in this order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from polyop.dsl.draft import Draft, reading_order
from polyop.dsl.intervals import Box, Interval, at_least_zero, larger, same, smaller, solve
from polyop.ir import spelled
from polyop.ir.errors import Label, fail
from polyop.ir.expr import Affine, Apply, Expr, Load, Test, affine, children, expr_names, names
from polyop.ir.span import Span

Shapes = Mapping[str, tuple[Affine, ...] | None]
"""The extents of every tensor; None where they are not known yet."""


@dataclass(frozen=True, slots=True)
class Place:
    """A position in a dimension of `extent` elements; it bounds no index of `free`."""

    at: Affine
    extent: Affine
    tensor: str
    dimension: int
    span: Span | None
    free: frozenset[str]


@dataclass(frozen=True, slots=True)
class Inference:
    """What there is to know beside the draft.

    sizes      the names that are no indices
    declared   whether the left side's shape is given
    pieces     whether several `=` statements write the tensor, so that reads cut each one's range
    partial    whether the left side need not be written in full (`inout`, reductions): reads come before `X[start + i]` then
    """

    shapes: Shapes
    sizes: frozenset[str]
    facts: tuple[Affine, ...]
    declared: bool
    pieces: bool
    partial: bool
    shown: Mapping[str, str]


def indices_of(draft: Draft, sizes: frozenset[str]) -> tuple[str, ...]:
    """Every index of `draft` and of its inner reductions: the left side's first, then in reading order."""
    found = dict.fromkeys(n for n in draft.left_names if n not in sizes)

    def add(d: Draft) -> None:
        for e in (d.expr, *d.filters):
            found.update(dict.fromkeys(n for n in reading_order(e) if n not in sizes))
        for inner in d.hidden:
            add(inner)
            found.update(dict.fromkeys(inner.bound))

    add(draft)
    bases = {n.split("@")[0] for n in found if "@" in n}
    for g in draft.given:
        found.update(dict.fromkeys(n for n in (g.index, *sorted(names(g.lower) | names(g.upper))) if n not in sizes))
    for c in draft.conditions:
        found.update(dict.fromkeys(n for n in reading_order(c) if n not in sizes))
    return tuple(n for n in found if n not in bases)


def reads(draft: Draft, shapes: Shapes) -> Iterator[Place]:
    """The positions that are read, in text order; those with an `else`, or of unknown extent, are left out."""
    hidden = {h.target: h for h in draft.hidden}
    scattered = [p for p in draft.at if not isinstance(p, Affine)]
    stack: list[tuple[Expr, frozenset[str]]] = [(e, frozenset()) for e in reversed((*scattered, draft.expr, *draft.filters))]
    while stack:
        e, free = stack.pop()
        match e:
            case Load(source=source) if source in hidden:
                inner = hidden[source]
                yield from (Place(p.at, p.extent, p.tensor, p.dimension, p.span, p.free | free) for p in reads(inner, shapes))
            case Load():
                yield from _places(e, shapes, free)
            case Apply(fn="otherwise", args=(Load() as load, other)):
                stack.append((other, free))
                stack += [(p, free) for p in reversed(children(load))]
                continue
            case Apply(fn="select", args=(c, yes, no)):
                inside = free | expr_names(c)
                stack += [(no, inside), (yes, inside), (c, free)]
                continue
            case Apply(fn="and" | "or", args=(a, b)):
                stack += [(b, free | expr_names(a)), (a, free)]
                continue
        if not (isinstance(e, Load) and e.source in hidden):
            stack += [(x, free) for x in reversed(children(e))]


def _places(load: Load, shapes: Shapes, free: frozenset[str]) -> Iterator[Place]:
    shape = shapes.get(load.source)
    if shape is None:
        return
    for d, (p, n) in enumerate(zip(load.index, shape, strict=True)):
        if isinstance(p, Affine):
            yield Place(p, n, load.source, d, load.span, free)


def infer(draft: Draft, known: Inference) -> tuple[dict[str, Interval], tuple[str, ...]]:
    """The intervals that could be found, and the indices that have none yet.

    Raises  UserError E305, if an index stands alone in dimensions of different sizes.
    """
    every = indices_of(draft, known.sizes)
    box: dict[str, Interval] = {}
    for g in draft.given:
        for name in every:
            if name == g.index or name.split("@")[0] == g.index:
                box[name] = Interval(g.lower, g.upper)
    fixed = frozenset(box)
    left = _left_places(draft, known)
    right = list(reads(draft, known.shapes))
    if known.declared:
        _alone(left, box, known, fixed)
    if known.declared and not known.partial:
        _open(left, every, box, known)
    settled = frozenset(box)
    _alone(right, box, known, fixed, settled)
    if known.declared and known.partial:
        _open(left, every, box, known)
    _open(right, every, box, known)
    if known.pieces:
        _cut(right, box, known, fixed)
    _compared(draft, every, box, known)
    if not known.declared:
        for p in left:
            alone = p.at.name
            if alone in box and alone not in fixed and not at_least_zero(box[alone].lower, known.facts):
                box[alone] = Interval(larger(box[alone].lower, Affine(), known.facts), box[alone].upper)
    return box, tuple(n for n in every if n not in box)


def _left_places(draft: Draft, known: Inference) -> list[Place]:
    shape = known.shapes.get(draft.target) if known.declared else None
    dims = shape or (Affine(),) * len(draft.at)
    return [Place(p, n, draft.target, d, draft.left, frozenset())
            for d, (p, n) in enumerate(zip(draft.at, dims, strict=True)) if isinstance(p, Affine)]


def _alone(places: Sequence[Place], box: dict[str, Interval], known: Inference, fixed: frozenset[str],
           settled: frozenset[str] = frozenset()) -> None:
    """Positions that hold one index alone: `X[i]` says that i runs over the dimension."""
    first: dict[str, Place] = {}
    for p in places:
        name = p.at.name
        if name is None or name in known.sizes or name in p.free or name in fixed:
            continue
        if name not in box:
            box[name] = Interval(Affine(), p.extent)
            first[name] = p
            continue
        if known.pieces:
            continue
        if name in settled:
            if not at_least_zero(p.extent - box[name].upper, known.facts):
                raise _disagree(name, None, box[name].upper, p, known)
        elif name in first and not same(first[name].extent, p.extent, known.facts):
            raise _disagree(name, first[name], first[name].extent, p, known)


def _disagree(name: str, first: Place | None, over: Affine, p: Place, known: Inference) -> Exception:
    shown = name.split("@")[0]
    tensor = known.shown.get(p.tensor, p.tensor)
    where = f" in `{known.shown.get(first.tensor, first.tensor)}`" if first else ""
    notes = (("first read here", Label(first.span)),) if first and first.span else ()
    message = f"`{shown}` runs over {spelled.extent(over)}{where} and over {spelled.extent(p.extent)} in `{tensor}`"
    return fail("E305", message, p.span, notes=notes,
                hint=f"give both one name, or say `where {shown} in 0:{spelled.extent(smaller(over, p.extent, known.facts))}`")


def _open(places: Sequence[Place], every: Sequence[str], box: dict[str, Interval], known: Inference) -> None:
    """Positions with one index still open, such as `X[p + r]` once r is known: all that hold it bound it together."""
    while True:
        chosen: str | None = None
        for p in places:
            missing = [n for n in names(p.at) if n not in box and n not in known.sizes]
            if len(missing) == 1 and missing[0] not in p.free and _bounds(p, missing[0], box) is not None:
                chosen = missing[0]
                break
        if chosen is None:
            return
        interval: Interval | None = None
        for p in places:
            if [n for n in names(p.at) if n not in box and n not in known.sizes] != [chosen] or chosen in p.free:
                continue
            new = _bounds(p, chosen, box)
            if new is not None:
                interval = _meet(interval, new, known) if interval else new
        assert interval is not None
        box[chosen] = interval


def _bounds(p: Place, name: str, box: Box) -> Interval | None:
    lower, upper = solve(p.at, Affine(), p.extent, name, box)
    return Interval(lower, upper) if lower is not None and upper is not None else None


def _meet(a: Interval, b: Interval, known: Inference) -> Interval:
    return Interval(larger(a.lower, b.lower, known.facts), smaller(a.upper, b.upper, known.facts))


def _cut(places: Sequence[Place], box: dict[str, Interval], known: Inference, fixed: frozenset[str]) -> None:
    """Of several pieces each runs only where its reads are inside."""
    for p in places:
        inside = [n for n in sorted(names(p.at)) if n in box and n not in p.free]
        if len(inside) != 1 or inside[0] in fixed:
            continue
        bounds = _bounds(p, inside[0], {k: x for k, x in box.items() if k != inside[0]})
        if bounds is not None:
            box[inside[0]] = _meet(box[inside[0]], bounds, known)


def _compared(draft: Draft, every: Sequence[str], box: dict[str, Interval], known: Inference) -> None:
    """`0 <= i < N` in a `where` bounds i, if nothing else does."""
    tests = [t for c in draft.conditions if isinstance(c, Test) for t in c.tests]
    progress = True
    while progress:
        progress = False
        for name in every:
            if name in box:
                continue
            lower, upper = _both_sides(name, tests, every, box, known)
            if lower is not None and upper is not None:
                box[name] = Interval(lower, upper)
                progress = True


def _both_sides(name: str, tests: Sequence[Affine], every: Sequence[str], box: Box,
                known: Inference) -> tuple[Affine | None, Affine | None]:
    lower: Affine | None = None
    upper: Affine | None = None
    base = name.split("@")[0]
    for t in tests:
        factor = t.factor(base)
        rest = t - affine(base) * factor
        if abs(factor) != 1 or base in names(rest) or any(n in every and n not in box for n in names(rest)):
            continue
        if factor > 0:
            lower = rest * -1 if lower is None else larger(lower, rest * -1, known.facts)
        else:
            upper = rest + 1 if upper is None else smaller(upper, rest + 1, known.facts)
    return lower, upper
