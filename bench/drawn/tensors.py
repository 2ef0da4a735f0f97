"""Contractions, sums, and what moves elements or computes them one by one."""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from typing import Any

import numpy as np

import polyop
from bench.drawn.draw import Call, Case, Draw, at_, names


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
    x, (sizes, at) = d.array(shape, dtype), names(len(shape))
    t = torch.from_numpy(x)
    f = polyop.op(f"op f(X: {at_(dtype, sizes)}) -> (Y: {at_(dtype, [sizes[p] for p in order])}) "
                  f"{{ {at_('Y', [at[p] for p in order])} = {at_('X', at)} }}")
    return Case(f"permute {shape} {order} {dtype}", lambda: f(x), {
        "torch": lambda: t.permute(*order).contiguous(), "numpy": lambda: np.ascontiguousarray(x.transpose(order))})


def reduction(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 4))
    axes = tuple(sorted(int(a) for a in d.g.permutation(len(shape))[:d.g.integers(1, len(shape) + 1)]))
    x, (sizes, at) = d.array(shape), names(len(shape))
    kept, t, by = [a for a in range(len(shape)) if a not in axes], torch.from_numpy(x), d.one("+=", "max=")
    f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {at_('f32', [sizes[a] for a in kept])}) "
                  f"{{ {at_('Y', [at[a] for a in kept])} {by} {at_('X', at)} }}")
    peers: dict[str, Call] = {"torch": lambda: t.amax(axes), "numpy": lambda: x.max(axes)}
    if by == "+=":
        peers = {"torch": lambda: t.sum(axes), "numpy": lambda: x.sum(axes)}
    return Case(f"{by} {shape} over {axes}", lambda: f(x), peers)


def reduced(d: Draw, torch: Any) -> Case:
    """What is added up is computed, or asked about, first."""
    shape = d.shape((2, 3))
    axis = int(d.g.integers(len(shape)))
    x, (sizes, at) = d.array(shape), names(len(shape))
    rest, t, out = [i for a, i in enumerate(at) if a != axis], torch.from_numpy(x), [s for a, s in enumerate(sizes) if a != axis]
    X, Y, T, U, V = at_("X", at), at_("Y", rest), at_("t", rest), at_("u", rest), at_("v", rest)
    what: dict[str, tuple[str, Call, Call]] = {
        "squares": (f"{Y} += {X} * {X}", lambda: (t * t).sum(axis), lambda: (x * x).sum(axis)),
        "log sum exp": (f"{T} max= {X}; {U} += exp({X} - {T}); {Y} = log({U}) + {T}", lambda: torch.logsumexp(t, axis),
                        lambda: np.log(np.exp(x - x.max(axis, keepdims=True)).sum(axis)) + x.max(axis)),
        "count": (f"{Y} += {X} > 0.5 ? 1 : 0", lambda: (t > 0.5).sum(axis), lambda: (x > 0.5).sum(axis)),
        "mean": (f"{T} += {X}; {Y} = {T} / {sizes[axis]}", lambda: t.mean(axis), lambda: x.mean(axis)),
        "variance": (f"{T} += {X}; {U} = {T} / {sizes[axis]}; {V} += ({X} - {U}) * ({X} - {U}); {Y} = {V} / {sizes[axis]}",
                     lambda: torch.var(t, axis, correction=0), lambda: x.var(axis)),
        "any": (f"{Y} or= {X} > 4", lambda: (t > 4).any(axis), lambda: (x > 4).any(axis)),
        "greatest size": (f"{Y} max= abs({X})", lambda: abs(t).amax(axis), lambda: abs(x).max(axis)),
        "positive": (f"{Y} += max({X}, 0)", lambda: torch.relu(t).sum(axis), lambda: np.maximum(x, np.float32(0)).sum(axis))}
    kind = d.one(*what)
    text, torchs, numpys = what[kind]
    result = at_({"count": "i64", "any": "bool"}.get(kind, "f32"), out)
    f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {result}) {{ {text} }}")
    return Case(f"{kind} {shape} along {axis}", lambda: f(x), {"torch": torchs, "numpy": numpys})


