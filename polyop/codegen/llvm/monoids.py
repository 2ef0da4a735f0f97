"""Combining values with a monoid: two values, or all lanes of vectors."""

from __future__ import annotations

from math import nan

from polyop.codegen.llvm.expressions import function
from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import constant, held, register, shuffle_mask
from polyop.codegen.vecmath.ops import V
from polyop.ir.dtypes import DType
from polyop.ir.errors import InternalError
from polyop.ir.expr import Apply, Const, Expr, Scalar
from polyop.ir.op import Monoid

_PLAIN = {"max": V.most, "min": V.least}
"""Of two numbers one or the other, in one instruction, whatever it is where one of them is NaN."""


def pair(s: State, m: Monoid, a: V, b: V, t: DType) -> V:
    """`a m b`, both of dtype `t`."""
    if m.fn is not None:
        return function(s, m.fn, [a, b], t, t)

    def value(e: Expr) -> V:
        match e:
            case Scalar(name="a"):
                return a
            case Scalar(name="b"):
                return b
            case Const(value=x, dtype=u):
                return a.const(held(x, u), register(u))
            case Apply(fn="select", args=(c, x, y)):
                return value(c).pick(value(x), value(y))
            case Apply(fn=fn, args=args, dtype=u):
                return function(s, fn, [value(x) for x in args], args[0].dtype, u)
        raise InternalError(f"emit: {e} in the body of monoid {m}")

    return value(m.body)


def fold(s: State, m: Monoid, xs: list[V], masks: list[str | None], t: DType) -> V:
    """All lanes of `xs` for which a mask holds, combined as a tree.

    Whether some lane of floats is NaN, which the greatest and the least one then are, is asked once, not in each pair.
    """
    element = register(t)
    live = []
    for x, mask in zip(xs, masks, strict=True):
        identity = constant(held(m.identity, t), element, x.width)
        kept = x if mask is None else x.like(s.b.do(f"select <{x.width} x i1> {mask}, {x.type_} {x.text}, {x.type_} {identity}"))
        live.append(kept)
    plain = _PLAIN.get(m.fn or "") if t.is_float and live[0].width > 1 else None
    bad = _some_nan(live) if plain else None

    def two(a: V, b: V) -> V:
        return plain(b, a) if plain else pair(s, m, a, b, t)

    while len(live) > 1:
        live = [two(a, b) for a, b in zip(live[::2], live[1::2], strict=False)] + live[len(live) // 2 * 2:]
    x = live[0]
    while x.width > 1:
        half = x.width // 2
        parts = []
        for lanes in (range(half), range(half, x.width)):
            text = s.b.do(f"shufflevector {x.type_} {x.text}, {x.type_} poison, {shuffle_mask(list(lanes))}") if half > 1 else \
                s.b.do(f"extractelement {x.type_} {x.text}, i64 {lanes[0]}")
            parts.append(V(x.b, x.element, half, text, x.flags))
        x = two(parts[0], parts[1])
    return bad.pick(x.const(nan), x) if bad else x


def combined(s: State, m: Monoid, xs: list[V], t: DType) -> V:
    """All of `xs`, lane by lane, as a tree."""
    while len(xs) > 1:
        xs = [pair(s, m, a, b, t) for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) // 2 * 2:]
    return xs[0]


def fold_each(s: State, m: Monoid, xs: list[V], t: DType) -> V:
    """All lanes of each of `xs`, combined as a tree: a vector with an element for each of them, whose number is a power of 2.

    Halves of two vectors are combined at once, so that four sums of 16 lanes take six rounds of shuffles and not sixteen.
    """
    live, count = xs, len(xs)
    each = xs[0].width  # lanes in which a vector has parts of one of `xs`

    def halves(a: V, b: V, starts: range) -> V:
        """What lies in the first half of each part, and what in the second."""
        half = each // 2
        low = [at + i for at in starts for i in range(half)]
        both = [_lanes(a, b, [*part, *(a.width + i for i in part if b is not a)]) for part in (low, [i + half for i in low])]
        return pair(s, m, both[0], both[1], t)

    while len(live) > 1:
        live = [halves(a, b, range(0, a.width, each)) for a, b in zip(live[::2], live[1::2], strict=True)]
        each //= 2
    while each > 1:
        live = [halves(live[0], live[0], range(0, count * each, each))]
        each //= 2
    return live[0]


def _lanes(a: V, b: V, order: list[int]) -> V:
    """These lanes of `a` and, behind them, of `b`."""
    text = a.b.do(f"shufflevector {a.type_} {a.text}, {a.type_} {b.text}, {shuffle_mask(order)}")
    return V(a.b, a.element, len(order), text, a.flags)


def _some_nan(xs: list[V]) -> V:
    """Whether a lane of `xs` is NaN: one comparison for each two of them."""
    pairs = [(a, b) for a, b in zip(xs[::2], xs[1::2], strict=False)] + [(x, x) for x in xs[len(xs) // 2 * 2:]]
    found, *others = (a.cmp("uno", b) for a, b in pairs)
    for x in others:
        found = found | x
    return found.somewhere()


def fold_in_order(s: State, m: Monoid, old: V, xs: list[V], masks: list[str | None], t: DType) -> V:
    """`old m x0 m x1 ..`, one lane after the other."""
    for x, mask in zip(xs, masks, strict=True):
        for i in range(x.width):
            lane = V(x.b, x.element, 1, s.b.do(f"extractelement {x.type_} {x.text}, i64 {i}"), x.flags)
            new = pair(s, m, old, lane, t)
            if mask is not None:
                bit = V(x.b, "i1", 1, s.b.do(f"extractelement <{x.width} x i1> {mask}, i64 {i}"))
                new = bit.pick(new, old)
            old = new
    return old
