"""Graph -> Network: operators called on symbolic inputs, merged into few kernels, and run.

    >>> from polyop import graph
    >>> x = graph.input("x", graph.f32["B", "D"])
    >>> y = polyop.library("gelu")(x)
    >>> m = graph.build(outputs=[y]).compile()
    >>> m({"x": X})
"""

from polyop.graph.build import Built, build
from polyop.graph.network import Network
from polyop.graph.symbolic import Value, input
from polyop.graph.types import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

__all__ = [
    "Built", "Network", "Value", "bf16", "bool_", "build", "f16", "f32", "f64", "i16", "i32", "i64", "i8", "input", "u16", "u32",
    "u64", "u8",
]
