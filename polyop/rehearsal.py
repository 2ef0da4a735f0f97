"""Calls of an operator compiled for a GPU, on the emulator: every access is watched, and the time it takes means nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from polyop.compiler import compile_op
from polyop.ir.errors import CallError, InternalError, UnsupportedError
from polyop.ir.interface import Choice, Interface
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import Target
from polyop.ir.words import in_users_words
from polyop.runtime import arrays, choose, emulated, outside
from polyop.runtime.bind import Bound, bind
from polyop.runtime.layout import contiguous


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """An operator that is called like any other, with all arguments by name, and runs as `target` would run it."""

    interface: Interface
    make: Callable[[Choice], Op]
    target: Target

    def __call__(self, **arguments: Any) -> Any:
        """The results.

        Raises CallError, if the arguments do not fit; UnsupportedError without a C++ compiler, or where the operator has no
        loops; InternalError, if the emulator saw a fault.
        """
        values = choose.named(self.interface, (), arguments)
        op = self.make(choose.choose(self.interface, values))
        inner = {p.name_in_op: values[p.name] for p in self.interface.parameters}
        try:
            bound = bind(op, inner)
        except CallError as e:
            raise CallError(in_users_words(op, e.diagnostic)) from None
        return self._run(op, bound)

    def _run(self, op: Op, bound: Bound) -> Any:
        regime = "positive" if all(n > 0 for n in bound.sizes.values()) else "any"
        module = compile_op(op, contiguous(op), self.target, Options(regime=regime)).module
        if module is None:
            raise UnsupportedError(f"`{op.name}` has no loops for {self.target.name}: it is evaluated element by element")
        given = {b.name: arrays.as_numpy(bound.views[b.name]) for b in module.signature.tensors}
        report = emulated.run(module, bound.sizes, bound.scalars, given)
        if report.findings:
            raise InternalError(f"emulator: {op.name} for {self.target.name}: {report}")
        if report.site is not None:
            raise outside.report(bound, report.site)
        return bound.value
