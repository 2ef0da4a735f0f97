"""What is generated is the same in every process: nothing hangs on the order in which a set gives its elements."""

from __future__ import annotations

import os
import subprocess
import sys

KERNELS = """
import polyop
for name in ("conv2d", "attention_causal", "cumsum"):
    for target in ("x86:x86-64-v4", "cuda:sm_80", "hip:gfx1100"):
        print(name, target)
        print(polyop.library(name).compile(target).source)
f = polyop.op("op f(A: f32[P, S, Q], B: f32[R, S, T]) -> (C: f32[P, Q, R, T]) { C[p, q, r, t] += A[p, s, q] * B[r, s, t] }")
print(f.compile("x86:x86-64-v4").source)
from polyop import graph
linear, layernorm, add = map(polyop.library, ("linear", "layernorm", "add"))
x, w = graph.input("x", graph.f32["B", "S", "D"]), graph.input("w", graph.f32["D", "D"])
b, g = graph.input("b", graph.f32["D"]), graph.input("g", graph.f32["D"])
made = graph.build(layernorm(add(linear(x, w, b), x), g, b)).clusters()
print(made, made.graph, made.graph.sizes)
"""


def test_texts_do_not_hang_on_the_order_of_sets() -> None:
    runs = [subprocess.Popen([sys.executable, "-c", KERNELS], env=os.environ | {"PYTHONHASHSEED": seed}, stdout=subprocess.PIPE,
                             text=True) for seed in "12"]
    first, second = (run.communicate()[0].splitlines() for run in runs)
    assert not any(run.returncode for run in runs)
    assert len(first) > 3000
    assert first == second
