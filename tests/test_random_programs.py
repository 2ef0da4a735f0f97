"""Random operators of several statements, which sum up each other's results over any indices, against NumPy in float64.

All are on the tuned rung, with strict numerics too: of a nest that cannot be proved polyop says so, and takes a slower one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
import pytest

import polyop
from polyop import Options

INDICES = "ijkl"
EXTENTS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 24, 33, 40)
SUMS: dict[str, Callable[..., np.ndarray]] = {"+=": np.sum, "max=": np.max, "min=": np.min}
JOINS: dict[str, Callable[..., np.ndarray]] = {"*": np.multiply, "+": np.add, "-": np.subtract}
TERMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "{0}": lambda x: x, "({0} + 0.5)": lambda x: x + 0.5, "exp(-{0} * {0})": lambda x: np.exp(-x * x)}


@dataclass(frozen=True)
class Statement:
    """`t1[k] += (X[k, i] + 0.5) * t0[i]`: `operands` are names, with the term that each is part of."""

    name: str
    index: str
    by: str
    join: str
    operands: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Program:
    """Inputs and temporaries by name, each with its indices; of the extents some are numbers in the text."""

    indices: dict[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    statements: tuple[Statement, ...]
    extents: dict[str, int]
    fixed: frozenset[str]

    def __str__(self) -> str:
        def shaped(name: str) -> str:
            return f"{name}: f32[{', '.join(str(self.extents[i]) if i in self.fixed else i.upper() for i in self.indices[name])}]"

        lines = []
        for s in self.statements:
            terms = [term.format(f"{name}[{', '.join(self.indices[name])}]") for name, term in s.operands]
            lines.append(f"{s.name}[{', '.join(s.index)}] {s.by} {f' {s.join} '.join(terms)}")
        return (f"op f({', '.join(map(shaped, self.inputs))}) -> ({', '.join(map(shaped, self.outputs))}) "
                f"{{ {'; '.join(lines)} }}")

    def expected(self, given: dict[str, np.ndarray], dtype: type = np.float64) -> list[np.ndarray]:
        found = {name: self.spread(name, x.astype(dtype)) for name, x in given.items()}
        for s in self.statements:
            terms = [TERMS[term](found[name]) for name, term in s.operands]
            value = terms[0] if len(terms) == 1 else JOINS[s.join](*terms)
            over = tuple(d for d, i in enumerate(INDICES) if i not in s.index)
            found[s.name] = value if s.by == "=" else SUMS[s.by](value, axis=over, keepdims=True)
        return [self.gathered(name, found[name]) for name in self.outputs]

    def spread(self, name: str, x: np.ndarray) -> np.ndarray:
        """`x` with a dimension for each of all indices, in their order."""
        own = self.indices[name]
        return x.transpose([own.index(i) for i in sorted(own)]).reshape([self.extents[i] if i in own else 1 for i in INDICES])

    def gathered(self, name: str, x: np.ndarray) -> np.ndarray:
        own = self.indices[name]
        return x.reshape([self.extents[i] for i in sorted(own)]).transpose([sorted(own).index(i) for i in own])


def drawn(random: Random) -> Program:
    """One to three inputs, and two to four statements, most of which read the one before."""
    extents = {i: random.choice(EXTENTS) for i in INDICES}
    ranks = [random.choice((1, 2, 2, 3, 3, 4)) for _ in range(random.choice((1, 2, 2, 3)))]
    indices = {name: "".join(random.sample(INDICES, rank)) for name, rank in zip("XYZ", ranks, strict=False)}
    inputs, statements = tuple(indices), list[Statement]()
    for n in range(random.choice((2, 2, 3, 3, 4))):
        operands = random.sample(list(indices), min(len(indices), random.choice((1, 2, 2))))
        if statements and statements[-1].name not in operands and random.random() < 0.8:
            operands[0] = statements[-1].name
        known = sorted({*"".join(indices[name] for name in operands)})
        index = "".join(random.sample(known, random.randint(1, len(known))))
        by = random.choice(("+=", "+=", "+=", "max=", "min=")) if len(index) < len(known) else "="
        terms = tuple((name, random.choice(list(TERMS))) for name in operands)
        statements.append(Statement(f"t{n}", index, by, random.choice(list(JOINS)), terms))
        indices[f"t{n}"] = index
    used = {name for s in statements for name, _ in s.operands}
    outputs = ("t0", statements[-1].name) if random.random() < 0.3 else (statements[-1].name,)
    return Program(indices, tuple(n for n in inputs if n in used), outputs, tuple(statements), extents,
                   frozenset(i for i in INDICES if random.random() < 0.4))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize("seed", range(20))
def test_a_random_program_gives_what_numpy_does_from_tuned_loops(seed, numerics, threads, caplog):
    program = drawn(Random(100 * seed + 10 * (numerics == "strict") + threads))
    data = np.random.default_rng(seed)
    given = {n: data.standard_normal([program.extents[i] for i in program.indices[n]], np.float32) for n in program.inputs}
    want, rounded = program.expected(given), program.expected(given, np.float32)  # which tells what rounding comes to
    f, before = polyop.op(str(program), options=Options(numerics=numerics)), polyop.get_num_threads()
    polyop.set_num_threads(threads)
    try:
        for _ in range(3):  # the first calls of these sizes, and one that may have a kernel of its own
            got = f(**given)
            for x, y, z in zip(got if isinstance(got, tuple) else (got,), want, rounded, strict=True):
                close = 2e-5 * max(1.0, float(np.abs(y).max())) + 30 * float(np.abs(y - z).max())
                np.testing.assert_allclose(x, y, rtol=1e-4, atol=close, err_msg=str(program))
    finally:
        polyop.set_num_threads(before)
    assert not caplog.records, f"a rung of the ladder broke: {program}"
