"""Calls of an operator compiled for a GPU, with NumPy arrays: on the emulator, where every access is watched and the time it
takes means nothing, or on a device, with copies to and fro.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from polyop.compiler import compile_op
from polyop.ir.errors import CallError, InternalError, UnsupportedError
from polyop.ir.interface import Choice, Interface
from polyop.ir.module import launches
from polyop.ir.op import Op
from polyop.ir.options import Options
from polyop.ir.target import Target
from polyop.ir.words import in_users_words
from polyop.known import Known, on_gpu, seen_as, strides_of, that_reaches
from polyop.operator import Operator
from polyop.runtime import arrays, choose, emulated, outside
from polyop.runtime.banks import Traffic
from polyop.runtime.bind import Bound, bind
from polyop.runtime.findings import kept
from polyop.runtime.gpu import chips, driver
from polyop.runtime.gpu.driver import Device
from polyop.runtime.gpu.memory import put
from polyop.runtime.gpu.status import synchronize


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """An operator that is called like any other, with all arguments by name, and runs as `target` would run it.

    thorough   whether in every order; told: what is then called with the shared memory's traffic of each call
    """

    interface: Interface
    make: Callable[[Choice], Op]
    target: Target
    options: Options
    thorough: bool = False
    told: Callable[[tuple[Traffic, ...]], object] | None = None

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """The orders of threads, and of what is asynchronous, in which calls are carried out: one, or, if `thorough`, all."""
        kinds = emulated.COMPLETIONS[: 2 if self.target.family == "cuda" else 1]  # on AMD nothing is asynchronous
        return tuple(product(emulated.ORDERS, kinds)) if self.thorough else ((emulated.ORDERS[0], kinds[0]),)

    def __str__(self) -> str:
        many = f" in {len(self.ways)} orders" if self.thorough else ""
        return f"on the emulator of {self.target.name}{many}, which saw no fault"

    def __call__(self, **arguments: Any) -> Any:
        """The results.

        Raises CallError, if the arguments do not fit; UnsupportedError without a C++ compiler, or where the operator has no
        loops; InternalError, if the emulator saw a fault, and where the kernels' text can be read then.
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
        merged = Known(op).merged(bound, on_cpu=False)
        seen = seen_as(bound, merged.flat)
        units, options = on_gpu(merged, seen, self.options, self.target)
        module = that_reaches(lambda o: compile_op(seen.op, units, self.target, o).module, options,
                              lambda m: m.launch if m else (), seen.sizes, strides_of(seen))
        if module is None:
            raise UnsupportedError(f"`{op.name}` has no loops for {self.target.name}: it is evaluated element by element")
        given = {b.name: arrays.as_numpy(seen.views[b.name]) for b in module.signature.tensors}
        for order, completion in self.ways:
            copies = {n: a.copy() for n, a in given.items()}
            counted = self.told is not None and (order, completion) == self.ways[-1]  # of all, the last has aligned rows
            report = emulated.run(module, seen.sizes, seen.scalars, copies, order=order, completion=completion, banks=counted)
            if report.findings:
                where = f"lines are of {kept(module)}"
                raise InternalError(f"emulator: {op.name} for {self.target.name}, threads {order}: {report}\n{where}")
            if report.site is not None:
                raise outside.report(seen, report.site)
            if counted and self.told:
                self.told(report.traffic)
        for name in {n for launch in launches(module.launch) for n in launch.writes} & given.keys():
            given[name][...] = copies[name]
        return bound.value


@dataclass(frozen=True, eq=False)
class OnDevice:
    """An operator that is called with NumPy arrays and runs on a GPU."""

    operator: Operator
    device: Device

    @property
    def interface(self) -> Interface:
        return self.operator.interface

    def __str__(self) -> str:
        return f"on {self.device}, copies to and fro included"

    def __call__(self, **arguments: Any) -> Any:
        """The results, as NumPy arrays.

        Raises CallError, if the arguments do not fit, or a position computed from data lies outside its tensor.
        """
        arguments = {n: put(a, self.device) if isinstance(a, np.ndarray) else a for n, a in arguments.items()}
        results = self.operator(**arguments)
        synchronize()
        return tuple(r.numpy() for r in results) if isinstance(results, tuple) else results.numpy()


def device_for(t: Target) -> Device | None:
    """The device of this machine that runs code for `t`, if there is one."""
    if driver.unavailable(t.family):
        return None
    devices: Iterable[Device] = (Device(t.family, k) for k in range(driver.count(t.family)))
    return next((d for d in devices if chips.runs(d, t)), None)
