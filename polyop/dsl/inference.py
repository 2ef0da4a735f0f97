"""The ranges of all statements, in the order in which they can be known: one statement's shape is another's range."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from polyop.dsl import syntax as s
from polyop.dsl.draft import Draft, Holder, OperatorCall
from polyop.dsl.header import Header
from polyop.dsl.intervals import Interval, greatest, larger, least, smaller
from polyop.dsl.ranges import Inference, Place, infer, reads
from polyop.dsl.statements import Body, not_an_index
from polyop.dsl.steps import box_shape
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Apply, Expr, Load, loads, names
from polyop.ir.op import Step, Tensor
from polyop.ir.span import Span

Inliner = Callable[[OperatorCall, "State"], "Inlined"]


@dataclass(frozen=True, slots=True)
class Inlined:
    """An operator written out: its steps and temporaries, the shapes of its results, and what must hold."""

    steps: tuple[Step, ...]
    tensors: tuple[Tensor, ...]
    shapes: tuple[tuple[Affine, ...], ...]
    facts: tuple[Expr, ...]


@dataclass(slots=True)
class State:
    """What is known so far about one operator. Keys are names in the Op."""

    header: Header
    body: Body
    shapes: dict[str, tuple[Affine, ...] | None]
    facts: tuple[Affine, ...]
    sizes: frozenset[str]
    taken: set[str]
    boxes: dict[int, dict[str, Interval]] = field(default_factory=dict)
    inlined: dict[int, Inlined] = field(default_factory=dict)

    @property
    def holders(self) -> Mapping[str, Holder]:
        """By the name in the Op; an `inout` under both of its names."""
        out = {h.name: h for h in self.body.holders.values()}
        return out | {h.result: h for h in self.body.holders.values() if h.result}


def infer_all(state: State, inline: Inliner) -> None:
    items = list(enumerate(state.body.drafts))
    pending = dict(items)
    while pending:
        if _round(pending, state, inline, True) or _round(pending, state, inline, False):
            continue
        if not _from_readers(pending, state):
            raise _no_range(pending, state)
        _settle(pending, state)


def _round(pending: dict[int, Draft | OperatorCall], state: State, inline: Inliner, patient: bool) -> bool:
    """Try every pending statement; an impatient round stops at the first success, for better knowledge."""
    for n, item in list(pending.items()):
        _attempt(n, item, state, inline, patient)
        if not patient and (n in state.boxes or n in state.inlined):
            break
    return _settle(pending, state)


def _settle(pending: dict[int, Draft | OperatorCall], state: State) -> bool:
    """Drop what is known now, and give a temporary its shape once all that write it are known."""
    done = [n for n in pending if n in state.boxes or n in state.inlined]
    for n in done:
        del pending[n]
    for name, holder in state.body.holders.items():
        if holder.role != "temp" or state.shapes[holder.name] is not None:
            continue
        writers = [(n, d) for n, d in enumerate(state.body.drafts) if isinstance(d, Draft) and d.target == holder.name]
        if writers and all(n in state.boxes for n, _ in writers):
            boxes = [box_shape(d.at, state.boxes[n], d.left, name) for n, d in writers]
            shape = boxes[0]
            for other in boxes[1:]:
                shape = tuple(larger(a, b, state.facts) for a, b in zip(shape, other, strict=True))
            state.shapes[holder.name] = shape
    return bool(done)


def _attempt(n: int, item: Draft | OperatorCall, state: State, inline: Inliner, patient: bool) -> None:
    """Find the ranges of one statement; a patient try waits until every tensor it reads has a shape."""
    if n in state.boxes or n in state.inlined:
        return
    if isinstance(item, OperatorCall):
        if all(state.shapes.get(x) is not None for x in _arguments(item, state)):
            found = inline(item, state)
            state.inlined[n] = found
            for name, shape in zip(item.targets, found.shapes, strict=True):
                holder = state.body.holders[name]
                if state.shapes[holder.name] is None:
                    state.shapes[holder.name] = shape
        return
    if patient and any(state.shapes.get(x, ()) is None for x in _read(item)):
        return
    box, missing = infer(item, _known(item, state))
    if not missing:
        state.boxes[n] = box


def _known(d: Draft, state: State) -> Inference:
    pieces = sum(isinstance(x, Draft) and x.target == d.target and x.reduce is None for x in state.body.drafts) > 1
    shown = {h.name: n for n, h in state.body.holders.items()} | {h.result: n for n, h in state.body.holders.items() if h.result}
    return Inference(state.shapes, state.sizes, state.facts, state.shapes.get(d.target) is not None, pieces,
                     d.reduce is not None or state.holders[d.target].role == "inout", shown)


def _read(d: Draft) -> set[str]:
    """The tensors that bound an index of `d`: those behind an `else` do not."""
    found: set[str] = set()
    stack: list[Expr] = [d.expr, *d.filters, *(p for p in d.at if not isinstance(p, Affine))]
    while stack:
        e = stack.pop()
        if isinstance(e, Apply) and e.fn == "otherwise":
            stack += [e.args[1], *(p for x in e.args[:1] if isinstance(x, Load) for p in x.index if not isinstance(p, Affine))]
            continue
        if isinstance(e, Load):
            found.add(e.source)
        if isinstance(e, Apply):
            stack += e.args
        elif isinstance(e, Load):
            stack += [p for p in e.index if not isinstance(p, Affine)]
    for h in d.hidden:
        found |= _read(h)
    return found - {h.target for h in d.hidden}


def _arguments(call: OperatorCall, state: State) -> list[str]:
    given = (*call.call.args, *(x for _, x in call.call.keywords))
    holders = state.body.holders
    return [holders[a.name].name for a in given if isinstance(a, s.Name) and a.name in holders]


def _from_readers(pending: Mapping[int, Draft | OperatorCall], state: State) -> bool:
    """A temporary's index that nothing else bounds runs over what its readers read."""
    for n, d in pending.items():
        if not isinstance(d, Draft):
            continue
        box, missing = infer(d, _known(d, state))
        for index in missing:
            places = [k for k, p in enumerate(d.at) if isinstance(p, Affine) and p.name == index]
            hull = _hull(d.target, places[0], state) if places else None
            if hull is not None:
                box[index] = hull
        if all(i in box for i in missing):
            state.boxes[n] = box
            return True
    return False


