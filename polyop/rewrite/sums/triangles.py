"""Which recurrences are triangular: each element needs a reduction over all those before it along one index.

    s[i, n] += L[i, k] * X[k, n]   where k < i            the solution of a triangular system
    X[i, n]  = (B[i, n] - s[i, n]) / L[i, i]

Here `i` is the turn, `k` goes through the turns before it. The text alone decides: which index of which operand is bounded by
which, and who reads what is written. `blocks.py` cuts what is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Test,
    affine,
    expr_names,
    loads,
    map_loads,
    names,
    place,
    substitute,
    substitute_expr,
)
from polyop.ir.op import Op, Step
from polyop.rewrite.folds import plain_indices, tests_of


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the result: `X[target] = expr` where `tests` are all >= 0, without indices that a test fixes.

    region   the tests before that, on the indices of the whole result
    """

    step: Step
    tests: tuple[Affine, ...]
    region: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Triangle:
    """A triangular recurrence of `update`, which reduces into `partial`, and `result`, which is written from that.

    turn, past   the update's kept index along which turns follow each other, and its reduced one over those before
    at, where    the position of the turn in `partial`, and in the result
    backwards    whether the past is what lies behind: { past > turn }
    inside       the pieces of the result that take part; outside: those that read neither `partial` nor the result
    """

    update: Step
    result: Step
    turn: str
    past: str
    at: int
    where: int
    backwards: bool
    inside: tuple[Piece, ...]
    outside: tuple[Piece, ...]

    @property
    def is_covered(self) -> bool:
        """Whether the result reads nothing that the update leaves at its identity by one of its conditions on the turn."""
        needed = [t for t in plain_tests(self.update) or () if t != self.past_test and t.factor(self.turn)]

        def holds(t: Affine, p: Piece, x: Load) -> bool:
            kept = plain_indices(self.update.target, self.update.indices) or ()
            here = substitute(t, {i: y for i, y in zip(kept, x.index, strict=True) if isinstance(y, Affine)})
            return any((here - y).is_constant and (here - y).const >= 0 for y in (*p.tests, Affine()))

        return all(holds(t, p, x) for p in self.inside for x in loads(p.step.expr) if x.source == self.partial for t in needed)

    @property
    def partial(self) -> str:
        return self.update.target.source

    @property
    def written(self) -> str:
        return self.result.target.source

    @property
    def past_test(self) -> Affine:
        """Which of the update's tests says that the past is past: { past < turn }, or the other way round."""
        return _before(self.turn, self.past, self.backwards)


def find_triangle(op: Op) -> Triangle | None:
    """The first triangular recurrence of `op` in which what is reduced is a contraction: its operands are used again."""
    for u in op.steps:
        result = _result(op, u)
        if result is None:
            continue
        for past in u.indices:
            for turn in u.indices:
                found = _triangle(op, u, result, turn, past)
                if found:
                    return found
    return None


def plain_tests(s: Step) -> tuple[Affine, ...] | None:
    """The conditions of `s`, if all are sums of names >= 0."""
    tests = tests_of(s)
    return tests if tests is not None and all(isinstance(a, str) for t in tests for a, _ in t.terms) else None


def _before(turn: str, past: str, backwards: bool) -> Affine:
    early, late = (turn, past) if backwards else (past, turn)
    return affine(late) - affine(early) - 1


def _result(op: Op, u: Step) -> Step | None:
    """The one step that reads what `u` reduces, if it writes another tensor in full, and `u` reads that."""
    t = op.tensor(u.target.source)
    kept = plain_indices(u.target, u.indices)
    if u.reduce is None or t.role != "temp" or kept is None or plain_tests(u) is None or not _is_box(u, kept, t.shape):
        return None
    empty = Const(u.reduce.identity, t.dtype)
    if any(w is not u and (w.reduce != u.reduce or w.expr != empty) for w in op.steps_of(t.name)):
        return None
    readers = [s for s in op.steps if any(x.source == t.name for x in (*loads(s.expr), *_inside(s.target)))]
    if len(readers) != 1 or readers[0].reduce is not None or readers[0].where:
        return None
    f = readers[0]
    indices, x = plain_indices(f.target, f.indices), op.tensor(f.target.source)
    whole = indices is not None and len(indices) == len(f.indices) and _is_box(f, indices, x.shape)
    only = op.steps_of(x.name) == (f,) and all(x.name not in pair for pair in op.updates)
    return f if whole and only and any(y.source == x.name for y in loads(u.expr)) else None


def _inside(target: Load) -> tuple[Load, ...]:
    """The reads in the positions of `target`."""
    return tuple(x for p in target.index if not isinstance(p, Affine) for x in loads(p))


def _is_box(s: Step, indices: tuple[str, ...], shape: tuple[Affine, ...]) -> bool:
    """Whether each of `indices` runs over all of its dimension."""
    limits = {r.index: (r.lower, r.upper) for r in s.ranges}
    return all(limits[i] == (Affine(), e) for i, e in zip(indices, shape, strict=True))


