"""Which tiles a block of a GPU's threads has of a contraction: strategy "staged", chosen. `staged.py` builds it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.atoms import Atom, atoms_for
from polyop.ir.dots import factors
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, Quasi, affine, expr_names, names
from polyop.ir.expr import Test as Tests
from polyop.poly.build import Axes, Plan
from polyop.poly.cutatoms import cuts
from polyop.poly.nodes import Cluster
from polyop.poly.roles import BATCH, COLUMN, CONTRACTED, ROW, Contraction, classify, iterators_of, written_order
from polyop.poly.scop import Stmt
from polyop.poly.strides import stride

LINE = 64  # bytes of a staged line along the depth
LONG = 64  # iterations from which a sum may be cut into turns
ADDRESSES = 48  # registers of a lane beside tiles and what is fetched ahead
WIDE_WARP = 64  # lanes: of CDNA
SPARE = 8  # fewer of these, where what is fetched ahead is counted, too
HELD = 168  # registers of a lane for tiles: the others are for addresses and what is on its way
SHARED = 48 << 10  # bytes that every block may have
SWIZZLE = 128  # bytes of lines whose eighths change places: those that a matrix unit reads, and those written from registers
WIDEST = 256  # columns of a block with such a unit
SIDES = (32, 64, 128, 256)  # columns of a block that has all of them
DEEPEST = 256  # iterations of a sum of which a block has all


@dataclass(frozen=True, eq=False)
class StagedStrategy:
    """Sizes of the tiles: of `rows` x `columns` results by a block, in steps of `deep`; a thread has `high` x `wide` of them.

    atom   what a matrix unit takes at once; `high` x `wide` is a warp's then
    cuts   conditions that cut an atom along the sum, see `cutatoms.py`
    joined whether a lane has the operands of all steps of a turn at once: they are read while the unit is at the step before
    """

    what: Contraction
    row: str
    column: str
    depth: str
    rows: int
    columns: int
    deep: int
    high: int
    wide: int
    atom: Atom | None = None
    cuts: tuple[Affine, ...] = ()
    joined: bool = False

    @property
    def reads_shared(self) -> bool:
        """Whether the matrix unit reads the staged tiles itself."""
        return self.atom is not None and self.atom.a_map is None and self.atom.b_map is None

    @property
    def threads(self) -> int:
        return self.rows // self.high * (self.columns // self.wide) * (self.atom.warp if self.atom else 1)

    @property
    def registers(self) -> int:
        """Of a thread, for its results and one step's operands."""
        results = self.high * self.wide * self.what.update.target.dtype.bytes_ // 4
        if self.atom:
            steps = self.deep // self.atom.k if self.joined else 1
            return results // self.atom.warp if self.reads_shared else _held(self.atom, self.high, self.wide, steps)
        return results + (self.high + self.wide) * max(x.dtype.bytes_ for x in (*self.what.lefts, *self.what.rights)) // 4

    def __str__(self) -> str:
        who = "groups of warps" if self.reads_shared else "warps"
        by = f", {who} with {self.high} x {self.wide} by {self.atom.name}" if self.atom else f" with {self.high} x {self.wide}"
        return (f"staged: rows {self.row} x {self.rows}, columns {self.column} x {self.columns}, "
                f"depth {self.depth} x {self.deep}, {self.threads} threads{by}")