def _hull(target: str, dimension: int, state: State) -> Interval | None:
    hull: Interval | None = None
    for n, box in state.boxes.items():
        d = state.body.drafts[n]
        assert isinstance(d, Draft)
        for part in _with_hidden(d):
            for place in _reads_of(part, target):
                p = place.index[dimension]
                if isinstance(p, Affine) and (names(p) - state.sizes) <= box.keys():
                    new = Interval(larger(least(p, box), Affine(), state.facts), greatest(p, box) + 1)
                    hull = new if hull is None else Interval(smaller(hull.lower, new.lower, state.facts),
                                                             larger(hull.upper, new.upper, state.facts))
    return hull


def _with_hidden(d: Draft) -> list[Draft]:
    return [d, *(x for h in d.hidden for x in _with_hidden(h))]


def _reads_of(d: Draft, target: str) -> list[Load]:
    return [x for e in (d.expr, *d.filters) for x in loads(e) if x.source == target]


def _no_range(pending: Mapping[int, Draft | OperatorCall], state: State) -> Exception:
    for d in pending.values():
        if isinstance(d, Draft):
            _, missing = infer(d, _known(d, state))
            if missing:
                indices = list(dict.fromkeys(m.split("@")[0] for m in missing))
                unbounded = [i for i in indices if _may_be_index(d, i)]
                if indices[0] in unbounded:
                    return _unbounded(d, unbounded, state)
                return not_an_index(indices[0], _first_span(d, indices[0]), state.header.scope)
    call = next(d for d in pending.values() if isinstance(d, OperatorCall))
    return fail("E308", f"the shapes of what `{call.name}` is given depend on its own result", call.span)


def _may_be_index(d: Draft, index: str) -> bool:
    return index in d.left_names or any(index in _names_of_positions(x) for x in _with_hidden(d))


def _unbounded(d: Draft, indices: Sequence[str], state: State) -> Exception:
    """E307 of all `indices`, with the ranges that the user most likely means: the dimensions in which they stand alone."""
    alone = dict[str, Place]()
    for p in reads(d, state.shapes):
        index = p.at.name.split("@")[0] if p.at.name is not None else ""
        if index in indices and p.span is not None:
            alone.setdefault(index, p)
    ranges = ", ".join(f"{i} in 0:{alone[i].extent if i in alone else 'N'}" for i in indices)
    what = f"nothing gives {' or '.join(f'`{i}`' for i in indices)} a range"
    first = alone.get(indices[0])
    if first is None or first.span is None:
        return fail("E307", what, _first_span(d, indices[0]), hint=f"say it: `where {ranges}`")
    return fail("E307", f"{what}: `{first.span.text}` is read only where a condition on `{indices[0]}` holds",
                _first_span(d, indices[0]), hint=f"say it at the end of the statement: `where {ranges}`")


def _names_of_positions(d: Draft) -> set[str]:
    return {
        n.split("@")[0]
        for e in (d.expr, *d.filters)
        for x in loads(e)
        for p in x.index
        if isinstance(p, Affine)
        for n in names(p)
    }


def _first_span(d: Draft, index: str) -> Span | None:
    """Where `index` stands first in the text of the statement."""
    span = d.span
    if span is None:
        return None
    for row in range(span.line, span.end_line + 1):
        line = span.source.line(row)
        start = span.column - 1 if row == span.line else 0
        found = re.compile(rf"(?<!\w){re.escape(index)}(?!\w)").search(line, start)
        if found:
            return Span(span.source, row, found.start() + 1, row, found.end() + 1)
    return span
