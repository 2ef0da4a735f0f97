"""Operator: what a user calls. It binds arguments, picks or compiles the kernel that fits them, and runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from polyop.arguments import Arguments
from polyop.artefact import Artefact, Compile, Compiled, Instantiate
from polyop.formed import Form, carried, form_of
from polyop.ir.affine import evaluate
from polyop.ir.deep import with_room
from polyop.ir.dtypes import DType
from polyop.ir.errors import CallError, UnsupportedError, UserError, fail
from polyop.ir.interface import Choice, Interface
from polyop.ir.module import Proof
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options, options_of
from polyop.ir.target import Target
from polyop.ir.words import in_users_words
from polyop.known import (
    Asked,
    Known,
    Merged,
    blocks,
    fresh_results,
    on_gpu,
    seen_as,
    strides_of,
    that_reaches,
)
from polyop.rewrite.copies.batchfirst import with_batches_first
from polyop.rewrite.copies.strung import find_rows, strung
from polyop.rewrite.flatten import chains, flatten, products
from polyop.rewrite.once import terms_alone
from polyop.rewrite.ones import assumed
from polyop.rewrite.regimes.questions import questions
from polyop.rewrite.regimes.regimes import Regimes, as_it_lies, regime
from polyop.rewrite.sums.added import added_behind
from polyop.rewrite.sums.joined import joined
from polyop.runtime import cache, call, choose, cpu, entry, entry_load, entry_plan, entry_table, store, threads
from polyop.runtime.bind import Bound, bind
from polyop.runtime.estimate import SERIAL, work
from polyop.runtime.interpreted import Interpreted
from polyop.runtime.kernel import Kernel
from polyop.runtime.lasting import Lasting
from polyop.runtime.layout import contiguous, dense, layout
from polyop.runtime.loans import Key, is_close, price_of

if TYPE_CHECKING:
    from polyop.frozen import Frozen
    from polyop.runtime.entry_plan import Words
    from polyop.runtime.gpu.call import LaunchPlan
    from polyop.runtime.gpu.kernel import GpuKernel

LOG = logging.getLogger("polyop")

T = TypeVar("T")

_PLANS = 4096        # calls of different looks that an operator remembers
_SEVERAL = (tuple, list)
_ARRAY = (False,)    # that a value is an array, beside those that go by value
_FORMS = 256         # forms of calls that it remembers


class Operator:
    """One operator of a program, for every dtype, rank, constant, size and layout that it allows.

    Called with arrays it returns arrays of the same kind; with `out=` it writes into those. `options` and `target` hold for
    all calls. `again` makes an equal one in another process, given its arguments, options and target. `keep` is told the Ops that
    there are kernels of.
    """

    def __init__(self, interface: Interface, instantiate: Instantiate, compile_: Compile, options: Options | None = None,
                 target: str = "x86", again: tuple[Callable[..., Operator], tuple[Any, ...]] | None = None,
                 keep: Callable[[Choice, Op], None] | None = None, lasting: Lasting | None = None) -> None:
        self.interface = interface
        self.options = options_of(options)
        self.target = target
        self._instantiate = instantiate
        self._again = again
        self._keep = keep
        self._lasting = lasting
        self._compile = compile_
        self._ops: store.Memo[Op] = store.Memo()
        self._known: store.Memo[Known] = store.Memo()
        self._forms: dict[bytes | None, Form] = {}
        self._plans: dict[Any, call.CallPlan | LaunchPlan] = {}
        self._met = 0  # calls that looked like none before
        self._arguments = Arguments(interface)
        self._front = entry_table.front(self._arguments.names, self._arguments.by_value, self._arguments.most)
        self.__name__ = interface.name
        self.__doc__ = interface.docstring

    def __repr__(self) -> str:
        return f"<polyop {self.interface}>"

    def __copy__(self) -> Operator:
        return self

    def __deepcopy__(self, _: Any) -> Operator:
        return self  # as functions do; what it compiled serves all copies of a model

    def __reduce__(self) -> tuple[Callable[..., Operator], tuple[Any, ...]]:
        """How another process makes this operator again: from its text. Its kernels are there, in the cache."""
        if self._again is None:
            raise TypeError(f"{self!r} has no text of its own, so it cannot be pickled")
        make, arguments = self._again
        return make, (*arguments, self.options, self.target)

    def freeze(self, /, **arrays: Any) -> Frozen:
        """This operator with some of its inputs given once and for all, as the weights of a layer are.

            layer = polyop.library("linear").freeze(W=weights)      layer(x)  is  linear(x, weights), sooner

        What is made of them alone, copies in the order of a kernel's tiles above all, is made in the first call, and kept.
        So their values must stay as they are: whether a change is seen is not defined.

        Raises  CallError, if there is no such input, it is changed in place, or what is given is no array.
        """
        from polyop.frozen import Frozen  # which imports this module

        return Frozen(self, arrays)

    def with_frozen(self, names: tuple[str, ...]) -> Operator:
        """This operator for calls that always give the same arrays for the inputs `names`."""
        made = Operator(self.interface, self._instantiate, self._compile, replace(self.options, frozen=names), self.target, None,
                        self._keep, Lasting())
        made._ops, made._known = self._ops, self._known
        return made

    @property
    def kept_bytes(self) -> int:
        """How much memory holds what was made of frozen inputs so far."""
        return self._lasting.bytes_ if self._lasting else 0

    def _general(self, /, *args: Any, out: Any = None, **keywords: Any) -> Any:
        """Run on arguments.

        Raises CallError, if they do not fit.
        """
        given = self._arguments
        addresses: list[int] = []
        arrays = values = given.values(args, keywords)
        by_value, outs = given.by_value, ()
        if out is not None:
            outs = tuple(out) if isinstance(out, _SEVERAL) else (out,)
            arrays, by_value = values + outs, by_value + _ARRAY * len(outs)
        key = call.key(arrays, by_value, addresses)
        found = self._plans.get(key)
        if found is not None:
            result = found.run(arrays, addresses)
            if result is not call.LONG:
                native = self._native(out) if self._front else None
                if native and self._front:
                    entry.remember(native, self._front, found, _said(found), arrays, args, {**keywords, "out": out})
                return result
        native = self._native(out) if self._forms and key is not None else None
        if native:
            result = self._formed(native, arrays, args, {**keywords, "out": out}, key)
            if result is not NotImplemented:
                return result
        result, made = self._long(values, out, outs, key)
        native = self._native(out) if made and self._met >= entry.LOOKS else None
        if native and made:
            self._form(native, made, arrays, args, {**keywords, "out": out})
        return result

    # in Python and for all arguments; `entry` puts machine code in front of it for those it has seen
    __call__ = _general
    __call__.__qualname__ = "Operator.__call__"  # what users are told of arguments that do not fit

    def _native(self, out: Any) -> entry_load.Code | None:
        """What stands in front of such calls; not where `out` is a list, whose items another thread may take out of it."""
        return entry.entry(Operator) if type(out) is not list else None

    def _form(self, native: entry_load.Code, made: _Made, values: tuple[Any, ...], args: tuple[Any, ...],
              keywords: Mapping[str, Any]) -> None:
        """Let calls of the form of this one, which `made` has carried out, go its way whatever their sizes."""
        front = self._front
        what = native.form(front, *args, **keywords) if front else None
        if front is None or what is None:
            return
        form = self._forms.get(what) or form_of(made.plan, made.merged, made.seen)
        if form is None:
            return
        chosen = made.key, made.plan.row[1] > 1, form.lasts(made.plan.is_long)
        record = form.records.get(chosen)
        if record is None:
            record = entry.general(native, front, made.plan, values, args, keywords)
            if record is None:
                return
            form.records[chosen] = record
            if len(self._forms) >= _FORMS:
                self._forms.clear()
            self._forms[what] = form
        if not made.is_lent:
            entry.vary(native, front, record, args, keywords)

    def _formed(self, native: entry_load.Code, values: tuple[Any, ...], args: tuple[Any, ...], keywords: Mapping[str, Any],
                look: Any) -> Any:
        """The result of a call of new sizes in a known form; NotImplemented, if it needs the long way.

        What the long way would do is done or left alone: the kernel is the same, and so is what it has lent.
        """
        front = self._front
        form = self._forms.get(native.form(front, *args, **keywords)) if front else None
        if front is None or form is None or look in form.looks:
            return NotImplemented
        result = carried(form, native, front, (values, args, keywords), look, self.options, cpu.resolve(self.target))
        self._met += result is not NotImplemented
        return result

    def _long(self, values: tuple[Any, ...], out: Any, outs: tuple[Any, ...], key: Any) -> tuple[Any, _Made | None]:
        """A call that looks like none before; its result, and the plan that it leaves behind if it can."""
        arguments = dict(zip(self._arguments.names, values, strict=True))
        for value in values:
            symbolic = getattr(value, "__polyop_symbolic__", None)
            if symbolic is not None:  # the call is taken down rather than made: see polyop/graph/symbolic.py
                if out is not None:
                    raise fail("E707", f"`{self.interface.name}` is called on symbolic values, so nothing is written to `out`")
                return symbolic(self.interface, self._op, arguments), None
        choice = choose.choose(self.interface, arguments)
        known = self._known.get(_exactly(choice), lambda: Known(self._op(choice)))
        op = known.op
        try:
            bound = bind(op, dict(zip(self._arguments.inner, values, strict=True)), out)
        except CallError as e:
            raise CallError(in_users_words(op, e.diagnostic)) from None
        on_cpu, points = bound.home is None, work(op, bound.sizes)
        strict = self.options.numerics == "strict"
        own, lying = known.as_it_lies(bound, strict) if on_cpu else (known, bound)
        merged = own.merged(lying, self.options.special, strict, on_cpu,
                              self._asked() if self.options.numerics == "winograd" and on_cpu else None, key, points)
        seen = seen_as(lying, merged.flat)
        names = (*self._arguments.inner, *known.fresh[: len(outs)])
        if bound.home is not None:
            result, planned = self._on_gpu(merged, seen, bound, names, values + outs)
            self._keeps(choice, known)
            self._remembered(key, planned)
            return result, None
        asked = self._asks_for(merged, seen)
        try:
            k, taken = self._kernel(merged, seen, asked, key, points)
        except _OtherSumsError:
            own.keeps_sums = True
            return self._long(values, out, outs, key)
        self._keeps(choice, known)
        served = taken[1]
        self._met += 1
        count = threads.get_num_threads() if points >= SERIAL else 1
        if not isinstance(k, Kernel):
            return k(seen, count), None
        prepared = k.prepare(seen, count, self._lasting)
        result = k.carry_out(prepared, seen)
        if key is None or not is_close(served, asked[1]):
            return result, None
        known_sizes = dict((*served.fixed, *merged.numbers))
        made = call.plan(assumed(op, known_sizes), k, prepared, bound, merged.runs, names, values + outs, points)
        is_lent = bool(merged.few(bound.sizes))
        if taken == asked and not is_lent:
            self._remembered(key, made)
        return result, _Made(made, merged, seen, taken, is_lent) if made and not (own.has_filters or merged.numbers) else None

    def _keeps(self, choice: Choice, known: Known) -> None:
        """Keep an Op of which there is a kernel, so that other processes need not read the text."""
        if self._keep and not known.is_kept:
            known.is_kept = True
            self._keep(choice, known.op)

    def _remembered(self, key: Any, made: call.CallPlan | LaunchPlan | None) -> None:
        """Let calls that look like `key` find `made`."""
        if made is not None and key is not None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            look = (threads.setting, *key[1:])  # the first call of all has only now learnt how many threads
            self._plans[look] = made

    def _on_gpu(self, merged: Merged, seen: Bound, bound: Bound, names: tuple[str, ...],
                values: tuple[Any, ...]) -> tuple[Any, LaunchPlan | None]:
        """A call on arrays of a GPU that looks like none before; its result, and a plan if there can be one.

        Raises UnsupportedError, if there can be no kernel for that GPU here.
        """
        from polyop.runtime.gpu import call as gpu  # a call with arrays of a GPU has imported its room
        from polyop.runtime.gpu.chips import native, runs
        from polyop.runtime.gpu.kernel import GpuKernel, prepare

        device, t = bound.home.device, cpu.resolve(self.target)
        mine = f"`{self.interface.name}` is for {t.name}"
        if t.family not in ("x86", device.family):
            raise UnsupportedError(f"{mine}, and its arrays are on {device}")
        if t.family != "x86" and not runs(device, t):
            raise UnsupportedError(f"{mine}, and {device} runs what is for {native(device).name}")
        t = native(device) if t.family == "x86" else t
        units, options = on_gpu(merged, seen, self.options, t)
        k = that_reaches(lambda o: merged.on_gpus.get((units, o, t), lambda: self._find(seen.op, units, o, t)), options,
                         lambda k: k.binary.launch if isinstance(k, GpuKernel) else (), seen.sizes, strides_of(seen))
        if not isinstance(k, GpuKernel):
            raise UnsupportedError(f"`{seen.op.name}` has no loops for {t.name}: {'; '.join(k.notes)}")
        prepared = prepare(k, seen)
        result = gpu.carry_out(prepared, seen, fresh_results(bound, names))
        return result, gpu.plan(bound.op, prepared, bound, names, values)

    def _op(self, choice: Choice) -> Op:
        return self._ops.get(_exactly(choice), lambda: self._instantiate(choice))

    def _variant(self, regimes: Regimes, sizes: dict[str, int]) -> Options:
        """The options for these sizes: most kernels count on every size being at least 1, few on one being just that."""
        count = threads.get_num_threads()
        if min(sizes.values(), default=1) < 1:
            return replace(self.options, regime="any", threads=count > 1)
        return regime(regimes, sizes, self.options, cpu.resolve(self.target), count)

    def _asks_for(self, merged: Merged, seen: Bound) -> Key:
        """What finds the kernel that is for such a call."""
        options = self._variant(merged.regimes, seen.sizes)
        units = layout(seen.op, seen.views, options.ones)
        return units, as_it_lies(merged.regimes, units, options)

    def _kernel(self, merged: Merged, seen: Bound, asked: Key, look: Any,
                points: int) -> tuple[Kernel | Interpreted, Key]:
        """The kernel for a call that asks for `asked`, and its key: it may serve for one that is not there yet."""
        taken = self._lent(merged, seen, asked, look, points) or asked
        target = cpu.resolve(self.target)
        if target.family != "x86":
            raise UnsupportedError(f"`{self.interface.name}` is for {target.name}, and its arrays are on the CPU; `polyop run "
                                   f"--target {target.name} --emulate` carries it out there")

        def make() -> Kernel | Interpreted:
            found = self._find(seen.op, *taken, target, merged.proofs)
            assert isinstance(found, Kernel | Interpreted), "code for a GPU is none for this machine"
            return found

        return merged.kernels.get(taken, make), taken

    def _lent(self, merged: Merged, seen: Bound, asked: Key, look: Any, points: int) -> Key | None:
        """What serves for `asked`, which is not there yet, in a call that looks like `look`; None if nothing does."""
        if look is None:
            return None
        found = None if asked in merged.kernels else merged.lender(asked, partial(layout, seen.op, seen.views), self.options)
        if found in (None, asked) or isinstance(merged.kernels.known(found), Interpreted):
            merged.loans.last = look
            return None
        price = price_of(sum(prod(v.shape) for v in seen.views.values()), points, asked, found)
        return found if merged.loans.lends(asked, look, price) else None

    def _asked(self) -> Asked:
        """That sums over windows may take fewer multiplications, and where."""
        return Asked(cpu.resolve(self.target), self.options.frozen, threads.get_num_threads())

    def _find(self, op: Op, units: Layout, options: Options, target: Target,
              also: Callable[[], tuple[Proof, ...]] = tuple) -> Kernel | GpuKernel | Interpreted:
        """The kernel, in memory, on disk, or compiled; `also`: what else is proved of one that is."""
        name = cache.key("kernel", cpu.VERSION, _roomy(lambda: repr(op)), repr(units), repr(target), repr(options))
        def make() -> Kernel | GpuKernel:
            same = also()
            wrong = next((p for p in same if not p.holds), None)
            if wrong:
                LOG.error("polyop bug: %s is not what a call asked for: %s", op.name, wrong)
                raise _OtherSumsError(str(wrong))
            try:
                return _load(self._compile(op, units, target, options), same)
            except UserError as error:  # the text was right, so what was made of it is not
                if not same:
                    raise
                LOG.error("polyop bug: what was made of %s for a call is wrong: %s", op.name, error)
                raise _OtherSumsError(str(error)) from error

        try:
            return _roomy(lambda: store.find(name, make))
        except _NoCodeError as without:
            return Interpreted(op, without.made.notes)

    # --- ahead of any call -----------------------------------------------------------------------------------------

    def compile(self, target: str | None = None, dtypes: Mapping[str, str | DType] | None = None,
                consts: Mapping[str, Any] | None = None, rank: int | None = None, options: Options | None = None,
                units: Layout | None = None, sizes: Mapping[str, int] | None = None) -> Artefact:
        """Compile without arguments, for contiguous arrays unless `units` says otherwise.

        dtypes   of dtype variables; if one is not given: f32, else i32, else the first that it may be
        rank     how many dimensions `...` stands for; 1 if it is not given
        sizes    all sizes of a call on a GPU, whose kernel is wanted; on a CPU whether its sums over windows take fewer
                 multiplications; else it is the one for all that have none of their own

        Raises UserError, if there is nothing of such a name.
        """
        t = cpu.resolve(target or self.target)
        options = self.options if options is None else options_of(options)
        op = self._op(self.choice(dtypes, consts, rank))
        said, op = op, added_behind(terms_alone(op))
        op = with_batches_first(joined(op)) if t.family == "x86" and options.numerics != "strict" else op
        same: tuple[Proof, ...] = ()
        calls: dict[str, int] = {}
        if sizes is not None and sizes.keys() >= {*op.sizes} and t.family == "x86" and options.numerics == "winograd":
            from polyop.filtering import Filters

            filtered = Filters(joined(said)).made(sizes, t, options.frozen)
            if filtered and filtered.proof.holds:
                op, same, calls = filtered.op, (filtered.proof,), dict(sizes)
        merged: Mapping[str, tuple[str, ...]] = {}
        if units is None:
            flat = flatten(op, chains(op))  # as calls with contiguous arrays do
            flat = strung(flat, find_rows(flat.op)) if t.family == "x86" else flat
            op, merged = flat.op, flat.sizes
        asked, known = options, {} if sizes is None or t.family == "x86" else {**sizes, **products(merged, sizes)}
        if known:
            asked = blocks(op, questions(op), known, options, t)
        units = units or contiguous(op, asked.ones)

        def make(o: Options) -> Compiled:
            return _roomy(lambda: self._compile(op, units, t, o))

        strides = {x.name: dense(tuple(evaluate(e, known) for e in x.shape)) for x in (*op.inputs, *op.outputs)} if known else {}
        made = that_reaches(make, asked, lambda c: c.module.launch if c.module else (), known, strides) if known else make(asked)
        text = made.module.text if made.module else ""
        caller = self
        if target not in (None, self.target) or options != self.options:
            caller = Operator(self.interface, self._instantiate, self._compile, options, target or self.target, self._again)
        notes = made.chosen + made.notes
        calls = dict(sizes) if asked != options and sizes is not None else calls
        return Artefact(caller, op, t, units, text, made.trace, same + made.proofs, notes, made.binary, merged, calls)

    def choice(self, dtypes: Mapping[str, str | DType] | None = None, consts: Mapping[str, Any] | None = None,
               rank: int | None = None) -> Choice:
        """The Op meant by names alone: see `compile`."""
        return choose.by_names(self.interface, dtypes or {}, consts or {}, rank)


def _said(plan: call.CallPlan | LaunchPlan) -> Callable[[Any, Sequence[Any]], Words | None]:
    """What puts such plans into words for the native front of calls."""
    if isinstance(plan, call.CallPlan):
        return entry_plan.record
    from polyop.runtime.gpu.front import record  # a call with arrays of a GPU has imported its room

    return record


def _exactly(choice: Choice) -> tuple[Choice, str]:
    """What tells apart choices that are equal: consts of 0.0 and of -0.0."""
    return choice, str(choice.consts)


@dataclass(frozen=True, eq=False, slots=True)
class _Made:
    """The plan of a call on this machine, whose kernel, found by `key`, has seen it as `seen`.

    is_lent   whether calls that look like it had better have another one
    """

    plan: call.CallPlan
    merged: Merged
    seen: Bound
    key: Key
    is_lent: bool


class _OtherSumsError(Exception):
    """Sums with fewer multiplications are not proved to be those of the text, which a call then takes."""


class _NoCodeError(Exception):
    """The compiler fell to the last rung of its ladder."""

    def __init__(self, made: Compiled) -> None:
        super().__init__("; ".join(made.notes))
        self.made = made


def _load(made: Compiled, same: tuple[Proof, ...]) -> Kernel | GpuKernel:
    if made.binary is None and made.module is not None:
        raise UnsupportedError(f"`{made.module.name}` for {made.module.target} has {made.notes[-1]}")
    if made.binary is None:
        raise _NoCodeError(made)
    return store.loaded(made.binary, same + made.proofs, made.chosen + made.notes)


def _roomy(f: Callable[[], T]) -> T:
    """`f()`, with a larger stack if expressions prove too deep for this one."""
    try:
        return f()
    except RecursionError:
        return with_room(f)
