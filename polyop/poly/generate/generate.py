"""Tile program -> LoopNest: isl's AST generator writes the loops, this file renames them and fills in the stores.

isl could write all loops of a program in one go, and in the same words; but it looks at every loop with all that is inside,
so its time grows with the square of the depth. It is asked part by part instead: first for the loops around everything, with
one statement that stands for the inside; then for the inside, where the loops around are parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import groupby

import islpy as isl

from polyop.ir.errors import InternalError, UnsupportedError
from polyop.ir.expr import Affine, Quasi, affine, names, place, quasi, substitute, substitute_expr
from polyop.ir.loops import COUNTED, LOCKSTEP, For, If, Kind, Node, Store
from polyop.poly.generate.asked import LostError, asked, numbering
from polyop.poly.generate.free import Free, first_place, free, without
from polyop.poly.generate.isl_ast import E, N, cases, end, index, rescale, statements
from polyop.poly.generate.parts import Part, as_parameters, leaves, without_ends
from polyop.poly.sets import IN, OUT, SET
from polyop.poly.tiles import Band, TileProgram, order


def generate(p: TileProgram, head: str) -> tuple[Node, ...]:
    """The body of the nest that `p` stands for.

    Raises  UnsupportedError, if a lock-step loop comes out with a start other than 0, or bounds that differ by lane.
    """
    schedule = order(p)
    maps = schedule.schedule.get_map_list()
    times = {m.get_tuple_name(IN) or "": m for m in (maps.get_at(i) for i in range(maps.n_map()))}
    try:
        return _Writer(p, schedule.times, schedule.steps).sequence(Part(times, p.tree, 0, p.context), _Around({}, {}))
    except LostError as lost:
        return generate(asked(p, lost, head), head)


@dataclass(frozen=True)
class _Around:
    """What is known of the loops around.

    env     iterator of a loop that isl dropped -> its value
    coord   iterator of isl -> our coordinate, of which it counts the steps
    locked  the coordinates that run in lock step
    one     what the text of one statement is about, see `ONE`
    freed   the loops of that one which isl does not write, see `free.py`; free: those that are yet to be written
    """

    env: dict[str, Affine]
    coord: dict[str, str]
    locked: frozenset[str] = frozenset()
    one: str = ""
    freed: tuple[Free, ...] = ()
    free: tuple[Free, ...] = ()


ONE = "#one"
"""A statement that is written alone: of those that run at the same times, one after the other, isl writes the loops once."""


def iterator(at: int) -> str:
    """isl's name for place `at` of the time; no size is called so."""
    return f"#{at}"


