"""Graph: calls of operators on named tensors, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from polyop.dsl.names import safe_names
from polyop.graph.symbolic import Node, Value
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Const, Expr, affine, map_affine, names, substitute
from polyop.ir.op import Op, Tensor
from polyop.rewrite.names import fresh
from polyop.rewrite.simplify import Known, simplify_expr


@dataclass(frozen=True, slots=True)
class Call:
    """One call: `reads` and `writes` are (tensor of the op, tensor of the graph); see Node for the rest."""

    name: str
    op: Op
    reads: tuple[tuple[str, str], ...]
    writes: tuple[tuple[str, str], ...]
    scalars: tuple[tuple[str, Const], ...] = ()
    sizes: tuple[tuple[str, Affine], ...] = ()

    def __str__(self) -> str:
        scalars = [f"{n}={c.value}" for n, c in self.scalars]
        return f"{', '.join(g for _, g in self.writes)} = {self.op.name}({', '.join([*(g for _, g in self.reads), *scalars])})"


@dataclass(frozen=True, slots=True)
class Graph:
    """What is to be computed.

    tensors     by name; the role of an input or constant is "in", of a result "out", of anything between "temp"
    calls       in an order in which they can run
    inputs      (the user's name, tensor); outputs likewise
    facts       what must hold between sizes
    constants   tensor -> array
    """

    tensors: tuple[Tensor, ...]
    calls: tuple[Call, ...]
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    sizes: tuple[str, ...]
    facts: tuple[Expr, ...] = ()
    constants: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def tensor(self, name: str) -> Tensor:
        return next(t for t in self.tensors if t.name == name)

    def readers(self, name: str) -> tuple[int, ...]:
        """The calls that read a tensor."""
        return tuple(k for k, c in enumerate(self.calls) if any(g == name for _, g in c.reads))

    def writer(self, name: str) -> int | None:
        """The call that writes a tensor; None for inputs and constants."""
        return next((k for k, c in enumerate(self.calls) if any(g == name for _, g in c.writes)), None)

    def __str__(self) -> str:
        named = {t.name: t for t in self.tensors}
        ins = ", ".join(str(named[g]) for _, g in self.inputs)
        lines = [f"    {c}" for c in self.calls]
        return f"graph({ins}) -> ({', '.join(str(named[g]) for _, g in self.outputs)}) {{\n" + "\n".join(lines) + "\n}"


def trace(outputs: Mapping[str, Value] | Sequence[Value]) -> Graph:
    """The graph that computes `outputs`.

    Raises  UserError E705 (nothing binds a size, or a fact cannot hold), E706 (two inputs of one name, no output, an
            output that is no result).
    """
    if not isinstance(outputs, Iterable):
        raise fail("E706", f"an output is the result of an operator, got {type(outputs).__name__}")
    given = list(outputs.values()) if isinstance(outputs, Mapping) else list(outputs)
    if not given:
        raise fail("E706", "a graph has at least one output")
    for v in given:
        if not isinstance(v, Value) or v.node is None:
            raise fail("E706", f"an output is the result of an operator, got {v if isinstance(v, Value) else type(v).__name__}")
    nodes = _sorted([v.node for v in given if v.node])
    values = list(dict.fromkeys(v for n in nodes for _, v in n.inputs if v.node is None))
    safe = _safe(values)
    env = {n: affine(s) for n, s in safe.items()}
    names_of = _Names(values, safe)
    for n in nodes:  # numbers follow the order of the calls
        for o in n.op.outputs:
            names_of.result(n, o.name)
    wanted = {names_of.of(v) for v in given}
    calls, tensors = [], {}
    for v in values:
        tensors[names_of.of(v)] = Tensor(names_of.of(v), v.dtype, tuple(substitute(e, env) for e in v.shape), "in")
    for n in nodes:
        sizes = {k: substitute(e, env) for k, e in n.sizes.items()}
        for t in n.op.outputs:
            name = names_of.result(n, t.name)
            shape = tuple(substitute(e, sizes) for e in t.shape)
            tensors[name] = Tensor(name, t.dtype, shape, "out" if name in wanted else "temp")
        calls.append(Call(names_of.call(n), n.op, tuple((i, names_of.of(v)) for i, v in n.inputs),
                          tuple((t.name, names_of.result(n, t.name)) for t in n.op.outputs),
                          tuple(n.scalars.items()), tuple(sizes.items())))
    labels = list(outputs) if isinstance(outputs, Mapping) else [names_of.of(v) for v in given]
    made = Graph(tuple(tensors.values()), tuple(calls), tuple((v.name, names_of.of(v)) for v in values if v.data is None),
                 tuple(zip(labels, map(names_of.of, given), strict=True)), (), (),
                 {names_of.of(v): v.data for v in values if v.data is not None})
    return _with_facts(made, nodes, env)


def _safe(values: Sequence[Value]) -> dict[str, str]:
    """The user's names of inputs and sizes -> names that generated text may contain."""
    found: set[str] = set()
    for v in values:
        if v.data is None and v.name in found:
            raise fail("E706", f"two inputs are called `{v.name}`")
        found |= {v.name} if v.data is None else set()
    sizes = {n for v in values for e in v.shape for n in names(e)}
    both = sorted(found & sizes)
    if both:
        raise fail("E706", f"`{both[0]}` is an input and a size")
    return safe_names(found | sizes)


class _Names:
    """Names of tensors and calls: an input keeps its own, a result is called after its operator."""

    def __init__(self, inputs: Sequence[Value], safe: Mapping[str, str]) -> None:
        self.taken = set(safe.values())
        self.known = {v: safe[v.name] if v.data is None else fresh(v.name, self.taken) for v in inputs}
        self.results: dict[tuple[Node, str], str] = {}
        self.calls: dict[Node, str] = {}
        self.used: set[str] = set()

    def of(self, v: Value) -> str:
        return self.known[v] if v.node is None else self.result(v.node, v.name)

    def result(self, n: Node, output: str) -> str:
        if (n, output) not in self.results:
            self.results[n, output] = fresh(f"{self.call(n)}_{output}", self.taken)
        return self.results[n, output]

    def call(self, n: Node) -> str:
        if n not in self.calls:
            self.calls[n] = fresh(n.op.name, self.used)
        return self.calls[n]


def _sorted(roots: Sequence[Node]) -> list[Node]:
    """The nodes that `roots` need, each after those it reads; on a stack of our own, since graphs may be deep."""
    done: dict[Node, None] = {}
    stack = list(reversed(roots))
    while stack:
        n = stack[-1]
        waiting = [v.node for _, v in n.inputs if v.node and v.node not in done]
        if waiting:
            stack += reversed(waiting)
            continue
        done[n] = None
        stack.pop()
    return list(done)


def _with_facts(g: Graph, nodes: Sequence[Node], env: Mapping[str, Affine]) -> Graph:
    """`g` with its sizes and facts; each size must stand alone in an input."""
    extents = [*(e for t in g.tensors for e in t.shape), *(e for c in g.calls for _, e in c.sizes)]
    sizes = sorted({n for e in extents for n in names(e)})
    bound = {e.name for _, i in g.inputs for e in g.tensor(i).shape}
    free = [n for n in sizes if n not in bound]
    if free:
        raise fail("E705", f"nothing binds `{free[0]}`: no input has it as a dimension of its own")
    facts: dict[Expr, None] = {}
    for n in nodes:
        for f in n.facts:
            new = simplify_expr(map_affine(f, lambda x: substitute(x, env)), Known(tuple(sizes)))
            if isinstance(new, Const) and not new.value:
                raise fail("E705", f"`{n.op.name}` needs {f}, which cannot hold")
            if not isinstance(new, Const):
                facts[new] = None
    return replace(g, sizes=tuple(sizes), facts=tuple(facts))
