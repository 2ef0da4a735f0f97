"""LoopNest -> LoopNest for kernels with matrix units: what some elements of a tile lack is asked once, and stands in one place.

    m = -inf   m[n] = s[n] where n < N   top max= m
    if all n < N { m[n] = s[n]   top max= m } else { m = -inf   m[n] = s[n] where n < N   top max= m }

so that what is folded has one register on either way, and none is moved where these meet. Where what is added up, or handed to a
unit, is 0 if its element is, elements that nobody reads otherwise become 0, and nothing is asked behind that:

    z = 0   z[n] = e[n] where n < N   p = 0   p[n] = bf16(e[n]) where n < N
    if some n >= N { e[n] = n < N ? e[n] : 0 }   z[n] = e[n]   p[n] = bf16(e[n])
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from polyop.codegen.gpu.inside import full, least, untested
from polyop.codegen.nested import Tile, tile
from polyop.ir.expr import Affine, Apply, Const, Load, loads, names, quasi
from polyop.ir.expr import Test as Tests
from polyop.ir.loops import If, Kind, LoopNest, Node, Space, Store, rebuild, stores

_TILE = (Kind.ROWS, Kind.ATOM)


def emptied(nest: LoopNest) -> LoopNest:
    """`nest`, in whose tiles missing elements are asked about so."""
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    uses: dict[str, int] = {}
    for s in stores(nest.body):
        for x in (s.target, *loads(s.expr)):
            uses[x.source] = uses.get(x.source, 0) + (x.source in registers)
    writer = _Emptied(uses)
    return replace(nest, body=writer.go(nest.body))


@dataclass(frozen=True, slots=True)
class _Emptied:
    """uses   how often the nest names each register"""

    uses: Mapping[str, int]

    def go(self, body: tuple[Node, ...]) -> tuple[Node, ...]:
        tiles = [tile(n, _TILE) for n in body]
        for k, t in enumerate(tiles):
            if t and t.tests and (found := self.zeros(body, tiles, k)):
                return self.go(found)
        out: list[Node] = []
        for k, n in enumerate(body):
            one = self.folded(body, tiles, k) if 0 < k < len(body) - 1 else None
            if one:
                out[-1] = one
            elif not (k > 1 and self.folded(body, tiles, k - 1)):
                out.append(rebuild(n, self.go))
        return tuple(out)

    def folded(self, body: tuple[Node, ...], tiles: list[Tile | None], k: int) -> Node | None:
        """A part that begins, is written where it may be, and is folded, as one question."""
        start, part, fold = tiles[k - 1], tiles[k], tiles[k + 1]
        if start is None or part is None or fold is None or not _begins(start, part) or fold.store.reduce is None:
            return None
        whole = _whole(part)
        if not whole or fold.store.expr != part.store.target or self.uses[part.store.target.source] != 3:
            return None
        return If(whole, (*full(untested((body[k],))), body[k + 1]), body[k - 1:k + 2])

    def zeros(self, body: tuple[Node, ...], tiles: list[Tile | None], k: int) -> tuple[Node, ...] | None:
        """`body`, where what `body[k]` reads becomes 0 where elements are missing, if all who read that are so."""
        t = tiles[k]
        assert t is not None
        found = _read(t.store)
        if found is None or _whole(t) is None or self.uses.get(found.source, 0) == 0:
            return None
        readers = [i for i, n in enumerate(body) if found.source in {x.source for s in stores((n,)) for x in loads(s.expr)}]
        first = next((i for i, x in enumerate(tiles) if x and x.store.target.source == found.source), None)
        if first is None or readers[0] != k or first > k or self.uses[found.source] != 1 + len(readers):
            return None
        made = tiles[first]
        assert made is not None
        if made.tests or made.store.reduce is not None or made.store.target != found or _sides(made) != _sides(t):
            return None
        for i in readers:
            start, x = tiles[i - 1], tiles[i]
            if start is None or x is None or not _begins(start, x) or not start.is_zero or x.tests != t.tests:
                return None
            if _read(x.store) != found or _sides(x) != _sides(t):
                return None
        zero = Const(0, found.dtype)
        blank = Apply("select", (Tests(tuple(sorted(t.tests, key=str))), found, zero), found.dtype)
        away = replace(made.store, expr=blank)
        some = If((_some(t),), tuple(_with(n, away) for n in full(untested((body[k],)))))
        out: list[Node] = []
        for i, n in enumerate(body):
            if i + 1 in readers:
                continue
            out += [some] if i == k else []
            out += full(untested((n,))) if i in readers else (n,)
        return tuple(out)


def _begins(start: Tile, part: Tile) -> bool:
    """Whether `start` writes a number to all elements of which `part` writes some."""
    a, b = start.store, part.store
    return a.target == b.target and a.reduce is None and b.reduce is None and isinstance(a.expr, Const) \
        and not start.tests and _sides(start) == _sides(part)


def _read(s: Store) -> Load | None:
    """What `s` stores as it is, or rounded: 0 for 0."""
    match s.expr:
        case Load(guard=()) as x:
            return x
        case Apply(fn="cast", args=(Load(guard=()) as x,)):
            return x
    return None


def _sides(t: Tile) -> frozenset[tuple[str, int]]:
    return frozenset((f.index, f.end) for f in t.loops)


def _whole(t: Tile) -> tuple[Affine, ...] | None:
    """What is >= 0 where all elements of a tile are there; None, if all are, or it is not plain to see."""
    if not t.tests or not all(f.kind in _TILE for f in t.loops) or not any(f.kind == Kind.ATOM for f in t.loops):
        return None
    found = [least(x, t.loops) for x in t.tests]
    inner = {f.index for f in t.loops}
    if any(x is None or names(x) & inner for x in found):
        return None
    return tuple(sorted((x for x in found if x is not None), key=str))


def _some(t: Tile) -> Affine:
    """What is >= 0 where some are missing."""
    found = [x * -1 - 1 for x in _whole(t) or ()]
    return quasi("max", *found) if len(found) > 1 else found[0]


def _with(n: Node, s: Store) -> Node:
    return s if isinstance(n, Store) else rebuild(n, lambda body: tuple(_with(x, s) for x in body))
