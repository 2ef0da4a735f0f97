"""What is proved about a user's operator before any schedule, for all sizes at once; a failure shows the smallest sizes.

inside       no read or write lies outside its tensor                     E311, E312
once         no element is assigned twice                                 E321 (by two statements), E322 (by one)
in full      every element of an output is written                        E320
written      what is read of a temporary is written                       E324
in order     the elements can be computed one after the other             E323, E325
decided      isl can tell all this within its quota                       E326

A computed position may be anywhere in its dimension, so a temporary that is read through one must be written in full.
An `inout` output need not be: the caller's values stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter

import islpy as isl

from polyop.ir.errors import UnsupportedError, UserError, fail
from polyop.ir.expr import Affine, Load, Test, evaluate, expr_names, names
from polyop.ir.module import Proof
from polyop.ir.op import Op, Step, Tensor
from polyop.ir.words import in_users_words
from polyop.poly.places import Access, Places
from polyop.poly.recurrence import disorder
from polyop.poly.scop import INIT, Scop, Stmt, extract
from polyop.poly.sets import quota
from polyop.poly.verify.frame import IN
from polyop.poly.verify.same import computed, loads_with_paths
from polyop.poly.verify.witness import equations, smallest, spot

OPERATIONS = 4_000_000  # of isl, for one claim: a few seconds; a usual operator needs 10,000

Fault = UserError
Check = Callable[[Places], Iterator[Fault]]


def check(op: Op, scop: Scop | None = None) -> None:
    """Nothing, if `op` is well formed.

    scop   extract(op), where there is one already
    Raises UserError E311, E312, E320 .. E326.
    """
    claim = "it is well formed"
    try:
        with quota(OPERATIONS, claim):
            given = Places(op, scop or extract(op))
        for claim, faults in CLAIMS:
            with quota(OPERATIONS, claim):
                fault = next(faults(given), None)
            if fault is not None:
                raise UserError(in_users_words(op, fault.diagnostic))
    except UnsupportedError:
        raise _undecided(op, claim) from None


def _undecided(op: Op, claim: str) -> UserError:
    """E326: isl's quota ran out, which divisions and remainders do to it; nothing is claimed."""
    return fail("E326", f"`{op.name}` is refused: whether {claim} was not decided within {OPERATIONS:,} operations of isl",
                op.span, hint="use fewer `/`, `%`, `min` and `max` in one position or condition")


def proofs(op: Op) -> tuple[Proof, ...]:
    """Every claim about `op`; one that fails says how, and ends the list."""
    given, out = Places(op, extract(op)), list[Proof]()
    for claim, faults in CLAIMS:
        start, witness = perf_counter(), ""
        try:
            with quota(OPERATIONS, claim):
                fault = next(faults(given), None)
            if fault is not None:
                d = in_users_words(op, fault.diagnostic)
                witness = d.message + (f": {d.label.text}" if d.label and d.label.text else "")
        except UnsupportedError as error:
            witness = str(error)
        out.append(Proof(claim, not witness, witness, (perf_counter() - start) * 1e3))
        if witness:
            break
    return tuple(out)


# --- inside ----------------------------------------------------------------------------------------------------------


def _outside(a: Access, o: Places) -> tuple[dict[str, int], dict[str, int]] | None:
    """Sizes and indices of the smallest instance whose place lies outside its tensor."""
    ranges = {r.index: (r.lower, r.upper) for r in o.step(a.stmt).ranges}
    for p, extent in zip(a.load.index, a.tensor.shape, strict=True):
        if not isinstance(p, Affine) or (p.name is not None and ranges.get(p.name) == (Affine(), extent) and a.stmt.kind != INIT):
            continue
        for test in (p * -1 - 1, p - extent):
            bad = a.frame.where([test], a.domain)
            if not bad.is_empty():
                sizes, at = smallest(bad)
                return sizes, dict(zip(a.stmt.dims, at, strict=False))
    return None


def _shown(o: Places, s: Stmt, load: Load, sizes: dict[str, int]) -> str:
    """` when N = 1`: the sizes that have to do with `load`."""
    indices = expr_names(load)
    used = {n for e in o.tensors[load.source].shape for n in names(e)} | indices
    for r in o.step(s).ranges:
        if r.index in indices:
            used |= names(r.lower) | names(r.upper)
    relevant = {n: v for n, v in sizes.items() if n in used}
    return f" when {equations(relevant)}" if relevant else ""


