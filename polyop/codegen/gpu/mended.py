"""LoopNest -> LoopNest for kernels with matrix units: atoms that a condition cuts are the unit's too, where that adds zeros.

    o = 0   if whole { o += p V, by the unit }   if cut { o += p V, term by term where j <= i }                         becomes
    o = 0   if whole or V is finite { o += p V, by the unit } else { if cut { o += p V, term by term } }

Beyond a condition the unit adds 0 V[j, v], which is 0 unless V[j, v] is infinite or NaN. So where a tile of V has no such number,
which its warps look for in shared memory, the sum is that of the text, and else it is added up term by term, as the text says.
Where V does not lie there, the results are looked at instead,

    o = 0   o += p V, by the unit                if not whole { if o is not finite { o = 0   if cut { term by term } } }

for 0 V[j, v] is NaN in every row that has 0 for it then, and p V[j, v] is no finite number in the others.

That the operand is 0 beyond the condition is shown here: it is cleared, and then written under whatever its terms are asked. Rows
that the tensor does not have are nobody's, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from polyop.codegen.gpu.implied import never_negative
from polyop.codegen.nested import Tile, asked, tile
from polyop.ir.dtypes import BF16, BOOL, F16
from polyop.ir.expr import Affine, Apply, Position, affine, loads, names, quasi, substitute
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import For, If, IfData, Kind, LoopNest, Node, Space, rebuild, stores


def mended(nest: LoopNest, proved: LoopNest, products: Mapping[str, tuple[str, str, str]]) -> LoopNest:
    """`nest` with such products; `proved`: the same before registers lost the dimensions that lanes have.

    products   the statements of units, as (results, left operand, right operand)
    """
    writer = _Mended(products, {(s.stmt, x.source): x.index for s in stores(proved.body) for x in (s.target, *loads(s.expr))},
                     {b.name for b in nest.buffers if b.space == Space.REG},
                     {b.name for b in nest.buffers if b.space == Space.SHARED and b.dtype in (F16, BF16)})
    return replace(nest, body=writer.go(nest.body, frozenset(), ()))


def _tiles(n: Node, around: frozenset[Affine]) -> tuple[Tile, ...]:
    """What `n` does, tile by tile; of loops that are none the stores, by themselves."""
    found = tile(n)
    match n:
        case If(other=()) if found is None:
            return tuple(x for y in n.then for x in _tiles(y, around | {*n.tests}))
    if found is None:
        return tuple(Tile((), frozenset(), s) for s in stores((n,)))
    return (replace(found, tests=found.tests | around),)


def _written(earlier: Sequence[Tile], operand: str, known: frozenset[Affine]) -> Tile | None:
    """What is written to an operand behind its zeros; None, if anything else is."""
    found = [x for x in earlier if x.store.target.source == operand]
    if len(found) != 2 or not all(x.loops for x in found):
        return None
    cleared, written = found
    return written if cleared.is_zero and cleared.tests <= known and written.store.reduce is None else None


def _cut(whole: If) -> Affine:
    """{ a product that stands behind the tests of `whole` is not the unit's }"""
    return quasi("max", *(t * -1 - 1 for t in whole.tests))


@dataclass(frozen=True, slots=True)
class _Mended:
    """places   of each register in each statement, with all dimensions"""

    products: Mapping[str, tuple[str, str, str]]
    places: Mapping[tuple[str, str], tuple[Position, ...]]
    registers: set[str]
    shared: set[str]

    def go(self, body: tuple[Node, ...], known: frozenset[Affine], earlier: tuple[Tile, ...]) -> tuple[Node, ...]:
        """`body`, where `known` is asked around it, behind what is done `earlier` in a turn of the loop around."""
        out: list[Node] = []
        k = 0
        while k < len(body):
            n = body[k]
            if isinstance(n, If) and 0 < k < len(body) - 1 and self.adds_zeros(body[k - 1], n, body[k + 1], known, earlier):
                out += self.mended(body[k - 1], n, body[k + 1])
                k += 1
            elif isinstance(n, If):
                then = self.go(n.then, known | {*n.tests}, earlier)
                out.append(replace(n, then=then, other=self.go(n.other, known, earlier)))
            else:
                out.append(rebuild(n, lambda inner: self.go(inner, known, ())))
            earlier += _tiles(n, frozenset())
            k += 1
        return tuple(out)

    def mended(self, before: Node, whole: If, behind: Node) -> tuple[Node, ...]:
        acc, t = stores((before,))[0].target, tile(whole.then[0])
        assert t is not None
        right = next(x for x in loads(t.store.expr) if x.source == self.products[t.store.stmt][2])
        if right.source in self.shared:
            first = replace(right, index=tuple(substitute(p, {f.index: Affine() for f in t.loops}) for p in right.index
                                               if isinstance(p, Affine)))
            return (IfData(Apply("or", (Tests(whole.tests), Apply("isfinite", (first,), BOOL)), BOOL), whole.then, (behind,)),)
        odd = IfData(Apply("isfinite", (acc,), BOOL), (), (before, behind))
        return (*whole.then, If((_cut(whole),), (odd,)))

    def adds_zeros(self, first: Node, whole: If, behind: Node, known: frozenset[Affine], earlier: tuple[Tile, ...]) -> bool:
        """Whether `whole` is a product into what `first` clears, and all that it may add beyond the terms `behind` is 0."""
        product, before = tile(whole.then[0]) if len(whole.then) == 1 and not whole.other else None, tile(first)
        if product is None or product.store.stmt not in self.products or before is None:
            return False
        _, operand, _ = self.products[product.store.stmt]
        tests, loop = (behind.tests, behind.then[0]) if isinstance(behind, If) and len(behind.then) == 1 else ((), behind)
        if not isinstance(loop, For) or loop.kind != Kind.SERIAL or loop.lower != Affine():
            return False
        parts = [x for n in loop.body for x in _tiles(n, frozenset())]
        terms = [x for x in parts if x.store.target == product.store.target]
        others = [x for x in parts if x not in terms]
        handed = [x for x in others if any(y.source == operand for y in loads(x.store.expr))]
        written = _written(earlier, operand, known)
        if len(terms) != 1 or terms[0].store.reduce != product.store.reduce or not handed or written is None:
            return False
        if any(x.store.target.source not in self.registers or x.store.reduce for x in others):
            return False
        at = self.alike((product, *handed, written), operand)
        if at is None or {*at[1:-1]} != {loop.index}:
            return False
        # rows that the product has none of are nobody's
        rows = {t for t in product.tests if at[0] not in names(t)}
        if before.store.target != product.store.target or not before.is_zero or not before.tests <= rows:
            return False
        env, inner = {loop.index: affine(at[-1])}, {f.index for f in written.loops}
        terms_ask = {substitute(t, env) for t in (terms[0].tests | asked(loop)) - rows}
        implied = {t for t in terms_ask if any(never_negative(t - a - c, inner) for a in rows for c in written.tests)}
        if not terms_ask <= written.tests | implied:
            return False
        ends = {f.index: f.end - 1 for f in product.loops}
        ends[loop.index] = ends[at[0]]
        some = {substitute(t, {i: affine(e if t.factor(i) > 0 else 0) for i, e in ends.items()}) for t in terms[0].tests}
        return all(t == _cut(whole) or t in some or t in known for t in tests)

    def alike(self, tiles: Sequence[Tile], operand: str) -> tuple[str, ...] | None:
        """The loops along the last dimension of an operand, if that is all in which its places in these tiles differ."""
        found = [self.places[x.store.stmt, operand] for x in tiles]
        last = [p[-1].name if isinstance(p[-1], Affine) else None for p in found]
        if any(p[:-1] != found[0][:-1] for p in found) or None in last:
            return None
        return tuple(x for x in last if x)
