"""Calls of sizes that are new, in a form that is not: what an operator keeps of a form, so that machine code binds them.

A form is what calls have in common that differ in sizes alone: types, dtypes, ranks, which extents are 0 or 1, which dimensions
lie one after the other. What it takes to choose a kernel are sizes then, and a plan for that kernel serves them all: its record
has a function which checks what binding checks (runtime/entry_sizes.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyop.ir.op import Op
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.known import Merged
from polyop.rewrite.flatten import products
from polyop.rewrite.regimes.regimes import answers, as_it_lies, with_answers
from polyop.runtime import entry, entry_load, threads
from polyop.runtime.arrays import View
from polyop.runtime.bind import Bound
from polyop.runtime.call import LONG_POINTS, CallPlan
from polyop.runtime.entry import Record
from polyop.runtime.entry_table import Front
from polyop.runtime.estimate import SERIAL, Count, boxes, elements_of, points_of
from polyop.runtime.layout import layout
from polyop.runtime.loans import Key, is_close, price_of, price_without

Given = tuple[tuple[Any, ...], tuple[Any, ...], Mapping[str, Any]]
"""The values of a call in the order of parameters, and its arguments and keywords as they were given."""

LOOKS = 4096
"""Looks that a form remembers."""

Choice = tuple[Key, bool, bool]
"""What decides about a record beside the form: its kernel, whether several threads run, and `Form.lasts`."""


@dataclass(eq=False, slots=True)
class Wish:
    """What calls of a form ask for whose sizes answer all questions alike.

    taken   what carries them out where there are so many kernels as `made` says: the one asked for, another one, or none
    """

    asked: Key
    made: int = 0
    taken: Key | None = None


@dataclass(eq=False, slots=True)
class Form:
    """What is known of calls of one form.

    given     (size, which value of a call, which of its dimensions) of sizes that arrays show; `known`: those of the form itself
    views     how the arrays of the first such call lay, without their memory
    points    how much such a call computes, and `elements`: how many its arrays have together
    is_counted  whether the function of sizes finds out how much it is
    records   what carries such calls out
    wishes    what calls ask for, by what `answers` says of their sizes
    looks     of calls that the form has carried out: one that comes again is worth a plan of its own
    """

    merged: Merged
    given: tuple[tuple[str, int, int], ...]
    known: Mapping[str, int]
    views: Mapping[str, View]
    points: Count
    elements: Count
    is_counted: bool
    records: dict[Choice, Record] = field(default_factory=dict)
    looks: set[Any] = field(default_factory=set)
    wishes: dict[tuple[Any, ...], Wish] = field(default_factory=dict)
    _units: dict[tuple[str, ...], Layout] = field(default_factory=dict)

    @property
    def op(self) -> Op:
        """The Op as its kernels see it."""
        return self.merged.flat.op

    def sizes(self, values: Sequence[Any]) -> dict[str, int]:
        """The sizes of a call, if they agree; also those of dimensions that are one to its kernel."""
        found = {**self.known, **{n: values[k].shape[d] for n, k, d in self.given}}
        return found | products(self.merged.flat.sizes, found) if self.merged.flat.sizes else found

    def lasts(self, is_long: bool) -> bool:
        """Whether a record is for calls that take long alone: most find that out by themselves."""
        return is_long and not self.is_counted

    def units(self, ones: tuple[str, ...]) -> Layout:
        """The layout of a call, where sizes in `ones` are 1."""
        found = self._units.get(ones)
        if found is None:
            found = self._units[ones] = layout(self.op, self.views, ones)
        return found

    def wants(self, said: tuple[Any, ...], wish: Wish) -> Wish:
        """Remember what calls ask for whose sizes answer so."""
        if len(self.wishes) >= LOOKS:
            self.wishes.clear()
        self.wishes[said] = wish
        return wish

    def seen(self, look: Any) -> None:
        """Remember a call that was carried out."""
        if len(self.looks) >= LOOKS:
            self.looks.clear()
        self.looks.add(look)


def form_of(plan: CallPlan, merged: Merged, seen: Bound) -> Form | None:
    """The form of the call that `plan` was made for, which its kernel saw as `seen`; None if arrays do not show all sizes."""
    op, positions = plan.op, {n: k for k, n in enumerate(plan.names)}
    known = {p.name: plan.sizes[p.name] for p in op.params if p.is_size}
    given: dict[str, tuple[int, int]] = {}
    for t in op.inputs:
        for d, e in enumerate(t.shape):
            if e.name is not None and e.name not in known and t.name in positions:
                given.setdefault(e.name, (positions[t.name], d))
    if set(op.sizes) - given.keys() - known.keys():
        return None
    views = {n: replace(v, address=0, owner=None, memory=None) for n, v in seen.views.items()}
    inside, shown = merged.flat.op, tuple((n, *at) for n, at in given.items())
    return Form(merged, shown, known, views, points_of(inside), elements_of(inside), boxes(op) is not None)


def wish_of(form: Form, sizes: dict[str, int], options: Options, target: Target) -> Wish:
    """What a call of these sizes asks for, all of them at least 1, and what carries it out; `options`: of the operator."""
    merged = form.merged
    found = answers(merged.regimes, sizes, options, target, threads.get_num_threads())
    said = tuple(found.values())
    wish = form.wishes.get(said)
    if wish is None:
        own = with_answers(options, found)
        units = form.units(own.ones)
        wish = form.wants(said, Wish((units, as_it_lies(merged.regimes, units, own))))
    if wish.made != len(merged.kernels):
        wish.made, wish.taken = len(merged.kernels), wish.asked
        if wish.asked not in merged.kernels:
            lending = merged.lender(wish.asked, form.units, options)
            wish.taken = lending if lending != wish.asked else None
    return wish


def carried(form: Form, native: entry_load.Code, front: Front, given: Given, look: Any, options: Options, target: Target) -> Any:
    """The result of a call in a known form; NotImplemented, if it needs the long way.

    What the long way would do is done or left alone: the kernel is the same, and so is what it has lent.
    """
    values, args, keywords = given
    merged, sizes = form.merged, form.sizes(values)
    if min(sizes.values(), default=0) < 1:
        return NotImplemented
    points, few = form.points(sizes), merged.few(sizes)
    without = price_without(form.elements(sizes), points) if few else 0.0
    if few and not merged.ends.would_lend(few, look, without):
        return NotImplemented
    wish = wish_of(form, sizes, options, target)
    asked, taken, price = wish.asked, wish.taken, 0.0
    if taken is None:
        return NotImplemented
    if taken is not asked:
        price = price_of(form.elements(sizes), points, asked, taken)
        if not merged.loans.would_lend(asked, look, price):
            return NotImplemented
    several = points >= SERIAL and threads.get_num_threads() > 1
    record = form.records.get((taken, several, form.lasts(points >= LONG_POINTS)))
    result = native.carry(front, record, *args, **keywords) if record else NotImplemented
    if result is NotImplemented:
        return result
    if taken is asked:
        merged.loans.last = look
    else:
        merged.loans.lends(asked, look, price)
    form.seen(look)
    if few:
        merged.ends.lends(few, look, without)
    elif record and is_close(taken[1], asked[1]):
        entry.vary(native, front, record, args, keywords)
    return result
