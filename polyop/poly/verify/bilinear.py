"""That steps which take fewer multiplications compute the sums of the text, for numbers without rounding.

Of the Op before and the one after it is known that each element is computed once, from elements that are computed before, and
that nothing is read outside (`poly/wellformed.py`). So it is enough to follow what is new. With temporaries as what they are,

    M[g, e, u, k] += V[g, e, u, c] * W[e, c, k]      is      sum over c of (numbers . elements of x) (numbers . elements of f)

and each new step that writes what the text has is a sum over c of products of elements with numbers before them, inside of what
takes it on. These numbers, worked out as fractions, must be 1 for the pairs of the text's sum over its window, and 0 for others.
A constant of the steps counts for the fraction with the smallest divisor that is nearest to it.

Windows are numbers here: an index of a sum that the new one does without goes through all its values. So does an index that
chooses between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import lcm

from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    affine,
    expr_names,
    loads,
    map_loads,
    names,
    place,
    substitute,
    substitute_expr,
)
from polyop.ir.module import Proof
from polyop.ir.op import Op, Range, Step
from polyop.poly.verify.verdict import decided

CLAIM = "sums over windows with fewer multiplications are those of the text, but for rounding"
DIVISORS = 10_000
"""The greatest divisor of the numbers in such steps."""
MOST = 16
"""The most values of an index that is gone through."""

Form = Mapping[Expr, Fraction]
"""{ element -> the number before it }."""
Numbered = tuple[tuple[int, Fraction], ...]
"""The same, with the numbers of elements."""
Products = Mapping[tuple[int, int], Fraction]
"""{ numbers of two elements that are multiplied, the smaller one first -> the number before them }; none is 0."""


def same_sums(before: Op, after: Op) -> Proof:
    """The claim that `after`, whose other steps are those of `before`, computes what `before` does."""
    return decided(CLAIM, lambda: next(_Sums(before, after).faults(), None))


class _OpenError(Exception):
    """It depends on the index of that name which step is meant."""


class _StrangeError(Exception):
    """A step is no sum of products."""


@dataclass(eq=False)
class _Sums:
    """`numbers_of` each element: there are few, and pairs of them are asked for by the ten thousand. `bounds`: of the indices of
    the step that is looked at.
    """

    before: Op
    after: Op
    forms: dict[Expr, Numbered] = field(default_factory=dict)
    numbers_of: dict[Expr, int] = field(default_factory=dict)
    bounds: Mapping[str, Range] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = {t.name for t in self.before.tensors}
        self.made = {t.name for t in self.after.tensors} - known
        self.gone = [s for s in self.before.steps if s not in self.after.steps]
        self.new = [s for s in self.after.steps if s not in self.before.steps]

    def faults(self) -> Iterator[str]:
        """What is wrong, in words."""
        kept = {t.name for t in self.after.tensors} - self.made
        if any(self.before.tensor(n) != self.after.tensor(n) for n in kept) or any(
                getattr(self.before, x) != getattr(self.after, x) for x in ("inputs", "outputs", "params", "sizes", "updates")):
            yield "the tensors are others"
        if any(self.before.steps.count(s) != self.after.steps.count(s) for s in self.before.steps if s not in self.gone):
            yield "the text has a step more often"
        written = {s.target.source for s in self.gone} & kept
        ends = [s for s in self.new if s.target.source not in self.made]
        for name in sorted(written ^ {s.target.source for s in ends}):
            yield f"{name} is written by other steps"
        for end in ends:
            for s in self.pieces(end):
                yield from self.compared(s)

    def pieces(self, end: Step) -> Iterator[Step]:
        """`end` where it takes what different steps have put into one temporary: at the points of each of these."""
        for x in loads(end.expr):
            steps = self.after.steps_of(x.source) if x.source in self.made and not x.guard else ()
            at = [p.name for p in x.index if isinstance(p, Affine)]
            if steps and None not in at and len({*at}) == len(x.index) and all(s.reduce is None for s in steps) and not all(
                    isinstance(p, Affine) and (p.name or p.is_constant) for s in steps for p in s.target.index):
                for s in steps:
                    env = {n: p for n, p in zip(at, s.target.index, strict=True) if n and isinstance(p, Affine)}
                    rest = tuple(r for r in end.ranges if r.index not in at)
                    e = _with_instead(end.expr, x, s.expr, env)
                    yield Step(place(end.target, env), end.reduce, e, (*s.ranges, *rest), (), end.span)
                return
        yield end

    def compared(self, s: Step) -> Iterator[str]:
        """What is wrong with a new step, at each value of the indices that choose between others."""
        one = {r.index: r.lower for r in s.ranges if r.upper - r.lower == affine(1)}
        if one:
            rest = tuple(r for r in s.ranges if r.index not in one)
            s = Step(place(s.target, one), s.reduce, substitute_expr(s.expr, one), rest, (), s.span)
        self.bounds = {r.index: r for r in s.ranges}
        try:
            if s.reduce is not None:
                raise _StrangeError(f"{s.target} is added to")
            wanted, sums = self.text(s.target)
            found = self.differ(wanted, s.expr, sums)
        except _OpenError as error:
            (name,) = error.args
            r = next((r for r in s.ranges if r.index == name), None)
            if r is None or not (r.lower.is_constant and r.upper.is_constant and r.upper.const - r.lower.const <= MOST):
                yield f"{s.target}: {name} chooses between steps"
                return
            for n in range(r.lower.const, r.upper.const):
                env = {name: affine(n)}
                yield from self.compared(Step(place(s.target, env), None, substitute_expr(s.expr, env),
                                              tuple(x for x in s.ranges if x is not r), (), s.span))
        except _StrangeError as error:
            yield str(error)
        else:
            if found:
                yield f"{s.target}: {found}"

    def text(self, target: Load) -> tuple[Expr, Mapping[Expr, Step]]:
        """What the text makes of the element `target`, in which sums are what they are read as; these sums."""
        steps = [s for s in self.gone if s.target.source == target.source]
        sums = [s for s in steps if len(s.ranges) > len(s.target.index)]
        if steps and len(sums) == 1:  # all others add a term to it, everywhere
            if len(steps) > 1 and not all(_is_whole(self.before, s) for s in steps):
                raise _StrangeError(f"{target} is a sum in part")
            whole: Expr = target
            for s in (s for s in steps if s is not sums[0]):
                whole = Apply("add", (whole, substitute_expr(s.expr, _at(s, target))), target.dtype)
            return whole, {target: sums[0]}
        if len(steps) != 1 or steps[0].reduce is not None:
            raise _StrangeError(f"{target} is no sum, and takes none")
        e = substitute_expr(steps[0].expr, _at(steps[0], target))
        kept = {t.name for t in self.after.tensors}
        taken = {x: [s for s in self.gone if s.target.source == x.source] for x in loads(e) if x.source not in kept}
        if any(len(x) != 1 for x in taken.values()):
            raise _StrangeError(f"{target} takes what is no sum")
        return e, {x: s for x, (s,) in taken.items()}

    def differ(self, wanted: Expr, given: Expr, sums: Mapping[Expr, Step]) -> str | None:
        """How the tree `given` differs from `wanted`; in the place of `sums` there are numbers before products."""
        if isinstance(wanted, Load) and wanted in sums:
            s = sums[wanted]
            return self.differing(self.of_text(s, _at(s, wanted), self.added(given)), self.products(given))
        match wanted, given:
            case Apply(), Apply() if (wanted.fn, wanted.dtype, len(wanted.args)) == (given.fn, given.dtype, len(given.args)):
                found = (self.differ(x, y, sums) for x, y in zip(wanted.args, given.args, strict=True))
                return next((x for x in found if x), None)
        return None if _plain(wanted, self.before) == _plain(given, self.after) else f"{given} is not {wanted}"

    def of_text(self, s: Step, env: Mapping[str, Affine], added: tuple[tuple[str, Affine, Affine], ...]) -> Products:
        """The products that the sum `s` adds up, with each value of an index that is not `added`."""
        reduced = self.reduced(s, env)
        rest = [r for r in reduced if (r.index, r.lower, r.upper) not in added]
        if s.reduce is None or s.reduce.name != "add" or s.where or len(added) + len(rest) != len(reduced):
            raise _StrangeError(f"{s.target} is another sum")
        if not all(r.lower.is_constant and r.upper.is_constant and r.upper.const - r.lower.const <= MOST for r in rest):
            raise _StrangeError(f"{s.target}: the window is no number")
        match s.expr:
            case Apply(fn="mul", args=(a, b)):
                out = dict[tuple[int, int], Fraction]()
                for values in product(*(range(r.lower.const, r.upper.const) for r in rest)):
                    at = {**env, **{r.index: affine(n) for r, n in zip(rest, values, strict=True)}}
                    u, v = sorted(self.number(substitute_expr(x, at), self.before) for x in (a, b))
                    out[u, v] = out.get((u, v), Fraction(0)) + 1
                return out
        raise _StrangeError(f"{s.target} is no sum of products")

    def reduced(self, s: Step, env: Mapping[str, Affine]) -> tuple[Range, ...]:
        """What the sum `s` goes over, at the element that `env` says.

        Raises  _StrangeError, if an index of both has the same name.
        """
        found = tuple(Range(r.index, substitute(r.lower, env), substitute(r.upper, env)) for r in s.ranges if r.index not in env)
        if {r.index for r in found} & frozenset[str]().union(*map(names, env.values())):
            raise _StrangeError(f"{s.target} is added up over an index of what takes it")
        return found

    # --- what new steps compute
    def step(self, x: Load) -> tuple[Step, Mapping[str, Affine]]:
        """The step that writes the element `x` of a new temporary, and the values of its indices there."""
        found = []
        for s in self.after.steps_of(x.source):
            env = {r.index: r.lower for r in s.ranges
                   if s.reduce is None and r.upper - r.lower == affine(1) and r.index not in expr_names(s.target)}
            for p, q in zip(s.target.index, x.index, strict=True):
                if not isinstance(p, Affine) or not isinstance(q, Affine):
                    raise _StrangeError(f"{s.target} is at a computed place")
                if {*env} & names(p) or not names(p) <= {*s.indices}:
                    raise _StrangeError(f"{s.target} is not written plainly")
                if p.name:
                    env[p.name] = q
                elif not p.is_constant:
                    env |= self.digits(p, q, s)
                elif not q.is_constant:
                    raise _OpenError(q.name or str(q)) if q.name else _StrangeError(f"{x} may be any of several")
                elif p != q:
                    break
            else:
                found.append((s, env))
        if len(found) != 1:
            raise _StrangeError(f"{len(found)} steps write {x}")
        return found[0]

    def digits(self, p: Affine, q: Affine, s: Step) -> Mapping[str, Affine]:
        """{ i -> j } for { p = 4 i + i' } and { q = 4 j + j' }, digits of equal ranges: one way to write each number.

        Raises  _StrangeError, if they are no such.
        """
        own, mine = {r.index: r for r in s.ranges}, [(f, i) for i, f in p.terms if isinstance(i, str)]
        theirs = {f: j for j, f in q.terms if isinstance(j, str)}
        weight = 1
        for f, i in sorted(mine):
            r, there = own[i], self.bounds.get(theirs.get(f, ""))
            if f != weight or there is None or (r.lower, r.upper) != (there.lower, there.upper) or r.lower != Affine() \
                    or not r.upper.is_constant:
                break
            weight *= r.upper.const
        else:
            if len(mine) == len(p.terms) == len(q.terms) and p.const == q.const == 0:
                return {i: affine(theirs[f]) for f, i in mine}
        raise _StrangeError(f"{q} are not the digits of {s.target}")

    def added(self, e: Expr) -> tuple[tuple[str, Affine, Affine], ...]:
        """The indices over which `e` has sums, which all are over the same ones."""
        found = {self.added_by(x) for x in loads(e) if x.source in self.made}
        if len(found) != 1:
            raise _StrangeError(f"{e} has sums over several things")
        return found.pop()

    def added_by(self, x: Load) -> tuple[tuple[str, Affine, Affine], ...]:
        s, env = self.step(x)
        if s.reduce is not None:
            own = self.reduced(s, env)
            if any(expr_names(w) & {r.index for r in own} or loads(w) for w in s.where):
                raise _StrangeError(f"{s.target} leaves terms out")
            return tuple((r.index, r.lower, r.upper) for r in own)
        return self.added(substitute_expr(s.expr, env))

    def products(self, e: Expr) -> Products:
        """What `e` adds up of products."""
        terms = list[tuple[Fraction, Numbered, Numbered]]()
        for x, number in self.linear(e, lambda s: s.reduce is not None).items():
            s, env = self.step(x) if isinstance(x, Load) and x.source in self.made else (None, {})
            if s is None or s.reduce is None or s.reduce.name != "add" or not isinstance(s.expr, Apply) or s.expr.fn != "mul":
                raise _StrangeError(f"{x} is no sum of products")
            a, b = (self.elements(substitute_expr(y, env)) for y in s.expr.args)
            terms.append((number, a, b))
        # all in whole numbers of one unit, which are added sooner
        unit = lcm(*(n.denominator for number, a, b in terms for n in (number, *(m for _, m in (*a, *b)))))
        out = dict[tuple[int, int], int]()
        for number, a, b in terms:
            right = [(v, int(n * unit)) for v, n in b]
            for u, m in a:
                factor = int(number * unit) * int(m * unit)
                for v, n in right:
                    pair = (u, v) if u <= v else (v, u)
                    out[pair] = out.get(pair, 0) + factor * n
        return {pair: Fraction(n, unit**3) for pair, n in out.items() if n}

    def number(self, e: Expr, op: Op) -> int:
        """The number of an element of `op`."""
        return self.numbers_of.setdefault(_plain(e, op), len(self.numbers_of))

    def differing(self, wanted: Products, given: Products) -> str | None:
        names = {n: e for e, n in self.numbers_of.items()}
        for u, v in sorted({*wanted, *given}):
            n, m = wanted.get((u, v), Fraction(0)), given.get((u, v), Fraction(0))
            if n != m:
                return f"{names[u]} * {names[v]} is added {m} times, not {n}"
        return None

    def elements(self, e: Expr) -> Numbered:
        """The numbers before elements of what the text has in `e`."""
        if e not in self.forms:
            out = dict[int, Fraction]()
            for x, n in self.linear(e, lambda s: False).items():
                number = self.number(x, self.after)
                out[number] = out.get(number, Fraction(0)) + n
            self.forms[e] = tuple((x, n) for x, n in out.items() if n)
        return self.forms[e]

    def linear(self, e: Expr, is_end: Callable[[Step], bool]) -> Form:
        """The numbers before what `e` is made of, down to new steps that are an end, and to what the text has."""
        match e:
            case Load(source=name, guard=()) if name in self.made:
                s, env = self.step(e)
                if is_end(s):
                    return {e: Fraction(1)}
                if s.reduce is not None or s.target.dtype != e.dtype:
                    raise _StrangeError(f"{e} is a sum")
                return self.linear(substitute_expr(s.expr, env), is_end)
            case Load() | Apply(fn="cast", args=(Load(),)) if not any(x.source in self.made for x in loads(e)):
                return {e: Fraction(1)}
            case Apply(fn="add" | "sub", args=(a, b)):
                return _plus(self.linear(a, is_end), self.linear(b, is_end), 1 if e.fn == "add" else -1)
            case Apply(fn="neg", args=(a,)):
                return _plus({}, self.linear(a, is_end), -1)
            case Apply(fn="mul", args=(Const(value=c), a)):
                return _plus({}, self.linear(a, is_end), Fraction(c).limit_denominator(DIVISORS))
        raise _StrangeError(f"{e} is no sum of elements with numbers before them")


def _plus(a: Form, b: Form, factor: Fraction | int) -> Form:
    out = dict(a)
    for x, n in b.items():
        out[x] = out.get(x, Fraction(0)) + n * factor
    return out


def _plain(e: Expr, op: Op) -> Expr:
    """`e`, whose reads do not say that they are inside their tensors: they are, or what is read is 0."""
    def read(x: Load) -> Load:
        shape = op.tensor(x.source).shape
        inside = {t for p, n in zip(x.index, shape, strict=True) if isinstance(p, Affine) for t in (p, n - 1 - p)}
        return Load(x.source, x.index, x.dtype, tuple(g for g in x.guard if g not in inside))

    return map_loads(e, read)


def _with_instead(e: Expr, x: Load, other: Expr, env: Mapping[str, Affine]) -> Expr:
    """`e` at other values of indices, with `other` in the place of `x`."""
    return map_loads(e, lambda y: other if y == x else place(y, env))


def _at(s: Step, target: Load) -> Mapping[str, Affine]:
    """The values of the indices of `s` at the element `target`.

    Raises  _StrangeError, if these do not say them all.
    """
    env = {}
    for p, q in zip(s.target.index, target.index, strict=True):
        if not isinstance(p, Affine) or not isinstance(q, Affine) or not p.name or p.name in env:
            raise _StrangeError(f"{s.target} is not written plainly")
        env[p.name] = q
    return env


def _is_whole(op: Op, s: Step) -> bool:
    """Whether `s` goes over all elements of its target."""
    ends = {r.index: (r.lower, r.upper) for r in s.ranges}
    shape = op.tensor(s.target.source).shape
    return not s.where and all(isinstance(p, Affine) and ends.get(p.name or "") == (Affine(), n)
                               for p, n in zip(s.target.index, shape, strict=True))
