"""Small kernels written by hand to the calling convention, with their Ops."""

from __future__ import annotations

from polyop.ir.dtypes import F32, DType
from polyop.ir.expr import Affine, Apply, Load, Scalar, affine
from polyop.ir.loops import Buffer, Space
from polyop.ir.module import Module, Signature
from polyop.ir.op import Op, Param, Range, Step, Tensor, builtin_monoid

N = affine("N")


def buffer(name: str, dtype: DType, *dims: Affine, unit: int | None = None) -> Buffer:
    return Buffer(name, dtype, tuple((d, 1) for d in dims), Space.TENSOR, unit)


def tensor(name: str, role: str, *shape: Affine | str | int, dtype: DType = F32) -> Tensor:
    return Tensor(name, dtype, tuple(map(affine, shape)), role)


def read(name: str, *index: Affine | str, dtype: DType = F32) -> Load:
    return Load(name, tuple(map(affine, index)), dtype)


def ranges(**bounds: Affine | str | int) -> tuple[Range, ...]:
    return tuple(Range(i, Affine(), affine(n)) for i, n in bounds.items())


def add(*args):
    return Apply("add", args, F32)


def mul(*args):
    return Apply("mul", args, F32)


SAXPY = Op(
    "saxpy", (tensor("X", "in", "N"), tensor("Y", "in", "N"), tensor("Z", "out", "N")), (Param("a", F32),), ("N",),
    (Step(read("Z", "i"), None, add(mul(Scalar("a", F32), read("X", "i")), read("Y", "i")), ranges(i="N")),))

SUM = Op("total", (tensor("X", "in", "N"), tensor("S", "out")), (), ("N",),
         (Step(read("S"), builtin_monoid("add", F32), read("X", "i"), ranges(i="N")),))

_SLOT = """
define internal i64 @slot(ptr %args, i64 %k) alwaysinline {
  %p = getelementptr i64, ptr %args, i64 %k
  %v = load i64, ptr %p
  ret i64 %v
}
define internal float @get(ptr %args, i64 %k, i64 %i) {
  %p = getelementptr i64, ptr %args, i64 %k
  %b = load ptr, ptr %p
  %k1 = add i64 %k, 1
  %s = call i64 @slot(ptr %args, i64 %k1)
  %o = mul i64 %i, %s
  %q = getelementptr float, ptr %b, i64 %o
  %v = load float, ptr %q
  ret float %v
}
define internal void @put(ptr %args, i64 %k, i64 %i, float %v) {
  %p = getelementptr i64, ptr %args, i64 %k
  %b = load ptr, ptr %p
  %k1 = add i64 %k, 1
  %s = call i64 @slot(ptr %args, i64 %k1)
  %o = mul i64 %i, %s
  %q = getelementptr float, ptr %b, i64 %o
  store float %v, ptr %q
  ret void
}
"""

# slots: 0 parallel, 1 threads, 2 N, 3 a, 4 X, 5 stride, 6 Y, 7 stride, 8 Z, 9 stride
_SAXPY = _SLOT + """
define internal void @body(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %ab = call i64 @slot(ptr %args, i64 3)
  %a32 = trunc i64 %ab to i32
  %a = bitcast i32 %a32 to float
  br label %test
test:
  %i = phi i64 [ %lo, %entry ], [ %i1, %loop ]
  %some = icmp slt i64 %i, %hi
  br i1 %some, label %loop, label %out
loop:
  %x = call float @get(ptr %args, i64 4, i64 %i)
  %y = call float @get(ptr %args, i64 6, i64 %i)
  %ax = fmul float %a, %x
  %z = fadd float %ax, %y
  call void @put(ptr %args, i64 8, i64 %i, float %z)
  %i1 = add i64 %i, 1
  br label %test
out:
  ret void
}
define i64 @saxpy(ptr %args) {
entry:
  %p = load ptr, ptr %args
  %threads = call i64 @slot(ptr %args, i64 1)
  %n = call i64 @slot(ptr %args, i64 2)
  %none = icmp eq ptr %p, null
  br i1 %none, label %serial, label %shared
serial:
  call void @body(ptr %args, i64 0, i64 %n, i64 0)
  ret i64 0
shared:
  call void %p(ptr @body, ptr %args, i64 0, i64 %n, i64 1, i64 %threads, i64 4611686018427387904, i64 1)
  ret i64 0
}
"""

# slots: 2 N, 3 X, 4 stride, 5 S
_SUM = _SLOT + """
define i64 @total(ptr %args) {
entry:
  %n = call i64 @slot(ptr %args, i64 2)
  %sp = getelementptr i64, ptr %args, i64 5
  %s = load ptr, ptr %sp
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]
  %t = phi float [ 0.0, %entry ], [ %t1, %loop ]
  %some = icmp slt i64 %i, %n
  br i1 %some, label %loop, label %out
loop:
  %x = call float @get(ptr %args, i64 3, i64 %i)
  %t1 = fadd float %t, %x
  %i1 = add i64 %i, 1
  br label %test
out:
  store float %t, ptr %s
  ret i64 0
}
"""


def signature(op: Op, sites: tuple[Load, ...] = (), work: tuple[Buffer, ...] = ()) -> Signature:
    tensors = tuple(buffer(t.name, t.dtype, *t.shape) for t in (*op.inputs, *op.outputs))
    scalars = tuple((p.name, p.dtype) for p in op.params if not p.is_size)
    return Signature(op.name, op.sizes, scalars, tensors, work, sites)


def module(op: Op, text: str, sites: tuple[Load, ...] = (), work: tuple[Buffer, ...] = ()) -> Module:
    return Module(op.name, "x86:host", text, signature(op, sites, work))


def saxpy() -> Module:
    return module(SAXPY, _SAXPY)


def total() -> Module:
    return module(SUM, _SUM)
