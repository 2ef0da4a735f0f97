"""Network: the kernels of a graph in order, and the memory between them. It is called like a function of the inputs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from polyop.graph.cluster import Cluster, Clustering
from polyop.graph.graph import Graph
from polyop.graph.memory import Slots, assign
from polyop.ir.errors import fail
from polyop.ir.expr import evaluate
from polyop.ir.interface import Choice, Interface, Parameter
from polyop.ir.op import Op, Tensor
from polyop.ir.options import Options
from polyop.operator import Operator
from polyop.program import compiled
from polyop.rewrite.inline import inline
from polyop.rewrite.merge import Part, compose
from polyop.rewrite.simplify import simplify
from polyop.runtime import arrays, blocks
from polyop.runtime.bind import bind
from polyop.runtime.gpu.home import given_back
from polyop.runtime.gpu.moves import brought

_LOOKS = 256      # calls of different looks that a thread remembers
_REMEMBERED = 8   # sets of sizes for which a thread keeps the memory between kernels


class Runner(Protocol):
    """What runs one merged Op: its inputs and `int` parameters by position, arrays for its outputs in `out`."""

    def __call__(self, *args: Any, out: Any) -> Any: ...


@dataclass(frozen=True, eq=False, slots=True)
class Step:
    """One kernel: `op` reads and writes tensors of the graph, and takes `sizes` after its inputs."""

    op: Op
    run: Runner
    reads: tuple[str, ...]
    sizes: tuple[str, ...]
    writes: tuple[str, ...]


Sizes = Mapping[str, int]
Look = tuple[Any, ...]  # dtypes and shapes of the inputs of a call, all of them NumPy arrays


class _Remembered(threading.local):
    """What a thread keeps between calls.

    bound      look of a call -> its sizes, and the shapes of its outputs
    between    values of the sizes -> the memory between kernels
    constants  where arrays of a GPU come from -> the graph's constants as such
    """

    def __init__(self) -> None:
        self.bound: dict[Look, tuple[Sizes, tuple[tuple[int, ...], ...]]] = {}
        self.between: dict[tuple[int, ...], dict[str, np.ndarray]] = {}
        self.constants: dict[Any, dict[str, Any]] = {}


@dataclass(frozen=True, eq=False, slots=True)
class Network:
    """A graph that can be called: `network({"x": X, "w": W})`.

    outer    the graph seen from outside as an Op without steps: what a call is bound to
    form     what a call returns: "one", "tuple" or "dict"
    """

    clustering: Clustering
    outer: Op
    steps: tuple[Step, ...]
    slots: Slots
    form: str
    _kept: _Remembered = field(default_factory=_Remembered, repr=False)

    @property
    def graph(self) -> Graph:
        return self.clustering.graph

    def __str__(self) -> str:
        shared = f"{len(self.slots.of)} tensors between kernels, in {self.slots.count} pieces of memory"
        return f"{self.clustering}\n{shared}"

    def __deepcopy__(self, _: Any) -> Network:
        return self  # as an operator does

    def __call__(self, inputs: Mapping[str, Any]) -> Any:
        """The outputs, for inputs by name; in the form in which the outputs were asked for.

        Raises  UserError E709 for inputs that are missing or unknown; CallError E60x, if one does not fit.
        """
        wanted = dict(self.graph.inputs)
        if not isinstance(inputs, Mapping):
            raise fail("E709", f"inputs are given by name, in a dict; got {type(inputs).__name__}")
        unknown = [n for n in inputs if n not in wanted]
        missing = [n for n in wanted if n not in inputs]
        if unknown or missing:
            what = f"there is no input `{unknown[0]}`" if unknown else f"the input `{missing[0]}` is not given"
            raise fail("E709", what, hint=f"inputs are {', '.join(wanted)}")
        arguments = {g: inputs[n] for n, g in wanted.items()}
        sizes, made, home = self._bound(arguments)
        between = self._between(sizes) if home is None else self._elsewhere(sizes, home)
        memory = {**self._constants(home), **arguments, **between}
        memory.update(zip((t.name for t in self.outer.outputs), made, strict=True))
        for s in self.steps:
            s.run(*(memory[n] for n in s.reads), *(sizes[n] for n in s.sizes), out=tuple(memory[n] for n in s.writes))
        if home is not None:
            memory.update((t.name, given_back(home, memory[t.name])) for t in self.outer.outputs)
        results = {label: memory[g] for label, g in self.graph.outputs}
        if self.form == "dict":
            return results
        values = tuple(memory[g] for _, g in self.graph.outputs)
        return values[0] if self.form == "one" else values

    def _bound(self, arguments: Mapping[str, Any]) -> tuple[Sizes, tuple[Any, ...], Any]:
        """The sizes of a call, memory for its outputs, and where more of it comes from if that is a GPU's.

        Notes   NumPy arrays that look like earlier ones need no second look.
        """
        plain = all(type(v) is np.ndarray for v in arguments.values())
        look = tuple((v.dtype, v.shape) for v in arguments.values()) if plain else ()
        found = self._kept.bound.get(look) if plain else None
        if found is not None:
            outs = zip(found[1], self.outer.outputs, strict=True)
            return found[0], tuple(arrays.empty(shape, t.dtype, "numpy")[0] for shape, t in outs), None
        bound = bind(self.outer, arguments)
        if plain:
            if len(self._kept.bound) >= _LOOKS:
                self._kept.bound.clear()
            self._kept.bound[look] = bound.sizes, tuple(bound.views[t.name].shape for t in self.outer.outputs)
        return bound.sizes, bound.results, bound.home

    def _constants(self, home: Any) -> Mapping[str, Any]:
        """The graph's constants, on the device where the call is; they are brought there once."""
        if home is None or not self.graph.constants:
            return self.graph.constants
        known = self._kept.constants
        if home not in known:
            known[home] = {n: brought(np.asarray(a), home) for n, a in self.graph.constants.items()}
        return known[home]

    def _elsewhere(self, sizes: Sizes, home: Any) -> dict[str, Any]:
        """Arrays between kernels on a GPU, of this call alone: the framework's allocator knows better when one is free."""
        tensors = [self.graph.tensor(n) for n in self.slots.of]
        return {t.name: arrays.empty(tuple(evaluate(e, sizes) for e in t.shape), t.dtype, home)[0] for t in tensors}

    def _between(self, sizes: Sizes) -> dict[str, np.ndarray]:
        """Arrays for the tensors between kernels; they stay for the next call with these sizes."""
        key = tuple(sizes[n] for n in self.graph.sizes)
        known = self._kept.between
        if key not in known:
            if len(known) >= _REMEMBERED:
                known.clear()
            shapes = {n: tuple(evaluate(e, sizes) for e in self.graph.tensor(n).shape) for n in self.slots.of}
            dtypes = {n: self.graph.tensor(n).dtype.numpy for n in shapes}
            bytes_ = {n: int(np.prod(shapes[n], dtype=np.int64)) * dtypes[n].itemsize for n in shapes}
            raw = [blocks.empty((b,), np.dtype(np.uint8))[0] for b in self.slots.bytes_(bytes_)]
            known[key] = {n: raw[k][: bytes_[n]].view(dtypes[n]).reshape(shapes[n]) for n, k in self.slots.of.items()}
        return known[key]


