"""LoopNest -> kernels and host plan: the plainest mapping of a nest to a GPU.

Each top-level node is one kernel launch. The PARALLEL loops directly nested from its top are flattened to one thread
index; everything below runs in the thread, one iteration after the other, which is what lock-step loops mean anyway. A
serial loop (or a test) that holds PARALLEL loops deeper down is carried out by the host. Neighbouring nodes with no
PARALLEL loop share one kernel of one thread. A loop over several kernels (`ir/abreast.py`) is one, whose blocks are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from polyop.ir.abreast import parts
from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import Affine, affine, bounds, loads, names, quasi
from polyop.ir.loops import For, If, Kind, LoopNest, Node, Space, Store, walk
from polyop.ir.module import HostIf, HostLoop, HostStep


@dataclass(frozen=True, slots=True)
class Axis:
    """A PARALLEL loop of a kernel: `count` points are launched; unless `exact`, those past the loop's end do nothing."""

    loop: For
    count: Affine
    exact: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Blocks of a kernel that do the same: `axes` from the outermost in, and the `body` of one thread."""

    axes: tuple[Axis, ...]
    body: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class KernelNest:
    """One kernel: its parts, whose blocks follow each other, and the host loop indices it may use."""

    name: str
    parts: tuple[Part, ...]
    host: tuple[str, ...]

    @property
    def body(self) -> tuple[Node, ...]:
        """What the threads of all parts do."""
        return tuple(n for p in self.parts for n in p.body)


@dataclass(frozen=True, slots=True)
class Start:
    """The place of a launch in a host plan whose kernels are not printed yet."""

    kernel: KernelNest


@dataclass(frozen=True, slots=True)
class Loop:
    loop: For
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    test: If
    then: tuple[Step, ...]
    other: tuple[Step, ...]


Step = Start | Loop | Choice


def split(nest: LoopNest) -> tuple[Step, ...]:
    """The host plan of `nest`.

    Raises UnsupportedError, if registers would have to live from one kernel to the next.
    """
    steps = _steps(nest.body, nest.name, (), [0])
    owners: dict[str, tuple[str, int]] = {}
    registers = {b.name for b in nest.buffers if b.space == Space.REG}
    for kernel in kernels(steps):
        for k, part in enumerate(kernel.parts):
            for name in sorted(used(part.body) & registers):
                first = owners.setdefault(name, (kernel.name, k))
                if first != (kernel.name, k):
                    raise UnsupportedError(f"{nest.name}: registers {name} are used by two kernels, {first[0]} and {kernel.name}")
    return steps


def kernels(steps: tuple[Step, ...]) -> tuple[KernelNest, ...]:
    """The kernels of a plan in text order."""
    out: list[KernelNest] = []
    for s in steps:
        match s:
            case Start(kernel=k):
                out.append(k)
            case Loop(body=body):
                out += kernels(body)
            case Choice(then=then, other=other):
                out += kernels(then + other)
    return tuple(out)


def plan(steps: tuple[Step, ...], launch: Mapping[str, HostStep]) -> tuple[HostStep, ...]:
    """The host plan, given the launch of each kernel by its name."""
    out: list[HostStep] = []
    for s in steps:
        match s:
            case Start(kernel=k):
                out.append(launch[k.name])
            case Loop(loop=n, body=body):
                out.append(HostLoop(n.index, n.lower, n.upper, n.step, plan(body, launch)))
            case Choice(test=n, then=then, other=other):
                out.append(HostIf(n.tests, plan(then, launch), plan(other, launch)))
    return tuple(out)


def used(body: tuple[Node, ...]) -> frozenset[str]:
    """The buffers that stores of `body` read or write, those inside computed positions included."""
    found: set[str] = set()
    for n in walk(body):
        if isinstance(n, Store):
            found |= {x.source for e in (n.target, n.expr) for x in loads(e)}
    return frozenset(found)


def written(body: tuple[Node, ...]) -> frozenset[str]:
    return frozenset(n.target.source for n in walk(body) if isinstance(n, Store))


def _has_parallel(n: Node) -> bool:
    return any(isinstance(x, For) and x.kind == Kind.PARALLEL for x in walk((n,)))


def _steps(body: tuple[Node, ...], name: str, host: tuple[str, ...], count: list[int]) -> tuple[Step, ...]:
    out: list[Step] = []
    alone: list[Node] = []  # nodes for a kernel of one thread

    def start(*found: Part) -> None:
        out.append(Start(KernelNest(f"{name}_{count[0]}", found, host)))
        count[0] += 1

    def flush() -> None:
        if used(tuple(alone)):
            start(Part((), tuple(alone)))
        alone.clear()

    for n in body:
        if not _has_parallel(n):
            alone.append(n)
            continue
        flush()
        match n:
            case For(kind=Kind.PARALLEL):
                start(*(_part(p) for p in parts(n) or ((n,),)))
            case For():
                out.append(Loop(n, _steps(n.body, name, (*host, n.index), count)))
            case If():
                out.append(Choice(n, _steps(n.then, name, host, count), _steps(n.other, name, host, count)))
    flush()
    return tuple(out)


def _part(body: tuple[Node, ...]) -> Part:
    first = body[0]
    return _flatten(first) if len(body) == 1 and isinstance(first, For) and first.kind == Kind.PARALLEL else Part((), body)


def _flatten(n: For) -> Part:
    """The PARALLEL loops directly nested from `n`, each over a count that its bounds never exceed, and what is inside.

    { [i, j] : l <= i < u and f(i) <= j < g(i) }  is launched as the box  i - l < u - l,  j - f(i) < max over i of g(i) - f(i)
    """
    axes: list[Axis] = []
    ranges: dict[str, tuple[Affine, Affine]] = {}
    while True:
        trips = [greatest(a - b, ranges) for a in bounds(n.upper) for b in bounds(n.lower, "max")]
        trip = reduce(lambda a, b: quasi("min", a, b), trips)
        exact = not names(n.upper - n.lower) & ranges.keys()
        count = quasi("div", trip + (n.step - 1), affine(n.step))
        axes.append(Axis(n, count, exact))
        ranges[n.index] = (least(n.lower, ranges), greatest(n.upper - 1, ranges))
        if len(n.body) == 1 and isinstance(n.body[0], For) and n.body[0].kind == Kind.PARALLEL:
            n = n.body[0]
        else:
            return Part(tuple(axes), n.body)


def greatest(x: Affine, ranges: Mapping[str, tuple[Affine, Affine]]) -> Affine:
    """An upper bound of `x` that is free of the names of `ranges`, each of which lies in [low, high]."""
    return _extreme(x, ranges, True)


def least(x: Affine, ranges: Mapping[str, tuple[Affine, Affine]]) -> Affine:
    """A lower bound, likewise."""
    return _extreme(x, ranges, False)


def _extreme(x: Affine, ranges: Mapping[str, tuple[Affine, Affine]], high: bool) -> Affine:
    total = affine(x.const)
    for atom, factor in x.terms:
        up = high == (factor > 0)
        if isinstance(atom, str):
            bound = ranges[atom][up] if atom in ranges else affine(atom)
        elif atom.op == "mod" and names(atom.args[0]) & ranges.keys():
            bound = atom.args[1] - 1 if up else Affine()
        else:
            bound = quasi(atom.op, *(_extreme(a, ranges, up) for a in atom.args))
        total = total + bound * factor
    return total
