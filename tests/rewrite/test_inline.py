"""Inlining: what may go, what stays and why, and that values stay what they are."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyop.ir.errors import UnsupportedError
from polyop.ir.expr import loads
from polyop.rewrite.inline import computed_again, inline, inline_one, refusal
from polyop.rewrite.simplify import simplify
from tests.rewrite.ops import LIBRARY, all_of, assert_same, fits, library, op


def steps(made):
    return [str(s) for s in made.steps]


def test_a_temporary_that_is_read_once_stands_where_it_was_read():
    made = op("op f(X: f32[N]) -> (Y: f32[N]) { t[i] = X[i] * 2\n Y[i] = t[i] + 1 }")
    assert steps(inline(made)) == ["Y[i] = ((X[i] * f32(2.0)) + f32(1.0))  where i in 0:N"]


def test_indices_follow_from_the_place_that_is_read():
    made = op("""op f(X: f32[M, N]) -> (Y: f32[N, M]) {
        t[i + 1, j] = X[i, j]    where i in 0:M
        Y[a, b] = t[b + 1, N - 1 - a] + 1 }""")
    assert steps(inline(made)) == ["Y[a, b] = (X[b, N - a - 1] + f32(1.0))  where a in 0:N, b in 0:M"]
    assert_same(made, inline(made), {"M": 3, "N": 2})


def test_a_read_that_is_guarded_becomes_a_choice_and_guards_every_read_in_it():
    made = op("op f(X: f32[N]) -> (Y: f32[N]) { t[i] = X[i] * X[i] + 1\n Y[i] = (t[i - 1] else 0) }")
    new = inline(made)
    assert all(x.guard for x in loads(new.steps[0].expr))
    assert "?" in str(new.steps[0])
    for n in (0, 1, 4):
        assert_same(made, new, {"N": n})


def test_a_copy_that_is_guarded_only_passes_its_guard_on():
    made = op("op f(X: f32[N]) -> (Y: f32[N]) { t[i] = X[i]\n Y[i] = (t[i - 1] else 0) }")
    assert "?" not in str(simplify(inline(made)).steps[0])


def test_what_a_store_would_round_is_rounded_by_a_cast():
    made = op("op f(X: f32[N]) -> (Y: f32[N]) { t: f16 [i] = f16(X[i])\n Y[i] = f32(t[i]) + 1 }")
    new = inline(made)
    assert "f32(f16(X[i]))" in str(new.steps[0])
    assert_same(made, new, {"N": 5})


@pytest.mark.parametrize("body, reason", [
    ("t[i] += X[i, k]\n Y[i, j] = t[i] + X[i, j]", "it is a reduction"),
    ("t[i, j] = exp(X[i, j])\n Y[i, j] = t[i, j] * t[i, j]", "it is read 2 times"),
    ("t[i, j] = exp(X[i, j])\n Y[i, k] += t[i, j] * X[j, k]", "it would be computed again for every k"),
    ("t[i, j] = (t[i - 1, j] else X[i, j]) * 2\n Y[i, j] = t[i, j]", "it reads itself"),
])
def test_a_temporary_stays_and_it_is_said_why(body, reason):
    made = op(f"op f(X: f32[N, N]) -> (Y: f32[N, N]) {{ {body} }}")
    assert refusal(made, "t") == reason
    assert inline(made) == made
    with pytest.raises(UnsupportedError, match=f"`t` of `f` is not inlined: {reason}"):
        inline_one(made, "t")


def test_two_steps_that_write_one_temporary_keep_it():
    made = op("""op f(X: f32[N]) -> (Y: f32[2*N]) {
        t: f32[2*N]
        t[2*i] = X[i]
        t[2*i + 1] = 0
        Y[i] = t[i] }""")
    assert refusal(made, "t") == "2 steps write it"


def test_a_place_of_which_an_iterator_does_not_follow_keeps_the_temporary():
    made = op("op f(X: f32[N]) -> (Y: f32[N]) { t[2*i] = X[i]\n Y[i] = t[2*i] }")
    assert refusal(made, "t") == "`i` does not follow from the place t[2*i]"


def test_a_read_at_a_position_from_data_keeps_the_temporary():
    made = op("op f(X: f32[N], k: i64[M]) -> (Y: f32[M]) { t: f32[N]\n t[i] = X[i] * 2\n Y[j] = t[k[j]] }")
    assert "computed from data" in refusal(made, "t")


def test_what_is_cheap_may_be_computed_again():
    made = op("op f(X: f32[N, N]) -> (Y: f32[N, N]) { t[i, j] = X[j, i] + 1\n Y[i, k] += t[i, j] * X[j, k] }")
    assert inline(made) == made
    new = inline(made, again=1)
    assert not new.temporaries
    assert_same(made, new, {"N": 3})


def test_moving_costs_nothing_and_is_repeated():
    made = op("op f(X: f32[N, N]) -> (Y: f32[N, N]) { t[i, j] = X[j, i]\n Y[i, k] += t[i, j] * t[j, k] }")
    assert not inline(made).temporaries


def test_a_long_chain_is_cut_before_it_is_too_deep():
    body = "\n".join(f"t{n + 1}[i] = t{n}[i] + X[i]" for n in range(250))
    made = op(f"op f(X: f32[N]) -> (Y: f32[N]) {{ t0[i] = X[i]\n {body}\n Y[i] = t250[i] }}")
    new = inline(made)
    assert 1 <= len(new.temporaries) < 20
    assert_same(made, new, {"N": 1})


def test_softmax_keeps_its_exponentials_and_layernorm_loses_its_mean_only_if_told_to():
    assert inline(library("softmax", "softmax")) == library("softmax", "softmax")
    assert refusal(library("norm", "layernorm"), "mean") == "it is read 3 times"


def test_rewritten_operators_of_the_library_compute_the_same():
    compared = 0
    for made in (x for room in LIBRARY for x in all_of(room)):
        new = simplify(inline(made, again=1000))
        if new.steps == made.steps:
            continue
        sizes = next(s for n in (2, 3, 6, 9, 16) if fits(made, s := dict.fromkeys(made.sizes, n)))
        assert_same(made, new, sizes)
        compared += 1
    assert compared > 40


INDEX = st.sampled_from(["i, j", "j, i"])
VALUE = st.sampled_from(["X[{0}]", "X[{0}] * X[{0}]", "X[{0}] - 3", "relu(X[{0}])", "-X[{0}]"])


@settings(max_examples=25, deadline=None)
@given(INDEX, VALUE, INDEX, st.integers(0, 3), st.integers(-2, 2), st.sampled_from(["=", "+="]))
def test_shifted_permuted_and_guarded_reads_keep_their_values(at, value, read, n, shift, sign):
    a, b = read.split(", ")
    made = op(f"""op f(X: f32[N, N]) -> (Y: f32[N, N]) {{
        t[{at}] = {value.format("i, j")}
        Y[i, j] {sign} (t[{a} + {shift}, {b}] else 0) * 2 }}""")
    assert not inline(made).temporaries
    assert_same(made, simplify(inline(made)), {"N": n})


@pytest.mark.parametrize("body, left", [
    ("t[i, j] = exp(X[i, j])\n Y[i, j] = t[i, j] * t[i, j]", False),
    ("t[i, j] = exp(X[i, j])\n Y[i, k] += t[i, j] * X[j, k]", True),
    ("t[i, j] = exp(exp(exp(X[i, j])))\n Y[i, j] = t[i, j] * t[i, j]", True),
])
def test_what_is_cheap_and_read_point_by_point_is_computed_again(body, left):
    made = op(f"op f(X: f32[N, N]) -> (Y: f32[N, N]) {{ {body} }}")
    new = computed_again(made, 20)
    assert bool(new.temporaries) is left
    assert_same(made, new, {"N": 3})
