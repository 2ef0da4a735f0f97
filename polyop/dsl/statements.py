"""The body of an operator -> drafts: dtypes settled, by rounds, since a temporary's comes from what is stored in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from polyop.dsl import syntax as s
from polyop.dsl import values as v
from polyop.dsl.conditions import both, either
from polyop.dsl.draft import Draft, Given, Holder, OperatorCall, reading_order
from polyop.dsl.lower import condition, extent, lower, positions
from polyop.dsl.monoids import monoid_of
from polyop.dsl.names import FUNCTIONS, REDUCING, counted, did_you_mean, fresh
from polyop.dsl.scope import Scope, Work
from polyop.dsl.temporaries import check_forms, is_operator_call, with_temporaries
from polyop.dsl.values import Typed, Value, Weak
from polyop.ir.dtypes import BOOL, I64, DType, accumulator, fits, promote
from polyop.ir.errors import fail
from polyop.ir.expr import Apply, Const, Expr, Load, affine, is_affine_condition, is_computed
from polyop.ir.op import builtin_monoid
from polyop.ir.span import Span

MAX_ROUNDS = 12

CalleeDtypes = Callable[[s.OpDef, s.Definitions, s.Call, Scope, Mapping[str, DType | None]], "tuple[DType | None, ...]"]
"""What an operator call returns, by the dtypes of the caller's tensors."""


@dataclass(frozen=True, slots=True)
class Body:
    """Drafts in text order, and every tensor, the temporaries included, with its dtype."""

    drafts: tuple[Draft | OperatorCall, ...]
    holders: Mapping[str, Holder]
    names: frozenset[str]


def body_of(scope: Scope, callee_dtypes: CalleeDtypes) -> Body:
    """Raises UserError E2xx."""
    scope = with_temporaries(scope)
    check_forms(scope)
    dtypes: dict[str, DType | None] = {n: h.dtype for n, h in scope.tensors.items()}
    statements = [x for x in scope.op.body if not isinstance(x, s.Declaration)]
    for n in range(MAX_ROUNDS):
        before = dict(dtypes)
        taken = set(scope.safe.values()) | {h.result for h in scope.tensors.values()}
        work = Work(scope, dtypes, taken)
        stored: dict[str, DType] = {}
        for x in statements if n % 2 == 0 else reversed(statements):  # writers may stand before or after readers
            for name, dtype in _lower(x, work, callee_dtypes).stores:
                if scope.tensors[name].dtype is None and dtype is not None:
                    stored[name] = promote(stored[name], dtype) if name in stored else dtype
                    dtypes[name] = stored[name]
        if dtypes == before:
            break
    missing = [n for n, t in dtypes.items() if t is None]
    if missing:
        span = scope.tensors[missing[0]].span
        raise fail("E229", f"nothing gives `{missing[0]}` a dtype", span, hint=f"say it: `{missing[0]}: f32 [...] = ...`")
    holders = {n: replace(h, dtype=dtypes[n]) for n, h in scope.tensors.items()}
    final = replace(scope, tensors=holders)
    work = Work(final, dtypes, set(scope.safe.values()) | {h.result for h in holders.values()})
    drafts = [_lower(x, work, callee_dtypes).finish() for x in statements]
    return Body(tuple(drafts), holders, frozenset(work.taken))


@dataclass(frozen=True, slots=True)
class _Lowered:
    """What a statement stores where, and its draft once all dtypes are known."""

    stores: tuple[tuple[str, DType | None], ...]
    finish: Callable[[], Draft | OperatorCall]


def _lower(x: s.Statement, shared: Work, callee_dtypes: CalleeDtypes) -> _Lowered:
    scope = shared.scope
    assert isinstance(x, s.Assignment | s.Multi)
    names = x.names if isinstance(x, s.Multi) else (x.name,)
    if isinstance(x, s.Multi) or (x.index is None and not x.reduce and is_operator_call(x.value, scope)):
        call = x.value
        assert isinstance(call, s.Call)
        found = scope.operator(call.name)
        assert found is not None
        results = callee_dtypes(*found, call, scope, shared.dtypes)
        if len(results) != len(names):
            raise fail("E220", f"`{call.name}` has {len(results)} results, and {len(names)} names stand on the left", x.span)
        return _Lowered(tuple(zip(names, results, strict=True)), lambda: OperatorCall(names, call.name, call, x.span))
    return _assignment(x, replace(shared, bare={}, places={}, hidden=[], bound={}, conditions=(), where=(),
                                  left=frozenset(), serial=[0], target=scope.safe[x.name]))


