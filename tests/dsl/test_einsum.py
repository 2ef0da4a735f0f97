"""`einsum_text` says what `numpy.einsum` says, on the reference evaluator."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.dsl.check import instantiate
from polyop.dsl.einsum import einsum_text
from polyop.dsl.parse import parse
from polyop.ir.dtypes import BOOL, BY_NUMPY, F16, F32, F64, I8
from polyop.ir.errors import UserError
from polyop.ir.reference import evaluate
from polyop.ir.span import Source


def run(equation, *operands):
    operands = [np.asarray(x) for x in operands]
    text = einsum_text(equation, [x.shape for x in operands], [BY_NUMPY[x.dtype] for x in operands])
    op = instantiate(parse(Source("<einsum>", text)), "einsum")
    sizes = {}
    for t, x in zip(op.inputs, operands, strict=True):
        for e, n in zip(t.shape, x.shape, strict=True):
            if e.name:
                assert sizes.setdefault(e.name, n) == n
    return evaluate(op, sizes, {}, {f"X{n}": x for n, x in enumerate(operands)})["out"]


def numbers(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(np.float64)


EQUATIONS = [
    ("ij,jk->ik", (2, 3), (3, 4)),
    ("ij,jk", (2, 3), (3, 4)),
    ("ij", (2, 3)),
    ("ba", (2, 3)),
    ("ij->ji", (2, 3)),
    ("ij->", (2, 3)),
    ("ii->i", (3, 3)),
    ("ii", (3, 3)),
    ("ii->", (3, 3)),
    ("iij->j", (2, 2, 3)),
    ("iji->ij", (2, 3, 2)),
    ("i,i", (3,), (3,)),
    ("i,j", (2,), (3,)),
    ("i,j->ji", (2,), (3,)),
    (",->", (), ()),
    (",ij->ij", (), (2, 3)),
    ("->", ()),
    ("i->", (0,)),
    ("...ij,...jk->...ik", (2, 2, 3), (2, 3, 2)),
    ("...ij,...jk->...ik", (2, 2, 3), (3, 2)),
    ("...,...", (2, 3), (3,)),
    ("...i->...", (2, 3)),
    ("i...->...i", (2, 3, 2)),
    ("...ii->...i", (2, 3, 3)),
    ("...", (2, 3)),
    ("i...", (2, 3)),
    ("ij,ij->ij", (1, 3), (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    ("...i,...i", (1, 3), (2, 3)),
    ("...,...->...", (2, 1), (1, 3)),
    (" i j , j k -> i k ", (2, 3), (3, 4)),
    ("Ab,bA->A", (2, 3), (3, 2)),
    ("ij,jk,kl->il", (2, 3), (3, 2), (2, 4)),
    ("i,j,k->ijk", (2,), (3,), (2,)),
    ("ij,ik,il->jkl", (3, 2), (3, 2), (3, 2)),
    ("bhid,bhjd->bhij", (1, 2, 3, 2), (1, 2, 2, 2)),
    ("ea,fb,abcd,gc,hd->efgh", (2, 2), (2, 2), (2, 2, 2, 2), (2, 2), (2, 2)),
    ("i,i,i", (3,), (3,), (3,)),
    ("ij,jj->i", (2, 3), (3, 3)),
]


@pytest.mark.parametrize("case", EQUATIONS, ids=lambda c: c[0])
def test_an_equation_means_what_numpy_says(case):
    equation, *shapes = case
    operands = [numbers(*s, seed=n) for n, s in enumerate(shapes)]
    np.testing.assert_allclose(run(equation, *operands), np.einsum(equation, *operands))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_random_equation_means_what_numpy_says(data):
    labels = "abcA"
    extent = {x: data.draw(st.integers(1, 3)) for x in labels}
    inputs = data.draw(st.lists(st.text(labels, max_size=3), min_size=1, max_size=4))
    shapes = [
        tuple(1 if data.draw(st.booleans()) and x not in word[:n] + word[n + 1 :] else extent[x] for n, x in enumerate(word))
        for word in inputs
    ]
    used = sorted(set("".join(inputs)))
    equation = ",".join(inputs)
    if data.draw(st.booleans()):
        equation += "->" + "".join(data.draw(st.permutations(used))[: data.draw(st.integers(0, len(used)))])
    operands = [numbers(*s, seed=n) for n, s in enumerate(shapes)]
    np.testing.assert_allclose(run(equation, *operands), np.einsum(equation, *operands))


def test_half_precision_is_summed_in_single_also_over_three_operands():
    x = np.full((1, 3000), 1, np.float16)
    got = run("ij,kj,j->ik", x, x, np.ones(3000, np.float16))
    assert got.dtype == np.float16 and got[0, 0] == 3000


def test_truth_values_are_joined_not_counted():
    a, b = np.array([[True, False]]), np.array([[True], [True]])
    assert run("ij,jk->ik", a, b).tolist() == [[True]] and run("ij->i", a).dtype == np.bool_


def test_small_integers_wrap_as_numpy_does():
    x = np.full(50, 100, np.int8)
    assert run("i,i->", x, x) == np.einsum("i,i->", x, x)


@pytest.mark.parametrize(("equation", "shapes", "message"), [
    ("ij,jk->ii", [(2, 3), (3, 4)], "`i` stands twice in the result"),
    ("ij->k", [(2, 3)], "`k` of the result is in no operand"),
    ("i1", [(2,)], "`1` is no label"),
    ("i->j->k", [(2,)], "one `->` leads to the result"),
    ("i..j", [(2, 3)], "`...` is three dots"),
    ("ij,j", [(2, 3)], "the equation has 2 operands, and 1 are given"),
    ("ij", [(2, 3, 4)], "operand 0 has 3 dimensions, and `ij` names 2"),
    ("ij,jk", [(2, 3), (4, 5)], "`j` is 3 in operand 0 and 4 in operand 1"),
    ("...i->i", [(2, 3)], "the result needs `...`"),
    ("ii->i", [(2, 1)], "`i` is 2 and 1 in operand 0"),
    ("i,jij->j", [(4,), (3, 4, 1)], "`j` is 3 and 1 in operand 1"),
    ("i->a,b", [(2,)], "there is one result"),
])
def test_a_wrong_equation_is_explained(equation, shapes, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[").replace("(", r"\(").replace(".", r"\.")):
        einsum_text(equation, shapes, [F32] * len(shapes))


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("ij.,-> éA\n1"), max_size=12), st.lists(st.lists(st.integers(0, 3), max_size=3), max_size=3))
def test_no_equation_crashes(equation, shapes):
    try:
        text = einsum_text(equation, [tuple(s) for s in shapes], [(F16, F64, I8, BOOL)[n % 4] for n in range(len(shapes))])
        instantiate(parse(Source("<einsum>", text)), "einsum")
    except UserError:
        pass
