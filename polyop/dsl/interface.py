"""Program -> Interface: how to call an operator, read off its signature without resolving its body."""

from __future__ import annotations

from polyop.dsl import syntax as s
from polyop.dsl.header import is_integer, is_scalar, plain
from polyop.dsl.lower import lower
from polyop.dsl.names import CONSTANTS, did_you_mean, names_of, safe_names
from polyop.dsl.scope import Scope, Work
from polyop.dsl.text import unparse
from polyop.ir.dtypes import CLASSES, DTYPES
from polyop.ir.errors import fail
from polyop.ir.interface import Interface, Parameter

_WORDS = {"int": "i64", "float": "f64"}


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
    parameters = tuple(_parameter(p, scope, safe[p.name]) for p in op.params)
    results = (*(Parameter(o.name, "tensor", o.type.dtype, _dims(o.type), doc=o.doc) for o in op.outputs),
               *(Parameter(p.name, "tensor", p.type.dtype, _dims(p.type), inout=True, doc=p.doc) for p in op.params
                 if p.mode == "inout"))
    return Interface(op.name, parameters, results, variables, op.doc)


def _parameter(p: s.Parameter, scope: Scope, inner: str) -> Parameter:
    kind = "const" if p.mode == "const" else "int" if is_integer(p) else "scalar" if is_scalar(p) else "tensor"
    default = None
    if p.default is not None and not any(isinstance(x, s.Name) and x.name not in CONSTANTS for x in s.walk(p.default)):
        default = plain(lower(p.default, Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)))
    dtype = _WORDS.get(p.type.dtype, p.type.dtype)
    is_derived = p.default is not None and default is None
    return Parameter(p.name, kind, dtype, _dims(p.type), default, p.by_name, p.mode == "inout", p.doc, inner, is_derived)


def _dims(t: s.Type) -> tuple[str, ...]:
    return tuple("..." if isinstance(d, s.Rest) else unparse(d) for d in t.dims)


def _allowed(g: s.Generic) -> tuple[str, ...]:
    out: dict[str, None] = {}
    for c in g.classes:
        if c not in CLASSES and c not in DTYPES:
            raise fail("E206", f"`{c}` is no dtype and no class of dtypes", g.span, hint=f"classes are {', '.join(CLASSES)}")
        out |= dict.fromkeys(t.name for t in (CLASSES.get(c) or (DTYPES[c],)))
    return tuple(out)
