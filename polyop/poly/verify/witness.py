"""The smallest case that breaks a claim, in words."""

from __future__ import annotations

import islpy as isl

from polyop.ir.expr import Affine, Load, evaluate
from polyop.poly.scop import Stmt
from polyop.poly.verify.accesses import Read
from polyop.poly.verify.flow import maps
from polyop.poly.verify.frame import IN, OUT, PARAM, SET
from polyop.poly.verify.sites import Site


def smallest(bad: isl.Set) -> tuple[dict[str, int], tuple[int, ...]]:
    """A point of `bad`, which is not empty: the sizes with the least sum, then the lexicographically first point.

    Returns the sizes by name, and the coordinates.
    """
    count = bad.dim(PARAM)
    names = [str(bad.get_dim_name(PARAM, i)) for i in range(count)]
    if count:
        sizes = bad.params().from_params().move_dims(SET, 0, PARAM, 0, count)
        total = isl.Aff.zero_on_domain_space(sizes.get_space())
        for i in range(count):
            total = total.set_coefficient_val(IN, i, isl.Val(1))
        least = sizes.min_val(total)
        if least.is_int():
            sizes = sizes.add_constraint(isl.Constraint.equality_from_aff(total.set_constant_val(least.neg())))
        point = _first(sizes)
        for i in range(count):
            bad = bad.fix_val(PARAM, i, point.get_coordinate_val(SET, i))
    chosen = _first(bad)
    found = {n: chosen.get_coordinate_val(PARAM, i).to_python() for i, n in enumerate(names)}
    return found, tuple(chosen.get_coordinate_val(SET, i).to_python() for i in range(bad.dim(SET)))


def _first(s: isl.Set) -> isl.Point:
    """The lexicographically first point; any point, where isl cannot tell (it fails on some sets with existentials)."""
    try:
        return s.lexmin().sample_point()
    except isl.Error:
        return s.sample_point()


def named(s: Site, sizes: dict[str, int], at: tuple[int, ...]) -> dict[str, int]:
    """The sizes and loop indices of one execution of `s`, by name."""
    env = sizes | dict(zip(s.frame.dims, at, strict=False))
    return sizes | {index: evaluate(x, env) for index, x in s.values.items()}


def reading(r: Read, bad: isl.Set) -> dict[str, int]:
    """The sizes and indices of the smallest of the reads `bad`, by name."""
    sizes, at = smallest(bad)
    return sizes | dict(zip(r.frame.dims, at, strict=True)) if r.site is None else named(r.site, sizes, at)


def instance(stmt: Stmt, bad: isl.Set) -> str:
    """`K = 0, M = 1: C_init[0, 0]`."""
    sizes, at = smallest(bad)
    return f"{equations(sizes)}: {stmt.name}[{', '.join(map(str, at))}]"


def point(bad: isl.Set) -> isl.Set:
    """The smallest point of `bad` alone."""
    sizes, at = smallest(bad)
    for kind, values in ((PARAM, tuple(sizes.values())), (SET, at)):
        for i, v in enumerate(values):
            bad = bad.fix_val(kind, i, isl.Val(v))
    return bad


def elements(m: isl.UnionMap, here: isl.UnionSet) -> str:
    """What `m` gives at one point: `right[0, 1]`, or a constant."""
    out = []
    for image in maps(m.intersect_domain(here)):
        name = image.get_tuple_name(OUT) or ""
        spot_ = image.range().sample_point()
        at = [str(spot_.get_coordinate_val(SET, i).to_python()) for i in range(image.dim(OUT))]
        out.append(name.removeprefix("=") if name.startswith("=") else f"{name}[{', '.join(at)}]" if at else name)
    return " or ".join(sorted(out)) or "something unknown"


def case(s: Site, bad: isl.Set) -> str:
    """`K = 512, N = 449, k_p = 511`: the smallest of the executions `bad` of `s`."""
    return equations(named(s, *smallest(bad)))


def equations(env: dict[str, int]) -> str:
    return ", ".join(f"{n} = {v}" for n, v in env.items())


def spot(load: Load, env: dict[str, int]) -> str:
    """`right[448, 511, -1]`."""
    at = [str(evaluate(p, env)) if isinstance(p, Affine) else "?" for p in load.index]
    return f"{load.source}[{', '.join(at)}]" if at else load.source
