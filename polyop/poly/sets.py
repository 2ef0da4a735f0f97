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
from polyop.ir.expr import Affine, Apply, Const, Expr, Quasi, Test, affine

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


def straight(t: Affine) -> tuple[Affine, ...] | None:
    """Plain sums of names which say together that `t` >= 0; None if there are none.

        { min(a, b) + r >= 0 } = { a + r >= 0 and b + r >= 0 }      { floor(e / d) + r >= 0 } = { e + d r >= 0 }
        { r - max(a, b) >= 0 } = { r - a >= 0 and r - b >= 0 }      { r - floor(e / d) >= 0 } = { d r + d - 1 - e >= 0 }
    """
    atom, factor = next(((a, f) for a, f in t.terms if isinstance(a, Quasi)), (None, 0))
    if atom is None:
        return (t,)
    rest, parts = t - affine(atom) * factor, atom.args
    if atom.op == ("min" if factor > 0 else "max"):
        each = [straight(rest + a * factor) for a in parts]
        return None if None in each else tuple(x for some in each for x in some or ())
    if atom.op == "div" and abs(factor) == 1:
        e, d = parts[0], parts[1].const
        return straight(e + rest * d if factor > 0 else rest * d + (d - 1) - e)
    return None


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

    def holding(self, tests: Iterable[Affine], conditions: Iterable[Expr] = ()) -> isl.Set:
        """Where all of `tests` are >= 0 and `conditions` hold.

        In isl's notation, which takes it eight times as long to read, stands only what is no plain sum.
        """
        each: list[Expr] = [Test((t,)) for t in tests]
        for c in conditions:
            each += [Test((t,)) for t in c.tests] if isinstance(c, Test) else [c]
        sums = [straight(c.tests[0]) if isinstance(c, Test) else None for c in each]
        others = [condition(c) for c, some in zip(each, sums, strict=True) if some is None]
        out = self.where(x for some in sums for x in some or ()).to_set()
        return out.intersect(isl.Set(f"{self.head}{{ {self.text} : {conjunction(others)} }}")) if others else out

    @property
    def head(self) -> str:
        return params([s for s, (kind, _) in self.places.items() if kind == P])

    @property
    def text(self) -> str:
        """`name[dims]`."""
        return space_text(self.space.get_tuple_name(SET) or "", [d for d, (kind, _) in self.places.items() if kind == IN])

    def has(self, x: Affine) -> bool:
        """Whether `x` is such a sum."""
        return all(isinstance(a, str) and a in self.places for a, _ in x.terms)

    def aff(self, x: Affine) -> isl.Aff:
        out = isl.Aff.zero_on_domain_space(self.space).set_constant_val(isl.Val(x.const))
        for atom, factor in x.terms:
            out = out.set_coefficient_val(*self.places[str(atom)], isl.Val(factor))
        return out

    def beside(self, name: str, rank: int) -> isl.Space:
        """`[sizes] -> { name[..] }` with the same sizes; without a name if that is empty."""
        space = self.space.params().set_from_params().add_dims(SET, rank)
        return space.set_tuple_name(SET, name) if name else space

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
