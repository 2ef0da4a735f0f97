"""The temporaries of an operator: which names they have, what the text declares, and in which form each is written."""

from __future__ import annotations

from dataclasses import replace

from polyop.dsl import syntax as s
from polyop.dsl.draft import Holder
from polyop.dsl.header import shape_of
from polyop.dsl.names import FUNCTIONS, REDUCING, counted, did_you_mean
from polyop.dsl.scope import Scope, Work
from polyop.ir.errors import Label, fail
from polyop.ir.span import Span


def is_operator_call(e: s.Syntax, scope: Scope) -> bool:
    """Whether `e` calls an operator: a name that no function has, or whole tensors as arguments."""
    if not isinstance(e, s.Call) or scope.operator(e.name) is None:
        return False
    whole = any(isinstance(a, s.Name) and a.name in scope.tensors and scope.tensors[a.name].rank > 0
                for a in (*e.args, *(x for _, x in e.keywords)))
    return whole or (e.name not in FUNCTIONS and scope.fn(e.name) is None and e.name not in scope.dtypes)


def with_temporaries(scope: Scope) -> Scope:
    tensors = dict(scope.tensors)
    work = Work(scope, {}, set(), indices_allowed=False, tensors_allowed=False)
    for statement in scope.op.body:
        names = statement.names if isinstance(statement, s.Multi) else (statement.name,)
        for position, name in enumerate(names):
            _check_free(name, statement, scope)
            old = tensors.get(name)
            new = _temporary(name, position, statement, replace(scope, tensors=tensors), work)
            if old is None:
                tensors[name] = new
                continue
            if new.shape is not None or new.dtype is not None:
                tensors[name] = _merge(old, new, statement)
    return replace(scope, tensors=tensors)


def _merge(old: Holder, new: Holder, statement: s.Statement) -> Holder:
    if old.role == "temp":
        for kind, a, b in (("shape", old.shape, new.shape), ("dtype", old.dtype, new.dtype)):
            if a is not None and b is not None and a != b:
                raise fail("E202", f"`{old.name}` has two {kind}s", statement.span)
        rank = new.rank if new.shape is not None else old.rank
        return replace(old, shape=old.shape or new.shape, dtype=old.dtype or new.dtype, rank=rank)
    if new.shape is not None:
        raise fail("E202", f"`{old.name}` has its shape from the signature", statement.span)
    return replace(old, summed=new.dtype)


def _check_free(name: str, statement: s.Statement, scope: Scope) -> None:
    holder = scope.tensors.get(name)
    if holder is not None and holder.role == "in":
        where = (("declared here", Label(holder.span)),) if holder.span else ()
        raise fail("E219", f"`{name}` is an input and cannot be written", _left(statement), notes=where,
                   hint=f"declare it `inout {name}: ...`")
    if name in scope.sizes or name in scope.scalars or name in scope.consts:
        raise fail("E202", f"`{name}` is a parameter or a size already; one name means one thing", _left(statement))


def _left(statement: s.Statement) -> Span:
    return statement.left if isinstance(statement, s.Assignment) else statement.span


def _temporary(name: str, number: int, statement: s.Statement, scope: Scope, work: Work) -> Holder:
    shape, dtype, rank = None, None, 0
    match statement:
        case s.Declaration(dtype=t, shape=dims):
            shape, dtype = shape_of(dims, work), scope.dtype(t, statement.span)
            rank = len(shape)
        case s.Assignment(dtype=t, shape=dims, index=index, value=value):
            shape = shape_of(dims, work) if dims is not None else None
            dtype = scope.dtype(t, statement.left) if t is not None else None
            if shape is not None:
                rank = len(shape)
            elif index is not None:
                rank = sum(len(scope.rest) if isinstance(i, s.Rest) else 1 for i in index)
            elif is_operator_call(value, scope):
                assert isinstance(value, s.Call)
                rank = _result_rank(value, number, scope)
            elif isinstance(value, s.Name) and value.name in scope.tensors:
                rank = scope.tensors[value.name].rank
        case s.Multi(value=value):
            if not is_operator_call(value, scope):
                raise fail("E220", "several names on the left take the results of one operator", statement.span)
            assert isinstance(value, s.Call)
            rank = _result_rank(value, number, scope)
    return Holder(scope.safe[name], dtype, rank, shape, "temp", "", _left(statement))


