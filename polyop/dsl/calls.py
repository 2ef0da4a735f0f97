"""Operator calls -> the callee's steps, over the caller's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from polyop.dsl import syntax as s
from polyop.dsl.conditions import test
from polyop.dsl.draft import OperatorCall
from polyop.dsl.header import plain
from polyop.dsl.inference import Inlined, State
from polyop.dsl.lower import extent, lower
from polyop.dsl.names import did_you_mean, fresh
from polyop.dsl.scope import Scope, Work
from polyop.dsl.temporaries import rest_rank
from polyop.dsl.values import to
from polyop.ir.dtypes import DTYPES, DType
from polyop.ir.errors import Label, fail
from polyop.ir.expr import Affine, Expr, Load, Scalar, affine, map_affine, map_loads, rebuild, substitute
from polyop.ir.op import Op, Range, Step, Tensor

Instance = Callable[[s.OpDef, s.Definitions, Mapping[str, int | float | bool], Mapping[str, DType], int], Op]
"""A callee for given consts, dtype variables and number of dimensions in `...`."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a call gives to each parameter of the callee."""

    tensors: Mapping[str, str]
    scalars: Mapping[str, s.Syntax]
    consts: Mapping[str, int | float | bool]
    rank: int


def bind(callee: s.OpDef, call: s.Call, scope: Scope) -> Arguments:
    """Match arguments with parameters.

    Raises  UserError E240 (count or name), E241 (a tensor for a scalar or the other way round), E242 (no constant).
    """
    positional = [p for p in callee.params if not p.by_name]
    if len(call.args) > len(positional):
        raise fail("E240", f"`{callee.name}` takes {len(positional)} arguments by position, got {len(call.args)}", call.span)
    given: dict[str, s.Syntax] = {p.name: a for p, a in zip(positional, call.args, strict=False)}
    known = [p.name for p in callee.params]
    for name, said in call.keywords:
        if name not in known:
            raise fail("E240", f"`{callee.name}` has no parameter `{name}`" + did_you_mean(name, known), said.span)
        if name in given:
            raise fail("E240", f"`{callee.name}` gets `{name}` twice", said.span)
        given[name] = said
    tensors: dict[str, str] = {}
    scalars: dict[str, s.Syntax] = {}
    consts: dict[str, int | float | bool] = {}
    for p in callee.params:
        is_tensor = p.type.brackets or p.mode == "inout"
        if p.name not in given:
            if p.default is None:
                raise fail("E240", f"`{callee.name}` needs `{p.name}`", call.span)
            if p.mode != "const":
                scalars[p.name] = p.default
            continue
        value = given[p.name]
        whole = isinstance(value, s.Name) and value.name in scope.tensors
        if is_tensor:
            if not whole or not isinstance(value, s.Name):
                raise fail("E241", f"`{p.name}` of `{callee.name}` is a tensor; give a whole one by its name", value.span,
                           hint="put the expression into a temporary first")
            tensors[p.name] = value.name
        elif p.mode == "const":
            number = plain(lower(value, Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)))
            if number is None:
                raise fail("E242", f"`{p.name}` of `{callee.name}` is const, and this is not known when compiling", value.span)
            consts[p.name] = number
        else:
            scalars[p.name] = value
    return Arguments(tensors, scalars, consts, rest_rank(callee, call, scope))


def result_dtypes(callee: s.OpDef, call: s.Call, scope: Scope, dtypes: Mapping[str, DType | None],
                  instance: Instance, home: s.Definitions) -> tuple[DType | None, ...]:
    """What `call` returns; None while a dtype that it depends on is not known."""
    given = bind(callee, call, scope)
    known = {n: dtypes.get(t) for n, t in given.tensors.items()}
    count = len(callee.outputs) + sum(p.mode == "inout" for p in callee.params)
    if any(t is None for t in known.values()):
        return (None,) * count
    op = instance(callee, home, given.consts, variables(callee, call, given, dtypes, scope), given.rank)
    return tuple(t.dtype for t in op.outputs)


def variables(
    callee: s.OpDef, call: s.Call, given: Arguments, dtypes: Mapping[str, DType | None], scope: Scope
) -> dict[str, DType]:
    """The callee's dtype variables, from the tensors it is given.

    Raises  UserError E243, if an argument has another dtype than the parameter.
    """
    out: dict[str, DType] = {}
    generic = {g.name for g in callee.generics}
    for p in callee.params:
        if p.name not in given.tensors:
            continue
        actual, wanted = dtypes[given.tensors[p.name]], p.type.dtype
        assert actual is not None
        expected = out.setdefault(wanted, actual) if wanted in generic else DTYPES.get(wanted)
        if expected != actual:
            raise fail(
                "E243",
                f"`{p.name}` of `{callee.name}` is {expected}, and `{given.tensors[p.name]}` is {actual}",
                call.span,
                notes=(("declared here", Label(p.span)),),
            )
    return out


