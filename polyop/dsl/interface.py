"""How to call an operator: plain data, enough to bind arguments without the rest of the compiler."""

from __future__ import annotations

from dataclasses import dataclass

from polyop.dsl import syntax as s
from polyop.dsl.header import is_integer, is_scalar, plain
from polyop.dsl.lower import lower
from polyop.dsl.names import did_you_mean, names_of, safe_names
from polyop.dsl.scope import Scope, Work
from polyop.dsl.text import unparse
from polyop.ir.dtypes import CLASSES, DTYPES
from polyop.ir.errors import fail


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter.

    kind      "tensor", "inout", "scalar", "size" (a run-time integer) or "const"
    dtype     a dtype, a dtype variable, or what a const is: "int", "float", "bool", a dtype
    dims      the extents as text, such as ("...", "2*N"); empty for what is no tensor
    default   None where there is none; a const's default that uses other consts is left to `instantiate`: see `required`
    inner     its name in the Op, which differs where a generated text could not hold the user's
    """

    name: str
    kind: str
    dtype: str
    dims: tuple[str, ...] = ()
    default: float | int | bool | None = None
    required: bool = True
    by_name: bool = False
    doc: str = ""
    inner: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """One result: an output, or an `inout` parameter (then `updates` is its name)."""

    name: str
    dtype: str
    dims: tuple[str, ...] = ()
    updates: str | None = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Interface:
    """Parameters in the order in which they are given, results in the order in which they come back.

    variables   dtype variables and the dtypes each may be, by name
    has_rest    whether some parameter has `...`
    """

    name: str
    params: tuple[Argument, ...]
    results: tuple[Result, ...]
    variables: tuple[tuple[str, tuple[str, ...]], ...] = ()
    has_rest: bool = False
    doc: str = ""

    def param(self, name: str) -> Argument | None:
        return next((p for p in self.params if p.name == name), None)


def interface(program: s.Program, name: str) -> Interface:
    """The interface of the operator `name`.

    Raises  UserError E201, if there is none; E206 for a class of dtypes that does not exist.
    """
    op = program.op(name)
    if op is None:
        raise fail("E201", f"there is no operator `{name}`" + did_you_mean(name, [o.name for o in program.ops]))
    safe = safe_names(names_of(op))
    variables = tuple((g.name, _allowed(g)) for g in op.generics)
    scope = Scope(op, program, None)
    params = tuple(_argument(p, scope, safe[p.name]) for p in op.params)
    results = (*(Result(o.name, o.type.dtype, _dims(o.type), None, o.doc) for o in op.outputs),
               *(Result(p.name, p.type.dtype, _dims(p.type), p.name, p.doc) for p in op.params if p.mode == "inout"))
    has_rest = any("..." in p.dims for p in params)
    return Interface(op.name, params, results, variables, has_rest, op.doc)


def _argument(p: s.Parameter, scope: Scope, inner: str) -> Argument:
    kind = p.mode or ("size" if is_integer(p) else "scalar" if is_scalar(p) else "tensor")
    default = None
    if p.default is not None and not any(isinstance(x, s.Name) for x in s.walk(p.default)):
        default = plain(lower(p.default, Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)))
    return Argument(p.name, kind, p.type.dtype, _dims(p.type), default, p.default is None, p.by_name, p.doc, inner)


def _dims(t: s.Type) -> tuple[str, ...]:
    return tuple("..." if isinstance(d, s.Rest) else unparse(d) for d in t.dims)


def _allowed(g: s.Generic) -> tuple[str, ...]:
    out: dict[str, None] = {}
    for c in g.classes:
        if c not in CLASSES and c not in DTYPES:
            raise fail("E206", f"`{c}` is no dtype and no class of dtypes", g.span, hint=f"classes are {', '.join(CLASSES)}")
        out |= dict.fromkeys(t.name for t in (CLASSES.get(c) or (DTYPES[c],)))
    return tuple(out)