def network(found: Clustering, form: str = "tuple", options: Options | None = None, target: str = "x86",
            runner: Callable[[Op], Runner] | None = None) -> Network:
    """The network of a clustered graph. Kernels are compiled when they are first called with arrays of a layout.

    runner   what makes a merged Op callable; the compiler if it is not given
    """
    g = found.graph
    make = runner or (lambda op: operator(op, options, target, tuple(t.name for t in op.inputs if t.name in g.constants)))
    steps = tuple(_step(g, found, c, make) for c in found.clusters)
    lives: dict[str, tuple[int, int]] = {}
    for k, s in enumerate(steps):
        for n in (*s.reads, *s.writes):
            lives[n] = (lives[n][0] if n in lives else k, k)
    between = [t for t in g.tensors if t.role == "temp" and t.name in lives]
    tensors = [t for t in g.tensors if t.name in {i for _, i in g.inputs}] + [t for t in g.tensors if t.role == "out"]
    outer = Op("graph", tuple(tensors), (), g.sizes, (), g.facts)
    return Network(found, outer, steps, assign(between, lives), form)


def merged(g: Graph, c: Cluster, outputs: tuple[str, ...]) -> Op:
    """The calls of a cluster as one Op over the graph's tensors and sizes, with `outputs` as results."""
    parts = [Part(k.op, dict((*k.reads, *k.writes)), dict(k.scalars), dict(k.sizes)) for k in (g.calls[n] for n in c.calls)]
    name = "_".join(g.calls[n].name for n in c.calls)
    inner = {t for p in parts for t in p.tensors.values()}
    op = compose(name[:60].rstrip("_"), parts, outputs, {t.name: t.shape for t in g.tensors if t.name in inner})
    return simplify(inline(op))


def _step(g: Graph, found: Clustering, c: Cluster, make: Callable[[Op], Runner]) -> Step:
    copied = {n for n in c.calls if sum(n in other.calls for other in found.clusters) > 1}
    written = [t for n in c.calls if n not in copied for _, t in g.calls[n].writes]
    outputs = tuple(t for t in written if g.tensor(t).role == "out" or set(g.readers(t)) - set(c.calls))
    op = merged(g, c, outputs)
    return Step(op, make(op), _names(op.inputs), tuple(p.name for p in op.params), _names(op.outputs))


def _names(tensors: tuple[Tensor, ...]) -> tuple[str, ...]:
    return tuple(t.name for t in tensors)


def operator(op: Op, options: Options | None = None, target: str = "x86", frozen: tuple[str, ...] = ()) -> Operator:
    """An Op as something to call, with the same arrays for the inputs `frozen` in all calls."""
    parameters = [Parameter(t.name, "tensor", t.dtype.name, tuple(map(str, t.shape)), doc=t.doc) for t in op.inputs]
    parameters += [Parameter(p.name, "int" if p.is_size else "scalar", p.dtype.name) for p in op.params]
    results = tuple(Parameter(t.name, "tensor", t.dtype.name, tuple(map(str, t.shape))) for t in op.outputs)

    def instantiate(_: Choice) -> Op:
        return op
    made = Operator(Interface(op.name, tuple(parameters), results), instantiate, compiled, options, target)
    return made.with_frozen(frozen) if frozen else made
