"""Random arrays, and what is measured of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

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


def names(rank: int) -> tuple[list[str], list[str]]:
    """Sizes and indices of so many dimensions."""
    return [f"D{d}" for d in range(rank)], [f"i{d}" for d in range(rank)]


def at_(name: str, of: Sequence[str]) -> str:
    return f"{name}[{', '.join(of)}]" if of else name
