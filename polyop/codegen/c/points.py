"""Which point of its parallel loops a thread, or a block of threads, has, as C text.

    for m in [0, M) by 128 (parallel) { for n in [0, N) by 256 (parallel) { .. } }

    const int item = blockIdx.x;  const int m = 128 * (item / n_count);  const int n = 256 * (item % n_count);

A block that is persistent has one point after the other, in steps of all blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

from polyop.codegen.c.index import index
from polyop.codegen.c.scope import Scope
from polyop.codegen.gpu import raster
from polyop.codegen.gpu.split import Axis
from polyop.ir.expr import Affine, is_count, names, quasi


@dataclass(frozen=True, slots=True)
class Points:
    """How the points of a kernel are numbered: the last loop varies fastest, or the last two go `in_groups`.

    late   the loops whose blocks of threads are numbered from the end
    """

    axes: tuple[Axis, ...]
    in_groups: bool
    late: frozenset[str] = frozenset()

    def names(self, scope: Scope) -> list[str]:
        """How many points each loop has: a number, or a name for it."""
        return [str(a.count.const) if a.count.is_constant else f"{scope.names[a.loop.index]}_count" for a in self.axes]

    def counts(self, scope: Scope, sizes: frozenset[str] | None = None) -> list[str]:
        """The counts that are no numbers; given the `sizes`, none is less than 0, since other blocks follow."""
        pairs = [(a.count, c) for a, c in zip(self.axes, self.names(scope), strict=True) if not a.count.is_constant]
        if sizes is not None:
            pairs = [(n if is_count(n) and names(n) <= sizes else quasi("max", n, Affine()), c) for n, c in pairs]
        return [f"const {scope.counts} {c} = {index(n, scope.names).c};" for n, c in pairs]

    def start(self, scope: Scope, block: str = "blockIdx.x") -> list[str]:
        """One thread, or one `block` of them, for each point of the box of counts."""
        if not self.axes:
            return []
        t = scope.counts
        if scope.block:
            return self._point(scope, block, "return")
        return [f"const {t} item = ({t}){block} * ({t})blockDim.x + ({t})threadIdx.x;",
                f"if (item >= {' * '.join(self.names(scope))}) return;", *self._indices(scope, "return")]

    def loop(self, scope: Scope, inside: list[str]) -> list[str]:
        """A block for as many points as there are in steps of all blocks."""
        points = " * ".join(f"(pop_u32){c}" for c in self.names(scope))
        head = f"for (pop_u32 pop_point = blockIdx.x; pop_point < {points}; pop_point += gridDim.x) {{"
        return [head, *("    " + x for x in (*self._point(scope, "pop_point", "continue"), *inside)), "}"]

    def _point(self, scope: Scope, number: str, leave: str) -> list[str]:
        at = raster.numbered(number, self.names(scope)) if self.in_groups else number
        return [f"const {scope.counts} item = ({scope.counts}){at};", *self._indices(scope, leave)]

    def _indices(self, scope: Scope, leave: str) -> list[str]:
        """The indices of a point. Those past a loop's end do nothing."""
        counts = self.names(scope)
        in_turn = not scope.block and len(counts) > 2
        out = _quotients(counts, scope.counts) if in_turn else []
        for d, a in enumerate(self.axes):
            name, inner = scope.names[a.loop.index], counts[d + 1:]
            at = "item" if not inner else f"item / {inner[0]}" if len(inner) == 1 else f"item / ({' * '.join(inner)})"
            at = f"{at} % {counts[d]}" if d else at
            at = _digit(d, counts) if in_turn else at
            if scope.block and a.loop.index in self.late:
                at = f"({counts[d]} - 1 - {at})"
            at = at if a.loop.step == 1 else f"{a.loop.step} * ({at})" if d or inner else f"{a.loop.step} * {at}"
            lower = index(a.loop.lower, scope.names).at(12)
            const = "" if a.loop.index in scope.anew else "const "
            tile = f"  // the block's {a.loop.step} of {a.loop.index.rpartition('_')[0]} begin here" if a.loop.step > 1 else ""
            out.append(f"{const}{scope.counts} {name} = {at if a.loop.lower == Affine() else f'{lower} + {at}'};{tile}")
            if not a.exact:
                out.append(f"if ({name} >= {index(a.loop.upper, scope.names).c}) {leave};")
        return out


def _quotients(counts: list[str], t: str) -> list[str]:
    """What is left of a thread's number without its last digits, one division for each: of no negative number, by none.

    As `item / (c * p * q)`, `item / (p * q) % c` and so on each thread had two divisions for a digit, of signed numbers: 130
    instructions for four digits.
    """
    unsigned, out = "pop_u64" if t == "pop_i64" else "pop_u32", list[str]()
    for d in range(len(counts) - 1, 0, -1):
        out.append(f"const {t} {_left(d, counts)} = ({t})(({unsigned}){_left(d + 1, counts)} / ({unsigned}){counts[d]});")
    return out


def _left(d: int, counts: list[str]) -> str:
    """The number without the digits from `d` on."""
    return f"pop_item{d}" if d < len(counts) else "item"


def _digit(d: int, counts: list[str]) -> str:
    return f"{_left(d + 1, counts)} - {counts[d]} * {_left(d, counts)}" if d else _left(1, counts)
