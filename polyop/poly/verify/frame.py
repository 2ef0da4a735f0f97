"""Index expressions over named integers as isl sets and maps, built through isl's interface: five times as fast as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import islpy as isl

from polyop.cached import cached_property
from polyop.ir.dtypes import BOOL
from polyop.ir.errors import InternalError
from polyop.ir.expr import Affine, Apply, Const, Expr, Quasi, Test, bounds

PARAM, IN, OUT, SET = isl.dim_type.param, isl.dim_type.in_, isl.dim_type.out, isl.dim_type.set


@dataclass(frozen=True, eq=False)
class Frame:
    """The space `[sizes] -> { name[dims] }`: what an index expression over `sizes` and `dims` is a function of."""

    name: str
    sizes: tuple[str, ...]
    dims: tuple[str, ...]

    @cached_property
    def space(self) -> isl.Space:
        return tuple_space(self.name, self.sizes, len(self.dims))

    @cached_property
    def _place(self) -> dict[str, tuple[isl.dim_type, int]]:
        found = {s: (PARAM, i) for i, s in enumerate(self.sizes)}
        return found | {d: (IN, i) for i, d in enumerate(self.dims)}

    @cached_property
    def _zero(self) -> isl.Aff:
        return isl.Aff.zero_on_domain_space(self.space)

    def linear(self, x: Affine) -> isl.Aff:
        """`x`, which has no Quasi in it."""
        out = self._zero
        if x.const:
            out = out.set_constant_val(isl.Val(x.const))
        for atom, factor in x.terms:
            if not isinstance(atom, str) or atom not in self._place:
                raise InternalError(f"verify: {atom} in {x} is no name of {self.name}[{', '.join(self.dims)}]")
            out = out.set_coefficient_val(*self._place[atom], isl.Val(factor))
        return out

    def value(self, x: Affine) -> isl.PwAff:
        """`x` as an isl function of this space."""
        if is_linear(x):
            return isl.PwAff.from_aff(self.linear(x))
        plain = Affine(tuple((a, f) for a, f in x.terms if isinstance(a, str)), x.const)
        total = isl.PwAff.from_aff(self.linear(plain))
        for atom, factor in x.terms:
            if isinstance(atom, Quasi):
                total = total.add(self._quasi(atom).scale_val(isl.Val(factor)))
        return total

    def _quasi(self, q: Quasi) -> isl.PwAff:
        args = [self.value(a) for a in q.args]
        match q.op:
            case "min":
                return reduce(isl.PwAff.union_min, args)
            case "max":
                return reduce(isl.PwAff.union_max, args)
            case "div":
                return args[0].scale_down_val(isl.Val(q.args[1].const)).floor()
        return args[0].mod_val(isl.Val(q.args[1].const))

    @property
    def universe(self) -> isl.Set:
        return isl.Set.universe(self.space)

    @property
    def empty(self) -> isl.Set:
        return isl.Set.empty(self.space)

    def where(self, tests: Iterable[Affine], within: isl.Set | None = None) -> isl.Set:
        """{ name[dims] : every one of `tests` >= 0 }, in `within` if given."""
        basic, out = isl.BasicSet.universe(self.space), within
        for t in tests:
            some = bounds(t, "max")
            if len(some) > 1:  # in parts that are disjoint: { a >= 0 } and { a < 0 and b >= 0 }
                part = reduce(isl.Set.union, (self.where((x, *(y * -1 - 1 for y in some[:k]))) for k, x in enumerate(some)))
                out = part if out is None else out.intersect(part)
            elif is_linear(t):
                basic = basic.add_constraint(isl.Constraint.inequality_from_aff(self.linear(t)))
            else:
                part = self.value(t).nonneg_set()
                out = part if out is None else out.intersect(part)
        return basic.to_set() if out is None else out.intersect(basic.to_set())

    def condition(self, e: Expr, within: isl.Set) -> isl.Set:
        """The part of `within` where the affine condition `e` holds."""
        match e:
            case Test(tests=tests):
                return self.where(tests, within)
            case Const(value=v, dtype=t) if t == BOOL:
                return within if v else self.empty
            case Apply(fn="and", args=(a, b)):
                return self.condition(b, self.condition(a, within))
            case Apply(fn="or", args=(a, b)):
                return self.condition(a, within).union(self.condition(b, within))
            case Apply(fn="not", args=(a,)):
                return within.subtract(self.condition(a, within))
        raise InternalError(f"verify: `{e}` is no affine condition")

    def function(self, name: str, index: Sequence[Affine]) -> isl.Map:
        """{ self.name[dims] -> name[index] }."""
        if all(map(is_linear, index)):
            parts = isl.AffList.alloc(isl.DEFAULT_CONTEXT, len(index))
            for x in index:
                parts = parts.add(self.linear(x))
            space = self.space.map_from_domain_and_range(tuple_space(name, self.sizes, len(index)))
            return isl.Map.from_multi_aff(isl.MultiAff.from_aff_list(space, parts))
        whole = isl.PwAffList.alloc(isl.DEFAULT_CONTEXT, len(index))
        for x in index:
            whole = whole.add(self.value(x))
        space = self.space.map_from_domain_and_range(tuple_space(name, self.sizes, len(index)))
        return isl.Map.from_multi_pw_aff(isl.MultiPwAff.from_pw_aff_list(space, whole))


def tuple_space(name: str, sizes: Sequence[str], rank: int) -> isl.Space:
    """`[sizes] -> { name[..] }` of this rank."""
    names = {} if not rank else {"set": [f"d{i}" for i in range(rank)]}
    space = isl.Space.create_from_names(isl.DEFAULT_CONTEXT, params=list(sizes), **({"set": []} | names))
    return space.set_tuple_name(SET, name)


def is_linear(x: Affine) -> bool:
    """Whether `x` is a plain sum of names."""
    return all(isinstance(a, str) for a, _ in x.terms)
