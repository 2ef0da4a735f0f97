"""Long functions as functions of their own, where they are needed many times: code size is what compiling costs."""

from __future__ import annotations

from polyop.codegen.llvm.builder import Builder
from polyop.codegen.llvm.functions import apply
from polyop.codegen.llvm.state import State
from polyop.codegen.llvm.types import register, suffix, vector
from polyop.codegen.vecmath.ops import V
from polyop.ir.dtypes import DType


def shared_function(s: State, fn: str, xs: list[V], source: DType, t: DType) -> V:
    """A call of `fn`, whose body is written once for each type."""
    w = xs[0].width
    element = register(t)
    name = f"pop.{fn}{len(xs)}.{source.name}.{suffix(xs[0].element, w)}"
    text = s.b.text
    if name not in text.outlined:
        text.outlined.add(name)
        b = Builder(text)
        args = [V(b, x.element, w, f"%x{i}", x.flags) for i, x in enumerate(xs)]
        out = apply(fn, args, source, t, s.shared.target)
        head = f"define internal {vector(element, w)} @{name}({', '.join(f'{x.type_} {x.text}' for x in args)}) #1 {{"
        text.functions.append("\n".join([head, "entry:", *b.lines(), f"  ret {out.type_} {out.text}", "}"]))
    result = vector(element, w)
    return xs[0].like(s.b.do(f"call {result} @{name}({', '.join(f'{x.type_} {x.text}' for x in xs)})"), element)