def broadcast(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 4))
    has = [[bool(d.g.random() < 0.7) for _ in shape] for _ in range(2)]
    has = [[a or not b for a, b in zip(*has, strict=True)], has[1] if any(has[1]) else [True] * len(shape)]
    dtype, (sizes, at) = d.one("f32", "f32", "f64", "i32", "i16"), names(len(shape))
    parts = [[i for i, h in enumerate(hs) if h] for hs in has]
    x, y = (d.array([shape[i] for i in p], dtype) for p in parts)
    f = polyop.op(f"op f(X: {at_(dtype, [sizes[i] for i in parts[0]])}, Y: {at_(dtype, [sizes[i] for i in parts[1]])}) "
                  f"-> (Z: {at_(dtype, sizes)}) {{ {at_('Z', at)} = {at_('X', [at[i] for i in parts[0]])} + "
                  f"{at_('Y', [at[i] for i in parts[1]])} }}")
    wide = [a.reshape([n if h else 1 for n, h in zip(shape, hs, strict=True)]) for a, hs in zip((x, y), has, strict=True)]
    tensors = [torch.from_numpy(a) for a in wide]
    return Case(f"add {shape} {parts} {dtype}", lambda: f(x, y), {
        "torch": lambda: tensors[0] + tensors[1], "numpy": lambda: wide[0] + wide[1]})


_OF_FLOATS: dict[str, Callable[..., Any]] = {
    "exp(-{x}) * {y}": lambda by, x, y: by.exp(-x) * y, "sqrt({x}) + {y}": lambda by, x, y: by.sqrt(x) + y,
    "{x} > {y} ? {x} : 0": lambda by, x, y: by.where(x > y, x, by.zeros_like(x)),
    "tanh({x}) - {y}": lambda by, x, y: by.tanh(x) - y, "{x} / ({y} + 1)": lambda by, x, y: x / (y + 1),
    "log({x} + 1) * {y}": lambda by, x, y: by.log(x + 1) * y, "abs({x} - {y})": lambda by, x, y: by.abs(x - y),
    "sin({x}) * cos({y})": lambda by, x, y: by.sin(x) * by.cos(y)}
_OF_INTEGERS: dict[str, Callable[..., Any]] = {
    "max({x}, {y})": lambda by, x, y: by.maximum(x, y), "{x} + {y} * 2": lambda by, x, y: x + y * 2,
    "({x} - {y}) * ({x} - {y})": lambda by, x, y: (x - y) * (x - y)}


def chain(d: Draw, torch: Any) -> Case:
    """A few functions of two arrays, element by element."""
    shape, dtype = d.shape((1, 3)), d.one("f32", "f32", "f64", "f16", "i32", "u8")
    sizes, at = names(len(shape))
    x, y = (d.g.integers(0, 255, shape).astype("u1") if dtype == "u8" else np.abs(d.array(shape, dtype)) for _ in range(2))
    tx, ty = torch.from_numpy(x), torch.from_numpy(y)
    of = _OF_FLOATS if dtype[0] == "f" else _OF_INTEGERS
    key = d.one(*of)
    f = polyop.op(f"op f(X: {at_(dtype, sizes)}, Y: {at_(dtype, sizes)}) -> (Z: {at_(dtype, sizes)}) "
                  f"{{ {at_('Z', at)} = {key.format(x=at_('X', at), y=at_('Y', at))} }}")
    return Case(f"{key.format(x='x', y='y')} {shape} {dtype}", lambda: f(x, y), {
        "torch": lambda: of[key](torch, tx, ty), "numpy": lambda: of[key](np, x, y)})


def cast(d: Draw, torch: Any) -> Case:
    a, b = d.one("f32", "f64", "f16", "i32", "u8", "i8", "i64"), d.one("f32", "f64", "f16", "i32", "u8", "i8", "i64")
    if a == b:
        return cast(d, torch)
    shape = d.shape((1, 3))
    x = d.g.integers(0, 100, shape).astype(np.dtype(f"{a[0]}{int(a[1:]) // 8}"))
    t, to = torch.from_numpy(x), np.dtype(f"{b[0]}{int(b[1:]) // 8}")
    sizes, at = names(len(shape))
    f = polyop.op(f"op f(X: {at_(a, sizes)}) -> (Y: {at_(b, sizes)}) {{ {at_('Y', at)} = {b}({at_('X', at)}) }}")
    kind = torch.from_numpy(np.zeros(1, to)).dtype
    return Case(f"{a} to {b} {shape}", lambda: f(x), {"torch": lambda: t.to(kind), "numpy": lambda: x.astype(to)})


