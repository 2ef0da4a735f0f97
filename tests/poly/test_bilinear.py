"""The proof that sums with fewer multiplications are those of the text, and what it must not accept.

The Ops here are written by hand, and share nothing with the rewrite that makes such sums.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from polyop.ir.errors import UserError
from polyop.ir.expr import affine, map_loads
from polyop.ir.op import builtin_monoid
from polyop.ir.reference import evaluate
from polyop.poly.verify.bilinear import same_sums
from polyop.poly.wellformed import check
from polyop.rewrite.ones import fix_sizes
from polyop.rewrite.windows.filtered import filtered
from polyop.rewrite.windows.winograd import Way, find_filters
from tests.rewrite.ops import arguments, op

HEAD = "op f(X: f64[L, C], F: f64[3, C, K], b: f64[K]) -> (O: f64[L - 2, K]) where L >= 2"
TEXT = HEAD + " { O[p, k] += X[p + r, c] * F[r, c, k] }"
WEIGHTS = """
    W: f64[4, C, K]
    W[0, c, k] = F[0, c, k]
    W[1, c, k] = 0.5 * F[0, c, k] + 0.5 * F[1, c, k] + 0.5 * F[2, c, k]
    W[2, c, k] = 0.5 * F[0, c, k] - 0.5 * F[1, c, k] + 0.5 * F[2, c, k]
    W[3, c, k] = F[2, c, k]"""
IMAGE = """
    V: f64[4, (L - 1) / 2, C]
    V[0, t, c] = X[2*t, c] - X[2*t + 2, c]
    V[1, t, c] = X[2*t + 1, c] + X[2*t + 2, c]
    V[2, t, c] = X[2*t + 2, c] - X[2*t + 1, c]
    V[3, t, c] = X[2*t + 1, c] - (X[2*t + 3, c] else 0)"""
PRODUCTS = """
    M: f64[4, (L - 1) / 2, K]
    M[e, t, k] += V[e, t, c] * W[e, c, k]"""
RESULTS = """
    O[2*t, k] = M[0, t, k] + M[1, t, k] + M[2, t, k]  where t in 0:(L - 1) / 2
    O[2*t + 1, k] = M[1, t, k] - M[2, t, k] - M[3, t, k]  where t in 0:(L - 2) / 2"""
MADE = HEAD + " {" + WEIGHTS + IMAGE + PRODUCTS + RESULTS + "\n}"

TAKEN = HEAD + " { t[p, k] += X[p + r, c] * F[r, c, k]\n O[p, k] = relu(t[p, k] + b[k]) }"
FIRST, SECOND = "M[0, t, k] + M[1, t, k] + M[2, t, k]", "M[1, t, k] - M[2, t, k] - M[3, t, k]"
ENDED = MADE.replace(FIRST, f"relu({FIRST} + b[k])").replace(SECOND, f"relu({SECOND} + b[k])")

BIASED = HEAD + " { O[p, k] += X[p + r, c] * F[r, c, k]\n O[p, k] += b[k] }"
ADDED = MADE.replace(FIRST, f"({FIRST}) + b[k]").replace(SECOND, f"({SECOND}) + b[k]")

COPIED = MADE.replace(RESULTS, RESULTS.replace("O[", "Z[") + """
    Z: f64[L - 2, K]
    O[p, k] = Z[p, k]""")


def compared(before, after):
    """What the checker says, of Ops that both make sense."""
    before, after = op(before), op(after)
    check(before)
    check(after)
    return same_sums(before, after)


def differ(before, after):
    before, after = op(before), op(after)
    sizes = dict(zip("LCK", (7, 3, 3), strict=True))
    values, arrays = arguments(before, {n: sizes[n] for n in before.sizes})
    want, got = (evaluate(x, {n: sizes[n] for n in before.sizes}, values, arrays)["O"] for x in (before, after))
    return not np.allclose(got, want)


PAIRS = [(TEXT, MADE), (TAKEN, ENDED), (BIASED, ADDED), (TEXT, COPIED)]


@pytest.mark.parametrize("before, after", PAIRS)
def test_what_is_the_same_is_proved(before, after):
    proof = compared(before, after)
    assert proof.holds, proof
    assert not differ(before, after)


def test_steps_in_another_order_are_the_same():
    assert compared(TEXT, HEAD + " {" + RESULTS + PRODUCTS + IMAGE + WEIGHTS + "\n}").holds


def test_a_sum_is_itself():
    assert compared(TEXT, TEXT).holds and compared(TAKEN, TAKEN).holds


@pytest.mark.parametrize("old, new", [
    ("= 0.5 * F[0, c, k] + 0.5", "= 0.25 * F[0, c, k] + 0.5"),  # a number
    ("0.5 * F[0, c, k] - 0.5", "0.5 * F[0, c, k] + 0.5"),  # a sign
    ("X[2*t + 1, c] + X[2*t + 2, c]", "X[2*t + 2, c] - X[2*t + 1, c]"),
    ("V[0, t, c] = X[2*t, c]", "V[0, t, c] = X[2*t + 1, c]"),  # an element
    ("W[3, c, k] = F[2, c, k]", "W[3, c, k] = F[1, c, k]"),
    ("(X[2*t + 3, c] else 0)", "X[2*t + 2, c]"),
    (" - (X[2*t + 3, c] else 0)", ""),  # a term
    (" - M[3, t, k]", ""),
    ("M[0, t, k] + M[1, t, k] + M[2, t, k]", "M[0, t, k] + M[1, t, k] + M[3, t, k]"),
    ("M[e, t, k] += ", "M[e, t, k] max= "),  # a reduction
    ("V[e, t, c] * W[e, c, k]", "V[e, t, c] + W[e, c, k]"),
    ("V[e, t, c] * W[e, c, k]", "V[e, t, c] * W[3 - e, c, k]"),
    ("* W[e, c, k]", "* W[e, c, k]  where c >= 1"),  # terms of the sum
    ("* W[e, c, k]", "* W[e, c, k]  where c in 1:C"),
    ("* W[e, c, k]", "* W[e, c, k]  where c <= k"),
    ("O[2*t, k] = M", "O[2*t, k] = 2 * M"),
    ("O[2*t, k] = M[0, t, k]", "O[2*t, k] = exp(M[0, t, k])"),
    ("O[2*t, k] = M[0, t, k]", "O[2*t, k] = M[0, t, k] * M[0, t, k]"),
    ("O[2*t, k] = M[0, t, k]", "O[2*t, k] = b[k] + M[0, t, k]"),
])
def test_one_wrong_thing_is_refused(old, new):
    assert MADE.count(old) == 1
    changed = MADE.replace(old, new)
    assert not compared(TEXT, changed).holds and differ(TEXT, changed)


@pytest.mark.parametrize("old, new", [
    ("relu({} + b[k])", "{} + b[k]"),  # left out
    ("relu({} + b[k])", "relu({})"),
    ("relu({} + b[k])", "relu(relu({} + b[k]))"),  # twice
    ("relu({} + b[k])", "relu({} + b[k] + b[k])"),
    ("relu({} + b[k])", "relu({}) + b[k]"),  # in another order
    ("relu({} + b[k])", "relu({} - b[k])"),
    ("relu({} + b[k])", "tanh({} + b[k])"),
])
def test_what_takes_a_sum_is_done_once_and_as_it_was(old, new):
    changed = ENDED.replace(old.format(SECOND), new.format(SECOND))
    assert changed != ENDED and not compared(TAKEN, changed).holds


@pytest.mark.parametrize("new", ["{}", "(({}) + b[k]) + b[k]", "({}) - b[k]", "relu(({}) + b[k])"])
def test_a_bias_is_added_once(new):
    changed = ADDED.replace(f"({FIRST}) + b[k]", new.format(FIRST))
    assert changed != ADDED and not compared(BIASED, changed).holds


def test_a_bias_of_a_part_is_not_one_of_all():
    part = BIASED.replace("+= b[k]", "+= b[k]  where p in 0:L - 2, p >= 1")
    assert not compared(part, ADDED).holds and differ(part, ADDED)
    part = BIASED.replace("+= X[p + r, c] * F[r, c, k]", "+= X[p + r, c] * F[r, c, k]  where p in 1:L - 2")
    assert not compared(part, ADDED).holds and differ(part, ADDED)


@pytest.mark.parametrize("text", [IMAGE.splitlines()[3], WEIGHTS.splitlines()[-1], RESULTS.splitlines()[2]])
def test_no_step_may_be_missing(text):
    changed = op(MADE.replace(text, ""))
    with pytest.raises(UserError):  # E320, E324
        check(changed)


def test_nothing_is_read_outside():
    with pytest.raises(UserError):
        check(op(MADE.replace("(X[2*t + 3, c] else 0)", "X[2*t + 3, c]")))


def test_a_value_left_out_beyond_the_border_counts():
    before, after = op(TEXT), op(MADE)

    def cut(s):
        return replace(s, expr=map_loads(s.expr, lambda x: replace(x, guard=(*x.guard, affine("t") - 1))))
    changed = replace(after, steps=tuple(cut(s) if s.target.source == "V" else s for s in after.steps))
    check(changed)
    assert same_sums(before, after).holds and not same_sums(before, changed).holds


def test_a_copy_that_is_read_in_part_is_none():
    before, after = op(TEXT), op(COPIED)

    def cut(s):
        return replace(s, expr=map_loads(s.expr, lambda x: replace(x, guard=(affine("p") - 1,))))
    changed = replace(after, steps=tuple(cut(s) if s.target.source == "O" else s for s in after.steps))
    check(changed)
    assert same_sums(before, after).holds and not same_sums(before, changed).holds


@pytest.mark.parametrize("old, new", [
    ("O[p, k] = Z[p, k]", "O[p, k] = Z[L - 3 - p, k]"), ("O[p, k] = Z[p, k]", "O[p, k] = -Z[p, k]"),
    ("Z[2*t, k] = M", "Z[2*t, k] = -M"), ("Z[p, k]\n", "Z[p, k] + b[k]\n")])
def test_copies_are_followed(old, new):
    assert COPIED.count(old) == 1
    assert not compared(TEXT, COPIED.replace(old, new)).holds


SQUARE = "op f(X: f64[L, C], F: f64[3, C, C], b: f64[C]) -> (O: f64[L - 2, C]) where L >= 2"


def test_operands_are_not_turned():
    text, made = (x.replace(HEAD, SQUARE).replace("f64[4, C, K]", "f64[4, C, C]").replace("/ 2, K]", "/ 2, C]")
                  for x in (TEXT, MADE))
    assert compared(text, made).holds
    assert not compared(text, made.replace("V[e, t, c] * W[e, c, k]", "V[e, t, c] * W[e, k, c]")).holds


def test_an_index_of_the_sum_is_not_one_of_the_result():
    """{ O[p, c] } of { M[p, k] += .. W[k, c] }: the two c are not the same."""
    text = "op f(A: f64[L, C], B: f64[C, C]) -> (O: f64[L, C]) { t[p, k] += A[p, c] * B[c, k]\n O[p, c] = relu(t[p, c]) }"
    made = "op f(A: f64[L, C], B: f64[C, C]) -> (O: f64[L, C]) { u[p, k] += A[p, c] * B[k, c]\n O[p, c] = relu(u[p, c]) }"
    assert not compared(text, made).holds and differ(text, made)


def test_ends_of_a_sum_are_those_of_the_same_result():
    text = """op f(A: f64[C], B: f64[C, K]) -> (O: f64[C, K]) {
        t[p, k] += A[c] * B[c, k]  where c in 0:p + 1, p in 0:C
        O[p, k] = t[p, k] }"""
    made = text.replace("t[p, k] +=", "u[p, k] +=").replace("= t[p, k]", "= u[C - 1 - p, k]")
    assert not compared(text, made).holds and differ(text, made)


def test_a_step_of_the_text_is_not_left_out_because_it_is_there_twice():
    head = "op f(X: f64[L, C], F: f64[3, C, K], b: f64[K]) -> (O: f64[L - 2, K], P: f64[K]) where L >= 2"
    twice = "\n P[k] += b[k]\n P[k] += b[k] }"
    text, made = TEXT.replace(HEAD, head).replace(" }", twice), MADE.replace(HEAD, head).replace("\n}", twice)
    assert compared(text, made).holds
    assert not compared(text, made.replace("\n P[k] += b[k]\n", "\n")).holds


def test_other_tensors_are_refused():
    before, after = op(TEXT), op(MADE)
    assert not same_sums(before, replace(after, tensors=tuple(t for t in after.tensors if t.name != "b"))).holds
    shorter = tuple(replace(t, shape=(t.shape[0] - 1, *t.shape[1:])) if t.name == "O" else t for t in after.tensors)
    assert not same_sums(before, replace(after, tensors=shorter)).holds
    assert not same_sums(before, replace(after, updates=(("X", "O"),))).holds


def test_another_sum_of_the_text_is_refused():
    before, after = op(TEXT), op(MADE)
    steps = tuple(replace(s, reduce=builtin_monoid("max", s.target.dtype)) for s in before.steps)
    assert not same_sums(replace(before, steps=steps), after).holds


@pytest.mark.parametrize("old, new", [
    ("M[0, t, k] + M[1, t, k] + M[2, t, k]", "M[t, t, k] + M[1, t, k] + M[2, t, k]"),  # any of several
    ("M[0, t, k] + M[1, t, k] + M[2, t, k]", "M[0, t, k] + M[1, t, k] + M[t / 2, t, k]"),
    ("(X[2*t + 3, c] else 0)", "(X[2*t + 3, c] else 1)"),  # which the results do not depend on
    ("* W[e, c, k]", "* W[e, c, k] * 1"),
])
def test_what_cannot_be_followed_is_refused_and_no_error(old, new):
    assert not same_sums(op(TEXT), op(MADE.replace(old, new))).holds


def test_a_step_that_the_size_of_a_call_chooses_is_refused_and_no_error():
    before, after = op(TEXT), op(MADE)

    def at(x):
        return replace(x, index=(affine("L"), *x.index[1:])) if x.source == "V" else x
    steps = tuple(replace(s, expr=map_loads(s.expr, at)) for s in after.steps)
    assert not same_sums(before, replace(after, steps=steps)).holds


# --- what the rewrite makes, with one number changed
def changed(new):
    """`new`, once for each of its tests, ranges and places that can be one off, and what is changed."""
    for n, s in enumerate(new.steps):
        def with_(x, n=n):
            return replace(new, steps=(*new.steps[:n], x, *new.steps[n + 1:]))
        for k, r in enumerate(s.ranges):
            for x in (replace(r, lower=r.lower + 1), replace(r, upper=r.upper - 1)):
                yield f"{x} in {s}", with_(replace(s, ranges=(*s.ranges[:k], x, *s.ranges[k + 1:])))
        for t in s.where:
            for by in (-1, 1):
                yield f"{t} by {by} in {s}", with_(replace(s, where=tuple(
                    replace(x, tests=tuple(y + by for y in x.tests)) if x is t else x for x in s.where)))
        for d in range(len(s.target.index)):
            at = tuple(p + (d == e) for e, p in enumerate(s.target.index))
            yield f"{d} of target of {s}", with_(replace(s, target=replace(s.target, index=at)))
        for read in {x for x in s.reads if x.source not in "b"}:
            for d in range(len(read.index)):
                at = tuple(p + (d == e) for e, p in enumerate(read.index))
                moved = replace(read, index=at)
                yield f"{moved} in {s}", with_(replace(s, expr=map_loads(s.expr, lambda x, y=read, z=moved: z if x == y else x)))


def test_what_is_accepted_of_changed_steps_is_the_same():
    o = fix_sizes(op("""op f(X: f64[L, C], F: f64[R, C, K], b: f64[K]) -> (O: f64[L, K]) {
        t[p, k] += (X[p + r - 1, c] else 0) * F[r, c, k]  where p in 0:L
        O[p, k] = relu(t[p, k] + b[k]) }"""), {"R": 3})
    assert find_filters(o)
    new = filtered(o, (Way(0, (2,), 2, (False,)),))
    sizes = dict(zip("LCKR", (7, 3, 2, 3), strict=True))
    values, arrays = arguments(o, sizes)
    want, count = evaluate(o, sizes, values, arrays)["O"], 0
    for what, wrong in changed(new):
        if not same_sums(o, wrong).holds:
            count += 1
            continue
        try:
            check(wrong)
        except UserError:
            continue
        np.testing.assert_allclose(evaluate(wrong, sizes, values, arrays)["O"], want, atol=1e-12, err_msg=what)
    assert count > 50
