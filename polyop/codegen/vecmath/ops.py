"""Values with operators: `a * b + c` on `V` writes LLVM IR, so that mathematics reads as mathematics.

Multiplications and additions carry `contract` where `flags` says so: the target fuses them if it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from polyop.codegen.llvm.builder import Builder
from polyop.codegen.llvm.types import constant, known, suffix, vector

Number = float | int


@dataclass(frozen=True, slots=True)
class V:
    """A scalar (width 1) or vector SSA value of `element`; "contract " or "" in `flags`.

    digits   "f16" or "bf16", if a function's result is rounded to that at once: it needs no more digits then
    waits    what was made in the turn before of a loop that has few such chains, so that each instruction on it counts in full
    """

    b: Builder
    element: str
    width: int
    text: str
    flags: str = "contract "
    digits: str = ""
    waits: bool = False

    @property
    def type_(self) -> str:
        return vector(self.element, self.width)

    @property
    def is_float(self) -> bool:
        return self.element in ("float", "double")

    def like(self, text: str, element: str | None = None) -> V:
        return V(self.b, element or self.element, self.width, text, self.flags, self.digits)

    def to_digits(self, digits: str) -> V:
        """The same value, of which functions make so many digits; "" is all that its type has."""
        return replace(self, digits=digits)

    def const(self, x: Number, element: str | None = None) -> V:
        """`x` in every lane."""
        return self.like(constant(x, element or self.element, self.width), element)

    def exact(self) -> V:
        """The same value, whose sums and products are never fused."""
        return replace(self, flags="")

    @property
    def known(self) -> float | None:
        """What a float is in every lane, if the text says so."""
        return known(self.text, self.element)

    def lift(self, x: V | Number) -> V:
        return x if isinstance(x, V) else self.const(x)

    def op(self, name: str, other: V | Number) -> V:
        return self.like(self.b.do(f"{name} {self.type_} {self.text}, {self.lift(other).text}"))

    def __add__(self, other: V | Number) -> V:
        return self.op(f"fadd {self.flags}" if self.is_float else "add", other)

    def __radd__(self, other: Number) -> V:
        return self.const(other) + self

    def __sub__(self, other: V | Number) -> V:
        return self.op(f"fsub {self.flags}" if self.is_float else "sub", other)

    def __rsub__(self, other: Number) -> V:
        return self.const(other) - self

    def __mul__(self, other: V | Number) -> V:
        return self.op(f"fmul {self.flags}" if self.is_float else "mul", other)

    def __rmul__(self, other: Number) -> V:
        return self.const(other) * self

    def __truediv__(self, other: V | Number) -> V:
        return self.op("fdiv", other)

    def __rtruediv__(self, other: Number) -> V:
        return self.const(other) / self

    def __neg__(self) -> V:
        return self.like(self.b.do(f"fneg {self.type_} {self.text}")) if self.is_float else self.const(0) - self

    def __and__(self, other: V | Number) -> V:
        return self.op("and", other)

    def __or__(self, other: V | Number) -> V:
        return self.op("or", other)

    def __xor__(self, other: V | Number) -> V:
        return self.op("xor", other)

    def shl(self, n: V | Number) -> V:
        return self.op("shl", n)

    def lshr(self, n: V | Number) -> V:
        return self.op("lshr", n)

    def ashr(self, n: V | Number) -> V:
        return self.op("ashr", n)

    def cmp(self, order: str, other: V | Number) -> V:
        """An i1 for each lane; `order` as in fcmp or icmp."""
        verb = "fcmp" if self.is_float else "icmp"
        return self.like(self.b.do(f"{verb} {order} {self.type_} {self.text}, {self.lift(other).text}"), "i1")

    def pick(self, yes: V | Number, no: V | Number) -> V:
        """For a condition: `yes` where it holds, else `no`; one of them is a V."""
        model = yes if isinstance(yes, V) else no
        assert isinstance(model, V)
        yes, no = model.lift(yes), model.lift(no)
        return model.like(self.b.do(f"select {self.type_} {self.text}, {model.type_} {yes.text}, {model.type_} {no.text}"))

    def somewhere(self) -> V:
        """For a condition of several lanes: whether it holds in one of them."""
        bits = f"i{self.width}"
        return V(self.b, bits, 1, self.b.do(f"bitcast {self.type_} {self.text} to {bits}")).cmp("ne", 0)

    def intrinsic(self, name: str, *others: V) -> V:
        """llvm.`name` of this and others of its type."""
        args = tuple((self.type_, x.text) for x in (self, *others))
        return self.like(self.b.call(self.type_, f"llvm.{name}.{suffix(self.element, self.width)}", *args))

    def abs(self) -> V:
        return self.intrinsic("fabs")

    def copysign(self, sign: V) -> V:
        return self.intrinsic("copysign", sign)

    def sqrt(self) -> V:
        return self.intrinsic("sqrt")

    def rint(self) -> V:
        """Half-way cases to even."""
        return self.intrinsic("roundeven")

    def least(self, bound: V | Number) -> V:
        """min(self, bound), and NaN if self is NaN: one instruction."""
        bound = self.lift(bound)
        return bound.cmp("olt", self).pick(bound, self)

    def most(self, bound: V | Number) -> V:
        """max(self, bound), and NaN if self is NaN: one instruction."""
        bound = self.lift(bound)
        return bound.cmp("ogt", self).pick(bound, self)

    def bits(self) -> V:
        """The same bits as integers."""
        return self.cast("bitcast", "i64" if self.element == "double" else "i32")

    def real(self) -> V:
        """The same bits as floats."""
        return self.cast("bitcast", "double" if self.element == "i64" else "float")

    @property
    def fuses(self) -> bool:
        """Whether a product and a sum are one instruction here, rounded once."""
        return self.b.text.fuses

    def times_plus(self, factor: V, term: V) -> V:
        """self factor + term, rounded once; only where `fuses`."""
        return self.intrinsic("fma", factor, term)

    @property
    def scales(self) -> bool:
        """Whether a product with a power of two is one instruction here."""
        return self.b.text.scales and (self.element, self.width) in WIDTHS

    def scaled(self, n: V) -> V:
        """self 2^n for an integer n of any size, rounded once; only where it `scales`."""
        return self._masked("mask.scalef", self, n, self)

    def unless_nan(self, other: V, waits: bool) -> V:
        """self, or `other` where that is NaN.

        One instruction with a latency of 4 cycles, or, where the chain that `self` is of waits for it, a test, which stands off
        that, and a blend.
        """
        if waits or not self.scales or not other.text.startswith("%"):  # of what is known LLVM tells what it is
            return other.cmp("uno", other).pick(other, self)
        table = self.const(NANS, "i64" if self.element == "double" else "i32")
        return self._masked("mask.fixupimm", self, other, table, number="0")

    def inverse(self) -> V:
        """1 / self, where both are normal numbers: of 14 bits, if `digits` are fewer and one instruction finds it."""
        if not self.digits or not self.scales or self.element != "float":
            return 1.0 / self
        return self._masked("rcp14", self, self, rounds=False)

    def _masked(self, name: str, *vectors: V, number: str = "", rounds: bool = True) -> V:
        """An instruction of AVX-512 on all lanes of these vectors, with a number if it takes one, and, as most do, a rounding."""
        kind = WIDTHS[self.element, self.width]
        args = (*((x.type_, x.text) for x in vectors), *((("i32", number),) if number else ()),
                (f"i{max(8, self.width)}", "-1"), *((("i32", "4"),) if rounds and kind.endswith("512") else ()))
        return self.like(self.b.call(self.type_, f"llvm.x86.avx512.{name}.{kind}", *args))

    def over(self, other: V) -> V:
        """self / other, where `inverse` may be taken of `other`."""
        return self * other.inverse() if self.digits else self / other

    def cast(self, verb: str, element: str) -> V:
        if element == self.element:
            return self
        return self.like(self.b.do(f"{verb} {self.type_} {self.text} to {vector(element, self.width)}"), element)


WIDTHS = {("float", 4): "ps.128", ("float", 8): "ps.256", ("float", 16): "ps.512",
           ("double", 2): "pd.128", ("double", 4): "pd.256", ("double", 8): "pd.512"}
"""How LLVM spells instructions of AVX-512 for a vector of so many."""

NANS = 0x11
"""What `vfixupimm` makes of eight sorts of numbers, four bits each: the first two, which are NaN, are taken, others are not."""

Row = TypeVar("Row")


def row(table: Mapping[str, Row], x: V) -> Row:
    """What `table` has for the digits that `x` is to have, else for its type."""
    return table[x.digits if x.digits in table else x.element]


def polynomial(x: V, coefficients: tuple[float, ...]) -> V:
    """c[0] + c[1] x + ..; Horner's rule."""
    total = x.const(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        total = total * x + c
    return total


def in_halves(powers: tuple[V, ...], coefficients: tuple[float, ...]) -> V:
    """c[0] + c[1] x + .. as even(x^2) + x odd(x^2), and these again, for `powers` x, x^2, x^4, ..

    Shorter chains than Horner's rule, and where the last terms count most, fewer roundings of them.
    """
    x, *rest = powers
    if not rest:
        return polynomial(x, coefficients)
    return in_halves(tuple(rest), coefficients[1::2]) * x + in_halves(tuple(rest), coefficients[::2])


Function = Callable[..., V]