def inside_reads(o: Places) -> Iterator[Fault]:
    for a in o.reads:
        found = _outside(a, o)
        if found:
            sizes, at = found
            shown = a.load.span.text if a.load.span else str(a.load)
            yield fail("E311", f"`{a.load.source}` is read outside its bounds", a.load.span or o.step(a.stmt).span,
                       _outside_at(o, a, sizes, at, "reads"),
                       _sizes_as_indices(o, a) or f"give the value outside: `({shown} else 0)`")


def _sizes_as_indices(o: Places, a: Access) -> str:
    """What to do where positions are the sizes of their dimensions, as of somebody who wrote `f32[m, k]` for indices; or ""."""
    positions = zip(a.load.index, o.tensors[a.load.source].shape, strict=True)
    found = [p.name for p, extent in positions if isinstance(p, Affine) and p.name and p == extent and p.name not in a.stmt.dims]
    if not found:
        return ""
    named, are = " and ".join(f"`{x}`" for x in dict.fromkeys(found)), "is a size" if len(set(found)) == 1 else "are sizes"
    other = ", ".join(x.upper() if x != x.upper() else x.lower() for x in found)
    return f"{named} {are} here, and an index has a name of its own: let one of them be `[{other}]`"


def inside_writes(o: Places) -> Iterator[Fault]:
    for a in o.targets:
        found = _outside(a, o) if a.stmt.kind != INIT else None
        if found:
            sizes, at = found
            yield fail("E312", f"`{a.load.source}` is written outside its bounds", a.load.span or o.step(a.stmt).span,
                       _outside_at(o, a, sizes, at, "writes"), _sizes_as_indices(o, a))


def _outside_at(o: Places, a: Access, sizes: dict[str, int], at: dict[str, int], verb: str) -> str:
    """Which element `a` reads or writes there, and where that is."""
    point = {i: v for i, v in at.items() if i in expr_names(a.load)}
    return f"{equations(point)} {verb} {spot(a.load, sizes | at)}".lstrip() + _shown(o, a.stmt, a.load, sizes)


# --- once, in full ---------------------------------------------------------------------------------------------------


def once(o: Places) -> Iterator[Fault]:
    assigning = [a for a in o.targets if a.stmt.kind == "map"]
    for n, a in enumerate(assigning):
        yield from _repeated(o, a)
        for b in assigning[n + 1:]:
            if a.load.source == b.load.source:
                both = a.place.range().intersect(b.place.range())
                if not both.is_empty():
                    sizes, at = smallest(both)
                    element = _element(a.tensor, at)
                    other = o.step(b.stmt).span
                    where = f"in line {other.line}" if other else f"in statement {b.stmt.step + 1}"
                    yield fail("E321", f"`{element}` is written twice, here and {where}{_of(a.tensor, sizes)}",
                               a.load.span or o.step(a.stmt).span)


def _repeated(o: Places, a: Access) -> Iterator[Fault]:
    """E322: one statement that writes an element at two of its points."""
    span, name = a.load.span or o.step(a.stmt).span, a.load.source
    hint = "say how to combine: `+=`, `max=`"
    if computed(a.load):
        by = " and ".join(f"`{x.source}`" for p in computed(a.load) for x, _ in loads_with_paths(p)) or "its position"
        yield fail("E322", f"`=` may write one element of `{name}` twice, since {by} may repeat", span, hint=hint)
        return
    if {p.name for p in a.load.index if isinstance(p, Affine)} >= set(a.stmt.dims):
        return
    pairs = a.place.apply_range(a.place.reverse())
    pairs = pairs.subtract(isl.Map.identity(pairs.get_space()))
    if not pairs.is_empty():
        sizes, first = smallest(pairs.domain())
        env = sizes | dict(zip(a.stmt.dims, first, strict=True))
        second = smallest(_at(pairs, sizes, first).range())[1]
        points = [", ".join(f"{d} = {v}" for d, v in zip(a.stmt.dims, p, strict=True)) for p in (first, second)]
        when = _of(a.tensor, sizes, o, a.stmt)
        yield fail("E322", f"`{spot(a.load, env)}` is written twice, at {points[0]} and at {points[1]}{when}", span, hint=hint)


def _at(m: isl.Map, sizes: dict[str, int], point: tuple[int, ...]) -> isl.Map:
    for i, v in enumerate(sizes.values()):
        m = m.fix_val(isl.dim_type.param, i, isl.Val(v))
    for i, v in enumerate(point):
        m = m.fix_val(IN, i, isl.Val(v))
    return m


