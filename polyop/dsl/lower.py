"""Syntax -> values: names looked up, functions written out, dtypes met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyop.dsl import syntax as s
from polyop.dsl import values as v
from polyop.dsl.conditions import both, compare, either, negated
from polyop.dsl.functions import apply_function
from polyop.dsl.names import CONSTANTS, FUNCTIONS, REDUCTIONS, counted, did_you_mean
from polyop.dsl.reductions import inner_reduction
from polyop.dsl.scope import Scope, Work
from polyop.dsl.text import unparse
from polyop.dsl.values import Typed, Value, Weak
from polyop.ir.dtypes import BOOL, I64
from polyop.ir.errors import InternalError, Label, assert_never, fail
from polyop.ir.expr import Affine, Apply, Const, Load, Number, Position, Scalar, affine, loads, walk
from polyop.ir.span import Span

_SIGNS = {"+": "add", "-": "sub", "*": "mul", "/": "div", "%": "mod", "&": "bitand", "|": "bitor", "^": "bitxor", "<<": "shl",
          ">>": "shr"}
_COMPARES = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


def lower(e: s.Syntax, w: Work) -> Value:
    """The value of `e`.

    Raises  UserError E2xx.
    """
    match e:
        case s.Number(value=x):
            if isinstance(x, bool):
                return v.boolean(x)
            return v.weak_int(affine(x), e.span) if isinstance(x, int) else v.weak_float(x)
        case s.Name():
            return _name(e, w)
        case s.Rest():
            raise InternalError("dsl: `...` outside of brackets passed the grammar")
        case s.Access():
            return _access(e, w)
        case s.Call():
            return _call(e, w)
        case s.Reduction():
            return inner_reduction(e, w, lower)
        case s.Binary():
            first, links = s.spine(e)
            value = lower(first, w)
            for link in links:
                value = _binary(link, value, lower(link.right, w), w)
            return value
        case s.Unary():
            return _unary(e, w)
        case s.Compare():
            return _compare(e, w)
        case s.Inside(value=x, lower=a, upper=b):
            middle = lower(x, w)
            at_least = compare("le", lower(a, w), middle, w.scope.default, e.span)
            below = compare("lt", middle, lower(b, w), w.scope.default, e.span)
            return Typed(both(at_least.expr, below.expr), at_least.size + below.size)
        case s.Choice():
            return _choice(e, w)
        case s.Else():
            return _else(e, w)
    assert_never(e)


def condition(e: s.Syntax, w: Work) -> Typed:
    """`e` as a condition."""
    value = lower(e, w)
    if isinstance(value, Weak) and value.kind == "unknown":
        return Typed(v.cast(value.build(I64), BOOL))
    if not isinstance(value, Typed) or value.dtype != BOOL:
        kind = value.dtype.name if isinstance(value, Typed) else "a number"
        raise fail("E222", "expected a condition", e.span, f"this is {kind}", hint="compare it with something: `x != 0`")
    return value


def position(e: s.Syntax, w: Work) -> Position:
    """`e` as a place in a dimension: an `Affine`, or an integer computed from data."""
    outer, w.inside_position = w.inside_position, True
    value = lower(e, w)
    w.inside_position = outer
    if isinstance(value, Weak):
        if value.form is not None:
            return v.placed(value.form, e.span)
        if value.kind == "unknown":
            return Affine()
        if value.kind == "float":
            raise fail("E232", "a position is an integer, and this is a float", e.span, hint="cast it: `i64(...)`")
        if value.product is not None:
            raise _product(e, value.product, w.scope)
        return value.build(I64)
    if not value.dtype.is_integer:
        raise fail("E232", f"a position is an integer, and this is {value.dtype}", e.span, hint="cast it: `i64(...)`")
    for part in walk(value.expr):
        if isinstance(part, Apply) and part.fn == "mul" and not loads(part) and any(isinstance(x, Number) for x in walk(part)):
            raise _product(e, e.span, w.scope)
    return v.cast(value.expr, I64)


def extent(e: s.Syntax, w: Work) -> Affine:
    """`e` as an extent or a bound: quasi-affine."""
    value = lower(e, w)
    if isinstance(value, Weak) and value.form is not None:
        return v.placed(value.form, e.span)
    if isinstance(value, Weak) and value.kind == "int":
        raise _product(e, value.product or e.span, w.scope)
    raise fail("E233", "an extent or bound is made of sizes, indices and integer constants", e.span)


def _product(e: s.Syntax, span: Span, scope: Scope) -> Exception:
    for x in s.walk(e):
        if isinstance(x, s.Name) and (x.name in scope.integers or x.name in scope.scalars):
            return fail(
                "E231", f"`{span.text}` multiplies an index by a run-time value", span, hint=f"declare it `const {x.name}: int`"
            )
    return fail("E231", f"`{span.text}` is not quasi-affine: one factor, or the divisor, must be a constant", span)


def _name(e: s.Name, w: Work) -> Value:
    scope, name = w.scope, e.name
    if w.arguments is not None:
        if name in w.arguments:
            return w.arguments[name]
        if name in CONSTANTS:
            return v.weak_float(CONSTANTS[name])
        raise fail("E201", f"`{name}` is not defined" + did_you_mean(name, [*w.arguments, *CONSTANTS]), e.span)
    if name in scope.consts:
        return scope.consts[name]
    if name in scope.scalars:
        return Typed(Scalar(scope.safe[name], scope.scalars[name]))
    if name in scope.sizes:
        return v.weak_int(affine(scope.safe.get(name, name)), e.span)
    if name in scope.tensors and w.tensors_allowed:
        return _read(name, (), e.span, w)
    if name in w.bound:
        return v.weak_int(affine(w.bound[name]), e.span)
    if name in CONSTANTS:
        return v.weak_float(CONSTANTS[name])
    if not w.indices_allowed:
        known = [*scope.consts, *scope.sizes, *scope.scalars]
        raise fail("E201", f"`{name}` is not defined" + did_you_mean(name, known), e.span)
    (w.places if w.inside_position else w.bare).setdefault(name, e.span)
    return v.weak_int(affine(scope.safe.get(name, name)), e.span)


def _access(e: s.Access, w: Work) -> Value:
    if w.arguments is not None:
        raise fail("E209", "a function reads no tensors; give it the value as an argument", e.span)
    if e.name not in w.scope.tensors:
        if e.name in FUNCTIONS or w.scope.fn(e.name) or e.name in w.scope.dtypes:
            raise fail("E205", f"`{e.name}` is a function", e.span, hint=f"its arguments stand in parentheses: `{e.name}(...)`")
        if e.name in REDUCTIONS:
            raise fail("E205", f"`{e.name}[...]` has no expression", e.span, hint=f"write `{e.name}[k](X[k])`")
        if e.name in w.scope.sizes or e.name in w.scope.scalars or e.name in w.scope.consts:
            raise fail("E204", f"`{e.name}` has no dimensions", e.span)
        raise fail("E201", f"`{e.name}` is not defined" + did_you_mean(e.name, w.scope.tensors), e.span)
    return _read(e.name, positions(e.name, e.index, e.span, w), e.span, w)


def positions(name: str, index: Sequence[s.Syntax], span: Span, w: Work) -> tuple[Position, ...]:
    """The positions of an index list, `...` written out, as many as `name` has dimensions."""
    out: list[Position] = []
    for x in index:
        if isinstance(x, s.Rest):
            out += [affine(i) for _, i in w.scope.rest]
            for _, i in w.scope.rest:
                w.places.setdefault(i, x.span)
        else:
            other = w.scope.tensors.get(x.name) if isinstance(x, s.Name) else None
            if other is not None and other.rank:
                message = f"`{other.name}` is a tensor of {counted(other.rank, 'dimension', 'dimensions')}, and so no index"
                raise fail("E204", message, x.span, hint="in one operator a name means one thing: call the index something else")
            out.append(position(x, w))
    holder = w.scope.tensors[name]
    if len(out) != holder.rank:
        found = counted(len(out), "index", "indices")
        message = f"`{name}` has {counted(holder.rank, 'dimension', 'dimensions')} but {found}"
        notes = (("declared here", Label(holder.span)),) if holder.span and holder.role != "temp" else ()
        raise fail("E203", message, span, f"{found} here", notes=notes)
    return tuple(out)


def _read(name: str, index: tuple[Position, ...], span: Span, w: Work) -> Value:
    holder = w.scope.tensors[name]
    if len(index) != holder.rank:
        dims = ", ".join("ijklmnpq"[d % 8] for d in range(holder.rank))
        message = f"`{name}` has {counted(holder.rank, 'dimension', 'dimensions')}, so it stands with brackets"
        raise fail("E204", message, span, hint=f"write `{name}[{dims}]`")
    dtype = holder.dtype or w.dtypes.get(name)
    if dtype is None:
        return Weak("unknown", lambda t: Load(holder.name, index, t, (), span))
    return Typed(Load(holder.name, index, dtype, (), span))


def _call(e: s.Call, w: Work) -> Value:
    scope = w.scope
    if e.keywords and not scope.operator(e.name):
        raise fail("E210", f"`{e.name}` takes no named arguments", e.span)
    fn = scope.fn(e.name)
    if fn is not None:
        return _write_out(fn, e, w)
    if e.name in scope.dtypes:
        if len(e.args) != 1:
            raise fail("E211", f"the cast `{e.name}` takes one argument, got {len(e.args)}", e.span)
        value = lower(e.args[0], w)
        return Typed(v.to(value, scope.dtypes[e.name], scope.default), v.total((value,), e.span))
    if e.name in FUNCTIONS:
        arity = FUNCTIONS[e.name]
        if len(e.args) != arity and not (arity < 0 and len(e.args) >= 2):
            expected = "two or more arguments" if arity < 0 else "1 argument" if arity == 1 else f"{arity} arguments"
            hint = f"over an index it is `{e.name}[k](...)`" if arity < 0 else ""
            raise fail("E211", f"`{e.name}` takes {expected}, got {len(e.args)}", e.span, hint=hint)
        return apply_function(e.name, tuple(lower(a, w) for a in e.args), scope.default, e.span)
    if e.name in scope.tensors:
        inner = ", ".join(map(unparse, e.args))
        raise fail(
            "E205", f"`{e.name}` is a tensor; its indices stand in square brackets", e.span, hint=f"write `{e.name}[{inner}]`"
        )
    if e.name in REDUCTIONS:
        raise fail("E205", f"`{e.name}` needs the indices it runs over", e.span, hint=f"write `{e.name}[k](...)`")
    if scope.operator(e.name):
        raise fail("E207", f"`{e.name}` is an operator; its call stands alone on the right", e.span,
                   hint=f"give it a line of its own: `T = {e.name}(...)`")
    known = [*FUNCTIONS, *scope.dtypes, *(f.name for f in scope.program.fns), *(o.name for o in scope.program.ops)]
    raise fail("E201", f"`{e.name}` is not defined" + did_you_mean(e.name, known), e.span)


def _write_out(fn: s.FnDef, e: s.Call, w: Work) -> Value:
    if fn.name in w.calling:
        raise fail("E214", f"`{fn.name}` calls itself", fn.span)
    if len(e.args) != len(fn.params):
        raise fail("E211", f"`{fn.name}` takes {len(fn.params)} arguments, got {len(e.args)}", e.span)
    given = dict(zip(fn.params, (lower(a, w) for a in e.args), strict=True))
    scope = w.scope if w.scope.program.fn(fn.name) else w.scope.of_library
    inner = replace(w, scope=scope, arguments=given, calling=(*w.calling, fn.name), bare={}, places={})
    value = lower(fn.body, inner)
    v.total((value,), e.span)
    return value


def _binary(e: s.Binary, a: Value, b: Value, w: Work) -> Value:
    if e.sign in ("and", "or"):
        for x, part in ((a, e.left), (b, e.right)):
            if (isinstance(x, Typed) and x.dtype != BOOL) or (isinstance(x, Weak) and x.kind != "unknown"):
                raise fail("E222", f"`{e.sign}` joins conditions, and this is none", part.span)
        left, right = v.to(a, BOOL, w.scope.default), v.to(b, BOOL, w.scope.default)
        return Typed(both(left, right) if e.sign == "and" else either(left, right), v.total((a, b), e.span))
    if e.sign in ("&", "|", "^", "<<", ">>"):
        for x, part in ((a, e.left), (b, e.right)):
            if (isinstance(x, Typed) and x.dtype.is_float) or (isinstance(x, Weak) and x.kind == "float"):
                raise fail("E223", f"`{e.sign}` works on integers, and this is a float", part.span)
            if e.sign in ("<<", ">>") and isinstance(x, Typed) and x.dtype == BOOL:
                raise fail("E223", f"`{e.sign}` works on integers, and this is a condition", part.span)
    return v.arithmetic(_SIGNS[e.sign], a, b, w.scope.default, e.span)


def _unary(e: s.Unary, w: Work) -> Value:
    if e.sign == "not":
        inner = condition(e.value, w)
        return Typed(negated(inner.expr), v.total((inner,), e.span))
    value = lower(e.value, w)
    if e.sign == "-":
        return v.negative(value, w.scope.default, e.span)
    if e.sign == "+":
        return value
    if isinstance(value, Typed):
        if value.dtype.is_float:
            raise fail("E223", "`~` works on integers, and this is a float", e.span, hint="a condition is negated by `not`")
        return Typed(Apply("invert", (value.expr,), value.dtype) if value.dtype != BOOL else negated(value.expr),
                     v.total((value,), e.span))
    if value.kind == "float":
        raise fail("E223", "`~` works on integers, and this is a float", e.span)
    if value.form is not None:
        return v.weak_int(value.form * -1 - 1, e.span)
    return v.computed(Apply("invert", (value.build(I64),), I64), v.total((value,), e.span), value.product)


def _compare(e: s.Compare, w: Work) -> Value:
    given = [lower(x, w) for x in e.values]
    out, size = v.boolean(True).expr, 0
    for sign, a, b in zip(e.signs, given, given[1:], strict=False):
        link = compare(_COMPARES[sign], a, b, w.scope.default, e.span)
        out, size = both(out, link.expr), size + link.size
    return Typed(out, size)


def _choice(e: s.Choice, w: Work) -> Value:
    c = condition(e.condition, w)
    outer = w.conditions
    w.conditions = (*outer, c.expr)
    yes = lower(e.yes, w)
    w.conditions = (*outer, negated(c.expr))
    no = lower(e.no, w)
    w.conditions = outer
    if isinstance(c.expr, Const):
        chosen = yes if c.expr.value else no
        t = v.common((yes, no), w.scope.default)
        return chosen if t is None else Typed(v.to(chosen, t, w.scope.default), chosen.size)
    return _select(c, yes, no, w, e.span)


def _select(c: Typed, yes: Value, no: Value, w: Work, span: Span) -> Value:
    size, default = v.total((c, yes, no), span), w.scope.default
    t = v.common((yes, no), default)
    if t is not None:
        return Typed(Apply("select", (c.expr, v.to(yes, t, default), v.to(no, t, default)), t), size)
    kind = v.weakest((yes, no))
    if kind == "int":
        return v.computed(Apply("select", (c.expr, v.to(yes, I64, default), v.to(no, I64, default)), I64), size)
    return Weak(kind, lambda t: Apply("select", (c.expr, v.to(yes, t, default), v.to(no, t, default)), t), size=size)


def _else(e: s.Else, w: Work) -> Value:
    if not isinstance(e.read, s.Access):
        raise _one_read(e)
    read, other = lower(e.read, w), lower(e.other, w)
    size, default = v.total((read, other), e.span), w.scope.default
    t = v.common((read, other), default)
    if t is None or isinstance(read, Weak):
        return Weak("unknown", lambda t: v.to(read, t, default), size=size)
    return Typed(Apply("otherwise", (read.expr, v.to(other, t, default)), t), size)


def _one_read(e: s.Else) -> Exception:
    reads = [x for x in s.walk(e.read) if isinstance(x, s.Access)]
    hint = ""
    if isinstance(e.read, s.Binary):
        first, links = s.spine(e.read)
        parts = [first, *(link.right for link in links)]
        if len(parts) <= 4 and all(isinstance(p, s.Access) for p in parts):
            other = unparse(e.other)
            hint = f"write `({unparse(first)} else {other})" + "".join(
                f" {link.sign} ({unparse(link.right)} else {other})" for link in links) + "`"
    if not hint and reads:
        hint = f"write `({unparse(reads[-1])} else {unparse(e.other)})`"
    return fail("E114", "`else` belongs to one read", e.span, hint=hint)
