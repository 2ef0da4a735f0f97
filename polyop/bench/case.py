"""What is measured: an operator at some sizes, and how others would write the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from polyop import standard
from polyop.dsl import syntax
from polyop.ir.span import Source
from polyop.reading import parse

Array = Any
Same = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of ONNX that takes the case's inputs, then `constants`."""

    op: str
    attributes: tuple[tuple[str, Any], ...] = ()
    constants: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class Case:
    """One line of a table.

    program, name  the operator; `given` sizes, scalars, consts, dtypes, and arrays (or Random) where a trial's would not do
    rank           how many dimensions `...` stands for; their sizes are called dim0, dim1, ..
    torch          called with the module and the inputs in the order of the operator's parameters, as all that follow
    array          called with numpy or jax.numpy; `numpy` only with numpy, where such code changes arrays in place
    einsum         the equation, for all who know einsum and are not given anything else
    loops          a function in plain Python that numba compiles
    onnx           a node for onnxruntime
    fixed          the operator's text with its sizes as numbers
    flops          where the count of the operator's own steps is not what anybody would count; multiply-adds count twice
    tolerance      of the difference to a peer, as a part of the greatest element
    frozen         which of the inputs, counted from 0, are weights: given to all calls once, and to a peer that can be told so
    numerics       how polyop may round, see `Options`: peers do as they do
    cold           whether every call gets other copies of the inputs, so that they come from memory
    compiled       whether torch.compile is tried too: it takes seconds for every line
    quick          whether this line is in the small book
    """

    group: str
    label: str
    program: syntax.Program
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)
    rank: int | None = None
    torch: Same | None = None
    array: Same | None = None
    numpy: Same | None = None
    einsum: str = ""
    loops: Same | None = None
    onnx: Node | None = None
    fixed: str = ""
    flops: float | None = None
    tolerance: float = 1e-4
    frozen: tuple[int, ...] = ()
    numerics: str = "fast"
    cold: bool = False
    compiled: bool = False
    quick: bool = False


def library(name: str) -> tuple[syntax.Program, str]:
    """The program and the name of an operator of the standard library."""
    return standard.alone(name), name


def text(definition: str) -> tuple[syntax.Program, str]:
    """The program and the name of the only operator that a text defines."""
    program = parse(Source("<bench>", definition))
    return program, program.ops[0].name


@dataclass(frozen=True, slots=True)
class Random:
    """An array of f32 of deviation `scale`, where those that a trial makes up are too large; made when it is needed.

    lies   its dimensions as they lie in memory, outermost first, where that is another order
    """

    shape: tuple[int, ...]
    scale: float
    seed: int
    lies: tuple[int, ...] = ()

    def array(self) -> Array:
        order = self.lies or tuple(range(len(self.shape)))
        lying = tuple(self.shape[d] for d in order)
        found = np.random.default_rng(self.seed).standard_normal(lying, np.float32) * np.float32(self.scale)
        return found.transpose(np.argsort(order))


def random(*shape: int, scale: float, seed: int = 1) -> Random:
    """Elements of deviation `scale`."""
    return Random(shape, scale, seed)


@dataclass(frozen=True, eq=False, slots=True)
class Sweep:
    """One operator at many sizes, each of them called once; compiling counts.

    definition  its text: an operator that nothing else in the process compiles
    sizes       of each call; `torch` as in a Case
    kept        whether an earlier process has left the kernels on disk: then loading them counts
    """

    group: str
    label: str
    definition: str
    sizes: tuple[Mapping[str, int], ...]
    torch: Same
    tolerance: float = 1e-4
    quick: bool = False
    kept: bool = False