class _Writer:
    """The walk over the parts and isl's AST of each; `inside` has the part that each stand-in stands for."""

    def __init__(self, p: TileProgram, times: dict[str, tuple[str, ...]], steps: dict[str, int]) -> None:
        self.stmts = {s.name: s for s in p.stmts}
        self.times, self.steps = dict(times), steps
        self.kinds = {c: (kind, extent) for c, kind, extent in p.kinds}
        self.weights = dict(p.weights)
        self.numbering = {s.name: numbering(s, self.kinds, p.buffers) for s in p.stmts} if p.weights else {}
        self.rows = {} if p.weights else {s.name: numbering(s, self.kinds, p.buffers, LOCKSTEP) for s in p.stmts}
        self.inside: dict[str, Part] = {}
        self.written: dict[tuple[tuple[int, ...], int], list[tuple[isl.Map, isl.Set, isl.AstNode]]] = {}

    def sequence(self, p: Part, w: _Around) -> tuple[Node, ...]:
        """Items in order. One that always runs is written alone; others may share tests with their neighbours.

        So is, among threads, one that holds several statements: what it shares is not worth a copy of all of them for each case.
        """
        if len(p.tree) == 1:
            return self.item(p, w)
        out: tuple[Node, ...] = ()
        for always, run in groupby(p.tree, lambda x: (self.weights and len(leaves((x,))) > 1) or p.only((x,)).runs_always):
            tree = tuple(run)
            for part in [p.only((x,)) for x in tree] if always else [p.only(tree)]:
                if len(part.tree) == 1:
                    out += self.alone(part, w)
                else:
                    out += self.tested(part, w) if self.weights else self.by_isl(part, w)
        return out

    def alone(self, p: Part, w: _Around) -> tuple[Node, ...]:
        """The one item of the part, which is not a part of a sequence any more."""
        return self.item(replace(p, at=p.at + 1, times={s: m.project_out(OUT, 0, 1) for s, m in p.times.items()}), w)

    def tested(self, p: Part, w: _Around) -> tuple[Node, ...]:
        """Items, some of which may not run, one by one behind the tests that all of them share, if there are such."""
        runs = p.runs if p.times else p.context
        if runs.n_basic_set() != 1 or runs.dim(isl.dim_type.div) or p.context.is_subset(runs):
            return tuple(n for x in p.tree for n in self.alone(p.only((x,)), w))
        name = f"#inside {len(self.inside)}"
        here = isl.Set.universe(p.context.get_space().add_dims(SET, 0)).set_tuple_name(name)
        self.inside[name] = replace(p, context=p.context.intersect(runs))
        self.times[name] = self.times[next(iter(p.times))][: p.at]
        times = {name: isl.Map.from_domain_and_range(here.intersect_params(runs), here.reset_tuple_id())}
        return self.by_isl(replace(p, times=times), w)

    def item(self, p: Part, w: _Around) -> tuple[Node, ...]:
        """The loops around all that is in the item, and in them the rest."""
        coords, tree = list[str](), p.tree
        while len(tree) == 1 and isinstance(tree[0], Band):
            coords.append(tree[0].coord)
            tree = tree[0].body
        if len(tree) == 1 or not coords or not p.times:
            return self.by_isl(p, w)
        depth = len(coords)
        ranges = [m.range().project_out(SET, depth, m.dim(OUT) - depth) for m in p.times.values()]
        outer = reduce(isl.Set.union, ranges).coalesce()
        if self.weights and outer.n_basic_set() > 1 and all(c not in self.kinds for c in coords):
            # turns in which little happens, such as the first copy, are turns like others: no copy of all that is in the loop
            outer = outer.simple_hull().to_set()
        if outer.n_basic_set() != 1 or outer.dim(isl.dim_type.div):
            return self.by_isl(p, w)
        name = f"#inside {len(self.inside)}"
        outer = outer.set_tuple_name(name)
        iterators = [iterator(p.at + i) for i in range(depth)]
        context = p.context.intersect(as_parameters(isl.Map.from_domain(outer), IN, iterators).params())
        times = {s: as_parameters(m, OUT, iterators) for s, m in p.times.items()}
        self.inside[name] = Part(times, tree, p.at + depth, context)
        self.times[name] = (*self.times[next(iter(p.times))][: p.at], *coords)
        return self.by_isl(replace(p, times={name: outer.identity().reset_tuple_id(OUT)}), w)

    def by_isl(self, p: Part, w: _Around) -> tuple[Node, ...]:
        """All of the part as isl writes it."""
        if not p.times:
            return ()
        times = without_ends(tuple(p.times.values()))
        places = tuple(range(p.at, p.at + times[0].dim(OUT)))
        if len(times) > 1:
            return self.body(self.ast(p, times, places), replace(w, freed=()))
        one = next(iter(p.times))
        coords = [c.name for c in self.stmts[one].coords] if one in self.stmts else [*self.times[one][p.at :]]
        found = free(times[0], p.at, [coords.index(c) if c in coords else -1 for c in self.times[one][p.at : p.at + len(places)]])
        alone = without(times[0], found, p.at).set_tuple_name(IN, ONE)
        places = tuple(k for k in places if k not in {f.place for f in found})
        alike = self.written.setdefault((places, hash(alone)), [])
        ast = next((n for m, c, n in alike if m.plain_is_equal(alone) and c.plain_is_equal(p.context)), None)
        if ast is None:
            ast = self.ast(p, (alone,), places)
            alike.append((alone, p.context, ast))
        return self.body(ast, replace(w, one=one, freed=found, free=found))

    def ast(self, p: Part, times: tuple[isl.Map, ...], places: Sequence[int]) -> isl.AstNode:
        """The loops of `times`, at these places, inside the part's."""
        ids = isl.IdList.alloc(isl.DEFAULT_CONTEXT, len(places))
        for k in places:
            ids = ids.add(isl.Id(iterator(k)))
        schedule = reduce(isl.UnionMap.union, map(isl.UnionMap.from_map, times))
        return isl.AstBuild.from_context(p.context).set_iterators(ids).node_from_schedule_map(schedule)

    def name_of(self, call: isl.AstExpr, w: _Around) -> str:
        """The statement, or stand-in, that runs."""
        name: str = call.get_op_arg(0).get_id().get_name()
        return w.one if name == ONE else name

    def body(self, n: isl.AstNode, w: _Around) -> tuple[Node, ...]:
        if w.free and n.get_type() != N.if_ and ((k := first_place(n)) is None or k > w.free[0].place):
            return (self.counted(n, w),)
        match n.get_type():
            case N.block:
                items = n.block_get_children()
                return tuple(x for i in range(items.n_ast_node()) for x in self.body(items.get_at(i), w))
            case N.if_:
                return self.branch(n, w)
            case N.for_:
                return self.loop(n, w)
            case N.user:
                call = n.user_get_expr()
                part = self.inside.get(self.name_of(call, w))
                return self.sequence(part, self.within(part, call, w)) if part else (self.store(n, w),)
        raise InternalError(f"generate: unexpected AST node {n.get_type()}")

    def within(self, part: Part, call: isl.AstExpr, w: _Around) -> _Around:
        """`w` with the places around `part` for which isl has no loop, since it knows their one value: { k div 2 }."""
        args = self.arguments(call, w)
        found = {iterator(part.at - len(args) + i): x for i, x in enumerate(args)}
        fixed = {name: x for name, x in found.items() if name not in w.coord and name not in w.env and x != affine(name)}
        return replace(w, env=w.env | fixed) if fixed else w

    def arguments(self, call: isl.AstExpr, w: _Around) -> list[Affine]:
        """Counts of steps: the coordinates of a statement, or stand-in, where it runs."""
        out = [index(call.get_op_arg(i), w.env) for i in range(1, call.get_op_n_arg())]
        for f in sorted(w.freed, key=lambda f: f.arg):
            out.insert(f.arg, affine(iterator(f.place)))
        return out

    def scale(self, w: _Around) -> dict[str, tuple[str, int]]:
        return {i: (c, self.steps.get(c, 1)) for i, c in w.coord.items()}

    def branch(self, n: isl.AstNode, w: _Around) -> tuple[Node, ...]:
        """`if a or b { S } else { T }` becomes `if a { S } else { if b { S } else { T } }`: still one run of S."""
        other = self.body(n.if_get_else(), w) if n.if_has_else() else ()
        then = self.body(n.if_get_then(), w)
        scale = self.scale(w)
        for case in reversed(cases(n.if_get_cond(), w.env)):
            other = (If(tuple(rescale(t, scale, inequality=True) for t in case), then, other),)
        return other

    def counted(self, n: isl.AstNode, w: _Around) -> For:
        """The next of the loops that isl does not write, around all of `n`."""
        f, c = w.free[0], self.times[w.one][w.free[0].place]
        step, (kind, extent) = self.steps.get(c, 1), self.kinds.get(c, (Kind.SERIAL, None))
        inside = replace(w, free=w.free[1:], coord=w.coord | {iterator(f.place): c},
                         locked=w.locked | {c} if kind in LOCKSTEP else w.locked)
        return For(c, Affine(), affine(f.count * step), self.body(n, inside), step, kind, extent if kind in COUNTED else None,
                   self.weights.get(c, 0))

    def loop(self, n: isl.AstNode, w: _Around) -> tuple[Node, ...]:
        name = n.for_get_iterator().get_id().get_name()
        lower = index(n.for_get_init(), w.env)
        found = {self.times[w.one if s == ONE else s][int(name[1:])] for s in statements(n)}
        if len(found) != 1:
            raise InternalError(f"generate: one loop for several coordinates: {sorted(found)}")
        c = found.pop()
        step = self.steps.get(c, 1)
        kind, extent = self.kinds.get(c, (Kind.SERIAL, None))
        scale = self.scale(w)
        if n.for_is_degenerate():
            if c.isdigit() or kind not in COUNTED:
                if not c.isdigit() and names(lower) & w.locked:
                    raise UnsupportedError(f"loop {c} depends on what runs in lock step")
                return self.body(n.for_get_body(), replace(w, env=w.env | {name: lower}))
            upper = rescale(lower, scale) + 1
        else:
            condition = n.for_get_cond()
            last = index(condition.get_op_arg(1), w.env) - (1 if condition.get_op_type() == E.lt else 0)
            upper = rescale(end(last, step), scale)
        first = rescale(lower * step, scale)
        stride = 1 if n.for_is_degenerate() else n.for_get_inc().get_val().to_python()
        begins = kind in LOCKSTEP and not self.weights and first != Affine()  # at a point that is asked for inside
        if (names(upper) | (frozenset() if begins else names(first))) & w.locked and not self.weights:
            raise UnsupportedError(f"the bounds of {c} depend on what runs in lock step")
        if kind in COUNTED:
            if stride != 1 or (first != Affine() and not begins):
                raise UnsupportedError(f"the loop {c} over {kind} starts at {first}, not at 0")
            if n.for_is_degenerate() and extent is not None:
                upper = quasi("min", upper, affine(extent * step))
        locked = w.locked | {c} if kind in LOCKSTEP else w.locked
        inner = self.body(n.for_get_body(), replace(w, coord=w.coord | {name: c}, locked=locked))
        if begins:
            inner, first = (If(_from(c, first), inner, ()),), Affine()
        inner = _asked_inside(inner) if kind == Kind.THREADS else inner
        return (For(c, first, upper, inner, stride * step, kind, extent if kind in COUNTED else None, self.weights.get(c, 0)),)

    def store(self, n: isl.AstNode, w: _Around) -> Node:
        call = n.user_get_expr()
        s = self.stmts[self.name_of(call, w)]
        numbers = self.numbering.get(s.name, ())
        lost = tuple(c for c in numbers if c.name not in w.coord.values())
        if lost:
            raise LostError(s, lost)
        counts, scale = self.arguments(call, w), self.scale(w)
        rows = self.rows.get(s.name, ())
        for c, x in zip(s.coords, counts, strict=True):
            if c in rows and not x.is_constant and c.name not in w.coord.values():
                raise UnsupportedError(f"there is no loop {c.name}, whose only value is {x}")
        # whose registers these are the loop says, also where isl knows which of its values is the only one
        instance = tuple(affine(c.name) if c in (numbers if x.is_constant else rows) else rescale(x * c.step, scale)
                         for c, x in zip(s.coords, counts, strict=True))
        at = {c.name: x for c, x in zip(s.coords, instance, strict=True)}
        lift = tuple(substitute(x, at) for x in s.lift)
        store = Store(s.name, instance, s.origin, lift, place(s.target, at), s.reduce, substitute_expr(s.expr, at), later=s.later,
                      outlasts=s.outlasts)
        return If(tuple(substitute(t, at) for t in s.tests), (store,), ()) if s.tests else store


def _from(c: str, first: Affine) -> tuple[Affine, ...]:
    """`c >= first` as tests, which a loop from 0 asks where another would begin: what runs in lock step counts from 0."""
    one = first.terms[0][0] if len(first.terms) == 1 and not first.const and first.terms[0][1] == 1 else None
    bounds = one.args if isinstance(one, Quasi) and one.op == "max" else (first,)
    return tuple(affine(c) - b for b in bounds if b != Affine())


def _asked_inside(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """A test between two loops over threads asked inside of the inner one, since such loops nest directly.

        for n_v ( if n_v mod 4 < 2 ( for k_v ( S ) ) )      becomes      for n_v ( for k_v ( if n_v mod 4 < 2 ( S ) ) )
    """
    match body:
        case (If(tests=tests, then=(For(kind=Kind.THREADS) as inner,), other=()),):
            return (replace(inner, body=_asked_inside((If(tests, inner.body),))),)
    return body