def _assignment(x: s.Assignment, w: Work) -> _Lowered:
    scope, holder = w.scope, w.scope.tensors[x.name]
    index = x.index or ()
    value_syntax = x.value
    if x.index is None and holder.rank > 0:
        if isinstance(x.value, s.Name) and x.value.name in scope.tensors and scope.tensors[x.value.name].rank == holder.rank:
            index, value_syntax = _whole(x.value, holder.rank, x, scope)
        else:
            dims = ", ".join("ijklmnpq"[d % 8] for d in range(holder.rank))
            if isinstance(x.value, s.Call):
                known = [o.name for p in (scope.program, scope.library) if p for o in p.ops]
                if x.value.name not in FUNCTIONS and scope.fn(x.value.name) is None and x.value.name not in scope.dtypes:
                    raise fail("E201", f"there is no operator `{x.value.name}`" + did_you_mean(x.value.name, known), x.value.span)
            message = f"`{x.name}` has {counted(holder.rank, 'dimension', 'dimensions')}, so it stands with brackets"
            raise fail("E204", message, x.left, hint=f"write `{x.name}[{dims}]`")
    at = positions(x.name, index, x.left, w)
    w.left = frozenset(w.places)
    if any(map(is_computed, at)) and not x.reduce:
        raise fail("E234", f"`=` may write one element of `{x.name}` twice, since `{_reads(index)}` may repeat", x.left,
                   hint="say how to combine: `+=`, `max=`")
    given, conditions, filters = _where(x, w)
    w.where = (*conditions, *filters)
    value = lower(value_syntax, w)
    if not x.reduce:
        _check_open(x, w, given)
    draft = Draft(
        holder.result or holder.name, at, None, Const(0, I64), given, conditions, filters, tuple(w.hidden), (), x.span, x.left
    )
    if x.reduce in ("argmax", "argmin"):
        return _arg_reduction(x, draft, value, holder, w)
    return _stored(x, draft, value, holder, w)


def _stored(x: s.Assignment, draft: Draft, value: Value, holder: Holder, w: Work) -> _Lowered:
    scope = w.scope
    declared = holder.dtype if holder.role != "temp" or _is_declared(x.name, scope) else None
    own = None if isinstance(value, Weak) and value.kind == "unknown" else v.alone(value, scope.default)
    if not x.reduce:
        if declared is not None:
            _check_fits(x, value, declared)

        def assign() -> Draft:
            target = declared or w.dtypes[x.name]
            assert target is not None
            return replace(draft, expr=v.to(value, target, scope.default))
        return _Lowered(((x.name, own),), assign)
    name = REDUCING.get(x.reduce, x.reduce)
    counts = own == BOOL and name in ("add", "mul")
    summed = accumulator(I64 if counts else own) if own is not None else None
    if declared is not None:
        if not counts:
            _check_fits(x, value, holder.summed or declared)
        summed = holder.summed or (declared if name in ("max", "min") and declared.is_integer else accumulator(declared))

    def reduce() -> Draft:
        total = summed if declared is not None else w.dtypes[x.name]
        assert total is not None
        return replace(
            draft, reduce=monoid_of(name, total, scope, x.span, lower), expr=v.widened(v.to(value, total, scope.default))
        )
    return _Lowered(((x.name, summed),), reduce)


def _is_declared(name: str, scope: Scope) -> bool:
    """Whether the text gives the temporary `name` a dtype."""
    return any(isinstance(x, s.Declaration | s.Assignment) and x.name == name and x.dtype is not None for x in scope.op.body)


def _check_fits(x: s.Assignment, value: Value, target: DType) -> None:
    if isinstance(value, Typed):
        if fits(value.dtype, target):
            return
        found = value.dtype.name
    elif value.kind == "float" and not target.is_float:
        found = "a float"
    elif value.kind == "int" and target == BOOL:
        found = "an integer"
    else:
        return
    raise fail(
        "E221", f"{found} does not fit into `{x.name}`, which is {target}", x.value.span, hint=f"write the cast: `{target}(...)`"
    )


def _whole(source: s.Name, rank: int, x: s.Assignment, scope: Scope) -> tuple[tuple[s.Syntax, ...], s.Syntax]:
    """`Y = X` as `Y[i0, i1] = X[i0, i1]`."""
    taken = set(scope.safe) | set(scope.tensors) | set(scope.sizes)
    names: list[s.Syntax] = []
    for d in range(rank):
        name = next(n for n in (f"i{d}{'_' * k}" for k in range(99)) if n not in taken)
        names.append(s.Name(name, source.span))
    return tuple(names), s.Access(source.name, tuple(names), source.span)


def _reads(index: tuple[s.Syntax, ...]) -> str:
    for i in index:
        for e in s.walk(i):
            if isinstance(e, s.Access):
                return e.name
    return "the position"


