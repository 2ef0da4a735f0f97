"""Writing LLVM IR text: lines, fresh names, blocks, declarations, and pure values placed where they belong.

A pure value is numbered by its text and put at the head of the outermost loop in which its operands exist. That is
common-subexpression elimination and loop-invariant motion at once; no LLVM pass is run later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from polyop.codegen.llvm.types import Int

Code = list["str | Code"]

IMPURE = 1 << 30
"""The depth of a value that stays in the block where it was written."""


@dataclass(slots=True)
class Text:
    """A module in the making: finished functions, declarations, globals.

    fuses    the target multiplies and adds in one instruction
    scales   the target multiplies by powers of two in one instruction
    carried  the most vectors that a loop carries round; copying: that one does which copies meanwhile
    """

    functions: list[str] = field(default_factory=list)
    declared: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    outlined: set[str] = field(default_factory=set)
    zeros: int = 64  # bytes of the row of zeros
    fuses: bool = False
    scales: bool = False
    carried: int = 0
    copying: int = 0

    def declare(self, line: str) -> None:
        """Declare a function, once: calls may name other alignments than the first."""
        self.declared.setdefault(line[line.index("@"):line.index("(")], line)

    def assemble(self, attributes: str) -> str:
        """The whole text; equal nests give equal texts."""
        zeros = f"@zeros = internal global [{self.zeros} x i8] zeroinitializer, align 64"
        used = [zeros] if any("@zeros" in f for f in self.functions) else []
        tail = [f"attributes #0 = {{ {attributes} }}", f"attributes #1 = {{ noinline {attributes} }}",
                "!0 = distinct !{!0, !1}", '!1 = !{!"llvm.loop.unroll.disable"}', "!2 = !{i32 1}", ""]
        return "\n".join([*used, *sorted(self.constants.values()), *self.functions, *sorted(self.declared.values()), *tail])


@dataclass(slots=True)
class Builder:
    """One function in the making.

    counted  the depth of the innermost loop whose iterations are counted through with those around, 0 elsewhere
    rare     that of the way in it which is open and seldom taken, 0 elsewhere
    """

    text: Text
    code: Code = field(default_factory=list)
    zones: list[Code] = field(default_factory=list)
    depth: dict[str, int] = field(default_factory=dict)
    memo: dict[str, str] = field(default_factory=dict)
    count: int = 0
    block: str = "entry"
    reads: dict[str, str] | None = None
    arms: dict[int, list[str]] = field(default_factory=dict)
    counted: int = 0
    rare: int = 0

    def __post_init__(self) -> None:
        entry: Code = []
        self.code.append(entry)
        self.zones.append(entry)

    def fresh(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def line(self, text: str) -> None:
        self.code.append("  " + text)

    def do(self, text: str) -> str:
        """An instruction here; its value's name."""
        name = self.fresh()
        self.depth[name] = IMPURE
        self.code.append(f"  {name} = {text}")
        return name

    def read(self, text: str) -> str:
        """A value read from memory here; or by the same text before, where that is remembered."""
        if self.reads is None:
            return self.do(text)
        if text not in self.reads:
            self.reads[text] = self.do(text)
        return self.reads[text]

    @contextmanager
    def reading_once(self) -> Iterator[None]:
        """Inside, where nothing is written to memory and no block ends, what was read is not read again."""
        self.reads = {}
        yield
        self.reads = None

    @contextmanager
    def arm(self, rare: bool = False) -> Iterator[None]:
        """Inside, which is one of two ways in the innermost loop, what changes in each iteration is computed for this way alone.

        There are up to a dozen ways for the full tiles and the edges of a loop; all their pointers took as long as a small tile.
        Of a loop that is counted with the one around, and so may be short, a `rare` way also computes what that changes.
        """
        zone: Code = []
        self.code.append(zone)
        self.zones.append(zone)
        at, keep = len(self.zones) - 1, self.rare
        self.arms[at] = []
        self.rare = at if rare and at == self.counted + 1 else keep
        yield
        self.rare = keep
        for text in self.arms.pop(at):
            del self.memo[text]
        self.zones.pop()

    def pure(self, text: str, *operands: Int) -> str:
        """A value that depends on nothing but `operands`; it may be computed even where it is not needed.

        If an operand was computed in place, so is this.
        """
        known = self.memo.get(text)
        if known is None:
            level, depth = 0, self.depth
            for o in operands:
                if isinstance(o, str) and depth.get(o, 0) > level:
                    level = depth[o]
            if level == IMPURE:
                return self.do(text)
            level = self.rare if 0 < self.rare - 2 == level else level
            while level and level + 1 in self.arms:
                level += 1
            known = self.memo[text] = self.fresh()
            self.depth[known] = level
            if level in self.arms:
                self.arms[level].append(text)
            self.zones[level].append(f"  {known} = {text}")
        return known

    def level(self, x: Int) -> int:
        """The depth of the loop in which `x` is computed; 0 is outside all."""
        return self.depth.get(x, 0) if isinstance(x, str) else 0

    def spelled(self, result: str, name: str, args: tuple[tuple[str, Int], ...]) -> str:
        """The text of a call; declares what is called."""
        if f"@{name}" not in self.text.declared:
            self.text.declare(f"declare {result} @{name}({', '.join(t for t, _ in args)})")
        return f"call {result} @{name}({', '.join(f'{t} {a}' for t, a in args)})"

    def call(self, result: str, name: str, *args: tuple[str, Int]) -> str:
        text = self.spelled(result, name, args)
        if result == "void":
            self.line(text)
            return ""
        return self.do(text)

    def pure_call(self, result: str, name: str, *args: tuple[str, Int]) -> str:
        return self.pure(self.spelled(result, name, args), *(a for _, a in args))

    def label(self, name: str) -> None:
        self.code.append(f"{name}:")
        self.block = name

    def new_label(self) -> str:
        self.count += 1
        return f"b{self.count}"

    # --- i64 arithmetic, folded and pure
    def add(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else a if b == 0 else self.pure(f"add i64 {a}, {b}", a, b)

    def sub(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self.pure(f"sub i64 {a}, {b}", a, b)

    def mul(self, a: Int, b: Int) -> Int:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        return b if a == 1 else a if b == 1 else self.pure(f"mul i64 {a}, {b}", a, b)

    def extreme(self, op: str, a: Int, b: Int) -> Int:
        """`op` is "min" or "max"."""
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b) if op == "min" else max(a, b)
        return self.pure_call("i64", f"llvm.s{op}.i64", ("i64", a), ("i64", b))

    def compare(self, op: str, a: Int, b: Int) -> str:
        """An i1 such as `icmp slt i64 a, b`."""
        return self.pure(f"icmp {op} i64 {a}, {b}", a, b)

    def floor_div(self, x: Int, d: int, nonnegative: bool = False) -> Int:
        """floor(x / d), d > 0."""
        if isinstance(x, int):
            return x // d
        if d & (d - 1) == 0:
            return self.pure(f"ashr i64 {x}, {d.bit_length() - 1}", x)
        q = self.pure(f"sdiv i64 {x}, {d}", x)
        if nonnegative:
            return q
        below = self.compare("slt", self.sub(x, self.mul(q, d)), 0)
        return self.add(q, self.pure(f"sext i1 {below} to i64", below))

    def whole_div(self, x: Int, d: int) -> Int:
        """x / d, where d > 0 divides x."""
        return x // d if isinstance(x, int) else self.pure(f"sdiv exact i64 {x}, {d}", x)

    def both(self, a: str | None, b: str | None, width: int = 1) -> str | None:
        """The conjunction of two conditions (None is always true)."""
        if a is None or b is None:
            return b if a is None else a
        return a if a == b else self.pure(f"and {'i1' if width == 1 else f'<{width} x i1>'} {a}, {b}", a, b)

    def fence(self) -> str:
        """The line that orders stores past the caches before what follows."""
        self.text.declare("declare void @llvm.x86.sse.sfence()")
        return "  call void @llvm.x86.sse.sfence()"

    def lines(self) -> list[str]:
        return flatten(self.code)


def flatten(code: Code) -> list[str]:
    out: list[str] = []
    for item in code:
        if isinstance(item, str):
            out.append(item)
        else:
            out += flatten(item)
    return out
