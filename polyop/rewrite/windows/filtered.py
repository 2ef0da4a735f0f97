"""The steps of sums over windows that take fewer multiplications: see `winograd.py` for when, and `toom.py` for the matrices.

    Y[b, p, q, k] += X[b, p + r - 1, q + s - 1, c] * F[r, s, c, k]      becomes, with p = m (U g + u) + i and q = m t + j,

    W[e, f, c, k]             = sums of F, with G along s and then r                                once for all images
    x[b, g, f, z, t, c]       = sums of X[b, m U g + z - 1, m t + .. - 1, c], with B                rows z of block g
    V[b, g, e, f, u, t, c]    = sums of x[b, g, f, m u + .., t, c], with B
    M[b, g, e, f, u, t, k]   += V[b, g, e, f, u, t, c] * W[e, f, c, k]                              products of matrices
    N[b, g, i, f, u, t, k]    = sums of M, with A
    Y[b, m (U g + u) + i, m t + j, k] = sums of N, with A

Points e and f are numbers everywhere but in the product, so there is a step for each. A block has U tiles along the outermost
window: what is made for them stays in a cache, since loops over b and g go around it (`poly/schedule/batches.py`). Where the
image does not lie along c, or the result along k, blocks are turned on the way. What takes the sum on, as a bias and an
activation do, is done with each result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from polyop.cached import cached_property
from polyop.ir.dtypes import DType
from polyop.ir.expr import (
    Affine,
    Apply,
    Const,
    Expr,
    Load,
    Position,
    Test,
    affine,
    expr_names,
    loads,
    map_loads,
    names,
    place,
    quasi,
    substitute_expr,
)
from polyop.ir.op import Op, Range, Step, Tensor
from polyop.rewrite.folds import is_box, plain_indices
from polyop.rewrite.inline import converted
from polyop.rewrite.names import all_names, fresh
from polyop.rewrite.windows.filterblocks import blocks_of
from polyop.rewrite.windows.toom import Matrix, matrices
from polyop.rewrite.windows.winograd import Filter, Way, find_filters

Element = Callable[[Mapping[str, Affine]], Expr]
"""An element of something, given other positions for some of its indices."""


def filtered(op: Op, ways: Sequence[Way]) -> Op:
    """`op`, the extents of whose windows are numbers, with these of its sums computed so."""
    for s, w in [(op.steps[w.number], w) for w in ways]:  # each rewrite gives steps other numbers
        op, sum_ = _with_one_taker(op, s)
        f = next(f for f in find_filters(op) if op.steps[f.number] is sum_)
        op = _Making(op, f, w, all_names(op)).op_made
    return op


def _with_one_taker(op: Op, s: Step) -> tuple[Op, Step]:
    """`op`, in which a sum `s` to which others add single terms, as biases, has a temporary of its own, and that sum; what adds
    them takes it.
    """
    others = [x for x in op.steps_of(s.target.source) if x is not s]
    if not others:
        return op, s
    own = Tensor(fresh(f"{s.target.source}_alone", all_names(op)), s.target.dtype, op.tensor(s.target.source).shape, "temp")
    sum_ = replace(s, target=replace(s.target, source=own.name))
    total: Expr = sum_.target
    for x in others:
        env = {i: p for i, p in zip(plain_indices(x.target) or (), s.target.index, strict=True) if isinstance(p, Affine)}
        total = Apply("add", (total, substitute_expr(x.expr, env)), s.target.dtype)
    kept = tuple(r for r in s.ranges if affine(r.index) in s.target.index)
    whole = Step(s.target, None, total, kept, (), s.span)
    steps = tuple(y for x in op.steps for y in ((sum_, whole) if x is s else () if x in others else (x,)))
    return replace(op, tensors=(*op.tensors, own), steps=steps), sum_


def _taker(op: Op, s: Step) -> Step | None:
    """What alone takes on the temporary that `s` makes, element by element, if that is one step."""
    name = s.target.source
    readers = [x for x in op.steps if any(y.source == name for y in x.reads)]
    if op.tensor(name).role != "temp" or len(readers) != 1:
        return None
    (x,) = readers
    at = {plain_indices(y) for y in x.reads if y.source == name}
    kept = plain_indices(x.target)
    only = next(iter(at)) if len(at) == 1 else None
    if x.reduce is not None or x.where or not only or not kept or not is_box(op, x):
        return None
    if not {*kept} == {*only} == {*x.indices}:
        return None
    shape = dict(zip(only, op.tensor(name).shape, strict=True))
    whole = all(r.upper == shape[r.index] for r in x.ranges)
    return x if whole and not any(y.source == x.target.source for y in x.reads) else None


@dataclass(eq=False)
class _Making:
    """One filter's steps on their way. Of each window there are `points`, `places` of elements, and `seats` of results."""

    op: Op
    f: Filter
    way: Way
    taken: set[str]

    def __post_init__(self) -> None:
        f = self.f
        self.step = self.op.steps[f.number]
        self.base, self.dtype = self.step.target.source, self.step.target.dtype
        self.tensors, self.steps = list[Tensor](), list[Step]()
        tiles, self.points, self.places, self.seats = ([fresh(f"{w.along}_{what}", self.taken) for w in f.windows]
                                                       for what in ("tile", "point", "place", "seat"))
        self.blocks = blocks_of(f, self.way, tiles, {n: fresh(n, self.taken) for n in ("block", "image", "line")})
        self.tiles = tuple(self.blocks.tiles)
        self.around = (*f.groups, *(i for i in f.rows if i != self.blocks.cut), self.blocks.counter)
        self.widths = [m + w.extent.const - 1 for m, w in zip(self.way.results, f.windows, strict=True)]
        self.matrices = [matrices(m, w.extent.const) for m, w in zip(self.way.results, f.windows, strict=True)]
        each = zip(self.blocks.tiles.values(), self.way.results, self.widths, self.points, self.seats, self.places, strict=True)
        self.extents = {**f.extents, **self.blocks.extents}
        for t, m, n, point, seat, at in each:
            self.extents |= {point: affine(n), seat: affine(m), at: t * m + (n - m)}

    @cached_property
    def op_made(self) -> Op:
        weights = self.weights()  # first, so that nothing stands between the steps that share loops
        self.results(self.products(self.image(), weights))
        gone = {self.base} - {self.end.target.source}
        behind = self.taker or self.step
        steps = tuple(y for x in self.op.steps for y in (self.steps if x is behind else () if x is self.step else (x,)))
        tensors = (*(t for t in self.op.tensors if t.name not in gone), *self.tensors)
        return replace(self.op, tensors=tensors, steps=steps, facts=(*self.op.facts, *self.facts()))

    def facts(self) -> Iterator[Expr]:
        """That results which are said to be whole tiles are."""
        for w, m, is_whole in zip(self.f.windows, self.way.results, self.way.whole, strict=True):
            if is_whole:
                yield Test((quasi("mod", w.results, affine(m)) * -1,))

    # --- words for steps
    def ranges(self, *indices: str) -> tuple[Range, ...]:
        return tuple(Range(i, Affine(), self.extents[i]) for i in indices)

    def temp(self, what: str, indices: Sequence[str], **extents: Affine) -> Tensor:
        """A temporary with a dimension for each of `indices`, whose extents are as usual or given."""
        shape = tuple(extents.get(i, self.extents[i]) for i in indices)
        t = Tensor(fresh(f"{self.base}_{what}", self.taken), self.dtype, shape, "temp")
        self.tensors.append(t)
        return t

    def put(self, t: Tensor, index: Sequence[Position], e: Expr, ranges: Sequence[Range], where: Sequence[Affine] = ()) -> None:
        tests = (Test(tuple(where)),) if where else ()
        self.steps.append(Step(Load(t.name, tuple(index), t.dtype), None, e, tuple(ranges), tests, self.step.span))

    def each(self, what: str, of: Element, rows: Matrix, along: str, start: Affine, new: str, before: Sequence[str],
             behind: Sequence[str], where: Sequence[Affine] = (), is_operand: bool = False) -> Element:
        """A temporary with a dimension `new` between others, for each of `rows` a step; its elements.

        That of a row is { row . (the elements of `of` at { along = start + k }, k = 0, 1, ..) }. Operands have lines.
        """
        dims = self.blocks.of_operands(behind) if is_operand else tuple(behind)
        t, env = self.temp(what, (*before, new, *dims)), self.blocks.places()
        for i, row in enumerate(rows):
            terms = [of({along: start + k}) for k in range(len(row))]
            self.put(t, [*map(affine, before), affine(i), *(env.get(n, affine(n)) for n in dims)], _sum(row, terms, self.dtype),
                     self.ranges(*before, *behind), where)
        return _element(t, (*before, new, *dims))

    # --- operands
    def weights(self) -> Element:
        """{ W[groups, points, added, columns] }."""
        f, overs, own = self.f, [w.over for w in self.f.windows], (*self.f.added, *self.f.columns)
        (read,) = loads(f.weights)
        now = self.given(f.weights)
        if read.index[-1] != affine(f.columns[-1]):
            indices = (*f.groups, *overs, *own)
            t = self.temp("weights", indices)
            self.put(t, list(map(affine, indices)), now({}), self.ranges(*indices))
            now = _element(t, indices)
        for n in reversed(range(len(overs))):
            now = self.each(f"weights_{overs[n]}", now, self.matrices[n].weights, overs[n], Affine(), self.points[n], f.groups,
                            (*self.points[n + 1:], *overs[:n], *own))
        return now

    def given(self, e: Expr) -> Element:
        """Elements of an operand as the text has it."""
        return lambda env: converted(substitute_expr(e, env), self.dtype)

    def image(self) -> Element:
        """{ V[groups, rows, block, points, tiles, added] }."""
        f = self.f
        (read,) = loads(f.image)
        last = read.index[-1]
        m, image = self.way.results[0], self.blocks.images
        far = self.blocks.inside() if image else (
            self.blocks.count * m + (self.widths[0] - m - 1) - self.blocks.start() - affine(self.places[0]),)
        now = self.placed(read)
        if not (isinstance(last, Affine) and last.name in f.added):
            indices = (*self.around, *image, *self.places, *f.added)
            t = self.temp("image", indices)
            self.put(t, list(map(affine, indices)), now({}), self.ranges(*indices), far)
            now = _element(t, indices)
        for n in reversed(range(len(f.windows))):
            now = self.each(f"image_{f.windows[n].along}", now, self.matrices[n].elements, self.places[n],
                            affine(self.tiles[n]) * self.way.results[n], self.points[n], self.around,
                            (*self.points[n + 1:], *image, *self.places[:n], *self.tiles[n:], *f.added),
                            far if n else self.blocks.inside(), is_operand=n == 0)
        return now

    def placed(self, read: Load) -> Element:
        """Elements of the image, by their places in a block."""
        def element(env: Mapping[str, Affine]) -> Expr:
            at = self.blocks.whole({w.along: env.get(p, affine(p)) for w, p in zip(self.f.windows, self.places, strict=True)})
            first = {w.over: affine(0) for w in self.f.windows}
            return converted(self.guarded(substitute_expr(self.f.image, at | first), read), self.dtype)

        return element

    def guarded(self, e: Expr, read: Load) -> Expr:
        """`e`, which reads the image, and 0 where the last tile goes on beyond it."""
        shape, overs = self.op.tensor(read.source).shape, {w.over for w in self.f.windows}
        windows = [d for d, p in enumerate(read.index) if isinstance(p, Affine) and names(p) & overs]

        def inside(x: Load) -> Expr:
            tests = (t for d in windows if isinstance(p := x.index[d], Affine) for t in (p, shape[d] - 1 - p))
            return replace(x, guard=tuple(dict.fromkeys((*x.guard, *tests))))

        return map_loads(e, inside)

    # --- results
    def products(self, image: Element, weights: Element) -> Element:
        indices = (*self.around, *self.points, *self.blocks.of_operands(self.blocks.lines), *self.f.columns)
        t = self.temp("products", indices)
        self.put(t, list(map(affine, indices)), Apply("mul", (image({}), weights({})), self.dtype),
                 self.ranges(*indices, *self.f.added), self.blocks.inside_of_operands())
        self.steps[-1] = replace(self.steps[-1], reduce=self.step.reduce)
        here = self.blocks.places()
        return lambda env: _element(t, indices)({**here, **env})

    def results(self, now: Element) -> None:
        """What was summed up, or made of it, in its place."""
        f, last = self.f, len(self.f.windows) - 1
        for n in range(last):
            now = self.each(f"products_{f.windows[n].along}", now, self.matrices[n].results, self.points[n], Affine(),
                            self.seats[n], (*self.around, *self.seats[:n]),
                            (*self.points[n + 1:], *self.blocks.lines, *f.columns), self.blocks.inside())
        own = [affine(t) * m + (affine(i) if n < last else 0)
               for n, (t, m, i) in enumerate(zip(self.tiles, self.way.results, self.seats, strict=True))]
        head = (*self.around, *self.blocks.images)
        ranges = self.ranges(*self.around, *self.seats[:last], *self.blocks.lines, *f.columns)
        copy = self.temp("block", (*head, *self.places, *f.columns), **self.spans()) if self.is_turned else None
        for k, row in enumerate(self.matrices[last].results):
            at = [*own[:last], own[last] + k]
            e = _sum(row, [now({self.points[last]: affine(i)}) for i in range(len(row))], self.dtype)
            env = self.blocks.whole({w.along: x for w, x in zip(f.windows, at, strict=True)})
            where = [w.results - 1 - env[w.along] for w, is_whole in zip(f.windows, self.way.whole, strict=True)
                     if not is_whole or w.along == self.blocks.cut]
            where += self.blocks.inside() if self.blocks.image else ()
            e = self.ended(e, env) if self.is_early or not copy else e
            if copy:
                self.put(copy, [*map(affine, head), *at, *map(affine, f.columns)], e, ranges, where)
            else:
                self.put(self.op.tensor(self.end.target.source), place(self.end.target, env).index, e, ranges, where)
        if copy:
            self.turned(copy, head)

    def spans(self) -> dict[str, Affine]:
        """The results of a block along each window, by its places."""
        first = affine(self.way.block * self.way.results[0])
        return {p: first if w.along == self.blocks.cut else w.results for p, w in zip(self.places, self.f.windows, strict=True)}

    def turned(self, copy: Tensor, head: Sequence[str]) -> None:
        """The results of a block, from a copy that lies along columns."""
        f, end = self.f, self.end
        places = {w.along: p for w, p in zip(f.windows, self.places, strict=True)}
        env = self.blocks.whole({i: affine(p) for i, p in places.items()})
        read = _element(copy, (*head, *self.places, *f.columns))({})
        spans, order = self.spans(), [p.name or "" for p in end.target.index if isinstance(p, Affine)]
        cut = (self.blocks.counter, self.blocks.image or places[self.blocks.cut])
        indices = [y for i in order for y in (cut if i == self.blocks.cut else (places.get(i, i),))]
        ranges = [Range(i, Affine(), spans.get(i, self.extents[i])) for i in indices]
        e = read if self.is_early else self.ended(read, env)
        where = self.blocks.inside() if self.blocks.image else (f.windows[0].results - 1 - env[self.blocks.cut],)
        self.put(self.op.tensor(end.target.source), place(end.target, env).index, e, ranges, where)

    @cached_property
    def taker(self) -> Step | None:
        return _taker(self.op, self.step)

    @cached_property
    def end(self) -> Step:
        """The last step of all that is done with a result, by the indices of the sum."""
        if self.taker is None:
            return self.step
        read = next(x for x in self.taker.reads if x.source == self.base)
        env = {p.name: q for p, q in zip(read.index, self.step.target.index, strict=True)
               if isinstance(p, Affine) and isinstance(q, Affine) and p.name}
        return replace(self.taker, target=place(self.taker.target, env), expr=substitute_expr(self.taker.expr, env))

    @cached_property
    def is_turned(self) -> bool:
        """Whether results do not lie along columns."""
        return self.end.target.index[-1] != affine(self.f.columns[-1])

    @cached_property
    def is_early(self) -> bool:
        """Whether what is done with a sum reads nothing along a window, so that it may be done before sums are turned."""
        others = [x for x in loads(self.end.expr) if x.source != self.base] if self.taker else []
        return not any(expr_names(x) & {w.along for w in self.f.windows} for x in others)

    def ended(self, e: Expr, env: Mapping[str, Affine]) -> Expr:
        """What becomes of the sum `e` of a result."""
        if self.taker is None:
            return e
        return map_loads(self.end.expr, lambda x: e if x.source == self.base else substitute_expr(x, env))


def _element(t: Tensor, indices: Sequence[str]) -> Element:
    return lambda env: Load(t.name, tuple(env.get(i, affine(i)) for i in indices), t.dtype)


def _sum(row: Sequence[Fraction], terms: Sequence[Expr], dtype: DType) -> Expr:
    """{ row . terms } without those that are 0, what is taken off behind what is added."""
    found: Expr | None = None
    for c, x in sorted(((c, x) for c, x in zip(row, terms, strict=True) if c), key=lambda y: y[0] < 0):
        y = x if abs(c) == 1 else Apply("mul", (Const(float(abs(c)), dtype), x), dtype)
        if found is None:
            found = y if c > 0 else Apply("neg", (y,), dtype)
        else:
            found = Apply("add" if c > 0 else "sub", (found, y), dtype)
    assert found is not None, "a row of zeros"
    return found
