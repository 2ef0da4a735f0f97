"""The last rung: an operator without machine code, evaluated element by element. Slow, and always right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from polyop.ir.deep import with_room
from polyop.ir.op import Op
from polyop.ir.reference import OutsideError, evaluate
from polyop.ir.words import users_words
from polyop.runtime.arrays import as_numpy, refuse
from polyop.runtime.bind import Bound


@dataclass(frozen=True, eq=False, slots=True)
class Interpreted:
    """Stands where a Kernel would. `notes` say why there is none."""

    op: Op
    notes: tuple[str, ...]

    def __call__(self, bound: Bound, count: int = 1) -> Any:
        """Run on bound arguments; the results.

        Raises CallError, if a position computed from data lies outside its tensor.
        """
        memory = {name: as_numpy(v) for name, v in bound.views.items()}
        given = {t.name: memory[t.name] for t in self.op.inputs}
        try:
            results = with_room(lambda: evaluate(self.op, bound.sizes, bound.scalars, given))
        except OutsideError as error:
            raise refuse("E610", users_words(bound.op, str(error.outside))) from None
        for t in self.op.outputs:
            memory[t.name][...] = results[t.name]
        return bound.value
