"""What the names of one operator mean, once consts, dtype variables and `...` are settled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyop.dsl import syntax as s
from polyop.dsl.draft import Draft, Holder
from polyop.dsl.values import Value
from polyop.ir.dtypes import DTYPES, F32, DType
from polyop.ir.errors import fail
from polyop.ir.expr import Expr
from polyop.ir.span import Span


@dataclass(frozen=True, slots=True)
class Scope:
    """The header of one operator, resolved.

    default   the widest float among the parameters, else f32: what a weak float alone becomes
    dtypes    the dtypes' names, and the dtype variables
    scalars   run-time scalars; `integers` are the `int` parameters, which are sizes too
    safe      the name in the Op of every name in the text
    rest      what `...` stands for: (size, index) names, outermost first
    """

    op: s.OpDef
    program: s.Definitions
    library: s.Definitions | None
    default: DType = F32
    dtypes: Mapping[str, DType] = field(default_factory=lambda: dict(DTYPES))
    consts: Mapping[str, Value] = field(default_factory=dict)
    scalars: Mapping[str, DType] = field(default_factory=dict)
    integers: frozenset[str] = frozenset()
    sizes: frozenset[str] = frozenset()
    tensors: Mapping[str, Holder] = field(default_factory=dict)
    safe: Mapping[str, str] = field(default_factory=dict)
    rest: tuple[tuple[str, str], ...] = ()

    def fn(self, name: str) -> s.FnDef | None:
        return self.program.fn(name) or (self.library.fn(name) if self.library else None)

    def monoid(self, name: str) -> s.MonoidDef | None:
        return self.program.monoid(name) or (self.library.monoid(name) if self.library else None)

    def operator(self, name: str) -> tuple[s.OpDef, s.Definitions] | None:
        for program in (self.program, self.library):
            found = program.op(name) if program else None
            if program and found:
                return found, program
        return None

    @property
    def of_library(self) -> Scope:
        """What names mean inside a definition of the library, whatever this file calls its own."""
        return replace(self, program=self.library) if self.library else self

    def dtype(self, name: str, span: Span) -> DType:
        """Raises UserError E206 where `name` is no dtype."""
        if name not in self.dtypes:
            known = ", ".join(self.dtypes)
            raise fail("E206", f"`{name}` is no dtype", span, hint=f"dtypes are {known}")
        return self.dtypes[name]

    @property
    def rest_size_names(self) -> tuple[str, ...]:
        return tuple(a for a, _ in self.rest)


@dataclass(slots=True)
class Work:
    """What grows while one statement is lowered.

    arguments   of the `fn` being written out; None outside of one
    conditions  those of the `?:` around; `where` those of the statement
    bound       the indices of the inner reductions around: `k` -> `k@1`
    """

    scope: Scope
    dtypes: Mapping[str, DType | None]
    taken: set[str]
    target: str = ""
    indices_allowed: bool = True
    tensors_allowed: bool = True
    arguments: Mapping[str, Value] | None = None
    calling: tuple[str, ...] = ()
    bound: dict[str, str] = field(default_factory=dict)
    conditions: tuple[Expr, ...] = ()
    left: frozenset[str] = frozenset()
    hidden: list[Draft] = field(default_factory=list)
    where: tuple[Expr, ...] = ()
    serial: list[int] = field(default_factory=lambda: [0])
    bare: dict[str, Span] = field(default_factory=dict)
    places: dict[str, Span] = field(default_factory=dict)
    inside_position: bool = False
