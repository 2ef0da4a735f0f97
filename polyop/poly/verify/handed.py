"""That registers of a block of threads lose no dimensions but those by which threads and lanes share them out.

    for i (threads), p (rows) { s[i, p] = X[i, p] }    becomes    for i (threads), p (rows) { s[p] = X[i, p] }

Each thread, and each lane, has registers of its own. So `s[p]` of the thread with the number i is `s[i, p]`, if wherever `s` is
named its first position is the index of a loop over threads around it, alone, of the same digits. Then nobody names an element
of another thread, and none that all threads have in common. All else stays as it is, letter by letter.

Which lane has an element of a matrix unit's tile follows from both sides of it; that lanes find there what they read is asked by
who prints it. A statement may read a column of such a tile, which lanes hand to each other then:

    for j (serial), i (atom) { r[i] = s[i, j] }        becomes    for j (serial), i (atom) { r = s }

What is left does not tell the column, but the statement does, of which the nest that was proved has no other place of `s`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.expr import Affine, Load, Position, map_loads
from polyop.ir.loops import For, If, LoopNest, Node, Store
from polyop.ir.module import Proof
from polyop.poly.verify.elements import lost_dims
from polyop.poly.verify.ranges import Body
from polyop.poly.verify.threads import DIGITS, Digit, digit
from polyop.poly.verify.trees import Differs
from polyop.poly.verify.verdict import decided

CLAIM = "registers lose no dimensions but those by which threads and lanes share them out"


def shares_out(before: LoopNest, after: LoopNest) -> Proof:
    """The claim that each thread of `after` has its part of the registers of `before`, for all sizes."""
    return decided(CLAIM, lambda: difference(before, after))


def difference(before: LoopNest, after: LoopNest) -> str | None:
    """What `after` names that is not the same, in words; None if all is."""
    if replace(before, buffers=(), body=()) != replace(after, buffers=(), body=()):
        return "other arguments than before"
    lost = lost_dims(before)
    left = tuple(replace(b, dims=tuple(x for d, x in enumerate(b.dims) if d not in lost.get(b.name, ()))) for b in before.buffers)
    if left != after.buffers:
        return f"memory is {', '.join(map(str, after.buffers))}, expected {', '.join(map(str, left))}"
    shared = _Shared(lost)
    try:
        shared.bodies(before.body, after.body, ())
        shared.require_told()
    except Differs as case:
        return str(case)
    return None


@dataclass(frozen=True, eq=False)
class _Shared:
    """lost     the dimensions that each register loses
    owners   (register, dimension) -> the digit of the threads that have it
    places   (statement, register) -> its positions in these dimensions
    others   names of a register at a position that is no thread's own -> (statement, its dimension)
    """

    lost: Mapping[str, frozenset[int]]
    owners: dict[tuple[str, int], Digit] = field(default_factory=dict)
    places: dict[tuple[str, str], set[tuple[Position, ...]]] = field(default_factory=dict)
    others: dict[Load, tuple[str, int]] = field(default_factory=dict)

    def bodies(self, before: Body, after: Body, around: tuple[For, ...]) -> None:
        if len(before) != len(after):
            raise Differs(f"{len(after)} nodes stand where {len(before)} should")
        for m, n in zip(before, after, strict=True):
            self.nodes(m, n, around)

    def nodes(self, m: Node, n: Node, around: tuple[For, ...]) -> None:
        """Raises  Differs, if `n` is not `m` without the dimensions that are lost."""
        match m, n:
            case For(), For() if replace(m, body=()) == replace(n, body=()):
                self.bodies(m.body, n.body, (*around, m))
            case If(), If() if m.tests == n.tests:
                self.bodies(m.then, n.then, around)
                self.bodies(m.other, n.other, around)
            case Store(target=target, expr=expr), Store():
                new = map_loads(target, lambda x: self.left(x, m.stmt, around))
                assert isinstance(new, Load)
                if target in self.others:
                    raise Differs(f"`{target}` is written, which is no thread's own")
                wanted = replace(m, target=new, expr=map_loads(expr, lambda x: self.left(x, m.stmt, around)))
                if wanted != n:
                    raise Differs(f"`{n.target} = {n.expr}` stands where `{wanted.target} = {wanted.expr}` should")
            case _ if m != n or isinstance(m, For | If):
                raise Differs("a node is not what it was")

    def left(self, x: Load, stmt: str, around: tuple[For, ...]) -> Load:
        """`x`, as its thread names it.

        Raises  Differs, if it may be another one's.
        """
        drop = self.lost.get(x.source)
        if drop is None:
            return x
        mine = {f.index: f for f in around if f.kind in DIGITS}
        self.places.setdefault((stmt, x.source), set()).add(tuple(x.index[d] for d in sorted(drop)))
        seen = set[str]()
        for d in sorted(drop):
            p = x.index[d]
            name = p.name if isinstance(p, Affine) else None
            if name is None or name not in mine or name in seen:
                self.others[x] = stmt, d
                continue
            seen.add(name)
            owner = digit(mine[name])
            if self.owners.setdefault((x.source, d), owner) != owner:
                raise Differs(f"`{x}`: {name} is another digit of threads than elsewhere")
        return replace(x, index=tuple(p for d, p in enumerate(x.index) if d not in drop))

    def require_told(self) -> None:
        """Raises  Differs, if something is named that is no thread's own, and that its statement does not tell."""
        for x, (stmt, d) in self.others.items():
            owner = self.owners.get((x.source, d))
            if owner is None or owner[0] or len(self.places[stmt, x.source]) > 1:
                raise Differs(f"`{x}`: {x.index[d]} is not by what threads share {x.source} out")
