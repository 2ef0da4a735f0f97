"""What calls of an Op have shown so far: which of its dimensions go together, and the kernels that they have needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, TypeVar

from polyop.cached import cached_property
from polyop.ir.module import HostStep, Proof
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.rewrite.copies.batchfirst import find_sides, with_batches_first
from polyop.rewrite.copies.batchfirst import pays as pays_in_batches
from polyop.rewrite.copies.matrices import Matrices, find_matrices, in_matrices, in_one_piece
from polyop.rewrite.copies.matrices import numbers as numbers_of
from polyop.rewrite.copies.strung import KNOWN, End, Row, few_of, find_ends, find_rows, lying, strung
from polyop.rewrite.flatten import Chain, Flat, Group, allowed, flatten, in_arrays, products
from polyop.rewrite.once import terms_alone
from polyop.rewrite.ones import fix_sizes, without_single
from polyop.rewrite.ordered import Orders, in_order, orders
from polyop.rewrite.regimes.questions import Questions, questions, windows
from polyop.rewrite.regimes.regimes import Regimes, regimes_of
from polyop.rewrite.regimes.tile_regimes import Values
from polyop.rewrite.sums.added import added_behind
from polyop.rewrite.sums.joined import joined
from polyop.rewrite.windows.taps import Taps, along_taps, find_taps, pays
from polyop.runtime import call, store
from polyop.runtime.bind import Bound
from polyop.runtime.interpreted import Interpreted
from polyop.runtime.kernel import Kernel
from polyop.runtime.layout import layout
from polyop.runtime.loans import Key, Loans, everyday, lender, price_without

if TYPE_CHECKING:
    from polyop.filtering import Filtered, Filters
    from polyop.runtime.gpu.kernel import GpuKernel

T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True)
class Ends:
    """Sizes that had better be numbers in some calls; who does without so far.

    sizes    that may be few elements at the end of arrays
    groups   of sizes of dimensions that are one in these calls
    products that may become those of matrices, if all of their sizes are numbers, with these dimensions as one
    whole    the arrays of these that are in one piece
    together what each size of such dimensions is the product of
    of       what tells them from those of other forms of an Op
    """

    sizes: tuple[End, ...]
    groups: tuple[Group, ...]
    products: tuple[Matrices, ...]
    whole: frozenset[str]
    together: Mapping[str, Group]
    loans: Loans
    of: Hashable

    def few(self, sizes: Mapping[str, int]) -> Values:
        """(size, value) of those that had better be numbers in a call."""
        return self.in_products(sizes) or (few_of(self.sizes, sizes, self.groups) if self.sizes else ())

    def in_products(self, sizes: Mapping[str, int]) -> Values:
        """The same, for the sake of products alone."""
        if not self.products:
            return ()
        found = numbers_of(self.products, {**sizes, **products(self.together, sizes)}, self.whole)
        return tuple((n, sizes[n]) for m, _ in found for n in self.together.get(m, (m,)))

    def would_lend(self, few: Values, look: Hashable, price: float) -> bool:
        """Whether a call takes a kernel for any sizes in the place of one for `few`, which is not worth it yet."""
        return self.loans.would_lend((self.of, few), look, price)

    def lends(self, few: Values, look: Hashable, price: float) -> bool:
        """The same, and writes that down."""
        return self.loans.lends((self.of, few), look, price)


class Merged:
    """An Op with some of its dimensions as one, what its kernels depend on, and those that calls have needed so far.

    numbers  (size, value) of sizes that are numbers in it; ends: those that had better be in some calls
    lie      how arrays lie that do not lie as the caller's text has them
    """

    def __init__(self, flat: Flat, ends: Ends, filtered: Filtered | None = None, numbers: Values = (), lie: Orders = ()) -> None:
        self.flat = flat
        self._filtered = filtered
        self.ends, self.numbers = ends, numbers
        self.runs = call.Runs({n: d.among(dict(lie).get(n)) for n, d in self.flat.dims.items()}, self.flat.sizes)
        self.kernels: store.Memo[Kernel | Interpreted] = store.Memo()
        self.on_gpus: store.Memo[Kernel | GpuKernel | Interpreted] = store.Memo()
        self.loans = Loans()

    @cached_property
    def regimes(self) -> Regimes:
        """What to ask of calls on a CPU; filters have blocks of their own."""
        return regimes_of(self.flat.op, ("overlap",) if self._filtered else ())

    def few(self, sizes: Mapping[str, int]) -> Values:
        """(size, value) of what is a number in another Merged, which a call of these sizes had better be one of."""
        return () if self.numbers else self.ends.few(sizes)

    def proofs(self) -> tuple[Proof, ...]:
        """That it computes what its Op does, as far as this is to be proved."""
        return (self._filtered.proof,) if self._filtered else ()

    @cached_property
    def questions(self) -> Questions:
        """What to ask of calls on a GPU."""
        return questions(self.flat.op)

    def lender(self, asked: Key, units: Callable[[tuple[str, ...]], Layout], given: Options) -> Key | None:
        """Which kernel may do what is `asked`, itself or another one.

        units   the layout, given sizes that are 1; given: the options of the operator
        Notes   Nobody's kernel serves for another one's calls where inputs are frozen: the copy that it makes of them would stay.
        """
        if given.frozen:
            return None
        usual = everyday(asked[1], given)
        return lender((units(usual.ones), usual), self.kernels.keys(), given)


@dataclass(frozen=True, slots=True)
class Asked:
    """What decides, beside sizes, whether sums over windows take fewer multiplications: see `rewrite/windows/winograd.py`."""

    target: Target
    frozen: tuple[str, ...]
    threads: int


@dataclass(frozen=True, eq=False, slots=True)
class _Text:
    """An Op as calls may take it, itself a key.

    taps      its sums that may go over a window instead
    filtered  what it is, if some of its sums over windows take fewer multiplications
    ends      sizes that may be few elements at the end of its arrays
    """

    op: Op
    taps: tuple[Taps, ...]
    filtered: Filtered | None = None
    ends: tuple[End, ...] = ()


def _text(op: Op) -> _Text:
    return _Text(op, find_taps(op), None, find_ends(op))


class Known:
    """An Op, and what calls of it have shown so far; `lie`: how arrays lie that do not lie as the caller's text has them."""

    def __init__(self, op: Op, lie: Orders = ()) -> None:
        self.op = op
        self._lie = lie
        self.is_kept = False  # whether it has been said to whoever keeps Ops for other processes
        self.has_filters = False  # whether the sizes of a call say how its sums over windows are computed
        self.keeps_sums = False  # whether they are those of the text, whatever is asked for
        self.fresh = tuple(t.name for t in op.outputs if t.name not in {o for _, o in op.updates})
        behind = added_behind(terms_alone(without_single(op)))
        self._given = self._joined = _text(behind)
        together = joined(behind)
        if together is not behind:
            self._joined = _text(together)
        self._batched, self._sides = self._joined, find_sides(together)
        if self._sides:
            self._batched = _text(with_batches_first(together))
        self._filtered: store.Memo[_Text] = store.Memo()
        self._along: store.Memo[tuple[Op, tuple[str, ...]]] = store.Memo()
        self._forms: store.Memo[tuple[Op, tuple[Chain, ...], tuple[Row, ...]]] = store.Memo()
        self._flat: store.Memo[tuple[Flat, tuple[Matrices, ...]]] = store.Memo()
        self._merged: store.Memo[Merged] = store.Memo()
        self._turned: store.Memo[Known] = store.Memo()
        self._loans = Loans()

    def as_it_lies(self, bound: Bound, strict: bool = False) -> tuple[Known, Bound]:
        """The Op whose text says how the arrays of a call lie, and the same call as one of that.

        strict   whether terms are added up in the order of the text
        """
        views = bound.views
        lie = orders(self.op, {n: v.shape for n, v in views.items()}, {n: v.strides for n, v in views.items()})
        if not lie:
            return self, bound
        turned = self._turned.get((lie, strict), lambda: Known(in_order(self.op, lie, strict), lie))
        views = {**views, **{n: views[n].turned(order) for n, order in lie}}
        return turned, Bound(turned.op, bound.sizes, bound.scalars, views, bound.results, bound.sources, bound.home, bound)

    def merged(self, bound: Bound, special: bool = False, strict: bool = False, on_cpu: bool = True,
               asked: Asked | None = None, look: Hashable = None, points: int = 0) -> Merged:
        """The Op with those dimensions as one that lie one after the other in all arrays of a call.

        special   whether windows of one element may be put in as 1, where more dimensions are one then: a convolution of 1 x 1 is
                  a product of matrices, whose columns are all pixels of an image
        strict    whether terms are added up in the order of the text; else digits that are summed over are joined `on_cpu`, and
                  temporaries with products for each of a batch have that first where that pays
        asked     if sums over windows may take fewer multiplications
        look      of the call, and `points`: how much it computes. What has few elements at its end is a number `on_cpu`, and
                  part of the place before, if that is worth a kernel
        """
        text = self._joined if on_cpu and not strict else self._given
        if on_cpu and not strict and self._sides and pays_in_batches(self._sides, bound.sizes):
            text = self._batched
        if asked and special and not self.keeps_sums:
            text = self._with_filters(bound.sizes, asked) or text
        taps = tuple(t for t in text.taps if pays(t, bound.sizes, strict))
        _, found = self._windows(text, taps)
        ones = tuple(n for n in found if bound.sizes[n] == 1) if special else ()
        plain = tuple((n, 1) for n in ones)
        op, groups, rows = self._grouped(text, taps, plain, bound)
        apart = tuple(e for e in text.ends if not any(e.size in g for g in groups)) if special and on_cpu else ()
        to_copy = special and on_cpu and not strict
        flat, sums = self._products(text, taps, plain, op, groups) if to_copy else (None, ())
        whole = _whole(flat, sums, bound) if flat else frozenset[str]()
        ends = Ends(apart, groups, sums, whole, flat.sizes if flat else {}, self._loans, (text, taps, ones, groups, whole))
        numbers, in_sums = ends.few(bound.sizes), bool(ends.in_products(bound.sizes))
        if numbers and self._is_lent(ends, numbers, look, bound, points):
            numbers, in_sums = (), False
        if numbers and not in_sums:
            op, groups, rows = self._grouped(text, taps, (*plain, *numbers), bound)
        rows = rows if on_cpu else ()

        def made() -> Merged:
            flat = strung(flatten(op, groups), rows)
            if in_sums:
                values = dict(numbers) | products(flat.sizes, dict(numbers))
                flat = replace(flat, op=fix_sizes(flat.op, {n: v for n, v in values.items() if n in flat.op.sizes}))
            return Merged(in_matrices(flat, whole) if to_copy else flat, ends, text.filtered, numbers, self._lie)

        return self._merged.get((text, taps, ones, numbers, groups, rows, whole, to_copy), made)

    def _products(self, text: _Text, taps: tuple[Taps, ...], known: Values, op: Op,
                  groups: tuple[Group, ...]) -> tuple[Flat, tuple[Matrices, ...]]:
        """What `_grouped` has found, with dimensions as one, and its products that may become those of matrices."""
        def form() -> tuple[Flat, tuple[Matrices, ...]]:
            flat = flatten(op, groups)
            return flat, find_matrices(flat.op)

        return self._flat.get((text, taps, known, groups), form)

    def _is_lent(self, ends: Ends, few: Values, look: Hashable, bound: Bound, points: int) -> bool:
        """Whether a call takes a kernel for any sizes in the place of one for `few`.

        What is `KNOWN` has one at once if there is no other: it takes several times as long without.
        """
        if look is not None and (self._merged or not any(n in KNOWN for _, n in few)):
            return ends.lends(few, look, price_without(sum(prod(v.shape) for v in bound.views.values()), points))
        self._loans.made((ends.of, few))
        return False

    def _with_filters(self, sizes: Mapping[str, int], asked: Asked) -> _Text | None:
        """The text with some sums over windows computed with fewer multiplications; None if that does not pay."""
        self.has_filters = self.has_filters or bool(self._filters.found)
        made = self._filters.made(sizes, asked.target, asked.frozen, asked.threads)
        return self._filtered.get(made, lambda: _Text(made.op, (), made)) if made else None

    @cached_property
    def _filters(self) -> Filters:
        from polyop.filtering import Filters  # few calls ask for it

        return Filters(joined(self.op))

    def _windows(self, text: _Text, taps: tuple[Taps, ...]) -> tuple[Op, tuple[str, ...]]:
        """The Op with sums over `taps`, and the sizes of its windows."""
        def form() -> tuple[Op, tuple[str, ...]]:
            op = along_taps(text.op, taps)
            return op, windows(op)

        return self._along.get((text, taps), form)

    def _grouped(self, text: _Text, taps: tuple[Taps, ...], known: Values,
                 bound: Bound) -> tuple[Op, tuple[Group, ...], tuple[Row, ...]]:
        """The Op with sums over `taps` and `known` sizes put in; which dimensions, and rows, lie in one piece in a call."""
        def form() -> tuple[Op, tuple[Chain, ...], tuple[Row, ...]]:
            op = terms_alone(fix_sizes(self._windows(text, taps)[0], dict(known)))
            return op, in_arrays(op), find_rows(op)

        op, chains, rows = self._forms.get((text, taps, known), form)
        if not (chains or rows):
            return op, (), ()
        views = bound.views
        shapes, strides = ({n: getattr(v, what) for n, v in views.items()} for what in ("shape", "strides"))
        groups = allowed(chains, shapes, strides) if chains else ()
        return op, groups, lying(op, rows, groups, shapes, strides) if rows else ()


