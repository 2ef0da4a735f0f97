"""Which units leave their results where the rows between contractions, and the next one, find them: see `fragments.py`."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl

from polyop.ir.atoms import Atom, Fragment, atoms_for
from polyop.ir.target import Target
from polyop.poly.blocks import blocktile
from polyop.poly.blocks.blocktile import StagedStrategy

Strategies = tuple[StagedStrategy | None, ...]
"""For each cluster of a recurrence, if it is a contraction, how it is tiled."""


def by_rows(strategies: Strategies, target: Target) -> Strategies | None:
    """`strategies` in which a warp has whole rows of each contraction's results; None if that is not so of some.

    All but the first one read results, so of units that read shared memory they have those that take the left operand otherwise.
    """
    first, *_, last = (n for n, s in enumerate(strategies) if s)
    found = [blocktile.by_rows(s, n == last) if s else None for n, s in enumerate(strategies)]
    found = [_from_registers(s, target) if s and n > first and s.reads_shared else s for n, s in enumerate(found)]
    return tuple(found) if all((x is None) == (s is None) for x, s in zip(found, strategies, strict=True)) else None


def _from_registers(s: StagedStrategy, target: Target) -> StagedStrategy | None:
    """`s` with the same unit, whose left operand is in registers; None if there is none."""
    a = s.atom
    assert a
    alike = (x for x in atoms_for(target, a.a, a.b, a.c) if (x.m, x.n, x.k, x.b_map) == (a.m, a.n, a.k, a.b_map) and x.a_map)
    found = next(alike, None)
    return replace(s, atom=found) if found else None


def holds_operand(results: Atom, product: Atom) -> bool:
    """Whether a lane holds, of elements that lie as `results` do, all that `product` takes from it as its left operand.

    { lane -> [row, k] } of the operand is in { lane -> [row, k] : k = column + n c } of the results, atom by atom
    """
    if product.a_map is None or product.a.bytes_ != 2 or results.warp != product.warp or results.m != product.m:
        return False
    if results.n % product.k and product.k % results.n:
        return False
    wanted, have = _held(product.a_map, product.warp), _held(results.c_map, results.warp)
    most = max(results.n, product.k)
    along = isl.Map(f"{{ [row, column] -> [row, k] : exists (c : k = column + {results.n} c) and 0 <= k < {most} }}")
    return bool(wanted.is_subset(have.apply_range(along)))


def _held(f: Fragment, warp: int) -> isl.Map:
    """{ [lane] -> [row, column] }, which are the elements that a lane holds."""
    places = isl.Map(f"{{ [lane, reg] -> [{f.row}, {f.column}] : 0 <= lane < {warp} and 0 <= reg < {f.regs} }}")
    return places.project_out(isl.dim_type.in_, 1, 1)
