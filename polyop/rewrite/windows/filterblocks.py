"""Blocks of a sum over windows in tiles (`filtered.py`): of tiles along the outermost window, or of images with few tiles.

    p = m (U g + u) + i,  q = m t + j       block g of U rows u of tiles: its lines are { [u, t] }, in any image
    b = N g + n                             block g of N images n: its lines are { [n, u, t] }, all tiles of these

The tiles of an image in a block of images are so few that their numbers are known; the lines are then one index of the operands
of the product, { T n + t' u + t } with T tiles in an image and t' in a row, so that its register tiles have rows enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from polyop.ir.expr import Affine, affine, quasi
from polyop.rewrite.windows.winograd import Filter, Way


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of the values of the index `cut` of the sum.

    counter  the index that counts them; count: of how many tiles or images there are, `size` in each
    step     how many values of `cut` each of these has
    tiles    what goes through the tiles of an image, or of a block, and how many there are of each; image: through its images
    line     what goes through all lines of a block of images
    """

    counter: str
    cut: str
    count: Affine
    size: int
    step: int
    tiles: Mapping[str, Affine]
    image: str | None
    line: str

    @property
    def images(self) -> tuple[str, ...]:
        return (self.image,) if self.image else ()

    @property
    def lines(self) -> tuple[str, ...]:
        return (*self.images, *self.tiles)

    @property
    def extents(self) -> dict[str, Affine]:
        """Of all these indices."""
        found = {self.counter: quasi("div", self.count + (self.size - 1), affine(self.size)), **self.tiles}
        return found | {self.image: affine(self.size), self.line: affine(self.size * self._in_image())} if self.image else found

    def start(self) -> Affine:
        """The first value of what is cut in a block."""
        return affine(self.counter) * (self.size * self.step)

    def whole(self, env: Mapping[str, Affine]) -> dict[str, Affine]:
        """{ index -> its value } of those of `env` in a block, which are along windows, and of what is cut, in all."""
        return {**env, self.cut: self.start() + (affine(self.image) if self.image else env[self.cut])}

    def inside(self) -> tuple[Affine, ...]:
        """That there is such a line of the block."""
        return (self.count - 1 - affine(self.counter) * self.size - affine(self.lines[0]),)

    def inside_of_operands(self) -> tuple[Affine, ...]:
        """The same by the indices that operands have."""
        left = self.count - affine(self.counter) * self.size
        return (left * self._in_image() - 1 - affine(self.line),) if self.image else self.inside()

    def of_operands(self, indices: Sequence[str]) -> tuple[str, ...]:
        """`indices` as operands have them."""
        if not self.image:
            return tuple(indices)
        return tuple(n for i in indices for n in ((self.line,) if i == self.image else () if i in self.tiles else (i,)))

    def places(self) -> dict[str, Affine]:
        """{ an index that operands alone have -> its value }."""
        if not self.image:
            return {}
        place = Affine()
        for i, n in {self.image: self.size, **{i: n.const for i, n in self.tiles.items()}}.items():
            place = place * n + affine(i) if n > 1 else place  # what has one value is 0
        return {self.line: place}

    def _in_image(self) -> int:
        """How many tiles an image has, if that is known."""
        return prod(n.const for n in self.tiles.values())


def blocks_of(f: Filter, way: Way, tiles: Sequence[str], fresh: Mapping[str, str]) -> Blocks:
    """The blocks of `f` done in that way; `fresh`: new names for `counter`, `image` and `line`."""
    counts = [quasi("div", w.results + (m - 1), affine(m)) for w, m in zip(f.windows, way.results, strict=True)]
    if way.images:
        row = f.rows[0]
        return Blocks(fresh["block"], row, f.extents[row], way.block, 1, dict(zip(tiles, counts, strict=True)), fresh["image"],
                      fresh["line"])
    rest = dict(zip(tiles, [affine(way.block), *counts[1:]], strict=True))
    return Blocks(fresh["block"], f.windows[0].along, counts[0], way.block, way.results[0], rest, None, fresh["line"])
