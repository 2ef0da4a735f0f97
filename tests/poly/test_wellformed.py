"""What is refused about an operator before any schedule, with the smallest sizes that show it."""

from __future__ import annotations

from textwrap import dedent

import pytest

from polyop.dsl.check import instantiate
from polyop.dsl.parse import parse
from polyop.ir.errors import UserError
from polyop.ir.op import Op
from polyop.ir.span import Source
from polyop.poly import wellformed
from polyop.poly.recurrence import circular
from polyop.poly.scop import extract
from polyop.poly.wellformed import check, proofs

from . import nests as n
from .texts import operator


def op(text: str) -> Op:
    """The one operator of `text`, as the language builds it."""
    program = parse(Source("op.pop", dedent(text).lstrip("\n")))
    return instantiate(program, program.ops[-1].name)


def refusal(given: Op) -> UserError:
    with pytest.raises(UserError) as caught:
        check(given)
    return caught.value


def message(given: Op) -> str:
    """`E311: message | label`."""
    d = refusal(given).diagnostic
    return f"{d.code}: {d.message}" + (f" | {d.label.text}" if d.label and d.label.text else "")


def test_a_read_outside_is_shown_where_it_stands_with_the_way_out():
    blur = op("""
        # three points
        op blur(X: f32[N]) -> (Y: f32[N]) {
            Y[i] = X[i - 1] + X[i] + X[i + 1]
        }
        """)
    assert str(refusal(blur)) == dedent("""\
        error[E311]: `X` is read outside its bounds
         --> op.pop:3:12
          |
        3 |     Y[i] = X[i - 1] + X[i] + X[i + 1]
          |            ^^^^^^^^ i = 0 reads X[-1] when N = 1
        help: give the value outside: `(X[i - 1] else 0)`""")


def test_a_size_in_the_place_of_an_index_is_called_one():
    product = op("""
        op mm(A: f32[m, k], B: f32[k, n]) -> (C: f32[m, n]) {
            C[m, n] += A[m, k] * B[k, n]
        }
        """)
    assert str(refusal(product)).endswith(
        "help: `m` and `k` are sizes here, and an index has a name of its own: let one of them be `[M, K]`")
    filled = op("""
        op one(X: f32[N]) -> (Y: f32[N]) {
            Y[N] = 1.0
        }
        """)
    assert "^^^^ writes Y[0] when N = 0" in str(refusal(filled))
    assert str(refusal(filled)).endswith("help: `N` is a size here, and an index has a name of its own: let one of them be `[n]`")


