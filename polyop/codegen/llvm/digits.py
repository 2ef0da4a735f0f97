"""Digits of lanes: quotients and remainders by a number of which the vectors of a loop begin at multiples.

    t = 0 mod 64, 0 <= v < 64:      floor((t + v + 1)/2) = t/2 + floor((v + 1)/2)        (t + v) mod 2 = v mod 2

So what each lane adds is known when the code is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyop.codegen.llvm.state import State
from polyop.ir.expr import Affine, affine, names, quasi

Parts = tuple[Affine, tuple[int, ...]]
"""What is the same in all lanes, and what each adds to it."""


def lanes_of_vector(s: State, v: int) -> range:
    """The numbers of the lanes of vector `v`."""
    return range(v * s.width, (v + 1) * s.width)


def in_parts(s: State, x: Affine, lanes: Sequence[int]) -> Parts | None:
    """`x` as what is the same in all `lanes`, and what each adds; None if that depends on more than the number of a lane."""
    assert s.lanes is not None
    name = s.lanes.index
    same, each = affine(x.const), [0] * len(lanes)
    for a, f in x.terms:
        if a == name:
            more = tuple(lanes)
        elif isinstance(a, str) or name not in names(affine(a)):
            same = same + affine(a) * f
            continue
        else:
            inner = in_parts(s, a.args[0], lanes) if a.op in ("div", "mod") else None
            divisor = a.args[1]
            if inner is None or s.multiple(inner[0] - inner[0].const) % divisor.const:
                return None
            own = [inner[0].const + y for y in inner[1]]
            if a.op == "div":
                same = same + quasi("div", inner[0] - inner[0].const, divisor) * f
            more = tuple(y // divisor.const if a.op == "div" else y % divisor.const for y in own)
        each = [y + f * m for y, m in zip(each, more, strict=True)]
    return same, tuple(each)
