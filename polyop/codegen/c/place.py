"""Places in memory -> C text: where an element lies in its buffer, and how it lies there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate

from polyop.codegen.c.index import CHOICE, Text, conditions, index
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu.slots import slot_counts
from polyop.ir.dtypes import BF16, F16, DType
from polyop.ir.expr import Affine, Load, affine, is_computed, quasi
from polyop.ir.loops import Buffer, Space

STORED = {"f16": "pop_f16", "bf16": "pop_bf16", "f32": "float", "f64": "double", "i8": "pop_i8", "i16": "pop_i16",
          "i32": "pop_i32", "i64": "pop_i64", "u8": "pop_u8", "u16": "pop_u16", "u32": "pop_u32", "u64": "pop_u64",
          "bool": "bool"}
"""The C type of an element in memory."""

NARROW = (F16, BF16)
"""Types whose values are held as a `float`: see `codegen/c/expr.py`."""


def value_type(t: DType) -> str:
    """The C type of a value in an expression."""
    return "float" if t in NARROW else STORED[t.name]


def widened(element_: str, t: DType) -> str:
    """An element as a value."""
    return f"pop_from_{t}({element_})" if t in NARROW else element_


def narrowed(value: str, t: DType) -> str:
    """A value as an element; one that is rounded to be a value of `t` is rounded by becoming an element, and not before."""
    if t not in NARROW:
        return value
    head = f"pop_round_{t}"
    inner = value[len(head):]
    open_ = list(accumulate((c == "(") - (c == ")") for c in inner))
    is_rounded = value.startswith(f"{head}(") and 0 not in open_[:-1]
    return f"pop_to_{t}{inner}" if is_rounded else f"pop_to_{t}({value})"


def strides(b: Buffer, c_name: str) -> tuple[int | str, ...]:
    """The distance in elements between neighbours in each dimension: a number, or the C variable that holds it."""
    rank = len(b.dims)
    if b.space == Space.TENSOR:
        return tuple(1 if d == b.unit else f"{c_name}_s{d}" for d in range(rank))
    out: list[int | str] = []
    for d in range(rank):
        inner = slot_counts(b)[d + 1:]
        out.append(math.prod(n.const for n in inner) if all(n.is_constant for n in inner) else f"{c_name}_s{d}")
    return tuple(out)


def offset(load: Load, values: Mapping[int, Text], scope: Scope) -> Text:
    """The distance of the place from the buffer's start; `values` holds the text of each computed position."""
    b = scope.buffers[load.source]
    if b.swizzle:
        return _swizzled(load, b, scope)
    plain = Affine()     # the part with constant strides, as one sum
    parts: list[str] = []
    for d, (position, stride) in enumerate(zip(load.index, strides(b, scope.names[b.name]), strict=True)):
        if not isinstance(position, Affine):
            extent, site = index(b.dims[d][0], scope.names).c, scope.sites[load]
            told = f", pop_status, {site}" if site else ""
            parts.append(f"pop_position({values[d].c}, {extent}, {stride}{told})")
            continue
        slot = quasi("div", position, affine(b.dims[d][1]))
        if b.turned and d == len(b.dims) - 2:
            parts.append(f"pop_turned<{b.turned.value}>({index(slot, scope.names).c}) * {stride}")
        elif isinstance(stride, int):
            plain = plain + slot * stride
        elif slot != Affine():
            parts.append(stride if slot == Affine(const=1) else f"{index(slot, scope.names).at(13)} * {stride}")
    if plain != Affine() or not parts:
        text = index(plain, scope.names).c
        return Text(" + ".join([*parts, text]).replace("+ -", "- "), 12) if parts else Text(text, 12)
    return Text(" + ".join(parts), 12)


def _swizzled(load: Load, b: Buffer, scope: Scope) -> Text:
    """The place in a swizzled buffer: see `ir.loops.Buffer`."""
    positions = [p for p in load.index if isinstance(p, Affine)]
    counts = [n.const for n in slot_counts(b)]
    outer = sum((p * math.prod(counts[d + 1:]) for d, p in enumerate(positions[:-2])), Affine())
    y, x = (index(p, scope.names).c for p in positions[-2:])
    how = "pop_doubled" if b.doubled else "pop_folded" if b.folded else "pop_swizzled"
    inner = f"{how}<{counts[-2]}, {b.swizzle // b.dtype.bytes_}>({y}, {x})"
    return Text(f"{index(outer, scope.names).c} + {inner}", 12) if outer != Affine() else Text(inner)


def element(load: Load, values: Mapping[int, Text], scope: Scope) -> str:
    """The place as something C can read and write; not for computed positions, which may lie outside."""
    b, name = scope.buffers[load.source], scope.names[load.source]
    if load.source in scope.tiles.held:
        return f"{name}[{offset(load, values, scope).c}][pop_r]"
    if load.source in scope.tiles.rows:
        return f"{name}[{offset(load, values, scope).c}][{scope.row}]"
    return name if b.space == Space.REG and not b.dims else f"{name}[{offset(load, values, scope).c}]"


def computed(load: Load, args: Sequence[Text]) -> dict[int, Text]:
    """The texts of `children(load)` by the dimension each stands in."""
    dims = [d for d, p in enumerate(load.index) if is_computed(p)]
    return dict(zip(dims, args, strict=True))


def moved(load: Load, scope: Scope) -> Text:
    """An element as it lies in memory, or 0 where its guard fails."""
    out = element(load, {}, scope)
    if not load.guard:
        return Text(out)
    return Text(f"{conditions(load.guard, scope.names).at(CHOICE + 1)} ? {out} : ({STORED[load.dtype.name]})0", CHOICE)