def along(d: Draw, torch: Any) -> Case:
    """Something along one dimension, whichever it is."""
    shape, kind = d.shape((2, 3), high=4e6), d.one("softmax", "cumsum", "argmax")
    axis = int(d.g.integers(len(shape)))
    x, (sizes, at) = d.array(shape), names(len(shape))
    rest, t = [i for a, i in enumerate(at) if a != axis], torch.from_numpy(x)
    before = [f"{i} - 1" if a == axis else i for a, i in enumerate(at)]
    result = at_("i64", [n for a, n in enumerate(sizes) if a != axis]) if kind == "argmax" else at_("f32", sizes)
    body = {"softmax": f"{at_('t', rest)} max= {at_('X', at)}\n {at_('e', at)} = exp({at_('X', at)} - {at_('t', rest)})\n"
                       f"{at_('z', rest)} += {at_('e', at)}\n {at_('Y', at)} = {at_('e', at)} / {at_('z', rest)}",
            "cumsum": f"{at_('Y', at)} = ({at_('Y', before)} else 0) + {at_('X', at)}",
            "argmax": f"{at_('Y', rest)} argmax= {at_('X', at)}"}[kind]
    f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {result}) {{ {body} }}")
    peers = {"torch": lambda: getattr(torch, kind)(t, axis)}
    return Case(f"{kind} {shape} along {axis}", lambda: f(x),
                peers | ({} if kind == "softmax" else {"numpy": lambda: getattr(np, kind)(x, axis)}))


def gather(d: Draw, torch: Any) -> Case:
    shape = d.shape((2, 3), high=4e6)
    axis = int(d.g.integers(len(shape)))
    count = min(d.size(2, 2 * shape[axis]), int(8e6 * shape[axis] / math.prod(shape)))
    x, places, (sizes, at) = d.array(shape), d.g.integers(0, shape[axis], count), names(len(shape))
    t, u = torch.from_numpy(x), torch.from_numpy(places)
    f = polyop.op(f"op f(X: {at_('f32', sizes)}, ids: i64[P]) -> (Y: {at_('f32', [*sizes[:axis], 'P', *sizes[axis + 1:]])}) "
                  f"{{ {at_('Y', at)} = {at_('X', [f'ids[{i}]' if a == axis else i for a, i in enumerate(at)])} }}")
    return Case(f"gather {shape} along {axis}, {count} of them", lambda: f(x, places), {
        "torch": lambda: torch.index_select(t, axis, u), "numpy": lambda: np.take(x, places, axis)})


def scatter(d: Draw, torch: Any) -> Case:
    """Rows, or elements, added up at places that data say."""
    rows, width, to = d.size(100, 100_000), d.one(1, d.size(2, 16), d.size(2, 512)), d.size(2, 20_000)
    if not 1e4 < rows * width < 4e6 or to * width > 4e6:
        return scatter(d, torch)
    x, places = d.array((rows, width)), d.g.integers(0, to, rows)
    t, u = torch.from_numpy(x), torch.from_numpy(places)
    f = polyop.op("op f(X: f32[N, C], ids: i64[N]; R: int) -> (Y: f32[R, C]) where R >= 1 { Y[ids[n], c] += X[n, c] }")
    return Case(f"add {rows} rows of {width} into {to}", lambda: f(x, places, R=to), {
        "torch": lambda: torch.zeros(to, width).index_add_(0, u, t)})