WRONG = {
    "a read past the end": (
        operator("Y[i, j] = X[i, j + 2]", inputs="X[M, N]", outputs="Y[M, N]", ranges="i:M j:N"),
        "E311: `X` is read outside its bounds | i = 0, j = 0 reads X[0, 2] when M = 1, N = 1"),
    "a read in a branch that does not keep it inside": (
        operator("Y[i] = X[i - 1] if i <= 3 else 0.0", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
        "E311: `X` is read outside its bounds | i = 0 reads X[-1] when N = 1"),
    "a read of a scalar's size too far": (
        operator("Y = X[3]", inputs="X[N]", outputs="Y", ranges="i:N"),
        "E311: `X` is read outside its bounds | reads X[3] when N = 0"),
    "a read inside a computed position": (
        operator("Y[i] = E[ids[i + 1]]", inputs="ids: i64[N], E[V]", outputs="Y[N]", ranges="i:N"),
        "E311: `ids` is read outside its bounds | i = 0 reads ids[1] when N = 1"),
    "a write outside": (
        operator("Y[i + 1] = X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
        "E312: `Y` is written outside its bounds | i = 0 writes Y[1] when N = 1"),
    "a late start": (
        operator("Y[i] = X[i] | i in 1:N", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
        "E320: `Y` is not written in full: Y[0] is missing when N = 1, because line 1 starts at i = 1"),
    "an early end": (
        operator("Y[i] = X[i] | i in 0:N - 1\nY[0] = X[0]", inputs="X[N]", outputs="Y[N]", ranges="i:N", where="N == 3"),
        "E321: `Y[0]` is written twice, here and in line 2, when N = 3"),
    "a last element": (
        operator("Y[i, j] = X[i, j] | j in 0:N - 1", inputs="X[M, N]", outputs="Y[M, N]", ranges="i:M j:N", where="N >= 2"),
        "E320: `Y` is not written in full: Y[0, 1] is missing when M = 1, N = 2, because line 1 ends at j = 0"),
    "only every second element": (
        operator("Y[2*i] = X[i]", inputs="X[N]", outputs="Y[2*N]", ranges="i:N"),
        "E320: `Y` is not written in full: Y[1] is missing when N = 1"),
    "only below the diagonal": (
        operator("Y[i, j] = X[i, j] | | j <= i", inputs="X[N, N]", outputs="Y[N, N]", ranges="i:N j:N"),
        "E320: `Y` is not written in full: Y[0, 1] is missing when N = 2"),
    "overlapping pieces": (
        operator("Y[i] = X[i]\nY[N - 1] = X[0]", inputs="X[N]", outputs="Y[N]", ranges="i:N", where="N >= 1"),
        "E321: `Y[0]` is written twice, here and in line 2, when N = 1"),
    "one piece over itself": (
        operator("Y[i // 2] = X[i]", inputs="X[2*N]", outputs="Y[N]", ranges="i:2*N"),
        "E322: `Y[0]` is written twice, at i = 0 and at i = 1, when N = 1"),
    "a scatter that assigns": (
        operator("Y[ids[i]] = X[i]", inputs="X[N], ids: i64[N]", outputs="Y[N]", ranges="i:N"),
        "E322: `=` may write one element of `Y` twice, since `ids` may repeat"),
    "a ragged temporary read in full": (
        operator("s[i, j] = Q[i] * Q[j] | | j <= i\nY[i] += s[i, j]",
                 inputs="Q[S]", outputs="Y[S]", temps="s[S, S]", ranges="i:S j:S"),
        "E324: `s` is read where it is not written: s[0, 1] when S = 2; it exists `where (i - j >= 0)`"),
    "a hole found through a computed position": (
        operator("s[i] = Q[i] | i in 1:N\nY[i] = s[ids[i]]",
                 inputs="Q[N], ids: i64[N]", outputs="Y[N]", temps="s[N]", ranges="i:N"),
        "E324: `s` is read where it is not written: s[0] when N = 1"),
    "both neighbours": (
        operator("H[t] = guard(H[t - 1], t >= 1) + guard(H[t + 1], t <= N - 2)", outputs="H[N]", ranges="t:N"),
        "E323: `H` has no legal order: H[0] needs H[1], and H[1] needs H[0], when N = 2"),
    "itself": (
        operator("H[t] = X[t] + H[t]", inputs="X[N]", outputs="H[N]", ranges="t:N"),
        "E323: `H` has no legal order: H[0] needs H[0], when N = 1"),
    "a circle over two tensors": (
        operator("a[i] = guard(b[N - 1 - i], i <= N - 2)\nb[i] = a[i]", outputs="b[N]", temps="a[N]", ranges="i:N"),
        "E323: `a` has no legal order: a[1] needs b[1], and b[1] needs a[1], when N = 3"),
    "a sum over what it is needed for": (
        operator("Z[t, j] += H[t, k] * U[k, j]\nH[t, j] = tanh(Z[t, j])", inputs="U[D, D]", outputs="H[T, D]", temps="Z[T, D]",
                 ranges="t:T j:D k:D"),
        "E323: `Z` has no legal order: Z[0, 0] needs H[0, 0], and H[0, 0] needs Z[0, 0], when D = 1, T = 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_operator_is_refused_at_the_smallest_sizes(name):
    given, text = WRONG[name]
    assert message(given) == text


RIGHT = {
    "matmul": n.MATMUL, "softmax": n.SOFTMAX, "conv": n.CONV, "bias": n.BIAS_RELU,
    "a guard": operator("Y[i] = guard(X[i - 1], i >= 1) + X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
    "a branch": operator("Y[i] = X[i - 1] if i >= 1 else X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
    "a fact": operator("Y[i] = X[i + 2]", inputs="X[M]", outputs="Y[N]", ranges="i:N", where="N + 2 <= M"),
    "two pieces": operator("Y[2*i] = X[i]\nY[2*i + 1] = X[i]", inputs="X[N]", outputs="Y[2*N]", ranges="i:N"),
    "a reversed copy": operator("Y[N - 1 - i] = X[i]", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
    "a scatter that adds": operator("Y[ids[i]] += X[i]", inputs="X[N], ids: i64[N]", outputs="Y[V]", ranges="i:N"),
    "an update in part": operator("Y[i] = X[i - 1] | i in 1:N", inputs="X[N]", outputs="Y[N]", ranges="i:N",
                                  updates=(("X", "Y"),)),
    "a ragged temporary read where it is": operator(
        "s[i, j] = Q[i] * Q[j] | | j <= i\nY[i] += s[i, j] | | j <= i",
        inputs="Q[S]", outputs="Y[S]", temps="s[S, S]", ranges="i:S j:S"),
    "a sum with missing terms": operator("Y[i] += X[i, j] | | j <= i - 1", inputs="X[N, N]", outputs="Y[N]", ranges="i:N j:N"),
    "a scan": operator("H[t] = X[t] + guard(H[t - 1], t >= 1)", inputs="X[N]", outputs="H[N]", ranges="t:N"),
    "a scan from the end": operator("H[t] = X[t] + guard(H[t + 1], t <= N - 2)", inputs="X[N]", outputs="H[N]", ranges="t:N"),
    "a wave": operator("H[i, j] = guard(H[i - 1, j], i >= 1) + guard(H[i, j - 1], j >= 1)", outputs="H[M, N]", ranges="i:M j:N"),
    "a folded order": operator("Y[i] = X[i] + guard(Y[N - 1 - i], 2*i >= N)", inputs="X[N]", outputs="Y[N]", ranges="i:N"),
    "a recurrent cell": operator(
        "Z[t, b, j] += guard(H[t - 1, b, k], t >= 1) * U[k, j]\nH[t, b, j] = tanh(Z[t, b, j] + X[t, b, j])",
        inputs="X[T, B, D], U[D, D]", outputs="H[T, B, D]", temps="Z[T, B, D]", ranges="t:T b:B j:D k:D"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_operator_is_accepted(name):
    check(RIGHT[name])
    assert all(p.holds for p in proofs(RIGHT[name]))


def test_the_conditions_of_a_ragged_temporary_are_shown_as_they_were_written():
    ragged = op("""
        op ragged(Q: f32[S]) -> (Y: f32[S]) {
            s[i, j] = Q[i] * Q[j]  where j <= i
            Y[i] += s[i, j]  where i in 0:S, j in 0:S
        }
        """)
    assert message(ragged) == "E324: `s` is read where it is not written: s[0, 1] when S = 2; it exists `where j <= i`"


def test_a_failed_proof_says_what_fails_and_ends_the_list():
    found = proofs(WRONG["both neighbours"][0])
    assert [p.holds for p in found] == [True, True, True, True, True, False]
    assert "H[0] needs H[1]" in found[-1].witness


def test_only_statements_that_depend_on_themselves_are_scheduled():
    assert circular(extract(n.SOFTMAX)) == ()
    (cell,) = circular(extract(RIGHT["a recurrent cell"]))
    assert [s.name for s in cell] == ["S0", "S1"]


@pytest.mark.parametrize("name", ["matmul", "softmax", "conv", "a scan"])
def test_the_check_is_cheap(name, monkeypatch):
    """Counted in operations of isl for the costliest claim: 10,000 take about 3 ms."""
    monkeypatch.setattr(wellformed, "OPERATIONS", 10_000)
    check(RIGHT[name])


def test_what_isl_cannot_decide_within_its_quota_is_one_report_and_isl_goes_on(monkeypatch):
    given = op("op hard(X: f32[N]) -> (Y: f32[N, N]) { Y[i, j] = X[min(N - 1, (3*i + 2*j) / 5 % 7 + (5*i + 7*j) / 11 % 9)] }")
    monkeypatch.setattr(wellformed, "OPERATIONS", 50)
    refused = refusal(given).diagnostic
    assert refused.code == "E326" and refused.label.span.text.startswith("hard") and "%" in refused.hint
    assert refused.message.startswith("`hard` is refused: whether ") and refused.message.endswith("within 50 operations of isl")
    monkeypatch.undo()
    check(given)
