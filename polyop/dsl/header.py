"""The header of an operator -> Scope: consts folded, dtype variables and `...` replaced, sizes bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from polyop.dsl import syntax as s
from polyop.dsl.draft import Holder
from polyop.dsl.lower import condition, extent, lower
from polyop.dsl.names import did_you_mean, fresh, names_of, safe_names
from polyop.dsl.scope import Scope, Work
from polyop.dsl.values import Typed, Value, Weak, boolean, weak_float, weak_int
from polyop.ir.dtypes import CLASSES, DTYPES, F32, I32, I64, DType
from polyop.ir.errors import Label, fail
from polyop.ir.expr import Affine, Const, Expr, affine, is_affine_condition
from polyop.ir.op import Param


@dataclass(frozen=True, slots=True)
class Header:
    """A Scope, the run-time parameters, and the facts that the signature states."""

    scope: Scope
    params: tuple[Param, ...]
    facts: tuple[Expr, ...]


def resolve(program: s.Definitions, op: s.OpDef, consts: Mapping[str, int | float | bool], dtypes: Mapping[str, DType],
            rank: int | None, library: s.Definitions | None) -> Header:
    """What the names of `op` mean for these consts, dtype variables and number of dimensions in `...`.

    Raises  UserError E2xx, E3xx.
    """
    _check_distinct(op)
    variables = {g.name: choose_dtype(g, dtypes.get(g.name)) for g in op.generics}
    taken = set(names_of(op))
    has_rest = any(isinstance(d, s.Rest) for e in s.declared(op) for d in e.type.dims)
    count = (1 if rank is None else rank) if has_rest else 0
    rest = tuple((fresh(f"dim{d}", taken), fresh(f"at{d}", taken)) for d in range(count))
    integers = frozenset(p.name for p in op.params if is_integer(p))
    scope = Scope(op, program, library, dtypes={**DTYPES, **variables}, safe=safe_names(taken), rest=rest, integers=integers)
    scope = replace(scope, consts=_consts(op, scope, consts))
    sizes = frozenset({x.name for e in s.declared(op) for d in e.type.dims for x in s.walk(d)
                       if isinstance(x, s.Name) and x.name not in scope.consts}) | integers | frozenset(scope.rest_size_names)
    scalars = {p.name: scope.dtype(p.type.dtype, p.type.span) for p in op.params if is_scalar(p)}
    _check_bound(op, scope, sizes, scalars)
    scope = replace(scope, sizes=sizes, scalars=scalars)
    holders = dict(_holders(op, scope, taken))
    floats = [t for t in [*(h.dtype for h in holders.values() if h.role != "out"), *scalars.values()] if t and t.is_float]
    scope = replace(scope, tensors=holders, default=max(floats, key=lambda t: t.bits, default=F32))
    header_work = Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)
    facts = tuple(_fact(f, header_work) for f in op.facts)
    return Header(scope, tuple(_params(op, scope)), facts)


def _tensors(op: s.OpDef) -> Iterator[tuple[str, s.Parameter | s.Output]]:
    for p in op.params:
        if is_tensor(p):
            yield p.name, p
    for o in op.outputs:
        yield o.name, o


def is_tensor(p: s.Parameter) -> bool:
    return p.mode == "inout" or (p.mode == "" and p.type.brackets)


def is_integer(p: s.Parameter) -> bool:
    """Whether `p` is a run-time integer that extents may use."""
    return p.mode == "" and p.type.dtype == "int" and not p.type.brackets


def is_scalar(p: s.Parameter) -> bool:
    return p.mode == "" and not p.type.brackets and p.type.dtype != "int"


def choose_dtype(g: s.Generic, given: DType | None) -> DType:
    """The dtype of a variable: the one given, or f32 or i32 or the first that it may be.

    Raises  UserError E206 (no such class), E226 (not among what it may be).
    """
    allowed: list[DType] = []
    for c in g.classes:
        if c not in CLASSES and c not in DTYPES:
            raise fail("E206", f"`{c}` is no dtype and no class of dtypes", g.span, hint=f"classes are {', '.join(CLASSES)}")
        allowed += CLASSES.get(c) or (DTYPES[c],)
    if given is None:
        return next((t for t in (F32, I32) if t in allowed), allowed[0])
    if given not in allowed:
        raise fail("E226", f"`{g.name}` is {given}, and may be {', '.join(dict.fromkeys(map(str, allowed)))}", g.span)
    return given


def _check_distinct(op: s.OpDef) -> None:
    seen: dict[str, s.Parameter | s.Output] = {}
    for x in s.declared(op):
        if x.name in seen:
            raise fail("E202", f"`{x.name}` is declared twice", x.span, notes=(("first here", Label(seen[x.name].span)),))
        seen[x.name] = x
    if not op.outputs and not any(p.mode == "inout" for p in op.params):
        raise fail("E202", f"`{op.name}` has no result", op.span, hint="name one: `-> (Y: f32[N])`")


def const_value(value: int | float | bool) -> Value:
    """A number from outside, as a weak value."""
    if isinstance(value, bool):
        return boolean(value)
    return weak_int(affine(value)) if isinstance(value, int) else weak_float(value)


def plain(value: Value) -> int | float | bool | None:
    """The number that `value` is, or None."""
    if isinstance(value, Typed):
        return value.expr.value if isinstance(value.expr, Const) else None
    return value.constant


def _consts(op: s.OpDef, scope: Scope, given: Mapping[str, int | float | bool]) -> dict[str, Value]:
    known = [p.name for p in op.params if p.mode == "const"]
    for name in given:
        if name not in known:
            raise fail("E227", f"`{op.name}` has no const `{name}`" + did_you_mean(name, known), op.span)
    out: dict[str, Value] = {}
    for p in op.params:
        if p.mode != "const":
            continue
        kind = p.type.dtype
        if (kind not in ("int", "float", "bool") and kind not in scope.dtypes) or p.type.brackets:
            raise fail("E228", f"the const `{p.name}` is int, float or bool, not {p.type.span.text}", p.type.span)
        if p.name in given:
            value = const_value(given[p.name])
        elif p.default is not None:
            work = Work(replace(scope, consts=out), {}, set(), indices_allowed=False, tensors_allowed=False)
            value = lower(p.default, work)
        else:
            raise fail(
                "E227",
                f"the const `{p.name}` has no value",
                p.span,
                hint=f"give it a default, or say `{p.name}=...` when calling",
            )
        number = plain(value)
        if number is None:
            raise fail("E228", f"the default of the const `{p.name}` is no constant", p.span)
        whole = kind == "int" or (kind in DTYPES and DTYPES[kind].is_integer)
        if whole and (isinstance(number, bool) or not isinstance(number, int)):
            raise fail("E228", f"the const `{p.name}` is an integer, not {number}", p.span)
        is_float = kind == "float" or (kind in scope.dtypes and scope.dtypes[kind].is_float)
        out[p.name] = weak_float(float(number)) if is_float else const_value(number)
    return out


def _check_bound(op: s.OpDef, scope: Scope, sizes: frozenset[str], scalars: Mapping[str, DType]) -> None:
    """Every size stands alone in some input dimension, or is an `int` parameter."""
    bound = set(scope.integers) | set(scope.rest_size_names)
    for p in op.params:
        bound |= {d.name for d in p.type.dims if isinstance(d, s.Name)}
    for e in s.declared(op):
        for d in e.type.dims:
            for x in s.walk(d):
                if not isinstance(x, s.Name):
                    continue
                if x.name in scalars:
                    raise fail("E302", f"`{x.name}` is {scalars[x.name]}, and an extent is made of integers", x.span,
                               hint=f"declare it `{x.name}: int`")
                if x.name not in bound and x.name not in scope.consts:
                    near = did_you_mean(x.name, bound)
                    raise fail("E302", f"nothing binds `{x.name}`: no parameter has it as a dimension of its own" + near, x.span,
                               hint="" if near else f"add `{x.name}: int`")
    for name in sizes:
        for e in s.declared(op):
            if e.name == name and name not in scope.integers:
                raise fail("E202", f"`{name}` is a size and a name of something else; one name means one thing", e.span)


def _holders(op: s.OpDef, scope: Scope, taken: set[str]) -> Iterator[tuple[str, Holder]]:
    work = Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)
    for name, e in _tensors(op):
        if e.type.dtype == "int":
            raise fail("E206", "`int` is for run-time integers; a tensor has a dtype", e.type.span, hint="such as `i64`")
        shape = shape_of(e.type.dims, work)
        role = "out" if isinstance(e, s.Output) else e.mode or "in"
        result = fresh(f"{scope.safe[name]}_out", taken) if role == "inout" else ""
        dtype = scope.dtype(e.type.dtype, e.type.span)
        yield name, Holder(scope.safe[name], dtype, len(shape), shape, role, e.doc, e.span, result)


def shape_of(dims: tuple[s.Syntax, ...], work: Work) -> tuple[Affine, ...]:
    """The extents of a shape, `...` written out."""
    out: list[Affine] = []
    for d in dims:
        if isinstance(d, s.Rest):
            out += [affine(n) for n in work.scope.rest_size_names]
        else:
            out.append(extent(d, work))
    return tuple(out)


def _fact(e: s.Syntax, work: Work) -> Expr:
    out = condition(e, work).expr
    if not is_affine_condition(out):
        raise fail("E303", "a fact is a quasi-affine condition on sizes", e.span)
    if isinstance(out, Const) and not out.value:
        raise fail("E303", "this never holds", e.span)
    return out


def _params(op: s.OpDef, scope: Scope) -> Iterator[Param]:
    work = Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)
    for p in op.params:
        if is_tensor(p) or p.mode == "const":
            if p.default is not None and p.mode != "const":
                raise fail("E228", f"the tensor `{p.name}` cannot have a default", p.span)
            continue
        default = None
        if p.default is not None:
            value = lower(p.default, work)
            default = plain(value)
            if default is None:
                raise fail("E228", f"the default of `{p.name}` is no constant", p.span)
            if is_integer(p) and not (isinstance(value, Weak) and value.kind == "int"):
                raise fail("E228", f"the default of `{p.name}` is no integer", p.span)
        dtype = I64 if is_integer(p) else scope.scalars[p.name]
        yield Param(scope.safe[p.name], dtype, is_integer(p), default, p.by_name, p.doc, p.span)
