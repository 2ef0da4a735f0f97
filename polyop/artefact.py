"""What a user looks at: a compiled operator, before any call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from polyop.ir.deep import with_room
from polyop.ir.interface import Choice
from polyop.ir.module import Binary, Module, Proof
from polyop.ir.op import Op
from polyop.ir.options import Layout, Options
from polyop.ir.target import Target
from polyop.rewrite.flatten import products


class Compiled(Protocol):
    """What compiling gives: `compiler.Compiled`."""

    @property
    def module(self) -> Module | None: ...
    @property
    def binary(self) -> Binary | None: ...
    @property
    def proofs(self) -> tuple[Proof, ...]: ...
    @property
    def trace(self) -> Mapping[str, str]: ...
    @property
    def chosen(self) -> tuple[str, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


Compile = Callable[[Op, Layout, Target, Options], Compiled]
Instantiate = Callable[[Choice], Op]


@dataclass(frozen=True, eq=False, slots=True)
class Artefact:
    """A compiled operator to look at; it needs no device until it is called.

    operator  what a call goes to: an `Operator`
    merged    the sizes of dimensions that the kernel sees as one, by the name of their product
    calls     the sizes of the calls whose kernel this is; empty: of all that have no kernel of their own
    Notes     `trace[stage]` is the text of a stage, `source` that of the last one.
    """

    operator: Callable[..., Any]
    op: Op
    target: Target
    layout: Layout
    source: str
    trace: Mapping[str, str]
    proofs: tuple[Proof, ...]
    notes: tuple[str, ...]
    binary: Binary | None
    merged: Mapping[str, tuple[str, ...]]
    calls: Mapping[str, int]

    def __call__(self, *args: Any, out: Any = None, **keywords: Any) -> Any:
        """Run on arguments, compiled for this target and with these options.

        Raises CallError, if they do not fit; UnsupportedError, if the target is not here.
        """
        return self.operator(*args, out=out, **keywords)

    def explain(self, sizes: Mapping[str, int] | None = None) -> str:
        """Loops, fusion, work, memory and proofs; with `sizes`, the formulas are also worked out for them."""
        from polyop.report.explain import explain  # who only calls an operator need not wait for its room

        given = {**self.calls, **(sizes or {})}
        return with_room(lambda: explain(self, given | products(self.merged, given)))
