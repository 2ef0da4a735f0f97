"""Text -> Op -> numbers, by the reference evaluator."""

import pathlib
import re

import numpy as np

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.dtypes import DTYPES
from polyop.ir.reference import evaluate
from polyop.ir.span import Source


def op(text, name="f", **given):
    return instantiate(parse(Source("t.pop", text)), name, **given)


def body(text, header="X: f32[N]", result="Y: f32[N]"):
    """An operator f with this body."""
    return f"op f({header}) -> ({result}) {{\n{text}\n}}"


def run(made, arrays, **values):
    """The outputs; sizes come from the arrays where a size stands alone, else from `values`."""
    sizes, inputs = {}, {}
    for t in made.inputs:
        x = np.asarray(arrays[t.name]).astype(t.dtype.numpy)
        inputs[t.name] = x
        for e, n in zip(t.shape, x.shape, strict=True):
            if e.name:
                assert sizes.setdefault(e.name, n) == n
    defaults = {p.name: p.default for p in made.params if p.default is not None}
    values = {**defaults, **values}
    sizes |= {p.name: values[p.name] for p in made.params if p.is_size}
    sizes |= {k: v for k, v in values.items() if k in made.sizes}
    out = evaluate(made, sizes, values, inputs)
    return next(iter(out.values())) if len(out) == 1 else tuple(out.values())


def compute(text, arrays, **values):
    return run(op(text), arrays, **values)


def language_examples():
    """The programs of the language's own page, as they stand in its by-example section."""
    return EXAMPLES


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


EXAMPLES = (pathlib.Path(__file__).parent / "examples.pop").read_text()
CODE = re.compile(r"\[([EW]\d+)\]")
F16 = DTYPES["f16"]
