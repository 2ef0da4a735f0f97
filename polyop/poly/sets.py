"""isl by name: building sets and maps from index expressions, and the little that isl's own interface lacks.

Every set of one operator has the same parameters, its sizes in order. isl itself never looks at names of dimensions, so
nothing here takes a position where a name would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import islpy as isl

from polyop.ir.dtypes import BOOL
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Affine, Apply, Const, Expr, Test

P, IN, OUT = isl.dim_type.param, isl.dim_type.in_, isl.dim_type.out
SET = isl.dim_type.set


def params(sizes: Sequence[str]) -> str:
    """`[M, N] -> `, the head of every isl text."""
    return f"[{', '.join(sizes)}] -> "


def conjunction(parts: Iterable[str]) -> str:
    """`a and b`; true if there is nothing."""
    return " and ".join(parts) or "1 = 1"


def condition(e: Expr) -> str:
    """An affine condition in isl's notation."""
    match e:
        case Test(tests=tests):
            return conjunction(f"{t} >= 0" for t in tests)
        case Const(value=v, dtype=t) if t == BOOL:
            return "1 = 1" if v else "1 = 0"
        case Apply(fn="and", args=(a, b)):
            return f"({condition(a)}) and ({condition(b)})"
        case Apply(fn="or", args=(a, b)):
            return f"(({condition(a)}) or ({condition(b)}))"
        case Apply(fn="not", args=(a,)):
            return f"not ({condition(a)})"
    raise InternalError(f"poly: `{e}` is no affine condition")


def space_text(name: str, dims: Sequence[object]) -> str:
    """`S[i, j]`."""
    return f"{name}[{', '.join(map(str, dims))}]"


@dataclass(frozen=True, eq=False)
class Linear:
    """Plain sums of names over the `space` `[sizes] -> { name[dims] }`, by isl's interface; `places`: the dimension of a name."""

    space: isl.Space
    places: Mapping[str, tuple[isl.dim_type, int]]

    @staticmethod
    def over(like: isl.Space, name: str, dims: Sequence[str]) -> Linear:
        """The space of `dims` with the parameters of `like`."""
        space = like.params().set_from_params().add_dims(SET, len(dims)).set_tuple_name(SET, name)
        for i, d in enumerate(dims):
            space = space.set_dim_name(SET, i, d)
        sizes = {space.get_dim_name(P, i) or "": (P, i) for i in range(space.dim(P))}
        return Linear(space, {**sizes, **{d: (IN, i) for i, d in enumerate(dims)}})

    @property
    def universe(self) -> isl.BasicSet:
        return isl.BasicSet.universe(self.space)

    def where(self, tests: Iterable[Affine]) -> isl.BasicSet:
        """Where all of `tests` are >= 0."""
        out = self.universe
        for t in tests:
            out = out.add_constraint(isl.Constraint.inequality_from_aff(self.aff(t)))
        return out

    def has(self, x: Affine) -> bool:
        """Whether `x` is such a sum."""
        return all(isinstance(a, str) and a in self.places for a, _ in x.terms)

    def aff(self, x: Affine) -> isl.Aff:
        out = isl.Aff.zero_on_domain_space(self.space).set_constant_val(isl.Val(x.const))
        for atom, factor in x.terms:
            out = out.set_coefficient_val(*self.places[str(atom)], isl.Val(factor))
        return out

    def point(self, space: isl.Space, index: Sequence[Affine]) -> isl.MultiAff:
        """{ name[dims] -> [index] }, a point of `space`."""
        parts = isl.AffList.alloc(isl.DEFAULT_CONTEXT, len(index))
        for x in index:
            parts = parts.add(self.aff(x))
        return isl.MultiAff.from_aff_list(self.space.map_from_domain_and_range(space), parts)


def pieces(m: isl.UnionMap) -> tuple[isl.Map, ...]:
    """The maps of a union, in a stable order."""
    found = m.get_map_list()
    maps = [found.get_at(i) for i in range(found.n_map())]
    return tuple(sorted(maps, key=lambda x: (x.get_tuple_name(IN) or "", x.get_tuple_name(OUT) or "")))


def fewer(m: isl.UnionMap) -> isl.UnionMap:
    """`m` in fewer pieces, if isl finds any: on some sets it fails, which are as right as they were."""
    try:
        return m.coalesce()
    except isl.Error:
        return m


@contextmanager
def quota(operations: int, what: str) -> Iterator[None]:
    """Bound the work that isl may do inside; past it raise UnsupportedError, with isl usable again."""
    context = isl.DEFAULT_CONTEXT
    context.reset_operations()
    context.set_max_operations(operations)
    try:
        yield
    except isl.Error as error:
        if _EXCEEDED in str(error) or _is_spent():
            raise UnsupportedError(f"{what} needs more than {operations} isl operations") from error
        raise InternalError(f"{what}: {error}") from error
    finally:
        context.set_max_operations(0)
        context.reset_operations()


_EXCEEDED = "maximal number of operations"


def _is_spent() -> bool:
    """Whether no operation is left: a quota that runs out inside a parse comes as a syntax error."""
    try:
        isl.Set("{ [i] : 0 <= i < 2 and i < 1 }").is_empty()
    except isl.Error:
        return True
    return False
