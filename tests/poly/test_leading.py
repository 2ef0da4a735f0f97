"""A batch is scheduled as one of it, where nothing is asked of which one it is."""

from __future__ import annotations

import pytest

import polyop
from polyop.compiler import compile_op
from polyop.ir.options import Layout, Options
from polyop.ir.target import target
from polyop.poly.blocks.leading import layout_of_one, one_of
from polyop.runtime.layout import contiguous

from .texts import operator

ATTENTION = """s[{l}i, j] += Q[{l}i, d] * K[{l}j, d]
               top[{l}i] max= s[{l}i, j]
               e[{l}i, j] = exp(s[{l}i, j] - top[{l}i])
               z[{l}i] += e[{l}i, j]
               o[{l}i, v] += e[{l}i, j] * V[{l}j, v]
               O[{l}i, v] = o[{l}i, v] / z[{l}i]"""


def attention(text: str = ATTENTION, inputs: str = "Q[B, H, M, D], K[B, H, N, D], V[B, H, N, E]", lead: str = "b, h, ",
              ranges: str = "b:B h:H i:M j:N d:D v:E", **more):
    at = lead.replace("b", "B").replace("h", "H")
    temps = ", ".join(f"{t}[{at}{rest}]" for t, rest in (("s", "M, N"), ("top", "M"), ("e", "M, N"), ("z", "M"), ("o", "M, E")))
    return operator(text.format(l=lead), inputs=inputs, outputs=f"O[{at}M, E]", temps=temps, ranges=ranges, **more)


def test_indices_that_all_operands_have_are_left_out_and_so_are_their_sizes():
    op, leading = one_of(attention())
    assert [(x.index, str(x.extent)) for x in leading] == [("b", "B"), ("h", "H")]
    assert op.sizes == ("D", "E", "M", "N")
    assert [str(t) for t in op.tensors if t.role != "temp"] == ["Q: f32[M, D]", "K: f32[N, D]", "V: f32[N, E]", "O: f32[M, E]"]
    assert str(op.steps[0].target) == "s[i, j]"


STAYS = {
    "a row of products": operator("C[i, j, k] += A[i, m] * B[m, j, k]", inputs="A[M, P], B[P, N, K]", outputs="C[M, N, K]",
                                  ranges="i:M j:N k:K m:P"),
    "a head that shares its keys": attention(ATTENTION.replace("K[{l}j, d]", "K[b, j, d]"),
                                             "Q[B, H, M, D], K[B, N, D], V[B, H, N, E]"),
    "a neighbour": operator("Y[b, i, j] = X[b, i, j] + (X[b - 1, i, j] if b >= 1 else 0.0)", inputs="X[B, M, N]",
                            outputs="Y[B, M, N]", ranges="b:B i:M j:N"),
    "a length for each": operator("Y[b, i, j] += X[b, i, k] | k in 0:b", inputs="X[B, M, B]", outputs="Y[B, M, N]",
                                  ranges="b:B i:M j:N k:B"),
}


@pytest.mark.parametrize("name", STAYS)
def test_indices_that_are_asked_for_more_stay(name):
    _, leading = one_of(STAYS[name])
    assert [x.index for x in leading] == (["b"] if name == "a head that shares its keys" else [])


def test_dimensions_of_stride_1_are_those_of_one():
    _, leading = one_of(attention())
    of_one = layout_of_one(Layout((("Q", 3), ("K", 2), ("V", 0), ("O", None))), leading)
    assert of_one.units == (("Q", 1), ("K", 0), ("V", None), ("O", None))


def in_one_kernel(lead: str, last: str = "O[{l}i, v] = f16(o[{l}i, v] / z[{l}i])"):
    """Attention with 64 channels, whose leading indices are `lead`, and the step that writes its result."""
    at = "".join(f"{x.upper()}, " for x in lead)
    steps = ATTENTION[: ATTENTION.index("O[")].replace("= Q", "= Q").replace("e[{l}i, j] * V", "f16(e[{l}i, j]) * V") + last
    text = steps.format(l="".join(f"{x}, " for x in lead))
    made = polyop.op(f"op a(Q: f16[{at}M, 64], K: f16[{at}N, 64], V: f16[{at}N, 64]) -> (O: f16[{at}M, 64]) {{\n{text}\n}}")
    return made._op(made.choice())


IN_ONE_KERNEL = {
    "two indices": in_one_kernel("bh"),
    "one index": in_one_kernel("b"),
    "a name that is another index's elsewhere": in_one_kernel("bh", "O[h, b, v, i] = f16(o[h, b, v, i] / z[h, b, v])"),
}


@pytest.mark.parametrize("name", IN_ONE_KERNEL)
@pytest.mark.parametrize("kind", ["cuda:sm_80", "hip:gfx942"])
def test_a_batch_is_proved_as_a_whole_in_one_kernel(name, kind):
    op = IN_ONE_KERNEL[name]
    made = compile_op(op, contiguous(op), target(kind), Options())
    assert made.rung == "tuned" and all(p.holds for p in made.proofs)
    assert any("scheduled for one" in n for n in made.notes), made.notes
    assert made.nest is not None and len(made.nest.body) == 1


def test_a_batch_that_keeps_memory_for_each_is_scheduled_as_a_whole(caplog):
    """A state between chunks is in memory, which each of the batch has its own of."""
    made = polyop.load("attention").retention
    op = made._op(made.choice())
    found = compile_op(op, contiguous(op), target("cuda:sm_80"), Options())
    assert all(p.holds for p in found.proofs) and not caplog.records
