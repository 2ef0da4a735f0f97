"""No text, however wrong, large or hostile, gets anything but an Op or a report."""

import time

import pytest
from helpers import EXAMPLES, body, op
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyop.dsl.check import instantiate
from polyop.dsl.interface import interface
from polyop.dsl.parse import parse
from polyop.ir.deep import with_room
from polyop.ir.errors import UserError
from polyop.ir.expr import loads
from polyop.ir.span import Source


def survives(text):
    """Parse, and instantiate every operator; only UserError may come out."""
    try:
        program = parse(Source("t.pop", text))
    except UserError as error:
        assert str(error)
        return
    for definition in program.ops:
        try:
            interface(program, definition.name)
            instantiate(program, definition.name)
        except UserError as error:
            assert str(error)


SOUP = """op f ( ) [ ] { } < > : ; , = += max= argmax + - * / % ? and or not in where else -> ... X Y i j N f32 i64
T float 1 2.5 0x1f sum exp f16 int const inout fn monoid == <= << & | ~ true inf $"""
WORDS = [*SOUP.split(), "\n", "\n", "# c\n", "\ufeff"]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_word_soup(words):
    survives(" ".join(words))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_word_soup_in_a_body(words):
    survives(body(" ".join(words), "X: f32[N], Z: i64[M, N], s: f32, n: int; const c: int = 2"))


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_text(text):
    survives(text)
    survives(body(text))


PIECES = EXAMPLES.replace("\n", " \n ").split(" ")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_good_programs_with_a_few_words_changed(data):
    pieces = list(PIECES)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(pieces) - 1))
        what = data.draw(st.sampled_from(["drop", "double", "swap", "replace"]))
        if what == "drop":
            del pieces[at]
        elif what == "double":
            pieces.insert(at, pieces[at])
        elif what == "swap":
            other = data.draw(st.integers(0, len(pieces) - 1))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = data.draw(st.sampled_from(WORDS))
    survives(" ".join(pieces))


EXPRESSIONS = st.recursive(
    st.sampled_from(
        ["X[i]", "i", "N", "2", "0.5", "s", "n", "Z[j, i]", "X[i - 1]", "(X[i - 1] else 0)", "true", "c", "X[Z[0, i]]", "k"]
    ),
    lambda e: st.one_of(
        st.tuples(e, st.sampled_from(["+", "-", "*", "/", "%", "<", "==", "and", "or", "&", "<<", "max"]), e).map(
            lambda t: f"max({t[0]}, {t[2]})" if t[1] == "max" else f"({t[0]} {t[1]} {t[2]})"
        ),
        st.tuples(st.sampled_from(["-", "not ", "~", "exp", "floor", "i32", "f16", "isnan", "abs"]), e).map(
            lambda t: f"{t[0]}({t[1]})"
        ),
        st.tuples(e, e, e).map(lambda t: f"({t[0]} ? {t[1]} : {t[2]})"),
        e.map(lambda x: f"sum[k]({x})"),
        e.map(lambda x: f"X[{x}]"),
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["Y[i] =", "Y[i] +=", "t[i] =", "t[i, j] max=", "Y[i] argmax=", "t[2*i + 1] =", "Y[Z[0, i]] +="]),
    EXPRESSIONS,
    EXPRESSIONS,
)
@example("Y[i] =", "sum[k](X[k])", "k < i")
def test_well_formed_statements_of_any_meaning(left, value, condition):
    survives(body(f"{left} {value}\nY[i] += t[i]", "X: f32[N], Z: i64[M, N], s: f32, n: int; const c: int = 2"))
    survives(body(f"{left} {value} where {condition}", "X: f32[N], Z: i64[M, N], s: f32, n: int; const c: int = 2"))


def test_a_sum_of_900_terms_is_no_matter():
    made = op(body("Y[i] = " + " + ".join(["X[i]"] * 900)))
    assert len(loads(made.steps[0].expr)) == 900
    assert len(with_room(lambda: str(made))) > 5000


@pytest.mark.parametrize(("text", "message"), [
    ("(" * 100_000, "brackets nest at most 100 deep"),
    (body("Y[i] = " + "(" * 101 + "X[i]" + ")" * 101), "brackets nest at most 100 deep"),
    (body("Y[i] = " + "-" * 5000 + "X[i]"), "expressions nest at most 250 deep"),
    (body("Y[i] = " + "X[i] > 0 ? 1 : " * 600 + "2"), "expressions nest at most 250 deep"),
    (body("Y[i] = " + "+".join(["X[i]"] * 3000)), "an operator has at most 10,000 tokens"),
    (body("Y[i] = X[i] + " + "9" * 5000), "a number has at most 40 digits"),
    (body("Y[i] = " + "x" * 5000), "a name has at most 200 letters"),
    (body("Y[i] = X[i] \x00"), "U+0000 is no part of the language"),
    (body("Y[i] = X[i] ≤ 2"), "`≤` is no part of the language"),
    (body("Y[i] = X[i + " + "*".join(["9999999999"] * 100) + "]"), "this integer does not fit into 64 bits"),
    ("fn a(x) = b(x)\nfn b(x) = a(x)\n" + body("Y[i] = a(X[i])"), "`a` calls itself"),
])
def test_what_is_too_much_is_refused_at_once(text, message):
    start = time.process_time()
    with pytest.raises(UserError) as error:
        op(text)
    assert message in str(error.value).splitlines()[0]
    assert time.process_time() - start < 2
    assert max(map(len, str(error.value).splitlines())) < 250


@pytest.mark.parametrize("change", [lambda t: "\ufeff" + t, lambda t: t.replace("\n", "\r\n"), lambda t: t.replace("\n", "\r"),
                                    lambda t: t.replace("    ", "\t"), lambda t: "# \u2028 \x0b\n" + t])
def test_marks_and_line_ends_do_not_matter(change):
    assert len(parse(Source("t.pop", change(EXAMPLES))).ops) == 8
