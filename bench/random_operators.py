"""Random operators of usual kinds against NumPy and PyTorch: where a kind of operator is slow that no benchmark has.

    python bench/random_operators.py 100                  so many, with a seed that it prints
    python bench/random_operators.py 100 --seed 3         the same ones again
    python bench/random_operators.py 50 --kind contraction --kind gather

Each line has the ratio to the best peer, above 1 where polyop is faster: least times by turns, of the processor on one thread,
checked against the peers. At the end, what is slower, and what polyop warned of meanwhile, such as a kernel that it could not
make as it meant to. A copy in the same order is none for NumPy and PyTorch, so that there is none here; a result of einsum that
NumPy or PyTorch would leave turned is put in order, as ours is.
"""

from __future__ import annotations

import logging
import math
import string
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
import numpy as np

import polyop

Call = Callable[[], Any]


class Case(NamedTuple):
    """What it is called, and what it does by polyop and by each peer."""

    label: str
    polyop: Call
    peers: dict[str, Call]


class Draw:
    """Random sizes, shapes and arrays."""

    def __init__(self, seed: int) -> None:
        self.g = np.random.default_rng(seed)

    def size(self, low: int, high: int) -> int:
        """Even in its logarithm; every other one a multiple of a power of 2."""
        n = int(math.exp(self.g.uniform(math.log(low), math.log(high + 1))))
        unit = next((m for m in (64, 32, 16, 8, 4, 2) if n >= 2 * m), 1) if self.g.random() < 0.5 else 1
        return n // unit * unit

    def shape(self, ranks: tuple[int, int], low: float = 1e4, high: float = 6e6) -> list[int]:
        """Sizes from 2 on, with so many elements together."""
        while True:
            found = [self.size(2, 3000) for _ in range(self.g.integers(ranks[0], ranks[1] + 1))]
            if low < math.prod(found) < high:
                return found

    def one(self, *of: Any) -> Any:
        return of[self.g.integers(len(of))]

    def array(self, shape: Sequence[int], dtype: str = "f32") -> np.ndarray:
        return (self.g.standard_normal(tuple(shape)) * (9 if dtype[0] == "i" else 1)).astype(f"{dtype[0]}{int(dtype[1:]) // 8}")

    def view(self, shape: Sequence[int]) -> tuple[np.ndarray, str]:
        """An array, and how it lies in memory: most of them in order."""
        how = self.one("", "", "", ", gaps", ", every other", ", turned")
        if how == ", gaps":
            return self.array([n + 1 for n in shape])[tuple(slice(n) for n in shape)], how
        if how == ", every other":
            return self.array([2 * n for n in shape])[(slice(None, None, 2),) * len(shape)], how
        if how == ", turned":
            order = self.g.permutation(len(shape))
            return self.array([shape[d] for d in order]).transpose(np.argsort(order)), f"{how} {order}"
        return self.array(shape), how


