"""What sort of operator an Op is: what decides with which neighbours it may share a kernel."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from polyop.ir.expr import Affine, Load, expr_names, loads
from polyop.ir.op import Op, Step
from polyop.rewrite.inline import inline
from polyop.rewrite.measure import cost
from polyop.rewrite.simplify import simplify

_ANY_COST = 1 << 30


class Kind(Enum):
    """pointwise    every element of a result needs one element of each input
    stencil      no reduction, but several elements of one input, or a result in several pieces
    reduction    every term of its sums reads an element of its own: as much to load as to compute
    contraction  terms share what they read, as in a matrix product: far more to compute than to load
    recurrence   elements need earlier elements of the same tensor
    """

    POINTWISE = "pointwise"
    STENCIL = "stencil"
    REDUCTION = "reduction"
    CONTRACTION = "contraction"
    RECURRENCE = "recurrence"


@dataclass(frozen=True, slots=True)
class Traits:
    """kind   what sort it is; cost: about how many additions each element of a pointwise result takes
    flat   the Op with its pointwise temporaries inlined: what was looked at
    """

    kind: Kind
    cost: int
    flat: Op

    @property
    def is_anchor(self) -> bool:
        """Whether it is more than a companion of other kernels: a kernel has one of these at most."""
        return self.kind not in (Kind.POINTWISE, Kind.STENCIL)


def traits(op: Op) -> Traits:
    """What sort of operator `op` is."""
    flat = simplify(inline(op, again=_ANY_COST))
    return Traits(_kind(flat), sum(cost(s.expr) for s in flat.steps), flat)


def _kind(op: Op) -> Kind:
    if _is_recurrent(op):
        return Kind.RECURRENCE
    sums = [s for s in op.steps if s.reduce]
    if any(all(set(s.indices) - _names(x) for x in loads(s.expr)) and s.indices for s in sums):
        return Kind.CONTRACTION
    if sums:
        return Kind.REDUCTION
    written = [s.target.source for s in op.steps]
    if len(set(written)) < len(written) or not all(map(_is_local, op.steps)):
        return Kind.STENCIL
    return Kind.POINTWISE


def _is_recurrent(op: Op) -> bool:
    """Whether some tensor needs itself."""
    needs = {t.name: {x.source for s in op.steps_of(t.name) for x in loads(s.expr)} for t in op.tensors}
    for start in needs:
        seen: set[str] = set()
        frontier = [start]
        while frontier:
            found = needs[frontier.pop()] - seen
            seen |= found
            frontier += found
        if start in seen:
            return True
    return False


def _is_local(s: Step) -> bool:
    """Whether a step reads each tensor at one place."""
    places: dict[str, set[tuple[object, ...]]] = {}
    for x in loads(s.expr):
        places.setdefault(x.source, set()).add(x.index)
    return all(len(p) == 1 for p in places.values())


def _names(x: Load) -> frozenset[str]:
    return expr_names(x)


def reads_elementwise(op: Op, tensor: str, repeated: bool = False) -> str:
    """Why a pointwise `op` is no epilogue of what writes `tensor`; empty if it reads each element where it stands.

    Every step that reads `tensor` does so at its own iterators, in any order: { S[i, j] -> tensor[j, i] }.

    repeated   whether an element may be used for many points: { S[i, j] -> tensor[i] }
    """
    for s in op.steps:
        for x in loads(s.expr):
            if x.source != tensor:
                continue
            plain = [p.name for p in x.index if isinstance(p, Affine) and p.name in s.indices]
            if x.guard or len(plain) != len(x.index) or len(set(plain)) != len(plain):
                return f"it reads {x}"
            if len(plain) < len(s.indices) and not repeated:
                return f"it repeats each element of {x}"
    return ""


def repeats(op: Op, tensor: str) -> str:
    """The iterators for which `op` would compute an element of its input `tensor` again; empty if there are none."""
    for s in op.steps:
        if len({x.index for x in loads(s.expr) if x.source == tensor}) > 1:
            return "for every place around it"
        for x in loads(s.expr):
            if x.source == tensor:
                missing = [i for i in s.indices if i not in _names(x)]
                if missing:
                    return f"for every {', '.join(missing)}"
                if any(isinstance(p, Affine) and len(_iterators(p, s)) > 1 for p in x.index):
                    return f"wherever the windows {x} overlap"
    return ""


def _iterators(p: Affine, s: Step) -> frozenset[str]:
    return frozenset(i for i in s.indices if p.factor(i))
