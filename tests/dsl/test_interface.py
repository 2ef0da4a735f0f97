"""Interfaces, dtype variables, consts, descriptions, warnings, and room for recursion."""

import math
import sys
import threading

import pytest
from helpers import EXAMPLES, body, op

from polyop.dsl.check import instantiate
from polyop.dsl.describe import describe
from polyop.dsl.interface import interface
from polyop.dsl.parse import parse
from polyop.ir.deep import with_room
from polyop.ir.dtypes import BF16, F64, I32, I64
from polyop.ir.errors import UserError
from polyop.ir.interface import Parameter
from polyop.ir.span import Source

TEXT = """# Scales and shifts.
# In place.
op f<T: float, I: i32 | i64>(
    # what is changed
    inout X: T[..., 2*N], idx: I[N],
    steps: int = 3;
    alpha: f32 = -1.5, const pad: int = 2, const wide: int = pad + 1
) -> (
    # the count
    n: i64
) {
    X[..., i] = X[..., i]
    n += 1 where i in 0:N
}
"""


def test_an_interface_tells_all_that_a_call_needs():
    made = interface(parse(Source("t.pop", TEXT)), "f")
    assert made.parameters == (
        Parameter("X", "tensor", "T", ("...", "2 * N"), inout=True, doc="what is changed", inner="X"),
        Parameter("idx", "tensor", "I", ("N",), inner="idx"),
        Parameter("steps", "int", "i64", default=3, inner="steps"),
        Parameter("alpha", "scalar", "f32", default=-1.5, by_name=True, inner="alpha"),
        Parameter("pad", "const", "i64", default=2, by_name=True, inner="pad"),
        Parameter("wide", "const", "i64", by_name=True, inner="wide", derived=True),
    )
    assert [p.required for p in made.parameters] == [True, True, False, False, False, False]
    assert made.results == (Parameter("n", "tensor", "i64", doc="the count"),
                            Parameter("X", "tensor", "T", ("...", "2 * N"), inout=True, doc="what is changed"))
    assert made.variables == (("T", ("f16", "bf16", "f32", "f64")), ("I", ("i32", "i64")))
    assert made.has_rest and made.doc == "Scales and shifts.\nIn place."


def test_an_interface_gives_the_names_in_the_op():
    program = parse(Source("t.pop", "op f(min: f32[N]) -> (Y: f32[N]) { Y[i] = min[i] }"))
    assert interface(program, "f").parameter("min").inner == instantiate(program, "f").inputs[0].name == "min_"


def test_the_constants_of_the_language_are_defaults_like_numbers():
    program = parse(Source("t.pop", body("Y[i] = min(X[i], s)", "X: f32[N]; s: f32 = -inf, const c: float = pi / 2")))
    assert [p.default for p in interface(program, "f").parameters] == [None, -math.inf, math.pi / 2]


def test_dtype_variables_default_to_what_is_common():
    head = "op f<T: float, I: i16 | i64, J: f16 | f64>(X: T[N], i: I[N], j: J[N]) -> (Y: f64[N])"
    text = head + " { Y[n] = f64(X[n]) + f64(i[n] + j[n]) }"
    assert [t.dtype.name for t in op(text).inputs] == ["f32", "i16", "f16"]
    assert [t.dtype for t in op(text, dtypes={"T": BF16, "I": I64, "J": F64}).inputs] == [BF16, I64, F64]


def test_a_dtype_variable_takes_only_what_it_may():
    with pytest.raises(UserError, match=r"error\[E226\]: `T` is i32, and may be f16, bf16, f32, f64"):
        op("op f<T: float>(X: T[N]) -> (Y: T[N]) { Y[i] = X[i] }", dtypes={"T": I32})


def test_a_const_is_folded_and_may_use_others():
    text = body("Y[i] = X[i] * c + d", "X: f32[N]; const c: int = 2, const d: float = c / 4.0")
    assert str(op(text).steps[0].expr) == "((X[i] * f32(2.0)) + f32(0.5))"
    assert str(op(text, consts={"c": 8}).steps[0].expr) == "((X[i] * f32(8.0)) + f32(2.0))"
    with pytest.raises(UserError, match="`f` has no const `e`"):
        op(text, consts={"e": 1})


def test_a_missing_operator_is_reported_with_the_nearest():
    with pytest.raises(UserError, match=r"there is no operator `sofmax`; did you mean `softmax`\?"):
        instantiate(parse(Source("t.pop", EXAMPLES)), "sofmax")


def test_names_are_looked_up_in_the_file_then_in_the_library():
    library = parse(Source("lib.pop", "fn twice(x) = 2 * x\nop g(A: f32[M]) -> (B: f32[M]) { B[i] = twice(A[i]) }"))
    program = parse(Source("t.pop", body("T = g(X)\nY[i] = twice(T[i])")))
    assert len(instantiate(program, "f", library=library).steps) == 2
    with pytest.raises(UserError, match="`g` is not defined"):
        instantiate(program, "f")


def test_a_description_says_what_was_inferred():
    header = "X: f32[N], F: f32[R]; s: f32 = 2"
    made = op(body("t[i] += F[r] * X[i + r]\nY[i] = t[i]", header, "Y: f32[N - R + 1]"))
    assert describe(made) == (
        "f",
        "  sizes: N, R",
        "  input X: f32[N]",
        "  input F: f32[R]",
        "  output Y: f32[N - R + 1]",
        "  temporary t: f32[N - R + 1]",
        "  parameter s: f32 = 2",
        "  needs (N - R + 1 >= 0)",
        "  t[i] add= f32: i in 0:N - R + 1, r in 0:R (reduced)",
        "  Y[i] = f32: i in 0:N - R + 1",
    )


def test_deep_recursion_has_room_and_the_limit_comes_back():
    def down(n):
        return 0 if n == 0 else 1 + down(n - 1)

    before = sys.getrecursionlimit()
    barrier = threading.Barrier(2)
    results = []

    def both():
        results.append(with_room(lambda: (barrier.wait(), down(20_000))[1]))

    threads = [threading.Thread(target=both) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == [20_000, 20_000]
    assert with_room(lambda: with_room(lambda: down(5_000))) == 5_000
    assert sys.getrecursionlimit() == before


def test_errors_come_out_of_the_room():
    with pytest.raises(ZeroDivisionError):
        with_room(lambda: 1 // 0)