class Warned(logging.Handler):
    """What polyop warns of, in order."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def _names(rank: int) -> tuple[list[str], list[str]]:
    """Sizes and indices of so many dimensions."""
    return [f"D{d}" for d in range(rank)], [f"i{d}" for d in range(rank)]


def _at(name: str, of: Sequence[str]) -> str:
    return f"{name}[{', '.join(of)}]" if of else name


def contraction(d: Draw, torch: Any) -> Case:
    """Two operands; indices of a batch, of either of them, and of both alone, in any order; with gaps or turned, some of them."""
    while True:
        counts = [int(x) for x in d.g.integers(0, 3, 4)]
        letters = iter(string.ascii_lowercase)
        b, m, n, k = ([next(letters) for _ in range(c)] for c in counts)
        size = {i: d.size(2, 300) for i in (*b, *m, *n, *k)}
        x, y, z = ([str(i) for i in d.g.permutation(list(t))] for t in (b + m + k, b + n + k, b + m + n))
        if x and y and z and 1e5 < math.prod(size.values()) < 1e8 and max(math.prod(size[i] for i in t) for t in (x, y, z)) < 8e6:
            break
    equation = f"{''.join(x)},{''.join(y)}->{''.join(z)}"
    given, how = zip(*(d.view([size[i] for i in t]) for t in (x, y)), strict=True)
    tensors = [torch.from_numpy(a) for a in given]
    return Case(f"einsum {equation} {size}{''.join(how)}", lambda: polyop.einsum(equation, *given), {
        "torch": lambda: torch.einsum(equation, *tensors).contiguous(),
        "numpy": lambda: np.ascontiguousarray(np.einsum(equation, *given, optimize=True))})


def permute(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 5))
    order = [int(p) for p in d.g.permutation(len(shape))]
    if order == sorted(order):
        return permute(d, torch)
    dtype = d.one("f32", "f32", "f64", "i8", "i16")
    x, (sizes, at) = d.array(shape, dtype), _names(len(shape))
    t = torch.from_numpy(x)
    f = polyop.op(f"op f(X: {_at(dtype, sizes)}) -> (Y: {_at(dtype, [sizes[p] for p in order])}) "
                  f"{{ {_at('Y', [at[p] for p in order])} = {_at('X', at)} }}")
    return Case(f"permute {shape} {order} {dtype}", lambda: f(x), {
        "torch": lambda: t.permute(*order).contiguous(), "numpy": lambda: np.ascontiguousarray(x.transpose(order))})


def reduction(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 4))
    axes = tuple(sorted(int(a) for a in d.g.permutation(len(shape))[:d.g.integers(1, len(shape) + 1)]))
    x, (sizes, at) = d.array(shape), _names(len(shape))
    kept, t, by = [a for a in range(len(shape)) if a not in axes], torch.from_numpy(x), d.one("+=", "max=")
    f = polyop.op(f"op f(X: {_at('f32', sizes)}) -> (Y: {_at('f32', [sizes[a] for a in kept])}) "
                  f"{{ {_at('Y', [at[a] for a in kept])} {by} {_at('X', at)} }}")
    peers: dict[str, Call] = {"torch": lambda: t.amax(axes), "numpy": lambda: x.max(axes)}
    if by == "+=":
        peers = {"torch": lambda: t.sum(axes), "numpy": lambda: x.sum(axes)}
    return Case(f"{by} {shape} over {axes}", lambda: f(x), peers)


def broadcast(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 4))
    has = [[bool(d.g.random() < 0.7) for _ in shape] for _ in range(2)]
    has = [[a or not b for a, b in zip(*has, strict=True)], has[1] if any(has[1]) else [True] * len(shape)]
    dtype, (sizes, at) = d.one("f32", "f32", "f64", "i32", "i16"), _names(len(shape))
    parts = [[i for i, h in enumerate(hs) if h] for hs in has]
    x, y = (d.array([shape[i] for i in p], dtype) for p in parts)
    f = polyop.op(f"op f(X: {_at(dtype, [sizes[i] for i in parts[0]])}, Y: {_at(dtype, [sizes[i] for i in parts[1]])}) "
                  f"-> (Z: {_at(dtype, sizes)}) {{ {_at('Z', at)} = {_at('X', [at[i] for i in parts[0]])} + "
                  f"{_at('Y', [at[i] for i in parts[1]])} }}")
    wide = [a.reshape([n if h else 1 for n, h in zip(shape, hs, strict=True)]) for a, hs in zip((x, y), has, strict=True)]
    tensors = [torch.from_numpy(a) for a in wide]
    return Case(f"add {shape} {parts} {dtype}", lambda: f(x, y), {
        "torch": lambda: tensors[0] + tensors[1], "numpy": lambda: wide[0] + wide[1]})


def convolution(d: Draw, torch: Any) -> Case:
    while True:
        n, c, k, h, w = d.one(1, 1, 2, 8), d.size(1, 256), d.size(1, 256), d.size(6, 120), d.size(6, 120)
        r, step, apart = d.one(1, 2, 3, 3, 3, 5, 7), d.one(1, 1, 2, 3), d.one(1, 1, 1, 2)
        reach = (r - 1) * apart + 1
        p, q = ((x - reach) // step + 1 for x in (h, w))
        if min(h, w) >= reach and 5e5 < n * k * p * q * c * r * r < 2e8:
            break
    x, filters = d.array((n, c, h, w)), d.array((k, c, r, r))
    tensors = [torch.from_numpy(a) for a in (x, filters)]
    f = polyop.op(f"op f(X: f32[N, C, H, W], F: f32[K, C, R, R]) -> (Y: f32[N, K, (H - (R - 1)*{apart} - 1)/{step} + 1, "
                  f"(W - (R - 1)*{apart} - 1)/{step} + 1]) where H >= (R - 1)*{apart} + 1, W >= (R - 1)*{apart} + 1 "
                  f"{{ Y[n, k, p, q] += X[n, c, {step}*p + {apart}*r, {step}*q + {apart}*s] * F[k, c, r, s] }}")
    return Case(f"conv {n}x{c}x{h}x{w} {k} filters {r}x{r} /{step} dilated {apart}", lambda: f(x, filters), {
        "torch": lambda: torch.nn.functional.conv2d(*tensors, None, step, 0, apart)})


def along(d: Draw, torch: Any) -> Case:
    """Something along one dimension, whichever it is."""
    shape, kind = d.shape((2, 3), high=4e6), d.one("softmax", "cumsum", "argmax")
    axis = int(d.g.integers(len(shape)))
    x, (sizes, at) = d.array(shape), _names(len(shape))
    rest, t = [i for a, i in enumerate(at) if a != axis], torch.from_numpy(x)
    before = [f"{i} - 1" if a == axis else i for a, i in enumerate(at)]
    result = _at("i64", [n for a, n in enumerate(sizes) if a != axis]) if kind == "argmax" else _at("f32", sizes)
    body = {"softmax": f"{_at('t', rest)} max= {_at('X', at)}\n {_at('e', at)} = exp({_at('X', at)} - {_at('t', rest)})\n"
                       f"{_at('z', rest)} += {_at('e', at)}\n {_at('Y', at)} = {_at('e', at)} / {_at('z', rest)}",
            "cumsum": f"{_at('Y', at)} = ({_at('Y', before)} else 0) + {_at('X', at)}",
            "argmax": f"{_at('Y', rest)} argmax= {_at('X', at)}"}[kind]
    f = polyop.op(f"op f(X: {_at('f32', sizes)}) -> (Y: {result}) {{ {body} }}")
    peers = {"torch": lambda: getattr(torch, kind)(t, axis)}
    return Case(f"{kind} {shape} along {axis}", lambda: f(x),
                peers | ({} if kind == "softmax" else {"numpy": lambda: getattr(np, kind)(x, axis)}))


def gather(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 3), high=4e6)
    axis = int(d.g.integers(len(shape)))
    count = min(d.size(2, 2 * shape[axis]), int(8e6 * shape[axis] / math.prod(shape)))
    x, places, (sizes, at) = d.array(shape), d.g.integers(0, shape[axis], count), _names(len(shape))
    t, u = torch.from_numpy(x), torch.from_numpy(places)
    f = polyop.op(f"op f(X: {_at('f32', sizes)}, ids: i64[P]) -> (Y: {_at('f32', [*sizes[:axis], 'P', *sizes[axis + 1:]])}) "
                  f"{{ {_at('Y', at)} = {_at('X', [f'ids[{i}]' if a == axis else i for a, i in enumerate(at)])} }}")
    return Case(f"gather {shape} along {axis}, {count} of them", lambda: f(x, places), {
        "torch": lambda: torch.index_select(t, axis, u), "numpy": lambda: np.take(x, places, axis)})


KINDS = {f.__name__: f for f in (contraction, permute, reduction, broadcast, convolution, along, gather)}


def measured(case: Case, clock: Callable[[], float] = time.thread_time, rounds: int = 9) -> dict[str, float]:
    """Least seconds of a call by each, by turns, as `clock` counts them. Raises AssertionError where results differ."""
    calls = {"polyop": case.polyop, **case.peers}
    wanted = {n: np.asarray(f(), np.float64) for n, f in calls.items()}
    for n, w in wanted.items():
        scale = max(1.0, float(np.abs(w).max(initial=0)))
        np.testing.assert_allclose(wanted["polyop"] / scale, w / scale, rtol=1e-2, atol=1e-3, err_msg=f"{case.label}, {n}")
    for _ in range(4):
        case.polyop()
    start = clock()
    case.polyop()
    turns = max(1, min(2000, int(0.002 / max(1e-7, clock() - start))))
    least = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for n, f in calls.items():
            start = clock()
            for _ in range(turns):
                f()
            least[n] = min(least[n], (clock() - start) / turns)
    return least


@click.command(help=__doc__)
@click.argument("count", type=click.IntRange(min=1))
@click.option("--seed", type=int, help="Which ones.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only of these kinds.")
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of polyop and of PyTorch.")
def main(count: int, seed: int | None, kinds: tuple[str, ...], threads: int) -> None:
    """Draw, measure, print."""
    try:
        import torch
    except ImportError:
        sys.exit("PyTorch is not installed, against which most of these are measured: pip install torch")
    torch.set_num_threads(threads)
    polyop.set_num_threads(threads)
    warned, clock = Warned(), time.thread_time if threads == 1 else time.perf_counter
    log = logging.getLogger("polyop")
    log.addHandler(warned)
    click.get_current_context().call_on_close(lambda: log.removeHandler(warned))
    seed = int(time.time()) if seed is None else seed
    click.echo(f"seed {seed}")
    draw, slower, product = Draw(seed), [], 0.0
    for _ in range(count):
        case = KINDS[draw.one(*(kinds or KINDS))](draw, torch)
        before = len(warned.said)
        times = measured(case, clock)
        ratio = min(t for n, t in times.items() if n != "polyop") / times["polyop"]
        product += math.log(ratio)
        line = f"{ratio:7.2f}  {case.label}  " + ", ".join(f"{n} {t * 1e6:.1f} us" for n, t in times.items())
        click.echo(line)
        warned.said[before:] = [f"{case.label}: {said}" for said in warned.said[before:]]
        slower += [(ratio, line)] if ratio < 1 else []
    click.echo(f"\n{math.exp(product / count):.2f} at the mean; slower {len(slower)} of {count}")
    for _, line in sorted(slower):
        click.echo(line)
    click.echo("\n".join(("", *warned.said)) if warned.said else "no warning")
    sys.exit(bool(warned.said))


if __name__ == "__main__":
    main()
