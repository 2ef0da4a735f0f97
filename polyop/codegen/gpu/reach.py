"""How far the indices of each kernel get, by intervals: what decides whether 32 bits hold them.

    for m_c in [0, M) by 128, m in [0, 128) (rows): X[m_c + m, k]

    m_c gets to M + 127 at most, m to 128, and so the place to (M + 255) |X_s0| + K.

A text adds the positive terms of an index first: no part of the sum exceeds what the positive terms amount to at most, or the
negative ones, so both are bounded, in sizes that only count upwards. Tests and guards are left out of account, since an address
may be computed before its test is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from polyop.codegen.gpu.slots import slot_counts
from polyop.codegen.gpu.split import Choice, KernelNest, Loop, Part, Start, Step, greatest
from polyop.ir.expr import Affine, Expr, Load, Number, Quasi, Test, affine, is_count, quasi, walk
from polyop.ir.loops import COUNTED, Buffer, For, If, LoopNest, Node, Space, Store
from polyop.ir.reach import MOST, Reach, Stride

ZERO = Affine()
FAR = 1024


@dataclass(frozen=True, slots=True)
class Range:
    """`{ x : -down <= x <= up }`; both are sums of sizes without a minus."""

    up: Affine
    down: Affine = ZERO


Ranges = Mapping[str, Range]
"""Of the index of each loop around."""


def reaches(nest: LoopNest, steps: tuple[Step, ...]) -> dict[str, tuple[Reach, ...]]:
    """What bounds the numbers of each kernel, by its name; what no size or stride can push far is left out."""
    buffers = {b.name: b for b in nest.buffers}
    sizes = [Reach(((affine(n),),)) for n in nest.sizes]
    found = {k.name: [r for p in k.parts for r in _of_part(p, ranges, buffers)] for k, ranges in _kernels(steps, {})}
    return {name: _largest([*sizes, *mine]) for name, mine in found.items()}


def in_words(found: tuple[Reach, ...], names: Mapping[str, str]) -> str:
    """The claim that a kernel's text makes."""
    def factor(f: Affine | Stride, alone: bool) -> str:
        text = f"{names[f.tensor]}_s{f.dim}" if isinstance(f, Stride) else str(f)
        return text if alone or " " not in text else f"({text})"

    def product(t: tuple[Affine | Stride, ...]) -> str:
        return " ".join(factor(f, len(t) == 1) for f in t)

    return ", ".join(" + ".join(map(product, r.terms)) for r in found) + " < 2^31"


# --- intervals -------------------------------------------------------------------------------------------------------------


def extent(x: Affine, ranges: Ranges) -> Range:
    """Where `x` lies, and every part of its sum if positive terms come first; a name that is no loop's is a size."""
    up, down = affine(max(x.const, 0)), affine(max(-x.const, 0))
    for atom, f in x.terms:
        r = ranges.get(atom, Range(affine(atom))) if isinstance(atom, str) else _quasi(atom, abs(f), ranges)
        times = abs(f) if isinstance(atom, str) else 1
        more, less = (r.up, r.down) if f > 0 else (r.down, r.up)
        up, down = up + more * times, down + less * times
    return Range(up, down)


