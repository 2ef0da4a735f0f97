"""Drafts -> ranges -> steps, in the order in which they can be known; the whole becomes an Op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyop.dsl.conditions import test
from polyop.dsl.draft import Draft, OperatorCall
from polyop.dsl.existence import Existence, existing
from polyop.dsl.finish import filled, finished, untouched
from polyop.dsl.header import Header
from polyop.dsl.inference import Inliner, State, infer_all
from polyop.dsl.intervals import at_least_zero
from polyop.dsl.statements import Body
from polyop.dsl.steps import Built, Setting, steps_of
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Const, Expr, Quasi, Test
from polyop.ir.op import Op, Step, Tensor


def assemble(header: Header, body: Body, inline: Inliner) -> Op:
    """Raises UserError E3xx."""
    scope = header.scope
    sizes = frozenset(scope.safe.get(n, n) for n in scope.sizes)
    known = [t for f in header.facts if isinstance(f, Test) for t in f.tests]
    for h in scope.tensors.values():
        for e in h.shape or ():
            known += [t for f in _not_negative(e, known) if isinstance(f, Test) for t in f.tests]
    facts = tuple(known)
    state = State(header, body, {}, facts, sizes, set(body.names))
    for h in body.holders.values():
        state.shapes[h.name] = h.shape
        if h.result:
            state.shapes[h.result] = h.shape
    infer_all(state, inline)
    return _op(state)


def _op(state: State) -> Op:
    scope = state.header.scope
    shapes = {n: x for n, x in state.shapes.items() if x is not None}
    setting = Setting(shapes, frozenset(h.name for h in state.body.holders.values() if h.role in ("in", "inout")),
                      state.sizes, state.facts, state.taken, _existing(state))
    tensors: dict[str, Tensor] = {}
    updates: list[tuple[str, str]] = []
    results: list[Tensor] = []
    for h in state.body.holders.values():
        assert h.dtype is not None
        shape = shapes.get(h.name)
        if shape is None:
            raise fail("E309", f"`{h.name}` is never written", h.span)
        if h.role == "inout":
            tensors[h.name] = Tensor(h.name, h.dtype, shape, "in", h.doc, h.span)
            results.append(Tensor(h.result, h.dtype, shape, "out", h.doc, h.span))
            updates.append((h.name, h.result))
        elif h.role == "out":
            results.insert(
                sum(t.name not in {r for _, r in updates} for t in results), Tensor(h.name, h.dtype, shape, "out", h.doc, h.span)
            )
        else:
            tensors[h.name] = Tensor(h.name, h.dtype, shape, h.role, h.doc, h.span)
    tensors |= {t.name: t for t in results}
    built = _all_steps(state, setting, tensors)
    written = {x.target.source for x in built.steps}
    for t in (*results, *(x for x in tensors.values() if x.role == "temp")):
        if t.name not in written:
            raise fail("E309", f"`{t.name}` is never written", t.span)
    every = [*(t for t in tensors.values() if t.role == "in"), *results,
             *(t for t in tensors.values() if t.role == "temp"), *built.tensors]
    facts = list(state.header.facts)
    facts += [f for x in state.inlined.values() for f in x.facts]
    for t in every:
        for e in t.shape:
            facts += _not_negative(e, [q for f in facts if isinstance(f, Test) for q in f.tests])
    unique = tuple(f for f in dict.fromkeys(facts) if not (isinstance(f, Const) and f.value))
    return Op(scope.op.name, tuple(every), state.header.params, tuple(sorted(state.sizes)), built.steps, unique, tuple(updates),
              scope.op.doc, scope.op.span, _names(state, built.tensors))


def _names(state: State, hidden: Sequence[Tensor]) -> tuple[tuple[str, str], ...]:
    """What the user calls the names of the Op: those made safe, results of `inout`s, and sums on the way to a tensor."""
    found = {inner: name for name, inner in state.header.scope.safe.items() if name != inner}
    for name, h in state.body.holders.items():
        if h.result:
            found[h.result] = name
    for t in hidden:
        owners = [(h.name, n) for n, h in state.body.holders.items() if t.name.startswith(f"{h.name}_")]
        if owners and t.span is not None and all(t not in x.tensors for x in state.inlined.values()):
            found[t.name] = max(owners)[1]
    return tuple(sorted(found.items()))


def _existing(state: State) -> dict[str, Existence]:
    """Where the temporaries of inferred shape are written."""
    drafts = {n: d for n, d in enumerate(state.body.drafts) if isinstance(d, Draft)}
    called = {t for d in state.body.drafts if isinstance(d, OperatorCall) for t in d.targets}
    inferred = [h.name for n, h in state.body.holders.items() if h.role == "temp" and h.shape is None and n not in called]
    return existing(drafts, state.boxes, inferred, state.sizes)


def _not_negative(extent: Affine, facts: Sequence[Affine]) -> list[Expr]:
    """`extent >= 0`, if that is not plain; `floor(x / d) + c >= 0` is said as `x + c d >= 0`."""
    if at_least_zero(extent, facts):
        return []
    if len(extent.terms) == 1 and extent.terms[0][1] == 1:
        atom = extent.terms[0][0]
        if isinstance(atom, Quasi) and atom.op == "div":
            return _not_negative(atom.args[0] + atom.args[1].const * extent.const, facts)
    return [test(extent)]


def _all_steps(state: State, setting: Setting, tensors: Mapping[str, Tensor]) -> Built:
    """Steps in text order; those that finish a tensor come after the last that writes it."""
    per: dict[str, list[tuple[int, Built]]] = {}
    out: list[tuple[int, Built]] = []
    for n, d in enumerate(state.body.drafts):
        if isinstance(d, OperatorCall):
            out.append((n, Built(state.inlined[n].steps, state.inlined[n].tensors)))
            continue
        built = steps_of(d, state.boxes[n], tensors[d.target], setting)
        per.setdefault(d.target, []).append((n, built))
    for name, group in per.items():
        out += _group(name, group, state, setting, tensors[name])
    total = Built()
    for _, built in sorted(out, key=lambda x: x[0]):
        total = total + built
    return total


def _group(name: str, group: list[tuple[int, Built]], state: State, setting: Setting, tensor: Tensor) -> list[tuple[int, Built]]:
    holder = state.holders[name]
    own = tuple(b.steps[-1] for _, b in group)
    inner = [(n, Built(b.steps[:-1], b.tensors)) for n, b in group]
    before = holder if holder.role == "inout" else None
    assert holder.dtype is not None
    if own[0].reduce is not None:
        first = state.body.drafts[group[0][0]]
        is_argument = isinstance(first, Draft) and first.is_argument
        if own[0].expr.dtype != tensor.dtype or before is not None or is_argument:
            finish = finished(own, tensor, before, is_argument, setting)
            return [*inner, (group[-1][0], finish)]
        if tensor.role == "temp" and holder.shape is not None:
            steps = filled(own, tensor, state.sizes)
            if len(steps) > len(own):
                return [(group[0][0], Built(steps[:1])), *_interleave(inner, own)]
        return _interleave(inner, own)
    if before is not None:
        copy = untouched(own, tensor, before, holder.dtype, setting)
        if copy is not None:
            return [*_interleave(inner, own), (group[-1][0], Built((copy,)))]
    return _interleave(inner, own)


def _interleave(inner: list[tuple[int, Built]], own: Sequence[Step]) -> list[tuple[int, Built]]:
    return [(n, b + Built((step,))) for (n, b), step in zip(inner, own, strict=True)]
