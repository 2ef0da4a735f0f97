"""From symbolic values to something that runs: `build(outputs=[y]).compile()`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polyop.graph.cluster import Clustering, cluster
from polyop.graph.graph import Graph, trace
from polyop.graph.network import Network, network
from polyop.graph.symbolic import Value
from polyop.ir.options import Options


@dataclass(frozen=True, eq=False, slots=True)
class Built:
    """A graph, and the form in which its outputs come back."""

    graph: Graph
    form: str

    def clusters(self) -> Clustering:
        """Which calls become one kernel, and why not more."""
        return cluster(self.graph)

    def compile(self, target: str = "x86", options: Options | None = None) -> Network:
        """Something to call with arrays: `built.compile()({"x": X})`."""
        return network(self.clusters(), self.form, options, target)

    def __str__(self) -> str:
        return str(self.graph)


def build(outputs: Value | Sequence[Value] | Mapping[str, Value]) -> Built:
    """The graph that computes `outputs`: one value, several (a call then returns a tuple), or several by name (a dict).

    Raises  UserError E705 (nothing binds a size, or a fact cannot hold), E706 (two inputs of one name, no output, an
            output that is no result).
    """
    if isinstance(outputs, Value):
        return Built(trace([outputs]), "one")
    return Built(trace(outputs), "dict" if isinstance(outputs, Mapping) else "tuple")