def _triangle(op: Op, u: Step, f: Step, turn: str, past: str) -> Triangle | None:
    kept, ranges = plain_indices(u.target, u.indices) or (), {r.index: r for r in u.ranges}
    extent = ranges[turn].upper
    backwards = _before(turn, past, True) in (plain_tests(u) or ())
    if turn not in kept or past in kept or (not backwards and _before(turn, past, False) not in (plain_tests(u) or ())):
        return None
    if extent.is_constant or (ranges[past].lower, ranges[past].upper) != (Affine(), extent) or not _is_contraction(u, turn, past):
        return None
    fed = [x for x in loads(u.expr) if x.source == f.target.source]
    places = {d for x in fed for d, p in enumerate(x.index) if p == affine(past)}
    where = places.pop() if len(places) == 1 else None
    if where is None or any(x.index[where] != affine(past) or x.guard or _others(x, where) & {past} for x in fed):
        return None
    if op.tensor(f.target.source).shape[where] != extent:
        return None
    j = (plain_indices(f.target, f.indices) or ())[where]
    at = kept.index(turn)
    own = {u.target.source: at, f.target.source: where}
    pieces = _pieces(f, f.expr, (), j)
    inside = tuple(p for p in pieces if any(x.source in own for x in loads(p.step.expr)))
    if any(x.index[own[x.source]] != affine(j) for p in inside for x in loads(p.step.expr) if x.source in own):
        return None
    if any(p.step.target.index[where] != affine(j) for p in inside):
        return None
    renamed = tuple(_renamed(p, j, turn) for p in inside) if j != turn else inside
    return Triangle(u, f, turn, past, at, where, backwards, renamed, tuple(p for p in pieces if p not in inside))


def _others(x: Load, d: int) -> frozenset[str]:
    """The names in the positions of `x` beside `d`."""
    rest = x.index[:d] + x.index[d + 1:]
    return frozenset[str]().union(*(names(p) if isinstance(p, Affine) else expr_names(p) for p in rest))


def _is_contraction(u: Step, turn: str, past: str) -> bool:
    """Whether two of the operands each have a kept index that the other does without."""
    kept = set(u.indices) - {past} if plain_indices(u.target, u.indices) else set()
    kept &= set(plain_indices(u.target, u.indices) or ())
    over = [expr_names(x) & kept for x in loads(u.expr)]
    return turn in kept and any(a - b and b - a for a in over for b in over)


# --- pieces ----------------------------------------------------------------------------------------------------------


def _pieces(f: Step, e: Expr, tests: tuple[Affine, ...], turn: str) -> tuple[Piece, ...]:
    """`f` cut where a test on indices chooses between expressions."""
    match e:
        case Apply(fn="select", args=(Test(tests=some), yes, no)) if all(isinstance(a, str) for t in some for a, _ in t.terms):
            out = _pieces(f, yes, (*tests, *some), turn)
            for n, t in enumerate(some):  # not (a and b) is: not a, or a and not b
                out += _pieces(f, no, (*tests, *some[:n], t * -1 - 1), turn)
            return out
    return (_fixed(f, e, tests, turn, tests),)


def _fixed(f: Step, e: Expr, tests: tuple[Affine, ...], turn: str, region: tuple[Affine, ...]) -> Piece:
    """A piece, with what two opposite tests say put in: { i - j >= 0 and j - i >= 0 } is { i = j }."""
    free = map_loads(e, lambda x: replace(x, guard=tuple(g for g in x.guard if g not in tests)))
    for t in tests:
        if t * -1 in tests:
            for i in sorted(names(t) & set(f.indices) - {turn}):
                if abs(t.factor(i)) == 1:
                    env = {i: (affine(i) * t.factor(i) - t) * t.factor(i)}
                    ranges = tuple(r for r in f.ranges if r.index != i)
                    left = tuple(dict.fromkeys(x for x in (substitute(x, env) for x in tests) if x.terms or x.const < 0))
                    inside = replace(f, target=place(f.target, env), ranges=ranges)
                    return _fixed(inside, _settled(substitute_expr(free, env)), left, turn, region)
    return Piece(replace(f, expr=free), tests, region)


def joined(regions: Iterable[tuple[Affine, ...]]) -> tuple[tuple[Affine, ...], ...]:
    """Fewer regions that are the same together: { t > 0 } and { t = 0 } are { t >= 0 }."""
    out = [frozenset(r) for r in regions]
    for a in out:
        for b in out:
            for t in b:
                if t * -1 in b and a == b - {t, t * -1} | {t - 1}:
                    rest = [tuple(r) for r in out if r not in (a, b)]
                    return joined([*rest, tuple(b - {t * -1})])
    return tuple(tuple(sorted(r, key=str)) for r in out)


def _settled(e: Expr) -> Expr:
    """`e` without guards that are numbers and hold."""
    return map_loads(e, lambda x: replace(x, guard=tuple(g for g in x.guard if g.terms or g.const < 0)))


def _renamed(p: Piece, old: str, new: str) -> Piece:
    """`p` with its index `old` called `new`, as the update calls it."""
    env: Mapping[str, Affine] = {old: affine(new)}
    s = p.step
    target = place(s.target, env)
    ranges = tuple(replace(r, index=new if r.index == old else r.index) for r in s.ranges)
    tests, region = (tuple(substitute(t, env) for t in some) for some in (p.tests, p.region))
    return Piece(replace(s, target=target, expr=substitute_expr(s.expr, env), ranges=ranges), tests, region)