def _result_rank(call: s.Call, number: int, scope: Scope) -> int:
    found = scope.operator(call.name)
    assert found is not None
    callee = found[0]
    results: list[s.Parameter | s.Output] = [*callee.outputs, *(p for p in callee.params if p.mode == "inout")]
    if number >= len(results):
        raise fail("E220", f"`{call.name}` has {counted(len(results), 'result', 'results')}", call.span)
    dims = results[number].type.dims
    fixed = sum(not isinstance(d, s.Rest) for d in dims)
    return fixed + (rest_rank(callee, call, scope) if fixed != len(dims) else 0)


def rest_rank(callee: s.OpDef, call: s.Call, scope: Scope) -> int:
    """How many dimensions `...` of `callee` stands for in this call."""
    given = {p.name: a for p, a in zip((p for p in callee.params if not p.by_name), call.args, strict=False)} | dict(
        call.keywords
    )
    for p in callee.params:
        fixed = sum(not isinstance(d, s.Rest) for d in p.type.dims)
        a = given.get(p.name)
        if fixed != len(p.type.dims) and isinstance(a, s.Name) and a.name in scope.tensors:
            rank = scope.tensors[a.name].rank - fixed
            if rank < 0:
                raise fail("E203", f"`{a.name}` has {scope.tensors[a.name].rank} dimensions, and `{p.name}` of `{callee.name}` "
                           f"has at least {fixed}", a.span)
            return rank
    return 0


def _check_results(scope: Scope) -> None:
    """E244: what an operator returns is a whole tensor, so nothing else writes it."""
    writers: dict[str, list[s.Assignment | s.Multi]] = {}
    for x in scope.op.body:
        if isinstance(x, s.Assignment | s.Multi):
            for name in x.names if isinstance(x, s.Multi) else (x.name,):
                writers.setdefault(name, []).append(x)
    for name, several in writers.items():
        for n, x in enumerate(several):
            if len(several) > 1 and is_operator_call(x.value, scope) and (isinstance(x, s.Multi) or x.index is None):
                assert isinstance(x.value, s.Call)
                other = several[0] if n else several[1]
                raise fail("E244", f"`{name}` is the whole result of `{x.value.name}`, and is written elsewhere too", _left(x),
                           notes=(("written here", Label(_left(other))),), hint=f"give the result a name of its own: `T = "
                           f"{x.value.name}(...)`")


def check_forms(scope: Scope) -> None:
    """One tensor is either assigned, or reduced with one operator, or the result of one call."""
    _check_results(scope)
    first: dict[str, s.Assignment] = {}
    for x in scope.op.body:
        if not isinstance(x, s.Assignment):
            continue
        if x.reduce and x.reduce not in (*REDUCING, "argmax", "argmin") and scope.monoid(x.reduce) is None:
            known = [*REDUCING, "argmax", "argmin", *(m.name for m in scope.program.monoids)]
            raise fail("E201", f"`{x.reduce}=` is no reducing operator" + did_you_mean(x.reduce, known), x.span)
        old = first.setdefault(x.name, x)
        if old.reduce == x.reduce:
            continue
        plain, other = (old, x) if not old.reduce else (x, old)
        if plain.reduce:
            raise fail("E216", f"`{x.name}` is reduced with `{old.reduce}=` and with `{x.reduce}=`", x.left,
                       notes=(("first here", Label(old.left)),), hint="give each a tensor of its own")
        constant = isinstance(plain.value, s.Number)
        hint = "a sum starts from 0 by itself, remove this line" if other.reduce == "+" and constant else \
            "a reduction starts from its identity by itself" if constant else "give each a tensor of its own"
        raise fail("E216", f"`{x.name}` is assigned with `=` and with `{other.reduce}=`", plain.left,
                   notes=(("reduced here", Label(other.left)),), hint=hint)
