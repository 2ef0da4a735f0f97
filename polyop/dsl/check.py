"""Program -> Op: the one door through which checked operators leave this room."""

from __future__ import annotations

from collections.abc import Mapping

from polyop.dsl import calls
from polyop.dsl import syntax as s
from polyop.dsl.assemble import assemble
from polyop.dsl.draft import OperatorCall
from polyop.dsl.header import plain, resolve
from polyop.dsl.inference import Inlined, State
from polyop.dsl.names import did_you_mean
from polyop.dsl.scope import Scope
from polyop.dsl.statements import body_of
from polyop.dsl.warnings import warnings_of
from polyop.ir.deep import with_room
from polyop.ir.dtypes import DType
from polyop.ir.errors import Diagnostic, fail
from polyop.ir.op import Op
from polyop.ir.span import Span

DEEP = 60
"""Levels of an expression that are walked on the ordinary stack."""


def instantiate(program: s.Definitions, name: str, *, consts: Mapping[str, int | float | bool] | None = None,
                dtypes: Mapping[str, DType] | None = None, rank: int | None = None, library: s.Definitions | None = None) -> Op:
    """The operator `name` of `program`, with everything resolved but its sizes and run-time scalars.

    consts   the `const` parameters that differ from their defaults
    dtypes   the dtype variables; one left out is f32 where it may be, else i32, else the first it may be
    rank     how many dimensions `...` stands for; 1 if left out

    Raises  UserError E2xx (names, dtypes), E3xx (ranges, shapes).
    """
    definition = program.op(name)
    if definition is None:
        known = [o.name for o in program.ops]
        start = Span(program.source, 1, 1, 1, 2)
        raise fail("E201", f"there is no operator `{name}`" + did_you_mean(name, known), start if not known else None)

    def build() -> Op:
        return _build(program, definition, consts or {}, dtypes or {}, rank, library, ())
    return with_room(build) if is_deep(program, library) else build()


def warnings(program: s.Definitions, name: str, *, consts: Mapping[str, int | float | bool] | None = None,
             dtypes: Mapping[str, DType] | None = None, rank: int | None = None,
             library: s.Definitions | None = None) -> tuple[Diagnostic, ...]:
    """What is legal in `name` and most likely not meant; the same arguments and errors as `instantiate`."""
    op = instantiate(program, name, consts=consts, dtypes=dtypes, rank=rank, library=library)
    definition = program.op(name)
    assert definition is not None
    scope = resolve(program, definition, consts or {}, dtypes or {}, rank, library).scope
    known = {n: x for n, value in scope.consts.items() if (x := plain(value)) is not None}
    return warnings_of(definition, op, known)


def is_deep(*programs: s.Definitions | None) -> bool:
    """Whether some expression is too deep for Python's own stack: a sum of hundreds of terms, or functions in functions."""
    return any(p is not None and p.depth > DEEP for p in programs)


def _build(program: s.Definitions, definition: s.OpDef, consts: Mapping[str, int | float | bool], dtypes: Mapping[str, DType],
           rank: int | None, library: s.Definitions | None, calling: tuple[str, ...]) -> Op:
    if definition.name in calling:
        raise fail("E214", f"`{definition.name}` calls itself", definition.span)
    made: dict[object, Op] = {}

    def instance(
        callee: s.OpDef, home: s.Definitions, consts: Mapping[str, int | float | bool], dtypes: Mapping[str, DType], rank: int
    ) -> Op:
        key = (callee.name, id(home), tuple(sorted(consts.items())), tuple(sorted((k, v.name) for k, v in dtypes.items())), rank)
        if key not in made:
            made[key] = _build(home, callee, consts, dtypes, rank, library, (*calling, definition.name))
        return made[key]

    header = resolve(program, definition, consts, dtypes, rank, library)

    def callee_dtypes(callee: s.OpDef, home: s.Definitions, call: s.Call, scope: Scope,
                      known: Mapping[str, DType | None]) -> tuple[DType | None, ...]:
        return calls.result_dtypes(callee, call, scope, known, instance, home)

    body = body_of(header.scope, callee_dtypes)

    def inline(item: OperatorCall, state: State) -> Inlined:
        return calls.inline(item, state, instance)

    return assemble(header, body, inline)
