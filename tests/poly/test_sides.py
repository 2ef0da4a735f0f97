"""Sides of a block's tile over one iterator or several: each row or column is somebody's, once."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from polyop.ir.expr import affine, evaluate
from polyop.poly.blocks.cuts import Cut, cut, squares
from polyop.poly.blocks.sides import Side, along
from polyop.poly.blocks.sides import cut as cut_side
from polyop.poly.tiles import Coord

OWN = {"b": "b", "p": "p", "q": "q", "c": "c"}
SIDES: tuple[Side, ...] = ((("q", 128),), (("p", 8), ("q", 16)), (("b", 2), ("p", 4), ("q", 16)), (("b", 8), ("p", 4), ("q", 4)),
                           (("b", 64), ("q", 2)), (("b", 128), ("q", 1)), (("p", 2), ("q", 64)), (("p", 32), ("q", 4)),
                           (("b", 2), ("p", 32), ("q", 2)))


def values(c: Coord) -> range:
    return range(0, c.cap or c.step, c.step)


def points(inside: dict[str, tuple[Coord, ...]]) -> Counter[tuple[tuple[str, int], ...]]:
    """How often each element of a tile is somebody's."""
    every = [c for coords in inside.values() for c in coords]
    found: Counter[tuple[tuple[str, int], ...]] = Counter()
    for at in product(*map(values, every)):
        env = {c.name: x for c, x in zip(every, at, strict=True)}
        found[tuple((i, sum(env[c.name] for c in coords)) for i, coords in inside.items())] += 1
    return found


@pytest.mark.parametrize("side", SIDES, ids=str)
@pytest.mark.parametrize(("mine", "bytes_", "atom"), [
    (64, 2, 16), (64, 4, 64), (32, 8, 8), (128, 2, 16), (8, 4, 0), (4, 4, 0), (8, 8, 0), (4, 8, 0), (8, 1, 0)])
def test_each_value_of_a_side_is_that_of_one_thread(side: Side, mine: int, bytes_: int, atom: int) -> None:
    s = cut_side(side, OWN, mine, bytes_, atom)
    found = points({i: coords[1:] for i, coords in s.of.items()})
    assert len(found) == 128 and set(found.values()) == {1}
    places = [evaluate(along(side, {i: affine(x) for i, x in at}), {}) for at in found]
    assert sorted(places) == list(range(128))
    sizes = [sum(1 for _ in product(*map(values, part))) for part in (s.threads, s.rows, s.atom)]
    assert sizes == ([128 // mine, mine // atom, atom] if atom else [128 // mine, mine, 1])
    assert [c.step for c in s.blocks] == [n for _, n in side]
    assert atom or len(side) > 1 or [c.cap for c in s.rows if c.step == 1] == [min(4, 16 // bytes_)]


@pytest.mark.parametrize("side", SIDES, ids=str)
@pytest.mark.parametrize("how", ["rows", "squares", "across"])
def test_each_element_of_a_tile_is_copied_once(side: Side, how: str) -> None:
    tile = {**dict(side), "c": 32}
    slow = tuple(i for i, _ in reversed(side))
    made: Cut = {"rows": lambda: cut(OWN, 0, tile, ("c", *slow), 8, 256),
                 "squares": lambda: squares(OWN, 0, tile, ("c", "q"), 2, 8, 256),
                 "across": lambda: cut(OWN, 0, tile, (*slow, "c"), 1, 256)}[how]()
    found = points({i: made.inside[i] for i in tile})
    assert len(found) == 128 * 32 and set(found.values()) == {1}
    both = [c for coords in made.inside.values() for c in coords]
    assert sorted(c.name for c in both) == sorted(c.name for c in (*made.loops, *made.rows))
    assert set(made.rows) == set(made.late)
    assert 256 % sum(1 for _ in product(*map(values, made.loops))) == 0
