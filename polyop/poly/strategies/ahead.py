"""Operands that are the same in every iteration of the serial loops around are packed before those loops, once and in full.

    t! ( .. n_c ( pack_right  row.. tiles ) )        becomes        pack_right   t! ( .. n_c ( row.. tiles ) )

The access relation decides: no iterator of a loop around is in it, and nothing inside these loops writes the tensor. The
weights of a recurrent network are such an operand. All of it is kept, in panels as wide as a register tile and as deep as the
contraction:

    U[g, k]  at  right[floor(g / columns), k, g mod columns]

so blocks of any size are pieces of it, and with few rows, where a copy made in each step would not pay, it still does.
"""

from __future__ import annotations

import islpy as isl

from polyop.ir.affine import settled_by
from polyop.ir.expr import Affine, Load, is_computed, names
from polyop.poly.build import Axes, Plan
from polyop.poly.scop import Stmt


def is_plain(load: Load) -> bool:
    """Whether all of the operand may be packed without asking anything."""
    return not any(is_computed(p) for p in load.index) and not load.guard


def is_frozen(plan: Plan, u: Stmt, load: Load) -> bool:
    """Whether `load` of `u` is the same in every call, of as many elements, so that one copy serves them all."""
    used = frozenset[str]().union(*(names(p) for p in load.index if isinstance(p, Affine)))
    extents = (names(plan.extent(u, i)) for i in u.dims if i in used)
    return load.source in plan.options.frozen and is_plain(load) and frozenset[str]().union(*extents) <= _sizes(plan, load)


def of_all_calls(plan: Plan, load: Load, domain: isl.Set) -> isl.Set:
    """{ x : x in `domain` for some of the sizes that the tensor of `load` leaves open }: all of a frozen one is copied."""
    own = _sizes(plan, load)
    for at in reversed(range(domain.dim(isl.dim_type.param))):
        if domain.get_dim_name(isl.dim_type.param, at) not in own:
            domain = domain.project_out(isl.dim_type.param, at, 1)
    return domain


def _sizes(plan: Plan, load: Load) -> frozenset[str]:
    """Those that the shape of the tensor of `load` leaves no choice."""
    return settled_by(plan.scop.op.tensor(load.source).shape)


def is_settled(plan: Plan, u: Stmt, load: Load, outer: Axes) -> bool:
    """Whether `load` of `u` is the same at all iterations of the loops `outer`, of which there are some."""
    own = plan.classes[u.name]
    around = {i for i in u.dims if own[i] in outer}
    if not outer or not is_plain(load):
        return False
    used = frozenset[str]().union(*(names(p) for p in load.index if isinstance(p, Affine)))
    inside = [s for s in plan.scop.writers(load.source) if set(plan.classes[s.name].values()) & set(outer)]
    return not used & around and not inside