def move(d: Draw, torch: Any) -> Case:
    """Padded, rolled, turned round, put behind each other, repeated."""
    shape, kind = d.shape((1, 3), high=4e6), d.one("pad", "roll", "flip", "concat", "repeat", "tril", "shift")
    axis = int(d.g.integers(len(shape)))
    x, (sizes, at) = d.array(shape), names(len(shape))
    t, n = torch.from_numpy(x), shape[axis]
    S, i = sizes[axis], at[axis]

    def put(new: str, of: list[str] = at) -> list[str]:
        return [new if a == axis else y for a, y in enumerate(of)]

    if kind == "concat":
        y = d.array([d.size(1, n) if a == axis else m for a, m in enumerate(shape)])
        u = torch.from_numpy(y)
        first, second = f"{at_('Z', at)} = {at_('X', at)} where {i} in 0:{S}", f"{at_('Z', put(f'{i} + {S}'))} = {at_('Y', at)}"
        f = polyop.op(f"op f(X: {at_('f32', sizes)}, Y: {at_('f32', put('E', sizes))}) "
                      f"-> (Z: {at_('f32', put(f'{S} + E', sizes))}) {{ {first}; {second} where {i} in 0:E }}")
        return Case(f"concat {shape} {list(y.shape)} along {axis}", lambda: f(x, y), {
            "torch": lambda: torch.cat((t, u), axis), "numpy": lambda: np.concatenate((x, y), axis)})
    if kind == "tril" and len(shape) > 1:
        f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {at_('f32', sizes)}) "
                      f"{{ {at_('Y', at)} = {at[-1]} <= {at[-2]} ? {at_('X', at)} : 0 }}")
        return Case(f"tril {shape}", lambda: f(x), {"torch": lambda: torch.tril(t), "numpy": lambda: np.tril(x)})
    if kind == "pad":
        f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {at_('f32', put(f'{S} + 3', sizes))}) "
                      f"{{ {at_('Y', at)} = ({at_('X', put(f'{i} - 1'))} else 0) }}")
        wide = [(1, 2) if a == axis else (0, 0) for a in range(len(shape))]
        flat = [p for w in reversed(wide) for p in w]
        return Case(f"pad {shape} along {axis}", lambda: f(x), {
            "torch": lambda: torch.nn.functional.pad(t, flat), "numpy": lambda: np.pad(x, wide)})
    if kind == "roll":
        k = int(d.g.integers(1, n)) if n > 1 else 0
        f = polyop.op(f"op f(X: {at_('f32', sizes)}; k: int) -> (Y: {at_('f32', sizes)}) where 0 <= k, k < {S} "
                      f"{{ {at_('Y', at)} = {i} >= k ? {at_('X', put(f'{i} - k'))} : {at_('X', put(f'{i} - k + {S}'))} }}")
        return Case(f"roll {shape} along {axis} by {k}", lambda: f(x, k=k), {
            "torch": lambda: torch.roll(t, k, axis), "numpy": lambda: np.roll(x, k, axis)})
    if kind == "repeat":
        k = d.one(2, 3, 4)
        f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {at_('f32', put(f'{k}*{S}', sizes))}) "
                      f"{{ {at_('Y', at)} = {at_('X', put(f'{i} / {k}'))} }}")
        return Case(f"repeat {shape} along {axis} {k} times", lambda: f(x), {
            "torch": lambda: torch.repeat_interleave(t, k, axis), "numpy": lambda: np.repeat(x, k, axis)})
    if kind == "shift":
        f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {at_('f32', put(f'{S} - 1', sizes))}) where {S} >= 2 "
                      f"{{ {at_('Y', at)} = {at_('X', put(f'{i} + 1'))} - {at_('X', at)} }}")
        return Case(f"diff {shape} along {axis}", lambda: f(x), {
            "torch": lambda: torch.diff(t, dim=axis), "numpy": lambda: np.diff(x, axis=axis)})
    back = at_("X", put(f"{S} - 1 - {i}"))
    f = polyop.op(f"op f(X: {at_('f32', sizes)}) -> (Y: {at_('f32', sizes)}) {{ {at_('Y', at)} = {back} }}")
    return Case(f"flip {shape} along {axis}", lambda: f(x), {
        "torch": lambda: torch.flip(t, (axis,)), "numpy": lambda: np.ascontiguousarray(np.flip(x, axis))})


KINDS = (contraction, permute, reduction, reduced, broadcast, chain, cast, along, gather, scatter, move)