def _quasi(q: Quasi, factor: int, ranges: Ranges) -> Range:
    """Where `factor` times `q` lies."""
    inside = [extent(a, ranges) for a in q.args]
    match q.op:
        case "div":  # factor floor(x / d) <= ceil(factor / d) x, which says too much where d is far larger than the factor
            d, x = q.args[1].const, inside[0]
            if FAR * factor <= d and x.down == ZERO:
                return Range(quasi("div", x.up, affine(d)) * factor)
            times = -(-factor // d)
            return Range(x.up * times, x.down * times + factor if x.down != ZERO else ZERO)
        case "mod":
            return Range(affine(factor * (q.args[1].const - 1)))
        case "min":
            return Range(_least([r.up for r in inside]) * factor, sum((r.down for r in inside), ZERO) * factor)
    return Range(sum((r.up for r in inside), ZERO) * factor, _least([r.down for r in inside]) * factor)


def _least(found: list[Affine]) -> Affine:
    """One of them: a constant, if there is one."""
    return min(found, key=lambda x: (len(x.terms), x.const))


# --- what is computed ------------------------------------------------------------------------------------------------------


def _kernels(steps: tuple[Step, ...], ranges: Ranges) -> Iterator[tuple[KernelNest, Ranges]]:
    """Each kernel, and the loops of the host around it."""
    for s in steps:
        match s:
            case Start(kernel=k):
                yield k, ranges
            case Loop(loop=n, body=body):
                yield from _kernels(body, {**ranges, n.index: _range(n, ranges)})
            case Choice(then=then, other=other):
                yield from _kernels(then + other, ranges)


def _range(n: For, ranges: Ranges) -> Range:
    """What the index of `n` may be, up to the value that ends the loop."""
    if n.kind in COUNTED:
        return Range(affine(n.end))
    return Range(extent(n.upper, ranges).up + n.step, extent(n.lower, ranges).down)


def _of_part(p: Part, ranges: Ranges, buffers: Mapping[str, Buffer]) -> Iterator[Reach]:
    inside, points = dict(ranges), []
    for a in p.axes:
        for x in (a.loop.lower, a.loop.upper, a.count):
            yield from _index(x, inside)
        hosts = {n: (r.down * -1, r.up) for n, r in ranges.items()}
        points.append(greatest(a.count, hosts))
        last = extent(a.loop.lower + a.count * a.loop.step, inside)
        inside[a.loop.index] = Range(last.up, extent(a.loop.lower, inside).down)
    if points:
        yield Reach((tuple(points),))
    yield from _body(p.body, inside, buffers)


def _body(body: tuple[Node, ...], ranges: Ranges, buffers: Mapping[str, Buffer]) -> Iterator[Reach]:
    for n in body:
        match n:
            case For():
                inside = {**ranges, n.index: _range(n, ranges)}
                for x in (n.lower, n.upper, affine(n.index)):
                    yield from _index(x, inside)
                yield from _body(n.body, inside, buffers)
            case If():
                for x in n.tests:
                    yield from _index(x, ranges)
                yield from _body(n.then + n.other, ranges, buffers)
            case Store():
                for e in (n.target, n.expr):
                    yield from _expression(e, ranges, buffers)


def _expression(e: Expr, ranges: Ranges, buffers: Mapping[str, Buffer]) -> Iterator[Reach]:
    for x in walk(e):
        match x:
            case Number(value=v):
                yield from _index(v, ranges)
            case Test(tests=tests):
                for t in tests:
                    yield from _index(t, ranges)
            case Load():
                for t in (*x.guard, *(p for p in x.index if isinstance(p, Affine))):
                    yield from _index(t, ranges)
                yield from _place(x, buffers[x.source], ranges)


def _place(x: Load, b: Buffer, ranges: Ranges) -> Iterator[Reach]:
    """The distance of `x` from its buffer's start. What data say of a place is counted in 64 bits, but for the stride there."""
    plain, terms = ZERO, list[tuple[Affine | Stride, ...]]()
    counts = slot_counts(b)
    for d, (p, (_, unit)) in enumerate(zip(x.index, b.dims, strict=True)):
        inner = counts[d + 1:]
        stride = (Stride(b.name, d),) if b.space == Space.TENSOR else inner
        if not isinstance(p, Affine):
            yield Reach((stride,))
            continue
        slot = quasi("div", p, affine(unit))
        if b.space == Space.TENSOR and d == b.unit:
            plain = plain + slot
        elif b.space != Space.TENSOR and all(n.is_constant for n in inner):
            plain = plain + slot * prod(n.const for n in inner)
        else:
            r = extent(slot, ranges)
            terms += [(far, *stride) for far in (r.up + r.down,) if far != ZERO]
            yield from _index(slot, ranges)
            if b.space != Space.TENSOR:
                yield Reach((inner,))
    yield from (Reach((*terms, *(t for t in r.terms if t != (ZERO,)))) for r in _index(plain, ranges))


def _index(x: Affine, ranges: Ranges) -> Iterator[Reach]:
    """Of a sum, and of the numbers in it."""
    r = extent(x, ranges)
    yield from (Reach(((side,),)) for side in (r.up, r.down))
    for atom, _ in x.terms:
        for y in atom.args if isinstance(atom, Quasi) else ():
            yield from _index(y, ranges)


# --- those that count ------------------------------------------------------------------------------------------------------


def _largest(found: list[Reach]) -> tuple[Reach, ...]:
    """Those which bound the others, without those that are constant."""
    out: list[Reach] = []
    for r in dict.fromkeys(found):
        is_constant = all(isinstance(f, Affine) and f.is_constant for t in r.terms for f in t)
        if (not is_constant or r.value({}, {}) > MOST) and not any(_covers(o, r) for o in out):
            out = [*(o for o in out if not _covers(r, o)), r]
    return tuple(out)


def _covers(one: Reach, other: Reach) -> bool:
    """Whether `other` clearly never exceeds `one`."""
    if len(one.terms) < len(other.terms):
        return False
    for s, t in zip(one.terms, other.terms, strict=False):
        if len(s) != len(t):
            return False
        for a, b in zip(s, t, strict=True):
            if isinstance(a, Affine) and isinstance(b, Affine):
                if not is_count(a - b):
                    return False
            elif a != b:
                return False
    return True