def inline(item: OperatorCall, state: State, instance: Instance) -> Inlined:
    """The callee's steps with its names replaced by the caller's.

    Raises  UserError E203, E310 (shapes that cannot agree).
    """
    scope = replace(state.header.scope, tensors=state.body.holders)
    found = scope.operator(item.name)
    assert found is not None
    callee, home = found
    given = bind(callee, item.call, scope)
    dtypes = {n: h.dtype for n, h in scope.tensors.items()}
    op = instance(callee, home, given.consts, variables(callee, item.call, given, dtypes, scope), given.rank)
    renames: dict[str, str] = {}
    sizes: dict[str, Affine] = {}
    facts: list[Expr] = []
    work = Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)
    scalars: dict[str, Expr] = {}
    plain_params = [p for p in callee.params if p.name in given.scalars]
    for p, param in zip(plain_params, op.params, strict=True):
        if param.is_size:
            sizes[param.name] = extent(given.scalars[p.name], work)
        else:
            scalars[param.name] = to(lower(given.scalars[p.name], work), param.dtype, scope.default)
    whole = [p for p in callee.params if p.name in given.tensors]
    pairs: list[tuple[Affine, Affine]] = []
    for p, tensor in zip(whole, op.inputs, strict=True):
        holder = scope.tensors[given.tensors[p.name]]
        shape = state.shapes[holder.name]
        assert shape is not None
        if len(shape) != len(tensor.shape):
            raise fail("E203", f"`{p.name}` of `{callee.name}` has {len(tensor.shape)} dimensions, and `{given.tensors[p.name]}` "
                       f"has {len(shape)}", item.span)
        renames[tensor.name] = holder.name
        pairs += list(zip(tensor.shape, shape, strict=True))
    for inner, outer in pairs:
        if inner.name is not None and inner.name not in sizes:
            sizes[inner.name] = outer
    for inner, outer in pairs:
        facts += _equal(substitute(inner, sizes), outer, item)
    for tensor, name in zip(op.outputs, item.targets, strict=True):
        holder = scope.tensors[name]
        if holder.dtype != tensor.dtype:
            raise fail("E221", f"{tensor.dtype} does not fit into `{name}`, which is {holder.dtype}", item.span,
                       hint=f"take a temporary: `T = {callee.name}(...)`, then `{name}[...] = {holder.dtype}(T[...])`")
        renames[tensor.name] = holder.result or holder.name
        declared = state.shapes[holder.name]
        if declared is not None:
            if len(declared) != len(tensor.shape):
                raise fail("E203", f"`{name}` has {len(declared)} dimensions, and the result of `{callee.name}` has "
                           f"{len(tensor.shape)}", item.span)
            for inner, outer in zip(tensor.shape, declared, strict=True):
                facts += _equal(substitute(inner, sizes), outer, item)
    for tensor in op.temporaries:
        renames[tensor.name] = fresh(f"{callee.name}_{tensor.name}", state.taken)
    facts += [map_affine(f, lambda x: substitute(x, sizes)) for f in op.facts]
    steps = tuple(_moved(x, renames, sizes, scalars, state.sizes) for x in op.steps)
    temps = tuple(Tensor(renames[t.name], t.dtype, tuple(substitute(e, sizes) for e in t.shape), "temp", t.doc, item.span)
                  for t in op.temporaries)
    shapes = tuple(tuple(substitute(e, sizes) for e in t.shape) for t in op.outputs)
    return Inlined(steps, temps, shapes, tuple(facts))


def _equal(a: Affine, b: Affine, item: OperatorCall) -> list[Expr]:
    """That two extents agree: nothing to say, a fact, or an error."""
    difference = a - b
    if difference == Affine():
        return []
    if difference.is_constant:
        raise fail("E310", f"`{item.name}` wants {a} here, and gets {b}", item.span)
    return [test(difference, difference * -1)]


def _moved(step: Step, renames: Mapping[str, str], sizes: Mapping[str, Affine], scalars: Mapping[str, Expr],
           taken: frozenset[str]) -> Step:
    """A callee's step in the caller's names; iterators that would meet one of the caller's sizes get another letter."""
    used = set(taken) | {n for r in step.ranges for n in [r.index]}
    env = dict(sizes)
    letters: dict[str, str] = {}
    for r in step.ranges:
        if r.index in taken:
            letters[r.index] = fresh(f"{r.index}_", used)
            env[r.index] = affine(letters[r.index])
        else:
            env.pop(r.index, None)

    def f(x: Affine) -> Affine:
        return substitute(x, env)

    def load(x: Load) -> Expr:
        return replace(x, source=renames[x.source])

    target = load(step.target)
    assert isinstance(target, Load)
    moved = map_affine(target, f)
    assert isinstance(moved, Load)
    index = tuple(p if isinstance(p, Affine) else map_loads(_with_scalars(p, scalars), load) for p in moved.index)
    ranges = tuple(Range(letters.get(r.index, r.index), f(r.lower), f(r.upper)) for r in step.ranges)
    expr = map_loads(_with_scalars(map_affine(step.expr, f), scalars), load)
    return replace(
        step, target=replace(moved, index=index), expr=expr, ranges=ranges, where=tuple(map_affine(c, f) for c in step.where)
    )


def _with_scalars(e: Expr, scalars: Mapping[str, Expr]) -> Expr:
    if isinstance(e, Scalar) and e.name in scalars:
        return scalars[e.name]
    return rebuild(e, lambda x: _with_scalars(x, scalars))
