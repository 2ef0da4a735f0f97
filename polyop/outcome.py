"""What the results of a call should have been: compared with a plain evaluation of the operator, in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Protocol

import numpy as np

from polyop.ir import reference, samples
from polyop.ir.deep import with_room
from polyop.ir.dtypes import BF16, F16, DType
from polyop.ir.errors import UnsupportedError, UserError
from polyop.ir.interface import Interface
from polyop.ir.op import Op
from polyop.runtime.estimate import work
from polyop.trial import Array, MakeOp, Trial, shape, trial

_POINTS = 100_000  # that are evaluated one by one: some seconds
_SAMPLES = 200     # elements of a result that are looked at, at most, where that is too few for all of them
_LARGE = "not checked: too large to evaluate element by element, and no smaller sizes are allowed"
_EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a comparison showed; `right` is true too if nothing could be compared, and then the text says so."""

    right: bool
    text: str

    def __str__(self) -> str:
        return self.text


class Called(Protocol):
    """What a trial calls: an Operator, or something that stands for one."""

    @property
    def interface(self) -> Interface: ...
    def __call__(self, **arguments: Any) -> Any: ...


def compared(operator: Called, make: MakeOp, given: Mapping[str, Any], rank: int | None = None, seed: int = 0,
             numerics: str = "fast", results: Any = None) -> Outcome:
    """A call, compared with a plain evaluation in float64; if it is too large for that, in some elements, and in all of them at
    smaller sizes on random inputs. `results`: of that call, if it was made.
    """
    call = trial(operator.interface, make, given, rank, seed)
    if work(call.op, call.sizes) <= _POINTS:
        return _compare(operator, call, "", numerics)
    some = _sampled(operator, call, numerics, results)
    if some is not None and not some.right:
        return some
    whole = _smaller(operator, make, given, call, seed, numerics)
    if some is None or whole is None:
        return some or whole or Outcome(True, _LARGE)
    return Outcome(whole.right, f"{some}; {whole}" if whole.right else str(whole))


def _smaller(operator: Called, make: MakeOp, given: Mapping[str, Any], call: Trial, seed: int, numerics: str) -> Outcome | None:
    """A call like `call` in which all elements are compared; None if no sizes for it are allowed."""
    kept = _without_sizes(call, given)
    for cap in (11, 7, 5, 3, 2, 1):
        sizes = {n: min(v, cap) for n, v in call.sizes.items()}
        try:
            smaller = trial(operator.interface, make, kept | sizes, _rank(call), seed)
            if work(smaller.op, smaller.sizes) <= _POINTS:
                return _compare(operator, smaller, f" at {', '.join(f'{n} = {v}' for n, v in smaller.sizes.items())}",
                                numerics)
        except UserError:
            continue  # the operator's conditions do not allow these sizes
    return None


def _compare(operator: Called, call: Trial, where: str, numerics: str) -> Outcome:
    inputs = {n: a.copy() for n, a in call.inputs.items()}  # a call may write into them
    got = _named(call, operator(**call.arguments))
    @cache
    def plain(wide: bool) -> dict[str, Array]:
        return with_room(lambda: reference.evaluate(call.op, call.sizes, call.scalars, inputs, wide=wide))

    return _judged(call, got, plain, where, numerics)


def _sampled(operator: Called, call: Trial, numerics: str, results: Any) -> Outcome | None:
    """A call, compared in a few elements of each result; None if these cannot be worked out alone."""
    inputs = {n: a.copy() for n, a in call.inputs.items()}
    got = _named(call, operator(**call.arguments) if results is None or call.op.updates else results)
    rng = np.random.default_rng(0)
    wanted = {n: samples.places(rng, a.shape, _SAMPLES) for n, a in got.items()}
    most = _POINTS // max(1, len(got))

    @cache
    def some(name: str, wide: bool) -> list[Any]:
        mine = [(name, at) for at in wanted[name]]
        return with_room(lambda: samples.evaluate(call.op, call.sizes, call.scalars, inputs, mine, most * (2 - wide), wide=wide))

    try:
        found = {n: len(some(n, True)) for n in got}
    except UnsupportedError:
        return None
    if not all(found[n] > 1 for n in got if got[n].size):
        return None
    seen = {n: np.array([a[at] for at in wanted[n][: found[n]]], a.dtype) for n, a in got.items()}

    @cache
    def plain(wide: bool) -> dict[str, Array]:
        return {n: np.array(some(n, wide)[: found[n]]) for n in got}

    return _judged(call, seen, plain, f" in {sum(found.values()):,} of {sum(a.size for a in got.values()):,} elements", numerics)


