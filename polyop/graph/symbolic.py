"""Operators called on values that are not there yet: each call becomes a Node, its results are Values again.

An Operator knows nothing of graphs. It looks for the attribute `__polyop_symbolic__` on its arguments, and hands the call
to the first one that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from polyop.graph.types import Element, TensorType, extent, is_name, tensor_type
from polyop.ir.dtypes import DTYPES, DType
from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Const, Expr, map_affine, substitute
from polyop.ir.interface import Choice, Interface, Parameter
from polyop.ir.op import Op
from polyop.rewrite.algebra import constant
from polyop.rewrite.unify import unify
from polyop.runtime import arrays, choose
from polyop.runtime.bind import plain
from polyop.runtime.gpu.moves import fetched


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """A tensor that a graph will have: an input, a constant, or a result of a node.

    name   of an input: what the user calls it; of a result: its name in the operator
    node   what computes it; None for inputs and constants
    data   the array of a constant
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    node: Node | None = None
    data: Any = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"{self.name}: {TensorType(self.dtype, self.shape)}"

    def __polyop_symbolic__(self, interface: Interface, instantiate: Callable[[Choice], Op], arguments: Mapping[str, Any]) -> Any:
        return call(interface, instantiate, arguments)


@dataclass(frozen=True, eq=False, slots=True)
class Node:
    """One call of an operator.

    inputs    (input of the op, its value)
    scalars   scalar parameter -> its value
    sizes     size of the op -> index expression over the graph's sizes
    facts     what must hold between the graph's sizes for this call
    """

    op: Op
    inputs: tuple[tuple[str, Value], ...]
    scalars: Mapping[str, Const]
    sizes: Mapping[str, Affine]
    facts: tuple[Expr, ...]


def input(name: str, type_: TensorType | Element) -> Value:
    """An input of a graph: `input("x", f32["B", "D"])`.

    Raises  UserError E701, if the type is none, or the name cannot be one.
    """
    t = tensor_type(type_)
    if not isinstance(name, str) or not is_name(name):
        raise fail("E701", f"an input is called by a name, got {name!r}")
    return Value(name, t.dtype, t.shape)


def call(interface: Interface, instantiate: Callable[[Choice], Op], arguments: Mapping[str, Any]) -> Value | tuple[Value, ...]:
    """The results of an operator whose arguments are (in part) Values; arrays among them become constants.

    Raises  UserError E702 (dtypes), E703 (ranks), E704 (sizes), E708 (an operator that updates in place);
            CallError E609 for a scalar that does not fit.
    """
    values = {p.name: _value(p, arguments[p.name]) for p in interface.tensors}
    op = instantiate(_choice(interface, values, arguments))
    if op.updates:
        raise fail("E708", f"`{interface.name}` changes `{op.updates[0][0]}` in place; in a graph every value is new")
    inner = {p.name: p.name_in_op for p in interface.parameters}
    inputs = {inner[n]: v for n, v in values.items()}
    for t in op.inputs:
        if inputs[t.name].dtype != t.dtype:
            raise fail("E702", f"`{t.name}` of `{op.name}` is {t.dtype}, got {inputs[t.name]}")
    given = {inner[p.name]: arguments[p.name] for p in interface.parameters if p.kind in ("scalar", "int")}
    ints = {p.name: _extent(op, p.name, given[p.name]) for p in op.params if p.is_size}
    scalars = {p.name: constant(plain(p, given[p.name]), p.dtype) for p in op.params if not p.is_size}
    found = unify(op, {n: v.shape for n, v in inputs.items()}, ints)
    facts = (*found.facts, *(map_affine(f, lambda x: substitute(x, found.sizes)) for f in op.facts))
    node = Node(op, tuple((t.name, inputs[t.name]) for t in op.inputs), scalars, found.sizes, facts)
    results = tuple(Value(t.name, t.dtype, tuple(substitute(e, found.sizes) for e in t.shape), node) for t in op.outputs)
    return results[0] if len(results) == 1 else results


def _value(p: Parameter, given: Any) -> Value:
    if isinstance(given, Value):
        return given
    v = arrays.view(given, p.name, DTYPES.get(p.dtype))
    data = arrays.as_numpy(v) if v.device is None else fetched(v)
    return Value(p.name_in_op, v.dtype, tuple(Affine(const=n) for n in v.shape), data=data)


def _extent(op: Op, name: str, given: Any) -> Affine:
    if isinstance(given, Affine) or (isinstance(given, int) and not isinstance(given, bool)):
        return extent(given)
    raise fail("E707", f"`{name}` of `{op.name}` is an integer, got {given!r}")


def _choice(interface: Interface, values: Mapping[str, Value], arguments: Mapping[str, Any]) -> Choice:
    """Dtypes and rank as the Values have them."""
    dtypes: dict[str, tuple[DType, str]] = {}
    rest: tuple[int, str] | None = None
    known = dict(interface.variables)
    for p in interface.tensors:
        v = values[p.name]
        if p.dtype in known:
            first, where = dtypes.setdefault(p.dtype, (v.dtype, p.name))
            if first != v.dtype:
                raise fail("E702", f"`{p.dtype}` of `{interface.name}` is {first} in `{where}` and {v.dtype} in `{p.name}`")
            if first not in (allowed := choose.members(known[p.dtype])):
                raise fail("E702", f"`{p.name}` of `{interface.name}` is {first}, but `{p.dtype}` is one of "
                                   f"{', '.join(map(str, allowed))}")
        if "..." in p.dims:
            here = len(v.shape) - len(p.dims) + 1
            if here < 0 or (rest and rest[0] != here):
                least = len(p.dims) - 1
                wanted = f"at least {least}" if here < 0 or not rest else f"as `{rest[1]}` has it, {rest[0] + least}"
                raise fail("E703", f"`{p.name}` of `{interface.name}` has {wanted} dimensions [{', '.join(p.dims)}], "
                                   f"got {len(v.shape)}: {v}")
            rest = rest or (here, p.name)
    missing = [n for n in known if n not in dtypes]
    if missing:
        raise fail("E702", f"no tensor says what `{missing[0]}` of `{interface.name}` is")
    consts = tuple((p.name, choose.const(p, arguments[p.name])) for p in interface.consts
                   if not (p.derived and arguments[p.name] is None))
    return Choice(tuple((n, dtypes[n][0]) for n in known), consts, rest[0] if rest else None)
