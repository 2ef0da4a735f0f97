"""Operators over the hand-written modules, with a compiler that only counts and assembles."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from polyop.ir.interface import Interface, Parameter
from polyop.operator import Operator
from polyop.runtime import cpu
from tests.runtime import modules

N = ("N",)
SAXPY = Interface(
    "saxpy",
    (Parameter("X", "tensor", "f32", N), Parameter("Y", "tensor", "f32", N),
     Parameter("a", "scalar", "f32", default=1.0, by_name=True)),
    (Parameter("Z", "tensor", "f32", N),))
SUM = Interface("total", (Parameter("X", "tensor", "f32", N),), (Parameter("S", "tensor", "f32"),))


@dataclass
class Counting:
    """A compiler of one module that remembers for which layouts it was asked."""

    module: object
    asked: list = field(default_factory=list)
    targets: list = field(default_factory=list)

    def __call__(self, op, layout, target, options):
        self.asked.append(layout)
        self.targets.append(target)
        binary = cpu.assemble(self.module, target)
        return SimpleNamespace(op=op, module=self.module, binary=binary, proofs=(), trace={"source": self.module.text},
                               chosen=(), notes=())


def saxpy(compiler=None):
    return Operator(SAXPY, lambda choice: modules.SAXPY, compiler or Counting(modules.saxpy()))


def total(compiler=None):
    return Operator(SUM, lambda choice: modules.SUM, compiler or Counting(modules.total()))
