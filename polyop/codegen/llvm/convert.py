"""Conversions: between memory and registers, between dtypes, and rounding to 16-bit floats.

Float to integer truncates and saturates, and NaN gives 0; integers wrap; to bool is `!= 0`.
"""

from __future__ import annotations

from polyop.codegen.llvm.types import register
from polyop.codegen.vecmath.ops import V
from polyop.ir.dtypes import BF16, BOOL, F16, F32, F64, I64, DType
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


def _double_to_float(x: V, t: DType) -> V:
    """f64 to f32 so that a second rounding, to `t`, is right: of three digits more than `t` has the last is 1 if any behind is.

    A sum carries into it if one is. f32 then has all digits of what is not rounded to 0, denormal or not.
    """
    bits, behind = x.bits(), (1 << (52 - FRACTIONS[t] - 3)) - 1
    return (((bits & behind) + behind | bits) & ~behind).real().cast("fptrunc", "float")


FRACTIONS = {F16: 10, BF16: 7}
"""Digits behind the point."""


def cast(x: V, source: DType, t: DType, target: Target) -> V:
    """The cast of the language between what registers hold."""
    if source == t:
        return x
    if t == BOOL:
        return x.cmp("une" if source.is_float else "ne", 0)
    if t.is_float:
        return _to_float(x, source, t, target)
    if source.is_float:
        return _to_integer(x, t, target)
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
    return round_to(_double_to_float(x, t) if source == F64 else x, t, target)


def _to_integer(x: V, t: DType, target: Target) -> V:
    """Towards zero, as far as `t` goes; NaN gives 0.

    LLVM's own saturating conversion takes the elements of a vector one by one. Here bounds come first, so that the conversion
    itself never leaves what it is defined for: the greatest float that `t` has may lie below its greatest integer. Of the
    first bound, where it is 0, NaN comes out as 0.
    """
    made = _truncated(x, t, target)
    if made is not None:
        return made
    if t == I64 and x.width == 4 and target.vector_bytes == 32:
        return _to_long(x.cast("fpext", "double"))
    element = register(t)
    between = "i32" if t.bits < 32 else element
    last = _last(t, x)
    x = x if t.lowest == 0 else x.cmp("ord", x).pick(x, 0.0)
    inside = x.cmp("ogt", t.lowest).pick(x, float(t.lowest))
    inside = inside.cmp("olt", last).pick(inside, float(last))
    out = inside.cast("fptosi" if t.bits < 32 or t.kind == "int" else "fptoui", between)
    out = out if last == t.highest else x.cmp("ogt", last).pick(out.const(t.highest), out)
    return out if between == element else out.cast("trunc", element)


def _truncated(x: V, t: DType, target: Target) -> V | None:
    """The same by the instruction that makes -2^31 of NaN and of all that no i32 is, if there is one for such vectors.

    Only the bounds are left that this does not keep. The low bits of -2^31 are 0, as NaN is to be; -1 - (-2^31) is the highest.
    """
    name, size = TRUNCATIONS.get((x.element, x.width), ("", 0))
    if not name or target.vector_bytes < size or (t.bits == 32 and t.lowest == 0) or t.bits > 32:
        return None
    last = _last(t, x)
    if t.bits == 32:
        x = x.cmp("ord", x).pick(x, 0.0)
    elif t.lowest < 0:
        x = x.cmp("olt", t.lowest).pick(float(t.lowest), x)
    else:
        x = x.cmp("ogt", 0).pick(x, 0.0)
    if last == t.highest:
        x = x.cmp("ogt", last).pick(float(last), x)
    i32 = f"<{x.width} x i32>"
    more = ((i32, "zeroinitializer"), (f"i{x.width}", -1), ("i32", HERE)) if size == 64 else ()
    out = x.like(x.b.call(i32, name, (x.type_, x.text), *more), "i32")
    if last != t.highest:
        out = out ^ x.cmp("ogt", last).cast("sext", "i32")
    return out if t.bits == 32 else out.cast("trunc", register(t))


def _to_long(x: V) -> V:
    """The same of f64 to i64, for which AVX2 has no instruction; one by one they took twice as long.

    |x| = m 2^(e - 1075) with 2^52 <= m < 2^53, which is shifted to where the units are. Shifts by more than 63 give 0, and so
    do those by less than 0.
    """
    bits, name = x.bits(), "llvm.x86.avx2.ps{}v.q.256"
    m, e = bits & (1 << 52) - 1 | 1 << 52, bits.lshr(52) & 0x7FF
    left, right = (x.b.call(m.type_, name.format(side), (m.type_, m.text), (m.type_, by.text))
                   for side, by in (("ll", e - 1075), ("rl", m.const(1075) - e)))
    sign = bits.cmp("slt", 0).cast("sext", "i64")
    whole = ((m.like(left) | m.like(right)) ^ sign) - sign
    whole = e.cmp("sgt", 1023 + 62).pick(sign ^ I64.highest, whole)
    return x.cmp("ord", x).pick(whole, 0)


TRUNCATIONS = {("float", 4): ("llvm.x86.sse2.cvttps2dq", 16), ("float", 8): ("llvm.x86.avx.cvtt.ps2dq.256", 32),
               ("float", 16): ("llvm.x86.avx512.mask.cvttps2dq.512", 64), ("double", 4): ("llvm.x86.avx.cvtt.pd2dq.256", 32),
               ("double", 8): ("llvm.x86.avx512.mask.cvttpd2dq.512", 64)}
"""Elements of a vector -> how LLVM spells the instruction, and the least bytes of the target's vectors.

Source  https://www.felixcloutier.com/x86/cvttps2dq, "integer indefinite value"
"""
HERE = 4
"""What says that an instruction rounds as the thread does."""


def _last(t: DType, x: V) -> int:
    """The greatest integer of `t` that floats like `x` have, of 53 or 24 binary digits."""
    bits = t.bits - (t.kind == "int")
    spare = max(0, bits - (53 if x.element == "double" else 24))
    return ((1 << (bits - spare)) - 1) << spare
