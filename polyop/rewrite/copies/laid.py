"""What a step reads or makes beside one large tensor, which has all of its indices, on copies that lie as that one does.

    Z[a] += X[c, b] * Y[a, b, c]          becomes     x[b, c] = X[c, b];  Z[a] += x[b, c] * Y[a, b, c]
    Z[c, b] += X[a] * Y[a, b, c]          becomes     z[b, c] += X[a] * Y[a, b, c];  Z[c, b] = z[b, c]
    Z[a, b, c] = X[c, b] * Y[a]           becomes     x[b, c] = X[c, b];  Z[a, b, c] = x[b, c] * Y[a]
    Z[a, b, c] = X[a, c, b] * Y[b, c, a]  becomes     y[a, b, c] = Y[b, c, a];  Z[a, b, c] = X[a, c, b] * y[a, b, c]

Lanes run along what has unit stride in the large tensor, which is streamed. What has that index, too, but unit stride along
another one, would give a number of each line, as often as it is read; it is small, and a copy of it goes by squares, once.
What is as large goes by squares, too, while lanes run along it, but squares of one other index alone: what lies along a third one
is copied.
The text says how arrays of a call lie (`ordered.py`), but for those without unit stride.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from polyop.ir.expr import Affine, Load, loads, volume
from polyop.ir.op import Op, Step
from polyop.ir.options import Layout
from polyop.rewrite.folds import is_box, plain_indices
from polyop.rewrite.instead import Instead, through_copies, with_steps
from polyop.rewrite.names import all_names

OPERAND = 2, 8
"""Elements of the large tensor for each of a copy, and elements along its lanes, from which one of what is added up pays."""
RESULT = 2, 6
"""The same for one of the sums."""
PLAIN = 4, 4
"""The same where nothing is added up."""
THIRD = 1, 8
"""The same of what lies along a third index."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A tensor beside a large one.

    name   its own; beside: that of the large one
    at     the dimension of either that the index is which the large one ends in
    uses   the extents of the loops that use an element of it
    along  that of this index
    least  `OPERAND`, `RESULT`, `PLAIN` or `THIRD`
    """

    name: str
    beside: str
    at: tuple[int, int]
    uses: tuple[Affine, ...]
    along: Affine
    least: tuple[int, int]


def find_beside(op: Op) -> tuple[Beside, ...]:
    """What of `op` is so beside something larger, wherever it may lie."""
    out = []
    for s in op.steps:
        large, small, third = _beside(op, s)
        extents = {r.index: r.upper for r in s.ranges}
        for x in (*small, *third):
            own, lanes = plain_indices(x) or (), (plain_indices(large) or ())[-1]
            uses = tuple(e for i, e in extents.items() if i not in own)
            least = RESULT if x is s.target else OPERAND if s.reduce else THIRD if x in third else PLAIN
            out.append(Beside(x.source, large.source, (own.index(lanes), len(large.index) - 1), uses, extents[lanes], least))
    return tuple(out)


def to_lay(found: Sequence[Beside], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Names of those of which copies pay in a call of these sizes, if they lie across."""
    def pays(x: Beside) -> bool:
        return volume(x.uses, sizes) >= x.least[0] and volume((x.along,), sizes) >= x.least[1]

    return tuple(sorted({x.name for x in found if pays(x)}))


def across(found: Sequence[Beside], units: Layout, names: Collection[str]) -> tuple[str, ...]:
    """Those of `names` that do, in memory, while the large one lies as the text has it."""
    lying = {x.name for x in found if units.unit(x.beside) == x.at[1] and units.unit(x.name) != x.at[0]}
    return tuple(n for n in names if n in lying)


def laid_alongside(op: Op, names: Collection[str]) -> Op:
    """`op` with copies of the tensors `names` where they are beside a larger one."""
    taken = all_names(op)

    def instead(s: Step) -> Instead | None:
        large, *beside = _beside(op, s)
        found = tuple(x for part in beside for x in part if x.source in names)
        if not found:
            return None
        lying = plain_indices(large) or ()
        return through_copies(s, {x: [i for i in lying if i in (plain_indices(x) or ())] for x in found}, "laid", taken)

    return with_steps(op, instead)


def _beside(op: Op, s: Step) -> tuple[Load, tuple[Load, ...], tuple[Load, ...]]:
    """The large tensor of `s`, the target of a plain step, and what else of several dimensions has the index that it ends in.

    What is smaller, that is; then what ends in a third index, where something as large ends in another, and goes by squares.
    A temporary is none: it may have no memory, where its sums go on to `s` in registers.
    """
    kept, reads = plain_indices(s.target), tuple(dict.fromkeys(loads(s.expr)))
    if kept is None or s.where or op.updates or len(op.steps_of(s.target.source)) != 1 or not is_box(op, s):
        return s.target, (), ()
    at = {x: plain_indices(x) or () for x in (*reads, s.target)}
    whole = [x for x in (reads if s.reduce else (s.target,)) if {*at[x]} == {*s.indices} and op.tensor(x.source).role != "temp"]
    if not whole or not at[whole[0]]:
        return s.target, (), ()
    large, unit = whole[0], at[whole[0]][-1]

    inside = [x for x in (*reads, s.target) if unit in at[x] and len(at[x]) > 1]
    ends = [at[x][-1] for x in reads if s.reduce is None and {*at[x]} == {*s.indices} and at[x][-1] != unit]
    squares = max(ends, key=ends.count, default=unit)
    third = tuple(x for x in inside if ends and at[x][-1] not in (unit, squares) and op.tensor(x.source).role == "in")
    roles = {x: "out" if x is s.target else "in" for x in inside if s.reduce or x is not s.target}
    small = (x for x, role in roles.items() if len(at[x]) < len(s.indices) and op.tensor(x.source).role == role)
    return large, tuple(x for x in small if x not in third), third