def in_full(o: Places) -> Iterator[Fault]:
    kept = {output for _, output in o.op.updates}
    for t in o.op.outputs:
        missing = o.unwritten(t.name) if t.name not in kept else None
        if missing is not None and not missing.is_empty():
            sizes, at = smallest(missing)
            steps = o.op.steps_of(t.name)
            why = next((w for s in steps for w in [_reason(s, at, sizes)] if w), "")
            when = _of(t, sizes).removeprefix(",")
            yield fail("E320", f"`{t.name}` is not written in full: {_element(t, at)} is missing{when}{why}",
                       steps[0].target.span or steps[0].span if steps else t.span)


def _reason(s: Step, at: tuple[int, ...], sizes: dict[str, int]) -> str:
    """`, because line 3 starts at i = 1`, if one bound of `s` leaves the element out."""
    ranges = {r.index: r for r in s.ranges}
    line = f"line {s.span.line}" if s.span else "its statement"
    for p, v in zip(s.target.index, at, strict=True):
        r = ranges.get(p.name or "") if isinstance(p, Affine) else None
        if r is None or (names(r.lower) | names(r.upper)) - sizes.keys():
            continue
        first, last = evaluate(r.lower, sizes), evaluate(r.upper, sizes) - 1
        if v < first:
            return f", because {line} starts at {r.index} = {first}"
        if v > last:
            return f", because {line} ends at {r.index} = {last}" if last >= first else f", because {line} runs over nothing"
    here = {p.name: v for p, v in zip(s.target.index, at, strict=True) if isinstance(p, Affine) and p.name in ranges}
    said = s.span.text.partition(" where ")[2].strip() if s.span else ""
    for c in s.where if said else ():
        if isinstance(c, Test) and expr_names(c) <= {*here, *sizes} and any(evaluate(t, sizes | here) < 0 for t in c.tests):
            return f", because {line} writes only `where {said}`"
    return ""


def _element(t: Tensor, at: tuple[int, ...]) -> str:
    return f"{t.name}[{', '.join(map(str, at))}]" if at else t.name


def _of(t: Tensor, sizes: dict[str, int], o: Places | None = None, s: Stmt | None = None) -> str:
    """` when N = 1`: the sizes in the shape of `t`, and those of the ranges of `s`."""
    used = {n for e in t.shape for n in names(e)}
    if o is not None and s is not None:
        used |= {n for r in o.step(s).ranges for n in names(r.lower) | names(r.upper)}
    relevant = {n: v for n, v in sizes.items() if n in used}
    return f", when {equations(relevant)}" if relevant else ""


# --- written, in order -----------------------------------------------------------------------------------------------


def written(o: Places) -> Iterator[Fault]:
    missing = {t.name: o.unwritten(t.name) for t in o.op.tensors if t.role != "in"}
    for a in o.reads:
        holes = missing.get(a.load.source)
        if holes is None or holes.is_empty():
            continue
        bad = a.place.intersect_range(holes).range()
        if not bad.is_empty():
            sizes, at = smallest(bad)
            conditions = [c for s in o.op.steps_of(a.load.source) for c in _conditions(s)]
            exists = f"; it exists `where {', '.join(dict.fromkeys(conditions))}`" if conditions else ""
            when = _of(a.tensor, sizes, o, a.stmt).removeprefix(",")
            yield fail("E324", f"`{a.load.source}` is read where it is not written: {_element(a.tensor, at)}{when}{exists}",
                       a.load.span or o.step(a.stmt).span)


def _conditions(s: Step) -> tuple[str, ...]:
    """The conditions of a step, as the user wrote them where that is known."""
    if not s.where:
        return ()
    text = s.span.text.partition(" where ")[2].strip() if s.span else ""
    return (text,) if text else tuple(map(str, s.where))


def in_order(o: Places) -> Iterator[Fault]:
    found = disorder(o)
    if found is None:
        return
    s = found.stmt
    span = s.target.span or o.step(s).span
    if not found.cycle:
        yield fail("E325", f"no order of the elements of `{s.target.source}` was found", span,
                   hint="read only elements that come earlier along one index")
        return
    needs = [f"{a} needs {b}" for a, b in found.cycle]
    used = {n for d in found.stmts for r in o.step(d).ranges for n in names(r.lower) | names(r.upper)}
    relevant = {n: v for n, v in found.sizes.items() if n in used}
    when = f", when {equations(relevant)}" if relevant else ""
    yield fail("E323", f"`{s.target.source}` has no legal order: {', and '.join(needs)}{when}", span)


CLAIMS: tuple[tuple[str, Check], ...] = (
    ("every read is inside its tensor", inside_reads),
    ("every write is inside its tensor", inside_writes),
    ("no element is assigned twice", once),
    ("every output is written in full", in_full),
    ("what is read of a temporary is written", written),
    ("there is an order in which to compute", in_order),
)
