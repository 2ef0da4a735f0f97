"""What stands between contractions on the registers in which a matrix unit leaves its results: rows of them never meet in memory.

    t! ( [i j : scores]  [i : maxima, powers]  [i v : sums] )      of `resident.py`, where i is a row and j a column of the scores

A warp has whole rows of the scores, 16 of them by m16n8k16, and its lanes hold their elements as the unit's map says. So do
registers for all that has an element for each (i, j); what has one for each i lies with all lanes that hold elements of that row.
What is done for each (i, j) is then a loop over the elements that a lane holds, what is done for each i is done by all lanes that
have the row, and a reduction over j is a part for each column of an atom, which is one for each element that a lane holds of it,
and a fold over the lanes that share a row:

    i_w (threads: a warp) ( part[i_p, j_p] = -inf   j_q ( part[i_p, j_p] max= s[j_q, i_p, j_p] )   top[i_p] max= part[i_p, j_p] )

What the next contraction reads by rows and along j is a tile of its left operand where it is, if the lanes that hold it have
what they take of an operand, one relation in another (`fragmentunits.py`). Of what the next turn needs, too, two are kept.

Source: Dao, "FlashAttention-2", 2023, for warps that have whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, Apply, Const, Load, affine, walk
from polyop.ir.loops import Buffer, Kind, Space
from polyop.poly.blocks.blocktile import StagedStrategy
from polyop.poly.blocks.fragmentunits import Strategies, holds_operand
from polyop.poly.blocks.sides import SideCut
from polyop.poly.blocks.staged import Cells, acc_name, names_of, sides_of
from polyop.poly.build import Axes, Builder, Home, Part, Plan
from polyop.poly.edges import single
from polyop.poly.schedule.nodes import Cluster, Group, Resident, Serial
from polyop.poly.scop import UPDATE, Stmt, everywhere
from polyop.poly.strides import common_start
from polyop.poly.tiles import Axis, Band, Coord, TileStmt, band


@dataclass(frozen=True, eq=False)
class Fragments:
    """The registers of a block's temporaries.

    down      how the rows of all contractions are cut; across: the columns of the first one
    warp      lanes that hold a tile together
    turn      the serial loop around
    cells     what other clusters must know of it
    operands  temporaries that a contraction takes for its left operand: beyond the end of its sum they must be 0
    """

    down: SideCut
    across: SideCut
    warp: int
    turn: str
    cells: Cells
    operands: frozenset[str]

    @property
    def row(self) -> tuple[Coord, ...]:
        """The coordinates of a row in a block."""
        return (*self.down.threads, *self.down.rows, *self.down.atom)

    @property
    def element(self) -> tuple[Coord, ...]:
        """Those of an element."""
        parts = ((x.threads, x.rows, x.atom) for x in (self.down, self.across))
        return tuple(c for pair in zip(*parts, strict=True) for side in pair for c in side)


def fragments(plan: Plan, node: Resident, serial: Serial, strategies: Strategies, held: frozenset[str]) -> Fragments:
    """Registers for all temporaries of `node` but those `held` with the last contraction's results.

    Raises  UnsupportedError, if one of them is no row and no matrix of such rows.
    """
    contractions = [(c, s) for c, s in zip(serial.body, strategies, strict=True) if isinstance(c, Cluster) and s]
    first = contractions[0][1]
    stem = node.tile[0]
    down, across = sides_of(plan, first, stem)
    if any(c.step != c.cap for c in across.threads):
        raise UnsupportedError("a row's columns are shared out to warps")
    assert first.atom
    made = Fragments(down, across, first.atom.warp, serial.loop, Cells(stem, across), frozenset())
    homes: dict[str, Home] = {}
    operands = set[str]()
    for tensor in dict.fromkeys(s.target.source for s in node.stmts):
        if plan.scop.op.tensor(tensor).role != "temp" or tensor in held or _is_summed(contractions[1:], tensor):
            continue
        homes[tensor] = _home(plan, node, serial, tensor, made, acc_name(plan, first.what.update))
    for _, s in contractions[1:]:
        for x in (*s.what.lefts, *s.what.rights):
            if x.source in homes:
                is_matrix = homes[x.source].locked == names_of(made.element)
                if x not in s.what.lefts or not is_matrix or not (s.atom and holds_operand(first.atom, s.atom)):
                    raise UnsupportedError(f"lanes do not hold {x} as an operand")
                operands.add(x.source)
    return replace(made, cells=Cells(stem, across, homes), operands=frozenset(operands))


def _coords(side: SideCut) -> tuple[Coord, ...]:
    return (*side.blocks, *side.threads, *side.rows, *side.atom)


def _is_summed(contractions: Sequence[tuple[Cluster, StagedStrategy]], tensor: str) -> bool:
    return any(s.what.update.target.source == tensor for _, s in contractions)


def _home(plan: Plan, node: Resident, serial: Serial, tensor: str, made: Fragments, acc: str) -> Home:
    """The registers of a temporary: for each row, or for each element."""
    t = plan.scop.op.tensor(tensor)
    back, is_matrix = 0, False
    for d in range(len(t.shape)):
        found = {_kind(plan, node, serial, s, x, d) for s, x in _uses(node, tensor)}
        is_matrix |= "column" in found
        if len({k for k in found if isinstance(k, str)}) + any(isinstance(k, int) for k in found) != 1:
            raise UnsupportedError(f"dimension {d} of {tensor} is no loop of the block")
        back = max(back, *(k for k in found if isinstance(k, int)), 0)
    if back > 1 or (back and is_matrix):
        raise UnsupportedError(f"{tensor} is read {back} turns later")
    locked = made.element if is_matrix else made.row
    first = next(s for s in serial.stmts if s.kind == UPDATE)
    name = acc if first.target.source == tensor else f"{plan.stems[tensor]}_reg"
    turns = ((affine(2), 1),) if back else ()
    buffer = Buffer(name, t.dtype, (*turns, *((affine(c.cap or 1), c.step) for c in locked)), Space.REG)
    return Home(buffer, (True,) * len(t.shape), names_of(locked), serial.loop if back else "")


def _uses(node: Resident, tensor: str) -> Iterator[tuple[Stmt, Load]]:
    for s in node.stmts:
        yield from ((s, x) for x in (s.target, *s.reads) if x.source == tensor)


def _kind(plan: Plan, node: Resident, serial: Serial, s: Stmt, x: Load, d: int) -> str | int:
    """What dimension `d` of `x` is: "around", "row", "column", or how many turns back it reads; behind the loop 0.

    Raises  UnsupportedError, if it is none of these.
    """
    p, own = x.index[d], plan.classes[s.name]
    i = single(p, s.dims) if isinstance(p, Affine) else None
    if i is not None and isinstance(p, Affine):
        if own[i] == serial.loop:
            return -p.const
        if own[i] in node.loops and not p.const:
            return "around"
        if own[i] in node.tile and not p.const:
            return "row"
        if s in serial.stmts and not p.const:
            return "column"
    if s not in serial.stmts:  # which turn that is, is for the checker to ask
        return 0
    raise UnsupportedError(f"`{x}` has no register of its own")


# --- the part ------------------------------------------------------------------------------------------------------------


def build(plan: Plan, cluster: Cluster, outer: Axes, f: Fragments) -> Part:
    """The part for a cluster of rows, inside the loops `outer`.

    Raises  UnsupportedError, if something in it is no row and no matrix of such rows.
    """
    writer = _Writer(plan, cluster, outer, f)
    return writer.part()


class _Writer:
    def __init__(self, plan: Plan, cluster: Cluster, outer: Axes, f: Fragments) -> None:
        self.plan, self.f, self.cluster = plan, f, cluster
        (self.row,) = cluster.shell
        self.axes: dict[str, Axis] = {**outer, self.row: Axis(_coords(f.down))}
        self.loops = (*outer, self.row)
        groups = [g for g in cluster.body if isinstance(g, Group)]
        if len(groups) < len(cluster.body):
            raise UnsupportedError("there is a recurrence inside")
        self.groups = groups
        cut = frozenset((self.row, *(c for g in groups for c in (*g.kept, *g.reduced))))
        self.b = Builder(plan, cluster, f.cells.homes, cut)
        written = {s.target.source for s in cluster.stmts}
        for t, h in f.cells.homes.items():
            if t in written:
                self.b.buffer(h.buffer)
        self.b.over_rows((*f.down.rows, *f.across.rows))
        self.b.kinds |= {c.name: (Kind.ATOM, c.cap) for c in (*f.down.atom, *f.across.atom)}
        self.b.over_threads((*f.down.threads, *f.across.threads), f.warp)

    def part(self) -> Part:
        tree = [x for g in self.groups for x in self.group(g)]
        once, early = (tuple(self.rooms()), tuple(self.before())) if self.f.turn in self.axes else ((), ())
        return replace(self.b.part(tree), once=once, early=early)

    def over_row(self, name: str) -> Band | str:
        return band(names_of(self.f.row), name)

    def over_element(self, name: str) -> Band | str:
        return band(names_of((*self.f.across.blocks, *self.f.element)), name)

    def group(self, g: Group) -> tuple[Band | str, ...]:
        columns = (*g.kept, *g.reduced)
        if len(columns) > 1:
            raise UnsupportedError(f"{' and '.join(columns)} are two columns")
        axes = dict(self.axes)
        around = {c: x for c, x in self.axes.items() if c != self.row}  # what a row sees does not move the unit's columns
        for c in columns:
            axes[c] = Axis(_coords(self.f.across), common_start(self.plan, g.stmts, c, around))
        every = (*self.loops, *columns)
        out: list[Band | str] = []
        for s in g.stmts:
            if s.kind == UPDATE and set(self.plan.classes[s.name].values()) & set(g.reduced):
                out += self.folded(s, axes, every)
            elif set(self.plan.classes[s.name].values()) & set(columns):
                out += self.cleared(s, axes) if s.target.source in self.f.operands else ()
                out.append(self.over_element(self.b.compute(s, axes, every)))
            else:
                out.append(self.over_row(self.b.compute(s, axes, self.loops)))
        return tuple(out)

    def folded(self, s: Stmt, axes: Axes, every: tuple[str, ...]) -> list[Band | str]:
        """A part for each column of an atom, then a fold: `part = identity; part op= e; total op= part`."""
        assert s.reduce is not None
        mine = (*self.f.row, *self.f.across.atom)
        name = f"{self.plan.stems[s.target.source]}_{s.name}_part"
        self.b.buffer(Buffer(name, s.target.dtype, tuple((affine(c.cap or 1), c.step) for c in mine), Space.REG))
        part = Load(name, tuple(affine(c.name) for c in mine), s.target.dtype)
        only = [f"0 <= {c.name} < {c.cap}" for c in self.f.across.atom]
        start = self.b.move(f"{s.name}_start", s, axes, self.loops, part, Const(s.reduce.identity, s.target.dtype),
                            extra=self.f.across.atom, only=only)
        total = self.b.place(s, s.target, axes)
        fold = self.b.move(f"{s.name}_fold", s, axes, self.loops, total, part, s.reduce, self.f.across.atom, only)
        update = self.over_element(self.b.compute(s, axes, every, target=part))
        return [band(names_of(mine), start), update, band(names_of(mine), fold)]

    def cleared(self, s: Stmt, axes: Axes) -> list[Band | str]:
        """0 in all columns of the rows of which `s` writes a part."""
        target = self.b.place(s, s.target, axes)
        own = self.plan.classes[s.name]
        known = {i: self.axes[c].value for i, c in own.items() if c in self.axes}
        outer = [c for i in s.dims if (q := own[i]) in self.axes and q != self.row for c in self.axes[q].coords]
        coords = (*outer, *self.f.down.blocks, *self.f.across.blocks, *self.f.element)
        name = f"{s.name}_clear"
        only = [f"{c.name} = 0" for c in self.f.across.blocks]
        domain = self.b.domain(name, s, known, coords, only)
        self.b.stmts.append(TileStmt(name, coords, domain, None, (), target, None, Const(0, target.dtype)))
        return [self.over_element(name)]

    def handed_on(self) -> Iterator[tuple[str, Stmt, Load, Load]]:
        """The temporaries written here of which the next turn reads this one's value: that and the one of the turn before."""
        for s in {x.target.source: x for x in self.cluster.stmts}.values():
            h = self.f.cells.homes.get(s.target.source)
            if h and h.turn:
                now, before = (Load(h.buffer.name, (affine(k), *map(affine, h.locked)), h.buffer.dtype) for k in (0, 1))
                yield self.plan.stems[s.target.source], s, now, before

    def before(self) -> list[Band | str]:
        """At the beginning of a turn: what was this turn's value is the one of the turn before."""
        return [self.over_row(self.b.move(f"{stem}_before", s, self.axes, self.loops, old, new))
                for stem, s, new, old in self.handed_on()]

    def rooms(self) -> list[Band | str]:
        """Ahead of all turns: first values, which no statement takes for its own; what it takes instead (`gpu/begun.py`)."""
        out: list[Band | str] = []
        for stem, s, new, _ in self.handed_on():
            axes = {c: x for c, x in self.axes.items() if c != self.f.turn}
            loops = [c for c in self.loops if c != self.f.turn]
            room = self.b.move(f"{stem}_room", everywhere(self.plan.scop, s), axes, loops, new, _entry(s))
            out.append(self.over_row(room))
        return out


def _entry(s: Stmt) -> Const:
    """What `s` takes in the first turn for what the one before has left."""
    for x in walk(s.expr):
        match x:
            case Apply(fn="select", args=(_, Load(source=source), Const() as c)) if source == s.target.source:
                return c
    return Const(0, s.target.dtype)