def choose(plan: Plan, cluster: Cluster, outer: Axes) -> tuple[StagedStrategy, ...]:
    """Tiles that fit what is known of the sizes: the largest one, unless rows or columns are known to be few.

    Raises  UnsupportedError, if the update has no rows, columns and depth to tile.
    """
    if not cluster.is_contraction:
        raise UnsupportedError("it is no contraction")
    c = classify(plan, cluster, outer)
    u, own = c.update, plan.classes[c.update.name]
    if plan.options.numerics == "strict" and len(c.having(CONTRACTED)) > 1:
        raise UnsupportedError("blocks would sum in another order")

    def unit(load: Load, pool: tuple[str, ...]) -> str | None:
        return next((i for i in pool if stride(plan, u, load, own[i]) == 1), None)

    column = c.lane
    left, right = c.lefts[0], c.rights[0]
    rows = c.having(ROW)
    row = unit(left, rows) or next(i for i in reversed(written_order(u)) if i in rows)
    contracted = c.having(CONTRACTED)
    long = tuple(i for i in contracted if not u.extent(i).is_constant or u.extent(i).const >= LONG) or contracted
    long = tuple(i for i in long if all(_is_no_window(i, x, c.having(BATCH)) for x in (left, right))) or long
    depth = unit(left, long) or unit(right, long) or long[-1]
    hints = dict(plan.options.hints)

    def fitting(i: str, most: int = 128) -> int:
        e = u.extent(i)
        n = plan.at_most(e) or hints.get(e.name or "", most)
        return next(x for x in (32, 64, 128, most) if x >= min(n, most))

    if plan.tiled:
        row, rest = _tiled_row(plan, c, column)
        if rest or not (most := plan.at_most(u.extent(column))) or most > SIDES[-1]:
            raise UnsupportedError(f"{rest or column} has more than one tile in a block")

    deep = 16 if u.target.dtype.bytes_ <= 4 else 8
    tall, wide = plan.options.tile or (fitting(row), fitting(column))
    if plan.tiled:
        tall, wide = plan.tiled[own[row]].step, next(x for x in SIDES if x >= most)
    high = 8 if tall >= 128 else 4 if tall >= 64 else 2
    across = 8 if wide >= 128 else 4 if wide >= 64 else 2
    plain = StagedStrategy(c, row, column, depth, tall, wide, deep, high, across)
    _require_starts(u, (row, column, depth))
    # a tile of an operand that is one along the sum would not be 0 beyond its end, nor one that does not know where that is
    cut = cuts(u, depth, (row, column), (left, right))
    # two of them in any tile are too much for the proofs, and one for the scalar registers of warps of 64 lanes
    cut = cut if not cut or plan.tiled or len(cut) <= (plan.target.warp < WIDE_WARP) else None
    # of one term nothing is a sum, and no loop over an atom's depth is left
    whole = all(depth in iterators_of(x) for x in (left, right)) and cut is not None and u.extent(depth) != affine(1)
    found = () if plan.options.numerics == "strict" or not whole else atoms_of(plan, c, cut or ())
    across_all = wide if plan.options.tile or plan.tiled else fitting(column, WIDEST)
    itself = [_by_group(plain, x, across_all) for x in found if x.a_map is None and x.b_map is None and not cut
              and fitting(depth, 2 * SWIZZLE) * left.dtype.bytes_ >= SWIZZLE]
    first = tuple(x for x in itself if x)
    if plan.tiled:
        first = tuple(y for x in first for y in _groups_in_tile(plan, x, u.extent(depth), (left, right)))
    atom = next((x for x in found if x.a_map and x.b_map), None)
    if atom is None or not _takes(atom, tall, wide) or _ends_inside(plan, u.extent(depth), atom, (left, right)):
        return (*first, plain)
    high, across = max(atom.m, tall // 2), max(atom.n, wide // 2)
    line = LINE if plan.target.copies else SWIZZLE  # of what goes through registers, all that lanes wait for is fetched at once
    steps = max(atom.k, line // left.dtype.bytes_)

    def too_many(across: int) -> bool:
        held, threads = _held(atom, high, across), tall // high * (wide // across) * atom.warp
        # of a cut atom a test or an address for each result, and a term for each of its own
        terms = len(cut or ()) * (high * across + atom.m * atom.n) // atom.warp
        fetched = 0 if plan.target.copies else (tall + wide) * steps * left.dtype.bytes_ // (4 * threads) + terms
        return held > HELD or held + fetched > plan.target.registers - ADDRESSES

    while across > atom.n and too_many(across):
        across //= 2
    high = tall if plan.tiled and _reached(u.extent(row), tall, high) < tall else high
    by_warp = replace(plain, deep=steps, high=high, wide=across, atom=atom, cuts=cut or (),
                      columns=_reached(u.extent(column), wide, across),
                      rows=tall if plan.tiled else _reached(u.extent(row), tall, high))
    if plan.tiled:
        line = atom.k if plan.target.copies else steps
        return (*first, *_in_tile(by_warp, u.extent(column), plan.at_most(u.extent(depth)), line, plan.target.copies), plain)
    return (*first, by_warp if plan.target.copies or cut else _joined(by_warp), plain)


def _ends_inside(plan: Plan, depth: Affine, atom: Atom, operands: tuple[Load, ...]) -> bool:
    """Whether an operand that the unit reads where it lies, in the block's memory, ends within an atom."""
    return depth.is_constant and depth.const % atom.k > 0 and any(x.source in plan.inside for x in operands)


def _in_tile(s: StagedStrategy, columns: Affine, depth: int, line: int, copies: bool) -> tuple[StagedStrategy, ...]:
    """The strategies for a tile of rows: a warp's results, if they are kept from turn to turn, take as many registers again.

    Each warp must have results: of few columns, if that is a constant, one warp has all.

    depth   the most it is, or 0; line: what the depth of a tile is a multiple of; copies: see Target
    """
    assert s.atom and s.atom.c_map
    found = []
    for wide in (s.wide, s.wide // 2):
        kept = s.high // s.atom.m * (wide // s.atom.n) * s.atom.c_map.regs
        has_all = not columns.is_constant or columns.const > s.columns - wide
        new = replace(s, wide=wide)
        fetched = _fetched(new, kept) if s.cuts and not copies else 0
        if wide >= s.atom.n and has_all and _held(s.atom, s.high, wide) + kept + fetched <= HELD - (SPARE if fetched else 0):
            found.append(new)
    if s.deep < depth <= DEEPEST:  # tiles of one turn may be copied once, or while other contractions add up
        found = [*(replace(x, deep=-(-depth // line) * line) for x in found), *found]
    return tuple(found)


def _fetched(s: StagedStrategy, results: int) -> int:
    """Registers of a thread for tiles that go through registers, and beside them for the terms of atoms that are cut.

    Tiles are those of this contraction and the other operand of the one before it. Each condition that cuts atoms has a test or
    an address for each of the `results`, which compilers keep at the same time.
    """
    on_the_way = (s.rows + 2 * s.columns) * s.deep * s.what.lefts[0].dtype.bytes_ // 4 // s.threads
    return on_the_way + results * len(s.cuts)


def _reached(extent: Affine, tile: int, mine: int) -> int:
    """The side of a block's `tile`, halved while results of a constant `extent` leave the warps of one half without any."""
    while extent.is_constant and extent.const <= tile // 2 and mine < tile:
        tile //= 2
    return tile


def _tiled_row(plan: Plan, c: Contraction, column: str) -> tuple[str, str]:
    """The row of which a block has a tile, and what else of the result it would have to go through."""
    own = plan.classes[c.update.name]
    row = next((i for i in c.having(ROW) if own[i] in plan.tiled), None)
    if row is None:
        raise UnsupportedError("the rows of a block are none of its own")
    return row, ", ".join(i for i in (*c.having(BATCH), *c.having(ROW), *c.having(COLUMN)) if i not in (row, column))


def _is_no_window(i: str, load: Load, batches: tuple[str, ...]) -> bool:
    """Whether some position of `load` is just `i`, or `i` in a block that a batch counts."""
    return any(isinstance(p, Affine) and p.factor(i) == 1 and names(p) <= {i, *batches} for p in load.index)


def _require_starts(u: Stmt, tiled: tuple[str, ...]) -> None:
    """Raises  UnsupportedError, if a remainder says of an iterator that is tiled where it runs: tiles start anywhere."""
    for w in u.where:
        for t in w.tests if isinstance(w, Tests) else ():
            found = [i for i in tiled if any(i in names(affine(a)) for a, _ in t.terms if isinstance(a, Quasi))]
            if found:
                raise UnsupportedError(f"{found[0]} runs in steps, {t} >= 0")


def _by_group(plain: StagedStrategy, atom: Atom, columns: int) -> StagedStrategy | None:
    """The strategy with an `atom` that reads shared memory: all columns of a block at once; None if the tiles are not its own."""
    if plain.rows % atom.m or columns != atom.n or columns * atom.b.bytes_ < SWIZZLE:
        return None
    return replace(plain, columns=columns, deep=SWIZZLE // atom.a.bytes_, high=atom.m, wide=atom.n, atom=atom)


def _groups_in_tile(plan: Plan, s: StagedStrategy, depth: Affine, operands: tuple[Load, ...]) -> tuple[StagedStrategy, ...]:
    """`s` for a tile of rows, as `_in_tile`: with all of a depth that is known, or line by line; operands in whole lines."""
    most = plan.at_most(depth)
    if 2 * s.registers > HELD or (most % s.deep and any(x.source in plan.inside for x in operands)):
        return ()
    return (replace(s, deep=-(-most // s.deep) * s.deep), s) if s.deep < most <= DEEPEST else (s,)


def _joined(s: StagedStrategy, kept: int = 0) -> StagedStrategy:
    """`s`, with all operands of a turn at once, if there are registers for them beside those `kept` from turn to turn."""
    assert s.atom
    return replace(s, joined=s.deep > s.atom.k and _held(s.atom, s.high, s.wide, s.deep // s.atom.k) + kept <= HELD)


def _held(atom: Atom, high: int, wide: int, steps: int = 1) -> int:
    """Registers of a lane for the results and the operands of some steps of a warp's tile."""
    assert atom.a_map and atom.b_map
    down, across = high // atom.m, wide // atom.n
    of_a, of_b, of_c = (f.regs * t.bytes_ / 4 for f, t in ((atom.a_map, atom.a), (atom.b_map, atom.b), (atom.c_map, atom.c)))
    return round(down * across * of_c + steps * (down * of_a + across * of_b))


def _takes(atom: Atom, rows: int, columns: int) -> bool:
    return rows % atom.m == 0 and columns % atom.n == 0


def atoms_of(plan: Plan, c: Contraction, cut: tuple[Affine, ...] = ()) -> tuple[Atom, ...]:
    """What the target's matrix units do of `C += f(A) * f(B)`, with operands as they are; maybe nothing.

    cut   conditions that atoms are parted by; a whole atom would add what another one excludes, unless both operands' copies have
          0 there
    """
    u = c.update
    summed, both = set(c.having(CONTRACTED)), iterators_of(c.lefts[0]) & iterators_of(c.rights[0])
    asked = (names(t) for w in u.where for t in (w.tests if isinstance(w, Tests) else ()) if t not in cut)
    said = (*asked, *(expr_names(w) for w in u.where if not isinstance(w, Tests)))
    if any(x & summed and x & c.roles.keys() - summed and not x & set(u.dims) <= both for x in said):
        return ()
    found = factors(u.expr)
    if u.reduce is None or u.reduce.fn != "add" or found is None or len(c.lefts) + len(c.rights) != 2:
        return ()
    if {*found} != {c.lefts[0], c.rights[0]}:
        return ()
    atoms = atoms_for(plan.target, c.lefts[0].dtype, c.rights[0].dtype, u.target.dtype)
    return tuple(x for x in atoms if x.exact or plan.options.numerics == "tf32")
