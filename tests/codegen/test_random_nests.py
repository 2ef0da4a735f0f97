import random

import numpy as np
import pytest

from polyop.codegen.cpu.lower import lower
from polyop.ir.dtypes import F32, F64, I16, I32, DType
from polyop.ir.expr import Affine, Apply, Expr, Load, affine, quasi
from polyop.ir.options import Options
from tests.codegen.harness import RUNNABLE, check, compiled
from tests.codegen.nests import A, lanes, ld, least, loop, nest, rows, st, tensor, when


def position(rng: random.Random, names: list[Affine]) -> Affine:
    """A sum of a few names with small factors, perhaps under a floor or a remainder."""
    total = Affine(const=rng.randint(-3, 3))
    for n in rng.sample(names, rng.randint(1, len(names))):
        total = total + n * rng.choice([1, 1, 1, -1, 2])
    op = rng.choice(["", "", "", "div", "mod"])
    return quasi(op, total, affine(rng.choice([2, 3, 4]))) if op else total


def guarded(rng: random.Random, names: list[Affine], t: DType) -> Load:
    """A load of `x` at any position, with the guard that keeps it inside."""
    at = tuple(position(rng, names) for _ in range(2))
    inside = tuple(g for p, size in zip(at, ("P", "Q"), strict=True) for g in (p, A(size, -1) - p))
    return Load("x", at, t, inside)


def some_expression(rng: random.Random, names: list[Affine], t: DType) -> Expr:
    e: Expr = guarded(rng, names, t)
    for _ in range(rng.randint(0, 2)):
        e = Apply(rng.choice(["add", "sub", "max"]), (e, guarded(rng, names, t)), t)
    return e


def some_nest(seed: int):
    """for m { for i { rows { lanes { y[m, i] (+)= e; z += e .. } } } } with axes in any order and conditions between."""
    rng = random.Random(seed)
    t = rng.choice([F32, F32, F64, I32, I16])
    mr, w = rng.choice([2, 3, 4, 8]), rng.choice([4, 8, 16, 24, 32])
    m, i = A("m_r", "m_p"), A("i_c", "i_v")
    names = [m, i] if rng.random() < 0.7 else [m, i, A("k")]
    target, folded = ld("y", m, i, t=t), ld("z", m, t=t)
    reduce = rng.choice([None, "add", "max"])
    if len(names) == 3:
        reduce = reduce or "add"
    body = [
        st(target, some_expression(rng, names, t), reduce),
        st(folded, some_expression(rng, names, t), rng.choice(["add", "max"])),
    ]
    if rng.random() < 0.4:
        body = [when([position(rng, names)], body[:1], body[1:])]
    if len(names) == 3:
        body = [loop("k", 3, *body)]
    inner = [
        lambda *b: rows("m_p", mr, least(mr, A("M", (-1, "m_r"))), *b),
        lambda *b: lanes("i_v", w, least(w, A("N", (-1, "i_c"))), *b),
    ]
    rng.shuffle(inner)
    tile = inner[0](inner[1](*body))
    return nest(
        [tensor("x", "P", "Q", t=t, unit=rng.choice([None, 0, 1])), tensor("y", "M", "N", t=t), tensor("z", "M", t=t)],
        [loop("m_r", "M", loop("i_c", "N", tile, step=w), step=mr)],
        sizes=("M", "N", "P", "Q"),
    )


@pytest.mark.parametrize("target", RUNNABLE, ids=lambda t: t.arch)
@pytest.mark.parametrize("seed", range(8))
def test_a_random_nest_writes_what_the_interpreter_writes(seed, target):
    n = some_nest(seed)
    low = lower(n, target, Options()) if seed % 2 else n
    k = compiled(low, target)
    t = n.buffers[0].dtype
    for m, c, p, q in ((1, 1, 1, 1), (5, 9, 6, 7), (3, 33, 3, 40)):
        rng = np.random.default_rng(seed)
        x = rng.integers(-9, 9, (p, q)).astype(t.numpy)
        x = np.asfortranarray(x) if n.buffers[0].unit == 0 else x
        arrays = {"x": x, "y": np.ones((m, c), t.numpy), "z": np.zeros(m, t.numpy)}
        check(n, {"M": m, "N": c, "P": p, "Q": q}, kernel=k, arrays=arrays)
