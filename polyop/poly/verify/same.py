"""Whether two scalar expressions are one computation: equal trees, up to where each Load reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Number,
    Scalar,
    Test,
    is_affine_condition,
    substitute,
    substitute_expr,
    walk,
)

Path = tuple[tuple[Expr, bool], ...]
"""Affine conditions on the way to a sub-expression, each with the truth it has there."""


@dataclass(frozen=True)
class Operand:
    """A Load of the specification and the Load that stands in its place; `path` is over the nest's names."""

    wanted: Load
    given: Load
    path: Path


@dataclass(frozen=True)
class Differ:
    """Why two expressions are no single computation."""

    wanted: str
    given: str

    def __str__(self) -> str:
        return f"`{self.given}` where `{self.wanted}` is wanted"


Obligation = tuple[Affine | Test, Affine | Test]
"""Two index expressions, or two tests, that still have to be shown equal."""


def compare(wanted: Expr, given: Expr, env: Mapping[str, Affine]) -> Iterator[Operand | Obligation | Differ]:
    """Walk two trees side by side; `env` gives the iterators of `wanted` in terms of the nest."""
    stack: list[tuple[Expr, Expr, Path]] = [(wanted, given, ())]
    while stack:
        a, b, path = stack.pop()
        match a, b:
            case Load(), Load() if a.dtype == b.dtype:
                yield Operand(a, b, path)
                inner = computed(a), computed(b)
                if len(inner[0]) != len(inner[1]):
                    yield Differ(brief(a), brief(b))
                else:
                    stack.extend((x, y, path) for x, y in zip(*inner, strict=True))
            case Apply(), Apply() if a.fn == b.fn and a.dtype == b.dtype and len(a.args) == len(b.args):
                stack.extend((x, y, p) for x, (y, p) in zip(a.args, branches(b, path), strict=True))
            case Number(), Number() if a.dtype == b.dtype:
                if substitute(a.value, env) != b.value:
                    yield substitute(a.value, env), b.value
            case Test(), Test():
                moved = substitute_expr(a, env)
                if moved != b:
                    assert isinstance(moved, Test)
                    yield moved, b
            case Const(), Const() if a.dtype == b.dtype and repr(a.value) == repr(b.value):
                pass
            case Scalar(), Scalar() if a == b:
                pass
            case _:
                yield Differ(brief(a), brief(b))


def brief(e: Expr) -> str:
    """`e` as text, or only what it applies if it is long."""
    size = sum(1 for _ in islice(walk(e), 20))
    return str(e) if size < 20 else f"{e.fn}(..)" if isinstance(e, Apply) else "(..)"


def computed(load: Load) -> tuple[Expr, ...]:
    """The positions that come from data."""
    return tuple(p for p in load.index if not isinstance(p, Affine))


def branches(e: Apply, path: Path) -> tuple[tuple[Expr, Path], ...]:
    """The arguments of `e`, each with the path on which it is evaluated."""
    if e.fn in ("select", "and", "or") and is_affine_condition(e.args[0]):
        c, *rest = e.args
        truth = (True, False) if e.fn == "select" else (e.fn == "and",)
        return ((c, path), *((x, (*path, (c, t))) for x, t in zip(rest, truth, strict=True)))
    return tuple((x, path) for x in e.args)


def loads_with_paths(e: Expr) -> tuple[tuple[Load, Path], ...]:
    """Every Load of `e`, those in computed positions included, with the path on which it is read."""
    out: list[tuple[Load, Path]] = []
    stack: list[tuple[Expr, Path]] = [(e, ())]
    while stack:
        x, path = stack.pop()
        match x:
            case Load():
                out.append((x, path))
                stack.extend((p, path) for p in reversed(computed(x)))
            case Apply():
                stack.extend(reversed(branches(x, path)))
    return tuple(out)


def leaves(e: Expr) -> tuple[tuple[Load | Const, Path], ...] | None:
    """What a store that only moves data may move, each with its conditions; None if `e` computes something."""
    match e:
        case Load() if not computed(e):
            return ((e, ()),)
        case Const():
            return ((e, ()),)
        case Apply(fn="select", args=(c, a, b)) if is_affine_condition(c):
            yes, no = leaves(a), leaves(b)
            if yes is None or no is None:
                return None
            return tuple((x, ((c, True), *p)) for x, p in yes) + tuple((x, ((c, False), *p)) for x, p in no)
    return None
