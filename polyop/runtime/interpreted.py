"""The last rung: an operator without machine code, evaluated element by element. Slow, and always right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from polyop.ir.errors import CallError, Diagnostic
from polyop.ir.interpret import OutsideError
from polyop.ir.op import Op
from polyop.ir.reference import evaluate
from polyop.runtime.arrays import View
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
        arrays = {name: as_numpy(v) for name, v in bound.views.items()}
        given = {t.name: arrays[t.name] for t in self.op.inputs}
        try:
            results = evaluate(self.op, bound.sizes, bound.scalars, given)
        except OutsideError as error:
            raise CallError(Diagnostic("E610", f"`{error.load}` reads outside `{error.load.source}` at {error.at}")) from None
        for t in self.op.outputs:
            arrays[t.name][...] = results[t.name]
        return bound.value


def as_numpy(v: View) -> np.ndarray[Any, Any]:
    """A NumPy array over the memory of `v`."""
    raw = np.dtype(f"V{v.dtype.bytes_}")
    interface = {"version": 3, "data": (v.address, False), "shape": v.shape, "typestr": raw.str,
                 "strides": tuple(s * v.dtype.bytes_ for s in v.strides)}
    holder = type("Memory", (), {"__array_interface__": interface})()
    return np.asarray(holder).view(v.dtype.numpy)
