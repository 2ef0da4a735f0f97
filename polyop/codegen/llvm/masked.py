"""Loads of some of the lanes of a vector, and stores of all or some."""

from __future__ import annotations

from collections.abc import Iterator

from polyop.codegen.llvm.index import first_of
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import Int, alignment, constant_mask, shuffle_mask, suffix, vector

WIDEST, LEAST = 512, 128  # bits of a register that holds a vector


def part(s: State, element: str, width: int, raw: str, first: int, count: int) -> str:
    """`count` lanes of `raw`, which has `width`, from `first` on; a scalar, if that is one."""
    t = vector(element, width)
    if count == width:
        return raw
    if count == 1:
        return s.b.do(f"extractelement {t} {raw}, i64 {first}")
    return s.b.do(f"shufflevector {t} {raw}, {t} poison, {shuffle_mask([*range(first, first + count)])}")


def store_vector(s: State, element: str, width: int, raw: str, p: str, mask: str | None) -> None:
    """Store `raw`, `width` elements, from `p` on: all lanes, or those that `mask` holds for."""
    if mask is None:
        s.b.line(f"store {vector(element, width)} {raw}, ptr {p}, align {alignment(element)}")
    else:
        masked_store(s, element, width, raw, p, mask)


def whole_parts(count: int) -> Iterator[tuple[int, int]]:
    """(first, how many) of vectors of a power of two that `count` elements are made of, the widest first: 7 is 4, 2 and 1."""
    at = 0
    while at < count:
        some = 1 << (count - at).bit_length() - 1
        yield at, some
        at += some


def store_first(s: State, element: str, width: int, raw: str, p: str, count: Int) -> None:
    """Store the first `count` elements of `raw`: in pieces, where it is known how many and masks cost something."""
    if s.shared.target.masks or not isinstance(count, int) or count >= width:
        store_vector(s, element, width, raw, p, first_of(s, width, count))
        return
    for at, some in whole_parts(count):
        store_vector(s, element, some, part(s, element, width, raw, at, some), gep(s, element, p, at), None)


def load_first(s: State, element: str, width: int, p: str, count: int) -> str:
    """The first `count` of `width` elements from `p` on, 0 in other lanes; narrow ones in pieces, where masks cost something."""
    t, align, b = vector(element, width), alignment(element), s.b
    if count >= width:
        return b.read(f"load {t}, ptr {p}, align {align}")
    if s.shared.target.masks or align >= 4 or count <= 0:
        return masked_load(s, element, p, constant_mask(i < count for i in range(width)), width)
    out = "zeroinitializer"
    for at, some in whole_parts(count):
        piece = b.read(f"load {vector(element, some)}, ptr {gep(s, element, p, at)}, align {align}")
        if some == 1:
            out = b.do(f"insertelement {t} {out}, {element} {piece}, i64 {at}")
        else:
            one = vector(element, some)
            wide = b.do(f"shufflevector {one} {piece}, {one} poison, {shuffle_mask([i % some for i in range(width)])}")
            out = b.do(f"shufflevector {t} {out}, {t} {wide}, "
                       f"{shuffle_mask([width + i if at <= i < at + some else i for i in range(width)])}")
    return out


def masked_store(s: State, element: str, width: int, raw: str, p: str, mask: str) -> None:
    """Store the lanes of `raw` that `mask` holds for, `width` elements, from `p` on.

    LLVM 22 makes one store of a truncation and a masked store. If it knows the mask, and only one lane is set, that store is of
    the element before truncation: it writes up to seven bytes too many. So it is not told that narrow elements were truncated.
    """
    if s.shared.target.masks and element in ("i8", "i16", "i32"):
        raw = _opaque(s, element, width, raw)
    args = ((vector(element, width), raw), (f"ptr align {alignment(element)}", p), (f"<{width} x i1>", mask))
    s.b.call("void", f"llvm.masked.store.{suffix(element, width)}.p0", *args)


def _opaque(s: State, element: str, width: int, raw: str) -> str:
    """`raw`, of which nothing more is known. It takes no instruction."""
    b, t, bits = s.b, vector(element, width), width * 8 * alignment(element)
    if bits > WIDEST:
        half = width // 2
        parts = [b.do(f"shufflevector {t} {raw}, {t} poison, {shuffle_mask([*range(at, at + half)])}") for at in (0, half)]
        low, high = (_opaque(s, element, half, x) for x in parts)
        one = vector(element, half)
        return b.do(f"shufflevector {one} {low}, {one} {high}, {shuffle_mask([*range(width)])}")
    if bits >= LEAST:
        return b.do(f'call {t} asm "", "=v,0"({t} {raw})')
    word = {32: "float", 64: "double"}.get(bits, f"i{bits}")
    where = "r" if word.startswith("i") else "v"
    same = b.do(f"bitcast {t} {raw} to {word}")
    same = b.do(f'call {word} asm "", "={where},0"({word} {same})')
    return b.do(f"bitcast {word} {same} to {t}")


def masked_load(s: State, element: str, p: str, mask: str, width: int = 0, rest: str = "zeroinitializer") -> str:
    """The elements from `p` on for which the mask holds, and what `rest` has elsewhere."""
    w = width or s.width
    t = vector(element, w)
    args = ((f"ptr align {alignment(element)}", p), (f"<{w} x i1>", mask), (t, rest))
    return s.b.read(s.b.spelled(t, f"llvm.masked.load.{suffix(element, w)}.p0", args))
