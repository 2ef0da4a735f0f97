"""Stores to every second, third or fourth place: each vector is spread over as many, of which a mask chooses the places."""

from __future__ import annotations

from polyop.codegen.llvm.addresses import Place
from polyop.codegen.llvm.masked import masked_store
from polyop.codegen.llvm.pointers import gep
from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import constant, constant_mask, shuffle_mask, vector
from polyop.ir.target import NEAR


def is_spaced(s: State, place: Place) -> bool:
    """Whether lanes lie a few places apart, and vectors are written in part at no cost: a scatter takes a cycle for each lane."""
    return s.shared.target.masks and place.offsets is None and isinstance(place.stride, int) and 1 < place.stride <= NEAR


def write_spaced(s: State, place: Place, raw: str, p: str, v: int, mask: str | None) -> None:
    """Store lane i of `raw`, vector `v` of its row, to p[(v w + i) stride] if `mask` holds for it."""
    w, step = s.width, place.stride
    assert isinstance(step, int)
    t, lanes = vector(place.element, w), vector("i1", w)
    for start in range(0, w * step, w):
        at = {i * step - start: i for i in range(w) if start <= i * step < start + w}
        order = shuffle_mask([at.get(j, 0) for j in range(w)])
        x = s.b.do(f"shufflevector {t} {raw}, {t} poison, {order}")
        if mask is None:
            here = constant_mask(j in at for j in range(w))
        else:
            some = shuffle_mask([at.get(j, w) for j in range(w)])
            here = s.b.pure(f"shufflevector {lanes} {mask}, {lanes} {constant(False, 'i1', w)}, {some}", mask)
        masked_store(s, place.element, w, x, gep(s, place.element, p, v * w * step + start), here)
