"""What the sizes of an operator are where its inputs are tensors of known shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from polyop.ir.errors import fail
from polyop.ir.expr import Affine, Expr, Test, names, substitute
from polyop.ir.op import Op

Shape = tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Unified:
    """sizes    size of the operator -> index expression over the sizes around it
    facts    what must hold between those, because it could not be seen from names alone
    """

    sizes: Mapping[str, Affine]
    facts: tuple[Expr, ...]


def unify(op: Op, shapes: Mapping[str, Shape], given: Mapping[str, Affine] | None = None) -> Unified:
    """The sizes of `op` from the shapes of (some of) its inputs.

    given   sizes that are known otherwise, such as the values of `int` parameters

    A size is what stands in the first dimension that is that size alone. Everything else is compared: equal index
    expressions say nothing, others become a fact.

    Raises  UserError E703, if an input has another rank; E704, if two extents can never agree.
    Notes   Sizes that no known shape mentions are left out.
    """
    sizes = dict(given or {})
    first = dict.fromkeys(sizes, "its argument")
    pairs = []
    for t in op.inputs:
        if t.name not in shapes:
            continue
        shape = shapes[t.name]
        if len(shape) != len(t.shape):
            raise fail("E703", f"`{t.name}` of `{op.name}` has {len(t.shape)} dimensions [{', '.join(map(str, t.shape))}], "
                               f"got {len(shape)}: [{', '.join(map(str, shape))}]")
        pairs += [(t.name, d, inner, outer) for d, (inner, outer) in enumerate(zip(t.shape, shape, strict=True))]
    for tensor, d, inner, outer in pairs:
        if inner.name is not None and inner.name not in sizes:
            sizes[inner.name], first[inner.name] = outer, f"`{tensor}` (dimension {d})"
    facts: dict[Expr, None] = {}
    for tensor, d, inner, outer in pairs:
        if not names(inner) <= sizes.keys():
            continue
        expected = substitute(inner, sizes)
        difference = expected - outer
        if difference == Affine():
            continue
        if difference.is_constant:
            n = inner.name
            said = f"`{n}` of `{op.name}` is {expected} in {first[n]} and {outer} in `{tensor}` (dimension {d})" if n else \
                f"`{tensor}` of `{op.name}` has {outer} elements in dimension {d}, expected {expected}"
            raise fail("E704", said)
        facts[Test((difference, difference * -1))] = None
    return Unified(sizes, tuple(facts))
