"""Conversions: between memory and registers, between dtypes, and rounding to 16-bit floats.

Float to integer truncates and saturates, and NaN gives 0; integers wrap; to bool is `!= 0`.
"""

from __future__ import annotations

from polyop.codegen.llvm.types import register
from polyop.codegen.vecmath.ops import V
from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, DType
from polyop.ir.target import Target


def has_half(target: Target) -> bool:
    """Whether the target converts f16 in hardware: every level with 32-byte vectors does."""
    return target.vector_bytes >= 32


def from_memory(x: V, t: DType, target: Target) -> V:
    """What a register holds of an element in memory."""
    if t == BOOL:
        return x.cmp("ne", 0)
    if t == BF16:
        return x.cast("zext", "i32").shl(16).real()
    if t == F16:
        if has_half(target):
            return x.cast("fpext", "float")
        return _half_to_float(x.cast("bitcast", "i16").cast("zext", "i32"))
    return x


def to_memory(x: V, t: DType, target: Target) -> V:
    """The element in memory for what a register holds; 16-bit floats are already rounded."""
    if t == BOOL:
        return x.cast("zext", "i8")
    if t == BF16:
        return x.bits().lshr(16).cast("trunc", "i16")
    if t == F16:
        if has_half(target):
            return x.cast("fptrunc", "half")
        return _float_to_half(x).cast("trunc", "i16").cast("bitcast", "half")
    return x


def round_to(x: V, t: DType, target: Target) -> V:
    """An f32 rounded to what `t` can hold, half-way cases to even."""
    if t == F16:
        if has_half(target):
            return x.cast("fptrunc", "half").cast("fpext", "float")
        return _half_to_float(_float_to_half(x))
    if t == BF16:
        return _to_brain(x, target).cast("zext", "i32").shl(16).real()
    return x


def _to_brain(x: V, target: Target) -> V:
    """The bits of an f32 rounded to bf16. The instruction for it takes numbers below 2^-126 for 0: these go another way."""
    form = BRAINS.get(x.width)
    if form is None or not all(map(target.has, form[1])):
        return _brain_bits(x)
    b, (bits, _) = x.b, form
    small = b.call(f"<{x.width} x i1>", f"llvm.x86.avx512.fpclass.ps.{bits}", (x.type_, x.text), ("i32", DENORMAL))
    some = b.do(f"icmp ne i{x.width} {b.do(f'bitcast <{x.width} x i1> {small} to i{x.width}')}, 0")
    made = b.call(f"<{x.width} x bfloat>", f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}", (x.type_, x.text))
    quick = x.like(b.do(f"bitcast <{x.width} x bfloat> {made} to <{x.width} x i16>"), "i16")
    slow, done, before = b.new_label(), b.new_label(), b.block
    b.line(f"br i1 {some}, label %{slow}, label %{done}")
    b.label(slow)
    exact = _brain_bits(x)
    b.line(f"br label %{done}")
    b.label(done)
    return quick.like(b.do(f"phi {quick.type_} [ {quick.text}, %{before} ], [ {exact.text}, %{slow} ]"))


BRAINS = {16: ("512", ("avx512bf16",))}
"""Elements of a vector -> how LLVM spells its size, and what the target must have, to round to bf16 in one instruction."""
DENORMAL = "32"
"""The class of `vfpclassps` for what is not 0, and below 2^-126."""


def _brain_bits(x: V) -> V:
    bits = x.bits()
    up = bits + (bits.lshr(16) & 1) + 0x7FFF
    return x.cmp("uno", x).pick(bits | 0x400000, up).lshr(16).cast("trunc", "i16")


def _half_to_float(h: V) -> V:
    """f16 bits (in i32) to f32 without F16C.

    The exponent is put right by a multiplication by 2^112, which is exact for denormals too; inf and NaN by an or.
    """
    magnitude = (h & 0x7FFF).shl(13)
    scaled = magnitude.real() * 2.0**112
    special = (h & 0x7FFF).cmp("uge", 0x7C00)
    out = special.pick(magnitude | 0x7F800000, scaled.bits())
    return (out | (h & 0x8000).shl(16)).real()


def _float_to_half(x: V) -> V:
    """f32 to f16 bits (in i32) without F16C, half-way cases to even.

    Normal results: add to the bits what rounds bit 13. Denormal ones: adding 0.5 aligns the ulp, and the FPU rounds.
    """
    bits = x.bits()
    sign, a = bits.lshr(16) & 0x8000, bits & 0x7FFFFFFF
    normal = (a + (a.lshr(13) & 1) + (0xFFF - (112 << 23))).lshr(13)
    small = ((a.real() + 0.5).bits() - 0x3F000000)
    out = a.cmp("ult", 113 << 23).pick(small, normal)
    out = a.cmp("uge", 0x477FF000).pick(out.const(0x7C00), out)
    nan = a.lshr(13) & 0x3FF | 0x7E00
    return a.cmp("ugt", 0x7F800000).pick(nan, out) | sign


def _double_to_float_odd(x: V) -> V:
    """f64 to f32 rounded to odd, so that a second rounding to 16 bits is right."""
    y = x.cast("fptrunc", "float")
    back = y.cast("fpext", "double")
    bits = y.bits()
    too_far = back.abs().cmp("ogt", x.abs())
    inexact = back.cmp("one", x)
    lower = too_far.pick(bits - 1, bits)
    return inexact.pick(lower | 1, bits).real()


def cast(x: V, source: DType, t: DType, target: Target) -> V:
    """The cast of the language between what registers hold."""
    if source == t:
        return x
    if t == BOOL:
        return x.cmp("une" if source.is_float else "ne", 0)
    if t.is_float:
        return _to_float(x, source, t, target)
    if source.is_float:
        return _to_integer(x, t)
    if source == BOOL:
        return x.cast("zext", register(t))
    if source.bits == t.bits:
        return x
    if source.bits > t.bits:
        return x.cast("trunc", register(t))
    return x.cast("sext" if source.kind == "int" else "zext", register(t))


def _to_float(x: V, source: DType, t: DType, target: Target) -> V:
    if not source.is_float:
        verb = "sitofp" if source.kind == "int" else "uitofp"
        return round_to(x.cast(verb, register(t)), t, target)
    if t == F64:
        return x.cast("fpext", "double")
    if t == F32:
        return x.cast("fptrunc", "float")
    return round_to(_double_to_float_odd(x) if source == F64 else x, t, target)


def _to_integer(x: V, t: DType) -> V:
    """Towards zero, as far as `t` goes; NaN gives 0.

    LLVM's own saturating conversion takes the elements of a vector one by one. Here bounds come first, so that the conversion
    itself never leaves what it is defined for: the greatest float that `t` has may lie below its greatest integer.
    """
    element = register(t)
    between = "i32" if t.bits < 32 else element
    last = _last(t, 53 if x.element == "double" else 24)
    inside = x.cmp("ogt", t.lowest).pick(x, float(t.lowest))
    inside = inside.cmp("olt", last).pick(inside, float(last))
    out = inside.cast("fptosi" if t.bits < 32 or t.kind == "int" else "fptoui", between)
    out = out if last == t.highest else x.cmp("ogt", last).pick(out.const(t.highest), out)
    out = x.cmp("uno", x).pick(0, out)
    return out if between == element else out.cast("trunc", element)


def _last(t: DType, digits: int) -> int:
    """The greatest integer of `t` that a float with so many binary digits has."""
    bits = t.bits - (t.kind == "int")
    spare = max(0, bits - digits)
    return ((1 << (bits - spare)) - 1) << spare
