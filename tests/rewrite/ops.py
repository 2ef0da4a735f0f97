"""Ops out of texts and out of the library, and whether two Ops compute the same."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import numpy as np

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import PolyopError, UserError
from polyop.ir.expr import evaluate as value
from polyop.ir.reference import evaluate
from polyop.ir.span import Source
from polyop.ir.spelled import holds

LIBRARY = sorted(f.name[:-4] for f in (files("polyop") / "library").iterdir() if f.name.endswith(".pop"))


def op(text, name=None, **given):
    program = parse(Source("t.pop", text))
    return instantiate(program, name or program.ops[0].name, **given)


@cache
def program(room):
    return parse(Source(f"{room}.pop", (files("polyop") / "library" / f"{room}.pop").read_text()))


def library(room, name, **given):
    return instantiate(program(room), name, **given)


def all_of(room):
    """Every operator of a file of the library that needs no const to be given."""
    for definition in program(room).ops:
        try:
            yield instantiate(program(room), definition.name)
        except UserError as error:
            assert error.diagnostic.code == "E227", error  # a const without a default


def arguments(op, sizes, seed=0):
    """Arrays and scalars for `op`; integers are small, so that they can be positions."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for t in op.inputs:
        shape = shape_of(t, sizes)
        if t.dtype.is_float:
            arrays[t.name] = rng.uniform(-1, 1, shape).astype(t.dtype.numpy)
        else:
            arrays[t.name] = rng.integers(0, 2, shape).astype(t.dtype.numpy)
    values = {p.name: 0.5 if p.dtype.is_float else 1 for p in op.params if not p.is_size}
    return values, arrays


def integers(op, sizes, seed=1):
    """Arrays for `op` of small whole numbers, of which sums in any order are the same."""
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-9, 9, shape_of(t, sizes)).astype(t.dtype.numpy) for t in op.inputs}


def shape_of(tensor, sizes):
    return tuple(value(e, sizes) for e in tensor.shape)


def fits(op, sizes):
    """Whether `op` may be called with these sizes, and the reference has values for it."""
    if any(n < 0 for t in op.tensors for n in shape_of(t, sizes)) or not all(holds(f, sizes) for f in op.facts):
        return False
    try:
        evaluate(op, sizes, *arguments(op, sizes))
    except PolyopError:
        return False
    return True


def assert_same(a, b, sizes, seed=0):
    """The outputs of `b`, element for element and bit for bit those of `a`."""
    values, arrays = arguments(a, sizes, seed)
    want, got = evaluate(a, sizes, values, arrays), evaluate(b, sizes, values, arrays)
    assert want.keys() == got.keys()
    for name, x in want.items():
        assert x.tobytes() == got[name].tobytes(), f"{a.name}: {name} differs\n{a}\n{b}"