def _whole(flat: Flat, sums: tuple[Matrices, ...], bound: Bound) -> frozenset[str]:
    """The arrays of products in `flat` that are in one piece in a call."""
    if not sums:
        return frozenset()
    views = bound.views.items()
    sizes = bound.sizes | products(flat.sizes, bound.sizes)
    return in_one_piece(flat.op, sums, sizes, {n: v.shape for n, v in views}, {n: v.strides for n, v in views})


def seen_as(bound: Bound, flat: Flat) -> Bound:
    """The same call as one of `flat`: the same memory, with the dimensions of each group as one."""
    if flat.op is bound.op:
        return bound
    views = {}
    for name, v in bound.views.items():
        together = flat.dims[name]
        strides = together.strides(v.shape, v.strides)
        assert strides is not None, f"{name} does not lie in one piece"
        views[name] = replace(v, shape=together.shape(v.shape), strides=strides)
    sizes = bound.sizes | products(flat.sizes, bound.sizes)
    return Bound(flat.op, sizes, bound.scalars, views, bound.results, bound.sources, bound.home, bound.said or bound)


def on_gpu(merged: Merged, seen: Bound, given: Options, t: Target) -> Key:
    """What finds the kernel for a call on a GPU of the sort `t`; `given`: the options of the operator."""
    options = blocks(seen.op, merged.questions, seen.sizes, given, t)
    lies = layout(seen.op, seen.views, options.ones)
    if any(lies.unit(x) == d for x, d in options.inward):  # such a copy would be the same
        options = replace(options, inward=tuple((x, d) for x, d in options.inward if lies.unit(x) != d))
    return lies, options