def _named(call: Trial, got: Any) -> dict[str, Array]:
    """The results of a call by name."""
    results = got if isinstance(got, tuple) else (got,)
    return {t.name: np.asarray(x) for t, x in zip(call.op.outputs, results, strict=True)}


def _judged(call: Trial, got: Mapping[str, Array], plain: Callable[[bool], Mapping[str, Array]], where: str,
            numerics: str) -> Outcome:
    """What a comparison shows. `plain`: what should be there, in float64 or in the operator's own dtypes."""
    worst, allowed, narrow = 0.0, 0.0, hands_on_16_bits(call.op)
    for t in call.op.outputs:
        x = got[t.name]
        terms = work(call.op, call.sizes) / max(1, prod(shape(t, call.sizes)))
        error, limit = difference(x, plain(True)[t.name]), tolerance(t.dtype, terms, numerics, narrow)
        if error > limit:  # where something overflows, ties or jumps, the operator's own dtypes have the word
            error = difference(x, plain(True)[t.name], plain(False)[t.name])
        if error > limit:
            return Outcome(False, f"WRONG{where}: `{t.name}` is off by {error:.1e} of its greatest element, "
                                  f"where rounding explains {limit:.1e}")
        worst, allowed = max(worst, error), max(allowed, limit)
    return Outcome(True, f"right{where}: off by {worst:.1e} of the greatest element, where rounding explains {allowed:.1e}")


def _without_sizes(call: Trial, given: Mapping[str, Any]) -> dict[str, Any]:
    """Consts, scalars and dtypes of a call, without what says how large it is."""
    variables = dict(call.interface.variables)
    kept = {n: v for n, v in given.items() if not isinstance(v, np.ndarray) and n not in call.sizes}
    found = {p.dtype: call.op.tensor(p.name_in_op).dtype.name for p in call.interface.tensors if p.dtype in variables}
    return kept | found


def _rank(call: Trial) -> int | None:
    """How many dimensions `...` stood for."""
    return next((len(call.op.tensor(p.name_in_op).shape) - len(p.dims) + 1 for p in call.interface.tensors if "..." in p.dims),
                None)


def difference(got: Array, want: Array, working: Array | None = None) -> float:
    """The greatest difference, as a part of the greatest element wanted; infinite if shapes or special values disagree.

    want     in float64
    working  in the operator's own dtypes: an element may be near either. Where that is not finite, something overflowed on
             the way, and in another order it may have become another infinity or NaN.
    """
    if got.shape != want.shape:
        return float("inf")
    apart = _apart(got, want)
    if working is not None:
        overflowed = ~np.isfinite(_wide(working)) & ~np.isfinite(_wide(got))
        apart = np.where(overflowed, 0.0, np.minimum(apart, _apart(got, working)))
    if want.dtype.kind != "f":
        return float("inf") if apart.any() else 0.0
    counted = np.isfinite(want) & np.isfinite(_wide(got))
    return float(apart.max(initial=0.0) / max(1.0, float(np.abs(want[counted]).max(initial=0.0))))


def _apart(got: Array, want: Array) -> Array:
    """|got - want| of each element; infinite where only one is finite, or two infinities differ, or integers do."""
    if want.dtype.kind not in "fV":
        return np.where(got == want, 0.0, np.inf)
    a, b = _wide(got), _wide(want)
    both = np.isfinite(a) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(both, np.abs(np.where(both, a, 0.0) - np.where(both, b, 0.0)), np.inf))


def _wide(a: Array) -> Array:
    return a.astype(np.float64)


def tolerance(dtype: DType, terms: float, numerics: str = "fast", narrow: bool = False) -> float:
    """What rounding alone may do to a result that `terms` steps went into, as a part of its greatest element.

    A result of 16 bits is a number of f32 that was rounded once, half a unit, and in another order of sums up to 1.4 units in
    operators of the library: four are allowed. Sixteen, if `narrow`, where what steps hand on is rounded so, too (7.5 units in a
    recurrence of 64 turns). The sums and functions of f32 before are off by some units of their own.
    """
    if not dtype.is_float:
        return 0.0
    stored = max(_EPSILON[dtype.name], 2.0**-11 if numerics == "tf32" else 0.0)
    few = 4 if dtype in (F16, BF16) and not narrow else 16
    return few * stored + 4 * min(stored, _EPSILON["f32"]) * terms


def hands_on_16_bits(op: Op) -> bool:
    """Whether a step of `op` reads floats of 16 bits that it, or another one, has written."""
    written = {s.target.source for s in op.steps}
    return any(x.source in written and x.dtype in (F16, BF16) for s in op.steps for x in s.reads)
