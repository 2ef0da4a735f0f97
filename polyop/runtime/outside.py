"""What a call is told whose data point outside a tensor."""

from __future__ import annotations

from polyop.ir import spelled
from polyop.ir.deep import with_room
from polyop.ir.errors import CallError, PolyopError
from polyop.ir.expr import Apply, Load, is_computed, loads
from polyop.ir.module import Signature
from polyop.ir.op import Op
from polyop.ir.reference import first_outside
from polyop.ir.words import users_words
from polyop.runtime import arrays
from polyop.runtime.bind import Bound
from polyop.runtime.estimate import work

_SLOW = 20_000  # points beyond which evaluating the operator again, one element at a time, takes too long for a message


def outside(signature: Signature, bound: Bound, status: int) -> CallError:
    """The report for the site that a kernel's `status` numbers: the first position that leaves its tensor, if it is near."""
    return report(bound, signature.sites[status - 1])


def report(bound: Bound, site: Load) -> CallError:
    """The report for a computed position of `site`, in the dimensions of the text."""
    bound = bound.said or bound
    return arrays.refuse("E610", users_words(bound.op, _first(bound) or _plain(bound, site)))


def late(op: Op, site: Load, device: str) -> CallError:
    """The report for a computed position of an earlier call on a device, whose arrays may be gone."""
    return arrays.refuse("E610", users_words(op, f"an earlier call of `{op.name}` on {device}: {_verdict(op, site)}"))


def _first(bound: Bound) -> str:
    """`ids[1] = 7 reads outside ...`; empty if that takes too long, or the inputs have been overwritten."""
    op = bound.op
    if any(bound.views[i].address == bound.views[o].address for i, o in op.updates) or work(op, bound.sizes) > _SLOW:
        return ""
    given = {t.name: arrays.as_numpy(bound.views[t.name]) for t in op.inputs}
    try:
        found = with_room(lambda: first_outside(op, bound.sizes, bound.scalars, given))
    except PolyopError:
        return ""
    return str(found) if found else ""


def _plain(bound: Bound, site: Load) -> str:
    """`E[ids[b], d]` reads outside `E`, which has V = 5 rows; `ids` has values from 0 to 7."""
    op = bound.op
    load, text = _in_text(op, site), _verdict(op, site)
    if load.source not in bound.views:
        return text
    shape = bound.views[load.source].shape
    computed = [(d, p) for d, p in enumerate(load.index) if is_computed(p)]
    if len(computed) != 1:
        return f"{text}, which has shape {shape}"
    d, p = computed[0]
    while isinstance(p, Apply) and p.fn in ("cast", "select"):  # a select is what a `where` on data makes of a position
        p = p.args[p.fn == "select"]
    extent = spelled.extent(op.tensor(load.source).shape[d])
    size = f"{shape[d]}" if extent == str(shape[d]) else f"{extent} = {shape[d]}"
    text += f", which has {size} {'rows' if d == 0 else f'elements in dimension {d}'}"
    if isinstance(p, Load) and p.source in {t.name for t in op.inputs}:
        values = arrays.as_numpy(bound.views[p.source])
        if values.size:
            text += f"; `{p.source}` has values from {values.min()} to {values.max()}"
    return text


def _verdict(op: Op, site: Load) -> str:
    load = _in_text(op, site)
    verb = "writes" if load.source in {t.name for t in op.outputs} else "reads"
    return f"`{load.span.text if load.span else load}` {verb} outside `{load.source}`"


def _in_text(op: Op, site: Load) -> Load:
    """The access of the Op that `site` carries out: the kernel's has other iterators, and shares of a sum another target."""
    there = [x for s in op.steps for x in (s.target, *loads(s.expr))]
    same = [x for x in there if site.span is not None and (x.source, x.span) == (site.source, site.span)]
    if same:
        return same[0]
    found = [x for x in there if x.source == site.source and _alike(x, site)]
    if all(t.name != site.source for t in op.tensors):
        found += [x for x in there if _data(x) and _data(x) == _data(site)]
    return found[0] if found else site


def _data(x: Load) -> list[str]:
    """The tensors that say where `x` is."""
    return [y.source for y in loads(x)[1:]]


def _alike(a: Load, b: Load) -> bool:
    """Whether as many positions are computed; a kernel may have the dimensions in another order."""
    return sum(map(is_computed, a.index)) == sum(map(is_computed, b.index))
