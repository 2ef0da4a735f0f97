"""The table of wrong programs: each gets one report with a code, carets, the cause, and the smallest sizes that show it."""

import pytest

from polyop.dsl.check import warnings
from polyop.dsl.parse import parse
from polyop.ir.span import Source

from .programs import body, f32, i64, normal, report

TWO = "A: f32[M, K], B: f32[K, N]"
C = "C: f32[M, N]"
WRONG = {  # what it is: the program, and its report's code, carets and what they say, message, hint
    "a sum without a plus": (
        body("C[m,n] = A[m,k]*B[k,n]", TWO, C), "E301", "       ^",
        "`k` stands only on the right of `=`", "to sum over it, write `+=`"),
    "two sizes for one index": (
        body("C[m,n] += A[m,k]*B[k,n]", "A: f32[M, K], B: f32[L, N]", C), "E305", "^^^^^^",
        "`k` runs over K in `A` and over L in `B`", "give both one name, or say `where k in 0:min(K, L)`"),
    "only the interior": (
        body("Y[i] = X[i - 1] + X[i + 1] where i in 1:N - 1"), "E320", "^^^^",
        "`Y` is not written in full: Y[0] is missing when N = 1, because line 2 starts at i = 1", ""),
    "only where a condition holds": (
        body("Y[i] = X[i] where i >= 1"), "E320", "^^^^",
        "`Y` is not written in full: Y[0] is missing when N = 1, because line 2 writes only `where i >= 1`", ""),
    "overlapping pieces": (
        body("Y[i] = X[i]\n\n\nY[0] = 1 where N > 0"), "E321", "^^^^",
        "`Y[0]` is written twice, here and in line 5, when N = 1", ""),
    "a sum that starts from 0": (
        body("C = 0\nC[m, n] += A[m, n]", "A: f32[M, N]", C), "E216", "^",
        "`C` is assigned with `=` and with `+=`", "a sum starts from 0 by itself, remove this line"),
    "no order": (
        body("H[t] = X[t] + (H[t-1] else 0) + (H[t+1] else 0)", result="H: f32[N]"), "E323", "^^^^",
        "`H` has no legal order: H[0] needs H[1], and H[1] needs H[0], when N = 2", ""),
    "a misspelt function": (body("Y[i] = epx(X[i])"), "E201", "^^^^^^^^^", "`epx` is not defined; did you mean `exp`?", ""),
    "a misspelt parameter": (
        body("Y[i] = alhpa * X[i]", "X: f32[N], alpha: f32"), "E304", "^^^^^",
        "`alhpa` is no parameter, so it is an index, and nothing gives it a range; did you mean `alpha`?", ""),
    "a misspelt constant": (
        body("Y[i] = True"), "E304", "^^^^",
        "`True` is no parameter, so it is an index, and nothing gives it a range; did you mean `true`?", ""),
    "a tensor called": (
        body("C[m, n] += A(m, k) * B[k, n]", TWO, C), "E205", "^^^^^^^",
        "`A` is a tensor; its indices stand in square brackets", "write `A[m, k]`"),
    "too few indices": (
        body("C[m, n] += A[m] * B[k, n]", TWO, C), "E203", "^^^^ 1 index here", "`A` has 2 dimensions but 1 index", ""),
    "a product without a sign": (body("Y[i] = 2h"), "E112", "^^", "`2h` is no number", "a product is `2*h`"),
    "C's and": (body("Y[i] = X[i] > 0 && X[i] < 1 ? 1 : 0"), "E111", "^^", "`&&` is no operator", "both hold is `a and b`"),
    "Python's power": (body("Y[i] = X[i]**2"), "E111", "^^", "`**` is no operator", "a power is `pow(x, y)`"),
    "Python's choice": (
        body("Y[i] = X[i] if i > 0 else 2"), "E120", "^^",
        "expected an operator or the end of the line, got `if`", "a choice is `c ? a : b`"),
    "a slice": (body("Y[i] = X[0:i]"), "E120", "^", "expected `,` or `]`, got `:`",
                "each position is named, `A[i, k]`; a part of a range is `where i in 0:5`"),
    "a method": (body("Y[i] = np.exp(X[i])"), "E101", "^", "`.` is no part of the language",
                 "functions stand alone, such as `exp(x)`; there are no methods"),
    "an else for two reads": (
        body("Y[i] = (X[i-1] + X[i+1] else 0)"), "E114", "^^^^^^^^^^^^^^^^^^^^^^",
        "`else` belongs to one read", "write `(X[i - 1] else 0) + (X[i + 1] else 0)`"),
    "a narrowing store": (
        body("Y[i] = X[i]", result="Y: f16[N]"), "E221", "^^^^",
        "f32 does not fit into `Y`, which is f16", "write the cast: `f16(...)`"),
    "a run-time stride": (
        body("Y[p] = X[stride*p]", "X: f32[N], stride: int"), "E231", "^^^^^^^^",
        "`stride*p` multiplies an index by a run-time value", "declare it `const stride: int`"),
    "a size from nowhere": (
        body("Y[p] = 1", result="Y: f32[M]"), "E302", "^",
        "nothing binds `M`: no parameter has it as a dimension of its own", "add `M: int`"),
    "an assignment that scatters": (
        body("Y[idx[i]] = X[i]", "X: f32[N], idx: i64[N]"), "E234", "^^^^^^^^^",
        "`=` may write one element of `Y` twice, since `idx` may repeat", "say how to combine: `+=`, `max=`"),
    "a ragged temporary read in full": (
        body("s[i, j] = X[i, j] where j <= i\nY[i] += s[i, j]", "X: f32[S, S]", "Y: f32[S]"), "E324", "^^^^^^^",
        "`s` is read where it is not written: s[0, 1] when S = 2; it exists `where j <= i`", ""),
    "extents that are quotients": (
        body("t[i] = X[2*i] + Z[i] where i in 0:(N + 1) / 2\nY[i] = t[i] * Z[i]", "X: f32[2*N], Z: f32[N]"), "E305", "^^^^",
        "`i` runs over N and over (N + 1) / 2 in `t`", "give both one name, or say `where i in 0:min(N, (N + 1) / 2)`"),
    "an unclosed bracket": (body("Y[i] = (X[i] + 1\n"), "E102", "^", "`(` is never closed", ""),
    "a read outside": (
        body("Y[i] = X[i - 1] + X[i] + X[i + 1]"), "E311", "^^^^^^^^ i = 0 reads X[-1] when N = 1",
        "`X` is read outside its bounds", "give the value outside: `(X[i - 1] else 0)`"),
    "a range that a condition hides": (
        body("Y[i] = sum[k](k < i ? A[i, k] : 0)", "A: f32[N, N]"), "E307", "^",
        "nothing gives `k` a range: `A[i, k]` is read only where a condition on `k` holds",
        "say it at the end of the statement: `where k in 0:N`"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_program_gets_one_report(what):
    text, code, carets, message, hint = WRONG[what]
    lines = report(text).splitlines()
    assert lines[0] == f"error[{code}]: {message}"
    assert lines[4].split("| ", 1)[1].strip() == carets.strip()
    assert (lines[-1] == f"help: {hint}") if hint else not lines[-1].startswith("help")


CALLS = {
    "sizes disagree": (body("C[m, n] += A[m, k] * B[k, n]", TWO, C), (normal(2, 3), normal(5, 4)),
                       "error[E604]: `K` is 3 in `A` (dimension 1 of (2, 3)) and 5 in `B` (dimension 0 of (5, 4))"),
    "a fact fails": ("op rows8(X: f32[D]) -> (Y: f32[D]) where D % 8 == 0 {\nY[i] = X[i]\n}", (normal(12),),
                     "error[E605]: `rows8` needs D % 8 == 0, and D = 12 (from `X`)"),
    "data lie outside": (body("Y[i] = E[ids[i]]", "ids: i64[N], E: f32[V]"), (i64(0, 7), f32(1, 2, 3, 4, 5)),
                         "error[E610]: ids[1] = 7 reads outside `E`, which has V = 5 rows"),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_wrong_call_gets_one_report(what):
    text, arrays, want = CALLS[what]
    assert report(text, *arrays).splitlines() == [want]


WARNED = {
    "a bias inside the sum": (body("C[m, n] += A[m, k] * B[k, n] + b[n]", TWO + ", b: f32[N]", C),
                              "`b[n]` does not depend on `k` and is added K times; give it its own statement, `C[m, n] += b[n]`"),
    "a quotient of integers": (body("Y[i] = 1 / 2 * X[i]"), "`1 / 2` is an integer division and gives 0; write `1.0 / 2`"),
}


@pytest.mark.parametrize("what", WARNED)
def test_what_is_legal_and_most_likely_not_meant_gets_a_warning(what):
    text, want = WARNED[what]
    (found,) = warnings(parse(Source("t.pop", text)), "f")
    said = f"{found.message}; {found.hint}" if found.hint else found.message
    assert said == want and found.severity == "warning"


INOUT = {
    "outside": ("op f(inout X: f32[N]) {\nX[i + 1] = X[i]\n}", "`X` is written outside its bounds", "writes X[1] when N = 1"),
    "twice": ("op f(inout X: f32[N]) {\nX[i] = 0\nX[0] = 1 where N > 0\n}", "`X[0]` is written twice", ""),
    "a sum": ("op f(inout X: f16[N]) {\nX[i - 1] += f16(1) where i in 0:N\n}", "`X` is written outside", "writes X[-1]"),
    "argmax": (
        body("Y[i - 1] argmax= A[i, k]", "A: f32[N, K]", "Y: i64[N]"), "`Y` is written outside its bounds", "writes Y[-1]"),
    "isl's word, read": (body("Y[i] = mod[i - 1]", "mod: f32[N]"), "`mod` is read outside its bounds", "reads mod[-1]"),
    "isl's word, written": (body("mod[i] = X[i] where i > 0", result="mod: f32[N]"), "`mod` is not written in full", "mod[0]"),
    "isl's word, a size": (body("Y[i] = X[i + 1]", "X: f32[mod]", "Y: f32[mod]"), "`X` is read outside", "when mod = 1"),
}


@pytest.mark.parametrize("what", INOUT)
def test_reports_use_the_users_names(what):
    text, message, label = INOUT[what]
    said = report(text)
    assert message in said and label in said
    assert "_out" not in said and "mod_" not in said


def test_calls_use_the_users_names():
    assert "`f` needs mod % 2 == 0, and mod = 3 (from `A`)" in report(
        "op f(A: f32[mod]) -> (Y: f32[mod]) where mod % 2 == 0 {\nY[i] = A[i]\n}", f32(1, 2, 3))
    text = body("Y[i] = int_[mod[i]]", "mod: i64[N], int_: f32[V]")
    assert "mod[0] = 3 reads outside `int_`, which has V = 1 rows" in report(text, i64(3), f32(1))
