"""Which tiles a block of a GPU's threads has of a contraction: by what is known of its sizes, roles and the target."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyop.ir.atoms import Atom, atoms_for
from polyop.ir.dots import factors
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Load, Quasi, affine, expr_names, names
from polyop.ir.expr import Test as Tests
from polyop.poly.blocks import cutatoms
from polyop.poly.blocks.blocktile import (
    SWIZZLE,
    WIDE_WARP,
    StagedStrategy,
    by_group,
    by_threads,
    by_warps,
    in_deep_turns,
    joined,
    kept_by_groups,
    kept_by_warps,
    reached,
)
from polyop.poly.build import Axes, Plan, holds
from polyop.poly.schedule.nodes import Cluster
from polyop.poly.scop import Stmt
from polyop.poly.strategies.roles import BATCH, COLUMN, CONTRACTED, ROW, Contraction, classify, iterators_of, written_order
from polyop.poly.strides import stride

LINE = 64  # bytes of a staged line along the depth
LONG = 64  # iterations from which a sum may be cut into turns
WIDEST = 256  # columns of a block whose unit reads shared memory
SIDES = (32, 64, 128, 256)  # columns of a block that has all of them


def choose(plan: Plan, cluster: Cluster, outer: Axes) -> tuple[StagedStrategy, ...]:
    """Tiles that fit what is known of the sizes: the largest, unless rows or columns are known to be few. The best come first.

    Raises  UnsupportedError, if the update has no rows, columns and depth to tile.
    """
    if not cluster.is_contraction:
        raise UnsupportedError("it is no contraction")
    c = classify(plan, cluster, outer)
    if plan.options.numerics == "strict" and len(c.having(CONTRACTED)) > 1:
        raise UnsupportedError("blocks would sum in another order")
    plain = _plain(plan, c)
    cut = _cuts(plan, plain)
    if not cut and not plan.tiled:
        plain = replace(plain, lines=_lines(plan, plain))
    _require_first(plan, plain)
    atoms = () if cut is None or plan.options.numerics == "strict" else atoms_of(plan, c, cut)
    groups = () if cut and not plan.tiled else _groups(plan, plain, atoms, cut or ())
    units = (*groups, *_warps(plan, plain, atoms, cut or ()))
    first, *others = by_threads(plain, bool(plan.tiled))
    if not plan.tiled and not plan.block and _is_box(c.update) and len(c.having(CONTRACTED)) == 1:
        first = in_deep_turns(first, plan.target, plan.at_most(c.update.extent(plain.depth)))
    return (*units, first) if units else (first, *others)


def _plain(plan: Plan, c: Contraction) -> StagedStrategy:
    """Tiles whose results threads have, each some rows and columns."""
    u = c.update
    row, column, depth = _axes(plan, c)
    if plan.tiled:
        row, rest = _tiled_row(plan, c, column)
        most = plan.at_most(u.extent(column))
        if rest or not most or most > SIDES[-1]:
            raise UnsupportedError(f"{rest or column} has more than one tile in a block")
        tall, wide = plan.tiled[plan.classes[u.name][row]].step, next(x for x in SIDES if x >= most)
    else:
        tall, wide = plan.options.tile or (_fitting(plan, u, row), _fitting(plan, u, column))
    _require_starts(u, (row, column, depth))
    high, across = (8 if side >= 128 else 4 if side >= 64 else 2 for side in (tall, wide))
    return StagedStrategy(c, row, column, depth, tall, wide, 16 if u.target.dtype.bytes_ <= 4 else 8, high, across)


def _is_box(u: Stmt) -> bool:
    """Whether nothing says where it runs but how far each iterator goes: tests of anything else take registers."""
    return not u.where and not any(names(b) & set(u.dims) for r in u.ranges for b in (r.lower, r.upper))


def _lines(plan: Plan, s: StagedStrategy) -> tuple[tuple[str, int], ...]:
    """The iterators of which a tile has several values beside row and column, where the options say so of all of a side."""
    u, found = s.what.update, dict[str, int]()
    for (i, extent), counts in zip(((s.row, s.rows), (s.column, s.columns)), plan.options.lines, strict=False):
        each = tuple(j for j in written_order(u) if s.what.roles.get(j) == s.what.roles[i])
        if len(each) == len(counts) and prod(counts) == extent:
            found |= {j: n for j, n in zip(each, counts, strict=True) if j != i and n > 1}
    _require_starts(u, tuple(found))
    for j in found:
        plan.extent(u, j)
    return tuple(found.items())


def _axes(plan: Plan, c: Contraction) -> tuple[str, str, str]:
    """The row, the column and the depth that are tiled: those with stride 1 in an operand, if they can be."""
    u, own, (left, right) = c.update, plan.classes[c.update.name], (c.lefts[0], c.rights[0])

    def unit(load: Load, pool: tuple[str, ...]) -> str | None:
        return next((i for i in pool if stride(plan, u, load, own[i]) == 1), None)

    rows, contracted = c.having(ROW), c.having(CONTRACTED)
    row = unit(left, rows) or next(i for i in reversed(written_order(u)) if i in rows)
    long = tuple(i for i in contracted if not u.extent(i).is_constant or u.extent(i).const >= LONG) or contracted
    long = tuple(i for i in long if all(_is_no_window(i, x, c.having(BATCH)) for x in (left, right))) or long
    return row, c.lane, unit(left, long) or unit(right, long) or long[-1]


def _fitting(plan: Plan, u: Stmt, i: str, most: int = 128) -> int:
    """The side of a tile along `i`: `most`, unless fewer iterations are known, or hinted at."""
    e = u.extent(i)
    n = plan.at_most(e) or dict(plan.options.hints).get(e.name or "", most)
    return next(x for x in (32, 64, 128, most) if x >= min(n, most))


def _cuts(plan: Plan, s: StagedStrategy) -> tuple[Affine, ...] | None:
    """The conditions that cut atoms along the sum, see `cutatoms.py`; None, if no atom may be used."""
    u, operands = s.what.update, (s.what.lefts[0], s.what.rights[0])
    # a tile of an operand that is one along the sum would not be 0 beyond its end, nor one that does not know where that is
    if not all(s.depth in iterators_of(x) for x in operands):
        return None
    first = next(r.lower for r in u.ranges if r.index == s.depth)
    if holds(u.domain.intersect_params(plan.context), first - affine(s.depth)):
        return None  # of one term nothing is a sum, and no loop over an atom's depth is left
    found = cutatoms.cuts(u, s.depth, (s.row, s.column), operands)
    # two of them in any tile are too much for the proofs, and one for the scalar registers of warps of 64 lanes
    most = 1 if plan.target.warp < WIDE_WARP else 0
    return found if found is None or plan.tiled or len(found) <= most else None


def _groups(plan: Plan, plain: StagedStrategy, atoms: tuple[Atom, ...], cut: tuple[Affine, ...]) -> tuple[StagedStrategy, ...]:
    """Strategies with a unit that reads shared memory itself."""
    u, operands = plain.what.update, (plain.what.lefts[0], plain.what.rights[0])
    if _fitting(plan, u, plain.depth, 2 * SWIZZLE) * operands[0].dtype.bytes_ < SWIZZLE:
        return ()
    columns = plain.columns if plan.options.tile or plan.tiled else _fitting(plan, u, plain.column, WIDEST)
    plain = replace(plain, cuts=cut)
    found = tuple(s for x in atoms if x.a_map is None and x.b_map is None and (s := by_group(plain, x, columns)))
    if not plan.tiled:
        return found
    most = plan.at_most(u.extent(plain.depth))
    inside = any(x.source in plan.inside for x in operands)
    return tuple(y for s in found if not (inside and most % s.deep) for y in kept_by_groups(s, most))


def _warps(plan: Plan, plain: StagedStrategy, atoms: tuple[Atom, ...], cut: tuple[Affine, ...]) -> tuple[StagedStrategy, ...]:
    """Strategies with a unit whose operands are in registers."""
    u, target, operands = plain.what.update, plan.target, (plain.what.lefts[0], plain.what.rights[0])
    depth, columns, rows = (u.extent(i) for i in (plain.depth, plain.column, plain.row))
    atom = next((x for x in atoms if x.a_map and x.b_map), None)
    if atom is None or plain.rows % atom.m or plain.columns % atom.n:
        return ()
    if depth.is_constant and depth.const % atom.k and any(x.source in plan.inside for x in operands):
        return ()  # an operand that the unit reads where it lies, in the block's memory, ends within an atom
    # of what goes through registers, all that lanes wait for is fetched at once
    s = by_warps(plain, atom, cut, LINE if target.copies else SWIZZLE, target)
    s = s if len(s.across) > 1 else replace(s, columns=reached(columns, s.columns, s.wide))
    if plan.tiled:
        s = replace(s, high=s.rows) if reached(rows, s.rows, s.high) < s.rows else s
        return kept_by_warps(s, columns, plan.at_most(depth), atom.k if target.copies else s.deep, target)
    s = s if len(s.down) > 1 else replace(s, rows=reached(rows, s.rows, s.high))
    return (s if target.copies or cut else joined(s),)


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


def _require_first(plan: Plan, s: StagedStrategy) -> None:
    """Raises  UnsupportedError, if something beside loops that are cut says where a sum begins, { b < k } or { N <= 2 k }.

    The tile of a turn is copied where its first step has a term, so a turn in which terms begin later would have none.
    """
    u, own = s.what.update, plan.classes[s.what.update.name]
    cut = {own[i] for i in (s.row, s.column, s.depth, *(i for i, _ in s.lines))} | plan.tiled.keys()
    for w in u.where:
        for t in w.tests if isinstance(w, Tests) else ():
            others = names(t) - {s.depth}  # without any it is a number, where tiles begin
            if t.factor(s.depth) > 0 and others and not any(i in others and own[i] in cut for i in u.dims):
                raise UnsupportedError(f"terms begin within a turn of {s.depth}, {t} >= 0")


def atoms_of(plan: Plan, c: Contraction, cut: tuple[Affine, ...]) -> tuple[Atom, ...]:
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
