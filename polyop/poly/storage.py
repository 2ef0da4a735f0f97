"""Where temporaries lie that are not kept whole: in a home of their cluster, folded, or in the memory of another.

All of it is proposed here from the indices alone; whether each value is still there when it is read is for the checker to prove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from polyop.ir.loops import Buffer
from polyop.poly.blocks.lines import in_block
from polyop.poly.blocks.resident import Kept, kept
from polyop.poly.build import Plan
from polyop.poly.homes import global_buffers, is_local
from polyop.poly.schedule.fold import Folds, find_batches, find_folds, find_reuse, folded, folded_buffer, reused
from polyop.poly.schedule.nodes import Cluster, Node, Resident, Schedule, Serial, Shared
from polyop.poly.tiles import TileProgram


@dataclass(frozen=True, eq=False)
class Storage:
    """Which temporaries are not kept whole.

    local     those that one cluster alone uses, which gives them a home: see `build.find_homes`
    batches   those of which each thread keeps one batch or tile; folds: those of which some steps of a recurrence are kept
    reuse     temporary -> the one whose memory it takes
    blocks    for each node that a block of a GPU's threads has to itself, what that keeps
    """

    local: tuple[str, ...]
    batches: Folds
    folds: Folds = field(default_factory=dict)
    reuse: Mapping[str, str] = field(default_factory=dict)
    blocks: Mapping[Resident, Kept] = field(default_factory=dict)

    @property
    def inside(self) -> Folds:
        """What lies in the memory of a block."""
        return {t: x for k in self.blocks.values() for t, x in k.inside.items()}

    @property
    def kept(self) -> Folds:
        """tensor -> dimension -> how many of it are kept, for whatever reason."""
        return self.folds | self.batches | self.inside

    @property
    def is_plain(self) -> bool:
        """Whether all temporaries without a home are kept whole, and in memory of their own."""
        return not (self.folds or self.batches or self.reuse or self.blocks)

    def notes(self) -> tuple[str, ...]:
        """What is proposed, in words."""
        return (*(f"{t} is kept for {n} steps of dimension {d} only" for t, x in self.folds.items() for d, n in x.items()),
                *(f"one batch of {t} is kept at a time, by each thread" for t in self.batches),
                *(f"{t} takes the memory of {u}" for t, u in self.reuse.items()),
                *(f"{', '.join(k.inside)} never leave a block of threads" for k in self.blocks.values()))

    def applied(self, program: TileProgram) -> TileProgram:
        """`program` with each place in a temporary where that is kept."""
        return reused(folded(program, self.kept, self.inside), self.reuse)

    def buffers(self, plan: Plan) -> tuple[Buffer, ...]:
        """The tensors of the call, and work space for the temporaries without a home, as far as they are kept."""
        found = (folded_buffer(b, self.kept, self.batches) for b in global_buffers(plan, (*self.local, *self.reuse)))
        units = frozenset(t for k in self.blocks.values() for t in k.units)
        made = {t: a for k in self.blocks.values() for t, a in k.made.items()}
        inside = self.inside
        return tuple(in_block(b, inside[b.name], b.name in units, made.get(b.name), plan.target) if b.name in inside else b
                     for b in found)


def find_storage(plan: Plan, schedule: Schedule, fold: bool) -> Storage:
    """What may be kept in less memory; without `fold`, what `schedule` relies on only."""
    scop, clusters = plan.scop, tuple(clusters_of(schedule.nodes))
    blocks = {n: kept(plan, schedule, n) for n in schedule.nodes if isinstance(n, Resident)}
    inside = {t for k in blocks.values() for t in k.inside}
    temporaries = [t.name for t in scop.op.temporaries if t.name not in inside]
    local = tuple(t for t in temporaries if any(is_local(plan, c, t) for c in clusters))
    local += tuple(t for k in blocks.values() for t in k.held)
    found = Storage(local, find_batches(scop, schedule, local), blocks=blocks)
    if not fold:
        return found
    found = replace(found, folds=find_folds(scop, schedule, local))
    reuse = find_reuse(scop, clusters, local)
    return replace(found, reuse={t: u for t, u in reuse.items() if found.kept.get(t) == found.kept.get(u)})


def clusters_of(nodes: Iterable[Node]) -> list[Cluster]:
    """All clusters below `nodes`, in order."""
    out: list[Cluster] = []
    for n in nodes:
        if isinstance(n, Cluster):
            out.append(n)
        elif isinstance(n, Serial | Shared | Resident):
            out += clusters_of(n.body)
    return out