def blocks(op: Op, q: Questions, sizes: Mapping[str, int], given: Options, t: Target) -> Options:
    """The options of the kernel for calls of such sizes on a GPU."""
    from polyop.rewrite.regimes.block_regimes import in_blocks  # what is known of GPUs takes long to import

    options = replace(given, special=False)
    if min(sizes.values(), default=1) == 0:
        return replace(options, regime="any")
    return in_blocks(op, q, sizes, options, t) if given.special else options


def that_reaches(make: Callable[[Options], T], options: Options, launch_of: Callable[[T], tuple[HostStep, ...]],
                 sizes: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]) -> T:
    """What `make` makes for a GPU; with indices of 64 bits, where 32 are too few for arrays of such sizes and strides."""
    from polyop.runtime.launching import fits

    made = make(options)
    return made if fits(launch_of(made), sizes, strides) else make(replace(options, huge=True))


def strides_of(seen: Bound) -> dict[str, tuple[int, ...]]:
    """The strides of the arrays of a call."""
    return {n: v.strides for n, v in seen.views.items()}


def fresh_results(bound: Bound, names: tuple[str, ...]) -> tuple[str, ...]:
    """The results that a call has made: neither updated nor given, as what is in `names` was."""
    updated = {o for _, o in bound.op.updates}
    return tuple(t.name for t in bound.op.outputs if t.name not in updated and t.name not in names)
