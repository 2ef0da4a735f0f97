"""isl by name: building sets and maps from index expressions, and the little that isl's own interface lacks.

Every set of one operator has the same parameters, its sizes in order. isl itself never looks at names of dimensions, so
nothing here takes a position where a name would do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import islpy as isl

from polyop.ir.dtypes import BOOL
from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Apply, Const, Expr, Test

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
        if any(text in str(error) for text in _EXCEEDED):
            raise UnsupportedError(f"{what} needs more than {operations} isl operations") from error
        raise InternalError(f"{what}: {error}") from error
    finally:
        context.set_max_operations(0)
        context.reset_operations()


_EXCEEDED = ("maximal number of operations", "syntax error")
"""How isl reports it: a quota that runs out inside a parse comes as a syntax error."""
