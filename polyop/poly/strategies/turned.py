"""Strategy "turned": a recurrence along what has unit stride, for a vector of independent sequences at once.

    shell.. c_t n_c ( c_v ( n_p (turn) )   c_v ( n_i (statement) )   n_v ( c_p (unturn) )   c_v ( n_d (keep) ) )

    turn        in[n_p, c_v]            = X[c_t + c_v, n_c + n_p]           rows n_p: squares are transposed in registers; what
                                                                            lies along c, X[n, c], is read where it is
    statement   out[d + n_i, c_v]       = f(out[d + n_i - 1, c_v], in[n_i, c_v])                    in order
    unturn      Y[c_t + c_p, n_c + n_v] = out[d + n_v, c_p]                 lanes n_v: squares are transposed again
    keep        out[n_d, c_v]           = out[width + n_d, c_v]             the last d steps, which the next square reads

What other statements write before a sequence is fetched with its first square:  out[n_d, c_v] = Y[c_t + c_v, start - d + n_d]

Each sequence is computed in the order in which it is written down, so that rounding stays what it was. The results of a
square lie in work space, which stays in L1 however long sequences are. A step of one addition or multiplication gains only where
there are sequences enough in a call, and their results stay in L2 (`Options.abreast`). A vector at a time is best: two or four
gain where a step is long (log-sum-exp: a fifth, two fifths), and lose everywhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from polyop.ir.expr import Affine, Load, affine, loads, map_loads, names, substitute_expr
from polyop.ir.loops import Buffer, Kind, Space
from polyop.ir.scans import is_one_instruction
from polyop.poly.build import Axes, Builder, Home, Part, Plan, shared_out
from polyop.poly.schedule.nodes import Cluster, Group, Serial
from polyop.poly.scop import INIT, UPDATE, Stmt
from polyop.poly.strides import common_start, spacing
from polyop.poly.tiles import Axis, Band, Coord, bands


@dataclass(frozen=True, slots=True)
class TurnedStrategy:
    """`lane`: the class of the shell along which sequences lie side by side; `serial`: the class that runs in order."""

    lane: str
    serial: str
    lanes: int

    @property
    def inner(self) -> tuple[None, ...]:
        """No group has lanes of its own."""
        return ()

    def __str__(self) -> str:
        return f"turned: lanes {self.lane} x {self.lanes}, {self.serial} in order"


def choose(plan: Plan, cluster: Cluster) -> TurnedStrategy | None:
    """The strategy for a cluster that is one recurrence of one statement, if all has unit stride along it, or beside it."""
    match cluster.body:
        case (Serial(loop=serial, body=(Group(kept=(), reduced=()),), is_reversed=False),) if len(cluster.stmts) == 1:
            s = cluster.stmts[0]
        case _:
            return None
    d = dimension(plan, s, serial)
    if plan.target.warp or s.kind in (INIT, UPDATE) or d is None or plan.scop.op.tensor(s.target.source).role == "temp":
        return None
    if is_one_instruction(s.expr) and not plan.options.abreast:  # its steps wait for each other less long than turning takes
        return None
    own = plan.classes[s.name]
    beside = [own[p.name] for p in s.target.index if isinstance(p, Affine) and p.name and own.get(p.name) in cluster.shell]
    if has_guards(s) is None or not beside or any(not (runs_back(s, x, d) if x.source == s.target.source else
                              turns(plan, s, x, serial) or lies_so(plan, s, x, beside[-1])) for x in loads(s.expr)):
        return None
    lanes = plan.target.lanes(plan.lane_bytes)
    if not has_guards(s) and steps_back(s, d) > lanes:  # then a square is too short to keep what it was given
        return None
    return TurnedStrategy(beside[-1], serial, lanes)


def dimension(plan: Plan, s: Stmt, serial: str) -> int | None:
    """The dimension of the target of `s` that the loop `serial` runs along, if it has unit stride and is just that iterator."""
    own = plan.classes[s.name]
    if spacing(plan, s, s.target, serial) != 1:
        return None
    return next((d for d, p in enumerate(s.target.index) if isinstance(p, Affine) and own.get(p.name or "") == serial), None)


def runs_back(s: Stmt, load: Load, d: int) -> bool:
    """Whether `load` is of an earlier place of the same sequence: Y[c, n - 2]."""
    for k, (p, q) in enumerate(zip(load.index, s.target.index, strict=True)):
        if not (isinstance(p, Affine) and isinstance(q, Affine)) or not (p - q == Affine() or (k == d and (p - q).is_constant)):
            return False
    return True


def steps_back(s: Stmt, d: int) -> int:
    """How far back in its sequence the elements lie that `s` reads, at most."""
    places = ((s.target.index[d], x.index[d]) for x in loads(s.expr) if x.source == s.target.source)
    return max((p - q).const for p, q in places if isinstance(p, Affine) and isinstance(q, Affine))


def has_guards(s: Stmt) -> bool | None:
    """Whether nothing is before a sequence of `s`; False, if other statements write that; None, if it is unclear."""
    guarded = {bool(x.guard) for x in loads(s.expr) if x.source == s.target.source}
    return guarded.pop() if len(guarded) == 1 else None


def turns(plan: Plan, s: Stmt, load: Load, serial: str) -> bool:
    """Whether `load` stays where it is along the loop, or runs with it in unit steps and is read at each of them."""
    step = spacing(plan, s, load, serial)
    own = plan.classes[s.name]
    along = [p for p in load.index if isinstance(p, Affine) and any(own.get(i) == serial for i in names(p))]
    return step == 0 or (step == 1 and not load.guard and all(own.get(p.name or "") == serial for p in along))


def lies_so(plan: Plan, s: Stmt, load: Load, lane: str) -> bool:
    """Whether `load` lies along the lanes as it is: { Y[c, n] = Y[c, n - 1] + X[n, c] }."""
    return spacing(plan, s, load, lane) == 1 and not load.guard


def build(plan: Plan, cluster: Cluster, outer: Axes, strategy: TurnedStrategy) -> Part:
    """The part of the tile program for `cluster` inside the loops `outer`."""
    s, c, n, width = cluster.stmts[0], strategy.lane, strategy.serial, strategy.lanes
    d = dimension(plan, s, n)
    assert d is not None
    axes = dict(outer)
    around = [o for o in cluster.shell if o != c]
    axes |= {o: Axis((Coord(o),)) for o in around}
    first, start = common_start(plan, (s,), c, axes), common_start(plan, (s,), n, axes)

    def inside(lane: str, step: str) -> Axes:
        return {**axes, c: Axis((Coord(f"{c}_t", width), Coord(f"{c}_{lane}", 1, width)), first),
                n: Axis((Coord(f"{n}_c", width), Coord(f"{n}_{step}", 1, width)), start)}

    t = plan.scop.op.tensor(s.target.source)
    back = steps_back(s, d)
    dims = ((affine(back + width), 1), (affine(width), 1))
    out = Buffer(f"{plan.stems[t.name]}_turned", t.dtype, dims, Space.WORK, private=True)
    dropped = tuple(k != d for k in range(len(t.shape)))
    b = Builder(plan, cluster, {t.name: Home(out, dropped, (f"{c}_v",))})
    b.buffer(out)
    loops = (*outer, *around, c, n)
    turned: dict[Load, Load] = {}
    packs: list[Band | str] = []
    for x in loads(s.expr):
        if x.source != t.name and x not in turned and spacing(plan, s, x, n) == 1:
            here = Load(f"{plan.stems[x.source]}_turned{len(turned)}", (affine(f"{n}_p"), affine(f"{c}_v")), x.dtype)
            b.buffer(Buffer(here.source, x.dtype, ((affine(width), 1), (affine(width), 1)), Space.WORK, private=True))
            at = inside("v", "p")
            name = b.move(f"{s.name}_turn{len(turned)}", s, at, loops, here, b.located(s, x, at))
            packs += bands((f"{c}_v", f"{n}_p"), name)
            turned[x] = Load(here.source, (affine(f"{n}_i"), affine(f"{c}_v")), x.dtype)

    def beside(x: Load, at: Axes, lane: str) -> Load:
        """Where `x`, an element of the result, lies while its square is computed; in the iterators of `s`."""
        found = Home(out, dropped, (lane,)).place(x, s, plan, at)
        assert isinstance(found.index[0], Affine)
        return replace(found, index=(found.index[0] - start - affine(f"{n}_c") + back, *found.index[1:]))

    def place(x: Load, at: Axes, lane: str) -> Load:
        found = substitute_expr(beside(x, at, lane), plan.values(s, at))
        assert isinstance(found, Load)
        return found

    if not has_guards(s):
        at = {**inside("v", "i"), n: Axis((Coord(f"{n}_c", width),), start)}
        by = affine(f"{n}_d") - back
        index = tuple(p + by if k == d and isinstance(p, Affine) else p for k, p in enumerate(s.target.index))
        found, here = (substitute_expr(replace(s.target, index=index), plan.values(s, at)), place(s.target, at, f"{c}_v"))
        fetched = replace(here, index=(affine(f"{n}_d"), *here.index[1:]))
        name = b.move(f"{s.name}_fetch", s, at, loops, fetched, found, extra=(Coord(f"{n}_d", 1, back),), only=(f"{n}_c = 0",))
        packs += bands((f"{c}_v", f"{n}_d"), name)

    at = inside("v", "i")
    value = map_loads(s.expr, lambda x: turned.get(x) or (beside(x, at, f"{c}_v") if x.source == t.name else x))
    value = substitute_expr(value, plan.values(s, at))
    step = bands((f"{c}_v", f"{n}_i"), b.compute(s, at, loops, place(s.target, at, f"{c}_v"), value))
    turn = inside("p", "v")
    target = substitute_expr(s.target, plan.values(s, turn))
    assert isinstance(target, Load)
    unturn = b.move(f"{s.name}_unturn", s, turn, loops, target, place(s.target, turn, f"{c}_p"))
    last = {**at, n: Axis((Coord(f"{n}_c", width), Coord(f"{n}_d", 1, back)), start + (width - back))}
    kept = place(s.target, last, f"{c}_v")
    keep = b.move(f"{s.name}_keep", s, last, loops, replace(kept, index=(affine(f"{n}_d"), *kept.index[1:])), kept)
    serial = [*around, f"{c}_t"]
    b.kinds |= {f"{c}_v": (Kind.LANES, width), f"{n}_p": (Kind.ROWS, width), f"{n}_v": (Kind.LANES, width),
                f"{c}_p": (Kind.ROWS, width)} | shared_out(plan, serial, 1 if len(serial) > 2 else 0)
    after = (*bands((f"{n}_v", f"{c}_p"), unturn), *bands((f"{c}_v", f"{n}_d"), keep))
    return b.part(bands((*serial, f"{n}_c"), *packs, *step, *after))
