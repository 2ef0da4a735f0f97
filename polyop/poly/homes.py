"""The storage of each tensor: temporaries of one cluster in registers or private rows, all others in memory of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from polyop.ir.expr import Affine, Load, affine
from polyop.ir.loops import Buffer, Space
from polyop.poly.build import Home, Plan
from polyop.poly.edges import single
from polyop.poly.schedule.nodes import Cluster, Group, Node, Serial
from polyop.poly.scop import MAP, Stmt


def is_local(plan: Plan, cluster: Cluster, tensor: str) -> bool:
    """Whether `cluster` alone writes and reads the temporary `tensor`, and each iteration of the loops around it for itself.

    What the next turn of a recurrence around the cluster reads would be gone with the thread that wrote it.
    """
    if plan.scop.op.tensor(tensor).role != "temp" or tensor in plan.inside:
        return False
    return set(plan.scop.users(tensor)) <= set(cluster.stmts) and not _is_handed_on(plan, cluster, tensor)


def _is_handed_on(plan: Plan, cluster: Cluster, tensor: str) -> bool:
    """Whether `tensor` has a dimension that runs along a loop around `cluster`, and in which some use is at another place."""
    own = {*cluster.shell, *_loops(cluster.body)}
    for d in range(len(plan.scop.op.tensor(tensor).shape)):
        at = [_class(plan, s, load, d) for s, load in uses(cluster, tensor)]
        if any(c and c not in own for c, _ in at) and any(c is None or c in own or step for c, step in at):
            return True
    return False


def _loops(body: Iterable[Node]) -> Iterator[str]:
    for x in body:
        if isinstance(x, Group):
            yield from (*x.kept, *x.reduced)
        elif isinstance(x, Serial):
            yield x.loop
            yield from _loops(x.body)


def find_homes(plan: Plan, cluster: Cluster, outer: tuple[str, ...], locked: tuple[tuple[str, int], ...],
               pad: int) -> dict[str, Home]:
    """A home for each temporary that only `cluster` uses: registers if it has one element per point, else a private row.

    Or the row of a result, if one takes it and `Options.lent` says so.
    """
    homes: dict[str, Home] = {}
    around = set(outer) | set(cluster.shell)
    for tensor in dict.fromkeys(s.target.source for s in cluster.stmts):
        t = plan.scop.op.tensor(tensor)
        if not is_local(plan, cluster, tensor):
            continue
        dropped = tuple(all(aligned(plan, s, load, d, around) for s, load in uses(cluster, tensor)) for d in range(len(t.shape)))
        lender = _lender(plan, cluster, tensor) if plan.options.lent and not locked else None
        if lender and not all(dropped):
            homes[tensor] = Home(_of_call(plan, lender), (False,) * len(t.shape), ())
            continue
        kept = tuple((e, 1) for e, gone in zip(t.shape, dropped, strict=True) if not gone)
        extra = tuple((affine(e), 1) for _, e in locked)
        stem = plan.stems[tensor]
        if kept:
            buffer = Buffer(f"{stem}_row", t.dtype, kept + extra, Space.WORK, pad=pad if not extra else 1, private=True)
        else:
            buffer = Buffer(f"{stem}_reg", t.dtype, extra, Space.REG)
        homes[tensor] = Home(buffer, dropped, tuple(c for c, _ in locked))
    return homes


def _lender(plan: Plan, cluster: Cluster, tensor: str) -> str | None:
    """The result in whose elements those of `tensor` may lie until it is written: nobody reads it, nobody else writes it, each of
    its elements is made of the one in its place, and all others that read `tensor` have done so in loops before.
    """
    op, t = plan.scop.op, plan.scop.op.tensor(tensor)
    if not all(isinstance(g, Group) for g in cluster.body):
        return None
    *before, last = [s for s in cluster.stmts if any(x.source == tensor for x in s.reads)]
    result = op.tensor(last.target.source)
    if (result.role, result.dtype, result.shape) != ("out", t.dtype, t.shape) or any(o == result.name for _, o in op.updates):
        return None
    if last.kind != MAP or plan.scop.users(result.name) != (last,) or len(plan.scop.writers(tensor)) != 1:
        return None
    here = {s.name: n for n, g in enumerate(cluster.body) if isinstance(g, Group) for s in g.stmts}
    early = all(here[s.name] < here[last.name] for s in before)
    return result.name if early and all(x.index == last.target.index for x in last.reads if x.source == tensor) else None


def uses(cluster: Cluster, tensor: str) -> list[tuple[Stmt, Load]]:
    """Every place of `tensor` that the cluster writes or reads."""
    out = [(s, s.target) for s in cluster.stmts if s.target.source == tensor]
    return out + [(s, r) for s in cluster.stmts for r in s.reads if r.source == tensor]


def aligned(plan: Plan, s: Stmt, load: Load, d: int, around: set[str]) -> bool:
    """Whether position `d` of `load` is just an iterator whose loop is around the whole cluster."""
    c, step = _class(plan, s, load, d)
    return not step and c in around


def _class(plan: Plan, s: Stmt, load: Load, d: int) -> tuple[str | None, int]:
    """The loop along which position `d` of `load` runs, and how far beside it; none, if it is no iterator alone."""
    p = load.index[d]
    i = single(p, s.dims) if isinstance(p, Affine) else None
    return (plan.classes[s.name].get(i), p.const) if i is not None and isinstance(p, Affine) else (None, 0)


def _of_call(plan: Plan, tensor: str) -> Buffer:
    t = plan.scop.op.tensor(tensor)
    unit = plan.layout.unit(t.name)
    table = dict(plan.options.tables).get(t.name, 0) if unit == 0 else 0
    return Buffer(t.name, t.dtype, tuple((e, 1) for e in t.shape), Space.TENSOR, unit=unit, table=table)


def global_buffers(plan: Plan, local: Iterable[str]) -> tuple[Buffer, ...]:
    """The tensors of the call, and work space for the temporaries that are used by more than one cluster."""
    op, gone = plan.scop.op, set(local)
    out = []
    for t in op.tensors:
        dims = tuple((e, 1) for e in t.shape)
        if t.role != "temp":
            out.append(_of_call(plan, t.name))
        elif t.name not in gone:
            out.append(Buffer(t.name, t.dtype, dims, Space.WORK))
    return tuple(out)
