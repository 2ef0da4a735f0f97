"""How far the indices of a GPU's kernel get, so that a host can tell whether 32 bits hold them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polyop.ir.expr import Affine, evaluate

MOST = 2**31 - 2**20
"""What no index may exceed that has 32 bits. Text counts a few iterations on, from one side of a tile to the other at most."""


@dataclass(frozen=True, slots=True)
class Stride:
    """The stride of a tensor's dimension in elements, whichever way it goes."""

    tensor: str
    dim: int


@dataclass(frozen=True, slots=True)
class Reach:
    """A sum of products that some numbers of a kernel never exceed; of the factors, none counts less than 0.

    The factors are those of sizes and of strides: `(M + 127) * A_s0 + K` is ((M + 127, Stride(A, 0)), (K,)).
    """

    terms: tuple[tuple[Affine | Stride, ...], ...]

    def value(self, sizes: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]) -> int:
        total = 0
        for factors in self.terms:
            product = 1
            for f in factors:
                product *= abs(strides[f.tensor][f.dim]) if isinstance(f, Stride) else max(0, evaluate(f, sizes))
            total += product
        return total


def within(reaches: Iterable[Reach], sizes: Mapping[str, int], strides: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether 32 bits hold all that `reaches` bound, for these sizes and strides."""
    return all(r.value(sizes, strides) <= MOST for r in reaches)