def _where(x: s.Assignment, w: Work) -> tuple[tuple[Given, ...], tuple[Expr, ...], tuple[Expr, ...]]:
    """The `where` of a statement: ranges of plain indices, affine conditions, and conditions on data."""
    scope = w.scope
    given: list[Given] = []
    conditions: list[Expr] = []
    filters: list[Expr] = []
    for e in x.where:
        if isinstance(e, s.Inside) and isinstance(e.value, s.Name) and _is_index(e.value.name, w):
            name = scope.safe.get(e.value.name, e.value.name)
            if all(g.index != name for g in given):
                w.places.setdefault(e.value.name, e.value.span)
                given.append(Given(name, extent(e.lower, w), extent(e.upper, w)))
                continue
        c = condition(e, w).expr
        for part in _parts(c):
            if is_affine_condition(part):
                conditions.append(part)
            elif not x.reduce:
                raise fail("E235", "`where` on `=` takes conditions on indices and sizes alone", e.span,
                           hint="choose by data with `condition ? a : b`")
            else:
                filters.append(part)
    return tuple(given), tuple(conditions), tuple(filters)


def _parts(c: Expr) -> list[Expr]:
    if isinstance(c, Apply) and c.fn == "and":
        return [*_parts(c.args[0]), *_parts(c.args[1])]
    return [c] if not (isinstance(c, Const) and c.value) else []


def _is_index(name: str, w: Work) -> bool:
    scope = w.scope
    return name not in scope.sizes and name not in scope.tensors and name not in scope.scalars and name not in scope.consts


def _check_open(x: s.Assignment, w: Work, given: tuple[Given, ...]) -> None:
    """Every index of an `=` stands on the left."""
    inner = {i.name for e in s.walk(x.value) if isinstance(e, s.Reduction) for i in e.index if isinstance(i, s.Name)}
    for name, span in {**w.bare, **w.places}.items():
        if name in w.left or name in inner:
            continue
        if name in w.places:
            raise fail("E301", f"`{name}` stands only on the right of `=`", span, hint="to sum over it, write `+=`")
        raise not_an_index(name, span, w.scope)


def not_an_index(name: str, span: Span | None, scope: Scope) -> Exception:
    """E304: an index that nothing gives a range, most likely a misspelt name."""
    known = [*scope.scalars, *scope.consts, *scope.sizes, *scope.tensors, "true", "false"]
    return fail(
        "E304", f"`{name}` is no parameter, so it is an index, and nothing gives it a range" + did_you_mean(name, known), span
    )


def _arg_reduction(x: s.Assignment, draft: Draft, value: Value, holder: Holder, w: Work) -> _Lowered:
    """The position of the greatest (least) value: the value itself first, then the first position that has it.

        T_top[i] max= e[i, j]
        T_at[i]  min= e[i, j] == T_top[i] or isnan(e[i, j]) and isnan(T_top[i]) ? j : HIGHEST     (i64)
        T[i]        = T_at[i] == HIGHEST ? -1 : T_at[i]                                           (see `finished`)
    """
    scope = w.scope
    if sum(isinstance(other, s.Assignment) and other.name == x.name for other in scope.op.body) > 1:
        raise fail("E236", f"`{x.reduce}=` stands once for each tensor", x.left)
    dtype = v.alone(value, scope.default)
    e = v.to(value, dtype, scope.default)
    left = draft.left_names
    sizes = {scope.safe.get(n, n) for n in scope.sizes}
    read = [*reading_order(e), *(n for f in draft.filters for n in reading_order(f)), *(g.index for g in draft.given)]
    inner = [n for n in dict.fromkeys(read) if n not in left and n not in sizes]
    if len(inner) != 1:
        message = f"`{x.reduce}=` reduces over exactly one index, got {', '.join(f'`{n}`' for n in inner) or 'none'}"
        raise fail("E236", message, x.span)
    outer = tuple(affine(n) for n in left if n not in sizes)
    if holder.dtype is not None and not fits(I64, holder.dtype):
        raise fail("E221", f"a position is i64 and does not fit into `{x.name}`, which is {holder.dtype}", x.left)
    top = fresh(f"{draft.target}_top", w.taken)
    best = builtin_monoid("max" if x.reduce == "argmax" else "min", dtype)
    found: Expr = Apply("eq", (e, Load(top, outer, dtype)), BOOL)
    if dtype.is_float:
        nans = both(Apply("isnan", (e,), BOOL), Apply("isnan", (Load(top, outer, dtype),), BOOL))
        found = either(found, nans)
    place = Apply("select", (found, v.weak_int(affine(inner[0])).build(I64), Const(I64.highest, I64)), I64)
    hidden = Draft(top, outer, best, e, filters=draft.filters, bound=(inner[0],), span=x.span, left=x.left, hidden=draft.hidden)
    made = replace(draft, reduce=builtin_monoid("min", I64), expr=place, hidden=(hidden,), is_argument=True)
    return _Lowered(((x.name, I64),), lambda: made)
